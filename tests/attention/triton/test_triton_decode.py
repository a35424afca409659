"""Few queries over many keys: the parts that the keys are split into, and their combination."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform


def _generalized_gaussian() -> Prior:
    return GeneralizedGaussian(
        4, alpha=[0.7, 3.0, 12.0, 5.0], beta=[-1.5, 0.5, 2.0, 0.0], mu=[0.0, -7.3, 2.6, 0.0]
    )


SSMAX = [0.4, -0.3, 0.0, 1.7]

# (queries, keys, query_start, key_start), for tiles of 16 keys
PLACES = {
    "the last query": (1, 90, 89, 0),
    "the last key of a tile": (1, 96, 95, 0),
    "the first key of a tile": (1, 97, 96, 0),
    "a few": (3, 90, 87, 0),
    "the most": (8, 90, 82, 0),
    "fewer keys than parts": (2, 5, 3, 0),
    "the first token": (1, 1, 0, 0),
    "the first keys left out": (3, 60, 157, 100),
    "keys that end before the queries": (3, 40, 120, 2),
    "keys beyond every query": (3, 70, 20, 0),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_place(place: tuple[int, int, int, int], compare: Callable[..., Any]) -> None:
    queries, keys, query_start, key_start = place
    compare(
        _generalized_gaussian(),
        queries=queries,
        keys=keys,
        query_start=query_start,
        key_start=key_start,
        groups=2,
        ssmax=SSMAX,
        splits=4,
    ).check(torch.float32)


def test_halves_take_more_queries(compare: Callable[..., Any]) -> None:
    compare(
        _generalized_gaussian(),
        queries=16,
        keys=90,
        query_start=74,
        groups=2,
        ssmax=SSMAX,
        splits=4,
        dtype=torch.float16,
    ).check(torch.float16)


@pytest.mark.parametrize(("ssmax", "scaled"), [(None, True), (SSMAX, True), (SSMAX, False)])
def test_every_prior(ssmax: list[float] | None, scaled: bool, compare: Callable[..., Any]) -> None:
    for prior in (_generalized_gaussian(), Laplace(4), Uniform(4)):
        compare(
            prior,
            queries=2,
            keys=50,
            query_start=48,
            groups=1,
            ssmax=ssmax,
            scaled=scaled,
            splits=3,
        ).check(torch.float32)


@pytest.mark.parametrize("head_size", [20, 96, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_head_sizes(head_size: int, dtype: torch.dtype, compare: Callable[..., Any]) -> None:
    compare(
        _generalized_gaussian(),
        queries=1,
        keys=50,
        query_start=49,
        groups=1,
        head_size=head_size,
        dtype=dtype,
        ssmax=SSMAX,
        splits=3,
    ).check(dtype)


def test_many_parts(compare: Callable[..., Any]) -> None:
    """More than are combined at a time, some of them empty."""
    compare(Laplace(1), queries=1, keys=300, query_start=299, splits=18).check(torch.float32)
    compare(Laplace(1), queries=1, keys=40, query_start=39, splits=33).check(torch.float32)


def test_gradients(compare: Callable[..., Any]) -> None:
    compare(
        _generalized_gaussian(),
        queries=3,
        keys=50,
        query_start=47,
        groups=2,
        ssmax=SSMAX,
        splits=3,
        gradients=True,
    ).check(torch.float32)
