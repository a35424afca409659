"""Shards: several processes share a run, each has every n-th sample and files of its own."""

import re
from dataclasses import dataclass

from bamctl.errors import BadInput

MOST = 10_000
"""Shards of a run."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The k-th of n shards: the samples whose number, from 0, leaves k - 1 when divided by n."""

    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.k}/{self.n}"

    @property
    def tag(self) -> str:
        """What its files have in their names: ``2-of-8``."""
        return f"{self.k}-of-{self.n}"

    def holds(self, sample: int) -> bool:
        """Whether the sample of this number, from 0, is in this shard."""
        return sample % self.n == self.k - 1


def parse_shard(text: str) -> Shard:
    """Reads ``--shard``: ``2/8`` is the second of eight.

    Raises:
        BadInput: not of this form, or not 1 ≤ k ≤ n ≤ 10,000.
    """
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text)
    if match is None:
        raise BadInput(f"--shard {text!r}: is written K/N, 2/8 for the second of eight shards")
    shard = Shard(k=int(match[1]), n=int(match[2]))
    if not 1 <= shard.n <= MOST:
        raise BadInput(f"--shard {shard}: there are 1 to {MOST} shards")
    if not 1 <= shard.k <= shard.n:
        raise BadInput(f"--shard {shard}: shards are counted from 1, the last of them is {shard.n}/{shard.n}")
    return shard
