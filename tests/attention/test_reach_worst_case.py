"""Keys that are not looked at would have weighed nothing, whatever the content and whatever the type."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, cpu, reference
from bamctl.attention.reach import first_keys

HEADS, KEYS, SIZE = 2, 400, 16


@settings(max_examples=200, deadline=None)
@given(
    log_alpha=st.floats(-6, 6),
    beta=st.sampled_from([0.0]) | st.floats(-3, 3),
    mu=st.floats(-60, 10),
    content=st.floats(0, 20),
    s=st.none() | st.floats(-1, 3),
    scaled=st.booleans(),
    position=st.integers(0, 300),
    queries=st.integers(1, 40),
    key_start=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_what_is_left_out_is_below_half_a_unit_of_the_row(
    log_alpha: float,
    beta: float,
    mu: float,
    content: float,
    s: float | None,
    scaled: bool,
    position: int,
    queries: int,
    key_start: int,
    dtype: torch.dtype,
) -> None:
    """The worst content there can be: +U at every key left out, -U at every other."""
    position += key_start
    last = position + queries - 1
    prior = GeneralizedGaussian(1, alpha=10.0**log_alpha, beta=beta, mu=mu).to(dtype)
    content_H = torch.tensor([content], dtype=dtype)
    scale_H = None if s is None else torch.tensor([s], dtype=dtype)
    first_key = int(
        first_keys(
            prior,
            content_H=content_H,
            positions_T=torch.tensor([position]),
            queries=queries,
            key_start=key_start,
            scale_H=scale_H,
            scales_prior=scaled,
            dtype=dtype,
        )
    )
    assert key_start <= first_key <= position
    if scale_H is not None and scale_H <= 0:
        assert first_key == key_start
    for i in {position, position + queries // 2, last}:
        t = 1.0 if scale_H is None else scale_H.item() * math.log(i + 1)
        b = prior.bias(torch.arange(key_start - i, 1))[0].double()
        left_out = torch.arange(key_start, i + 1) < first_key
        c = torch.where(left_out, content_H.item(), -content_H.item())
        logits = t * (c + b) if scaled or s is None else t * c + b
        assert logits.softmax(-1)[left_out].sum() <= torch.finfo(dtype).eps / 2 * 1.001


@pytest.mark.parametrize(("scaled", "s"), [(False, 1.0), (True, 0.11)])
def test_every_query_of_the_tile_must_be_able_to_do_without(
    scaled: bool, s: float, make_steps: Callable[[int, Mapping[int, float]], Prior]
) -> None:
    """t rises within a tile. The last query's is the one that counts where it multiplies the content alone,
    the first's where it multiplies the prior too: a prior of two steps lies between what the two ask for."""

    def first_rel(position: int, queries: int) -> int:
        found = first_keys(
            make_steps(1, {0: 0.0, 10: -100.0}),
            content_H=torch.tensor([7.0]).double(),
            positions_T=torch.tensor([position]),
            queries=queries,
            key_start=0,
            scale_H=torch.tensor([s]).double(),
            scales_prior=scaled,
            dtype=torch.float64,
        )
        return int(found) - position

    assert first_rel(60, 40) == -60
    first_alone, last_alone = first_rel(60, 1), first_rel(99, 1)
    assert (first_alone, last_alone) == ((-60, -9) if scaled else (-9, -99))


# A bias so huge that nothing that is subtracted from it moves it.
@example(
    beta=3.0, alpha=1e-6, mu=7.5, scale=None, scaled=False, norm=0.01, query_start=0, key_start=0, seed=0
)
@settings(max_examples=30, deadline=None)
@given(
    beta=st.sampled_from([-3.0, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0]),
    alpha=st.sampled_from([1e-6, 1e-2, 0.5, 3.0, 50.0, 1e6]),
    mu=st.sampled_from([0.0, 7.5, -40.0]),
    scale=st.sampled_from([None, 0.3, 2.0, 0.0, -0.4]),
    scaled=st.booleans(),
    norm=st.sampled_from([0.01, 1.0, 4.0]),
    query_start=st.sampled_from([0, 1, 150, KEYS - 1]),
    key_start=st.sampled_from([0, 1, 777]),
    seed=st.integers(0, 5),
)
def test_nothing_changes(
    beta: float,
    alpha: float,
    mu: float,
    scale: float | None,
    scaled: bool,
    norm: float,
    query_start: int,
    key_start: int,
    seed: int,
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    prior = in_float64(GeneralizedGaussian(HEADS, alpha=alpha, beta=beta, mu=[mu, 0.0]))
    q, k, v = make_inputs(
        queries=KEYS - query_start, keys=KEYS, heads=HEADS, head_size=SIZE, batch=1, seed=seed
    )
    arguments = {
        "prior": prior,
        "query_start": query_start + key_start,
        "key_start": key_start,
        "ssmax_scale_H": None if scale is None else torch.tensor([scale, 0.5], dtype=torch.float64),
        "ssmax_scales_prior": scaled,
    }
    with torch.no_grad(), small_parts():
        out = cpu.attention(norm * q, k, v, **arguments)
        expected = reference.attention(norm * q, k, v, **arguments)
    # t · (c + b) and t · c + t · b round differently, by a unit of the largest logit, which the weights feel.
    rounding = 0.0
    if scale is not None and scaled:
        largest = prior.bias(torch.arange(1 - KEYS, 1)).abs().max() * max(0.5, abs(scale))
        rounding = 8 * torch.finfo(torch.float64).eps * largest.item() * math.log(KEYS + key_start)
    if rounding < 0.1:  # beyond, float64 itself does not know the weights
        torch.testing.assert_close(out, expected, rtol=1e-9 + rounding, atol=1e-9 + rounding)


@pytest.mark.parametrize("distance", [1, 20, 63, 64, 65, 95, 96, 97, 127, 128, 129, 300, KEYS - 1])
@pytest.mark.parametrize("norm", [5.0, 30.0])
@pytest.mark.parametrize("s", [None, 0.2])
def test_a_far_key_with_a_large_norm_is_looked_at(
    distance: int, norm: float, s: float | None, small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    """The worst case for a local head: one aligned key, so strong that content outweighs distance."""
    q = torch.zeros(1, 1, KEYS, SIZE, dtype=torch.float64)
    k, v = torch.zeros_like(q), torch.zeros_like(q)
    q[..., 0] = norm
    k[:, :, KEYS - 1 - distance, 0] = norm
    v[:, :, KEYS - 1 - distance] = 1
    arguments = {
        "prior": Laplace(1, slopes=1.0).double(),
        "query_start": 0,
        "ssmax_scale_H": None if s is None else torch.tensor([s], dtype=torch.float64),
    }
    with torch.no_grad(), small_parts():
        out = cpu.attention(q, k, v, **arguments)
    torch.testing.assert_close(out, reference.attention(q, k, v, **arguments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("scale", "scaled"),
    [(None, True), ([0.6, 0.0, -4e-4, 0.2], True), ([0.6, 0.0, -4e-4, 0.2], False)],
)
@pytest.mark.parametrize(
    ("queries", "query_start", "key_start"),
    [(900, 0, 0), (200, 1100, 0), (1, 1299, 0), (601, 3700, 3000)],
    ids=["whole", "end", "last", "first keys left out"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parts", ["as they are", "small"])
def test_long_attention_agrees_with_the_reference(
    scale: list[float] | None,
    scaled: bool,
    queries: int,
    query_start: int,
    key_start: int,
    dtype: torch.dtype,
    parts: str,
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Longer than one tile, local heads between far ones, queries that no tile divides.

    The head with s < 0 looks farthest back: its logits grow to s · ln n · b, small enough for fp32 here.
    """
    keys = query_start + queries - key_start
    inputs = make_inputs(queries=queries, keys=keys, groups=2, head_size=16, batch=1, dtype=dtype)
    scale_H = None if scale is None else torch.tensor(scale, dtype=torch.float64)
    arguments = {"query_start": query_start, "key_start": key_start, "ssmax_scales_prior": scaled}
    rtol, atol = {torch.float64: (0, 1e-11), torch.float32: (0, 2e-5), torch.bfloat16: (2**-8, 2e-5)}[dtype]
    for prior in (
        GeneralizedGaussian(4, alpha=[1.0, 2.0, 0.5, 1.0], beta=[1.0, -0.5, 1.2, 0.9], mu=[0, 0, -40.0, 2.5]),
        Laplace(4, slopes=[0.5, 0.001, 2.0, 1.0]),
    ):
        expected = reference.attention(
            *(x.double() for x in inputs), prior=in_float64(prior), ssmax_scale_H=scale_H, **arguments
        )
        with torch.no_grad(), small_parts() if parts == "small" else nullcontext():
            out = cpu.attention(*inputs, prior=prior, ssmax_scale_H=scale_H, **arguments)
        torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol)
