"""Blocks of rows of q, k, v and the output, and the factors of their logits.

Shapes: C queries, D head size, R rows of one block.

Keys and values lie in one piece ``[B, G, N, D]``, or in pages ``[P, G, S, D]`` of S slots each, and a table
tells which page holds the keys 0 … S - 1 of a sequence, which the next S, and so on. Where a page begins is
computed in 64 bits.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _offsets(row, strides, WIDE: tl.constexpr, BLOCK_D: tl.constexpr):
    """``[R, D]`` offsets within a block: 32 bits unless the strides are so large that they would not do."""
    dim = tl.arange(0, BLOCK_D)
    if WIDE:
        row = row.to(tl.int64)
        dim = dim.to(tl.int64)
    return row[:, None] * strides[2] + dim[None, :] * strides[3]


@triton.jit
def load_rows(
    ptr,
    strides,
    start,
    end,
    MASKED: tl.constexpr,  # whether rows may reach beyond the end
    WIDE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows start … start + R - 1 of one head, ``[R, D]``; zeros beyond the end and the head size."""
    return load_keys(ptr, strides, start, start, end, MASKED, WIDE, HEAD_SIZE, BLOCK_D, ROWS, 0)


@triton.jit
def load_pages(
    pages_ptr,  # of one sequence
    start,
    end,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,  # S; 0: not in pages
):
    """The pages ``[R]`` of keys start … start + R - 1; 0 beyond the end, and where there are no pages."""
    row = start + tl.arange(0, ROWS)
    if PAGE == 0:
        return tl.zeros_like(row)
    elif MASKED:
        return tl.load(pages_ptr + row // PAGE, mask=row < end, other=0)
    else:
        return tl.load(pages_ptr + row // PAGE)


@triton.jit
def load_keys(
    ptr,
    strides,
    pages,  # from `load_pages`, where PAGE
    start,
    end,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """`load_rows` of keys or values, whether they lie in pages or not."""
    row = start + tl.arange(0, ROWS)
    if PAGE == 0:
        ptrs = ptr + start.to(tl.int64) * strides[2] + _offsets(tl.arange(0, ROWS), strides, WIDE, BLOCK_D)
    else:
        ptrs = ptr + (pages.to(tl.int64) * strides[0])[:, None] + _offsets(row % PAGE, strides, WIDE, BLOCK_D)
    dim_exists = (tl.arange(0, BLOCK_D) < HEAD_SIZE)[None, :]
    if MASKED:
        return tl.load(ptrs, mask=(row < end)[:, None] & dim_exists, other=0.0)
    elif HEAD_SIZE < BLOCK_D:
        return tl.load(ptrs, mask=dim_exists, other=0.0)
    else:
        return tl.load(ptrs)


@triton.jit
def store_rows(
    ptr,
    strides,
    value,
    start,
    end,
    WIDE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The counterpart of `load_rows`, in the dtype of what is pointed to."""
    ptrs = ptr + start.to(tl.int64) * strides[2] + _offsets(tl.arange(0, ROWS), strides, WIDE, BLOCK_D)
    exists = (start + tl.arange(0, ROWS) < end)[:, None] & (tl.arange(0, BLOCK_D) < HEAD_SIZE)[None, :]
    tl.store(ptrs, value.to(ptr.dtype.element_ty), mask=exists)


@triton.jit
def row_factors(
    t_ptr,
    rows,
    mask,
    positions,
    keys,
    HEAD_SIZE: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
):
    """`logit_factors` of rows whose t is stored."""
    t = 0.0
    if SSMAX:
        t = tl.load(t_ptr + rows, mask=mask, other=0.0)
    return logit_factors(t, positions, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR)


@triton.jit
def ssmax_factors(scale, positions):
    """t = s · ln(i + 1) in fp32, the logarithm taken in float64, as `bamctl.attention.ssmax` has it."""
    return scale * tl.log((positions + 1).to(tl.float64)).to(tl.float32)


@triton.jit
def logit_factors(
    t,  # SSMax's factor of each row, where SSMAX
    positions,
    keys,
    HEAD_SIZE: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
):
    """What multiplies q · k, and what multiplies the bias, in units of log2 e: fp32 ``[rows]`` each."""
    alone = (positions == 0) | (keys == 1)
    ones = tl.where(alone, 0.0, LOG2E)
    if SSMAX:
        t = t * ones
    else:
        t = ones
    root: tl.constexpr = HEAD_SIZE**-0.5
    if SCALES_PRIOR:
        return t * root, t
    else:
        return t * root, ones
