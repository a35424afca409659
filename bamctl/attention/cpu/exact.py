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
    _attend(call, heads, rows, range(first_key, min(call.key_stop, rows.stop)), adds=False)


def add_keys_before(call: Call, heads: range, rows: range, first_key: int) -> None:
    """Adds the keys from `first_key` on that lie before all of some queries to what is stored of these."""
    _attend(call, heads, rows, range(first_key, rows.start), adds=True)


def _attend(call: Call, heads: range, rows: range, keys: range, *, adds: bool) -> None:
    """A chunk of queries over some keys, of which the first query sees one at least."""
    chunk, stop = len(rows), keys.stop
    q_BHCD, t_HC = call.queries(heads, rows), call.factor(heads, rows)
    masked_after = is_masked_after(t_HC)
    relative = range(keys.start - rows.start, keys.stop - rows.start)
    bias_HCN = causal_bias(call, heads, chunk, relative, masked=not masked_after)
    stored = call.at(heads, rows)
    for first in _tile_starts(call, heads, chunk, keys, last=min(rows.start, stop - 1)):
        is_last_tile = stop == keys.stop
        tile_HCN = bias_HCN[..., first - keys.start : stop - keys.start]
        if t_HC is not None:
            ahead = max(relative.stop - 1, 0) if is_last_tile and masked_after else 0
            tile_HCN = scaled_bias(tile_HCN, t_HC, ahead, out=call.scratch(*tile_HCN.shape))
        elif tile_HCN.device.type != "cpu":  # kernels elsewhere want aligned rows, not shifted ones
            tile_HCN = tile_HCN.contiguous()
        seen = attend(q_BHCD, *call.keys_and_values(heads, first, stop), tile_HCN[None])
        if is_last_tile and not adds:
            stored.copy_(seen)
        else:
            stored.merge_(seen)
        stop = first


def _tile_starts(call: Call, heads: range, chunk: int, keys: range, *, last: int) -> list[int]:
    """Where tiles of keys begin, the last tile first: that one at `last` or before, so that all see a key."""
    work, size = call.q_BHQD.dtype, call.q_BHQD.shape[-1]
    bytes_a_key = 0 if call.t_HQ is None else len(heads) * chunk * work.itemsize
    if call.k_BGND.dtype != work:
        bytes_a_key += 2 * call.q_BHQD.shape[0] * len(heads) * size * work.itemsize
    tile = max(1, TILE_BYTES // bytes_a_key) if bytes_a_key else len(keys)
    starts = [max(keys.start, min(last, keys.stop - tile))]
    while starts[-1] > keys.start:
        starts.append(max(keys.start, starts[-1] - tile))
    return starts


def causal_bias(call: Call, heads: range, queries: int, keys: range, *, masked: bool) -> Tensor:
    """The bias ``[H, C, N]`` of queries, in reverse order, and keys as a view of one vector.

    Args:
        keys: counted from the first query.
        masked: -inf, and not 0, for keys ahead of a query.
    """
    w_HL = call.bias(heads, keys.start - (queries - 1), min(keys.stop - 1, 0))
    ahead = max(keys.stop - 1, 0)  # keys that the first query does not see
    return toeplitz_view(F.pad(w_HL, (0, ahead), value=-math.inf if masked else 0.0), queries)


def is_masked_after(t_HC: Tensor | None) -> bool:
    """Whether a factor would spoil the mask: 0 · -inf is no number, and a negative one turns it round."""
    return t_HC is not None and not bool((t_HC > 0).all())


def scaled_bias(bias_HCN: Tensor, t_HC: Tensor, ahead: int, *, out: Tensor) -> Tensor:
    """t_i · b_ij in rows, with what each query does not see of the last `ahead` keys masked."""
    # Into rows: what multiplying a view of equal strides gives by itself need not lie in rows.
    torch.mul(bias_HCN, t_HC[..., None], out=out)
    if ahead:
        behind_C1 = torch.arange(out.shape[-2] - 1, -1, -1, device=out.device)[:, None]
        is_ahead_CA = torch.arange(1, ahead + 1, device=out.device) > behind_C1
        out[..., -ahead:].masked_fill_(is_ahead_CA, -math.inf)
    return out


def toeplitz_view(w_HL: Tensor, rows: int) -> Tensor:
    """``[H, rows, L - rows + 1]`` over the memory of `w_HL`: row y is w shifted by y."""
    heads, offsets = w_HL.shape
    return w_HL.as_strided((heads, rows, offsets - rows + 1), (w_HL.stride(0), 1, 1))
