"""Inputs, and the formulas once more: plain Python floats, a loop for every index.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform


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
