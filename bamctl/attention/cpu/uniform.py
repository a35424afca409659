"""Attention under no prior: the fused kernel knows the causal mask, and what lies before it needs none.

Shapes: B batch, H query heads, G key-value heads, Q queries, N keys, D head size.
"""

import torch
from torch import Tensor

from bamctl.attention.cpu.call import split
from bamctl.attention.cpu.partial import attend, attend_causal

TILE_BYTES = 4 * 2**20
"""The most that keys and values in another type than the queries' may take."""


def attend_all(q_BHQD: Tensor, k_BGND: Tensor, v_BGND: Tensor) -> Tensor:
    """Each query over all keys up to its own, the last one's being the last key: ``[B, H, Q, D]``.

    Args:
        q_BHQD: the first query first, with all factors, 1/√D included, in the type of the arithmetic.
        k_BGND, v_BGND: N ≥ Q of them.
    """
    batch, heads, queries, size = q_BHQD.shape
    groups, before = k_BGND.shape[1], k_BGND.shape[2] - queries
    tile = max(before, 1)
    if k_BGND.dtype != q_BHQD.dtype:
        tile = max(1, TILE_BYTES // (2 * batch * groups * size * q_BHQD.itemsize))
    out_BHQD = torch.empty_like(q_BHQD)
    # Heads that share keys take them as a view, group by group.
    count = groups if heads > groups else 1
    for q, k, v, out in zip(
        *(x.chunk(count, dim=1) for x in (q_BHQD, k_BGND, v_BGND, out_BHQD)), strict=True
    ):

        def of(keys: slice, k: Tensor = k, v: Tensor = v, heads: int = q.shape[1]) -> list[Tensor]:
            return [x[:, :, keys].to(q_BHQD.dtype).expand(-1, heads, -1, -1) for x in (k, v)]

        seen = attend_causal(q, *of(slice(before, None)))
        for keys in split(range(before), tile):
            seen.merge_(attend(q, *of(slice(keys.start, keys.stop))))
        out.copy_(seen.out_BHCD)
    return out_BHQD
