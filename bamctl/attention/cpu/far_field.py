"""The far field of a head whose bias SSMax multiplies: plain attention with a few columns more.

Shapes: B batch, H heads, C queries of a chunk, N keys of a tile, D head size, E = D + M columns, L relative
positions, M terms.

t_i · b_ij is no Toeplitz matrix, and writing it out costs as much as a fifth of attention. But far away b
hardly bends. Take a chunk of queries at a + x, 0 ≤ x < C, with h = C / 2 and z = (x - h) / h in [-1, 1]. A
key at j lies at the distance

    |j - i - μ| + ε = y_j + h z        y_j = a + h - j + μ + ε

and for each y_j the bias over the chunk is interpolated at the M Chebyshev nodes z_k = cos θ_k,
θ_k = π (k + ½) / M, by a polynomial that separates queries from keys:

    b ≈ Σ_m T_m(z) · g_m(y_j)        g_m(y) = (2 - [m = 0]) / M · Σ_k b(y + h z_k) · cos(m θ_k)

Its M terms are M more columns of q (times t_i) and of k, and the fused kernel does the rest, without a mask.
The error of such an interpolation is at most max |b^(M)| · h^M / (2^(M-1) · M!) (Trefethen, Approximation
Theory and Approximation Practice), and for b = -rate · d^β, as long as M ≥ β, the derivative is largest where
the distance is smallest:

    |error| ≤ rate · |β over M| · d^β · (h / d)^M · 2^(1-M)        d = y_j - h

which falls with d absolutely: the nearest key of the far field is the worst. M and the nearest distance are
chosen so that t_i times this is at most half a unit of precision, of 1 or of t_i · b where that is larger,
which is what writing the bias down costs too.

A constant of each row changes no softmax: the largest b of a tile is taken off all of them, so that
a bias of thousands, the same for all keys, does not cost the content its digits.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bamctl.attention.cpu.call import Call, split
from bamctl.attention.cpu.partial import Partial, attend
from bamctl.attention.priors import PowerLaw

CHUNK = 768
"""Queries that share one interpolation: the fused kernel is fastest from so many on."""

NEAR = (1024, 1536, 2048, 3072, 4096)
"""Keys before a chunk that may be left to exact attention."""

TILE_BYTES = 4 * 2**20
"""The most that the widened keys of a tile may take: chunk after chunk reads them, from the cache."""

_MOST_TERMS = 16
_TERMS_STEP = 4  # vectors of other widths are slow
_LARGEST = 1e30  # a prior's bias has a floor far below, which no polynomial would keep to
_COST_OF_NEAR = 0.4
"""By how much an exact key with its bias written out costs more than a plain one."""


@dataclass(frozen=True, kw_only=True)
class Interpolation:
    """How a far field is computed: from how far away on, and with how many terms."""

    near: int
    """Keys right before a chunk that do not belong to it."""
    terms: int


def choose_interpolation(
    law: PowerLaw, heads: range, longest_t_H: Tensor, *, keys: int, head_size: int, dtype: torch.dtype
) -> Interpolation | None:
    """The cheapest interpolation that is exact to rounding for all of some heads; None where none is.

    Args:
        law: of all heads.
        longest_t_H: the largest |t_i| ``[H]``, of all heads.
        keys: that a query sees on average.
        head_size: D.
        dtype: of the arithmetic.
    """
    heads_ = slice(heads.start, heads.stop)
    values = [x[heads_].tolist() for x in (law.rate_H, law.beta_H, law.mu_H, longest_t_H)]
    if not all(map(math.isfinite, values[2])):
        return None
    if any(
        _size(rate, beta, t, 2 * keys + abs(mu)) > _LARGEST for rate, beta, mu, t in zip(*values, strict=True)
    ):
        return None
    behind = max(0, math.ceil(-min(values[2])))
    affordable = []
    for near in NEAR:
        near += behind
        terms = max(
            _terms_needed(rate, beta, t, near + 1 + mu, torch.finfo(dtype).eps / 2)
            for rate, beta, mu, t in zip(*values, strict=True)
        )
        terms = math.ceil(terms / _TERMS_STEP) * _TERMS_STEP
        if terms <= _MOST_TERMS:
            cost = _COST_OF_NEAR * near + terms / head_size * max(0, keys - near)
            affordable.append((cost, Interpolation(near=near, terms=terms)))
    return min(affordable, key=lambda pair: pair[0])[1] if affordable else None


def _terms_needed(rate: float, beta: float, t: float, distance: float, eps: float) -> int:
    """The smallest M whose error is below eps from a distance on; more than the most where none is."""
    size = _size(rate, beta, t, distance)
    binomial, power = 1.0, 2.0
    for terms in range(1, _MOST_TERMS + 1):
        binomial *= abs(beta - terms + 1) / terms
        power *= CHUNK / 2 / distance / 2
        if terms >= beta and size * binomial * power <= eps * max(1.0, size) < math.inf:
            return terms
    return _MOST_TERMS + 1


def _size(rate: float, beta: float, t: float, distance: float) -> float:
    """|t · b| at a distance."""
    try:
        return t * abs(rate) * math.pow(distance, beta)
    except OverflowError:
        return math.inf


def add_far_field(
    call: Call, heads: range, rows: range, firsts: list[int], interpolation: Interpolation, law: PowerLaw
) -> None:
    """Adds the far field to what is stored of `rows`.

    Args:
        heads: of one group, or as many as groups.
        firsts: for each chunk of `CHUNK` rows, the first key that it has to look at.
    """
    batch, size = call.q_BHQD.shape[0], call.q_BHQD.shape[-1]
    work, device = call.q_BHQD.dtype, call.q_BHQD.device
    wide = size + interpolation.terms
    chunks = split(rows, CHUNK)
    last_start = chunks[-1].start
    ends = [chunk.start - interpolation.near for chunk in chunks]
    q_BHCE = [_widened_queries(call, heads, chunk, interpolation.terms) for chunk in chunks]
    farthest_stop = max(ends)
    if farthest_stop <= min(firsts):
        return  # `near` reaches farther than what has to be looked at
    tile = max(CHUNK, TILE_BYTES // (batch * len(heads) * wide * work.itemsize))
    k_BHNE, v_BHNE = (
        torch.zeros(
            (batch, len(heads), min(tile, farthest_stop - min(firsts)), wide), dtype=work, device=device
        )
        for _ in range(2)
    )
    for first in range(min(firsts), farthest_stop, tile):
        stop = min(first + tile, farthest_stop)
        k_BHND, v_BHND = call.keys_and_values(heads, first, stop)
        k_BHNE[:, :, : stop - first, :size] = k_BHND
        v_BHNE[:, :, : stop - first, :size] = v_BHND
        # The columns at y = (highest of all chunks) … (lowest), for keys in ascending order.
        highest = last_start + CHUNK // 2 - first
        columns_HLM, level_H = _key_columns(
            law, heads, highest, stop - first + last_start - rows.start, interpolation, work
        )
        for chunk, q, looks_from, end in zip(chunks, q_BHCE, firsts, ends, strict=True):
            begin, end = max(first, looks_from), min(stop, end)
            if begin >= end:
                continue
            at = last_start - chunk.start + begin - first
            here = slice(begin - first, end - first)
            k_BHNE[:, :, here, size:] = columns_HLM[:, at : at + end - begin]
            seen = attend(q, k_BHNE[:, :, here], v_BHNE[:, :, here])
            t_HC = call.factor(heads, chunk)
            assert t_HC is not None
            part = Partial(seen.out_BHCD[..., :size], seen.lse_BHC + t_HC * level_H[:, None])
            call.at(heads, chunk).merge_(part)


def _widened_queries(call: Call, heads: range, chunk: range, terms: int) -> Tensor:
    """``[B, H, C, E]``: behind the queries, t · T_m(z) for m = M - 1 … 0.

    The largest column is the last: what is summed before it has lost nothing to its rounding.
    """
    q_BHCD, t_HC = call.queries(heads, chunk), call.factor(heads, chunk)
    assert t_HC is not None
    half = CHUNK // 2
    z_C = torch.arange(-half, len(chunk) - half, device=q_BHCD.device).to(q_BHCD.dtype) / half
    angles_C1 = z_C.double().acos()[:, None]
    powers_M = torch.arange(terms - 1, -1, -1, device=q_BHCD.device)
    chebyshev_CM = (angles_C1 * powers_M).cos().to(q_BHCD.dtype)
    columns_HCM = t_HC[..., None] * chebyshev_CM
    return torch.cat((q_BHCD, columns_HCM.expand(q_BHCD.shape[0], -1, -1, -1)), dim=-1)


def _key_columns(
    law: PowerLaw, heads: range, highest: int, count: int, interpolation: Interpolation, work: torch.dtype
) -> tuple[Tensor, Tensor]:
    """g_m ``[H, L, M]`` at distances that fall from `highest` on, m = M - 1 … 0; and what was taken off b.

    Args:
        highest: a + h - j of the first, without μ.
        count: L.
    """
    rate_H1, beta_H1, mu_H1 = (
        x[heads.start : heads.stop, None].to(work) for x in (law.rate_H, law.beta_H, law.mu_H)
    )
    half, terms = CHUNK // 2, interpolation.terms
    nearest = interpolation.near + 1  # of those that are used; others stand in for keys that are not far
    distance_L = torch.arange(highest, highest - count, -1, device=rate_H1.device).clamp(min=nearest + half)
    y_HL = distance_L.to(work) + mu_H1 + law.epsilon
    angles_K = [math.pi * (k + 0.5) / terms for k in range(terms)]
    values_HLK = torch.stack(
        [-rate_H1 * (y_HL + half * math.cos(angle)) ** beta_H1 for angle in angles_K], dim=-1
    )
    level_H11 = values_HLK.amax(dim=(1, 2), keepdim=True)
    values_HLK -= level_H11
    transform_KM = torch.tensor(
        [
            [(1 if m == 0 else 2) / terms * math.cos(m * angle) for m in range(terms - 1, -1, -1)]
            for angle in angles_K
        ],
        dtype=work,
        device=rate_H1.device,
    )
    return values_HLK @ transform_KM, level_H11[:, 0, 0]
