import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binomtest, permutation_test

from bamctl.results.comparison import holm, mcnemar_p, paired_interval, sign_flip_p
from bamctl.results.means import count_scores

STEPS = st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])


@settings(max_examples=50, deadline=None)
@given(only_a=st.integers(0, 60), only_b=st.integers(0, 60))
def test_p_is_the_exact_binomial_test_s(only_a, only_b):
    n = only_a + only_b
    expected = binomtest(only_a, n).pvalue if n else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(only_a=st.integers(0, 40), only_b=st.integers(0, 40))
def test_p_is_statsmodels_exact_mcnemar_s(only_a, only_b):
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    if only_a + only_b:
        expected = tables.mcnemar([[5, only_a], [only_b, 5]], exact=True).pvalue
        assert mcnemar_p(only_a, only_b) == pytest.approx(expected, rel=1e-9)


def test_p_of_many_samples():
    assert mcnemar_p(2400, 2600) == pytest.approx(binomtest(2400, 5000).pvalue, rel=1e-9)
    assert mcnemar_p(0, 5000) == 0.0  # too small for a float


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=9))
def test_p_of_differences_is_the_share_of_all_choices_of_signs(differences):
    seen = abs(sum(differences))
    sums = [
        abs(sum(sign * difference for sign, difference in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(each >= seen - 1e-9 for each in sums) / len(sums)
    assert sign_flip_p(count_scores(differences)) == pytest.approx(expected)


def test_p_of_differences_agrees_with_scipy():
    differences = np.array([0.5, 1 / 3, -0.25, 0.0, 0.75, 0.25, 2 / 3, 0.5, 1.0, -0.5])
    expected = permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert sign_flip_p(count_scores(differences)) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(only_a=st.integers(0, 30), only_b=st.integers(0, 30), size=st.sampled_from([0.25, 1.0]))
def test_of_right_and_wrong_it_is_mcnemar_s(only_a, only_b, size):
    differences = count_scores([size] * only_a + [-size] * only_b + [0.0] * 3)
    assert sign_flip_p(differences) == mcnemar_p(only_a, only_b)


@pytest.mark.parametrize("times", [1000, 2000])
def test_many_differences_are_nearly_normal(times):
    """On either side of where they are taken to be."""
    differences = [0.5] * (times + 40) + [-0.5] * times + [0.25, -0.25] * times
    variance = sum(difference**2 for difference in differences)
    expected = math.erfc(20 / math.sqrt(2 * variance))
    assert sign_flip_p(count_scores(differences)) == pytest.approx(expected, rel=0.02)


def test_tango_s_interval_of_a_published_example():
    """Airway hyper-responsiveness before and after stem cell transplantation: Fagerland et al. 2014."""
    assert paired_interval(1, 7, 21) == (pytest.approx(-0.517, abs=5e-4), pytest.approx(-0.026, abs=5e-4))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 15), st.integers(0, 15), st.integers(0, 15))
def test_tango_s_interval_is_the_score_test_s(only_a, only_b, both):
    """Against its definition, with the likelihood maximised by scipy."""
    n = only_a + only_b + both + 1

    def statistic(difference):
        def unlikely(q):
            probabilities = (q + difference, q, 1 - 2 * q - difference)
            counts = (only_a, only_b, n - only_a - only_b)
            pairs = zip(counts, probabilities, strict=True)
            return -sum(count * math.log(max(p, 1e-300)) for count, p in pairs if count)

        bounds = (max(0.0, -difference), (1 - difference) / 2)
        q = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-13}).x
        return (only_a - only_b - n * difference) / math.sqrt(n * (2 * q + difference - difference**2))

    seen = (only_a - only_b) / n
    ends = paired_interval(only_a, only_b, n)
    for end, outside, sign in zip(ends, (-1 + 1e-9, 1 - 1e-9), (1, -1), strict=True):
        if abs(end) < 1 - 1e-6:
            root = brentq(lambda x, sign=sign: statistic(x) - sign * 1.959963984540054, outside, seen)
            assert end == pytest.approx(root, abs=1e-4)
    assert -1 <= ends[0] <= seen <= ends[1] <= 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_paired_interval_the_other_way_round_has_the_other_sign(only_a, only_b, rest):
    n = only_a + only_b + rest + 1
    low, high = paired_interval(only_a, only_b, n)
    assert paired_interval(only_b, only_a, n) == (pytest.approx(-high), pytest.approx(-low))


def test_no_difference_among_few_is_not_none_for_sure():
    assert paired_interval(0, 0, 20) == (pytest.approx(-0.1611, abs=1e-4), pytest.approx(0.1611, abs=1e-4))
    assert paired_interval(20, 0, 20)[1] == 1.0
    assert paired_interval(0, 20, 20)[0] == -1.0


@pytest.mark.parametrize("counts", [(0, 0, 0), (3, 3, 5), (-1, 0, 5)])
def test_there_is_no_interval_of_no_samples(counts):
    with pytest.raises(ValueError, match="no interval"):
        paired_interval(*counts)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_holm_agrees_with_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    ps = np.random.default_rng(0).random(12) ** 3
    assert holm(ps) == pytest.approx(list(multitest.multipletests(ps, method="holm")[1]))
