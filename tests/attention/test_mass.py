"""Where the mass of a prior lies, against a plain softmax over all distances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bamctl.attention import GeneralizedGaussian, Laplace, Uniform
from bamctl.attention.mass import DistanceMass, HeadPrior, head_priors

SHARES = (1e-3, 0.5, 0.9, 0.99, 1 - 1e-6)
PRECISION = 1e-11


def prior(*, alpha: float = 1.0, beta: float, mu: float = 0.0) -> HeadPrior:
    return HeadPrior(rate=alpha**-beta, beta=beta, mu=mu, epsilon=1e-5)


def cumulative(of_head: HeadPrior, length: int, factor: float) -> NDArray[np.float64]:
    """The share of the mass within each distance, by the definition."""
    distances = np.arange(length)
    logits = -factor * of_head.rate * (np.abs(distances + of_head.mu) + of_head.epsilon) ** of_head.beta
    weights = np.exp(logits - logits.max())
    return np.cumsum(weights) / weights.sum()


@settings(max_examples=60, deadline=None)
@given(
    beta=st.one_of(st.floats(-3, 4), st.sampled_from([-1.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 1.0, 2.0, 8.0])),
    log_alpha=st.floats(-4, 9),
    mu=st.one_of(st.just(0.0), st.floats(-5000, 100), st.integers(-5000, 100).map(float)),
    length=st.one_of(st.integers(1, 4096), st.sampled_from([1, 2, 64, 65, 66, 4096])),
    factor=st.one_of(st.just(1.0), st.floats(-3, 8)),
)
@example(beta=1.0, log_alpha=0.0, mu=-100.0, length=4096, factor=0.0)
@example(beta=-1.5, log_alpha=3.0, mu=-2000.5, length=4096, factor=1.0)
@example(beta=0.3, log_alpha=-2.0, mu=-9000.0, length=4096, factor=-0.5)
def test_it_is_the_softmax(beta: float, log_alpha: float, mu: float, length: int, factor: float) -> None:
    log_rate = -beta * log_alpha
    of_head = HeadPrior(rate=math.exp(log_rate), beta=beta, mu=mu, epsilon=1e-5)
    expected = cumulative(of_head, length, factor)
    mass = DistanceMass(of_head, length=length, factor=factor)
    for distance in {0, 1, 63, 64, 65, length // 3, length // 2, length - 2, length - 1} & set(range(length)):
        assert mass.within(distance) == pytest.approx(expected[distance], abs=PRECISION)
    for share in SHARES:
        reach = mass.reach(share)
        assert 0 <= reach < length
        assert expected[reach] >= share - PRECISION
        assert reach == 0 or expected[reach - 1] < share + PRECISION
    at = mass.at(np.arange(length, dtype=np.float64))
    assert at.cumsum() == pytest.approx(expected, abs=PRECISION)


@pytest.mark.parametrize(
    ("of_head", "factor"),
    [
        (prior(alpha=1e5, beta=1.0), 1.0),
        (prior(alpha=3e4, beta=0.3), 4.0),
        (prior(alpha=2e4, beta=-0.5), 1.0),
        (prior(alpha=1e5, beta=2.0, mu=-4e5), 1.0),
        (prior(alpha=1e5, beta=-1.0, mu=-4e5), 1.0),
        (prior(alpha=1e5, beta=1.0), -1.0),
        (prior(alpha=4e5, beta=9.0), 3.0),
    ],
    ids=str,
)
def test_a_million_distances_are_counted_to_the_token(of_head: HeadPrior, factor: float) -> None:
    length = 2**20
    distances = np.arange(length, dtype=np.float64)
    logits = factor * of_head.bias(distances)
    shares = np.cumsum(np.exp(logits - logits.max()), dtype=np.longdouble)
    shares /= shares[-1]
    mass = DistanceMass(of_head, length=length, factor=factor)
    assert len(mass._starts) < 250
    for share in (0.01, 0.5, 0.99):
        assert mass.reach(share) == np.searchsorted(shares, share)
    for distance in (100, 12345, length // 2):
        assert mass.within(distance) == pytest.approx(float(shares[distance]), rel=1e-11, abs=1e-300)


def test_a_uniform_prior_reaches_99_percent_of_any_length() -> None:
    (of_head,) = head_priors(Uniform(1))
    for length in (1, 100, 101, 4096, 2**20, 10**12, 2**40):
        mass = DistanceMass(of_head, length=length)
        assert mass.reach() == -(-99 * length // 100) - 1
        assert mass.reach(1.0) == length - 1
        assert mass.within(length // 2) == pytest.approx((length // 2 + 1) / length, rel=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1e3, 1e9])
def test_laplace_at_the_greatest_length_has_a_closed_form(alpha: float) -> None:
    """Within d lies 1 - e^-(d+1)/α; what the length cuts off is nothing."""
    mass = DistanceMass(prior(alpha=alpha, beta=1.0), length=2**40)
    assert mass.reach() == math.ceil(alpha * math.log(100)) - 1
    assert mass.within(int(alpha)) == pytest.approx(-math.expm1(-(int(alpha) + 1) / alpha), rel=1e-12)


def test_a_half_gaussian_at_the_greatest_length_has_the_error_function() -> None:
    alpha = 1e10
    mass = DistanceMass(prior(alpha=alpha, beta=2.0), length=2**40)
    assert mass.within(int(alpha)) == pytest.approx(math.erf(1.0), rel=1e-9)
    assert math.erf(mass.reach() / alpha) == pytest.approx(0.99, rel=1e-9)


def test_a_negative_beta_puts_the_mass_far_away() -> None:
    length = 2**40
    mass = DistanceMass(prior(alpha=1e6, beta=-0.5), length=length)
    assert mass.reach() > 0.99 * length
    assert mass.within(10**6) < 1e-6
    assert mass.at(np.array([0.0])) == 0.0


def test_a_negative_factor_turns_the_order_round() -> None:
    """Of Laplace it makes a growth by e a token: the last token has 1 - 1/e of all."""
    mass = DistanceMass(prior(beta=1.0), length=2**40, factor=-1.0)
    assert mass.reach(0.36) == 2**40 - 2
    assert mass.reach(0.37) == 2**40 - 1


def test_a_location_moves_the_middle() -> None:
    assert DistanceMass(prior(alpha=5.0, beta=2.0, mu=-1000.0), length=2**30).reach(0.5) == 1000


@pytest.mark.parametrize("log_rate", [-200.0, 80.0])
@pytest.mark.parametrize("beta", [-60.0, 60.0])
def test_powers_beyond_all_floats_are_weights_all_the_same(log_rate: float, beta: float) -> None:
    of_head = HeadPrior(rate=math.exp(log_rate), beta=beta, mu=0.0, epsilon=1e-5)
    for factor in (1.0, -1.0):
        mass = DistanceMass(of_head, length=2**30, factor=factor)
        assert 0 <= mass.reach() < 2**30
        assert math.isfinite(mass.within(17))


def test_the_heads_of_every_prior() -> None:
    uniform = head_priors(Uniform(2))
    assert [head.is_uniform for head in uniform] == [True, True]
    assert uniform[0].alpha is None
    assert [head.alpha for head in head_priors(Laplace(2))] == [16.0, 256.0]
    learned = GeneralizedGaussian(3, alpha=[0.5, 3.0, 2.0], beta=[-1.5, 0.5, 0.0], mu=[0.0, -4.0, 1.0])
    heads = head_priors(learned)
    assert [head.beta for head in heads] == [-1.5, 0.5, 0.0]
    assert [head.mu for head in heads] == [0.0, -4.0, 1.0]
    assert heads[0].alpha == pytest.approx(0.5, rel=1e-6)
    assert heads[1].alpha == pytest.approx(3.0, rel=1e-6)
    assert heads[2].alpha is None
    assert HeadPrior(rate=0.5, beta=1e-6, mu=0.0, epsilon=1e-5).alpha == math.inf
    distances = np.arange(50.0)
    for head, bias in zip(heads, learned.bias(-torch.arange(50)).tolist(), strict=True):
        if not head.is_uniform:
            assert head.bias(distances) == pytest.approx(bias, rel=1e-5)


def test_the_spread_is_between_two_distances() -> None:
    for of_head in (prior(beta=1.3, mu=-7.4), prior(beta=-0.6, mu=-7.4), prior(beta=0.7, mu=3.0)):
        for length in (1, 5, 8, 40):
            biases = of_head.bias(np.arange(length, dtype=np.float64))
            assert of_head.spread(length) == pytest.approx(biases.max() - biases.min(), abs=0)


@pytest.mark.parametrize("length", [0, 2**40 + 1])
def test_lengths_that_there_are_not(length: int) -> None:
    with pytest.raises(ValueError, match="lies outside"):
        DistanceMass(prior(beta=1.0), length=length)


@pytest.mark.parametrize("share", [0.0, 1.0001, -1.0, math.nan])
def test_shares_that_there_are_not(share: float) -> None:
    with pytest.raises(ValueError, match="lies outside"):
        DistanceMass(prior(beta=1.0), length=10).reach(share)
