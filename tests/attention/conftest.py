"""Inputs, and the formulas once more: plain Python floats, a loop for every index.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, cpu
from bamctl.attention.cpu import blocks, differentiable, exact, far_field, interpolation, uniform
from bamctl.attention.ssmax import ssmax_factor


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor


class Exact(NamedTuple):
    out: Tensor
    largest_logit: float
    """Of the keys that have any weight: a logit x is known to x · 2^-53, and so is what comes of it."""


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., Inputs]:
    def make(
        *,
        queries: int,
        keys: int,
        heads: int = 4,
        groups: int | None = None,
        head_size: int = 16,
        batch: int = 2,
        dtype: torch.dtype = torch.float64,
        requires_grad: bool = False,
        seed: int = 0,
    ) -> Inputs:
        random = torch.Generator().manual_seed(seed)

        def draw(heads: int, length: int) -> Tensor:
            drawn = torch.randn(batch, heads, length, head_size, dtype=torch.float64, generator=random)
            return drawn.to(dtype).requires_grad_(requires_grad)

        groups = heads if groups is None else groups
        return Inputs(draw(heads, queries), draw(groups, keys), draw(groups, keys))

    return make


@pytest.fixture(scope="session")
def in_float64() -> Callable[[Prior], Prior]:
    """A prior whose values are the float64 ones that it was made with, and not fp32 roundings of them."""

    def convert(prior: Prior) -> Prior:
        prior.double()
        prior.reset_parameters()
        return prior

    return convert


@pytest.fixture(scope="session")
def priors_of_every_kind(in_float64: Callable[[Prior], Prior]) -> Callable[[int], list[Prior]]:
    """For H heads; the generalized Gaussians between them have every sign of β and μ."""

    def make(heads: int) -> list[Prior]:
        def spread(low: float, high: float) -> list[float]:
            return torch.linspace(low, high, heads, dtype=torch.float64).tolist()

        return [
            in_float64(prior)
            for prior in (
                Uniform(heads),
                Laplace(heads, learned=True),
                GeneralizedGaussian(heads, alpha=spread(0.3, 5), beta=spread(-1.5, 2)),
                GeneralizedGaussian(heads, alpha=3.0, beta=spread(0.4, 1.2), mu=spread(-7.3, 2.6)),
                GeneralizedGaussian(heads, beta=0.0),
            )
        ]

    return make


@pytest.fixture(scope="session")
def exact_attention() -> Callable[..., Exact]:
    def attend(
        inputs: Inputs,
        *,
        bias: Callable[[int, int], float],
        query_start: int = 0,
        key_start: int = 0,
        ssmax: Sequence[float] | None = None,
        ssmax_scales_prior: bool = True,
    ) -> Exact:
        """Causal attention, `bias` being that of a head at a relative position j - i."""
        q, k, v = (x.detach().double().tolist() for x in inputs)
        group_size = inputs.q.shape[1] // inputs.k.shape[1]
        out = torch.empty(inputs.q.shape, dtype=torch.float64)
        largest = 0.0
        for b, heads in enumerate(q):
            for h, rows in enumerate(heads):
                for c, row in enumerate(rows):
                    i = query_start + c
                    t = 1.0 if ssmax is None else ssmax[h] * math.log(i + 1)
                    logits = []
                    for n, key in enumerate(k[b][h // group_size]):
                        j = key_start + n
                        if j > i:
                            break
                        content = sum(x * y for x, y in zip(row, key, strict=True)) / math.sqrt(len(row))
                        prior = bias(h, j - i)
                        logits.append(
                            t * (content + prior)
                            if ssmax_scales_prior or ssmax is None
                            else t * content + prior
                        )
                    top = max(logits)
                    weights = [math.exp(x - top) for x in logits]
                    z = math.fsum(weights)
                    largest = max(
                        largest, *(abs(x) for x, w in zip(logits, weights, strict=True) if w > 1e-12 * z)
                    )
                    for d in range(len(row)):
                        values = (v[b][h // group_size][n][d] for n in range(len(weights)))
                        out[b, h, c, d] = math.fsum(w * x for w, x in zip(weights, values, strict=True)) / z
        return Exact(out, largest)

    return attend


class Steps(Prior):
    """A bias that falls, or rises, in steps: what is known of no form but the values themselves."""

    def __init__(self, heads: int, levels: Mapping[int, float]) -> None:
        super().__init__(heads)
        self.starts = torch.tensor(sorted(levels))
        self.levels = torch.tensor([levels[start] for start in sorted(levels)], dtype=torch.float64)

    def _step(self, rel: Tensor) -> Tensor:
        return torch.bucketize(-rel, self.starts, right=True) - 1

    def bias(self, rel: Tensor) -> Tensor:
        return self.levels[self._step(rel)].expand(self.heads, *rel.shape)

    def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
        steps = torch.arange(len(self.levels))
        is_there = (steps >= self._step(last_rel)[..., None]) & (steps <= self._step(first_rel)[..., None])
        top = self.levels.where(is_there, -math.inf).amax(dim=-1)
        return top.expand(self.heads, *top.shape[1:])

    def reset_parameters(self) -> None: ...


@pytest.fixture(scope="session")
def make_steps() -> Callable[[int, Mapping[int, float]], Prior]:
    """For H heads, from the distances at which the steps begin, 0 among them, to their biases."""
    return Steps


# Every path of the CPU implementation within some hundred keys, and every tile in several pieces.
SMALL_PARTS: list[tuple[Any, str, object]] = [
    (cpu, "TILE", 64),
    (cpu, "LONGEST_WINDOW", 127),
    (cpu, "LONGEST_PAST", 127),
    (cpu, "NEAR_BLOCK", 32),
    (cpu, "SEARCH_WORTH", 0),
    (cpu, "LONGEST_CHUNK", 256),
    (cpu, "SKIPPING_CHUNK", 128),
    (cpu, "FEW_QUERIES", 4),
    (cpu, "CHUNK", 32),
    (far_field, "CHUNK", 32),
    (interpolation, "CHUNK", 32),
    (interpolation, "NEAR", (96, 160)),
    (far_field, "TILE_BYTES", 2**14),
    (blocks, "TRIANGLE_BLOCK", 32),
    (exact, "TILE_BYTES", 2**14),
    (blocks, "TILE_BYTES", 2**14),
    (uniform, "TILE_BYTES", 2**14),
    (differentiable, "LONGEST_CHUNK", 11),
]


@pytest.fixture(scope="session")
def small_parts() -> Callable[[], AbstractContextManager[pytest.MonkeyPatch]]:
    @contextmanager
    def patched() -> Iterator[pytest.MonkeyPatch]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in SMALL_PARTS:
                patch.setattr(module, name, value)
            yield patch

    return patched


@pytest.fixture(scope="session")
def paths_taken() -> Callable[[], AbstractContextManager[set[str]]]:
    """Which ways to compute its parts a call of the CPU implementation has taken."""

    @contextmanager
    def record() -> Iterator[set[str]]:
        taken: set[str] = set()

        def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def take(*args: Any, **kwargs: Any) -> Any:
                taken.add(name)
                return call(*args, **kwargs)

            return take

        with pytest.MonkeyPatch.context() as patch:
            for name in ("attend_from", "attend_windows", "attend_triangles", "add_far_field", "attend_all"):
                patch.setattr(cpu, name, watched(name, getattr(cpu, name)))
            yield taken

    return record


@pytest.fixture(scope="session")
def dense_sdpa() -> Callable[..., Tensor]:
    """PyTorch's own attention given t_i q_i and all the bias, t_i b_ij, as its mask."""

    def attend(
        inputs: Inputs,
        *,
        prior: Prior,
        query_start: int,
        key_start: int = 0,
        ssmax_scale_H: Tensor | None = None,
        ssmax_scales_prior: bool = True,
    ) -> Tensor:
        q_BHCD, k_BGND, v_BGND = inputs
        size = q_BHCD.shape[1] // k_BGND.shape[1]
        queries = torch.arange(query_start, query_start + q_BHCD.shape[2])
        rel_CN = torch.arange(key_start, key_start + k_BGND.shape[2]) - queries[:, None]
        bias_HCN = prior.bias(rel_CN.clamp(max=0)).to(q_BHCD.dtype)
        if ssmax_scale_H is not None:
            t_HC1 = ssmax_factor(ssmax_scale_H.to(q_BHCD.dtype), queries)[..., None]
            q_BHCD = q_BHCD * t_HC1
            bias_HCN = t_HC1 * bias_HCN if ssmax_scales_prior else bias_HCN
        return F.scaled_dot_product_attention(
            q_BHCD,
            k_BGND.repeat_interleave(size, dim=1),
            v_BGND.repeat_interleave(size, dim=1),
            attn_mask=bias_HCN.masked_fill(rel_CN > 0, -math.inf).expand(q_BHCD.shape[0], -1, -1, -1),
        )

    return attend
