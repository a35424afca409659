from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bamctl.backends.base import ModelDescription
from bamctl.cli.progress import ProgressPrinter, TimeLeft
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, Progress, RunSummary


def request(*lengths, samples=10):
    return EvaluationRequest(lengths=lengths, samples=samples, depths=parse_depths("random", samples))


def told(
    length, done, *, seconds=0.0, ran=0, right=0, samples=10, skipped=False, metric="exact", score_sum=None
):
    return Progress(
        model="m",
        task="passkey",
        length=length,
        done=done,
        samples=samples,
        right=right,
        metric=metric,
        score_sum=float(right) if score_sum is None else score_sum,
        seconds=seconds,
        ran=ran,
        skipped=skipped,
    )


def linear(*lengths, samples=10):
    """An estimate for work that grows with the length, the same for every sample."""
    return TimeLeft(request(*lengths, samples=samples), lambda n: np.arange(samples + 1) * float(n))


def unforeseen(*lengths, samples=10):
    return TimeLeft(request(*lengths, samples=samples), lambda n: None)


@pytest.mark.parametrize("make", [linear, unforeseen])
def test_nothing_is_known_before_anything_was_measured(make):
    estimate = make(1000, 2000)
    estimate.update(told(1000, 0))
    assert (estimate.seconds_left(), estimate.rate(1000), estimate.samples_done) == (None, None, 0)
    assert estimate.left_text() == estimate.text() == "time left unknown"


@pytest.mark.parametrize("make", [linear, unforeseen])
def test_at_one_length_time_goes_with_the_samples(make):
    estimate = make(1000)
    estimate.update(told(1000, 2, seconds=4.0, ran=2))
    assert estimate.seconds_left() == pytest.approx(8 * 2.0)
    estimate.update(told(1000, 4, seconds=8.0, ran=2))
    assert estimate.seconds_left() == pytest.approx(6 * 3.0)
    assert estimate.rate(1000) == pytest.approx(4000 / 12)
    assert estimate.text() == "333 tokens/s, 18 s left"
    assert estimate.samples_done == 4


def test_longer_lengths_take_the_time_of_their_work_and_the_overhead():
    estimate = linear(1000, 2000, 4000, 8000)
    estimate.update(told(1000, 10, seconds=15.0, ran=10))
    assert estimate.seconds_left() is None  # how much of it is work, one length does not tell
    estimate.update(told(2000, 5, seconds=12.5, ran=5))  # 0.5 s a sample and 1 s for 1000 tokens
    assert estimate.seconds_left() == pytest.approx(5 * 2.5 + 10 * 4.5 + 10 * 8.5)


def test_work_may_grow_as_it_likes():
    estimate = TimeLeft(request(1, 2, 64), lambda n: np.arange(11) * float(n**2))
    estimate.update(told(1, 10, seconds=10.0, ran=10))
    estimate.update(told(2, 10, seconds=40.0, ran=10))
    assert estimate.seconds_left() == pytest.approx(10 * 64**2)


def test_samples_that_share_their_beginning_tell_of_longer_lengths():
    """The first one reads all, and those to come more and more."""
    shares = np.cumsum([0.0, 1.0, 0.25, 0.5, 1.0])
    estimate = TimeLeft(request(1000, 2000, samples=4), lambda n: shares * n)
    estimate.update(told(1000, 1, seconds=5.0, ran=1, samples=4))
    assert estimate.seconds_left() is None
    estimate.update(told(1000, 2, seconds=2.0, ran=1, samples=4))  # 1 s a sample, 4 s for 1000 tokens
    assert estimate.seconds_left() == pytest.approx((3 + 5) + (4 * 1 + 2.75 * 8))


def test_samples_of_earlier_runs_were_the_deepest():
    estimate = TimeLeft(request(1000, samples=4), lambda n: np.cumsum([0.0, 1.0, 0.25, 0.5, 1.0]) * n)
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
    assert estimate.samples_done == 30


@pytest.mark.parametrize(
    ("seconds", "text"), [(99, "99 s left"), (100, "2 min left"), (7200, "120 min left")]
)
def test_time_left_in_words(seconds, text):
    estimate = linear(1000, samples=2)
    estimate.update(told(1000, 1, seconds=float(seconds), ran=1, samples=2))
    assert estimate.left_text() == text


@pytest.fixture
def printer():
    backend = SimpleNamespace(
        name="native",
        device="cpu",
        dtype="float32",
        model=ModelDescription(
            name="mine[red]",
            digest="",
            position_encoding="rotary",
            ssmax=False,
            train_length=None,
            parameters=None,
            longest_prompt=None,
        ),
        workload=lambda sample, longest: None,
    )
    task = SimpleNamespace(
        spec=SimpleNamespace(name="passkey", variant="digits=7"),
        shortest_length=90,
        build=lambda length, depth, rng: None,
    )
    return lambda: ProgressPrinter(backend, task, request(1000, 2048))


def summary(ran, found):
    return RunSummary(run_id="r", folder=Path("r"), row_ids=frozenset(), ran=ran, found=found)


def test_nothing_is_said_before_the_run_begins(printer, capsys):
    with pytest.raises(ZeroDivisionError), printer():
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "")


def test_a_line_a_length_where_stderr_is_no_terminal(printer, capsys):
    with printer() as shown:
        shown.update(told(1000, 0))
        shown.update(told(1000, 5, seconds=5.0, ran=5, right=4))
        shown.update(told(1000, 10, seconds=5.0, ran=5, right=9))
        shown.update(told(2048, 0, skipped=True))
        shown.finish(summary(10, 0))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "mine[red]: rotary; native on cpu, float32",
        "passkey (digits=7): 10 samples at each of 1000, 2k (2048) tokens; depths random; seed 0",
        "  1000: 9/10 right, 1,000 tokens/s",
        "  2k: skipped",
    ]


def test_for_ruler_s_tasks_the_mean_recall_is_told(printer, capsys):
    with printer() as shown:
        shown.update(told(1000, 0, metric="string_match_all"))
        shown.update(told(1000, 10, seconds=5.0, ran=10, right=7, metric="string_match_all", score_sum=8.25))
        shown.update(told(2048, 10, metric="string_match_part", score_sum=10.0))
    assert capsys.readouterr().err.splitlines()[2:] == [
        "  1000: recall 82%, 2,000 tokens/s",
        "  2k: recall 100%, found",
    ]


@pytest.mark.parametrize(
    ("ran", "found", "line"),
    [
        (0, 20, "  all samples were there already; nothing was run"),
        (5, 15, "  samples run: 5; 15 were there already"),
        (0, 15, "  samples run: 0; 15 were there already"),
    ],
)
def test_what_was_there_already_is_said_at_the_end(printer, capsys, ran, found, line):
    with printer() as shown:
        shown.update(told(1000, 10))
        shown.finish(summary(ran, found))
    assert capsys.readouterr().err.splitlines()[2:] == ["  1000: 0/10 right, found", line]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_bar_on_a_terminal_that_leaves_only_lines_behind(printer, capsys, monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    with printer() as shown:
        shown.update(told(1000, 0))
        shown.update(told(1000, 5, seconds=5.0, ran=5, right=4))
        shown._bar.refresh()
        shown.update(told(1000, 10, seconds=5.0, ran=5, right=9))
    out, err = capsys.readouterr()
    assert out == ""
    assert "1000 5/10, 4 right" in err
    assert "1,000 tokens/s, " in err
    assert "  1000: 9/10 right, 1,000 tokens/s\n" in err
    assert "\x1b[?25h" in err  # the cursor is back
