"""Attention under a prior on the CPU, in bounded memory, doing what the prior leaves to do.

Shapes: B batch, H query heads, G key-value heads, Q queries, N keys, D head size, T tiles.

Queries are taken in tiles. What a tile of a head has to look at, `bamctl.attention.reach` says; then

    no prior       the fused kernel's own causal mask (`uniform`)
    a window       no farther back than some thousand keys: exact, all blocks at once (`blocks`)
    all of it      the bias is a Toeplitz matrix, and a view of one vector (`exact`, `blocks`)
    near and far   SSMax multiplies the bias: exact near by, an interpolation beyond (`far_field`)

No N × N matrix is ever made, and of a chunk × N bias no more than a tile, where nothing else would do.
"""

import itertools
import math

import torch
from torch import Tensor

from bamctl.attention.cpu import differentiable
from bamctl.attention.cpu.blocks import attend_triangles, attend_windows
from bamctl.attention.cpu.call import Call, split
from bamctl.attention.cpu.exact import add_keys_before, attend_from
from bamctl.attention.cpu.far_field import add_far_field
from bamctl.attention.cpu.interpolation import CHUNK, choose_interpolation
from bamctl.attention.cpu.partial import Partial
from bamctl.attention.cpu.uniform import attend_all
from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.reach import content_bound, first_keys
from bamctl.attention.ssmax import ssmax_factor

TILE = 512
"""Queries that look equally far back."""

LONGEST_WINDOW = 4096
"""A tile that the prior lets look back no farther is computed in windows."""

LONGEST_BLOCK = 256
"""The most queries that share a window."""

LONGEST_PAST = 1024
"""A tile that looks at all there is, and finds no more before it, has no far field under a factor."""

SEARCH_WORTH = 2**25
"""Multiplications below which all keys are looked at: finding out which matter would take longer."""

LONGEST_CHUNK = 2048
"""Of queries that look back equally far: few calls, and the fused kernel is fastest from 768 on."""

SKIPPING_CHUNK = 1024
"""Of queries that do not: each looks as far back as the farthest-looking of its chunk."""

NEAR_BLOCK = 256
"""Queries at once near the diagonal, before a far field."""

FEW_QUERIES = 64
"""So few that all at once are done before a far field is prepared, or a triangle cut up."""


def attention(
    q_BHQD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    *,
    prior: Prior,
    query_start: int,
    key_start: int = 0,
    ssmax_scale_H: Tensor | None = None,
    ssmax_scales_prior: bool = True,
    longest_key_G: Tensor | None = None,
) -> Tensor:
    """`bamctl.attention.reference.attention`, differentiable in everything that is learned.

    Memory beyond inputs and output is bounded but for a vector of H · (N + Q) values for heads that look
    back all the way. With gradients see `bamctl.attention.cpu.differentiable`.
    """
    learned = (q_BHQD, k_BGND, v_BGND, ssmax_scale_H, *prior.parameters())
    if torch.is_grad_enabled() and any(x.requires_grad for x in learned if x is not None):
        return differentiable.attention(
            q_BHQD,
            k_BGND,
            v_BGND,
            prior=prior,
            query_start=query_start,
            key_start=key_start,
            ssmax_scale_H=ssmax_scale_H,
            ssmax_scales_prior=ssmax_scales_prior,
        )
    # The fused kernel takes it for granted that the last dimension is dense.
    q_BHQD, k_BGND, v_BGND = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHQD, k_BGND, v_BGND))
    work = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
    t_HQ = None
    factor: float | Tensor = 1 / math.sqrt(q_BHQD.shape[-1])
    if ssmax_scale_H is not None:
        positions_Q = torch.arange(query_start, query_start + q_BHQD.shape[2], device=q_BHQD.device)
        t_HQ = ssmax_factor(ssmax_scale_H.to(work), positions_Q)
        factor = t_HQ[..., None] * factor
    ends_alike = key_start + k_BGND.shape[2] == query_start + q_BHQD.shape[2]
    if isinstance(prior, Uniform) and ends_alike and key_start <= query_start and q_BHQD.device.type == "cpu":
        return attend_all(q_BHQD.to(work) * factor, k_BGND, v_BGND).to(q_BHQD.dtype)
    # The copy that turns them round is scaled in place.
    scaled_q_BHQD = q_BHQD.flip(2).to(work)
    scaled_q_BHQD *= factor.flip(1) if isinstance(factor, Tensor) else factor
    bias_is_scaled = ssmax_scales_prior and not isinstance(prior, Uniform)
    call = Call(
        q_BHQD=scaled_q_BHQD,
        k_BGND=k_BGND,
        v_BGND=v_BGND,
        prior=prior,
        t_HQ=None if t_HQ is None or not bias_is_scaled else t_HQ.flip(1),
        query_start=query_start,
        key_start=key_start,
        result=Partial(torch.empty_like(scaled_q_BHQD), scaled_q_BHQD.new_empty(scaled_q_BHQD.shape[:3])),
    )
    tiles = split(range(query_start, call.query_stop), TILE)
    firsts_HT = _first_keys(call, tiles, q_BHQD, ssmax_scale_H, ssmax_scales_prior, longest_key_G)
    for heads, is_near_T in _runs(call, tiles, firsts_HT):
        for is_window, group in itertools.groupby(range(len(tiles)), key=is_near_T.__getitem__):
            members = list(group)
            rows = range(tiles[members[0]].start, tiles[members[-1]].stop)
            firsts = [[firsts_HT[h][i] for i in members] for h in heads]
            if is_window:
                _attend_near(call, heads, rows, firsts)
            else:
                _attend_far(call, heads, rows, [min(of_tile) for of_tile in zip(*firsts, strict=True)])
    # Turned round into the memory of the queries: fresh pages would cost more than what is written.
    order_Q = torch.arange(q_BHQD.shape[2] - 1, -1, -1, device=q_BHQD.device)
    torch.index_select(call.result.out_BHCD, 2, order_Q, out=scaled_q_BHQD)
    return scaled_q_BHQD.to(q_BHQD.dtype)


def _first_keys(
    call: Call,
    tiles: list[range],
    q_BHQD: Tensor,
    scale_H: Tensor | None,
    scales_prior: bool,
    longest_key_G: Tensor | None,
) -> list[list[int]]:
    """For each head and tile, the first key to look at."""
    multiplications = q_BHQD[..., 0].numel() * call.k_BGND.shape[2] * q_BHQD.shape[-1]
    if isinstance(call.prior, Uniform) or call.query_stop > call.key_stop or multiplications < SEARCH_WORTH:
        return [[call.key_start] * len(tiles)] * call.heads
    found_HT: list[list[int]] = first_keys(
        call.prior,
        content_H=content_bound(q_BHQD, call.k_BGND, longest_key_G),
        positions_T=torch.tensor([tile.start for tile in tiles], device=q_BHQD.device),
        queries=len(tiles[0]),
        key_start=call.key_start,
        scale_H=scale_H,
        scales_prior=scales_prior,
        dtype=call.q_BHQD.dtype,
    ).tolist()
    return found_HT


def _runs(call: Call, tiles: list[range], firsts_HT: list[list[int]]) -> list[tuple[range, list[bool]]]:
    """Neighbouring heads of one group whose tiles are near and far alike, and which of them are near."""

    def key(head: int) -> tuple[int, list[bool]]:
        near_T = [_is_near(call, tile, first) for tile, first in zip(tiles, firsts_HT[head], strict=True)]
        return (head // call.heads_a_group if call.heads_a_group > 1 else 0), near_T

    runs = []
    for (_, near_T), members in itertools.groupby(range(call.heads), key=key):
        heads = list(members)
        runs.append((range(heads[0], heads[-1] + 1), near_T))
    return runs


def _is_near(call: Call, tile: range, first_key: int) -> bool:
    """Whether a tile looks back so little that nothing it sees is far, whatever its prior."""
    back = tile.start - first_key
    if first_key > call.key_start:
        return back <= LONGEST_WINDOW
    return back <= LONGEST_PAST and call.t_HQ is not None


def _attend_near(call: Call, heads: range, rows: range, firsts_HT: list[list[int]]) -> None:
    """Tiles that look back no farther than a window."""
    starts = [tile.start for tile in split(rows, TILE)]
    windows = [
        max(start - first for start, first in zip(starts, firsts_T, strict=True)) for firsts_T in firsts_HT
    ]
    blocks = [_block(window) for window in windows]
    # In front are tiles that look at all there is, from each of their queries; behind, less than a block.
    # The window is that of the farthest-looking tile, and may reach past the first key from an earlier one.
    in_front = [
        call.key_start in of_tile or start - max(windows) < call.key_start
        for start, of_tile in zip(starts, zip(*firsts_HT, strict=True), strict=True)
    ]
    tiles_in_front = 1 + max((i for i, is_in_front in enumerate(in_front) if is_in_front), default=-1)
    front = min(rows.start + tiles_in_front * TILE, rows.stop)
    whole = (rows.stop - front) // max(blocks) * max(blocks)
    for part in (range(rows.start, front), range(front + whole, rows.stop)):
        for tile in split(part, TILE):
            first = min(firsts_T[(tile.start - rows.start) // TILE] for firsts_T in firsts_HT)
            for block_ in split(tile, NEAR_BLOCK if call.t_HQ is not None else TILE):
                attend_from(call, heads, block_, first)
    for head, window, block in zip(heads, windows, blocks, strict=True):
        if whole:
            attend_windows(call, head, range(front, front + whole, block), window=window, block=block)


def _block(window: int) -> int:
    """A block as long as its window wastes half of the work ahead of the diagonal, a short one is slow."""
    return min(LONGEST_BLOCK, max(32, 1 << (window // 4).bit_length()))


def _attend_far(call: Call, heads: range, rows: range, firsts_T: list[int]) -> None:
    """Tiles that look back farther than a window."""

    def first_of(part: range) -> int:
        tiles = slice((part.start - rows.start) // TILE, (part.stop - 1 - rows.start) // TILE + 1)
        return min(firsts_T[tiles])

    t_HC = call.factor(heads, rows)
    is_long = len(rows) > FEW_QUERIES and rows.stop <= call.key_stop
    if t_HC is None and is_long:
        size = LONGEST_CHUNK if len(set(firsts_T)) == 1 else SKIPPING_CHUNK
        attend_triangles(call, heads, rows, size)
        for chunk in split(rows, size):
            if first_of(chunk) < chunk.start:
                add_keys_before(call, heads, chunk, first_of(chunk))
        return
    law = call.prior.power_law()
    interpolation = None
    if t_HC is not None and law is not None and is_long:
        interpolation = choose_interpolation(
            law,
            heads,
            t_HC,
            seen=rows.start - call.key_start,
            keys=(rows.start + rows.stop) // 2 - min(firsts_T),
            dtype=call.q_BHQD.dtype,
        )
    front = rows.start  # of what has a far field
    while front < rows.stop and (interpolation is None or front - interpolation.near < call.key_start):
        front = min(front + TILE, rows.stop)
    if interpolation is not None and front - firsts_T[0] <= 2 * interpolation.near:
        # Few keys are far there yet, and chunks are fastest whole.
        front += (rows.stop - front) % CHUNK
    for block in split(range(rows.start, front), NEAR_BLOCK if interpolation else TILE):
        attend_from(call, heads, block, first_of(block))
    if front == rows.stop:
        return
    assert law is not None
    assert interpolation is not None
    far = range(front, rows.stop)
    chunks = split(far, CHUNK)
    for chunk in chunks:
        for block in split(chunk, NEAR_BLOCK):
            attend_from(call, heads, block, chunk.start - interpolation.near)
    add_far_field(call, heads, far, [first_of(chunk) for chunk in chunks], interpolation, law)
