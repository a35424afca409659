"""The far field of a head whose bias SSMax multiplies: a view of one vector, and at times a few columns more.

Shapes: B batch, H heads, C queries of a chunk, N keys of a tile, D head size, E = D + M columns, L relative
positions, M terms.

t_i · b_ij is no Toeplitz matrix, and writing it out costs as much as a quarter of attention. But t_i hardly
changes within a chunk of queries. With a value t_c in the middle,

    t_i · b_ij = t_c · b_ij + (t_i - t_c) · b_ij

where the first is a Toeplitz matrix, exact and without a copy (see `bamctl.attention.cpu.exact`), and the
second is small: |t_i - t_c| ≤ |s| / 2 · ln(1 + C / a) in a chunk that begins at a. Where it is the same for
all keys of a tile, to half a unit of precision, it changes no softmax and is left out. Elsewhere b hardly
bends within a chunk, and M terms separate it into queries and keys (`bamctl.attention.cpu.interpolation` has
the error): M more columns of q, times t_i - t_c, and of k, and the fused kernel does the rest.

A constant of each row changes no softmax: the largest b of a tile is taken off all of them, so that
a bias of thousands, the same for all keys, does not cost the content its digits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bamctl.attention.cpu.call import Call, split
from bamctl.attention.cpu.exact import toeplitz_view
from bamctl.attention.cpu.interpolation import (
    CHUNK,
    Interpolation,
    key_columns,
    middle_factor,
    query_columns,
)
from bamctl.attention.cpu.partial import Partial, attend
from bamctl.attention.priors import PowerLaw

TILE_BYTES = 4 * 2**20
"""The most that the keys of a tile may take: chunk after chunk reads them, from the cache."""


def add_far_field(
    call: Call, heads: range, rows: range, firsts: list[int], interpolation: Interpolation, law: PowerLaw
) -> None:
    """Adds the far field to what is stored of `rows`.

    Args:
        heads: of one group, or as many as groups.
        firsts: for each chunk of `CHUNK` rows, the first key that it has to look at.
    """
    batch, size, work = call.q_BHQD.shape[0], call.q_BHQD.shape[-1], call.q_BHQD.dtype
    chunks = [
        _Chunk(call, heads, part, keys=range(first, part.start - interpolation.near))
        for part, first in zip(split(rows, CHUNK), firsts, strict=True)
    ]
    bytes_a_key = batch * len(heads) * (size + interpolation.terms) * work.itemsize
    tile_keys = max(CHUNK, TILE_BYTES // bytes_a_key)
    for tile in split(range(min(firsts), chunks[-1].keys.stop), tile_keys):
        k_BHND, v_BHND = call.keys_and_values(heads, tile.start, tile.stop)
        widened: _WideTile | None = None
        for chunk in chunks:
            keys = range(max(tile.start, chunk.keys.start), min(tile.stop, chunk.keys.stop))
            if not keys:
                continue
            here = slice(keys.start - tile.start, keys.stop - tile.start)
            bias_HL = call.bias(heads, keys.start - (chunk.rows.stop - 1), keys.stop - 1 - chunk.rows.start)
            lowest_H1, level_H1 = (x[:, None] for x in bias_HL.aminmax(dim=1))
            rest_HC = chunk.t_HC - chunk.middle_H1
            is_flat = chunk.uneven_H1 * (level_H1 - lowest_H1) <= torch.finfo(work).eps
            if interpolation.terms == 0 or bool(is_flat.all()):
                # Give or take half a unit, (t_i - t_c) · b is half way between its ends for all keys.
                q, k, v = chunk.q_BHCD, k_BHND[:, :, here], v_BHND[:, :, here]
                level_HC = chunk.middle_H1 * level_H1 + rest_HC * (lowest_H1 + level_H1) / 2
            else:
                widened = widened or _WideTile(k_BHND, v_BHND, tile, interpolation.terms)
                q = chunk.widened(interpolation.terms)
                k, v = widened.seen_from(chunk.rows, keys, law, heads, level_H1)
                level_HC = chunk.t_HC * level_H1
            bias_HCN = toeplitz_view(chunk.middle_H1 * (bias_HL - level_H1), len(chunk.rows))
            if bias_HCN.device.type != "cpu":
                bias_HCN = bias_HCN.contiguous()
            seen = attend(q, k, v, bias_HCN[None])
            call.at(heads, chunk.rows).merge_(Partial(seen.out_BHCD[..., :size], seen.lse_BHC + level_HC))


class _Chunk:
    """Queries that share an interpolation, and the keys they have far away."""

    def __init__(self, call: Call, heads: range, rows: range, *, keys: range) -> None:
        t_HC = call.factor(heads, rows)
        assert t_HC is not None
        self.rows, self.keys = rows, keys
        self.q_BHCD, self.t_HC = call.queries(heads, rows), t_HC
        middle_H, uneven_H = middle_factor(t_HC)
        self.middle_H1, self.uneven_H1 = middle_H[:, None], uneven_H[:, None]
        self._q_BHCE: Tensor | None = None

    def widened(self, terms: int) -> Tensor:
        """The queries ``[B, H, C, E]``, and behind them the columns (t - t_c) · T_m(z)."""
        if self._q_BHCE is None:
            columns_CM = query_columns(len(self.rows), terms, like=self.t_HC)
            columns_HCM = (self.t_HC - self.middle_H1)[..., None] * columns_CM
            columns_BHCM = columns_HCM.expand(self.q_BHCD.shape[0], -1, -1, -1)
            self._q_BHCE = torch.cat((self.q_BHCD, columns_BHCM), dim=-1)
        return self._q_BHCE


class _WideTile:
    """The keys and values of a tile, and behind them room for columns."""

    def __init__(self, k_BHND: Tensor, v_BHND: Tensor, keys: range, terms: int) -> None:
        self._first, self._size, self._terms = keys.start, k_BHND.shape[-1], terms
        self._k_BHNE, self._v_BHNE = (F.pad(x, (0, terms)) for x in (k_BHND, v_BHND))

    def seen_from(
        self, rows: range, keys: range, law: PowerLaw, heads: range, level_H1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Some keys and values ``[B, H, N, E]``, with the columns that b has from a chunk, less a level.

        They are the chunk's own: those of the next are written over them.
        """
        middle = rows.start + CHUNK // 2
        distances_N = torch.arange(middle - keys.start, middle - keys.stop, -1, device=level_H1.device)
        columns_HNM = key_columns(law, heads, distances_N, level_H1, terms=self._terms)
        here = slice(keys.start - self._first, keys.stop - self._first)
        self._k_BHNE[:, :, here, self._size :] = columns_HNM
        return self._k_BHNE[:, :, here], self._v_BHNE[:, :, here]
