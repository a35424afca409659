"""Keys that are not looked at would have weighed nothing, whatever the content and whatever the type."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, cpu, reference
from bamctl.attention.reach import Reach, content_bound


@settings(max_examples=150, deadline=None)
@given(
    log_alpha=st.floats(-2, 2),
    beta=st.floats(-2, 3),
    mu=st.floats(-60, 10),
    content=st.floats(0, 20),
    s=st.none() | st.floats(-1, 3),
    scaled=st.booleans(),
    position=st.integers(0, 300),
    queries=st.integers(1, 40),
    dropped=st.integers(0, 100),
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
    dropped: int,
    in_float64: Callable[[Prior], Prior],
) -> None:
    """The worst content there can be: +U at every key left out, -U at every other."""
    position += dropped
    last = position + queries - 1
    prior = in_float64(GeneralizedGaussian(1, alpha=10.0**log_alpha, beta=beta, mu=mu))
    u_HL = prior.bias(torch.arange(dropped - last, 1)).detach()
    reach = Reach(
        u_HL,
        torch.tensor([content], dtype=torch.float64),
        None if s is None else torch.tensor([s], dtype=torch.float64),
        scales_prior=scaled,
    )
    (first_rel,) = reach.first_rel(position, queries, visible=position + 1 - dropped)
    assert dropped - last <= first_rel <= 0
    if s is not None and s <= 0:
        assert first_rel == dropped - last
    first_key = max(dropped, position + first_rel)
    for i in (position, position + queries // 2, last):
        t = 1.0 if s is None else s * math.log(i + 1)
        b = u_HL[0, u_HL.shape[1] - 1 - (i - dropped) :]  # of the keys dropped … i
        left_out = torch.arange(dropped, i + 1) < first_key
        c = torch.where(left_out, content, -content)
        logits = t * (c + b) if scaled or s is None else t * c + b
        assert logits.softmax(-1)[left_out].sum() <= 2**-53 * 1.001


@pytest.mark.parametrize(("scaled", "s"), [(False, 1.0), (True, 0.11)])
def test_every_query_of_the_chunk_must_be_able_to_do_without(scaled: bool, s: float) -> None:
    """t rises within a chunk. The last query's is the one that counts where it multiplies the content alone,
    the first's where it multiplies the prior too: a prior of two steps lies between what the two ask for."""
    u_HL = torch.where(torch.arange(-99, 1) > -10, 0.0, -100.0).double()[None]
    content_H, scale_H = torch.tensor([7.0]).double(), torch.tensor([s]).double()
    reach = Reach(u_HL, content_H, scale_H, scales_prior=scaled)
    assert reach.first_rel(60, 40, visible=61) == [-99]
    first_alone, last_alone = (reach.first_rel(i, 1, visible=i + 1) for i in (60, 99))
    assert (first_alone, last_alone) == (([-99], [-9]) if scaled else ([-9], [-99]))


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
def test_long_attention_agrees_with_the_reference(
    scale: list[float] | None,
    scaled: bool,
    queries: int,
    query_start: int,
    key_start: int,
    dtype: torch.dtype,
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
) -> None:
    """Longer than one chunk, local heads between far ones, queries that no chunk divides.

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
        with torch.no_grad():
            out = cpu.attention(*inputs, prior=prior, ssmax_scale_H=scale_H, **arguments)
        torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_bound_of_the_content_holds_in_every_type(dtype: torch.dtype, size: int) -> None:
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        q = (30 * torch.randn(1, 8, 1, size, generator=random)).to(dtype)
        work = torch.float64 if dtype == torch.float64 else torch.float32
        k = q.to(work)  # Cauchy-Schwarz holds with equality
        scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(size)
        assert (scores.abs().amax(dim=(0, 2, 3)) <= content_bound(q, k)).all()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_content_without_a_bound_is_looked_at_in_full(value: float) -> None:
    u_HL = Laplace(1, slopes=1.0).bias(torch.arange(-999, 1))
    assert Reach(u_HL, torch.tensor([1.0]), None, scales_prior=True).first_rel(999, 1, visible=1000)[0] > -100
    for scale_H in (None, torch.ones(1)):
        reach = Reach(u_HL, torch.tensor([value]), scale_H, scales_prior=True)
        assert reach.first_rel(999, 1, visible=1000) == [-999]
