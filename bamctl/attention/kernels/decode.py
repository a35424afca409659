"""The forward pass over few queries and many keys: the keys are split, and the parts combined.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, P splits, R rows.

With one query a program for each head would leave most of a GPU idle and read the keys at the speed of one
multiprocessor. So the keys are dealt to P programs, each of which leaves its softmax over its own part and
that part's log-sum-exp (flash-decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html). The parts
are then weighted by

    out = Σ_p 2^(lse_p - lse) out_p,    lse = log2 Σ_p 2^lse_p.

The rows of one program are all queries of all heads that share a key-value head, so that each key and value
is read once for the group. The work is bound by memory, and the bias is evaluated exactly everywhere. The
range that is split starts at the first key that any head of the group must look at.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import load_law
from bamctl.attention.kernels.online import attend
from bamctl.attention.kernels.rows import row_factors

PARTS = tl.constexpr(16)
"""Parts that `combine` takes at a time."""


@triton.jit
def rows_of_group(group, queries, QUERIES: tl.constexpr, GROUP: tl.constexpr, BLOCK_R: tl.constexpr):
    """Of each row ``[R]`` its head and its query, and whether there is such a row; C is at most QUERIES."""
    row = tl.arange(0, BLOCK_R)
    query = row % QUERIES
    exists = (row < GROUP * QUERIES) & (query < queries)
    return group * GROUP + tl.where(row < GROUP * QUERIES, row // QUERIES, 0), query, exists


@triton.jit
def attend_part(
    q_ptr,  # of this sequence's first query
    k_ptr,  # of this head of keys, and where not PAGE of this sequence
    v_ptr,
    parts_ptr,  # [B, H, C, P, D] fp32
    lse_ptr,  # [B, H, C, P] fp32
    parameters_ptr,
    first_ptr,  # of the first head, in steps of `first_stride`; where SKIPS
    first_stride,
    pages_ptr,  # of this sequence, where PAGE
    q_strides,
    k_strides,
    v_strides,
    sequence,  # int64
    head,  # these five [R]
    query,
    exists,
    content_factor,
    bias_factor,
    heads,
    queries,
    keys,
    offset,  # position of the first query
    split,
    splits,
    QUERIES: tl.constexpr,
    KIND: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
):
    """One part of one sequence's keys, for all rows of one key-value head."""
    positions = offset + query
    rate, beta, mu = load_law(parameters_ptr, head[:, None], heads, KIND, FLOAT64)

    dim = tl.arange(0, BLOCK_D)
    there = exists[:, None] & (dim < HEAD_SIZE)[None, :]
    q_row = head.to(tl.int64) * q_strides[1] + query.to(tl.int64) * q_strides[2]
    q = tl.load(q_ptr + q_row[:, None] + dim.to(tl.int64)[None, :] * q_strides[3], mask=there, other=0.0)

    plain = (tl.minimum(offset + 1, keys) // BLOCK_N).to(tl.int32)
    end = tl.cdiv(tl.minimum(offset + queries, keys), BLOCK_N).to(tl.int32)
    start = 0
    if SKIPS:
        first = tl.min(tl.load(first_ptr + head * first_stride), 0)
        start = tl.minimum(tl.maximum(first, 0) // BLOCK_N, end).to(tl.int32)
    part = tl.cdiv(end - start, splits)
    n_from = tl.minimum(start + split * part, end)
    n_to = tl.minimum(n_from + part, end)
    n_plain = tl.minimum(tl.maximum(plain, n_from), n_to)

    out = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_R], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    for region in tl.static_range(2):
        out, peak, total = attend(
            out,
            peak,
            total,
            q,
            k_ptr,
            v_ptr,
            k_strides,
            v_strides,
            pages_ptr,
            positions,
            content_factor,
            bias_factor,
            keys,
            rate,
            beta,
            mu,
            (),
            k_ptr,
            n_plain if region == 0 else n_from,
            n_to if region == 0 else n_plain,
            DEGREE=0,
            MASKED=region == 0,
            KIND=KIND,
            WIDE_OFFSETS=WIDE_OFFSETS,
            FLOAT64=FLOAT64,
            HEAD_SIZE=HEAD_SIZE,
            BLOCK_D=BLOCK_D,
            BLOCK_M=BLOCK_R,
            BLOCK_N=BLOCK_N,
            PAGE=PAGE,
        )

    # A part may hold no key that a row sees, or no key at all.
    seen = total > 0
    place = ((sequence * heads + head) * QUERIES + query) * splits + split
    lse = tl.where(seen, peak + tl.log2(tl.where(seen, total, 1.0)), -float("inf"))
    tl.store(lse_ptr + place, lse, mask=exists)
    out = out / tl.where(seen, total, 1.0)[:, None]
    tl.store(parts_ptr + place[:, None] * HEAD_SIZE + dim[None, :], out, mask=there)


@triton.jit(do_not_specialize=["heads", "keys", "offset", "splits"])
def decode(
    q_ptr,  # [B, H, C, D]
    k_ptr,  # [B, G, N, D]
    v_ptr,  # [B, G, N, D]
    out_ptr,  # [B, H, C, P, D] fp32
    lse_ptr,  # [B, H, C, P] fp32, in units of log2 e
    t_ptr,  # [H, C] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    first_ptr,  # [H] int64, relative to the first key, where SKIPS
    q_strides,
    k_strides,
    v_strides,
    heads,
    keys,
    offset,  # position of the first query
    splits,
    QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    WIDE_POSITIONS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One part of the keys for all rows of one key-value head."""
    pid = tl.program_id(0)
    split = pid % splits
    groups = heads // GROUP
    group = pid // splits % groups
    batch = (pid // splits // groups).to(tl.int64)
    if WIDE_POSITIONS:
        offset = offset.to(tl.int64)

    head, query, exists = rows_of_group(group, QUERIES, QUERIES, GROUP, BLOCK_R)
    content_factor, bias_factor = row_factors(
        t_ptr, head * QUERIES + query, exists, offset + query, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR
    )
    attend_part(
        q_ptr + batch * q_strides[0],
        k_ptr + batch * k_strides[0] + group.to(tl.int64) * k_strides[1],
        v_ptr + batch * v_strides[0] + group.to(tl.int64) * v_strides[1],
        out_ptr,
        lse_ptr,
        parameters_ptr,
        first_ptr,
        1,
        k_ptr,
        q_strides,
        k_strides,
        v_strides,
        batch,
        head,
        query,
        exists,
        content_factor,
        bias_factor,
        heads,
        QUERIES,
        keys,
        offset,
        split,
        splits,
        QUERIES=QUERIES,
        KIND=KIND,
        SKIPS=SKIPS,
        WIDE_OFFSETS=WIDE_OFFSETS,
        FLOAT64=FLOAT64,
        HEAD_SIZE=HEAD_SIZE,
        BLOCK_D=BLOCK_D,
        BLOCK_R=BLOCK_R,
        BLOCK_N=BLOCK_N,
        PAGE=0,
    )


@triton.jit
def combine_row(
    parts_ptr,
    part_lse_ptr,
    row,  # int64
    splits,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """A row's parts, weighted by the mass that each holds: its output ``[D]`` and its log-sum-exp."""
    every = tl.arange(0, BLOCK_P)
    part_lse = tl.load(part_lse_ptr + row * splits + every, mask=every < splits, other=-float("inf"))
    peak = tl.max(part_lse, 0)
    lse = peak + tl.log2(tl.sum(tl.exp2(part_lse - peak), 0))

    dim = tl.arange(0, BLOCK_D)
    out = tl.zeros([BLOCK_D], tl.float32)
    for first in tl.range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        exists = part < splits
        weight = tl.exp2(tl.load(part_lse_ptr + row * splits + part, mask=exists, other=-float("inf")) - lse)
        value = tl.load(
            parts_ptr + (row * splits + part)[:, None] * HEAD_SIZE + dim[None, :],
            mask=exists[:, None] & (dim < HEAD_SIZE)[None, :],
            other=0.0,
        )
        out += tl.sum(weight[:, None] * value, 0)
    return out, lse


@triton.jit(do_not_specialize=["heads", "queries", "splits"])
def combine(
    parts_ptr,  # [B, H, C, P, D] fp32
    part_lse_ptr,  # [B, H, C, P] fp32
    out_ptr,  # [B, H, C, D]
    lse_ptr,  # [B, H, C] fp32
    out_strides,
    heads,
    queries,
    splits,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,  # at least P, a multiple of PARTS
):
    """One row: its parts, weighted by the mass that each holds."""
    row = tl.program_id(0).to(tl.int64)
    out, lse = combine_row(parts_ptr, part_lse_ptr, row, splits, HEAD_SIZE, BLOCK_D, BLOCK_P)
    batch = row // (heads * queries)
    head = row // queries % heads
    query = row % queries
    place = batch * out_strides[0] + head * out_strides[1] + query * out_strides[2]
    dim = tl.arange(0, BLOCK_D)
    out_ptrs = out_ptr + place + dim.to(tl.int64) * out_strides[3]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_SIZE)
    tl.store(lse_ptr + row, lse)
