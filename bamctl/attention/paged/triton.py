"""Attention over pages on a GPU, without ever waiting for it.

Shapes: see `bamctl.attention.paged`; beside them L blocks of queries, C queries of one sequence.

The kernels are in `bamctl.attention.kernels.paged`. What the host knows is T, B and bounds on what a sequence
may hold, and grids and memory follow from these alone: nothing depends on what is in a tensor.

A sequence of few queries has its keys split over programs (`paged_decode`), any other a program for each
block of its queries (`paged_forward`). How many are few follows from the bound on the queries: where all
sequences are few, all are decoded, and in a mixed batch those of a single query are.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from bamctl.attention.kernels import bias, decode, launch, paged
from bamctl.attention.kernels.launch import GENERALIZED_GAUSSIAN, UNIFORM
from bamctl.attention.kernels.tiles import FIRST_KEYS_WARPS, MOST_DECODED, Tiles, architecture, tiles_for
from bamctl.attention.priors import Prior
from bamctl.attention.triton import MOST_KEYS, MOST_ROWS, SEARCH_KEYS, why_not


@torch.no_grad()
def paged_attention(
    q_THD: Tensor,
    k_cache_PSGD: Tensor,
    v_cache_PSGD: Tensor,
    *,
    out_THD: Tensor,
    prior: Prior,
    query_starts: Tensor,
    lengths_B: Tensor,
    pages_BP: Tensor,
    most_queries: int,
    most_keys: int,
    ssmax_scale_H: Tensor | None,
    ssmax_scales_prior: bool,
    longest_key_G: Tensor | None,
    tiles: Tiles | None = None,
    splits: int | None = None,
) -> None:
    """Causal attention of every sequence's newest tokens over all that it has in the cache.

    fp16 and bf16 are multiplied on tensor cores and summed in fp32; fp32 is multiplied in full (IEEE), never
    in TF32. Logits, bias and softmax are fp32 throughout. There are no gradients.

    Args:
        q_THD: queries; those of sequence b are rows query_starts[b] … query_starts[b + 1] - 1.
        k_cache_PSGD, v_cache_PSGD: the pool of pages, as views of any strides, in the dtype of `q_THD`.
        out_THD: is written, but for the rows from query_starts[-1] on.
        prior: over relative positions, H heads.
        query_starts: int32 ``[B + 1]``, from 0 on and never falling. A sequence may have no queries.
        lengths_B: int32; tokens of each sequence in the cache, with those of this call: the last of its n
            queries stands at position lengths_B[b] - 1, the first at lengths_B[b] - n.
        pages_BP: int32; the pages of each sequence, in the order of its tokens.
        most_queries, most_keys: no sequence has more.
        ssmax_scale_H: s_h of Scalable Softmax; None for the plain softmax.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        longest_key_G: no key that these sequences have in the cache is longer. None: all keys are looked at.
        tiles: in place of those chosen for the device.
        splits: parts of the keys of a sequence of few queries; default by their number and the device.

    Raises:
        ValueError: a dtype, head size, prior, device or length that there is no kernel for.
    """
    q_1HTD, out_1HTD = (x.transpose(0, 1)[None] for x in (q_THD, out_THD))
    k_PGSD, v_PGSD = (x.transpose(1, 2) for x in (k_cache_PSGD, v_cache_PSGD))
    reason = why_not(q_1HTD, k_PGSD, v_PGSD, prior)
    if reason is not None:
        raise ValueError(reason)
    if most_keys > MOST_KEYS:
        raise ValueError(f"triton attention has up to {MOST_KEYS} keys, not {most_keys}")
    tokens, heads, head_size = q_THD.shape
    page, groups = k_cache_PSGD.shape[1:3]
    sequences = len(lengths_B)
    if tokens == 0 or sequences == 0:
        return

    of_forward, of_decode = (
        tiles or tiles_for(kernel, head_size, q_THD.element_size(), architecture(q_THD.device))
        for kernel in ("paged_forward", "paged_decode")
    )
    decoded = _most_decoded(most_queries, sequences, heads // groups, q_THD.element_size())
    decodes_all = most_queries <= decoded
    # Blocks of queries, those whose first keys are searched for and those of `paged_forward`.
    block = triton.next_power_of_2(decoded) if decodes_all else of_forward.block_m
    blocks = tokens // block + sequences
    kind, parameters_PH = launch.prior_parameters(prior)
    skips = kind != UNIFORM and longest_key_G is not None and most_keys >= SEARCH_KEYS
    constants: dict[str, Any] = launch.shared_constants(q_1HTD, kind, ssmax_scales_prior) | {
        "SSMAX": ssmax_scale_H is not None,
        "SKIPS": skips,
        "GROUP": heads // groups,
        "PAGE": page,
        "WIDE_OFFSETS": launch.needs_wide_offsets((q_1HTD, out_1HTD), max(block, paged.NORM_ROWS.value))
        or launch.needs_wide_offsets((k_PGSD, v_PGSD), page),
    }
    # What a kernel does not use still wants a pointer.
    scale = q_THD if ssmax_scale_H is None else ssmax_scale_H.float().contiguous()
    parameters = q_THD if parameters_PH is None else parameters_PH.contiguous()
    pages_BP = pages_BP if pages_BP.stride(1) == 1 else pages_BP.contiguous()
    first_HL = torch.empty((heads, blocks if skips else 0), dtype=torch.int64, device=q_THD.device)

    with torch.cuda.device_of(q_THD):
        if skips and longest_key_G is not None:
            of_first = {name: value for name, value in constants.items() if name in _OF_FIRST_KEYS}
            paged.paged_first_keys[(blocks, heads)](
                first_HL,
                q_1HTD,
                longest_key_G.float().contiguous(),
                scale,
                parameters,
                query_starts,
                lengths_B,
                q_1HTD.stride(),
                heads,
                sequences,
                blocks,
                BLOCK_M=block,
                num_warps=FIRST_KEYS_WARPS,
                **of_first,
            )
        if not decodes_all:
            series, limits = _series_and_limits(parameters, kind, heads, most_keys, of_forward)
            paged.paged_forward[(blocks * heads,)](
                q_1HTD,
                k_PGSD,
                v_PGSD,
                out_1HTD,
                scale,
                parameters,
                first_HL,
                series,
                limits,
                query_starts,
                lengths_B,
                pages_BP,
                q_1HTD.stride(),
                k_PGSD.stride(),
                v_PGSD.stride(),
                out_1HTD.stride(),
                pages_BP.stride(0),
                heads,
                sequences,
                blocks,
                decoded,
                BLOCK_M=of_forward.block_m,
                BLOCK_N=of_forward.block_n,
                num_warps=of_forward.warps,
                num_stages=of_forward.stages,
                **constants,
            )
        if decoded == 0:
            return
        if splits is None:
            splits = launch.choose_splits(q_THD.device, sequences * groups, most_keys)
        most = triton.next_power_of_2(decoded)
        parts = torch.empty((sequences, heads, most, splits, head_size), device=q_THD.device)
        part_lse = torch.empty((sequences, heads, most, splits), device=q_THD.device)
        paged.paged_decode[(splits * sequences * groups,)](
            q_1HTD,
            k_PGSD,
            v_PGSD,
            parts,
            part_lse,
            scale,
            parameters,
            first_HL,
            query_starts,
            lengths_B,
            pages_BP,
            q_1HTD.stride(),
            k_PGSD.stride(),
            v_PGSD.stride(),
            pages_BP.stride(0),
            heads,
            blocks,
            splits,
            QUERIES=most,
            BLOCK_R=max(16, triton.next_power_of_2(most * (heads // groups))),
            BLOCK_N=of_decode.block_n,
            FIRST_BLOCK=block,
            num_warps=of_decode.warps,
            num_stages=of_decode.stages,
            **constants,
        )
        paged.paged_combine[(sequences * heads * most,)](
            parts,
            part_lse,
            out_1HTD,
            query_starts,
            out_1HTD.stride(),
            heads,
            splits,
            QUERIES=most,
            HEAD_SIZE=head_size,
            BLOCK_D=constants["BLOCK_D"],
            BLOCK_P=max(decode.PARTS.value, triton.next_power_of_2(splits)),
        )


_OF_FIRST_KEYS = ("KIND", "SSMAX", "SCALES_PRIOR", "GROUP", "WIDE_OFFSETS", "HEAD_SIZE", "BLOCK_D")


def _most_decoded(most_queries: int, sequences: int, heads_a_group: int, element_size: int) -> int:
    """Sequences of up to so many queries are decoded: all that a batch has, or one, or none."""
    room = MOST_ROWS[element_size] // heads_a_group
    if triton.next_power_of_2(most_queries) <= min(MOST_DECODED, room):
        return max(1, most_queries)
    return 1 if sequences > 1 and room else 0


def _series_and_limits(
    parameters: Tensor, kind: int, heads: int, most_keys: int, tiles: Tiles
) -> tuple[Tensor, Tensor]:
    """Of the polynomials of the far field, see `bias.far_field`; tensors of no use where there is none."""
    if kind != GENERALIZED_GAUSSIAN:
        return parameters, parameters
    series = torch.empty((heads, 2, bias.SERIES.value), device=parameters.device)
    limits = torch.empty((heads, 2), dtype=torch.int64, device=parameters.device)
    bias.far_field[(1, heads)](
        series,  # in place of the table of distances, of which there are none
        series,
        limits,
        parameters,
        heads,
        0,
        0,
        most_keys + tiles.block_m,
        STEP=tiles.block_n,
        HALF_SPAN=(tiles.block_m + tiles.block_n) / 2,
    )
    return series, limits
