"""Tiles of keys and values taken into a running softmax, whatever the rows are.

Shapes: M rows (queries), N keys of a tile, D head size.

Keys and values lie in one piece or in pages, see `bamctl.attention.kernels.rows`.
"""

import triton
import triton.language as tl

from bamctl.attention.kernels.bias import FAR, GENERALIZED_GAUSSIAN, LAPLACE, centre_of, polynomial, power
from bamctl.attention.kernels.rows import load_keys, load_pages

LARGEST = tl.constexpr(3e38)
"""Logits are kept within this: a bias times an SSMax factor may pass the end of fp32."""


@triton.jit
def attend(
    out,
    peak,
    total,
    q,
    k_ptr,  # of this head
    v_ptr,
    k_strides,
    v_strides,
    pages_ptr,  # of this sequence, where PAGE
    positions,
    content_factor,
    bias_factor,
    keys,
    rate,  # the slope under a Laplace prior; this and the next two of one head, or [M, 1] of one a row
    beta,
    mu,
    series,
    far,  # of the tile n = 0; that of tile n lies n · FAR before it. Of no use where PAGE
    n_from,
    n_to,
    DEGREE: tl.constexpr,  # of the polynomial; 0: exact
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    FLOAT64: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,  # slots of a page; 0: keys lie in one piece
):
    """Takes the tiles n_to - 1 … n_from into the running output, maximum and sum of a block of rows."""
    columns = tl.arange(0, BLOCK_N)
    centred_rows = (tl.arange(0, BLOCK_M) - BLOCK_M // 2).to(tl.float32)
    centred_columns = (columns - BLOCK_N // 2).to(tl.float32)
    origin = tl.min(positions, 0)
    for step in tl.range(0, n_to - n_from):
        n = n_to - 1 - step
        key = n * BLOCK_N + columns
        first = n * BLOCK_N
        pages = load_pages(pages_ptr, first, keys, MASKED, BLOCK_N, PAGE)
        k = load_keys(
            k_ptr, k_strides, pages, first, keys, MASKED, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N, PAGE
        )
        content = tl.dot(q, tl.trans(k), input_precision="ieee")

        if KIND == GENERALIZED_GAUSSIAN:
            if DEGREE == 0:
                rel = key[None, :] - positions[:, None]
                bias = power(rel, rate, beta, mu, FLOAT64)
                logits = content * content_factor[:, None] + bias * bias_factor[:, None]
                logits = tl.minimum(tl.maximum(logits, -LARGEST), LARGEST)
            else:
                if PAGE == 0:
                    centre = tl.load(far - n * FAR)
                    scale = tl.load(far - n * FAR + 1)
                else:
                    rel = first + BLOCK_N // 2 - (origin + BLOCK_M // 2)
                    centre, scale = centre_of(rel, rate, beta, mu, FLOAT64)
                u = (centred_columns * scale)[None, :] - (centred_rows * scale)[:, None]
                shape = polynomial(u, series, DEGREE)
                logits = content * content_factor[:, None] + shape * (centre * bias_factor)[:, None]
        elif KIND == LAPLACE:
            rel = (key - origin).to(tl.float32)[None, :] - (positions - origin).to(tl.float32)[:, None]
            logits = content * content_factor[:, None] + rel * (rate * bias_factor[:, None])
        else:
            logits = content * content_factor[:, None]
        if MASKED:
            visible = (key[None, :] <= positions[:, None]) & (key < keys)[None, :]
            logits = tl.where(visible, logits, -float("inf"))

        new_peak = tl.maximum(peak, tl.max(logits, 1))
        if MASKED:  # a row may have seen no key yet
            reference = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        else:
            reference = new_peak
        weights = tl.exp2(logits - reference[:, None])
        shrink = tl.exp2(peak - reference)
        total = total * shrink + tl.sum(weights, 1)
        v = load_keys(
            v_ptr, v_strides, pages, first, keys, MASKED, WIDE_OFFSETS, HEAD_SIZE, BLOCK_D, BLOCK_N, PAGE
        )
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        peak = new_peak
    return out, peak, total
