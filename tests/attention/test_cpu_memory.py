"""Memory is linear in the length, in the forward pass and in the backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, cpu, reference
from bamctl.attention.cpu import blocks, differentiable, exact, far_field, interpolation, uniform
from bamctl.attention.reach import longest_vector

PRIORS: dict[str, Callable[[], Prior]] = {
    "uniform": lambda: Uniform(2),
    "local": lambda: Laplace(2, slopes=0.5),
    "far": lambda: GeneralizedGaussian(2, beta=-0.5),
    "local beside far": lambda: GeneralizedGaussian(2, beta=[1.0, -0.5]),
    "decaying slowly": lambda: Laplace(2, slopes=0.01),
}
MIB = 2**20


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so short that two thousand tokens are many, and tiles that weigh little beside them."""
    for module, name, value in (
        (cpu, "SEARCH_WORTH", 0),
        (cpu, "TILE", 256),
        (cpu, "LONGEST_WINDOW", 255),
        (cpu, "LONGEST_PAST", 255),
        (cpu, "NEAR_BLOCK", 128),
        (cpu, "LONGEST_CHUNK", 256),
        (cpu, "SKIPPING_CHUNK", 256),
        (cpu, "CHUNK", 128),
        (far_field, "CHUNK", 128),
        (interpolation, "CHUNK", 128),
        (interpolation, "NEAR", (384,)),
        (far_field, "TILE_BYTES", MIB // 8),
        (blocks, "TRIANGLE_BLOCK", 128),
        (exact, "TILE_BYTES", MIB // 8),
        (blocks, "TILE_BYTES", MIB // 8),
        (uniform, "TILE_BYTES", MIB // 8),
    ):
        monkeypatch.setattr(module, name, value)


def _peak_bytes(call: Callable[[], Any]) -> int:
    """The most that PyTorch had allocated at once on top of what there was, inside kernels too."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    del result
    assert recorded.profiler is not None
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize("make_prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("ssmax", ["plain", "ssmax", "prior unscaled", "negative"])
def test_forward(
    make_prior: Callable[[], Prior],
    ssmax: str,
    make_inputs: Callable[..., Any],
    parts: None,
) -> None:
    scale = {"plain": None, "ssmax": 1.0, "prior unscaled": 1.0, "negative": -1.0}[ssmax]
    arguments: dict[str, Any] = {
        "query_start": 0,
        "ssmax_scale_H": None if scale is None else torch.full((2,), scale),
        "ssmax_scales_prior": ssmax != "prior unscaled",
    }

    def peak_at(length: int) -> int:
        inputs = make_inputs(queries=length, keys=length, heads=2, head_size=16, batch=1, dtype=torch.float32)
        with torch.no_grad():
            return _peak_bytes(lambda: cpu.attention(*inputs, prior=make_prior(), **arguments))

    short, long = peak_at(2048), peak_at(4096)
    assert long < 4096 * 4096 * 4 / 8  # an eighth of one head's scores
    assert long < 2.5 * short


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["uniform", "local beside far", "decaying slowly"])
@pytest.mark.parametrize("ssmax", ["plain", "ssmax", "prior unscaled"])
@pytest.mark.parametrize("queries", [1, 200])
def test_keys_are_copied_neither_for_heads_that_share_them_nor_to_another_type(
    dtype: torch.dtype,
    kind: str,
    ssmax: str,
    queries: int,
    make_inputs: Callable[..., Any],
    parts: None,
) -> None:
    """Against a long cache, of which no more than a tile at a time is ever held twice."""
    keys, size = 16_000, 32
    q, k, v = make_inputs(queries=queries, keys=keys, heads=2, groups=1, head_size=size, batch=1, dtype=dtype)
    arguments: dict[str, Any] = {
        "query_start": keys - queries,
        "ssmax_scale_H": None if ssmax == "plain" else torch.ones(2),
        "ssmax_scales_prior": ssmax != "prior unscaled",
        "longest_key_G": longest_vector(k),
    }
    with torch.no_grad():
        peak = _peak_bytes(lambda: cpu.attention(q, k, v, prior=PRIORS[kind](), **arguments))
    assert peak < keys * size * 4  # the keys alone, once, in fp32


@pytest.mark.parametrize("kind", ["uniform", "local", "far"])
def test_backward(kind: str, make_inputs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differentiable, "CHUNK_BYTES", MIB)

    def peak_at(length: int) -> int:
        inputs = make_inputs(
            queries=length,
            keys=length,
            heads=2,
            head_size=8,
            batch=1,
            dtype=torch.float32,
            requires_grad=True,
        )
        scale_H = torch.ones(2, requires_grad=True)

        def forward_and_backward() -> None:
            cpu.attention(
                *inputs, prior=PRIORS[kind](), query_start=0, ssmax_scale_H=scale_H
            ).sum().backward()

        return _peak_bytes(forward_and_backward)

    short, long = peak_at(1024), peak_at(2048)
    assert long < 2048 * 2048 * 4 / 2  # half of one head's scores, of which autograd would keep several
    assert long < 2.5 * short


def test_the_meter_sees_a_matrix(make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=1024, keys=1024, heads=2, head_size=8, batch=1, dtype=torch.float32)
    with torch.no_grad():
        peak = _peak_bytes(lambda: reference.attention(*inputs, prior=Laplace(2), query_start=0))
    assert peak > 2 * 1024 * 1024 * 4


def test_a_gap_between_keys_and_queries_costs_nothing(make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=4, keys=8, dtype=torch.float32)
    with torch.no_grad():
        peak = _peak_bytes(lambda: cpu.attention(*inputs, prior=Laplace(4), query_start=10**12))
    assert peak < MIB
