"""The largest bias of a range of positions, and the one form that most priors share."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform
from bamctl.attention.priors import PowerLaw

LONGEST = 60
BETAS = [-3.0, -1.3, -0.2, 0.0, 0.4, 1.0, 2.5, 3.0]
MUS = [-41.5, -20.0, -0.5, 0.0, 3.7, 500.0, -500.0]


def _by_trying_all(prior: Prior, first: int, last: int) -> Tensor:
    return prior.bias(torch.arange(first, last + 1)).amax(dim=-1)


def _every_range() -> tuple[Tensor, Tensor]:
    ranges = [(a, b) for a, b in itertools.product(range(-LONGEST, 1, 3), repeat=2) if a <= b]
    return torch.tensor([a for a, _ in ranges]), torch.tensor([b for _, b in ranges])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "make_prior",
    [
        lambda: Uniform(3),
        lambda: Laplace(3),
        lambda: Laplace(4, slopes=[0.3, 0.0, -0.3, -2.0]),
        *(lambda mu=mu: GeneralizedGaussian(len(BETAS), alpha=7.0, beta=BETAS, mu=mu) for mu in MUS),
    ],
    ids=["uniform", "ALiBi", "slopes of both signs", *(f"mu {mu}" for mu in MUS)],
)
def test_is_the_largest_of_all_in_the_range(make_prior: Callable[[], Prior], dtype: torch.dtype) -> None:
    """Ranges before, behind and around μ, those of one position among them."""
    prior = make_prior().to(dtype)
    first_T, last_T = _every_range()
    highest_HT = prior.highest(first_T[None], last_T[None])
    assert highest_HT.shape == (prior.heads, len(first_T))
    expected = [_by_trying_all(prior, int(a), int(b)) for a, b in zip(first_T, last_T, strict=True)]
    rtol = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(highest_HT, torch.stack(expected, dim=-1), rtol=rtol, atol=0)


@settings(max_examples=100, deadline=None)
@given(
    log_alpha=st.floats(-6, 6),
    beta=st.floats(-3, 3),
    mu=st.floats(-2.0 * LONGEST, LONGEST),
    first=st.integers(-LONGEST, 0),
    last=st.integers(-LONGEST, 0),
)
def test_whatever_the_scale_the_shape_and_the_location(
    log_alpha: float, beta: float, mu: float, first: int, last: int, in_float64: Callable[[Prior], Prior]
) -> None:
    first, last = min(first, last), max(first, last)
    prior = in_float64(GeneralizedGaussian(1, alpha=10.0**log_alpha, beta=beta, mu=mu))
    highest = prior.highest(torch.tensor([[first]]), torch.tensor([[last]]))
    torch.testing.assert_close(highest[:, 0], _by_trying_all(prior, first, last), rtol=1e-14, atol=0)


@pytest.mark.parametrize("mu", [-(2.0**40) + 2.25, -(2.0**39), -3.0, 5.0])
def test_exact_out_to_2_to_the_40(mu: float, in_float64: Callable[[Prior], Prior]) -> None:
    """Ranges of a few positions, where trying all of them is possible, and of all that there are."""
    prior = in_float64(GeneralizedGaussian(len(BETAS), alpha=1e9, beta=BETAS, mu=mu))
    for start in (-(2**40), -(2**39) - 2, -(2**33)):
        highest = prior.highest(torch.tensor([[start]]), torch.tensor([[start + 5]]))[:, 0]
        torch.testing.assert_close(highest, _by_trying_all(prior, start, start + 5), rtol=1e-14, atol=0)
    whole = prior.highest(torch.tensor([[-(2**40)]]), torch.tensor([[0]]))[:, 0]
    at_nearest = prior.bias(torch.tensor(min(round(mu), 0)))
    at_ends = prior.bias(torch.tensor([-(2**40), 0])).amax(dim=-1)
    torch.testing.assert_close(whole, torch.maximum(at_nearest, at_ends), rtol=1e-14, atol=0)


def test_ranges_of_any_shape_and_one_a_head() -> None:
    prior = GeneralizedGaussian(3, beta=[1.0, -0.5, 0.3], mu=[-4.0, 0.0, -9.5])
    first = -torch.arange(24).view(1, 2, 3, 4) - 5
    last = first + 4
    together = prior.highest(first, last)
    assert together.shape == (3, 2, 3, 4)
    assert torch.equal(together[:, 1, 2, 0], prior.highest(first[:, 1, 2, 0], last[:, 1, 2, 0]))
    # Every head with a range of its own.
    last_HT = torch.tensor([[-1, -2], [-3, 0], [-8, -4]])
    each = prior.highest(torch.tensor([[-12]]), last_HT)
    for head, tile in itertools.product(range(3), range(2)):
        expected = _by_trying_all(prior, -12, int(last_HT[head, tile]))[head]
        torch.testing.assert_close(each[head, tile], expected)
    laplace = Laplace(3, slopes=[1.0, 0.0, -1.0])
    assert laplace.highest(torch.tensor([[-12]]), last_HT).tolist() == [[-1, -2], [0, 0], [12, 12]]
    assert Uniform(3).highest(torch.tensor([[-12]]), last_HT).tolist() == [[0, 0]] * 3


def _by_power_law(law: PowerLaw, rel: Tensor) -> Tensor:
    rate, beta, mu = (x[:, None] for x in (law.rate_H, law.beta_H, law.mu_H))
    return -rate * ((rel.to(mu.dtype) - mu).abs() + law.epsilon) ** beta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_power_law_is_the_bias(dtype: torch.dtype) -> None:
    rel = torch.cat((torch.arange(-500, 1), torch.tensor([-(2**31), -(2**40)])))
    for prior in (
        Laplace(4, slopes=[0.3, 0.0, -0.3, 1e-5]),
        *(GeneralizedGaussian(len(BETAS), alpha=30.0, beta=BETAS, mu=mu) for mu in MUS),
    ):
        law = prior.to(dtype).power_law()
        assert law is not None
        assert law.rate_H.dtype == law.beta_H.dtype == law.mu_H.dtype == dtype
        bias = prior.bias(rel)
        torch.testing.assert_close(_by_power_law(law, rel), bias, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_the_power_law_of_half_values_is_in_fp32() -> None:
    for prior in (Laplace(2).bfloat16(), GeneralizedGaussian(2, beta=-1.5).bfloat16()):
        law = prior.power_law()
        assert law is not None
        assert law.rate_H.dtype == law.beta_H.dtype == law.mu_H.dtype == torch.float32


def test_what_is_no_power_of_the_distance_says_so(make_steps: Callable[..., Prior]) -> None:
    assert Uniform(2).power_law() is None
    assert make_steps(2, {0: 0.0, 10: -5.0}).power_law() is None
