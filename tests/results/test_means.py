import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, bootstrap, t

from bamctl.results.means import (
    Scores,
    average_interval,
    count_scores,
    difference_interval,
    mean_interval,
    recall_interval,
)
from bamctl.results.proportions import wilson_interval

QUARTERS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=2, max_size=40),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_the_interval_of_a_mean_agrees_with_scipy(values, confidence):
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = t.ppf((1 + confidence) / 2, n - 1) * error
    low, high = mean_interval(values, confidence)
    assert (low, high) == (pytest.approx(mean - half, abs=1e-6), pytest.approx(mean + half, abs=1e-6))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 31, 500, 501, 1000])
def test_the_interval_is_as_wide_as_the_tables_of_t_say(freedom):
    values = [(-1.0) ** number for number in range(freedom + 1)]
    low, high = mean_interval(values)
    wide = t.interval(0.95, freedom, loc=sum(values) / len(values), scale=pd.Series(values).sem())
    assert (low, high) == pytest.approx(wide, rel=1e-9)


@pytest.mark.parametrize("values", [[], [2.5]])
def test_fewer_than_two_values_say_nothing_of_their_spread(values):
    assert mean_interval(values) is None


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_no_mean_has_an_interval_at_such_a_confidence(confidence):
    with pytest.raises(ValueError, match="no interval"):
        mean_interval([1.0, 2.0], confidence)


def test_scores_are_counted():
    scores = count_scores([1.0, 0.1 + 0.2, 0.3, 0.0, -0.0])
    assert (scores.values, scores.counts) == ((0.0, 0.3, 1.0), (2, 2, 1))
    assert (scores.n, scores.mean) == (5, pytest.approx(0.32))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(0, 200))
def test_where_all_is_right_or_wrong_it_is_wilson_s(n, right):
    right = min(n, right)
    assert recall_interval(count_scores([1.0] * right + [0.0] * (n - right))) == wilson_interval(right, n)


@settings(max_examples=60, deadline=None)
@given(st.lists(QUARTERS, min_size=1, max_size=40))
def test_an_interval_holds_the_mean_and_is_never_narrower_than_all_right(scores):
    counted = count_scores(scores)
    low, high = recall_interval(counted)
    assert 0 <= low <= counted.mean <= high <= 1
    assert low <= wilson_interval(len(scores), len(scores))[0]
    assert high >= wilson_interval(0, len(scores))[1]


@pytest.mark.parametrize("n", [2, 5, 20, 100])
@pytest.mark.parametrize("score", [0.25, 0.5, 0.75])
def test_where_all_scores_are_equal_it_has_a_width(n, score):
    low, high = recall_interval(count_scores([score] * n))
    assert high - low > 0.5 / n
    assert low < score < high


def test_one_more_reference_missed_never_raises_the_lower_end():
    ends = [recall_interval(count_scores([1.0] * 19 + [last]))[0] for last in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert ends == sorted(ends)
    assert ends[0] == pytest.approx(wilson_interval(19, 20)[0])


@pytest.mark.parametrize(("right", "n"), [(1, 5), (5, 10), (18, 20), (70, 100)])
def test_two_strata_of_right_and_wrong_are_nearly_jeffreys_(right, n):
    """The mean of two alike has nearly the posterior of all their samples together."""
    half = Scores(values=(0.0, 1.0), counts=(n - right, right))
    low, high = average_interval((half, half))
    posterior = beta(2 * right * (n - 1) / n + 0.5, 2 * (n - right) * (n - 1) / n + 0.5)
    assert (low, high) == (
        pytest.approx(posterior.ppf(0.025), abs=0.03),
        pytest.approx(posterior.ppf(0.975), abs=0.03),
    )


def test_of_many_samples_it_is_the_usual_bootstrap_s():
    scores = np.random.default_rng(0).choice(
        [0.0, 0.25, 0.5, 0.75, 1.0], p=[0.1, 0.1, 0.2, 0.2, 0.4], size=2000
    )
    usual = bootstrap((scores,), np.mean, n_resamples=4000, random_state=1, method="percentile")
    low, high = recall_interval(count_scores(scores))
    chance = 4 * usual.standard_error / math.sqrt(500)  # of quantiles from some thousand resamples, amply
    assert (low, high) == pytest.approx(tuple(usual.confidence_interval), abs=chance)


def test_an_average_s_variance_is_that_of_strata_and_not_of_all_samples_together():
    """One task always right and one always at ½: there is next to no spread within either."""
    right, half = count_scores([1.0] * 400), count_scores([0.25, 0.75] * 200)
    low, high = average_interval((right, half))
    expected = 2 * 1.96 * math.sqrt(0.25**2 / 400) / 2
    assert high - low == pytest.approx(expected, rel=0.15)
    assert (low + high) / 2 == pytest.approx(0.75, abs=0.003)


def test_weights_are_what_strata_count():
    few, many = count_scores([0.0, 0.25] * 200), count_scores([0.75, 1.0] * 200)
    low, high = average_interval((few, many), (0.1, 0.9))
    assert low < 0.1 * 0.125 + 0.9 * 0.875 < high
    assert high - low < 0.04


def test_eight_tasks_all_right_are_not_all_right_for_sure():
    low, high = average_interval((count_scores([1.0] * 20),) * 8)
    assert (low, high) == (pytest.approx(wilson_interval(160, 160)[0], abs=0.01), 1.0)


def test_a_stratum_of_one_sample_has_wilson_s_conservative_interval():
    one, two = count_scores([0.5]), count_scores([0.5, 0.5])
    assert average_interval((one, two)) == wilson_interval(1, 2)
    assert recall_interval(one) == wilson_interval(0.5, 1)


def test_the_same_samples_have_the_same_interval_whatever_else_is_drawn():
    scores = count_scores([0.25, 0.5, 1.0, 1.0])
    first = average_interval.__wrapped__((scores, scores))
    np.random.default_rng().random(5)
    np.random.seed(1)
    assert average_interval.__wrapped__((scores, scores)) == first


@pytest.mark.parametrize(
    ("values", "chances"),
    [((0.0, 0.25, 0.5, 0.75, 1.0), (0.01, 0.03, 0.06, 0.2, 0.7)), ((0.75, 1.0), (0.1, 0.9))],
)
@pytest.mark.parametrize(("n", "tasks"), [(20, 1), (10, 4)])
def test_of_a_hundred_intervals_some_five_miss_the_mean(values, chances, n, tasks):
    random = np.random.default_rng(3)
    held = 0
    for _ in range(150):
        strata = tuple(count_scores(random.choice(values, p=chances, size=n)) for _ in range(tasks))
        low, high = average_interval(strata)
        held += low <= np.dot(values, chances) <= high
    assert held >= 134  # of 150 at 95%: fewer in one case of five hundred


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_the_interval_of_a_difference_mirrors_that_of_the_other_way_round(differences):
    low, high = difference_interval(count_scores(differences))
    other = difference_interval(count_scores([-difference for difference in differences]))
    assert -1 <= low <= np.mean(differences) + 1e-12
    assert np.mean(differences) - 1e-12 <= high <= 1
    if abs(np.mean(differences)) > 1e-12:
        assert other == (-high, -low)


def test_of_many_differences_it_is_the_t_interval():
    differences = np.random.default_rng(0).choice([-0.5, -0.25, 0.0, 0.25, 0.5], size=2000)
    low, high = difference_interval(count_scores(differences))
    wide = mean_interval(differences.tolist())
    assert (low, high) == pytest.approx(wide, abs=0.1 * (wide[1] - wide[0]))


def test_no_difference_at_all_is_not_none_for_sure():
    low, high = difference_interval(count_scores([0.0] * 20))
    assert 0.05 < high < 0.25
    assert -0.25 < low < -0.05
    assert difference_interval(count_scores([0.5])) == (-1.0, 1.0)
