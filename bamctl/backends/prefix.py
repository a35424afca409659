"""Prompts that begin alike share the keys and values of their beginning: it is read once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.models.cache import PreallocatedCache


class SharedPrefix:
    """The cache of the prompts that were read last, for the next ones that begin with the same tokens.

    What is taken over is whole chunks alone, and never the whole prompt. Reading goes on at the chunk that
    holds the first difference, so every chunk that is read is the same call, on the same keys and values, as
    it would be without: nothing differs in a single bit. That takes the same number of prompts, chunk size
    and capacity; with another one the cache is let go of before the new one takes memory.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._held: _Held | None = None

    def nbytes(self) -> int:
        """Memory that is held for the next prompts, in bytes."""
        return 0 if self._held is None else self._held.cache.nbytes()

    def take(self, ids_BC: NDArray[np.int32], *, chunk_size: int, capacity: int) -> PreallocatedCache:
        """A cache that holds the first `PreallocatedCache.length` tokens of each prompt, perhaps none.

        It is the caller's, and no longer held here.

        Args:
            ids_BC: prompts of one length, ``[B, C]``.
            chunk_size: at whose multiples chunks end.
            capacity: positions of the cache.
        """
        held, self._held = self._held, None
        if held is None or not held.fits(len(ids_BC), chunk_size, capacity):
            del held
            return PreallocatedCache(self._layers, capacity)
        common = min(common_prefix(held.ids, ids_BC), ids_BC.shape[1] - 1)
        held.cache.truncate(common // chunk_size * chunk_size)
        return held.cache

    def keep(self, cache: PreallocatedCache, ids_BC: NDArray[np.int32], *, chunk_size: int) -> None:
        """Holds a cache into which these prompts were read; what stands behind them does not matter."""
        self._held = _Held(cache=cache, ids=ids_BC, chunk_size=chunk_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    cache: PreallocatedCache
    ids: NDArray[np.int32]
    chunk_size: int

    def fits(self, batch: int, chunk_size: int, capacity: int) -> bool:
        held = (len(self.ids), self.chunk_size, self.cache.capacity)
        return held == (batch, chunk_size, capacity)


def common_prefix(left_BC: NDArray[np.int32], right_BC: NDArray[np.int32]) -> int:
    """How many leading tokens every row of one has in common with the same row of the other."""
    shorter = min(left_BC.shape[1], right_BC.shape[1])
    differs_C = (left_BC[:, :shorter] != right_BC[:, :shorter]).any(axis=0)
    return int(differs_C.argmax()) if differs_C.any() else shorter
