"""Blocks of rows of q, k, v and the output, and the factors of their logits.

Shapes: C queries, D head size, R rows of one block.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _offsets(strides, WIDE: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr):
    """``[R, D]`` offsets within a block: 32 bits unless the strides are so large that they would not do."""
    row = tl.arange(0, ROWS)
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
    ptrs = ptr + start.to(tl.int64) * strides[2] + _offsets(strides, WIDE, BLOCK_D, ROWS)
    dim_exists = (tl.arange(0, BLOCK_D) < HEAD_SIZE)[None, :]
    if MASKED:
        return tl.load(ptrs, mask=(start + tl.arange(0, ROWS) < end)[:, None] & dim_exists, other=0.0)
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
    ptrs = ptr + start.to(tl.int64) * strides[2] + _offsets(strides, WIDE, BLOCK_D, ROWS)
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
    """What multiplies q · k, and what multiplies the bias, in units of log2 e: fp32 ``[rows]`` each."""
    alone = (positions == 0) | (keys == 1)
    ones = tl.where(alone, 0.0, LOG2E)
    if SSMAX:
        t = tl.load(t_ptr + rows, mask=mask, other=0.0) * ones
    else:
        t = ones
    root: tl.constexpr = HEAD_SIZE**-0.5
    if SCALES_PRIOR:
        return t * root, t
    else:
        return t * root, ones
