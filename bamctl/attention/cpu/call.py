"""One call of attention: its tensors, and where its queries and keys stand.

Shapes: B batch, H query heads, G key-value heads, Q queries of the call, C of a part, N keys, D head size,
L relative positions. Positions are absolute everywhere.

Queries are held in reverse order, the last one first: a bias that depends on j - i alone is then a view of
one vector (see `bamctl.attention.cpu.exact`).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bamctl.attention.cpu.partial import Partial
from bamctl.attention.priors import Prior


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is asked, in the arithmetic's dtype, and where the answer goes."""

    q_BHQD: Tensor
    """Queries with every factor on content, 1/√D and t_i of SSMax; the last one first."""
    k_BGND: Tensor
    v_BGND: Tensor
    prior: Prior
    t_HQ: Tensor | None
    """The factor on the prior's bias, the last query's first; None where there is none."""
    query_start: int
    key_start: int
    result: Partial
    """The answer, the last query's first."""
    _scratch: list[Tensor] = field(default_factory=list, init=False)
    _biases: dict[range, Tensor] = field(default_factory=dict, init=False)

    def scratch(self, *shape: int) -> Tensor:
        """Memory to write into, the same every time: fresh pages would cost as much as what is written."""
        size = math.prod(shape)
        if not self._scratch or self._scratch[0].numel() < size:
            self._scratch.clear()  # before the larger one takes memory
            self._scratch.append(self.q_BHQD.new_empty(size))
        return self._scratch[0][:size].view(shape)

    @property
    def heads(self) -> int:
        """H."""
        return self.q_BHQD.shape[1]

    @property
    def heads_a_group(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.q_BHQD.shape[1] // self.k_BGND.shape[1]

    @property
    def query_stop(self) -> int:
        """The position behind the last query."""
        return self.query_start + self.q_BHQD.shape[2]

    @property
    def key_stop(self) -> int:
        """The position behind the last key."""
        return self.key_start + self.k_BGND.shape[2]

    def queries(self, heads: range, rows: range) -> Tensor:
        """Queries ``[B, H, C, D]`` of some heads at some positions, the last one first."""
        return self.q_BHQD[:, _slice(heads), self._reversed(rows)]

    def factor(self, heads: range, rows: range) -> Tensor | None:
        """t ``[H, C]``, the last query's first."""
        return None if self.t_HQ is None else self.t_HQ[_slice(heads), self._reversed(rows)]

    def keys_and_values(self, heads: range, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """``[B, H, N, D]`` each of the heads' own group or groups; copied only where they change their type.

        Of heads that share keys, all must be in one group.
        """
        size = self.heads_a_group
        groups = slice(heads.start // size, (heads.stop - 1) // size + 1)
        keys = slice(first - self.key_start, stop - self.key_start)
        work = self.q_BHQD.dtype
        k, v = (
            x[:, groups, keys].to(work).expand(-1, len(heads), -1, -1) for x in (self.k_BGND, self.v_BGND)
        )
        return k, v

    def bias(self, heads: range, first_rel: int, last_rel: int) -> Tensor:
        """The prior's bias ``[H, L]`` at first_rel … last_rel, relative positions of keys that are seen."""
        highest_rel = min(self.key_stop - 1 - self.query_start, 0)
        known_HL = self._biases.get(heads)  # up to highest_rel
        known = 0 if known_HL is None else known_HL.shape[1]
        if known_HL is None or known <= highest_rel - first_rel:
            # Chunk after chunk looks farther back: to twice as far, so that few are computed over again.
            farthest_rel = self.key_start - (self.query_stop - 1)
            first = min(first_rel, max(highest_rel + 1 - 2 * known, farthest_rel))
            rel_L = torch.arange(first, highest_rel + 1, device=self.q_BHQD.device)
            known_HL = self.prior.bias(rel_L)[_slice(heads)].to(self.q_BHQD.dtype)
            self._biases[heads] = known_HL
        stop = known_HL.shape[1] - (highest_rel - last_rel)
        return known_HL[:, stop - (last_rel - first_rel) - 1 : stop]

    def at(self, heads: range, rows: range) -> Partial:
        """What is stored of some queries, as views, the last one first."""
        index = (slice(None), _slice(heads), self._reversed(rows))
        return Partial(self.result.out_BHCD[index], self.result.lse_BHC[index])

    def _reversed(self, rows: range) -> slice:
        return slice(self.query_stop - rows.stop, self.query_stop - rows.start)


def _slice(of: range) -> slice:
    return slice(of.start, of.stop)


def split(rows: range, size: int) -> list[range]:
    """The same rows, `size` at a time."""
    return [range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]
