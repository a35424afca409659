"""The first key that matters: no nearer than the bound allows, and no farther than it demands."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform
from bamctl.attention.reach import content_bound, first_keys, longest_vector

FAR = 2**40
NEEDED = math.log(2**53)
"""-ln ε for float64."""


def _first_keys(
    prior: Prior,
    positions: list[int],
    *,
    queries: int = 1,
    content: float = 0.0,
    s: float | None = None,
    scaled: bool = True,
    key_start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[list[int]]:
    found_HT = first_keys(
        prior,
        content_H=torch.full((prior.heads,), content, dtype=dtype),
        positions_T=torch.tensor(positions),
        queries=queries,
        key_start=key_start,
        scale_H=None if s is None else torch.full((prior.heads,), s, dtype=dtype),
        scales_prior=scaled,
        dtype=dtype,
    )
    assert found_HT.dtype == torch.int64
    found: list[list[int]] = found_HT.tolist()
    return found


def _by_trying_all(
    prior: Prior,
    position: int,
    slack: float,
    *,
    queries: int,
    content: float,
    s: Any,
    scaled: bool,
    key_start: int,
) -> int:
    """The condition of the module's docstring, asked of one key after another, from the farthest on."""
    last = position + queries - 1
    bias = prior.bias(torch.arange(key_start - last, 1))[0].tolist()  # from the farthest back on
    near = max(bias[key_start - position - 1 :])
    limits = []
    for i in (position, last):
        t = 1.0 if s is None else s * math.log(i + 1)
        if t <= 0:
            return key_start
        needed = math.log(position + 1 - key_start + queries) + NEEDED
        whole = t if scaled and s is not None else 1.0
        limits.append(near - 2 * content * t / whole - needed / whole)
    limit = min(limits)
    if math.isfinite(limit):  # with a factor next to 0 no key is too far
        limit -= slack * (abs(near) + abs(limit))
    for key in range(key_start, position + 1):
        if max(bias[: key - position - (key_start - last) + 1]) >= limit:
            return key
    raise AssertionError("a query's own key matters")


@settings(max_examples=120, deadline=None)
@given(
    log_alpha=st.floats(-6, 6),
    beta=st.floats(-3, 3),
    mu=st.sampled_from([0.0, 0.0, 7.5, -3.0, -41.5, -1000.0]),
    content=st.sampled_from([0.0, 0.1, 3.0, 100.0]),
    s=st.none() | st.floats(-1, 3),
    scaled=st.booleans(),
    position=st.integers(0, 200),
    queries=st.integers(1, 70),
    key_start=st.integers(0, 50),
)
@example(
    log_alpha=0.0,
    beta=0.0,
    mu=0.0,
    content=0.0,
    s=2.2250738585072014e-308,  # the least normal one: what a key may lack of the bound is infinite
    scaled=True,
    position=40,
    queries=1,
    key_start=1,
)
def test_is_where_trying_all_keys_finds_it(
    log_alpha: float,
    beta: float,
    mu: float,
    content: float,
    s: float | None,
    scaled: bool,
    position: int,
    queries: int,
    key_start: int,
    in_float64: Callable[[Prior], Prior],
) -> None:
    """One key nearer would violate the bound, but for the slack that covers the rounding of the bias."""
    position += key_start
    prior = in_float64(GeneralizedGaussian(1, alpha=10.0**log_alpha, beta=beta, mu=mu))
    asked: dict[str, Any] = {
        "queries": queries,
        "content": content,
        "s": s,
        "scaled": scaled,
        "key_start": key_start,
    }
    [[found]] = _first_keys(prior, [position], **asked)
    assert (
        _by_trying_all(prior, position, 2**-48, **asked)
        <= found
        <= _by_trying_all(prior, position, 0.0, **asked)
    )


DISTANCES = sorted(
    {*range(1, 131)}
    | {64**rounds + offset for rounds in range(2, 7) for offset in (-1, 0, 1)}
    | {2**bits + offset for bits in (13, 17, 31, 32, 39) for offset in (-1, 0, 1)}
)


@pytest.mark.parametrize("beyond", [0, 1, 2, 63, FAR])
def test_a_step_is_found_at_any_distance_without_looking_at_each(
    beyond: int, make_steps: Callable[[int, Mapping[int, float]], Prior]
) -> None:
    """All sides of the search's rounds, with as many keys as end at the step, one more, or a trillion."""
    for distance in DISTANCES:
        prior = make_steps(1, {0: 0.0, distance: -1000.0})
        position = distance - 1 + beyond
        assert _first_keys(prior, [position]) == [[beyond]], distance
        assert _first_keys(prior, [position + 7], key_start=7) == [[beyond + 7]], distance


def test_a_laplace_head_looks_back_as_far_as_the_bound_says() -> None:
    # near = 0, far = -distance: distance - 2U ≥ ln n - ln ε
    [[first]] = _first_keys(Laplace(1, slopes=1.0), [3999], queries=97, content=3.0)
    assert 3999 - first == math.ceil(6 + math.log(4097) + NEEDED) - 1
    [[in_fp32]] = _first_keys(Laplace(1, slopes=1.0), [3999], queries=97, content=3.0, dtype=torch.float32)
    assert 3999 - in_fp32 == math.ceil(6 + math.log(4097) + math.log(2**24)) - 1
    [[flatter]] = _first_keys(Laplace(1, slopes=0.5), [3999], queries=97, content=3.0)
    assert flatter < first


@pytest.mark.parametrize("s", [None, 0.3])
@pytest.mark.parametrize("scaled", [True, False])
def test_many_tiles_and_heads_at_once_are_as_one_by_one(s: float | None, scaled: bool) -> None:
    prior = GeneralizedGaussian(
        5, alpha=[0.01, 1.0, 20.0, 3.0, 1.0], beta=[1.0, 0.5, 2.0, 1.0, -1.0], mu=[0.0, 0.0, 0.0, -50.0, 0.0]
    )
    positions = [10, 11, 75, 500, 4095, 4096, 10**5, FAR]
    kwargs: dict[str, Any] = {"queries": 64, "content": 0.7, "s": s, "scaled": scaled, "key_start": 10}
    together = _first_keys(prior, positions, **kwargs)
    for tile, position in enumerate(positions):
        assert [of_head[tile] for of_head in together] == [
            first for (first,) in _first_keys(prior, [position], **kwargs)
        ]
    assert together[4] == [10] * len(positions)


def test_falls_never_as_the_prior_grows_steeper_or_the_content_smaller(
    in_float64: Callable[[Prior], Prior],
) -> None:
    steeper = in_float64(Laplace(60, slopes=[1.2**n / 1000 for n in range(60)]))
    for s, scaled in ((None, True), (0.4, True), (0.4, False)):
        firsts = [of_head[0] for of_head in _first_keys(steeper, [10**6], content=2.0, s=s, scaled=scaled)]
        assert firsts == sorted(firsts)
        assert firsts[0] < firsts[30] < firsts[-1]
        by_content = [
            _first_keys(Laplace(1, slopes=0.1), [10**6], content=20.0 / (n + 1), s=s, scaled=scaled)[0][0]
            for n in range(60)
        ]
        assert by_content == sorted(by_content)
        assert by_content[0] < by_content[-1]


def test_ssmax_shortens_the_reach_with_the_length() -> None:
    [[near, far]] = _first_keys(Laplace(1, slopes=0.1), [1000, 10**6], queries=16, content=0.5, s=0.5)
    assert 1000 - near > 10**6 - far > 0
    # Where it leaves the prior alone it stretches it.
    [[near, far]] = _first_keys(
        Laplace(1, slopes=0.1), [1000, 10**6], queries=16, content=0.5, s=0.5, scaled=False
    )
    assert 1000 - near < 10**6 - far


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("s", [0.0, -0.5, math.nan])
def test_where_the_order_turns_round_all_is_looked_at(s: float, scaled: bool) -> None:
    prior = Laplace(1, slopes=10.0)
    assert _first_keys(prior, [4000], queries=16, content=0.1, s=s, scaled=scaled) == [[0]]
    assert _first_keys(prior, [4000], content=0.1, s=s, scaled=scaled, key_start=9) == [[9]]


@pytest.mark.parametrize("queries", [1, 16])
def test_the_first_query_looks_at_all(queries: int) -> None:
    """t = ln 1 = 0 there: every logit is the same, however far; and so do the queries in its tile."""
    assert _first_keys(Laplace(1, slopes=1e4), [0], queries=queries, content=0.1, s=1.0) == [[0]]


@pytest.mark.parametrize(
    "prior",
    [
        Uniform(1),
        GeneralizedGaussian(1, beta=-1.5),
        GeneralizedGaussian(1, beta=0.0),
        Laplace(1, slopes=-1.0),
    ],
)
def test_flat_and_far_looking_heads_look_at_all(prior: Prior) -> None:
    assert _first_keys(prior, [4000], queries=16, content=1.0) == [[0]]


def test_a_head_that_looks_away_from_its_neighbourhood_by_a_location() -> None:
    """μ = -1000 puts the mass a thousand tokens back: those keys stay, farther ones go."""
    [[first]] = _first_keys(GeneralizedGaussian(1, alpha=5.0, beta=1.0, mu=-1000.0), [4000], content=0.5)
    assert 1000 < 4000 - first < 1500


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("s", [None, 1.0])
@pytest.mark.parametrize("scaled", [True, False])
def test_content_without_a_bound_is_looked_at_in_full(value: float, s: float | None, scaled: bool) -> None:
    prior = Laplace(1, slopes=1.0)
    assert _first_keys(prior, [999], content=1.0, s=s, scaled=scaled)[0][0] > 850
    assert _first_keys(prior, [999], content=value, s=s, scaled=scaled) == [[0]]


def test_a_bias_so_huge_that_nothing_moves_it_is_looked_at_in_full() -> None:
    """All keys have the same bias, of 10^37: a limit that is rounded back to it must not leave any out."""
    prior = GeneralizedGaussian(1, alpha=1e-6, beta=3.0, mu=2.0**50)
    assert prior.bias(torch.tensor([-300, 0])).unique().numel() == 1
    for dtype in (torch.float32, torch.float64):
        assert _first_keys(prior, [300], content=1.0, dtype=dtype) == [[0]]


def test_content_bound_bounds() -> None:
    random = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 50, 16, generator=random)
    k = torch.randn(2, 3, 70, 16, generator=random)
    shared = k.repeat_interleave(2, dim=1)
    content = (q @ shared.transpose(-1, -2)).abs().amax(dim=(0, 2, 3)) / 4
    bound = content_bound(q, k)
    assert bound.shape == (6,)
    assert (bound >= content).all()
    assert torch.equal(content_bound(q, k, longest_vector(k)), bound)
    torch.testing.assert_close(content_bound(q, k, 2 * longest_vector(k)), 2 * bound)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_bound_of_the_content_holds_in_every_type(dtype: torch.dtype, size: int) -> None:
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        q = (30 * torch.randn(1, 8, 1, size, generator=random)).to(dtype)
        work = torch.float64 if dtype == torch.float64 else torch.float32
        k = q.to(work)  # Cauchy-Schwarz holds with equality
        scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(size)
        assert (scores.abs().amax(dim=(0, 2, 3)) <= content_bound(q, k)).all()


def test_longest_vector() -> None:
    x = torch.zeros(2, 3, 4, 2, dtype=torch.float16)
    x[1, 0, 2] = torch.tensor([300.0, 400.0])  # whose squares fp16 does not hold
    x[0, 2, 3, 1] = -1.0
    assert longest_vector(x).tolist() == [500.0, 0.0, 1.0]
    assert longest_vector(x).dtype == torch.float32
    assert longest_vector(x.double()).dtype == torch.float64
