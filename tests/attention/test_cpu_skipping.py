"""What a prior makes weightless is not computed, and not even read."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, cpu, reference
from bamctl.attention.cpu import blocks, exact, far_field
from bamctl.attention.cpu.partial import Partial
from bamctl.attention.reach import longest_vector

REACH = 64
"""How far the local heads here have to look at most, in fp32 and with the little content that they get."""


@contextmanager
def _count_scores() -> Iterator[list[int]]:
    """The scores that the fused kernel is asked for, a number for every call."""
    counts: list[int] = []

    def watched(attend: Callable[..., Partial]) -> Callable[..., Partial]:
        def call(q_BHCD: Tensor, k_BHND: Tensor, *rest: Tensor) -> Partial:
            counts.append(q_BHCD[..., 0].numel() * k_BHND.shape[2])
            return attend(q_BHCD, k_BHND, *rest)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module in (exact, blocks, far_field):
            patch.setattr(module, "attend", watched(module.attend))
        yield counts


def _scores(prior: Prior, length: int, s: float | None, make_inputs: Callable[..., Any]) -> int:
    q, k, v = make_inputs(
        queries=length, keys=length, heads=prior.heads, head_size=8, batch=1, dtype=torch.float32
    )
    with torch.no_grad(), _count_scores() as counts:
        cpu.attention(
            0.01 * q,
            k,
            v,
            prior=prior,
            query_start=0,
            ssmax_scale_H=None if s is None else torch.full((prior.heads,), s),
        )
    return sum(counts)


@pytest.mark.parametrize("s", [None, 1.0])
@pytest.mark.parametrize("slope", [3.0, 0.6, 0.1], ids=["next to nothing", "a window", "beyond a window"])
def test_a_decaying_head_costs_linear_time(
    slope: float,
    s: float | None,
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    with small_parts():
        short, long = (_scores(Laplace(1, slopes=slope), n, s, make_inputs) for n in (1600, 3200))
        far_back = (math.log(3200) + 24 * math.log(2)) / slope
        assert long < 3200 * (far_back + 3 * cpu.SKIPPING_CHUNK)
    assert long < 2.2 * short


@pytest.mark.parametrize("s", [None, 1.0])
@pytest.mark.parametrize(
    "make_prior",
    [lambda: Laplace(1, slopes=0.0), lambda: GeneralizedGaussian(1, beta=-0.5, learned=())],
    ids=["flat", "far"],
)
def test_a_head_that_looks_at_all_computes_little_ahead_of_the_diagonal(
    make_prior: Callable[[], Prior],
    s: float | None,
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    with small_parts():
        scores = _scores(make_prior(), 1600, s, make_inputs)
    assert 1 <= scores / (1600 * 1601 / 2) < 1.1


@pytest.mark.parametrize("s", [None, 1.0])
def test_of_several_heads_each_looks_as_far_as_it_has_to(
    s: float | None, make_inputs: Callable[..., Any], small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    with small_parts():
        local = _scores(Laplace(1, slopes=3.0), 1600, s, make_inputs)
        far = _scores(Laplace(1, slopes=0.0), 1600, s, make_inputs)
        mixed = _scores(Laplace(4, slopes=[3.0, 0.0, 3.0, 3.0]), 1600, s, make_inputs)
    assert mixed == 3 * local + far
    assert local < far / 10


@pytest.mark.parametrize("queries", [1, 3, 64, 200, 333])
@pytest.mark.parametrize("s", [None, 1.0])
@pytest.mark.parametrize("parts", ["as they are", "small"])
def test_keys_that_do_not_matter_are_not_read(
    queries: int,
    s: float | None,
    parts: str,
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[pytest.MonkeyPatch]],
) -> None:
    """They are not numbers here, and neither are their values. One of the two heads is far-looking."""
    keys = 1000 if parts == "small" else max(cpu.LONGEST_WINDOW, cpu.LONGEST_PAST) + 1000
    q, k, v = make_inputs(queries=queries, keys=keys, heads=2, batch=1, dtype=torch.float32)
    q *= 1e-3
    arguments = {
        "prior": Laplace(2, slopes=[1.0, 0.0]),
        "query_start": keys - queries,
        "ssmax_scale_H": None if s is None else torch.full((2,), s),
    }
    expected = reference.attention(q, k, v, **arguments)
    longest = longest_vector(k)
    k[:, 0, : keys - queries - REACH] = math.nan
    v[:, 0, : keys - queries - REACH] = math.nan
    with torch.no_grad(), small_parts() as patch:
        if parts == "as they are":
            patch.undo()
            patch.setattr(cpu, "SEARCH_WORTH", 0)
        out = cpu.attention(q, k, v, longest_key_G=longest, **arguments)
        assert out.isfinite().all()
        torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)
        # Without the longest key at hand it has to be found, and nothing is known of one that is no number.
        assert not cpu.attention(q, k, v, **arguments)[:, 0].isfinite().any()


def test_values_of_keys_that_do_not_matter_are_not_read(
    make_inputs: Callable[..., Any], small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    q, k, v = make_inputs(queries=300, keys=1000, heads=2, groups=1, batch=1, dtype=torch.float32)
    arguments = {"prior": Laplace(2, slopes=[1.0, 2.0]), "query_start": 700}
    expected = reference.attention(1e-3 * q, k, v, **arguments)
    v[:, :, : 700 - REACH] = math.nan
    with torch.no_grad(), small_parts():
        out = cpu.attention(1e-3 * q, k, v, **arguments)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)


def test_a_longest_key_that_is_longer_than_any_changes_nothing(
    make_inputs: Callable[..., Any], small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    inputs = make_inputs(queries=300, keys=600, groups=2)
    prior = GeneralizedGaussian(
        4, alpha=[0.5, 3.0, 1.0, 2.0], beta=[1.0, 0.7, -0.5, 2.0], learned=()
    ).double()
    arguments = {"prior": prior, "query_start": 300}
    expected = reference.attention(*inputs, **arguments)
    with torch.no_grad(), small_parts():
        for factor in (1.0, 3.0, 1e6):
            longest = factor * longest_vector(inputs.k)
            out = cpu.attention(*inputs, longest_key_G=longest, **arguments)
            torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_small_calls_look_at_all_and_large_ones_search(
    make_inputs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding out what matters takes longer than a few products."""
    inputs = make_inputs(queries=20, keys=300, heads=1, head_size=8, batch=1, dtype=torch.float32)
    arguments: dict[str, Any] = {"prior": Laplace(1, slopes=9.0), "query_start": 280}
    products = 20 * 300 * 8
    for worth, looks_at_all in ((products + 1, True), (products, False)):
        monkeypatch.setattr(cpu, "SEARCH_WORTH", worth)
        with torch.no_grad(), _count_scores() as counts:
            cpu.attention(*inputs, **arguments)
        assert (sum(counts) == 20 * 300) == looks_at_all
