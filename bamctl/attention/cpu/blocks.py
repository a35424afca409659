"""Attention with the bias as it is: blocks of queries, each over as many keys, all in one call of the kernel.

Shapes: B batch, H heads, T blocks, C queries of a block, M keys of a block, N keys, D head size.

Blocks that lie equally far apart and look at the same keys, as seen from each, have one bias and are
overlapping views of the same memory: no key is copied, but where it changes its type. So many short blocks
take one call, not one each, and the diagonal is cut into

    windows        each block over some keys before it and its own
    triangles      each block over its own keys, then every second over the block before it, then of pairs
                   of blocks every second over the pair before it, and so on: hardly a key too many is looked
                   at, and blocks that grow are as fast as the kernel can be
"""

from torch import Tensor

from bamctl.attention.cpu.call import Call
from bamctl.attention.cpu.exact import TILE_BYTES, attend_from, causal_bias, is_masked_after, scaled_bias
from bamctl.attention.cpu.partial import Partial, attend

TRIANGLE_BLOCK = 256
"""Queries at once along the diagonal."""


def attend_windows(call: Call, head: int, starts: range, *, window: int, block: int) -> None:
    """Blocks of queries over the `window` keys before each and its own, for one head.

    Args:
        starts: position of each block's first query, at least `block` apart. Every query and every window
            lies among the keys.
    """
    _attend_blocks(call, range(head, head + 1), starts, block, keys=range(-window, block))


def attend_triangles(call: Call, heads: range, rows: range, size: int) -> None:
    """Queries over the keys from their chunk's first on, in chunks of `size`; no factor is on the bias.

    Args:
        heads: of one group, or as many as groups.
        rows: all of them lie among the keys.
        size: a power of two times `TRIANGLE_BLOCK`.
    """
    block = TRIANGLE_BLOCK
    whole = len(rows) // block * block
    _attend_blocks(call, heads, range(rows.start, rows.start + whole, block), block, keys=range(block))
    if whole < len(rows):
        attend_from(call, heads, range(rows.start + whole, rows.stop), rows.start + whole)
    while block < size:
        keys = range(-block, 0)
        whole = len(rows) // (2 * block) * 2 * block
        starts = range(rows.start + block, rows.start + whole, 2 * block)
        _attend_blocks(call, heads, starts, block, keys=keys, adds=True)
        rest = range(rows.start + whole + block, rows.stop)
        _attend_blocks(call, heads, rest[:1], len(rest), keys=keys, adds=True)
        block *= 2


def _attend_blocks(
    call: Call, heads: range, starts: range, block: int, *, keys: range, adds: bool = False
) -> None:
    """Blocks of queries over the same keys as seen from each, in one call, or a few in bounded memory.

    Args:
        heads: of one group, or as many as groups.
        starts: position of each block's first query, at least `block` apart.
        keys: counted from a block's first query; up to none of the block's own, or to all of them. All lie
            among the call's.
        adds: to what is stored of these queries already.
    """
    if not starts:
        return
    batch, size, work = call.q_BHQD.shape[0], call.q_BHQD.shape[-1], call.q_BHQD.dtype
    masked_after = is_masked_after(call.factor(heads, range(starts[0], starts[-1] + block)))
    bias_HCM = causal_bias(call, heads, block, keys, masked=not masked_after)
    values_a_block = len(heads) * block * (size if call.t_HQ is None else size + len(keys))
    if call.k_BGND.dtype != work:
        values_a_block += 2 * batch * len(heads) * starts.step * size
    at_once = max(1, TILE_BYTES // (values_a_block * work.itemsize))
    for part in (starts[index : index + at_once] for index in range(0, len(starts), at_once)):
        rows = range(part[0], part[-1] + block)
        k_BHND, v_BHND = call.keys_and_values(heads, part[0] + keys.start, part[-1] + keys.stop)
        q_BHQD, stored, t_HQ = call.queries(heads, rows), call.at(heads, rows), call.factor(heads, rows)
        bias_HTCM = bias_HCM[:, None].expand(-1, len(part), -1, -1)
        if t_HQ is not None:
            t_HTC = _blocks(t_HQ[..., None], part, block)[..., 0].flip(1)
            ahead = max(keys.stop - 1, 0) if masked_after else 0
            bias_HTCM = scaled_bias(bias_HTCM, t_HTC, ahead, out=call.scratch(*bias_HTCM.shape))
        elif bias_HCM.device.type != "cpu":  # kernels elsewhere want aligned rows, not shifted ones
            bias_HTCM = bias_HTCM.contiguous()
        for of_batch in range(batch):
            k_HTMD, v_HTMD = (_blocks(x[of_batch], part, len(keys)) for x in (k_BHND, v_BHND))
            # Blocks lie in reverse order, as queries do, and their keys do not.
            q_HTCD = _blocks(q_BHQD[of_batch], part, block).flip(1)
            seen = Partial(*(x.flip(1) for x in attend(q_HTCD, k_HTMD, v_HTMD, bias_HTCM)))
            here = Partial(
                _blocks(stored.out_BHCD[of_batch], part, block),
                _blocks(stored.lse_BHC[of_batch, ..., None], part, block)[..., 0],
            )
            if adds:
                here.merge_(seen)
            else:
                here.copy_(seen)


def _blocks(x_HND: Tensor, starts: range, width: int) -> Tensor:
    """``[H, T, M, D]``: `width` rows each, as far apart as `starts`, over the memory of `x_HND`."""
    heads, _, size = x_HND.shape
    of_head, of_row, of_element = x_HND.stride()
    return x_HND.as_strided(
        (heads, len(starts), width, size),
        (of_head, starts.step * of_row, of_row, of_element),
        x_HND.storage_offset(),
    )
