"""Whatever is asked, the CPU implementation is as near to float64 as PyTorch's own with a dense bias.

Shapes: B batch, H query heads, G key-value heads, Q queries, N keys, D head size.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, cpu, reference
from bamctl.attention.cpu import interpolation
from bamctl.attention.ssmax import ssmax_factor

KEYS = 420


@dataclass(frozen=True, kw_only=True)
class Case:
    beta: tuple[float, ...]
    """Of the heads, over and over; and so the rest."""
    log_alpha: tuple[float, ...]
    mu: tuple[float, ...] = (0.0,)
    s: tuple[float, ...] | None = None
    scaled: bool = True
    queries: int = KEYS
    key_start: int = 0
    shape: tuple[int, int, int, int] = (1, 2, 1, 16)
    """B, H, G, D."""
    norms: tuple[float, float] = (1.0, 1.0)
    """Of queries and keys, in units of a standard normal's."""
    aligned: int | None = None
    """How far before the middle query stands the key that is ten times it, if there is one."""
    seed: int = 0

    def prior(self) -> Prior:
        heads = self.shape[1]
        return GeneralizedGaussian(
            heads,
            alpha=[10.0 ** _cycle(self.log_alpha, h) for h in range(heads)],
            beta=[_cycle(self.beta, h) for h in range(heads)],
            mu=[_cycle(self.mu, h) for h in range(heads)],
            learned=(),
        )

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        batch, heads, groups, size = self.shape
        random = torch.Generator().manual_seed(self.seed)
        q = torch.randn(batch, heads, self.queries, size, generator=random) * self.norms[0]
        k = torch.randn(batch, groups, KEYS, size, generator=random) * self.norms[1]
        v = torch.randn(batch, groups, KEYS, size, generator=random)
        if self.aligned is not None:
            query = self.queries // 2
            key = max(0, KEYS - self.queries + query - self.aligned)
            k[:, :, key] = 10 * q[:, :: heads // groups, query]
        return q, k, v

    def arguments(self) -> dict[str, Any]:
        s = self.s
        return {
            "query_start": self.key_start + KEYS - self.queries,
            "key_start": self.key_start,
            "ssmax_scale_H": None
            if s is None
            else torch.tensor([_cycle(s, h) for h in range(self.shape[1])]),
            "ssmax_scales_prior": self.scaled,
        }


def _cycle(values: tuple[float, ...], index: int) -> float:
    return values[index % len(values)]


def _in_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.double() if isinstance(x, Tensor) else x for name, x in arguments.items()}


def _largest_logits(
    q_BHQD: Tensor,
    k_BGND: Tensor,
    *,
    prior: Prior,
    query_start: int,
    key_start: int,
    ssmax_scale_H: Tensor | None,
    ssmax_scales_prior: bool,
) -> Tensor:
    """The largest magnitude ``[H]`` of a logit, or of its content, among keys that have any weight."""
    queries = torch.arange(query_start, query_start + q_BHQD.shape[2])
    rel_QN = torch.arange(key_start, key_start + k_BGND.shape[2]) - queries[:, None]
    k_BHND = k_BGND.repeat_interleave(q_BHQD.shape[1] // k_BGND.shape[1], dim=1)
    content = q_BHQD @ k_BHND.transpose(-1, -2) / math.sqrt(q_BHQD.shape[-1])
    bias = prior.bias(rel_QN)
    if ssmax_scale_H is not None:
        t_HQ1 = ssmax_factor(ssmax_scale_H, queries)[..., None]
        content, bias = t_HQ1 * content, t_HQ1 * bias if ssmax_scales_prior else bias
    logits = (content + bias).masked_fill(rel_QN > 0, -math.inf)
    has_weight = logits.softmax(dim=-1) > 1e-7
    return torch.maximum(logits.abs(), content.abs()).where(has_weight, 0.0).amax(dim=(0, 2, 3))


def _errors(out: Tensor, expected: Tensor) -> Tensor:
    return (out.double() - expected).abs().amax(dim=(0, 2, 3))


def _check(case: Case, dense_sdpa: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The errors ``[H]`` of the CPU implementation and of PyTorch's own in fp32; in float64 there are none.

    Some rows of a case may round better than others: what one rounding of a row's largest logit comes to,
    and four of the values, is granted on top of twice the error of PyTorch's.
    """
    inputs = case.inputs()
    arguments, prior = case.arguments(), case.prior()
    exact_inputs, exact_arguments = [x.double() for x in inputs], _in_float64(arguments)
    with torch.no_grad():
        out = cpu.attention(*inputs, prior=prior, **arguments)
        dense = dense_sdpa(inputs, prior=prior, **arguments)
        prior.double()  # the values that fp32 holds, so that arithmetic alone is compared
        expected = reference.attention(*exact_inputs, prior=prior, **exact_arguments)
        out_64 = cpu.attention(*exact_inputs, prior=prior, **exact_arguments)
        largest_H = _largest_logits(*exact_inputs[:2], prior=prior, **exact_arguments)
    errors_H, dense_errors_H = _errors(out, expected), _errors(dense, expected)
    longest = inputs[2].abs().max()
    allowed_H = 2 * dense_errors_H + (2**-22 + 2**-24 * largest_H) * longest
    assert (errors_H <= allowed_H).all(), (errors_H, dense_errors_H, largest_H)
    assert (_errors(out_64, expected) <= (1e-12 + 2**-50 * largest_H) * longest).all()
    return errors_H, dense_errors_H


SHAPES = [(1, 4, 4, 16), (2, 4, 2, 33), (1, 6, 2, 64), (1, 3, 1, 7), (1, 2, 1, 128), (1, 1, 1, 256)]
# Both sides of the edges of blocks, chunks, windows and near fields; and the first key there is.
EDGES = [0, 1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 159, 160, 161, KEYS]

shapes_beta = st.sampled_from([0.0]) | st.floats(-3, 3)
scales_alpha = st.floats(-6, 6) | st.floats(0, 3)
locations = st.sampled_from([0.0, 0.0, 3.7, 20.0, -1.0, -33.5])
scales_s = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.0, -0.2])


@st.composite
def cases(draw: st.DrawFn, **fixed: st.SearchStrategy[Any]) -> Case:
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "beta": st.tuples(shapes_beta, shapes_beta, shapes_beta),
        "log_alpha": st.tuples(scales_alpha, scales_alpha),
        "mu": st.tuples(locations, locations),
        "s": st.none() | st.tuples(scales_s, scales_s),
        "scaled": st.booleans(),
        "queries": st.sampled_from([KEYS, KEYS - 1, 203]),
        "key_start": st.sampled_from([0, 0, 1, 777]),
        "shape": st.sampled_from(SHAPES),
        "norms": st.sampled_from([(1.0, 1.0), (0.01, 1.0), (3.0, 1.0), (1.0, 1e-3)]),
        "aligned": st.none() | st.sampled_from(EDGES),
        "seed": st.integers(0, 99),
    }
    return Case(**{name: draw(strategy) for name, strategy in (chosen | fixed).items()})


local = {
    "beta": st.tuples(st.floats(0.8, 3), st.floats(0.8, 3)),
    "log_alpha": st.tuples(st.floats(-6, 0), st.floats(-6, 0)),
    "mu": st.tuples(st.sampled_from([0.0, 3.7, -1.0, -33.5])),
    "s": st.none() | st.tuples(st.sampled_from([0.3, 1.0])),
    "norms": st.sampled_from([(0.01, 1.0), (0.1, 0.1)]),
    "aligned": st.none(),
}
flat_beside_others = st.tuples(st.just(0.0), shapes_beta)
PATHS: dict[str, tuple[st.SearchStrategy[Case], set[str]]] = {
    "windows": (cases(**local), {"attend_windows"}),
    "rectangle and triangle": (
        cases(beta=flat_beside_others, scaled=st.just(False)) | cases(beta=flat_beside_others, s=st.none()),
        {"attend_triangles"},
    ),
    "near and far": (
        cases(beta=flat_beside_others, s=st.tuples(scales_s, scales_s), scaled=st.just(True)),
        {"attend_from", "add_far_field"},
    ),
    "few queries": (
        cases(s=st.tuples(scales_s), scaled=st.just(True), queries=st.integers(1, 4)),
        {"attend_from"},
    ),
    "any": (cases(), set()),
}


@pytest.mark.parametrize("path", PATHS)
def test_as_near_to_float64_as_a_dense_bias(
    path: str,
    dense_sdpa: Callable[..., Tensor],
    small_parts: Callable[[], AbstractContextManager[Any]],
    paths_taken: Callable[[], AbstractContextManager[set[str]]],
) -> None:
    strategy, expected_path = PATHS[path]

    @settings(max_examples=15, deadline=None, database=None)
    @given(case=strategy)
    def check(case: Case) -> None:
        with small_parts(), paths_taken() as taken:
            _check(case, dense_sdpa)
        assert expected_path <= taken

    check()


@pytest.mark.parametrize("aligned", EDGES)
@pytest.mark.parametrize("s", [None, 0.3])
def test_one_aligned_key_at_every_edge(
    aligned: int,
    s: float | None,
    dense_sdpa: Callable[..., Tensor],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    with small_parts():
        _check(
            Case(
                beta=(0.9, -0.8, 0.3),
                log_alpha=(0.5, 2.0),
                s=None if s is None else (s,),
                shape=(1, 3, 1, 16),
                aligned=aligned,
            ),
            dense_sdpa,
        )


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("s", [None, 0.7])
def test_first_rows(
    queries: int,
    s: float | None,
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    """t is 0 in the first, and ln 2 in the second."""
    inputs = make_inputs(queries=queries, keys=queries)
    for beta in (-3.0, -0.5, 0.0, 1.0, 3.0):
        arguments = {
            "prior": GeneralizedGaussian(4, beta=beta, learned=()).double(),
            "query_start": 0,
            "ssmax_scale_H": None if s is None else torch.full((4,), s, dtype=torch.float64),
        }
        with torch.no_grad(), small_parts():
            out = cpu.attention(*inputs, **arguments)
        assert (out - reference.attention(*inputs, **arguments)).abs().max() < 1e-12
        assert torch.equal(out[:, :, 0], inputs.v[:, :, 0])


TYPICAL = {
    "windows": Case(beta=(1.2, 0.8), log_alpha=(-0.5, 0.3), s=(0.3, 0.5), norms=(0.3, 0.3)),
    "rectangle and triangle": Case(beta=(-0.5, 0.2), log_alpha=(1.0, 2.0)),
    "near and far": Case(beta=(-0.5, 0.2), log_alpha=(1.0, 2.0), s=(0.4, 0.9)),
    "near and far, steep": Case(beta=(-2.7, 1.0), log_alpha=(3.3, 1.0), s=(0.3, -0.2)),
    "few queries": Case(beta=(-0.5, 0.2), log_alpha=(1.0, 2.0), s=(0.4, 0.9), queries=4),
}


@pytest.mark.parametrize("path", TYPICAL)
def test_on_average_errors_are_no_larger_than_those_of_a_dense_bias(
    path: str, dense_sdpa: Callable[..., Tensor], small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    errors = dense_errors = torch.zeros(2, dtype=torch.float64)
    with small_parts():
        for seed in range(8):
            case = TYPICAL[path]
            of_case, dense_of_case = _check(Case(**{**vars(case), "seed": seed}), dense_sdpa)
            errors, dense_errors = errors + of_case, dense_errors + dense_of_case
    assert (errors <= 1.5 * dense_errors).all(), (errors, dense_errors)


@pytest.mark.parametrize("kind", ["far", "prior unscaled", "local", "not a power", "no prior"])
def test_with_parts_as_long_as_they_are(
    kind: str,
    make_inputs: Callable[..., Any],
    make_steps: Callable[..., Prior],
    paths_taken: Callable[[], AbstractContextManager[set[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last queries of a prompt, with a key that one of them is looking for at the edge of each part."""
    monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
    queries = max(cpu.TILE, interpolation.CHUNK, cpu.LONGEST_CHUNK) + 77
    keys = max(*interpolation.NEAR, cpu.LONGEST_WINDOW, cpu.LONGEST_PAST) + queries + 300
    q, k, v = make_inputs(queries=queries, keys=keys, heads=3, groups=1, batch=1, dtype=torch.float32)
    q *= 0.5
    for edge in (
        cpu.TILE,
        cpu.SKIPPING_CHUNK,
        cpu.LONGEST_CHUNK,
        cpu.LONGEST_WINDOW,
        *interpolation.NEAR,
        keys - 1,
    ):
        for beside in (-1, 0, 1):
            k[:, :, max(0, keys - queries - edge + beside)] = 20 * q[:, 0, edge % queries]
    prior, path = {
        "far": (GeneralizedGaussian(3, alpha=[1.0, 50.0, 3.0], beta=[-1.6, 0.4, 0.0]), "add_far_field"),
        "prior unscaled": (
            GeneralizedGaussian(3, alpha=50.0, beta=[-1.6, 0.4, 0.0]),
            "attend_triangles",
        ),
        "local": (Laplace(3, slopes=[2.0, 3.0, 9.0]), "attend_windows"),
        "no prior": (Uniform(3), "attend_all"),
        "not a power": (make_steps(3, {0: 0.0, 700: -2.0, 2500: -1.0, 3000: -3.0}), "attend_from"),
    }[kind]
    arguments: dict[str, Any] = {
        "query_start": keys - queries,
        "ssmax_scale_H": torch.tensor([0.4, 0.2, 0.5]),
        "ssmax_scales_prior": kind != "prior unscaled",
    }
    with torch.no_grad(), paths_taken() as taken:
        out = cpu.attention(q, k, v, prior=prior.float(), **arguments)
        expected = reference.attention(
            q.double(), k.double(), v.double(), prior=prior.double(), **_in_float64(arguments)
        )
    assert path in taken
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4)
