"""The forward pass over sequences whose keys and values lie in pages, as a server of many keeps them.

Shapes: T tokens, B sequences, H query heads, G key-value heads, D head size, P pages, S slots of a page,
L blocks of queries, C queries of one sequence, R rows.

The queries of all sequences follow one another, n_b of each, and those of sequence b are its last tokens. No
number of them is known to the host, which only knows T, B and upper bounds. Blocks of M queries are therefore
numbered so that each sequence may begin one: block starts_b // M + b is the first of sequence b
(the numbering of vLLM's unified attention kernel). There are T // M + B of them, the one before the next
sequence's first may be empty, and a search in the starts tells which sequence a block belongs to.

Everything within a block is what `forward` and `decode` do to keys in one piece. A sequence of few queries is
left to `paged_decode`, all others to `paged_forward`, in one call and whatever the mix.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import SERIES, load_law
from bamctl.attention.kernels.decode import attend_part, combine_row, rows_of_group
from bamctl.attention.kernels.forward import attend_block
from bamctl.attention.kernels.reach import first_that_matters, weightless_below
from bamctl.attention.kernels.rows import load_rows, logit_factors, ssmax_factors, store_rows

BRANCHES = tl.constexpr(64)
"""Distances that `paged_first_keys` compares at once: few rounds, for each waits for the one before."""

ROUNDS = tl.constexpr(6)
"""A gap of less than 2^33 is down to one after so many."""

NORM_ROWS = tl.constexpr(16)
"""Queries whose norms are taken at once."""


@triton.jit
def _queries_of(starts_ptr, sequence):
    """The first query of a sequence, and how many it has."""
    start = tl.load(starts_ptr + sequence)
    return start, tl.load(starts_ptr + sequence + 1) - start


@triton.jit
def _place_of(index, starts_ptr, sequences, BLOCK_M: tl.constexpr):
    """The sequence that a block belongs to, and which of its blocks it is."""
    low = 0
    high = sequences
    while low < high:
        middle = (low + high) // 2
        begun = tl.load(starts_ptr + middle) // BLOCK_M + middle <= index
        low = tl.where(begun, middle + 1, low)
        high = tl.where(begun, high, middle)
    sequence = low - 1
    return sequence, index - (tl.load(starts_ptr + sequence) // BLOCK_M + sequence)


@triton.jit(do_not_specialize=["heads", "sequences", "blocks"])
def paged_first_keys(
    first_ptr,  # [H, L] int64
    q_ptr,  # [1, H, T, D]
    longest_ptr,  # [G] fp32: no key is longer
    scale_ptr,  # [H] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    starts_ptr,  # [B + 1] int32
    lengths_ptr,  # [B] int32
    q_strides,
    heads,
    sequences,
    blocks,
    GROUP: tl.constexpr,  # H / G
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The first key that one block of queries of one head must look at, see `bamctl.attention.reach`."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    sequence, block = _place_of(index, starts_ptr, sequences, BLOCK_M)
    row_start, queries = _queries_of(starts_ptr, sequence)
    if block * BLOCK_M >= queries:
        return
    offset = tl.load(lengths_ptr + sequence) - queries
    last = tl.minimum(block * BLOCK_M + BLOCK_M, queries) - 1

    q_ptr += head.to(tl.int64) * q_strides[1] + row_start.to(tl.int64) * q_strides[2]
    square = tl.zeros([NORM_ROWS], tl.float32)
    for step in tl.range(0, tl.cdiv(last + 1 - block * BLOCK_M, NORM_ROWS)):
        row = block * BLOCK_M + step * NORM_ROWS
        q = load_rows(q_ptr, q_strides, row, last + 1, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, NORM_ROWS)
        q = q.to(tl.float32)
        square = tl.maximum(square, tl.sum(q * q, 1), propagate_nan=tl.PropagateNan.ALL)
    # Rounding may put a computed score above the exact product of norms, hence the thousandth.
    root: tl.constexpr = 1.001 * HEAD_SIZE**-0.5
    longest = tl.load(longest_ptr + head // GROUP).to(tl.float64)
    content = tl.sqrt(tl.max(square.to(tl.float64), 0)) * longest * root

    position = tl.zeros([1], tl.int64) + (offset + block * BLOCK_M)
    t = 1.0
    if SSMAX:
        at = position if SCALES_PRIOR else tl.zeros([1], tl.int64) + (offset + last)
        t = ssmax_factors(tl.load(scale_ptr + head), at).to(tl.float64)
    rate, beta, mu = load_law(parameters_ptr, head, heads, KIND, True)
    limit = weightless_below(position, content, t, rate, beta, mu, KIND, SSMAX, SCALES_PRIOR, BLOCK_M)
    first = first_that_matters(position, limit, rate, beta, mu, KIND, BLOCK_M, ROUNDS, BRANCHES)
    tl.store(first_ptr + head.to(tl.int64) * blocks + index + tl.arange(0, 1), first)


@triton.jit(do_not_specialize=["heads", "sequences", "blocks", "decoded"])
def paged_forward(
    q_ptr,  # [1, H, T, D]
    k_ptr,  # [P, G, S, D]
    v_ptr,  # [P, G, S, D]
    out_ptr,  # [1, H, T, D]
    scale_ptr,  # [H] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    first_ptr,  # [H, L] int64, where SKIPS
    series_ptr,  # [H, 2, SERIES] fp32, this and the next under a generalized Gaussian
    limits_ptr,  # [H, 2] int64
    starts_ptr,  # [B + 1] int32
    lengths_ptr,  # [B] int32
    pages_ptr,  # [B, pages] int32
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    pages_stride,
    heads,
    sequences,
    blocks,  # L
    decoded,  # sequences of no more queries are left to `paged_decode`
    GROUP: tl.constexpr,  # H / G
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,  # S
):
    """One block of queries of one head against all the keys that it must look at."""
    pid = tl.program_id(0)
    index = blocks - 1 - pid % blocks
    head = pid // blocks
    sequence, block = _place_of(index, starts_ptr, sequences, BLOCK_M)
    row_start, queries = _queries_of(starts_ptr, sequence)
    if (block * BLOCK_M >= queries) | (queries <= decoded):
        return
    keys = tl.load(lengths_ptr + sequence)
    first_position = keys - queries + block * BLOCK_M
    positions = first_position + tl.arange(0, BLOCK_M)
    t = 0.0
    if SSMAX:
        t = ssmax_factors(tl.load(scale_ptr + head), positions)
    content_factor, bias_factor = logit_factors(t, positions, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR)
    rate, beta, mu = load_law(parameters_ptr, head, heads, KIND, FLOAT64)

    rows = row_start.to(tl.int64)
    q_ptr += head.to(tl.int64) * q_strides[1] + rows * q_strides[2]
    out_ptr += head.to(tl.int64) * out_strides[1] + rows * out_strides[2]
    q = load_rows(q_ptr, q_strides, block * BLOCK_M, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
    start = 0
    if SKIPS:
        start = (tl.load(first_ptr + head.to(tl.int64) * blocks + index) // BLOCK_N).to(tl.int32)
    out, _, total = attend_block(
        q,
        k_ptr + (head // GROUP).to(tl.int64) * k_strides[1],
        v_ptr + (head // GROUP).to(tl.int64) * v_strides[1],
        k_strides,
        v_strides,
        pages_ptr + sequence.to(tl.int64) * pages_stride,
        first_position,
        positions,
        content_factor,
        bias_factor,
        keys,
        start,
        rate,
        beta,
        mu,
        series_ptr,
        series_ptr + 2 * head * SERIES,
        limits_ptr + 2 * head,
        KIND=KIND,
        WIDE_OFFSETS=WIDE_OFFSETS,
        FLOAT64=FLOAT64,
        HEAD_SIZE=HEAD_SIZE,
        BLOCK_D=BLOCK_D,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        PAGE=PAGE,
    )
    store_rows(
        out_ptr,
        out_strides,
        out / total[:, None],
        block * BLOCK_M,
        queries,
        WIDE_OFFSETS,
        HEAD_SIZE,
        BLOCK_D,
        BLOCK_M,
    )


@triton.jit(do_not_specialize=["heads", "sequences", "blocks", "splits"])
def paged_decode(
    q_ptr,  # [1, H, T, D]
    k_ptr,  # [P, G, S, D]
    v_ptr,  # [P, G, S, D]
    parts_ptr,  # [B, H, QUERIES, splits, D] fp32
    part_lse_ptr,  # [B, H, QUERIES, splits] fp32, in units of log2 e
    scale_ptr,  # [H] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    first_ptr,  # [H, L] int64, where SKIPS
    starts_ptr,  # [B + 1] int32
    lengths_ptr,  # [B] int32
    pages_ptr,  # [B, pages] int32
    q_strides,
    k_strides,
    v_strides,
    pages_stride,
    heads,
    blocks,  # L
    splits,
    QUERIES: tl.constexpr,  # sequences of more are left to `paged_forward`
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FIRST_BLOCK: tl.constexpr,  # M of `first_ptr`, at least QUERIES
    PAGE: tl.constexpr,  # S
):
    """One part of one sequence's keys for all rows of one key-value head."""
    pid = tl.program_id(0)
    split = pid % splits
    groups = heads // GROUP
    group = pid // splits % groups
    sequence = pid // splits // groups
    row_start, queries = _queries_of(starts_ptr, sequence)
    if (queries < 1) | (queries > QUERIES):
        return
    keys = tl.load(lengths_ptr + sequence)
    offset = keys - queries
    head, query, exists = rows_of_group(group, queries, QUERIES, GROUP, BLOCK_R)
    t = 0.0
    if SSMAX:
        t = ssmax_factors(tl.load(scale_ptr + head), offset + query)
    content_factor, bias_factor = logit_factors(t, offset + query, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR)
    attend_part(
        q_ptr + row_start.to(tl.int64) * q_strides[2],
        k_ptr + group.to(tl.int64) * k_strides[1],
        v_ptr + group.to(tl.int64) * v_strides[1],
        parts_ptr,
        part_lse_ptr,
        parameters_ptr,
        first_ptr + row_start // FIRST_BLOCK + sequence,
        blocks,
        pages_ptr + sequence.to(tl.int64) * pages_stride,
        q_strides,
        k_strides,
        v_strides,
        sequence.to(tl.int64),
        head,
        query,
        exists,
        content_factor,
        bias_factor,
        heads,
        queries,
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
        PAGE=PAGE,
    )


@triton.jit(do_not_specialize=["heads", "splits"])
def paged_combine(
    parts_ptr,  # [B, H, QUERIES, splits, D] fp32
    part_lse_ptr,  # [B, H, QUERIES, splits] fp32
    out_ptr,  # [1, H, T, D]
    starts_ptr,  # [B + 1] int32
    out_strides,
    heads,
    splits,
    QUERIES: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,  # at least the splits, a multiple of PARTS
):
    """One row of a sequence that `paged_decode` has taken."""
    row = tl.program_id(0)
    query = row % QUERIES
    head = row // QUERIES % heads
    row_start, queries = _queries_of(starts_ptr, row // QUERIES // heads)
    if (query >= queries) | (queries > QUERIES):
        return
    out, _ = combine_row(parts_ptr, part_lse_ptr, row.to(tl.int64), splits, HEAD_SIZE, BLOCK_D, BLOCK_P)
    dim = tl.arange(0, BLOCK_D)
    place = head.to(tl.int64) * out_strides[1] + (row_start + query).to(tl.int64) * out_strides[2]
    out_ptrs = out_ptr + place + dim.to(tl.int64) * out_strides[3]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_SIZE)
