"""The priors as distributions: their values, their forms, and what is learned of them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gennorm, laplace, norm

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, ScalableSoftmax, Uniform, alibi_slopes

# Press et al. (arXiv 2108.12409): 2^-1 … 2^-8 for 8 heads; their code for 12 takes the 8 and then every other
# one of 16's.
ALIBI_8 = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
ALIBI_12 = [*ALIBI_8, 0.7071067811865476, 0.35355339059327379, 0.17677669529663689, 0.088388347648318447]
ALIBI_16 = [
    0.7071067811865476,
    0.5,
    0.35355339059327379,
    0.25,
    0.17677669529663689,
    0.125,
    0.088388347648318447,
    0.0625,
    0.044194173824159223,
    0.03125,
    0.022097086912079612,
    0.015625,
    0.011048543456039806,
    0.0078125,
    0.0055242717280199028,
    0.00390625,
]


@pytest.mark.parametrize("slopes", [ALIBI_8, ALIBI_12, ALIBI_16, [0.00390625]], ids=len)
def test_alibi_slopes(slopes: list[float]) -> None:
    assert alibi_slopes(len(slopes)) == pytest.approx(slopes, rel=1e-14)
    assert Laplace(len(slopes)).slopes.tolist() == pytest.approx(slopes, rel=1e-7)


@pytest.mark.parametrize("kind", range(5))
def test_log_prob_is_normalised_over_the_visible_keys(
    kind: int, priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    prior = priors_of_every_kind(3)[kind]
    positions = torch.tensor([0, 1, 5, 11, 40])
    log_p = prior.log_prob(positions, keys=12)
    assert log_p.shape == (3, 5, 12)
    torch.testing.assert_close(
        log_p.exp().sum(-1), torch.ones(3, 5, dtype=log_p.dtype), rtol=0, atol=1e-6 if kind == 0 else 1e-13
    )
    ahead = torch.arange(12) > positions[:, None]
    assert (log_p[:, ahead] == -math.inf).all()
    assert log_p[:, ~ahead].isfinite().all()
    bias = prior.bias(torch.arange(12) - 5)[:, :6]
    torch.testing.assert_close(log_p[:, 2, :6], bias - bias.logsumexp(-1, keepdim=True))


def test_uniform_gives_every_visible_key_the_same_probability() -> None:
    p = Uniform(2).log_prob(torch.tensor([0, 3]), keys=6).exp()
    torch.testing.assert_close(p[1], torch.tensor([[1, 0, 0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25, 0, 0]]))


def test_laplace_is_the_laplace_distribution(in_float64: Callable[[Prior], Prior]) -> None:
    rel = torch.arange(-50, 1)
    prior = in_float64(Laplace(2, slopes=[0.5, 0.03]))
    for head, slope in enumerate((0.5, 0.03)):
        density = torch.from_numpy(laplace.logpdf(rel.numpy(), scale=1 / slope))
        torch.testing.assert_close(prior.bias(rel)[head], density - density[-1], rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    log_alpha=st.floats(-1, 3),
    beta=st.floats(0.05, 3),
    mu=st.floats(-20, 20).filter(lambda mu: abs(mu - round(mu)) > 1e-2),
)
def test_generalized_gaussian_is_scipys(
    log_alpha: float, beta: float, mu: float, in_float64: Callable[[Prior], Prior]
) -> None:
    alpha = 10.0**log_alpha
    rel = torch.arange(-50, 1)
    bias = in_float64(GeneralizedGaussian(1, alpha=alpha, beta=beta, mu=mu)).bias(rel)[0]
    density = torch.from_numpy(gennorm.logpdf(rel.numpy(), beta, loc=mu, scale=alpha))
    constant = gennorm.logpdf(mu, beta, loc=mu, scale=alpha)
    # ε = 1e-5 in the distance, of at least 1e-2 here: a thousandth · β of b at most.
    torch.testing.assert_close(bias, density - constant, rtol=4e-3, atol=1e-9)


def test_shape_1_is_laplace_and_shape_2_is_gaussian(in_float64: Callable[[Prior], Prior]) -> None:
    rel = torch.arange(-1000, 1)
    slopes = [0.5, 0.1, 0.004]
    ggd = in_float64(GeneralizedGaussian(3, alpha=[1 / s for s in slopes], beta=1.0))
    expected = in_float64(Laplace(3, slopes=slopes)).bias(rel)
    assert (ggd.bias(rel) - expected).abs().max() <= 1.001 * 0.5 * GeneralizedGaussian.EPSILON
    gaussian = in_float64(GeneralizedGaussian(1, alpha=30.0, beta=2.0, mu=-7.0)).bias(rel)[0]
    density = torch.from_numpy(norm.logpdf(rel.numpy(), loc=-7.0, scale=30.0 / math.sqrt(2)))
    torch.testing.assert_close(gaussian, density - density.max(), rtol=1e-4, atol=1e-9)


def test_a_negative_shape_puts_the_mass_far_away_and_stays_finite_at_distance_0() -> None:
    prior = GeneralizedGaussian(3, beta=[-0.5, -1.8, -3.0])
    rel = torch.arange(-200, 1)
    bias = prior.bias(rel)
    assert bias.dtype == torch.float32
    assert bias.isfinite().all()
    assert (bias.diff(dim=-1) < 0).all()  # the nearer, the less likely
    assert bias[1, -1].item() == pytest.approx(-(10.0**9), rel=1e-4)
    p = prior.log_prob(torch.tensor([200]), keys=201).exp()
    assert (p[:, 0, -1] == 0).all()
    assert (p[:, 0, 0] > p[:, 0, -20]).all()


def test_shape_0_is_uniform() -> None:
    bias = GeneralizedGaussian(1, alpha=7.0, beta=0.0, mu=-3.0).bias(torch.arange(-100, 1))
    assert (bias == -1).all()


@pytest.mark.parametrize("mu", [-3.0, 2.0])
def test_the_location_is_where_the_prior_peaks(mu: float) -> None:
    """j - i = μ: a negative μ looks back, a positive one lies ahead, so that the query itself is nearest."""
    rel = torch.arange(-10, 1)
    prior = GeneralizedGaussian(1, alpha=2.0, beta=1.5, mu=mu)
    assert rel[prior.bias(rel)[0].argmax()] == min(mu, 0)


def test_any_shape_of_relative_positions(priors_of_every_kind: Callable[[int], list[Prior]]) -> None:
    rel = -torch.arange(24).view(2, 3, 4)
    for prior in priors_of_every_kind(5):
        assert torch.equal(prior.bias(rel), prior.bias(rel.flatten()).view(5, 2, 3, 4))
        assert prior.bias(torch.tensor(-3)).shape == (5,)


def test_one_value_for_all_heads_or_one_each() -> None:
    assert Laplace(3, slopes=0.5).slopes.tolist() == [0.5, 0.5, 0.5]
    prior = GeneralizedGaussian(2, alpha=[2.0, 4.0], beta=-1, mu=[-1.0, 1.0])
    assert prior.alpha.tolist() == pytest.approx([2.0, 4.0])
    assert prior.beta.tolist() == [-1, -1]
    assert prior.mu.tolist() == [-1, 1]


def test_alpha_is_what_it_was_made_with_over_decades() -> None:
    alphas = [1e-3, 0.5, 1.0, 30.0, 1e5]
    for beta in (-2.0, 0.3, 1.0, 3.0):
        assert GeneralizedGaussian(5, alpha=alphas, beta=beta).alpha.tolist() == pytest.approx(
            alphas, rel=2e-5
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Laplace(4, slopes=[1.0, 2.0]), "slopes has 2 values for 4 heads"),
        (lambda: GeneralizedGaussian(4, alpha=[1.0] * 5), "alpha has 5 values for 4 heads"),
        (lambda: GeneralizedGaussian(4, beta=[1.0] * 3), "beta has 3 values for 4 heads"),
        (lambda: GeneralizedGaussian(4, mu=[]), "mu has 0 values for 4 heads"),
        (lambda: GeneralizedGaussian(1, alpha=0.0), "alpha must be above 0, got 0.0"),
        (lambda: GeneralizedGaussian(2, alpha=[1.0, -2.0]), "alpha must be above 0, got -2.0"),
        (lambda: GeneralizedGaussian(1, learned=("alpha", "gamma")), "not gamma"),
    ],
)
def test_values_that_make_no_prior(make: Callable[[], Prior], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_learned_is_a_parameter_and_all_of_it_is_saved() -> None:
    def learned(prior: Prior) -> set[str]:
        return {name for name, _ in prior.named_parameters()}

    assert learned(Uniform(2)) == set()
    assert learned(Laplace(2)) == set()
    assert learned(Laplace(2, learned=True)) == {"slopes"}
    assert learned(GeneralizedGaussian(2)) == {"log_rate", "beta"}
    assert learned(GeneralizedGaussian(2, learned=())) == set()
    assert learned(GeneralizedGaussian(2, learned=("mu",))) == {"mu"}
    assert set(Laplace(2).state_dict()) == {"slopes"}
    for which in ((), ("alpha", "beta", "mu")):
        assert set(GeneralizedGaussian(2, learned=which).state_dict()) == {"log_rate", "beta", "mu"}


def test_reset_puts_the_first_values_back() -> None:
    prior = GeneralizedGaussian(2, alpha=[2.0, 4.0], beta=0.5, mu=-1.0)
    first = {name: value.clone() for name, value in prior.state_dict().items()}
    with torch.no_grad():
        for value in (*prior.parameters(), *prior.buffers()):
            value.fill_(9.0)
    prior.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in prior.state_dict().items())
    ssmax = ScalableSoftmax(3, initial=[0.1, 0.2, 0.3])
    with torch.no_grad():
        ssmax.scale.zero_()
    ssmax.reset_parameters()
    assert ssmax.scale.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_half_values_are_computed_with_in_fp32() -> None:
    rel = torch.arange(-3000, 1)
    for prior in (Laplace(2, slopes=[0.5, 0.25]), GeneralizedGaussian(2, beta=-1.5)):
        expected = prior.bias(rel)
        half = prior.bfloat16()
        assert half.bias(rel).dtype == torch.float32
        torch.testing.assert_close(half.bias(rel), expected)  # these values lose nothing in bfloat16
