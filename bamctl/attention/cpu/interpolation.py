"""What a far field leaves to exact attention, and by how many terms it follows the bias beyond.

Shapes: H heads, C queries, L relative positions, M terms.

Take a chunk of C queries at a + x, 0 ≤ x < C, with h = C / 2 and z = (x - h) / h in [-1, 1]. A key at j lies
at the distance

    |j - i - μ| + ε = y_j + h z        y_j = a + h - j + μ + ε

and for each y_j the bias b = -rate · d^β over the chunk is interpolated at the M Chebyshev nodes
z_k = cos θ_k, θ_k = π (k + ½) / M, by a polynomial that separates queries from keys:

    b ≈ Σ_m T_m(z) · g_m(y_j)        g_m(y) = (2 - [m = 0]) / M · Σ_k b(y + h z_k) · cos(m θ_k)

The error of such an interpolation is at most max |b^(M)| · h^M / (2^(M-1) · M!) (Trefethen, Approximation
Theory and Approximation Practice). As long as M ≥ β, the derivative is largest where the distance is
smallest:

    |error| ≤ rate · |β over M| · d^β · (h / d)^M · 2^(1-M)        d = y_j - h

which falls with d absolutely: the nearest key of the far field is the worst. What is interpolated is
(t_i - t_c) · b (see `bamctl.attention.cpu.far_field`), so that |t_i - t_c| comes on top, which is largest in
the first chunk. M and the nearest distance are chosen so that there the error is at most half a unit of
precision, of 1 or of t_i · b where that is larger, which is what writing the bias down costs too. No term is
needed where (t_i - t_c) · b is the same for all keys, to half a unit: a constant of a row changes no softmax.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bamctl.attention.priors import PowerLaw

CHUNK = 1024
"""Queries that share one interpolation: the fused kernel is fastest from 768 on, and takes 256 at a time."""

NEAR = (384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Keys before a chunk that may be left to exact attention."""

_MOST_TERMS = 16
_TERMS_STEP = 8  # vectors of other widths are as slow as the next of these
_LARGEST = 1e30  # a prior's bias has a floor far below, which no polynomial would keep to
_COST_OF_NEAR = 16
"""By as many terms an exact key, with its bias written out, costs more than a far one without any."""


@dataclass(frozen=True, kw_only=True)
class Interpolation:
    """How a far field is computed: from how far away on, and with how many terms where any are needed."""

    near: int
    """Keys right before a chunk that do not belong to it."""
    terms: int


def choose_interpolation(
    law: PowerLaw, heads: range, t_HC: Tensor, *, seen: int, keys: int, dtype: torch.dtype
) -> Interpolation | None:
    """The cheapest interpolation that is exact to rounding for all of some heads; None where none is.

    Args:
        law: of all heads.
        t_HC: t_i of these heads, the last query's first.
        seen: keys before the first query.
        keys: that a query looks at on average.
        dtype: of the arithmetic.
    """
    here = slice(heads.start, heads.stop)
    longest_t_H = t_HC.abs().amax(dim=1).tolist()
    values = list(
        zip(*(x[here].tolist() for x in (law.rate_H, law.beta_H, law.mu_H)), longest_t_H, strict=True)
    )
    if not all(math.isfinite(mu) for _, _, mu, _ in values):
        return None
    if any(_size(rate, beta, t, 2 * keys + abs(mu)) > _LARGEST for rate, beta, mu, t in values):
        return None
    behind = max(0, math.ceil(-min(mu for _, _, mu, _ in values)))
    affordable = []
    for near in NEAR:
        near += behind
        # The first of the queries that may have a far field; its chunk is the most uneven.
        first = min(max(0, near - seen), t_HC.shape[1] - 1)
        _, uneven_H = middle_factor(t_HC[:, -first - CHUNK : t_HC.shape[1] - first])
        terms = max(
            _terms_needed(law_of_head, uneven, near + 1, 2 * keys, torch.finfo(dtype).eps / 2)
            for law_of_head, uneven in zip(values, uneven_H.tolist(), strict=True)
        )
        terms = math.ceil(terms / _TERMS_STEP) * _TERMS_STEP
        if terms <= _MOST_TERMS:
            cost = _COST_OF_NEAR * near + terms * max(0, keys - near)
            affordable.append((cost, Interpolation(near=near, terms=terms)))
    return min(affordable, key=lambda pair: pair[0])[1] if affordable else None


def middle_factor(t_HC: Tensor) -> tuple[Tensor, Tensor]:
    """t_c ``[H]``, half way between the smallest and largest t_i of a chunk, and the largest |t_i - t_c|."""
    lowest_H, highest_H = t_HC.aminmax(dim=1)
    return (lowest_H + highest_H) / 2, (highest_H - lowest_H) / 2


def _terms_needed(
    of_head: tuple[float, float, float, float], uneven: float, nearest: float, farthest: float, eps: float
) -> int:
    """The smallest M whose error is below eps from a distance on; more than the most where none is.

    Args:
        of_head: rate, β, μ and the largest |t|.
        uneven: the largest |t_i - t_c|.
        nearest, farthest: distances, without μ.
    """
    rate, beta, mu, longest_t = of_head
    if _is_flat(rate, beta, mu, uneven, nearest, farthest, eps):
        return 0
    distance = nearest + mu
    allowed = eps * max(1.0, _size(rate, beta, longest_t, distance))
    binomial, power = _size(rate, beta, uneven, distance), 2.0
    for terms in range(1, _MOST_TERMS + 1):
        binomial *= abs(beta - terms + 1) / terms
        power *= CHUNK / 2 / distance / 2
        if terms >= beta and binomial * power <= allowed < math.inf:
            return terms
    return _MOST_TERMS + 1


def _is_flat(
    rate: float, beta: float, mu: float, uneven: float, nearest: float, farthest: float, eps: float
) -> bool:
    """Whether (t_i - t_c) · b is the same, give or take eps, for all keys between two distances."""
    ends = [_size(rate, beta, uneven, max(distance, nearest) + mu) for distance in (nearest, farthest)]
    return abs(ends[0] - ends[1]) <= 2 * eps


def _size(rate: float, beta: float, t: float, distance: float) -> float:
    """|t · b| at a distance."""
    try:
        return t * abs(rate) * math.pow(distance, beta)
    except OverflowError:
        return math.inf


def query_columns(queries: int, terms: int, *, like: Tensor) -> Tensor:
    """T_m(z) ``[C, M]`` of the first queries of a chunk, the last one first, in the type of `like`.

    m = M - 1 … 0, so that the largest column is the last: what is summed before it has lost nothing to its
    rounding.
    """
    half = CHUNK // 2
    z_C1 = torch.arange(queries - half - 1, -half - 1, -1, device=like.device).double()[:, None] / half
    powers_M = torch.arange(terms - 1, -1, -1, device=like.device)
    return (z_C1.acos() * powers_M).cos().to(like.dtype)


def key_columns(law: PowerLaw, heads: range, distances_L: Tensor, level_H1: Tensor, *, terms: int) -> Tensor:
    """g_m ``[H, L, M]`` of b less a level, m = M - 1 … 0.

    Args:
        law: of all heads.
        distances_L: int64, a + h - j: from the middle of a chunk, without μ.
        level_H1: what is taken off b.
        terms: M.
    """
    work = level_H1.dtype
    rate_H1, beta_H1, mu_H1 = (
        x[heads.start : heads.stop, None].to(work) for x in (law.rate_H, law.beta_H, law.mu_H)
    )
    half = CHUNK // 2
    y_HL = distances_L.to(work) + mu_H1 + law.epsilon
    angles_K = [math.pi * (k + 0.5) / terms for k in range(terms)]
    values_HLK = torch.stack(
        [-rate_H1 * (y_HL + half * math.cos(angle)) ** beta_H1 - level_H1 for angle in angles_K], dim=-1
    )
    transform_KM = torch.tensor(
        [
            [(1 if m == 0 else 2) / terms * math.cos(m * angle) for m in range(terms - 1, -1, -1)]
            for angle in angles_K
        ],
        dtype=work,
        device=level_H1.device,
    )
    return values_HLK @ transform_KM
