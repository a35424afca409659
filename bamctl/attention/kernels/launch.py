"""Launches the forward kernels: allocates what they write, and works out grids and constants.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size, P values of a prior for
each head, T blocks of queries, S distances between a block and a tile of keys.

Positions are relative to the first key: `offset` is that of the first query.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from bamctl.attention.kernels import bias, decode, reach
from bamctl.attention.kernels import (
    forward as forward_kernel,
)
from bamctl.attention.kernels.tiles import Tiles, architecture, tiles_for
from bamctl.attention.priors import GeneralizedGaussian, Laplace, Prior

UNIFORM, LAPLACE, GENERALIZED_GAUSSIAN = (
    int(x.value) for x in (bias.UNIFORM, bias.LAPLACE, bias.GENERALIZED_GAUSSIAN)
)


def prior_parameters(prior: Prior) -> tuple[int, Tensor | None]:
    """The kind of a prior, and its values ``[P, H]`` in fp32."""
    if isinstance(prior, GeneralizedGaussian):
        values = (prior.log_rate.float(), prior.beta.float(), prior.mu.float())
        return GENERALIZED_GAUSSIAN, torch.stack(values)
    if isinstance(prior, Laplace):
        return LAPLACE, prior.slopes.float()[None]
    return UNIFORM, None


BY_DEVICE = 0
"""In place of a number of splits: as many as the device wants."""

SPLIT_KEYS = 256
"""A split of fewer keys would cost more to combine than it gains."""


def choose_tiles(kernel: str, q_BHCD: Tensor, given: Sequence[int]) -> Tiles:
    """Those `given` as block_m, block_n, warps and stages, or the device's own where nothing is."""
    if given:
        block_m, block_n, warps, stages = given
        return Tiles(block_m=block_m, block_n=block_n, warps=warps, stages=stages)
    return tiles_for(kernel, q_BHCD.shape[-1], q_BHCD.element_size(), architecture(q_BHCD.device))


def needs_wide_offsets(tensors: Sequence[Tensor], rows: int) -> bool:
    """Whether an offset within `rows` consecutive rows ``[..., rows, D]`` may pass 2³¹ - 1 elements."""
    return any(
        (rows - 1) * abs(x.stride(-2)) + (x.shape[-1] - 1) * abs(x.stride(-1)) >= 2**31 for x in tensors
    )


def needs_wide_positions(offset: int, queries: int, keys: int, block: int) -> bool:
    """Whether a position relative to the first key, or the distance of two, may pass 2³¹ - 1."""
    return max(offset + queries, keys) + 2 * block >= 2**31


def shared_constants(q_BHCD: Tensor, kind: int, scales_prior: bool) -> dict[str, Any]:
    """Of every kernel of attention."""
    return {
        "KIND": kind,
        "SCALES_PRIOR": scales_prior,
        "FLOAT64": q_BHCD.dtype == torch.float32,
        "HEAD_SIZE": q_BHCD.shape[-1],
        "BLOCK_D": max(16, triton.next_power_of_2(q_BHCD.shape[-1])),
    }


@dataclass(frozen=True, kw_only=True)
class FarField:
    """What `bias.far_field` leaves for a kernel; tensors of no use where the prior has none."""

    far: Tensor
    series: Tensor
    limits: Tensor
    distances: int
    nearest: int


def make_far_field(
    q_BHCD: Tensor, keys: int, parameters_PH: Tensor | None, kind: int, offset: int, tiles: Tiles
) -> FarField:
    """What the kernels read of the far field under tiles of this form."""
    if kind != GENERALIZED_GAUSSIAN:
        return FarField(far=q_BHCD, series=q_BHCD, limits=q_BHCD, distances=0, nearest=0)
    heads, queries = q_BHCD.shape[1:3]
    step = min(tiles.block_m, tiles.block_n)
    last_tile = triton.cdiv(keys, tiles.block_n) - 1
    last_block = triton.cdiv(queries, tiles.block_m) - 1
    nearest = last_tile * (tiles.block_n // step)
    distances = nearest + last_block * (tiles.block_m // step) + 1
    device = q_BHCD.device
    field = FarField(
        far=torch.empty((heads, distances, bias.FAR.value), device=device),
        series=torch.empty((heads, 2, bias.SERIES.value), device=device),
        limits=torch.empty((heads, 2), device=device, dtype=torch.int64),
        distances=distances,
        nearest=nearest,
    )
    bias.far_field[(triton.cdiv(distances, bias.DISTANCES.value), heads)](
        field.far,
        field.series,
        field.limits,
        parameters_PH,
        heads,
        distances,
        last_tile * tiles.block_n + tiles.block_n // 2 - tiles.block_m // 2 - offset,
        offset + queries + keys,
        STEP=step,
        HALF_SPAN=(tiles.block_m + tiles.block_n) / 2,
    )
    return field


def choose_splits(device: torch.device, programs: int, keys: int) -> int:
    """As many as give every multiprocessor two programs, where unsplit there would be so many in all."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = math.ceil(2 * processors / programs)
    return max(1, min(wanted, keys // SPLIT_KEYS))


def forward(
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    content_H: Tensor | None,
    *,
    kind: int,
    scales_prior: bool,
    offset: int,
    tiles: Sequence[int],
    splits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp ``[B, H, C]`` in units of log2 e, the first keys ``[H, T]`` or ``[H, 0]``.

    Args:
        t_HC: SSMax's factor of each query.
        parameters_PH: log_rate, β and μ, or the slopes, fp32.
        content_H: no content score is larger; None looks at all keys.
        tiles: see `choose_tiles`.
        splits: more than 1 (or `BY_DEVICE`): parts of the keys, each computed by programs of its own, for up
            to `tiles.MOST_DECODED` queries.
    """
    batch, heads, queries, head_size = q_BHCD.shape
    groups, keys = k_BGND.shape[1:3]
    out_BHCD = torch.empty_like(q_BHCD)
    lse_BHC = q_BHCD.new_empty((batch, heads, queries), dtype=torch.float32)
    if splits == BY_DEVICE:
        splits = choose_splits(q_BHCD.device, batch * groups, keys)
    chosen = choose_tiles("forward" if splits == 1 else "decode", q_BHCD, tiles)
    constants = shared_constants(q_BHCD, kind, scales_prior) | {
        "SSMAX": t_HC is not None,
        "SKIPS": content_H is not None,
        "GROUP": heads // groups,
        "WIDE_POSITIONS": needs_wide_positions(offset, queries, keys, chosen.block_m),
        "WIDE_OFFSETS": needs_wide_offsets(
            (q_BHCD, k_BGND, v_BGND, out_BHCD), max(chosen.block_m, chosen.block_n)
        ),
    }
    # What a kernel does not use still wants a pointer.
    t = q_BHCD if t_HC is None else t_HC.contiguous()
    parameters = q_BHCD if parameters_PH is None else parameters_PH.contiguous()
    options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
    with torch.cuda.device_of(q_BHCD):
        blocks = triton.cdiv(queries, chosen.block_m)
        first_HT = q_BHCD.new_empty((heads, 0 if content_H is None else blocks), dtype=torch.int64)
        if content_H is not None:
            reach.first_keys[(triton.cdiv(blocks, reach.BLOCKS.value), heads)](
                first_HT,
                content_H.float(),
                t,
                parameters,
                heads,
                queries,
                offset,
                KIND=kind,
                SSMAX=t_HC is not None,
                SCALES_PRIOR=scales_prior,
                BLOCK_M=chosen.block_m,
            )
        if splits == 1:
            field = make_far_field(q_BHCD, keys, parameters_PH, kind, offset, chosen)
            forward_kernel.forward[(blocks * batch * heads,)](
                q_BHCD,
                k_BGND,
                v_BGND,
                out_BHCD,
                lse_BHC,
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
                heads,
                queries,
                keys,
                offset,
                field.distances,
                field.nearest,
                BLOCK_M=chosen.block_m,
                BLOCK_N=chosen.block_n,
                **constants,
                **options,
            )
        else:
            parts = q_BHCD.new_empty((batch, heads, queries, splits, head_size), dtype=torch.float32)
            part_lse = parts.new_empty((batch, heads, queries, splits))
            decode.decode[(splits * batch * groups,)](
                q_BHCD,
                k_BGND,
                v_BGND,
                parts,
                part_lse,
                t,
                parameters,
                first_HT,
                q_BHCD.stride(),
                k_BGND.stride(),
                v_BGND.stride(),
                heads,
                keys,
                offset,
                splits,
                QUERIES=queries,
                BLOCK_R=max(16, triton.next_power_of_2(queries * (heads // groups))),
                BLOCK_N=chosen.block_n,
                **constants,
                **options,
            )
            decode.combine[(batch * heads * queries,)](
                parts,
                part_lse,
                out_BHCD,
                lse_BHC,
                out_BHCD.stride(),
                heads,
                queries,
                splits,
                HEAD_SIZE=head_size,
                BLOCK_D=constants["BLOCK_D"],
                BLOCK_P=max(decode.PARTS.value, triton.next_power_of_2(splits)),
            )
    return out_BHCD, lse_BHC, first_HT
