"""The forward pass over many queries: one program a block of queries, in the manner of FlashAttention-2.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, T blocks of queries.

The scores of a tile live in registers alone; a running maximum and sum make the softmax exact
(arXiv 2307.08691, algorithm 1). What a prior adds:

- A program starts at the first key that its queries must look at (`first`), so that tiles left out cost
  nothing: they are never loaded.
- Tiles run in four loops, each with only the code it needs: those on the diagonal or at the end of the keys
  (masks), near ones (exact bias), far ones (a polynomial of degree 6) and very far ones (degree 2); see
  `bamctl.attention.kernels.bias`.
- From the diagonal backwards: with a decaying prior the row's maximum is found in the first tile, and from
  then on rescaling multiplies by exactly one. Each row sees its own key there, so that its maximum is finite
  before anything far away is looked at.
- The blocks with the most keys are launched first, and the short ones fill the gaps at the end.

Positions are integers relative to the first key; logits are in units of log2 e, so that exp2 is the only
exponential. A row that sees a single key has logit 0 instead of its own: the weight is one either way, and
a bias of -1e8 has no chance to be rounded differently in the backward pass.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import (
    FAR,
    GENERALIZED_GAUSSIAN,
    HIGH_DEGREE,
    LOW_DEGREE,
    SERIES,
    load_law,
    load_series,
    tiles_up_to,
)
from bamctl.attention.kernels.online import attend
from bamctl.attention.kernels.rows import load_rows, row_factors, store_rows


@triton.jit
def attend_block(
    q,
    k_ptr,  # of this head
    v_ptr,
    k_strides,
    v_strides,
    pages_ptr,  # of this sequence, where PAGE
    first_position,  # the first of `positions`, which follow one another
    positions,
    content_factor,
    bias_factor,
    keys,
    start,  # the first tile of keys to look at
    rate,
    beta,
    mu,
    far,  # see `attend`; this and the next two under a generalized Gaussian
    series_ptr,  # of this head
    limits_ptr,
    KIND: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
):
    """The running output, maximum and sum of a block of rows, over the tiles from `start` on."""
    # Tiles 0 … plain - 1 are visible to every row whole; tiles plain … end - 1 need masks.
    plain = (tl.minimum(first_position + 1, keys) // BLOCK_N).to(tl.int32)
    end = tl.cdiv(tl.minimum(first_position + BLOCK_M, keys), BLOCK_N).to(tl.int32)
    plain = tl.maximum(plain, start)

    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    series = ()
    low = start
    high = start
    if KIND == GENERALIZED_GAUSSIAN:
        series = load_series(series_ptr)
        rel_of_first = BLOCK_N // 2 - BLOCK_M // 2 - first_position.to(tl.int64)
        low_limit = tl.load(limits_ptr)
        high_limit = tl.load(limits_ptr + 1)
        low = tl.minimum(tl.maximum(tiles_up_to(low_limit, rel_of_first, BLOCK_N), start), plain).to(tl.int32)
        high = tl.minimum(tl.maximum(tiles_up_to(high_limit, rel_of_first, BLOCK_N), low), plain).to(tl.int32)

    for region in tl.static_range(4):
        if region == 0:
            n_from, n_to = plain, end
        elif region == 1:
            n_from, n_to = high, plain
        elif region == 2:
            n_from, n_to = low, high
        else:
            n_from, n_to = start, low
        if region < 2 or KIND == GENERALIZED_GAUSSIAN:
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
                series,
                far,
                n_from,
                n_to,
                DEGREE=HIGH_DEGREE if region == 2 else LOW_DEGREE if region == 3 else 0,
                MASKED=region == 0,
                KIND=KIND,
                WIDE_OFFSETS=WIDE_OFFSETS,
                FLOAT64=FLOAT64,
                HEAD_SIZE=HEAD_SIZE,
                BLOCK_D=BLOCK_D,
                BLOCK_M=BLOCK_M,
                BLOCK_N=BLOCK_N,
                PAGE=PAGE,
            )
    return out, peak, total


@triton.jit(do_not_specialize=["heads", "queries", "keys", "offset", "distances", "nearest"])
def forward(
    q_ptr,  # [B, H, C, D]
    k_ptr,  # [B, G, N, D]
    v_ptr,  # [B, G, N, D]
    out_ptr,  # [B, H, C, D]
    lse_ptr,  # [B, H, C] fp32, in units of log2 e
    t_ptr,  # [H, C] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    first_ptr,  # [H, T] int64, relative to the first key, where SKIPS
    far_ptr,  # [H, S, FAR] fp32, this and the next two under a generalized Gaussian
    series_ptr,  # [H, 2, SERIES] fp32
    limits_ptr,  # [H, 2] int64
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    heads,
    queries,
    keys,
    offset,  # position of the first query
    distances,  # S
    nearest,  # which distance the first block of queries and the first tile of keys have
    GROUP: tl.constexpr,  # H / G
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,  # 64-bit offsets inside a tile too; from tile to tile they always are
    WIDE_POSITIONS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One block of queries of one head against all the keys that it must look at."""
    blocks = tl.cdiv(queries, BLOCK_M)
    pid = tl.program_id(0)
    block = blocks - 1 - pid % blocks
    batch_head = pid // blocks
    head = batch_head % heads
    batch = (batch_head // heads).to(tl.int64)
    if WIDE_POSITIONS:
        offset = offset.to(tl.int64)

    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    positions = offset + rows
    row_exists = rows < queries
    content_factor, bias_factor = row_factors(
        t_ptr + head.to(tl.int64) * queries, rows, row_exists, positions, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR
    )
    rate, beta, mu = load_law(parameters_ptr, head, heads, KIND, FLOAT64)

    q_ptr += batch * q_strides[0] + head.to(tl.int64) * q_strides[1]
    k_ptr += batch * k_strides[0] + (head // GROUP).to(tl.int64) * k_strides[1]
    v_ptr += batch * v_strides[0] + (head // GROUP).to(tl.int64) * v_strides[1]
    out_ptr += batch * out_strides[0] + head.to(tl.int64) * out_strides[1]
    q = load_rows(q_ptr, q_strides, block * BLOCK_M, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)

    start = 0
    if SKIPS:
        first = tl.load(first_ptr + head * blocks + block)
        start = (tl.maximum(first, 0) // BLOCK_N).to(tl.int32)
    far = far_ptr
    if KIND == GENERALIZED_GAUSSIAN:
        distance = nearest + block * (BLOCK_M // BLOCK_N)
        far += (head.to(tl.int64) * distances + distance) * FAR
    out, peak, total = attend_block(
        q,
        k_ptr,
        v_ptr,
        k_strides,
        v_strides,
        k_ptr,
        offset + block * BLOCK_M,
        positions,
        content_factor,
        bias_factor,
        keys,
        start,
        rate,
        beta,
        mu,
        far,
        series_ptr + 2 * head * SERIES,
        limits_ptr + 2 * head,
        KIND=KIND,
        WIDE_OFFSETS=WIDE_OFFSETS,
        FLOAT64=FLOAT64,
        HEAD_SIZE=HEAD_SIZE,
        BLOCK_D=BLOCK_D,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        PAGE=0,
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
    lse = peak + tl.log2(total)
    tl.store(lse_ptr + batch_head.to(tl.int64) * queries + rows, lse, mask=row_exists)
