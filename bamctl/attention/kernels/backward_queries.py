"""The backward pass of queries: their gradient, that of SSMax's factor, and that of the prior.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, T blocks of queries.

The scores are computed again from q, k and the log-sum-exp of the forward pass (arXiv 2307.08691, algorithm
2). With p_ij the weights, δ_i = do_i · o_i, and the logits l_ij = t_i (c_ij + b_ij):

    ds_ij = p_ij (do_i · v_j - δ_i)               the gradient of l_ij
    dq_i  = Σ_j ds_ij t_i k_j / √D
    dt_i  = Σ_j ds_ij (c_ij + b_ij)               c_ij alone where SSMax leaves the prior alone
    dθ    = Σ_ij ds_ij t_i ∂b_ij/∂θ               without t_i there

    ∂b/∂slope = j - i      ∂b/∂log_rate = b      ∂b/∂β = b ln |j - i - μ|      ∂b/∂μ = -β b / (j - i - μ)

Far from μ these are polynomials like b itself. Every sum is taken in a fixed order: rows of queries by one
program, and the prior's parameters by one number a program, which the launcher adds up. There are no
atomics, and two runs give the same bits. It costs the scores twice, here and in `backward_keys`, as against
one kernel that adds dq from everywhere.

δ comes from an output that was rounded to the dtype of q, so that Σ_j ds_ij is not quite 0, and where the
bias is large but much the same for all keys that have weight, dt and dθ would be no more than that error. So
for each feature f of a score (b, its derivatives, c + b) Σ_j p_ij f_ij is summed too, and

    Σ_j ds_ij f_ij - (Σ_j ds_ij) (Σ_j p_ij f_ij)

is what an exact δ would have given. A row that sees a single key has no gradient by its logit at all.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import (
    FAR,
    GENERALIZED_GAUSSIAN,
    HIGH_DEGREE,
    LAPLACE,
    LOWEST,
    SERIES,
    load_law,
    load_series,
    polynomial,
    power,
    power_slopes,
    tiles_up_to,
)
from bamctl.attention.kernels.rows import LN2, load_rows, row_factors, store_rows


@triton.jit
def _add(sums, ds, weights, feature):
    return sums[0] + tl.sum(ds * feature, 1), sums[1] + tl.sum(weights * feature, 1)


@triton.jit
def _query_tiles(
    dq,
    sum_ds,
    t_sums,  # of ds · f and of p · f, here for the feature of t
    rate_sums,  # of the slope under a Laplace prior
    beta_sums,
    mu_sums,
    q,
    do,
    lse,
    delta,
    k_ptr,
    v_ptr,
    k_strides,
    v_strides,
    positions,
    content_factor,
    bias_factor,
    keys,
    rate,
    beta,
    mu,
    series,
    beta_series,
    mu_series,
    far,
    n_from,
    n_to,
    FAR_FIELD: tl.constexpr,
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    LEARNS_PRIOR: tl.constexpr,
    LEARNS_MU: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Adds what the tiles n_from … n_to - 1 give to one block of queries."""
    columns = tl.arange(0, BLOCK_N)
    centred_rows = (tl.arange(0, BLOCK_M) - BLOCK_M // 2).to(tl.float32)
    centred_columns = (columns - BLOCK_N // 2).to(tl.float32)
    origin = tl.min(positions, 0)
    root: tl.constexpr = HEAD_SIZE**-0.5
    for step in tl.range(0, n_to - n_from):
        n = n_to - 1 - step
        key = n * BLOCK_N + columns
        k = load_rows(k_ptr, k_strides, n * BLOCK_N, keys, MASKED, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)
        v = load_rows(v_ptr, v_strides, n * BLOCK_N, keys, MASKED, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N)
        content = tl.dot(q, tl.trans(k), input_precision="ieee")
        logits = content * content_factor[:, None]
        if KIND == GENERALIZED_GAUSSIAN:
            if FAR_FIELD:
                centre = tl.load(far - n * FAR)
                scale = tl.load(far - n * FAR + 1)
                ln_offset = tl.load(far - n * FAR + 2)
                u = (centred_columns * scale)[None, :] - (centred_rows * scale)[:, None]
                bias = centre * polynomial(u, series, HIGH_DEGREE)
            else:
                rel = key[None, :] - positions[:, None]
                bias = power(rel, rate, beta, mu, FLOAT64)
            logits += bias * bias_factor[:, None]
        elif KIND == LAPLACE:
            rel = (key - origin).to(tl.float32)[None, :] - (positions - origin).to(tl.float32)[:, None]
            logits += rel * (rate * bias_factor)[:, None]
        weights = tl.exp2(logits - lse[:, None])
        if MASKED:
            visible = (key[None, :] <= positions[:, None]) & (key < keys)[None, :]
            weights = tl.where(visible, weights, 0.0)
        ds = weights * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")

        if SSMAX or LEARNS_PRIOR:
            sum_ds += tl.sum(ds, 1)
        if SSMAX:
            feature = content * root
            if SCALES_PRIOR and KIND == GENERALIZED_GAUSSIAN:
                feature += bias
            elif SCALES_PRIOR and KIND == LAPLACE:
                feature += rate * rel
            t_sums = _add(t_sums, ds, weights, feature)
        if LEARNS_PRIOR:
            if KIND == LAPLACE:
                rate_sums = _add(rate_sums, ds, weights, rel)
            elif FAR_FIELD:
                rate_sums = _add(rate_sums, ds, weights, bias)
                by_beta = bias * ln_offset + centre * polynomial(u, beta_series, HIGH_DEGREE)
                beta_sums = _add(beta_sums, ds, weights, by_beta)
                if LEARNS_MU:
                    by_mu = -centre * scale * polynomial(u, mu_series, HIGH_DEGREE - 1)
                    mu_sums = _add(mu_sums, ds, weights, by_mu)
            else:
                bias = tl.where(bias > LOWEST, bias, 0.0)  # no gradient where it was clamped
                by_beta, by_mu = power_slopes(rel, beta, mu)
                rate_sums = _add(rate_sums, ds, weights, bias)
                beta_sums = _add(beta_sums, ds * bias, weights * bias, by_beta)
                if LEARNS_MU:
                    mu_sums = _add(mu_sums, ds * bias, weights * bias, by_mu)
    return dq, sum_ds, t_sums, rate_sums, beta_sums, mu_sums


@triton.jit
def _without_mean(sums, sum_ds):
    """Σ ds · f as an exact δ would have given it."""
    return sums[0] - sum_ds * sums[1]


@triton.jit(do_not_specialize=["heads", "queries", "keys", "offset", "distances", "nearest", "first_blocks"])
def backward_queries(
    q_ptr,  # [B, H, C, D], as do, out and dq
    k_ptr,  # [B, G, N, D]
    v_ptr,  # [B, G, N, D]
    out_ptr,
    do_ptr,
    lse_ptr,  # [B, H, C] fp32, in units of log2 e
    delta_ptr,  # [B, H, C] fp32: δ, left for `backward_keys`
    dq_ptr,
    d_t_ptr,  # [B, H, C] fp32, where SSMAX
    d_parameters_ptr,  # [3 or 1, B, H, T] fp32, where LEARNS_PRIOR
    t_ptr,  # [H, C] fp32, where SSMAX
    parameters_ptr,  # [3, H] or [1, H] fp32
    first_ptr,  # [H, first_blocks] int64, relative to the first key, where SKIPS
    far_ptr,  # [H, S, FAR] fp32, this and the next two under a generalized Gaussian
    series_ptr,  # [H, 2, SERIES] fp32
    limits_ptr,  # [H, 2] int64
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    do_strides,
    dq_strides,
    heads,
    queries,
    keys,
    offset,
    distances,
    nearest,
    first_blocks,  # T of the forward pass
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    SSMAX: tl.constexpr,
    SCALES_PRIOR: tl.constexpr,
    LEARNS_PRIOR: tl.constexpr,
    LEARNS_MU: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    WIDE_POSITIONS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FIRST_BLOCK: tl.constexpr,  # BLOCK_M of the forward pass, a multiple of this one's
):
    """dq, dt and the parts of the prior's gradients of one block of queries of one head."""
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
    out_ptr += batch * out_strides[0] + head.to(tl.int64) * out_strides[1]
    do_ptr += batch * do_strides[0] + head.to(tl.int64) * do_strides[1]
    dq_ptr += batch * dq_strides[0] + head.to(tl.int64) * dq_strides[1]
    k_ptr += batch * k_strides[0] + (head // GROUP).to(tl.int64) * k_strides[1]
    v_ptr += batch * v_strides[0] + (head // GROUP).to(tl.int64) * v_strides[1]
    at = block * BLOCK_M
    q = load_rows(q_ptr, q_strides, at, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
    do = load_rows(do_ptr, do_strides, at, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
    out = load_rows(out_ptr, out_strides, at, queries, True, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
    delta = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    place = batch_head.to(tl.int64) * queries + rows
    tl.store(delta_ptr + place, delta, mask=row_exists)
    alone = (positions == 0) | (keys == 1)
    lse = tl.load(lse_ptr + place, mask=row_exists & (alone == 0), other=float("inf"))

    first_position = offset + at
    plain = (tl.minimum(first_position + 1, keys) // BLOCK_N).to(tl.int32)
    end = tl.cdiv(tl.minimum(first_position + BLOCK_M, keys), BLOCK_N).to(tl.int32)
    start = 0
    if SKIPS:
        first = tl.load(first_ptr + head * first_blocks + at // FIRST_BLOCK)
        start = (tl.maximum(first, 0) // BLOCK_N).to(tl.int32)
    plain = tl.maximum(plain, start)
    near = start
    far = far_ptr
    series = ()
    beta_series = ()
    mu_series = ()
    if KIND == GENERALIZED_GAUSSIAN:
        distance = nearest + block * (BLOCK_M // BLOCK_N)
        far += (head.to(tl.int64) * distances + distance) * FAR
        series = load_series(series_ptr + 2 * head * SERIES)
        if LEARNS_PRIOR:
            beta_series = load_series(series_ptr + (2 * head + 1) * SERIES)
        if LEARNS_MU:
            mu_series = (series[1], 2 * series[2], 3 * series[3], 4 * series[4], 5 * series[5], 6 * series[6])
        rel_of_first = BLOCK_N // 2 - BLOCK_M // 2 - first_position.to(tl.int64)
        limit = tl.load(limits_ptr + 2 * head + 1)
        near = tl.minimum(tl.maximum(tiles_up_to(limit, rel_of_first, BLOCK_N), start), plain).to(tl.int32)

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    zeros = tl.zeros([BLOCK_M], tl.float32)
    sum_ds = zeros
    t_sums = (zeros, zeros)
    rate_sums = (zeros, zeros)
    beta_sums = (zeros, zeros)
    mu_sums = (zeros, zeros)
    for region in tl.static_range(3):
        if region == 0:
            n_from, n_to = plain, end
        elif region == 1:
            n_from, n_to = near, plain
        else:
            n_from, n_to = start, near
        if region < 2 or KIND == GENERALIZED_GAUSSIAN:
            dq, sum_ds, t_sums, rate_sums, beta_sums, mu_sums = _query_tiles(
                dq,
                sum_ds,
                t_sums,
                rate_sums,
                beta_sums,
                mu_sums,
                q,
                do,
                lse,
                delta,
                k_ptr,
                v_ptr,
                k_strides,
                v_strides,
                positions,
                content_factor,
                bias_factor,
                keys,
                rate,
                beta,
                mu,
                series,
                beta_series,
                mu_series,
                far,
                n_from,
                n_to,
                FAR_FIELD=region == 2,
                MASKED=region == 0,
                KIND=KIND,
                SSMAX=SSMAX,
                SCALES_PRIOR=SCALES_PRIOR,
                LEARNS_PRIOR=LEARNS_PRIOR,
                LEARNS_MU=LEARNS_MU,
                WIDE_OFFSETS=WIDE_OFFSETS,
                FLOAT64=FLOAT64,
                HEAD_SIZE=HEAD_SIZE,
                BLOCK_D=BLOCK_D,
                BLOCK_M=BLOCK_M,
                BLOCK_N=BLOCK_N,
            )

    dq *= (content_factor * LN2)[:, None]
    store_rows(dq_ptr, dq_strides, dq, at, queries, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_M)
    if SSMAX:
        tl.store(d_t_ptr + place, _without_mean(t_sums, sum_ds), mask=row_exists)
    if LEARNS_PRIOR:
        to_bias = bias_factor * LN2
        part = d_parameters_ptr + batch_head.to(tl.int64) * blocks + block
        parts = (tl.num_programs(0)).to(tl.int64)
        tl.store(part, tl.sum(_without_mean(rate_sums, sum_ds) * to_bias, 0))
        if KIND == GENERALIZED_GAUSSIAN:
            tl.store(part + parts, tl.sum(_without_mean(beta_sums, sum_ds) * to_bias, 0))
            tl.store(part + 2 * parts, tl.sum(_without_mean(mu_sums, sum_ds) * to_bias, 0))
