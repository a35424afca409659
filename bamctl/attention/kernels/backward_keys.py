"""The backward pass of keys and values.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, U tiles of keys.

With the notation of `bamctl.attention.kernels.backward_queries`, which leaves δ here:

    dv_j = Σ_i p_ij do_i      dk_j = Σ_i ds_ij t_i q_i / √D

A program has one tile of keys and goes through the queries that look at it, of all heads that share it, in a
fixed order.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import (
    FAR,
    GENERALIZED_GAUSSIAN,
    HIGH_DEGREE,
    LAPLACE,
    SERIES,
    load_law,
    load_series,
    polynomial,
    power,
)
from bamctl.attention.kernels.rows import LN2, load_rows, row_factors, store_rows


@triton.jit
def _key_tiles(
    dk,
    dv,
    k,
    v,
    q_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    t_ptr,
    q_strides,
    do_strides,
    key,
    offset,
    queries,
    keys,
    rate,
    beta,
    mu,
    series,
    far,
    m_from,
    m_to,
    FAR_FIELD: tl.constexpr,
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEPS: tl.constexpr,  # distances from one block of queries to the next
):
    """Adds what the blocks m_from … m_to - 1 of queries give to one tile of keys; scores are ``[N, M]``."""
    centred_rows = (tl.arange(0, BLOCK_M) - BLOCK_M // 2).to(tl.float32)
    centred_columns = (tl.arange(0, BLOCK_N) - BLOCK_N // 2).to(tl.float32)
    origin = tl.min(key, 0)
    for step in tl.range(0, m_to - m_from):
        m = m_from + step
        rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
        positions = offset + rows
        row_exists = rows < queries
        q = load_rows(q_ptr, q_strides, m * BLOCK_M, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
        do = load_rows(
            do_ptr, do_strides, m * BLOCK_M, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M
        )
        lse = tl.load(lse_ptr + rows, mask=row_exists, other=float("inf"))
        delta = tl.load(delta_ptr + rows, mask=row_exists, other=0.0)
        content_factor, bias_factor = row_factors(
            t_ptr, rows, row_exists, positions, keys, HEAD_SIZE, SSMAX, SCALES_PRIOR
        )
        logits = tl.dot(k, tl.trans(q), input_precision="ieee") * content_factor[None, :]
        if KIND == GENERALIZED_GAUSSIAN:
            if FAR_FIELD:
                centre = tl.load(far + m * STEPS * FAR)
                scale = tl.load(far + m * STEPS * FAR + 1)
                u = (centred_columns * scale)[:, None] - (centred_rows * scale)[None, :]
                logits += polynomial(u, series, HIGH_DEGREE) * (centre * bias_factor)[None, :]
            else:
                bias = power(key[:, None] - positions[None, :], rate, beta, mu, FLOAT64)
                logits += bias * bias_factor[None, :]
        elif KIND == LAPLACE:
            rel = (key - origin).to(tl.float32)[:, None] - (positions - origin).to(tl.float32)[None, :]
            logits += rel * (rate * bias_factor)[None, :]
        weights = tl.exp2(logits - lse[None, :])
        if MASKED:
            weights = tl.where(key[:, None] <= positions[None, :], weights, 0.0)
        dv = tl.dot(weights.to(do.dtype), do, dv, input_precision="ieee")
        ds = weights * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        ds *= (content_factor * LN2)[None, :]
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["heads", "queries", "keys", "offset", "distances", "nearest"])
def backward_keys(
    q_ptr,  # [B, H, C, D], as do
    k_ptr,  # [B, G, N, D], as v, dk and dv
    v_ptr,
    do_ptr,
    lse_ptr,  # [B, H, C] fp32, in units of log2 e
    delta_ptr,  # [B, H, C] fp32, from `backward_queries`
    dk_ptr,
    dv_ptr,
    t_ptr,  # [H, C] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    last_ptr,  # [H, U] int32: the end of the blocks of queries that look at a tile of keys, where SKIPS
    far_ptr,  # [H, S, FAR] fp32, this and the next two under a generalized Gaussian
    series_ptr,  # [H, 2, SERIES] fp32
    limits_ptr,  # [H, 2] int64
    q_strides,
    k_strides,
    v_strides,
    do_strides,
    dk_strides,
    dv_strides,
    heads,
    queries,
    keys,
    offset,
    distances,
    nearest,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dk and dv of one tile of keys, from all the query heads that share it."""
    STEP: tl.constexpr = min(BLOCK_M, BLOCK_N)
    tiles = tl.cdiv(keys, BLOCK_N)
    blocks = tl.cdiv(queries, BLOCK_M)
    groups = heads // GROUP
    pid = tl.program_id(0)
    tile = pid % tiles  # the first keys are seen by the most queries
    group = pid // tiles % groups
    batch = (pid // tiles // groups).to(tl.int64)
    if WIDE_POSITIONS:
        offset = offset.to(tl.int64)

    at = tile * BLOCK_N
    key = at + tl.arange(0, BLOCK_N)
    k_ptr += batch * k_strides[0] + group.to(tl.int64) * k_strides[1]
    v_ptr += batch * v_strides[0] + group.to(tl.int64) * v_strides[1]
    dk_ptr += batch * dk_strides[0] + group.to(tl.int64) * dk_strides[1]
    dv_ptr += batch * dv_strides[0] + group.to(tl.int64) * dv_strides[1]
    k = load_rows(k_ptr, k_strides, at, keys, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)
    v = load_rows(v_ptr, v_strides, at, keys, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)

    # Blocks before `start` see none of these keys, those from `plain` on see all of them.
    start = tl.minimum(tl.maximum(at - offset, 0) // BLOCK_M, blocks).to(tl.int32)
    plain = tl.minimum(tl.cdiv(tl.maximum(at + BLOCK_N - 1 - offset, 0), BLOCK_M), blocks).to(tl.int32)

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.range(0, GROUP):
        head = group * GROUP + member
        end = blocks
        if SKIPS:
            end = tl.load(last_ptr + head * tiles + tile)
        from_plain = tl.minimum(plain, end)
        from_far = end
        rate, beta, mu = load_law(parameters_ptr, head, heads, KIND, FLOAT64)
        series = ()
        far = far_ptr
        if KIND == GENERALIZED_GAUSSIAN:
            series = load_series(series_ptr + 2 * head * SERIES)
            far += (head.to(tl.int64) * distances + nearest - tile * (BLOCK_N // STEP)) * FAR
            # rel_c falls by BLOCK_M from block to block; far from the first that is at most the limit.
            limit = tl.load(limits_ptr + 2 * head + 1)
            above = at + BLOCK_N // 2 - BLOCK_M // 2 - offset - limit
            first_far = tl.cdiv(tl.maximum(above, 0), BLOCK_M)
            from_far = tl.minimum(tl.maximum(first_far, from_plain), end).to(tl.int32)

        row_place = (batch * heads + head) * queries
        for region in tl.static_range(3):
            if region == 0:
                m_from, m_to = start, from_plain
            elif region == 1:
                m_from, m_to = from_plain, from_far
            else:
                m_from, m_to = from_far, end
            if region < 2 or KIND == GENERALIZED_GAUSSIAN:
                dk, dv = _key_tiles(
                    dk,
                    dv,
                    k,
                    v,
                    q_ptr + batch * q_strides[0] + head.to(tl.int64) * q_strides[1],
                    do_ptr + batch * do_strides[0] + head.to(tl.int64) * do_strides[1],
                    lse_ptr + row_place,
                    delta_ptr + row_place,
                    t_ptr + head.to(tl.int64) * queries,
                    q_strides,
                    do_strides,
                    key,
                    offset,
                    queries,
                    keys,
                    rate,
                    beta,
                    mu,
                    series,
                    far,
                    m_from,
                    m_to,
                    FAR_FIELD=region == 2,
                    MASKED=region == 0,
                    KIND=KIND,
                    SSMAX=SSMAX,
                    SCALES_PRIOR=SCALES_PRIOR,
                    WIDE_OFFSETS=WIDE_OFFSETS,
                    FLOAT64=FLOAT64,
                    HEAD_SIZE=HEAD_SIZE,
                    BLOCK_D=BLOCK_D,
                    BLOCK_M=BLOCK_M,
                    BLOCK_N=BLOCK_N,
                    STEPS=BLOCK_M // STEP,
                )

    store_rows(dk_ptr, dk_strides, dk, at, keys, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)
    store_rows(dv_ptr, dv_strides, dv, at, keys, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)
