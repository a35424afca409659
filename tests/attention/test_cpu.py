"""The CPU implementation agrees with the definition: with and without gradients, however it is cut up."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, attention, cpu, reference
from bamctl.attention.cpu import blocks, differentiable, exact

PATHS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "fused": torch.no_grad,
    "differentiable": nullcontext,
}

# (queries, keys, query_start, key_start)
PLACES = {
    "the first token": (1, 1, 0, 0),
    "a whole prompt": (37, 37, 0, 0),
    "one query more than keys before it": (3, 3, 1, 1),
    "a chunk of a prefill": (20, 45, 25, 0),
    "the last query": (1, 45, 44, 0),
    "the first keys left out": (7, 27, 30, 10),
    "keys that end before the queries": (9, 21, 60, 3),
    "keys beyond every query": (9, 40, 5, 3),
}

SSMAX_KINDS = {"plain": (False, True), "ssmax": (True, True), "ssmax, prior unscaled": (True, False)}


def _scale(heads: int, used: bool, dtype: torch.dtype = torch.float64) -> Tensor | None:
    """From negative through exactly 0 to positive."""
    return (
        torch.linspace(-0.4, 0.8, heads, dtype=dtype).where(torch.arange(heads) != 1, 0.0) if used else None
    )


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with PATHS[request.param]():
        yield request.param


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("use_ssmax", "scaled"), SSMAX_KINDS.values(), ids=SSMAX_KINDS)
@pytest.mark.parametrize("cut", ["whole", "small", "smallest"])
def test_agrees_with_the_reference_in_float64(
    place: tuple[int, int, int, int],
    use_ssmax: bool,
    scaled: bool,
    cut: str,
    path: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cut != "whole":
        monkeypatch.setattr(cpu, "TILE", 32)
        monkeypatch.setattr(cpu, "LONGEST_WINDOW", 8)
        monkeypatch.setattr(cpu, "LONGEST_PAST", 8)
        monkeypatch.setattr(cpu, "NEAR_BLOCK", 8 if cut == "small" else 1)
        monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
        monkeypatch.setattr(cpu, "LONGEST_CHUNK", 16 if cut == "small" else 1)
        monkeypatch.setattr(cpu, "SKIPPING_CHUNK", 8 if cut == "small" else 1)
        monkeypatch.setattr(cpu, "FEW_QUERIES", 0)
        monkeypatch.setattr(blocks, "TRIANGLE_BLOCK", 4 if cut == "small" else 1)
        monkeypatch.setattr(exact, "TILE_BYTES", 1000 if cut == "small" else 1)
        monkeypatch.setattr(blocks, "TILE_BYTES", 1000 if cut == "small" else 1)
        monkeypatch.setattr(differentiable, "LONGEST_CHUNK", 11 if cut == "small" else 1)
    queries, keys, query_start, key_start = place
    for heads, groups in ((4, 2), (3, 1)):
        inputs = make_inputs(
            queries=queries, keys=keys, heads=heads, groups=groups, requires_grad=path == "differentiable"
        )
        for prior in priors_of_every_kind(heads):
            arguments = {
                "prior": prior,
                "query_start": query_start,
                "key_start": key_start,
                "ssmax_scale_H": _scale(heads, use_ssmax),
                "ssmax_scales_prior": scaled,
            }
            expected = reference.attention(*inputs, **arguments)
            out = cpu.attention(*inputs, **arguments)
            assert out.requires_grad == (path == "differentiable")
            assert (out - expected).abs().max() < 1e-11, prior


@pytest.mark.parametrize("head_size", [16, 33, 64, 128, 256])
def test_head_sizes(
    head_size: int,
    path: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
) -> None:
    inputs = make_inputs(
        queries=19, keys=31, heads=2, head_size=head_size, requires_grad=path == "differentiable"
    )
    for prior in priors_of_every_kind(2):
        arguments = {"prior": prior, "query_start": 12, "ssmax_scale_H": _scale(2, True)}
        expected = reference.attention(*inputs, **arguments)
        assert (cpu.attention(*inputs, **arguments) - expected).abs().max() < 1e-11


@pytest.mark.parametrize(
    ("module", "constant", "path_name"),
    [(exact, "TILE_BYTES", "fused"), (differentiable, "CHUNK_BYTES", "differentiable")],
)
@pytest.mark.parametrize("limit", [1, 3000, 20000])
def test_a_small_limit_of_memory_changes_nothing(
    module: Any,
    constant: str,
    path_name: str,
    limit: int,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = make_inputs(queries=23, keys=30, requires_grad=path_name == "differentiable")
    for prior in priors_of_every_kind(4):
        arguments = {"prior": prior, "query_start": 7, "ssmax_scale_H": _scale(4, True)}
        with PATHS[path_name]():
            monkeypatch.undo()
            whole = cpu.attention(*inputs, **arguments)
            monkeypatch.setattr(module, constant, limit)
            cut = cpu.attention(*inputs, **arguments)
        assert (whole - cut).abs().max() < 1e-12


# What separates a half type from the reference is the rounding of the output: half a unit in the last
# place, 2^-9 of a value in bfloat16 (8 bits) and 2^-12 in float16 (11 bits), twice that allowed. The
# arithmetic before is fp32: 24 bits, of logits up to about 50 here, some 5e-6 of a weight.
TOLERANCES = {
    torch.float32: (0.0, 2e-5),
    torch.bfloat16: (2**-8, 2e-5),
    torch.float16: (2**-11, 2e-5),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("use_ssmax", "scaled"), SSMAX_KINDS.values(), ids=SSMAX_KINDS)
def test_agrees_with_float64_in_other_dtypes(
    dtype: torch.dtype,
    use_ssmax: bool,
    scaled: bool,
    path: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
) -> None:
    rtol, atol = TOLERANCES[dtype]
    inputs = make_inputs(
        queries=65, keys=90, groups=2, head_size=32, dtype=dtype, requires_grad=path == "differentiable"
    )
    scale_H = _scale(4, use_ssmax, torch.float32)
    arguments = {"query_start": 25, "ssmax_scales_prior": scaled}
    for prior in priors_of_every_kind(4):
        rounded = prior.float().double()  # the values that fp32 holds, so that arithmetic alone is compared
        expected = reference.attention(
            *(x.double() for x in inputs),
            prior=rounded,
            ssmax_scale_H=None if scale_H is None else scale_H.double(),
            **arguments,
        )
        for name, implementation in (("cpu", cpu.attention), ("reference", reference.attention)):
            out = implementation(*inputs, prior=rounded.float(), ssmax_scale_H=scale_H, **arguments)
            assert out.dtype == dtype
            torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol, msg=f"{name}, {prior}")
            rounded.double()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_bias_of_a_billion_at_distance_0_stays_finite(
    dtype: torch.dtype, path: str, make_inputs: Callable[..., Any], in_float64: Callable[[Prior], Prior]
) -> None:
    inputs = make_inputs(queries=12, keys=12, dtype=dtype, requires_grad=path == "differentiable")
    prior = GeneralizedGaussian(4, beta=[-1.8, -2.5, -3.0, -1.8])
    assert prior.bias(torch.tensor(0)).abs().min() > 5e8
    scale_H = torch.tensor([0.4, 1.0, 0.0, -0.3])
    out = attention(*inputs, prior=prior, query_start=0, ssmax_scale_H=scale_H)
    assert out.isfinite().all()
    v = inputs.v.to(out.dtype)
    # The first token sees itself alone; with s < 0 the order turns round and everyone sees itself alone.
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])
    torch.testing.assert_close(out[:, 3], v[:, 3])
    # With s > 0 nobody sees itself: its own value may be anything.
    changed = inputs.v.detach().clone()
    changed[:, :2, -1] += 100
    again = attention(inputs.q, inputs.k, changed, prior=prior, query_start=0, ssmax_scale_H=scale_H)
    assert torch.equal(again[:, :2, -1], out[:, :2, -1])
    assert not torch.equal(again[:, 2:, -1], again[:, :2, -1])


def test_keys_and_values_that_are_views_of_a_longer_buffer(
    path: str, make_inputs: Callable[..., Any], priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    q, k, v = make_inputs(queries=9, keys=40)
    for prior in priors_of_every_kind(4):
        views = attention(q, k[:, :, :25], v[:, :, :25], prior=prior, query_start=16)
        copies = attention(q, k[:, :, :25].clone(), v[:, :, :25].clone(), prior=prior, query_start=16)
        assert torch.equal(views, copies)


@pytest.mark.parametrize("moved", ["queries", "keys", "values"])
def test_tensors_whose_vectors_do_not_lie_densely_in_memory(
    moved: str, path: str, make_inputs: Callable[..., Any], priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    """The fused kernel takes it for granted that they do, and answers wrongly where they do not."""
    inputs = make_inputs(queries=40, keys=40, head_size=32)
    at = ("queries", "keys", "values").index(moved)
    scattered = list(inputs)
    scattered[at] = inputs[at].transpose(-1, -2).contiguous().transpose(-1, -2)
    assert scattered[at].stride(-1) != 1
    for prior in priors_of_every_kind(4):
        for scale_H in (None, _scale(4, True)):
            arguments = {"prior": prior, "query_start": 0, "ssmax_scale_H": scale_H}
            expected = attention(*inputs, **arguments)
            torch.testing.assert_close(attention(*scattered, **arguments), expected, rtol=0, atol=1e-12)


def test_heads_whose_queries_lie_side_by_side(
    path: str, make_inputs: Callable[..., Any], priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    """As projections leave them: ``[B, C, H, D]`` in memory."""
    inputs = make_inputs(queries=40, keys=40, groups=2)
    side_by_side = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    for prior in priors_of_every_kind(4):
        arguments = {"prior": prior, "query_start": 0, "ssmax_scale_H": _scale(4, True)}
        expected = attention(*inputs, **arguments)
        torch.testing.assert_close(attention(*side_by_side, **arguments), expected, rtol=0, atol=1e-12)


def test_autocast_leaves_the_arithmetic_in_fp32(
    path: str, make_inputs: Callable[..., Any], priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    inputs = make_inputs(queries=30, keys=30, dtype=torch.float32, requires_grad=path == "differentiable")
    for prior in priors_of_every_kind(4):
        arguments = {"prior": prior.float(), "query_start": 0, "ssmax_scale_H": torch.ones(4)}
        expected = attention(*inputs, **arguments)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(*inputs, **arguments)
        assert torch.equal(out, expected)


def test_bfloat16_arithmetic_would_be_caught(make_inputs: Callable[..., Any]) -> None:
    """The tolerance of half types separates fp32 arithmetic from arithmetic in the type itself."""
    q, k, v = make_inputs(queries=65, keys=65, head_size=32, dtype=torch.bfloat16)
    prior = Laplace(4)
    bias = prior.bias((torch.arange(65) - torch.arange(65)[:, None]).clamp(max=0)).bfloat16()
    logits = q @ k.transpose(-1, -2) / 32**0.5 + bias
    causal = torch.ones(65, 65, dtype=torch.bool).tril()
    in_bf16 = logits.masked_fill(~causal, float("-inf")).softmax(-1) @ v
    expected = reference.attention(q.double(), k.double(), v.double(), prior=prior, query_start=0)
    rtol, atol = TOLERANCES[torch.bfloat16]
    assert not torch.allclose(in_bf16.double(), expected, rtol=rtol, atol=atol)
