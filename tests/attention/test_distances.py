"""Positions up to 2^40: distances are exact integers, and nothing is allocated by position."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamctl.attention import IMPLEMENTATIONS, GeneralizedGaussian, Laplace, Prior, Uniform, attention
from bamctl.attention.ssmax import ssmax_factor

FAR = 2**40


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if name != "triton"])  # which needs a GPU
def implementation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", range(5))
def test_far_out_is_as_near_by(
    dtype: torch.dtype,
    kind: int,
    implementation: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
) -> None:
    """A prior knows distances alone, and in fp32 the positions themselves would be 2^17 apart."""
    inputs = make_inputs(queries=4, keys=11, dtype=dtype)
    prior = priors_of_every_kind(4)[kind].to(dtype)
    arguments = {"prior": prior, "implementation": implementation}
    near = attention(*inputs, query_start=7, key_start=0, **arguments)
    far = attention(*inputs, query_start=FAR + 7, key_start=FAR, **arguments)
    assert torch.equal(near, far)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("query_start", [FAR + 8, FAR + 5000], ids=["adjacent", "far ahead of the keys"])
def test_against_the_formulas(
    scaled: bool,
    query_start: int,
    implementation: str,
    make_inputs: Callable[..., Any],
    exact_attention: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    inputs = make_inputs(queries=3, keys=11, heads=2, head_size=4)
    alpha, beta = (900.0, 2.0), (0.5, -1.2)
    arguments = {"query_start": query_start, "key_start": FAR, "ssmax_scales_prior": scaled}
    exact = exact_attention(
        inputs,
        bias=lambda h, rel: -(((abs(rel) + 1e-5) / alpha[h]) ** beta[h]),
        ssmax=(0.3, 0.2),
        **arguments,
    )
    prior = in_float64(GeneralizedGaussian(2, alpha=alpha, beta=beta))
    scale_H = torch.tensor([0.3, 0.2], dtype=torch.float64)
    out = attention(*inputs, prior=prior, ssmax_scale_H=scale_H, implementation=implementation, **arguments)
    assert (out - exact.out).abs().max() < 1e-11
    in_fp32 = attention(
        *(x.float() for x in inputs),
        prior=GeneralizedGaussian(2, alpha=alpha, beta=beta),
        ssmax_scale_H=scale_H.float(),
        implementation=implementation,
        **arguments,
    )
    assert (in_fp32 - exact.out).abs().max() < 2e-4  # logits up to 1e10 · 2^-24 apart only where s sharpens


def test_a_few_keys_a_trillion_tokens_back(
    implementation: str, make_inputs: Callable[..., Any], exact_attention: Callable[..., Any]
) -> None:
    inputs = make_inputs(queries=2, keys=3, heads=3, dtype=torch.float32)
    slope = 2.0**-40
    for prior, bias in (
        (Uniform(3), lambda h, rel: 0.0),
        (Laplace(3, slopes=slope), lambda h, rel: slope * rel),
        (GeneralizedGaussian(3, alpha=FAR / 4, beta=0.5), lambda h, rel: -((-rel / (FAR / 4)) ** 0.5)),
    ):
        out = attention(*inputs, prior=prior, query_start=FAR, implementation=implementation)
        exact = exact_attention(inputs, bias=bias, query_start=FAR)
        torch.testing.assert_close(out.double(), exact.out, rtol=0, atol=2e-6)


def test_the_bias_takes_exact_differences() -> None:
    rel = torch.tensor([FAR - 1]) - torch.tensor([FAR, FAR + 1, FAR + 2])
    assert Laplace(1, slopes=1.0).bias(rel).tolist() == [[-1.0, -2.0, -3.0]]
    assert Laplace(1, slopes=1.0).double().bias(torch.tensor(-(FAR - 1))).item() == -(FAR - 1)
    # 0.5 · 524287 needs 20 bits; slope · column and slope · row in fp32 would each be rounded.
    assert Laplace(1, slopes=0.5).bias(torch.tensor(-524287)).item() == -262143.5


@pytest.mark.parametrize("beta", [-3.0, -0.5, 0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mu", [-2.5, 0.0, 2.5])
def test_the_generalized_gaussian_is_finite_out_to_2_to_the_40(beta: float, mu: float) -> None:
    rel = -torch.tensor([0, 1, 2**24 + 1, 2**31, FAR])
    bias = GeneralizedGaussian(1, alpha=10.0, beta=beta, mu=mu).bias(rel)[0]
    expected = [-(((abs(r - mu) + 1e-5) / 10.0) ** beta) for r in rel.tolist()]
    torch.testing.assert_close(bias.double(), torch.tensor(expected, dtype=torch.float64), rtol=3e-5, atol=0)


def test_the_logarithm_of_ssmax_is_taken_in_float64() -> None:
    positions = torch.tensor([0, 1, 2, 2**24, 2**24 + 1, FAR])
    scale_H = torch.tensor([1.0, -0.5], dtype=torch.float64)
    t = ssmax_factor(scale_H, positions)
    expected = torch.tensor([math.log(i + 1) for i in positions.tolist()], dtype=torch.float64)
    torch.testing.assert_close(t, torch.stack((expected, -0.5 * expected)), rtol=1e-15, atol=0)
    assert ssmax_factor(scale_H.float(), positions).dtype == torch.float32
