"""The first key that each block of queries must look at, found on the device in one launch.

Shapes: H heads, C queries, T blocks of queries.

The bound, its proof and its tolerance are those of `bamctl.attention.reach`; this is its search in a form
that costs one launch. A block of queries at positions p … p + M - 1 may leave out the keys up to a distance
at which

    max b at that distance and beyond  <  near - 2 U - (ln n - ln ε) / t      or, where SSMax leaves the prior
                                          near - 2 t U - (ln n - ln ε)        alone

and the left side never falls as the distance shrinks, so that bisection finds the first key that matters.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import GENERALIZED_GAUSSIAN, load_law, power

BLOCKS = tl.constexpr(64)
"""Blocks of queries that one program searches for."""

LN_TOLERANCE = tl.constexpr(-16.635532333438686)
"""ln 2^-24"""


@triton.jit
def _bias(rel, rate, beta, mu, KIND: tl.constexpr):
    if KIND == GENERALIZED_GAUSSIAN:
        return power(rel, rate, beta, mu, True).to(tl.float64)
    else:
        return rate.to(tl.float64) * rel.to(tl.float64)


@triton.jit
def _highest(first_rel, last_rel, rate, beta, mu, KIND: tl.constexpr):
    """The largest bias between two relative positions: at either, or at the one nearest to μ."""
    ends = tl.maximum(_bias(first_rel, rate, beta, mu, KIND), _bias(last_rel, rate, beta, mu, KIND))
    if KIND == GENERALIZED_GAUSSIAN:
        location = tl.floor(tl.minimum(tl.maximum(mu.to(tl.float64), -1e18), 1e18) + 0.5).to(tl.int64)
        nearest = tl.minimum(tl.maximum(location, first_rel), last_rel)
        return tl.maximum(ends, _bias(nearest, rate, beta, mu, KIND))
    else:
        return ends


@triton.jit
def weightless_below(
    position,  # [T] int64, of the first query of a block
    content,  # U
    t,  # of the query with the smallest factor if SCALES_PRIOR, else of that with the largest; where SSMAX
    rate,
    beta,
    mu,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The right side of the condition, float64 ``[T]``: keys whose bias is lower cannot matter."""
    near = _highest(-position, tl.zeros_like(position), rate, beta, mu, KIND)
    needed = tl.log((position + 1 + BLOCK_M).to(tl.float64)) - LN_TOLERANCE
    if SSMAX:
        turned = t <= 0
        t = tl.where(turned, 1.0, t)
        if SCALES_PRIOR:
            limit = near - 2 * content - needed / t
        else:
            limit = near - 2 * content * t - needed
        limit = tl.where(turned, -float("inf"), limit)
    else:
        limit = near - 2 * content - needed
    # A bias and a factor are rounded to fp32 where they are used.
    return limit - 1e-6 * (tl.abs(near) + tl.abs(limit))


@triton.jit
def first_that_matters(
    position,  # [T] int64, of the first query of a block
    limit,  # [T] float64, from `weightless_below`
    rate,
    beta,
    mu,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROUNDS: tl.constexpr,
    BRANCHES: tl.constexpr,
):
    """The first key that each block must look at, int64 ``[T]``.

    Every round compares so many distances at once, and leaves a (BRANCHES + 1)th of the gap. Where a limit is
    no number, every key matters.
    """
    # No key matters at `low` or farther; one does at `high`, where every row of the block sees its own key.
    farthest = -(position + (BLOCK_M - 1))
    low = farthest - 1
    high = tl.zeros_like(position)
    branch = tl.arange(1, BRANCHES + 1).to(tl.int64)[None, :]
    for _ in tl.range(0, ROUNDS):
        gap = (high - low)[:, None]
        rel = tl.maximum(low[:, None] + gap * branch // (BRANCHES + 1), farthest[:, None])
        matters = (_highest(farthest[:, None], rel, rate, beta, mu, KIND) < limit[:, None]) == 0
        high = tl.minimum(high, tl.min(tl.where(matters, rel, 0), 1))
        low = tl.maximum(low, tl.max(tl.where(matters, low[:, None], rel), 1))
    return tl.maximum(position + high, 0)


@triton.jit(do_not_specialize=["heads", "queries", "offset"])
def first_keys(
    first_ptr,  # [H, T] int64, relative to the first key
    content_ptr,  # [H] fp32: U, no content score is larger in magnitude
    t_ptr,  # [H, C] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    heads,
    queries,
    offset,  # position of the first query
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One head, several blocks of queries."""
    head = tl.program_id(1)
    blocks = tl.cdiv(queries, BLOCK_M)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    exists = block < blocks
    rate, beta, mu = load_law(parameters_ptr, head, heads, KIND, True)
    position = offset + block.to(tl.int64) * BLOCK_M
    content = tl.load(content_ptr + head).to(tl.float64)
    t = 1.0
    if SSMAX:
        # The smallest factor of the block, or the largest.
        at = block * BLOCK_M if SCALES_PRIOR else tl.minimum(block * BLOCK_M + BLOCK_M, queries) - 1
        t = tl.load(t_ptr + head.to(tl.int64) * queries + at, mask=exists, other=1.0).to(tl.float64)
    limit = weightless_below(position, content, t, rate, beta, mu, KIND, SSMAX, SCALES_PRIOR, BLOCK_M)
    first = first_that_matters(position, limit, rate, beta, mu, KIND, BLOCK_M, ROUNDS=42, BRANCHES=1)
    tl.store(first_ptr + head.to(tl.int64) * blocks + block, first, mask=exists)
