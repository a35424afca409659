"""Attention with the bias as it is: over all keys from one on, or over a window before each block.

Shapes: B batch, H heads, C queries of a chunk or block, N keys, M keys of a block's window, T blocks, D head
size, L relative positions.

A bias that depends on j - i alone is a Toeplitz matrix, and one vector w over the relative positions holds
all of it. With the queries in reverse order, row y of the matrix is w shifted by y, so that
``as_strided(w, (C, N), (1, 1))`` *is* the matrix, causal -inf included, without a copy. Only a factor t_i
on the bias makes it necessary to write the products out, in tiles that stay in the cache.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bamctl.attention.cpu.call import Call, split
from bamctl.attention.cpu.partial import attend

TILE_BYTES = 4 * 2**20
"""The most that a written-out bias, or keys in another type, may take: what stays in the cache is fast."""


TRIANGLE_BLOCK = 256
"""Queries at once along the diagonal."""


def attend_from(call: Call, heads: range, rows: range, first_key: int) -> None:
    """A chunk of queries over every key from `first_key` on that they see."""
    chunk, stop = len(rows), min(call.key_stop, rows.stop)
    ahead = max(stop - 1 - rows.start, 0)  # keys that the first query does not see
    w_HL = call.bias(heads, first_key - (rows.stop - 1), min(stop - 1 - rows.start, 0))
    q_BHCD, t_HC = call.queries(heads, rows), call.factor(heads, rows)
    # 0 · -inf is no number, and a negative factor turns it round: then masked after the factor.
    masked_after = t_HC is not None and not bool((t_HC > 0).all())
    bias_HCN = toeplitz_view(F.pad(w_HL, (0, ahead), value=0.0 if masked_after else -math.inf), chunk)

    stored = call.at(heads, rows)
    for first in _tile_starts(call, heads, chunk, first_key, stop, last=min(rows.start, stop - 1)):
        is_last_tile = stop == min(call.key_stop, rows.stop)
        tile_HCN = bias_HCN[..., first - first_key : stop - first_key]
        if t_HC is not None:
            # Into rows: what multiplying a view of equal strides gives by itself need not lie in rows.
            tile_HCN = torch.mul(tile_HCN, t_HC[..., None], out=call.scratch(*tile_HCN.shape))
            if is_last_tile and ahead and masked_after:
                tile_HCN[..., -ahead:].masked_fill_(is_ahead(chunk, ahead, w_HL.device), -math.inf)
        elif w_HL.device.type != "cpu":  # kernels elsewhere want aligned rows, not shifted ones
            tile_HCN = tile_HCN.contiguous()
        seen = attend(q_BHCD, *call.keys_and_values(heads, first, stop), tile_HCN[None])
        if is_last_tile:
            call.put(heads, rows, seen)
        else:
            stored.merge_(seen)
        stop = first


def attend_chunk(call: Call, heads: range, rows: range, first_key: int) -> None:
    """A long chunk of queries over every key from `first_key` on, where no factor is on the bias.

    What lies before the chunk is one rectangle without a mask; the triangle behind it is cut into blocks,
    so that little is computed ahead of the diagonal.
    """
    edge = max(first_key, min(rows.start, call.key_stop))
    for block in split(rows, TRIANGLE_BLOCK):
        attend_from(call, heads, block, edge if edge < call.key_stop else first_key)
    if first_key < edge < call.key_stop:
        w_HL = call.bias(heads, first_key - (rows.stop - 1), edge - 1 - rows.start)
        bias_HCN = toeplitz_view(w_HL, len(rows))
        if w_HL.device.type != "cpu":
            bias_HCN = bias_HCN.contiguous()
        q_BHCD, stop = call.queries(heads, rows), edge
        for first in _tile_starts(call, heads, len(rows), first_key, edge, last=edge - 1):
            tile_HCN = bias_HCN[..., first - first_key : stop - first_key]
            seen = attend(q_BHCD, *call.keys_and_values(heads, first, stop), tile_HCN[None])
            call.at(heads, rows).merge_(seen)
            stop = first


def _tile_starts(call: Call, heads: range, chunk: int, first_key: int, stop: int, *, last: int) -> list[int]:
    """Where tiles of keys begin, the last tile first: that one at `last` or before, so that all see a key."""
    work, size = call.q_BHQD.dtype, call.q_BHQD.shape[-1]
    bytes_a_key = 0 if call.t_HQ is None else len(heads) * chunk * work.itemsize
    if call.k_BGND.dtype != work:
        bytes_a_key += 2 * call.q_BHQD.shape[0] * len(heads) * size * work.itemsize
    tile = max(1, TILE_BYTES // bytes_a_key) if bytes_a_key else stop - first_key
    starts = [max(first_key, min(last, stop - tile))]
    while starts[-1] > first_key:
        starts.append(max(first_key, starts[-1] - tile))
    return starts


def attend_windows(call: Call, head: int, starts: range, *, window: int, block: int) -> None:
    """Blocks of queries over the `window` keys before each and its own, for one head.

    All blocks run in one call, over overlapping views of the keys: nothing is copied but a half type.

    Args:
        starts: position of each block's first query, at least `block` apart. Every query and every window
            lies among the keys.
    """
    heads = range(head, head + 1)
    batch, size = call.q_BHQD.shape[0], call.q_BHQD.shape[-1]
    width = window + block
    w_1L = F.pad(call.bias(heads, 1 - width, 0), (0, block - 1), value=-math.inf)
    bias_CM = toeplitz_view(w_1L, block)[0]
    bytes_a_block = 0 if call.t_HQ is None else block * width * w_1L.itemsize
    if call.k_BGND.dtype != w_1L.dtype:
        bytes_a_block += 2 * batch * starts.step * size * w_1L.itemsize
    at_once = min(len(starts), max(1, TILE_BYTES // bytes_a_block)) if bytes_a_block else len(starts)
    for index in range(0, len(starts), at_once):
        part = starts[index : index + at_once]
        k_BND, v_BND = (x[:, 0] for x in call.keys_and_values(heads, part[0] - window, part[-1] + block))
        k_BTMD, v_BTMD = (_windows(x, len(part), starts.step, width) for x in (k_BND, v_BND))
        rows = range(part[0], part[-1] + block)
        # Blocks lie in reverse order, as queries do, and windows do not.
        q_BTCD = _windows(call.queries(heads, rows)[:, 0], len(part), starts.step, block).flip(1)
        bias_TCM = bias_CM.expand(len(part), -1, -1)
        t_HC = call.factor(heads, rows)
        if t_HC is not None:
            t_TC = _windows(t_HC[..., None], len(part), starts.step, block)[0, ..., 0].flip(0)
            bias_TCM = _scaled_windows(bias_CM, t_TC, call.scratch(len(part), block, width))
        elif w_1L.device.type != "cpu":
            bias_TCM = bias_TCM.contiguous()
        seen = attend(q_BTCD, k_BTMD, v_BTMD, bias_TCM[None])
        stored = call.at(heads, rows)
        _windows(stored.out_BHCD[:, 0], len(part), starts.step, block).copy_(seen.out_BHCD.flip(1))
        lse_BC1 = stored.lse_BHC[:, 0, :, None]
        _windows(lse_BC1, len(part), starts.step, block)[..., 0].copy_(seen.lse_BHC.flip(1))


def _windows(x_BND: Tensor, count: int, step: int, width: int) -> Tensor:
    """``[B, T, M, D]``: `width` rows each, beginning `step` rows apart, over the memory of `x_BND`."""
    batch, _, size = x_BND.shape
    of_batch, of_row, of_element = x_BND.stride()
    return x_BND.as_strided(
        (batch, count, width, size), (of_batch, step * of_row, of_row, of_element), x_BND.storage_offset()
    )


def _scaled_windows(bias_CM: Tensor, t_TC: Tensor, out_TCM: Tensor) -> Tensor:
    """The bias of every block, multiplied and masked, into memory that is at hand."""
    if bool((t_TC > 0).all()):
        return torch.mul(bias_CM, t_TC[..., None], out=out_TCM)
    # 0 · -inf is no number, and a negative factor turns it round: masked after the factor.
    torch.mul(bias_CM.nan_to_num(neginf=0.0), t_TC[..., None], out=out_TCM)
    block = len(bias_CM)
    if block > 1:
        out_TCM[..., 1 - block :].masked_fill_(is_ahead(block, block - 1, bias_CM.device), -math.inf)
    return out_TCM


def is_ahead(queries: int, ahead: int, device: torch.device) -> Tensor:
    """Which of the `ahead` keys behind the first query lie ahead of each, ``[C, A]``, queries reversed."""
    x_C1 = torch.arange(queries - 1, -1, -1, device=device)[:, None]
    return torch.arange(1, ahead + 1, device=device) > x_C1


def toeplitz_view(w_HL: Tensor, rows: int) -> Tensor:
    """``[H, rows, L - rows + 1]`` over the memory of `w_HL`: row y is w shifted by y."""
    heads, offsets = w_HL.shape
    return w_HL.as_strided((heads, rows, offsets - rows + 1), (w_HL.stride(0), 1, 1))
