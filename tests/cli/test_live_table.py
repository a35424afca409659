"""What the live table shows, line by line; how it comes and goes is tested with what shows it."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bamctl.cli.live_table import LiveTable, percent
from bamctl.evaluation.run import Progress
from bamctl.lengths import doubling_lengths, format_length

FOURTEEN = doubling_lengths(512, 4 * 1024**2)


def told(length, done, score=0.0, *, samples=20, metric="exact", skipped=False, depth=None, depths=(35.0,)):
    return Progress(
        model="m",
        task="passkey",
        length=length,
        done=done,
        samples=samples,
        right=0,
        metric=metric,
        score_sum=score,
        seconds=0.0,
        ran=1,
        skipped=skipped,
        rows=(SimpleNamespace(depth=depths),),
        depth=depth,
    )


def lines(table, *, width=80, height=50):
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def in_the_middle(lengths=FOURTEEN, samples=20, at=None):
    """A run of which the shorter half of the lengths, or those up to one, is done; and its clock."""
    now = [0.0]
    table = LiveTable("small-bam, passkey", dict.fromkeys(lengths, samples), lambda: now[0])
    at = len(lengths) // 2 if at is None else at
    for length in lengths[:at]:
        table.update(told(length, samples, samples, samples=samples), rate=1234567.8, seconds_left=None)
    half = told(lengths[at], samples // 2, samples // 4, samples=samples, depth=34.6)
    table.update(half, rate=9000.4, seconds_left=130.0)
    return table, now


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("samples", [20, 1000])
def test_every_number_is_whole_at_any_width(width, samples):
    table, now = in_the_middle(samples=samples)
    now[0] = 12.3
    shown = lines(table, width=width)
    assert max(map(len, shown)) <= min(width, 60)
    assert shown[0] == "small-bam, passkey"
    assert shown[1].split() == ["length", "done", "right", "tokens/s"]
    rows = [line.split() for line in shown[2:-1]]
    done, half = f"{samples}/{samples}", f"{samples // 2}/{samples}"
    names = [format_length(length) for length in FOURTEEN]
    assert rows[:7] == [[name, done, "100%", "1,234,568"] for name in names[:7]]
    assert rows[7] == ["64k", half, "50%", "9,000", "depth", "35%,", "12", "s"]
    assert rows[8:] == [[name, f"0/{samples}"] for name in names[8:]]
    assert shown[-1].endswith(f" {7 * samples + samples // 2}/{14 * samples} samples, 2 min left")


def test_time_passes_between_two_samples():
    table, now = in_the_middle()
    assert lines(table)[9].endswith("depth 35%, 0 s")
    assert lines(table)[-1].endswith("2 min left")
    now[0] = 100.0
    assert lines(table)[9].endswith("depth 35%, 2 min")
    assert lines(table)[-1].endswith("30 s left")
    now[0] = 1000.0
    assert lines(table)[-1].endswith("0 s left")


def test_before_anything_is_known():
    table = LiveTable("m, t", {512: 3, 1024: 2})
    assert [line.split() for line in lines(table)[2:4]] == [["512", "0/3"], ["1k", "0/2"]]
    assert lines(table)[-1].endswith(" 0/5 samples, time left unknown")


def test_a_task_without_needles_has_no_depth():
    table = LiveTable("m, cwe", {512: 3}, lambda: 0.0)
    table.update(told(512, 0, depth=80.0, depths=()), rate=None, seconds_left=None)
    assert lines(table)[2].split() == ["512", "0/20", "-", "-", "0", "s"]


def test_recall_and_a_length_that_was_skipped():
    table = LiveTable("m, vt", {512: 20, 1024: 20}, lambda: 0.0)
    table.update(told(512, 20, 19.99, metric="string_match_all"), rate=None, seconds_left=None)
    table.update(told(1024, 5, 0.0, metric="string_match_all", skipped=True), rate=None, seconds_left=0.0)
    shown = lines(table)
    assert shown[1].split()[2] == "recall"
    assert [line.split() for line in shown[2:4]] == [
        ["512", "20/20", "99%", "-"],
        ["1k", "5/20", "0%", "-", "skipped"],
    ]
    assert shown[-1].endswith(" 40/40 samples, 0 s left")


@pytest.mark.parametrize("height", [5, 6, 10, 17, 18])
@pytest.mark.parametrize("at", [0, 1, 7, 12, 13])
def test_it_fits_into_the_height_with_the_length_in_work(height, at):
    table, _ = in_the_middle(at=at)
    shown = lines(table, height=height)
    names = [line.split()[0] for line in shown[2:-1]]
    known = [format_length(length) for length in FOURTEEN]
    assert len(shown) == min(height - 1, 17)
    assert known[at] in names
    first = known.index(names[0])
    assert names == known[first : first + len(names)]
    if len(names) > 1 and at < 13:
        assert known[at + 1] in names


def test_a_long_name_is_cut_short():
    table = LiveTable(f"{'m' * 100}, passkey", {512: 3})
    assert lines(table, width=60)[0] == "m" * 59 + "…"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.001, "1%"), (0.5, "50%"), (0.994, "99%"), (0.999, "99%"), (1, "100%")],
)
def test_percent_keeps_the_ends_for_what_is_exact(share, text):
    assert percent(share) == text
