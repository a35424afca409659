"""The far field: interpolated to rounding, refused where it cannot be, joined to the near one at any edge."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, cpu, reference
from bamctl.attention.cpu import far_field, interpolation
from bamctl.attention.cpu.call import Call
from bamctl.attention.cpu.far_field import add_far_field
from bamctl.attention.cpu.interpolation import Interpolation, choose_interpolation
from bamctl.attention.cpu.partial import Partial
from bamctl.attention.priors import PowerLaw
from bamctl.attention.ssmax import ssmax_factor

KEYS = 10**6
BETAS = [-3.0, -1.7, -0.5, 0.0, 0.01, 0.5, 1.0, 1.4, 2.0, 2.9, 3.0]


def _law(rate: float = 1.0, beta: float = 0.5, mu: float = 0.0) -> PowerLaw:
    rate_H, beta_H, mu_H = (torch.tensor([x], dtype=torch.float64) for x in (rate, beta, mu))
    return PowerLaw(rate_H=rate_H, beta_H=beta_H, mu_H=mu_H, epsilon=1e-5)


def _choose(
    law: PowerLaw, t: float = 1.0, dtype: torch.dtype = torch.float32, *, uneven: float | None = None
) -> Interpolation | None:
    """For queries whose t differ by `uneven` from that of the middle; by default by as much as they may."""
    uneven = t if uneven is None else uneven
    t_HC = torch.tensor([[t, t - 2 * uneven]], dtype=torch.float64)
    return choose_interpolation(law, range(1), t_HC, seen=KEYS, keys=KEYS, dtype=dtype)


def _largest_error(beta: float, distance: float, half: float, terms: int) -> Any:
    """Of d^β from `distance` to `distance` + 2 · `half`, by the polynomial through the Chebyshev nodes.

    Without a term: of d^β from `distance` to the farthest key, by one constant for them all.
    """
    if terms == 0:
        return abs(mpmath.mpf(distance) ** beta - mpmath.mpf(2 * KEYS) ** beta) / 2
    angles = [mpmath.pi * (k + mpmath.mpf(1) / 2) / terms for k in range(terms)]
    values = [(distance + half + half * mpmath.cos(angle)) ** beta for angle in angles]
    coefficients = [
        (2 - (m == 0))
        / mpmath.mpf(terms)
        * sum(x * mpmath.cos(m * a) for x, a in zip(values, angles, strict=True))
        for m in range(terms)
    ]
    errors = []
    for step in range(-8, 9):
        z = mpmath.mpf(step) / 8
        found = sum(c * mpmath.cos(m * mpmath.acos(z)) for m, c in enumerate(coefficients))
        errors.append(abs(found - (distance + half + half * z) ** beta))
    return max(errors)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("uneven", [8.0, 0.05, 1e-4, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_left_out_is_below_half_a_unit(beta: float, uneven: float, dtype: torch.dtype) -> None:
    """Of 1, or of t · b where that is larger: at the nearest far key, where it is worst, and farther back."""
    eps = torch.finfo(dtype).eps / 2
    half = interpolation.CHUNK / 2
    with mpmath.workdps(50):
        for log_bias, mu in ((-3, 0.0), (0, 300.0), (0, -777.5), (3, 0.0), (9, 0.0)):
            rate, t = 10.0**log_bias * interpolation.NEAR[0] ** -beta, 8.0
            chosen = _choose(_law(rate, beta, mu), t, dtype, uneven=uneven)
            assert chosen is not None
            for behind in (0, 1, 100, 10**4, 10**6):
                distance = chosen.near + 1 + mu + behind
                size = t * rate * distance**beta if chosen.terms else 0.0
                error = uneven * rate * _largest_error(beta, distance, half, chosen.terms)
                assert error <= eps * max(1.0, size), (log_bias, mu, behind, chosen)


def test_the_less_even_the_queries_the_more_it_takes() -> None:
    law = _law(beta=-0.85)
    chosen = [_choose(law, 8.0, uneven=uneven) for uneven in (8.0, 0.01, 1e-7)]
    assert all(chosen)
    costs = [(x.terms, x.near) for x in chosen if x]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == (0, interpolation.NEAR[0])


def test_a_location_far_behind_moves_the_far_field_behind_it() -> None:
    ahead, behind = _choose(_law(mu=5000.0)), _choose(_law(mu=-5000.0))
    assert ahead is not None
    assert behind is not None
    assert ahead.near in interpolation.NEAR
    assert behind.near - 5000 in interpolation.NEAR


def test_a_flat_bias_takes_the_least_there_is() -> None:
    flat, bent = _choose(_law(beta=0.0)), _choose(_law(beta=-2.5, rate=1e9), 8.0, torch.float64)
    assert flat is not None
    assert flat.near == min(interpolation.NEAR)
    assert bent is None or bent.terms > flat.terms or bent.near > flat.near


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["rate", "beta", "mu", "t"])
def test_what_is_no_number_is_refused(name: str, value: float) -> None:
    assert _choose(_law()) is not None
    t = value if name == "t" else 1.0
    assert _choose(_law(**({} if name == "t" else {name: value})), t) is None
    if name == "mu":
        assert _choose(_law(mu=-value)) is None


def test_a_chunk_too_long_for_its_distance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bias bends more within the chunk than any number of terms follows."""
    monkeypatch.setattr(interpolation, "NEAR", (interpolation.CHUNK // 8,))
    for beta in (-2.0, -0.5, 0.5):
        assert _choose(_law(beta=beta)) is None
    assert _choose(_law(beta=0.0)) is not None
    assert _choose(_law(beta=1.0)) is not None  # a straight line is followed by two
    monkeypatch.setattr(interpolation, "NEAR", (interpolation.CHUNK // 8, 8 * interpolation.CHUNK))
    chosen = _choose(_law(beta=0.5))
    assert chosen is not None
    assert chosen.near == 8 * interpolation.CHUNK


def test_one_head_that_is_refused_refuses_its_neighbours() -> None:
    law = PowerLaw(
        rate_H=torch.tensor([1.0, math.inf, 1.0]),
        beta_H=torch.tensor([0.5, 0.5, 0.5]),
        mu_H=torch.zeros(3),
        epsilon=1e-5,
    )
    for heads, is_refused in ((range(1), False), (range(2), True), (range(1, 2), True), (range(2, 3), False)):
        t_HC = torch.tensor([[2.0, 1.0]]).expand(len(heads), -1)
        chosen = choose_interpolation(law, heads, t_HC, seen=0, keys=10**5, dtype=torch.float32)
        assert (chosen is None) == is_refused


def _far_field_alone(inputs: Any, prior: Prior, t_HQ: Tensor, rows: range, chosen: Interpolation) -> Tensor:
    """What `rows` see of keys from 0 on, those nearer than the far field left out."""
    q = (inputs.q / math.sqrt(inputs.q.shape[-1]) * t_HQ[..., None]).flip(2)
    empty = Partial(torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf))
    call = Call(
        q_BHQD=q,
        k_BGND=inputs.k,
        v_BGND=inputs.v,
        prior=prior,
        t_HQ=t_HQ.flip(1),
        query_start=rows.start,
        key_start=0,
        result=empty,
    )
    law = prior.power_law()
    assert law is not None
    chunks = len(range(rows.start, rows.stop, interpolation.CHUNK))
    add_far_field(call, range(prior.heads), rows, [0] * chunks, chosen, law)
    return call.result.out_BHCD.flip(2)


@pytest.mark.parametrize("level", [1.0, 5000.0])
def test_a_bias_of_thousands_everywhere_costs_the_content_no_digits(
    level: float, make_inputs: Callable[..., Any]
) -> None:
    rows = range(1500, 1500 + interpolation.CHUNK)
    inputs = make_inputs(
        queries=len(rows), keys=rows.stop, heads=1, head_size=16, batch=1, dtype=torch.float32
    )
    prior = GeneralizedGaussian(1, beta=0.0, learned=())
    prior.log_rate.fill_(math.log(level))
    t_HQ = ssmax_factor(torch.tensor([0.5]), torch.arange(rows.start, rows.stop))
    out = _far_field_alone(inputs, prior, t_HQ, rows, Interpolation(near=1024, terms=4))
    q, k, v = (x.double() for x in inputs)
    logits = t_HQ.double()[..., None] * (q @ k.transpose(-1, -2)) / 4
    for row in (0, 100, interpolation.CHUNK - 1):  # each sees the keys before its chunk's near field
        expected = logits[0, 0, row, : rows.start - 1024].softmax(-1) @ v[0, 0, : rows.start - 1024]
        torch.testing.assert_close(out[0, 0, row].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("beta", [-2.7, -0.7, 0.3, 1.0])
def test_the_bias_of_keys_with_no_weight_costs_those_that_have_some_no_digits(
    beta: float, make_inputs: Callable[..., Any]
) -> None:
    """A thousand at the nearest far key, for β < 0 next to nothing at the farthest, which is looked at."""
    rows = range(4000, 4000 + interpolation.CHUNK)
    inputs = make_inputs(
        queries=len(rows), keys=rows.stop, heads=1, head_size=16, batch=1, dtype=torch.float32
    )
    prior = GeneralizedGaussian(1, alpha=1024 * 1000 ** (-1 / beta), beta=beta, learned=())
    chosen = Interpolation(near=1024, terms=16)
    t_HQ = ssmax_factor(torch.tensor([0.5]), torch.arange(rows.start, rows.stop))
    errors = []
    for dtype in (torch.float32, torch.float64):
        exact = type(inputs)(*(x.to(dtype) for x in inputs))
        t = ssmax_factor(torch.tensor([0.5], dtype=dtype), torch.arange(rows.start, rows.stop))
        errors.append(_far_field_alone(exact, prior.to(dtype), t, rows, chosen))
    q, k, v = (x.double() for x in inputs)
    visible = rows.start - 1024
    rel = torch.arange(visible) - torch.arange(rows.start, rows.stop)[:, None]
    logits = t_HQ.double()[..., None] * ((q @ k.transpose(-1, -2))[..., :visible] / 4 + prior.bias(rel))
    weights = logits.softmax(-1)
    expected = weights @ v[:, :, :visible]
    largest = logits.abs().where(weights > 1e-6, 0.0).max().item()
    in_fp32, in_float64 = errors
    assert (in_fp32 - expected).abs().max() < 8 * 2**-24 * max(largest, 8.0)
    assert (in_float64 - expected).abs().max() < 1e-6  # t is that of fp32


FAR = GeneralizedGaussian(4, alpha=[1.0, 30.0, 5.0, 2.0], beta=[-1.6, 0.5, -0.4, 0.0], learned=())


def _agrees(
    inputs: Any, prior: Prior, s: float | tuple[float, ...] = 0.4, *, query_start: int, key_start: int = 0
) -> None:
    scale_H = torch.tensor(s, dtype=torch.float64).expand(prior.heads)
    arguments = {
        "prior": prior.double(),
        "query_start": query_start,
        "key_start": key_start,
        "ssmax_scale_H": scale_H,
    }
    with torch.no_grad():
        out = cpu.attention(*inputs, **arguments)
        expected = reference.attention(*inputs, **arguments)
    assert (out - expected).abs().max() < 1e-11


@pytest.mark.parametrize("odd", [-1, 0, 1, 17])
@pytest.mark.parametrize("tile_bytes", [1, 2**15, 2**30])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_chunks_and_tiles_end_where_they_may(
    odd: int,
    tile_bytes: int,
    groups: int,
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[pytest.MonkeyPatch]],
    paths_taken: Callable[[], AbstractContextManager[set[str]]],
) -> None:
    """The last chunk is short by one query, whole, of one, of some; tiles of one chunk, of some, of all."""
    with small_parts() as patch, paths_taken() as taken:
        patch.setattr(far_field, "TILE_BYTES", tile_bytes)
        queries = 4 * interpolation.CHUNK + odd
        keys = 400 + queries
        inputs = make_inputs(queries=queries, keys=keys, groups=groups, head_size=9)
        _agrees(inputs, FAR, (0.4, -0.1, 0.2, 0.7), query_start=keys - queries)
        _agrees(inputs, FAR, (0.4, -0.1, 0.2, 0.7), query_start=keys - queries + 50, key_start=50)
    assert "add_far_field" in taken


def test_keys_that_end_before_the_queries_do(
    make_inputs: Callable[..., Any], small_parts: Callable[[], AbstractContextManager[Any]]
) -> None:
    """They may be a view of a longer buffer: what lies behind them is not theirs."""
    inputs = make_inputs(queries=150, keys=600)
    behind = type(inputs)(inputs.q, inputs.k.clone(), inputs.v.clone())
    behind.k[:, :, 400:] = math.nan
    behind.v[:, :, 400:] = math.nan
    shorter = type(inputs)(behind.q, behind.k[:, :, :400], behind.v[:, :, :400])
    with small_parts():
        for query_start in (250, 251, 300, 400, 500, 2000):
            _agrees(shorter, FAR, query_start=query_start)
            _agrees(shorter, Laplace(4, slopes=[0.5, 0.01, 3.0, 0.0]), query_start=query_start)


def test_near_fields_that_reach_behind_all_there_is_to_look_at(
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[Any]],
) -> None:
    """A location far back, and a prior so narrow around it that nothing behind the near field matters."""
    prior = GeneralizedGaussian(4, alpha=0.5, beta=1.0, mu=[-200.0, -200.0, -150.5, -190.0], learned=())
    inputs = make_inputs(queries=100, keys=900)
    with small_parts():
        q = type(inputs)(0.01 * inputs.q, inputs.k, inputs.v)
        _agrees(q, prior, 1.0, query_start=800)


def test_decaying_heads_whose_far_field_ends_somewhere(
    make_inputs: Callable[..., Any],
    small_parts: Callable[[], AbstractContextManager[Any]],
    paths_taken: Callable[[], AbstractContextManager[set[str]]],
) -> None:
    inputs = make_inputs(queries=500, keys=900)
    with small_parts(), paths_taken() as taken:
        q = type(inputs)(0.01 * inputs.q, inputs.k, inputs.v)
        _agrees(q, Laplace(4, slopes=[0.03, 0.04, 0.05, 0.02]), 1.0, query_start=400)
    assert "add_far_field" in taken


def test_windows_that_grow_along_the_queries(
    make_inputs: Callable[..., Any],
    make_steps: Callable[..., Prior],
    small_parts: Callable[[], AbstractContextManager[Any]],
    paths_taken: Callable[[], AbstractContextManager[set[str]]],
) -> None:
    """Later tiles look back farther than earlier ones have keys before them."""
    inputs = make_inputs(queries=700, keys=700)
    tiny = type(inputs)(1e-3 * inputs.q, inputs.k, inputs.v)
    with small_parts(), paths_taken() as taken, torch.no_grad():
        for between in range(40, 46):  # what ln n + 53 ln 2 passes on the way
            prior = make_steps(4, {0: 0.0, 30: -float(between), 110: -1000.0})
            out = cpu.attention(*tiny, prior=prior, query_start=0)
            expected = reference.attention(*tiny, prior=prior, query_start=0)
            assert (out - expected).abs().max() < 1e-12
    assert "attend_windows" in taken


def test_a_bias_that_comes_near_its_floor_is_not_interpolated() -> None:
    law = GeneralizedGaussian(1, alpha=1e-9, beta=3.0).power_law()
    assert law is not None
    assert _choose(law) is None
    gentle = GeneralizedGaussian(1, alpha=1e-3, beta=3.0).power_law()
    assert gentle is not None
    assert _choose(gentle) is not None
