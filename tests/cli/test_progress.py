from pathlib import Path
from types import SimpleNamespace

import pytest

from bamctl.backends.base import ModelDescription
from bamctl.cli.progress import ProgressPrinter, TimeLeft
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, Progress, RunSummary


def request(*lengths, samples=10):
    return EvaluationRequest(lengths=lengths, samples=samples, depths=parse_depths("random", samples))


def told(length, done, *, seconds=0.0, ran=0, right=0, samples=10, skipped=False):
    return Progress(
        model="m",
        task="passkey",
        length=length,
        done=done,
        samples=samples,
        right=right,
        seconds=seconds,
        ran=ran,
        skipped=skipped,
    )


def test_nothing_is_known_before_anything_was_measured():
    estimate = TimeLeft(request(1000, 2000))
    estimate.update(told(1000, 0))
    assert (estimate.seconds_left(), estimate.rate(1000), estimate.samples_done) == (None, None, 0)
    assert estimate.left_text() == estimate.text() == "time left unknown"


def test_at_one_length_time_goes_with_the_samples():
    estimate = TimeLeft(request(1000))
    estimate.update(told(1000, 2, seconds=4.0, ran=2))
    estimate.update(told(1000, 4, seconds=8.0, ran=2))
    assert estimate.seconds_left() == pytest.approx(6 * 3.0)
    assert estimate.rate(1000) == pytest.approx(4000 / 12)
    assert estimate.text() == "333 tokens/s, 18 s left"
    assert estimate.samples_done == 4


@pytest.mark.parametrize(
    ("seconds", "factor"),
    [
        (20.0, 2.0),  # twice the length takes twice the time: so does the next doubling
        (40.0, 4.0),
        (10.0, 2.0),  # no slower than linear …
        (200.0, 4.0),  # … and no faster than quadratic
    ],
)
def test_longer_lengths_are_extrapolated_from_the_two_longest_measured(seconds, factor):
    estimate = TimeLeft(request(1000, 2000, 4000))
    estimate.update(told(1000, 10, seconds=10.0, ran=10))
    estimate.update(told(2000, 10, seconds=seconds, ran=10))
    assert estimate.seconds_left() == pytest.approx(seconds * factor)


def test_samples_that_were_there_already_and_skipped_ones_need_no_time():
    estimate = TimeLeft(request(1000, 2000, 4000))
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
    estimate = TimeLeft(request(1000, samples=2))
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
    )
    task = SimpleNamespace(spec=SimpleNamespace(name="passkey", variant="digits=7"))
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
