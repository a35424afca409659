"""Launches the backward kernels, with what `bamctl.attention.kernels.launch` left of the forward pass.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, P values of a prior for
each head, T blocks of queries, U tiles of keys.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from bamctl.attention.kernels import backward_keys, backward_queries, launch
from bamctl.attention.kernels.tiles import Tiles


def backward(
    d_out_BHCD: Tensor,
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    out_BHCD: Tensor,
    lse_BHC: Tensor,
    first_HT: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    *,
    kind: int,
    learns_prior: bool,
    learns_mu: bool,
    scales_prior: bool,
    offset: int,
    first_block: int,
    tiles: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, t ``[H, C]`` and the prior's values ``[P, H]``; the last two may be empty.

    Args:
        first_block: queries of a block of `first_HT`.
    """
    batch, heads, queries, _ = q_BHCD.shape
    groups, keys = k_BGND.shape[1:3]
    dq, dk, dv = torch.empty_like(q_BHCD), torch.empty_like(k_BGND), torch.empty_like(v_BGND)
    of_queries = launch.choose_tiles("backward_queries", q_BHCD, tiles)
    of_keys = launch.choose_tiles("backward_keys", q_BHCD, tiles)
    skips = first_HT.shape[1] > 0
    # A block of queries of this pass lies within one of the forward pass.
    if first_block % of_queries.block_m and queries > of_queries.block_m:
        raise ValueError(f"blocks of {of_queries.block_m} queries do not divide those of {first_block}")
    delta = torch.empty_like(lse_BHC)
    d_t = torch.empty_like(lse_BHC) if t_HC is not None else lse_BHC.new_empty(0)
    blocks = triton.cdiv(queries, of_queries.block_m)
    parts = lse_BHC.new_empty(
        (len(parameters_PH), batch, heads, blocks) if learns_prior and parameters_PH is not None else 0
    )
    block = max(of_queries.block_m, of_queries.block_n, of_keys.block_m, of_keys.block_n)
    constants = launch.shared_constants(q_BHCD, kind, scales_prior) | {
        "SSMAX": t_HC is not None,
        "SKIPS": skips,
        "GROUP": heads // groups,
        "WIDE_POSITIONS": launch.needs_wide_positions(offset, queries, keys, block),
        "WIDE_OFFSETS": launch.needs_wide_offsets(
            (q_BHCD, k_BGND, v_BGND, out_BHCD, d_out_BHCD, dq, dk, dv), block
        ),
    }
    t = q_BHCD if t_HC is None else t_HC.contiguous()
    parameters = q_BHCD if parameters_PH is None else parameters_PH.contiguous()
    with torch.cuda.device_of(q_BHCD):
        field = launch.make_far_field(q_BHCD, keys, parameters_PH, kind, offset, of_queries)
        backward_queries.backward_queries[(blocks * batch * heads,)](
            q_BHCD,
            k_BGND,
            v_BGND,
            out_BHCD,
            d_out_BHCD,
            lse_BHC,
            delta,
            dq,
            d_t,
            parts,
            t,
            parameters,
            first_HT,
            field.far,
            field.series,
            field.limits,
            q_BHCD.stride(),
            k_BGND.stride(),
            v_BGND.stride(),
            out_BHCD.stride(),
            d_out_BHCD.stride(),
            dq.stride(),
            heads,
            queries,
            keys,
            offset,
            field.distances,
            field.nearest,
            first_HT.shape[1],
            LEARNS_PRIOR=learns_prior,
            LEARNS_MU=learns_mu,
            BLOCK_M=of_queries.block_m,
            BLOCK_N=of_queries.block_n,
            FIRST_BLOCK=first_block,
            num_warps=of_queries.warps,
            num_stages=of_queries.stages,
            **constants,
        )
        key_tiles = triton.cdiv(keys, of_keys.block_n)
        if (of_keys.block_m, of_keys.block_n) != (of_queries.block_m, of_queries.block_n):
            field = launch.make_far_field(q_BHCD, keys, parameters_PH, kind, offset, of_keys)
        last_HU = last_blocks(first_HT, first_block, of_keys, queries, key_tiles) if skips else first_HT
        backward_keys.backward_keys[(key_tiles * batch * groups,)](
            q_BHCD,
            k_BGND,
            v_BGND,
            d_out_BHCD,
            lse_BHC,
            delta,
            dk,
            dv,
            t,
            parameters,
            last_HU,
            field.far,
            field.series,
            field.limits,
            q_BHCD.stride(),
            k_BGND.stride(),
            v_BGND.stride(),
            d_out_BHCD.stride(),
            dk.stride(),
            dv.stride(),
            heads,
            queries,
            keys,
            offset,
            field.distances,
            field.nearest,
            BLOCK_M=of_keys.block_m,
            BLOCK_N=of_keys.block_n,
            num_warps=of_keys.warps,
            num_stages=of_keys.stages,
            **constants,
        )
    return dq, dk, dv, d_t.sum(0) if t_HC is not None else d_t, parts.sum((1, 3)) if learns_prior else parts


def last_blocks(first_HT: Tensor, first_block: int, tiles: Tiles, queries: int, key_tiles: int) -> Tensor:
    """For each tile of keys, the end of the blocks of queries that look at it ``[H, U]``, int32.

    The first keys need not rise from block to block; a block counts as looking at all that a later one does.
    """
    rising_HT = first_HT.flip(1).cummin(1).values.flip(1)
    ends_U = torch.arange(1, key_tiles + 1, device=first_HT.device) * tiles.block_n
    looking_HU = torch.searchsorted(rising_HT, ends_U.expand(len(first_HT), -1).contiguous())
    rows_HU = looking_HU * first_block
    blocks = triton.cdiv(queries, tiles.block_m)
    return ((rows_HU + tiles.block_m - 1) // tiles.block_m).clamp(max=blocks).int()
