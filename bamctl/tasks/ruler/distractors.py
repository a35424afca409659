"""Haystacks of needles that nobody asks for, from a pool that is tokenised once."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.tasks.cache import Arrays, cached, digest_of
from bamctl.tasks.haystack import Haystack, laid_out
from bamctl.tasks.ruler.niah_spec import NiahSpec
from bamctl.tasks.ruler.words import draw, draw_distinct
from bamctl.tasks.tokenization import BEHIND_NEWLINE, Ids, PromptTokenizer

SMALLEST_POOL, LARGEST_POOL = 1024, 2**20
"""Needles; pools are powers of two. A haystack of more needles than the largest starts again."""

_VERSION = 2
"""Of a pool: rises whenever the same definition would give other needles."""


class DistractorPool:
    """Needles of one kind for one tokenizer, each a line. Keys are all different."""

    def __init__(self, spec: NiahSpec, tokenizer: PromptTokenizer) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._pools: dict[int, _Pool] = {}

    def haystack(self, tokens: int, *, without: list[str], rng: np.random.Generator) -> tuple[Haystack, str]:
        """Lines in an order of their own, at least so many tokens of them, and the first line's text.

        They are drawn from a pool of at least twice as many, or from the largest. Which pool that is depends
        on `tokens` and on nothing else that other samples have.

        Args:
            tokens: how many are wanted.
            without: what no line may have as its key or value.
            rng: the sample's stream.
        """
        smallest = self._pool(SMALLEST_POOL)
        # The lines in `without` are left out.
        lines = 2 * (tokens / (len(smallest.ids) / SMALLEST_POOL) + len(without))
        size = min(max(SMALLEST_POOL, 2 ** math.ceil(math.log2(lines))), LARGEST_POOL)
        pool = self._pool(size)
        order = rng.permutation(size)
        taken = np.isin(pool.keys, without) | np.isin(pool.values, without)
        order = order[~taken[order]]
        return pool.lines(order, tokens), self._line(str(pool.keys[order[0]]), str(pool.values[order[0]]))

    def _line(self, key: str, value: str) -> str:
        return self._spec.needle_text(key, value) + "\n"

    def _pool(self, size: int) -> "_Pool":
        if size not in self._pools:
            spec = self._spec
            named = [spec.needle, spec.type_needle_k, spec.type_needle_v, str(size)]
            key = digest_of("distractors", str(_VERSION), self._tokenizer.digest, *named)
            self._pools[size] = _Pool.from_arrays(cached(key, lambda: self._made(size, named)))
        return self._pools[size]

    def _made(self, size: int, named: list[str]) -> Arrays:
        rng = np.random.default_rng(int(digest_of(*named)[:16], 16))
        keys = draw_distinct(self._spec.type_needle_k, size, rng)
        values = [draw(self._spec.type_needle_v, rng) for _ in keys]
        lines = [self._line(key, value) for key, value in zip(keys, values, strict=True)]
        haystack = Haystack.of(lines, self._tokenizer, behind=BEHIND_NEWLINE)
        return {**haystack.arrays(), "keys": np.array(keys), "values": np.array(values)}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pool:
    ids: Ids
    ends: NDArray[np.int64]
    keys: NDArray[np.str_]
    values: NDArray[np.str_]
    first_unstable: int | None

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "_Pool":
        haystack = Haystack.from_arrays(arrays)
        return cls(
            ids=haystack.token_ids,
            ends=haystack.ends,
            keys=arrays["keys"],
            values=arrays["values"],
            first_unstable=haystack.first_unstable,
        )

    def lines(self, order: NDArray[np.int64], tokens: int) -> Haystack:
        """The first lines of an order that have at least so many tokens; all where there are fewer.

        Their seams look like those of the pool, the end of a line and the start of another one.
        """
        count = int(np.searchsorted(np.cumsum(np.diff(self.ends)[order]), tokens)) + 1
        ids, ends = laid_out(self.ids, self.ends, order[:count])
        unstable = None if self.first_unstable is None else 0
        return Haystack(token_ids=ids, ends=ends, first_unstable=unstable)
