import numpy as np
import pytest

from bamctl.cli.time_left import TimeLeft, words_for_seconds, words_for_time_left
from bamctl.evaluation.run import Progress


def told(length, done, *, seconds=0.0, ran=0, samples=10, skipped=False):
    return Progress(
        model="m",
        task="passkey",
        length=length,
        done=done,
        samples=samples,
        right=0,
        metric="exact",
        score_sum=0.0,
        seconds=seconds,
        ran=ran,
        skipped=skipped,
    )


def planned(*lengths, samples=10):
    return dict.fromkeys(lengths, samples)


def linear(*lengths, samples=10):
    """An estimate for work that grows with the length, the same for every sample."""
    return TimeLeft(planned(*lengths, samples=samples), lambda n: np.arange(samples + 1) * float(n))


def unforeseen(*lengths, samples=10):
    return TimeLeft(planned(*lengths, samples=samples), lambda n: None)


@pytest.mark.parametrize("make", [linear, unforeseen])
def test_nothing_is_known_before_anything_was_measured(make):
    estimate = make(1000, 2000)
    estimate.update(told(1000, 0))
    assert (estimate.seconds_left(), estimate.rate(1000)) == (None, None)


@pytest.mark.parametrize("make", [linear, unforeseen])
def test_at_one_length_time_goes_with_the_samples(make):
    estimate = make(1000)
    estimate.update(told(1000, 2, seconds=4.0, ran=2))
    assert estimate.seconds_left() == pytest.approx(8 * 2.0)
    estimate.update(told(1000, 4, seconds=8.0, ran=2))
    assert estimate.seconds_left() == pytest.approx(6 * 3.0)
    assert estimate.rate(1000) == pytest.approx(4000 / 12)


def test_longer_lengths_take_the_time_of_their_work_and_the_overhead():
    estimate = linear(1000, 2000, 4000, 8000)
    estimate.update(told(1000, 10, seconds=15.0, ran=10))
    assert estimate.seconds_left() is None  # how much of it is work, one length does not tell
    estimate.update(told(2000, 5, seconds=12.5, ran=5))  # 0.5 s a sample and 1 s for 1000 tokens
    assert estimate.seconds_left() == pytest.approx(5 * 2.5 + 10 * 4.5 + 10 * 8.5)


def test_work_may_grow_as_it_likes():
    estimate = TimeLeft(planned(1, 2, 64), lambda n: np.arange(11) * float(n**2))
    estimate.update(told(1, 10, seconds=10.0, ran=10))
    estimate.update(told(2, 10, seconds=40.0, ran=10))
    assert estimate.seconds_left() == pytest.approx(10 * 64**2)


def test_samples_that_share_their_beginning_tell_of_longer_lengths():
    """The first one reads all, and those to come more and more."""
    shares = np.cumsum([0.0, 1.0, 0.25, 0.5, 1.0])
    estimate = TimeLeft(planned(1000, 2000, samples=4), lambda n: shares * n)
    estimate.update(told(1000, 1, seconds=5.0, ran=1, samples=4))
    assert estimate.seconds_left() is None
    estimate.update(told(1000, 2, seconds=2.0, ran=1, samples=4))  # 1 s a sample, 4 s for 1000 tokens
    assert estimate.seconds_left() == pytest.approx((3 + 5) + (4 * 1 + 2.75 * 8))


def test_samples_of_earlier_runs_were_the_deepest():
    estimate = TimeLeft(planned(1000, samples=4), lambda n: np.cumsum([0.0, 1.0, 0.25, 0.5, 1.0]) * n)
    estimate.update(told(1000, 2, samples=4))
    estimate.update(told(1000, 3, seconds=2.0, ran=1, samples=4))
    assert estimate.seconds_left() == pytest.approx(4.0)


def test_what_the_first_batch_took_counts_until_others_tell_as_much():
    estimate = linear(1000, 2000, 4000)
    estimate.update(told(1000, 1, seconds=50.0, ran=1))
    assert estimate.seconds_left() is None
    estimate.update(told(1000, 10, seconds=9.0, ran=9))
    estimate.update(told(2000, 10, seconds=20.0, ran=10))
    assert estimate.seconds_left() == pytest.approx(10 * 4.0)


def test_nothing_is_said_of_longer_lengths_whose_work_is_not_foreseen():
    estimate = unforeseen(1000, 2000)
    estimate.update(told(1000, 5, seconds=5.0, ran=5))
    assert estimate.seconds_left() is None
    estimate.update(told(1000, 10, seconds=5.0, ran=5))
    estimate.update(told(2000, 4, seconds=12.0, ran=4))
    assert estimate.seconds_left() == pytest.approx(6 * 3.0)


@pytest.mark.parametrize("make", [linear, unforeseen])
def test_samples_that_were_there_already_and_skipped_ones_need_no_time(make):
    estimate = make(1000, 2000, 4000)
    estimate.update(told(1000, 10))
    estimate.update(told(2000, 9))
    estimate.update(told(2000, 10, seconds=3.0, ran=1))
    assert estimate.seconds_left() is None  # one length tells nothing of the others
    estimate.update(told(4000, 0, skipped=True))
    assert estimate.seconds_left() == 0


def test_a_length_may_have_fewer_samples_than_others():
    estimate = TimeLeft({1000: 2, 2000: 1}, lambda n: np.arange(3) * float(n))
    estimate.update(told(1000, 1, seconds=1.0, ran=1, samples=2))
    estimate.update(told(1000, 2, seconds=1.0, ran=1, samples=2))
    estimate.update(told(2000, 0, samples=1))
    estimate.update(told(2000, 1, seconds=2.0, ran=1, samples=1))
    assert estimate.seconds_left() == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (5999, "100 min"),
        (6000, "2 h"),
        (7200, "2 h"),
        (7201, "3 h"),
    ],
)
def test_seconds_in_words(seconds, text):
    assert words_for_seconds(seconds) == text
    assert words_for_time_left(seconds) == f"{text} left"


def test_time_left_that_nobody_knows():
    assert words_for_time_left(None) == "time left unknown"
