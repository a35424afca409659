"""Memory is linear in the length, in the forward pass and in the backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, cpu, reference

PRIORS: dict[str, Callable[[], Prior]] = {
    "uniform": lambda: Uniform(2),
    "local": lambda: Laplace(2, slopes=0.5),
    "far": lambda: GeneralizedGaussian(2, beta=-0.5),
}
MIB = 2**20


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
@pytest.mark.parametrize("use_ssmax", [False, True])
def test_forward(
    make_prior: Callable[[], Prior],
    use_ssmax: bool,
    make_inputs: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "CHUNK_BYTES", MIB // 2)
    scale_H = torch.ones(2) if use_ssmax else None

    def peak_at(length: int) -> int:
        inputs = make_inputs(queries=length, keys=length, heads=2, head_size=16, batch=1, dtype=torch.float32)
        with torch.no_grad():
            return _peak_bytes(
                lambda: cpu.attention(*inputs, prior=make_prior(), query_start=0, ssmax_scale_H=scale_H)
            )

    short, long = peak_at(2048), peak_at(4096)
    assert long < 4096 * 4096 * 4 / 8  # an eighth of one head's scores
    assert long < 2.5 * short


@pytest.mark.parametrize("make_prior", PRIORS.values(), ids=PRIORS)
def test_backward(
    make_prior: Callable[[], Prior], make_inputs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "DIFFERENTIABLE_CHUNK_BYTES", MIB)

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
            cpu.attention(*inputs, prior=make_prior(), query_start=0, ssmax_scale_H=scale_H).sum().backward()

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
