"""Attention with the bias as it is: some queries over all keys from one on, or all before them.

Shapes: B batch, H heads, C queries of a chunk, N keys, D head size, L relative positions.

A bias that depends on j - i alone is a Toeplitz matrix, and one vector w over the relative positions holds
all of it. With the queries in reverse order, row y of the matrix is w shifted by y, so that
``as_strided(w, (C, N), (1, 1))`` *is* the matrix, causal -inf included, without a copy. Only a factor t_i
on the bias makes it necessary to write the products out, in tiles that stay in the cache.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bamctl.attention.cpu.call import Call
from bamctl.attention.cpu.partial import attend

TILE_BYTES = 4 * 2**20
"""The most that a written-out bias, or keys in another type, may take: what stays in the cache is fast."""


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


def add_keys_before(call: Call, heads: range, rows: range, first_key: int) -> None:
    """Adds the keys from `first_key` on that lie before all of some queries; no factor is on the bias."""
    w_HL = call.bias(heads, first_key - (rows.stop - 1), -1)
    bias_HCN = toeplitz_view(w_HL, len(rows))
    if w_HL.device.type != "cpu":
        bias_HCN = bias_HCN.contiguous()
    q_BHCD, stored, stop = call.queries(heads, rows), call.at(heads, rows), rows.start
    for first in _tile_starts(call, heads, len(rows), first_key, stop, last=stop - 1):
        tile_HCN = bias_HCN[..., first - first_key : stop - first_key]
        stored.merge_(attend(q_BHCD, *call.keys_and_values(heads, first, stop), tile_HCN[None]))
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


def is_ahead(queries: int, ahead: int, device: torch.device) -> Tensor:
    """Which of the `ahead` keys behind the first query lie ahead of each, ``[C, A]``, queries reversed."""
    x_C1 = torch.arange(queries - 1, -1, -1, device=device)[:, None]
    return torch.arange(1, ahead + 1, device=device) > x_C1


def toeplitz_view(w_HL: Tensor, rows: int) -> Tensor:
    """``[H, rows, L - rows + 1]`` over the memory of `w_HL`: row y is w shifted by y."""
    heads, offsets = w_HL.shape
    return w_HL.as_strided((heads, rows, offsets - rows + 1), (w_HL.stride(0), 1, 1))
