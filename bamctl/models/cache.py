"""A key-value cache that is allocated once.

Transformers' DynamicCache copies everything it holds at every update: over a prefill in chunks that is
quadratic traffic. This one writes into buffers of a capacity that is known beforehand, as the length of a
haystack is, and doubles them where it is not.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from bamctl.attention.reach import longest_vector


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values ``[B, G, N, D]`` of one layer, of which the first `length` positions are filled."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self._longest_keys: list[tuple[int, Tensor]] = []
        """For each update: the position it began at, and the largest norm [G] of all keys up to its end."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends positions; returns views of everything up to and including them."""
        needed = self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, needed)
            self.lazy_initialization(key_states, value_states)
        elif needed > self.capacity:
            self.capacity = max(needed, 2 * self.capacity)
            keys, values = self._filled()
            self.keys, self.values = self._grown(keys), self._grown(values)
        keys, values = self._filled()
        keys[:, :, self.length : needed] = key_states
        values[:, :, self.length : needed] = value_states
        longest_G = longest_vector(key_states)
        if self._longest_keys:
            longest_G = torch.maximum(longest_G, self._longest_keys[-1][1])
        self._longest_keys.append((self.length, longest_G))
        self.length = needed
        return keys[:, :, :needed], values[:, :, :needed]

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last positions: -n says how many; before transformers 5.24, n says how many stay."""
        kept = tokens_to_remove if tokens_to_remove > 0 else self.length + tokens_to_remove
        self.truncate(max(0, kept))

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on."""
        self.length = min(self.length, length)
        while self._longest_keys and self._longest_keys[-1][0] >= self.length:
            self._longest_keys.pop()

    def longest_key(self) -> Tensor | None:
        """A bound ``[G]`` on the norms of the keys held: so that nobody has to read them all to know it.

        None of them need have it where an update was forgotten in part. None where nothing is held.
        """
        return self._longest_keys[-1][1] if self._longest_keys else None

    def reset(self) -> None:
        self.truncate(0)

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.24

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.is_initialized:
            keys, values = self._filled()
            beams = beam_idx.to(keys.device)
            self.keys, self.values = keys.index_select(0, beams), values.index_select(0, beams)

    def _filled(self) -> tuple[Tensor, Tensor]:
        """The buffers, once there are any."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _allocate(self, like: Tensor) -> Tensor:
        batch, groups, _, head_size = like.shape
        return like.new_empty((batch, groups, self.capacity, head_size))

    def _grown(self, old: Tensor) -> Tensor:
        new = self._allocate(old)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


class PreallocatedCache(Cache):
    """One `PreallocatedLayer` a layer.

    Args:
        layers: number of layers.
        capacity: positions to make room for at once; more grow it.
    """

    def __init__(self, layers: int, capacity: int = 0) -> None:
        self.buffers = [PreallocatedLayer(capacity) for _ in range(layers)]
        super().__init__(layers=list(self.buffers))

    @property
    def length(self) -> int:
        """Positions held."""
        return self.buffers[0].length

    @property
    def capacity(self) -> int:
        """Positions there is room for without growing."""
        return self.buffers[0].capacity

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on."""
        for layer in self.buffers:
            layer.truncate(length)

    def longest_key(self, layer: int) -> Tensor | None:
        """See `PreallocatedLayer.longest_key`."""
        return self.buffers[layer].longest_key()

    def nbytes(self) -> int:
        """Memory taken, in bytes."""
        return sum(x.nbytes for layer in self.buffers if layer.is_initialized for x in layer._filled())
