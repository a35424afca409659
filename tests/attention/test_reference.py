"""The definition against the formulas written out in plain Python."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, reference

SSMAX = (0.4, -0.3, 0.0, 1.7)

# (queries, keys, query_start, key_start)
PLACES = {
    "the first token": (1, 1, 0, 0),
    "the first two": (2, 2, 0, 0),
    "a whole prompt": (9, 9, 0, 0),
    "queries in the middle": (5, 13, 6, 0),
    "the last query": (1, 13, 12, 0),
    "the first keys left out": (4, 7, 11, 8),
    "keys that end before the queries": (3, 5, 20, 2),
    "keys beyond every query": (3, 9, 2, 0),
}


def _uniform(h: int, rel: int) -> float:
    return 0.0


def _check(
    exact_attention: Callable[..., Any],
    inputs: Any,
    prior: Prior,
    bias: Callable[[int, int], float],
    **kwargs: Any,
) -> None:
    ssmax = kwargs.pop("ssmax", None)
    scale_H = None if ssmax is None else torch.tensor(ssmax, dtype=torch.float64)
    exact = exact_attention(inputs, bias=bias, ssmax=ssmax, **kwargs)
    out = reference.attention(*inputs, prior=prior, ssmax_scale_H=scale_H, **kwargs)
    assert out.dtype == torch.float64
    assert (out - exact.out).abs().max() < 1e-13 * max(10.0, exact.largest_logit)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("ssmax", "scaled"), [(None, True), (SSMAX, True), (SSMAX, False)])
def test_every_place_grouping_and_ssmax(
    place: tuple[int, int, int, int],
    groups: int,
    ssmax: tuple[float, ...] | None,
    scaled: bool,
    make_inputs: Callable[..., Any],
    exact_attention: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    queries, keys, query_start, key_start = place
    inputs = make_inputs(queries=queries, keys=keys, groups=groups, head_size=5)
    alpha, beta, mu = (0.7, 3.0, 12.0, 1.5), (-1.5, 0.5, 1.0, 2.0), (0.0, -2.5, 1.25, -0.75)
    slopes = (0.5, 0.25, 0.125, 0.0625)

    def ggd(h: int, rel: int) -> float:
        return -(((abs(rel - mu[h]) + 1e-5) / alpha[h]) ** beta[h])

    for prior, bias in (
        (Uniform(4), _uniform),
        (Laplace(4, slopes=slopes), lambda h, rel: slopes[h] * rel),
        (GeneralizedGaussian(4, alpha=alpha, beta=beta, mu=mu), ggd),
    ):
        _check(
            exact_attention,
            inputs,
            in_float64(prior),
            bias,
            query_start=query_start,
            key_start=key_start,
            ssmax=ssmax,
            ssmax_scales_prior=scaled,
        )


@pytest.mark.parametrize("head_size", [16, 31, 64, 128, 256])
def test_head_sizes(
    head_size: int,
    make_inputs: Callable[..., Any],
    exact_attention: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    inputs = make_inputs(queries=3, keys=7, heads=2, head_size=head_size, batch=1)
    prior = in_float64(GeneralizedGaussian(2, alpha=2.0, beta=0.6))
    _check(exact_attention, inputs, prior, lambda h, rel: -(((abs(rel) + 1e-5) / 2.0) ** 0.6), query_start=4)


@pytest.mark.parametrize(
    ("alpha", "beta", "mu"),
    list(itertools.product([1e-3, 0.1, 1.0, 30.0, 1e4], [-3.0, -0.5, 0.0, 0.5, 1.0, 3.0], [-4.2, 0.0, 3.3])),
)
def test_generalized_gaussian_over_decades(
    alpha: float,
    beta: float,
    mu: float,
    make_inputs: Callable[..., Any],
    exact_attention: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    inputs = make_inputs(queries=5, keys=9, heads=1, head_size=4, batch=1)
    prior = in_float64(GeneralizedGaussian(1, alpha=alpha, beta=beta, mu=mu))

    def bias(h: int, rel: int) -> float:
        return -(((abs(rel - mu) + 1e-5) / alpha) ** beta)

    _check(exact_attention, inputs, prior, bias, query_start=4)
    _check(exact_attention, inputs, prior, bias, query_start=4, ssmax=(0.3,))


@settings(max_examples=40, deadline=None)
@given(
    log_alpha=st.floats(-2, 3),
    beta=st.floats(-3, 3),
    mu=st.floats(-10, 10),
    s=st.floats(-1, 2),
    scaled=st.booleans(),
    queries=st.integers(1, 6),
    before=st.integers(0, 20),
    dropped=st.integers(0, 20),
)
def test_any_values(
    log_alpha: float,
    beta: float,
    mu: float,
    s: float,
    scaled: bool,
    queries: int,
    before: int,
    dropped: int,
    make_inputs: Callable[..., Any],
    exact_attention: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    alpha = 10.0**log_alpha
    inputs = make_inputs(queries=queries, keys=before + queries, heads=1, head_size=3, batch=1)
    _check(
        exact_attention,
        inputs,
        in_float64(GeneralizedGaussian(1, alpha=alpha, beta=beta, mu=mu)),
        lambda h, rel: -(((abs(rel - mu) + 1e-5) / alpha) ** beta),
        query_start=before + dropped,
        key_start=dropped,
        ssmax=(s,),
        ssmax_scales_prior=scaled,
    )
