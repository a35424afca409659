"""The cache holds what was put in, in buffers that grow by doubling."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.models.cache import PreallocatedCache, PreallocatedLayer


def _states(length: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, batch, 3, length, 4)
    return keys, values


def _fill(cache: PreallocatedCache, *lengths: int) -> tuple[Tensor, Tensor]:
    """Appends to layer 0 in pieces; everything appended."""
    pieces = [_states(length) for length in lengths]
    for keys, values in pieces:
        cache.update(keys, values, 0)
    return torch.cat([k for k, _ in pieces], dim=2), torch.cat([v for _, v in pieces], dim=2)


def _held(cache: PreallocatedCache) -> tuple[Tensor, Tensor]:
    layer = cache.buffers[0]
    assert layer.keys is not None
    assert layer.values is not None
    return layer.keys[:, :, : layer.length], layer.values[:, :, : layer.length]


@pytest.mark.parametrize("capacity", [0, 1, 9, 10, 11, 100])
@pytest.mark.parametrize("lengths", [(10,), (1, 9), (4, 3, 2, 1), (1,) * 10])
def test_holds_what_was_put_in(capacity: int, lengths: tuple[int, ...]) -> None:
    cache = PreallocatedCache(1, capacity)
    keys, values = _fill(cache, *lengths)
    assert cache.length == cache.get_seq_length() == 10
    assert torch.equal(_held(cache)[0], keys)
    assert torch.equal(_held(cache)[1], values)


def test_update_returns_everything_up_to_now() -> None:
    cache = PreallocatedCache(2, 8)
    first = _states(3)
    second = _states(4)
    cache.update(*first, 1)
    keys, values = cache.update(*second, 1)
    assert torch.equal(keys, torch.cat((first[0], second[0]), dim=2))
    assert torch.equal(values, torch.cat((first[1], second[1]), dim=2))
    assert cache.buffers[0].length == 0


def test_within_its_capacity_nothing_is_copied() -> None:
    cache = PreallocatedCache(1, 10)
    _fill(cache, 1)
    places = {x.data_ptr() for x in _held(cache)}
    for _ in range(9):
        keys, values = cache.update(*_states(1), 0)
        assert {keys.data_ptr(), values.data_ptr()} == places
    keys, _ = cache.update(*_states(1), 0)
    assert keys.data_ptr() not in places


def test_grows_by_doubling() -> None:
    layer = PreallocatedLayer()
    capacities = []
    for _ in range(40):
        layer.update(*_states(1))
        capacities.append(layer.capacity)
    assert sorted(set(capacities)) == [1, 2, 4, 8, 16, 32, 64]
    layer.update(*_states(200))
    assert layer.capacity == 240


def test_capacity_is_the_room_there_is() -> None:
    cache = PreallocatedCache(2, 10)
    assert cache.capacity == 10
    _fill(cache, 10)
    assert cache.capacity == 10
    _fill(cache, 1)
    assert cache.capacity == 20


def test_nbytes() -> None:
    cache = PreallocatedCache(3, 10)
    assert cache.nbytes() == 0
    cache.update(*_states(2), 0)
    one_layer = 2 * (2 * 3 * 10 * 4) * 4
    assert cache.nbytes() == one_layer
    cache.update(*_states(2), 1)
    assert cache.nbytes() == 2 * one_layer
    cache.update(*_states(9), 1)
    assert cache.nbytes() == 3 * one_layer


def test_keeps_the_dtype() -> None:
    cache = PreallocatedCache(1)
    keys, values = (x.bfloat16() for x in _states(2))
    held_keys, held_values = cache.update(keys, values, 0)
    assert held_keys.dtype == held_values.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("forget", "left"),
    [
        (lambda cache: cache.truncate(4), 4),
        (lambda cache: cache.truncate(7), 7),
        (lambda cache: cache.truncate(8), 7),
        (lambda cache: cache.truncate(0), 0),
        (lambda cache: cache.crop(-3), 4),
        (lambda cache: cache.crop(-7), 0),
        (lambda cache: cache.crop(-8), 0),
        (lambda cache: cache.crop(0), 7),
        (lambda cache: cache.buffers[0].crop(4), 4),  # as transformers before 5.24 means it
        (lambda cache: cache.buffers[0].crop(9), 7),
        (lambda cache: cache.reset(), 0),
    ],
)
def test_forgets_the_last_positions(forget: Callable[[PreallocatedCache], Any], left: int) -> None:
    cache = PreallocatedCache(1, 20)
    keys, _ = _fill(cache, 7)
    forget(cache)
    assert cache.length == left
    new_keys, new_values = _states(2)
    held, _ = cache.update(new_keys, new_values, 0)
    assert torch.equal(held, torch.cat((keys[:, :, :left], new_keys), dim=2))


def test_truncate_reaches_every_layer() -> None:
    cache = PreallocatedCache(3)
    for layer in range(3):
        cache.update(*_states(5), layer)
    cache.truncate(2)
    assert [layer.length for layer in cache.buffers] == [2, 2, 2]


def test_reorders_the_batch() -> None:
    cache = PreallocatedCache(2, 10)
    cache.reorder_cache(torch.tensor([1, 0]))  # nothing in it yet
    keys, values = _fill(cache, 4)
    cache.reorder_cache(torch.tensor([1, 1]))
    assert torch.equal(_held(cache)[0], keys[[1, 1]])
    assert torch.equal(_held(cache)[1], values[[1, 1]])
    assert cache.length == 4
    new_keys, new_values = _states(1)
    held, _ = cache.update(new_keys, new_values, 0)
    assert torch.equal(held, torch.cat((keys[[1, 1]], new_keys), dim=2))


def test_what_transformers_asks_of_a_layer() -> None:
    cache = PreallocatedCache(2, 16)
    _fill(cache, 5)
    assert cache.buffers[0].get_mask_sizes(3) == (8, 0)
    assert cache.buffers[0].get_max_length() == -1
    assert cache.buffers[0].get_max_cache_shape() == -1
    assert len(cache) == 2
