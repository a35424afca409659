import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.results.effective import effective_interval, effective_length, length_averages, length_weights


@pytest.mark.parametrize(
    ("accuracies", "effective"),
    [
        ({}, None),
        ({512: 0.855}, None),
        ({512: 0.856}, 512),
        ({512: 1.0, 1024: 0.9, 2048: 0.85}, 1024),
        ({2048: 1.0, 512: 1.0, 1024: 0.5}, 512),
        ({512: 1.0, 1024: 1.0}, 1024),
    ],
)
def test_effective_length_ends_before_the_first_length_below_the_threshold(accuracies, effective):
    assert effective_length(accuracies, 0.856) == effective


@pytest.mark.parametrize(
    ("scores", "averages"),
    [  # Rows of RULER's own leaderboard, 4k to 128k: Gemini-1.5-pro, GPT-4-1106-preview.
        ([96.7, 95.8, 96.0, 95.9, 95.9, 94.4], (95.8, 95.5, 96.1)),
        ([96.6, 96.3, 95.2, 93.2, 87.0, 81.2], (91.6, 89.0, 94.1)),
        ([50.0], (50.0, 50.0, 50.0)),
        ([90.0, 30.0], (60.0, 50.0, 70.0)),
    ],
)
def test_ruler_s_averages_over_lengths(scores, averages):
    by_length = {4096 * 2**rank: score for rank, score in enumerate(scores)}
    backwards = dict(reversed(by_length.items()))
    for order in (by_length, backwards):
        assert tuple(round(average, 1) for average in length_averages(order)) == averages


def test_an_effective_length_does_not_end_at_a_rounding():
    tenths = [0.1] * 8
    assert sum(tenths) < 0.8
    assert effective_length({512: sum(tenths)}, 0.8) == 512


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20))
def test_lengths_weigh_one_in_all_and_by_rank(count):
    plain, rising, falling = length_weights(count)
    assert sum(plain) == pytest.approx(1)
    assert sum(rising) == pytest.approx(1)
    assert falling == rising[::-1]
    assert [weight / rising[0] for weight in rising] == pytest.approx(range(1, count + 1))


@pytest.mark.parametrize(
    ("intervals", "ends"),
    [
        ([], (None, None)),
        ([(0.9, 1.0), (0.88, 0.99), (0.7, 0.9), (0.1, 0.3)], (1024, 2048)),
        ([(0.84, 1.0), (0.9, 1.0)], (None, 1024)),
        ([(0.1, 0.2), (0.9, 1.0)], (None, None)),
        ([(0.856, 1.0), (0.5, 0.856)], (512, 1024)),
        ([(0.856, 1.0), (0.5, 0.855)], (512, 512)),
        ([(0.9, 1.0), (0.9, 1.0)], (1024, 1024)),
    ],
)
def test_between_which_lengths_the_effective_one_lies(intervals, ends):
    by_length = {512 * 2**rank: interval for rank, interval in enumerate(intervals)}
    assert effective_interval(by_length, 0.856) == ends
    assert effective_interval(dict(reversed(by_length.items())), 0.856) == ends


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), max_size=8), st.floats(0, 1))
def test_the_effective_length_lies_in_its_interval(scores, threshold):
    ordered = {512 * 2**rank: sorted(three) for rank, three in enumerate(scores)}
    low, high = effective_interval({length: (a, c) for length, (a, _, c) in ordered.items()}, threshold)
    length = effective_length({length: b for length, (_, b, _) in ordered.items()}, threshold)
    assert (low or 0) <= (length or 0) <= (high or 0)
