import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from bamctl.results.proportions import (
    samples_to_reach,
    samples_to_tell_apart,
    told_apart,
    wilson_interval,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_agrees_with_scipy(n, share, confidence):
    successes = round(share * n)
    interval = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    low, high = wilson_interval(successes, n, confidence)
    assert low == pytest.approx(interval.low, abs=1e-12)
    assert high == pytest.approx(interval.high, abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1


@pytest.mark.parametrize(("n", "low"), [(10, 0.72), (20, 0.84), (100, 0.96)])
def test_wilson_where_all_are_right_or_none(n, low):
    assert wilson_interval(n, n) == (pytest.approx(low, abs=0.005), 1.0)
    assert wilson_interval(0, n) == (0.0, pytest.approx(1 - low, abs=0.005))


@pytest.mark.parametrize(
    ("successes", "n", "confidence"),
    [(0, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 0.0), (1, 5, 1.0)],
)
def test_wilson_refuses_what_has_no_interval(successes, n, confidence):
    with pytest.raises(ValueError, match="no interval"):
        wilson_interval(successes, n, confidence)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fractions(0, 1, max_denominator=40), min_size=1, max_size=60))
def test_wilson_of_a_sum_of_scores_lies_between_those_of_the_counts_beside_it(scores):
    total, n = float(sum(scores)), len(scores)
    low, high = wilson_interval(total, n)
    below, above = wilson_interval(math.floor(total), n), wilson_interval(math.ceil(total), n)
    assert below[0] <= low <= above[0]
    assert below[1] <= high <= above[1]
    assert low <= total / n <= high


def test_twenty_three_of_twenty_three_reach_ruler_s_threshold():
    assert samples_to_reach(0.856) == 23
    assert wilson_interval(22, 22)[0] < 0.856 <= wilson_interval(23, 23)[0]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 0.9999))
def test_the_fewest_samples_that_reach_a_threshold(threshold):
    n = samples_to_reach(threshold)
    assert wilson_interval(n, n)[0] >= threshold
    assert n == 1 or wilson_interval(n - 1, n - 1)[0] < threshold


def test_no_number_of_samples_reaches_all():
    assert samples_to_reach(1.0) is None


@pytest.mark.parametrize("difference", [0.05, 0.1, 0.3, 0.45])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_samples_have_the_power_that_statsmodels_finds(difference, power):
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    n = samples_to_tell_apart(difference, power)

    def found(samples):
        halves = (0.5 + difference / 2, 0.5 - difference / 2)
        return proportion.power_proportions_2indep(halves[0] - halves[1], halves[1], samples).power

    assert found(n) >= power - 1e-9 > found(n - 1) - 2e-9


def test_ten_points_take_392_samples():
    assert samples_to_tell_apart(0.1) == 392
    assert told_apart(392) <= 0.1 < told_apart(391)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5000))
def test_what_n_tells_is_told_by_n_and_by_no_fewer(n):
    least = told_apart(n)
    assert samples_to_tell_apart(least) <= n
    assert samples_to_tell_apart(least * 0.999) >= n


def test_one_sample_tells_nothing():
    assert told_apart(1) is None
    assert told_apart(2) is not None
