import io
import itertools
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bamctl.backends.base import ModelDescription
from bamctl.cli.progress import ProgressPrinter
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, Progress, RunSummary

TITLE = [
    "mine[red]: rotary; native on cpu, float32",
    "passkey (digits=7): 10 samples at each of 1000, 2k (2048) tokens; depths random; seed 0",
]


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
        planned={1000: samples, 2048: samples},
    )


def summary(ran, found):
    row_ids = frozenset(map(str, range(20)))
    return RunSummary(run_id="r", folder=Path("r"), row_ids=row_ids, ran=ran, found=found)


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True

    def screen(self):
        """The lines that somebody sees: what was written, with the cursor's movements and erasures done."""
        lines, row = [""], 0
        for text, code in re.findall(r"([^\x1b\r\n]+)|(\x1b\[[?\d;]*[a-zA-Z]|[\r\n])", self.getvalue()):
            if code == "\n":
                row += 1
                lines += [""] if row == len(lines) else []
            elif code == "\x1b[1A":
                row -= 1
            elif code == "\x1b[2K":
                lines[row] = ""
            lines[row] += text
        return "\n".join(line.rstrip() for line in lines).rstrip().split("\n")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and what makes a console of a width on it; the environment says nothing of either."""
    for name in ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


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

    def make(**options):
        depths = parse_depths("random", 10)
        request = EvaluationRequest(lengths=(1000, 2048), samples=10, depths=depths)
        return ProgressPrinter(backend, task, request, **options)

    return make


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
    assert err.splitlines() == [*TITLE, "  1000: 9/10 right, 1,000 tokens/s", "  2k: skipped"]


def test_for_ruler_s_tasks_the_mean_recall_is_told(printer, capsys):
    with printer() as shown:
        shown.update(told(1000, 0, metric="string_match_all"))
        shown.update(told(1000, 10, seconds=5.0, ran=10, right=7, metric="string_match_all", score_sum=8.25))
        shown.update(told(2048, 10, metric="string_match_part", score_sum=9.99))
    assert capsys.readouterr().err.splitlines()[2:] == [
        "  1000: recall 82%, 2,000 tokens/s",
        "  2k: recall 99%, found",
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


def test_quiet_says_nothing(printer, terminal, capsys):
    for console in (None, Console(file=terminal)):
        with printer(quiet=True, console=console) as shown:
            shown.update(told(1000, 10))
            shown.finish(summary(0, 20))
    assert capsys.readouterr() == ("", "")
    assert terminal.getvalue() == ""


def middle(printer, capsys, seconds, samples, **options):
    """The lines that are told of a length but its last, where each sample takes so long."""
    clock = itertools.count(0, seconds)
    now = [next(clock)]
    with printer(clock=lambda: now[0]) as shown:
        shown.update(told(1000, 0, samples=samples, **options))
        for done in range(1, samples):
            now[0] = next(clock)
            shown.update(told(1000, done, seconds=seconds, ran=1, right=done - 1, samples=samples, **options))
    return capsys.readouterr().err.splitlines()[2:]


@pytest.mark.parametrize(
    ("seconds", "samples", "done"),
    [
        (3600, 1, []),
        (59, 2, []),
        (60, 2, [1]),
        (60, 5, [1, 2, 3, 4]),  # where there are few, each is a part of its own
        (30, 10, [2, 4, 6, 8]),  # a minute apart
        (600, 20, [2, 4, 6, 8, 10, 12, 14, 16, 18]),
        (600, 25, [3, 5, 8, 10, 13, 15, 18, 20, 23]),
        (1, 100, [60]),
        (1, 1000, [100, 200, 300, 400, 500, 600, 700, 800, 900]),
    ],
)
def test_a_long_length_is_told_of_now_and_then(printer, capsys, seconds, samples, done):
    lines = middle(printer, capsys, seconds, samples)
    assert [int(re.fullmatch(r"  1000: (\d+) of .*", line)[1]) for line in lines] == done


def test_what_is_told_in_the_middle_of_a_length(printer, capsys):
    assert middle(printer, capsys, 100, 3) == [
        "  1000: 1 of 3 done, 0 right, 10 tokens/s",
        "  1000: 2 of 3 done, 1 right, 10 tokens/s",
    ]
    recalled = middle(printer, capsys, 100, 2, metric="string_match_all", score_sum=0.5)
    assert recalled == ["  1000: 1 of 2 done, recall 50%, 10 tokens/s"]


def test_the_middle_of_a_length_goes_by_what_was_last_told_of_any(printer, capsys):
    now = [0]
    with printer(clock=lambda: now[0]) as shown:
        shown.update(told(1000, 0))
        now[0] = 50
        shown.update(told(1000, 10, seconds=50.0, ran=10, right=9))
        shown.update(told(2048, 5))  # found
        now[0] = 109
        shown.update(told(2048, 6, seconds=59.0, ran=1))
        now[0] = 110
        shown.update(told(2048, 7, seconds=1.0, ran=1))
    assert capsys.readouterr().err.splitlines()[2:] == [
        "  1000: 9/10 right, 200 tokens/s",
        "  2k: 7 of 10 done, 0 right, 68 tokens/s, 90 s left",
    ]


def finished(shown):
    shown.update(told(1000, 0))
    shown.update(told(1000, 5, seconds=5.0, ran=5, right=4))
    shown._table._live.refresh()
    shown.update(told(1000, 10, seconds=5.0, ran=5, right=9))
    shown._table._live.refresh()
    shown.update(told(2048, 0))
    shown.update(told(2048, 5, seconds=5.0, ran=5, right=4))
    shown._table._live.refresh()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_shows_a_table_and_keeps_the_lines(printer, terminal, width):
    console = Console(file=terminal, width=width, height=24)
    with printer(console=console, which="2 of 8") as shown:
        finished(shown)
        live = terminal.screen()
        shown.update(told(2048, 10, seconds=10.0, ran=5, right=8))
        shown.finish(summary(15, 5))
    kept = terminal.screen()
    assert max(map(len, live + kept)) <= width
    assert "\x1b[?25h" in terminal.getvalue().rpartition("\x1b[?25l")[2]  # the cursor is back
    title = " ".join(TITLE)
    assert " ".join(live).startswith(title + " mine[red], passkey (2 of 8) length   done  right  tokens/s ")
    assert "  1000  10/10    90%     1,000" in live
    assert "    2k   5/10    80%     2,048" in "\n".join(live)
    assert live[-1].endswith(" 15/20 samples, 5 s left")
    assert " ".join(kept[:-3]) == title
    assert kept[-3:] == [
        "  1000: 9/10 right, 1,000 tokens/s",
        "  2k: 8/10 right, 1,365 tokens/s",
        "  samples run: 15; 5 were there already",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_ends_a_run_early_leaves_a_terminal_in_order(printer, terminal, error):
    def fail(shown):
        finished(shown)
        raise error

    with pytest.raises(error), printer(console=Console(file=terminal, width=80, height=24)) as shown:
        fail(shown)
    assert " ".join(terminal.screen()) == " ".join(LINES)
    assert terminal.getvalue().endswith("tokens/s\n")
    assert "\x1b[?25h" in terminal.getvalue().rpartition("\x1b[?25l")[2]


def test_what_others_write_to_stderr_stands_above_the_table(printer, terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal)
    with printer() as shown:
        finished(shown)
        print("a warning", file=sys.stderr)
        live = terminal.screen()
    assert live.index("a warning") < live.index("mine[red], passkey")
    assert "a warning" in terminal.screen()


LINES = [*TITLE, "  1000: 9/10 right, 1,000 tokens/s"]


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("CI", "1"), ("CI", "true")])
def test_a_terminal_that_nobody_looks_at_gets_plain_lines(printer, terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with printer(console=Console(file=terminal, width=60)) as shown:
        shown.update(told(1000, 10, seconds=10.0, ran=10, right=9))
    assert terminal.getvalue().splitlines() == LINES


@pytest.mark.parametrize(("name", "value"), [("CI", ""), ("CI", "0"), ("CI", "False"), ("NO_COLOR", "1")])
def test_a_terminal_that_somebody_looks_at_gets_the_table(printer, terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with printer(console=Console(file=terminal, width=80, height=24)) as shown:
        finished(shown)
    assert "tokens/s" in terminal.getvalue()
    assert "\x1b[1A" in terminal.getvalue()
    coloured = re.search(r"\x1b\[[\d;]*38;5", terminal.getvalue())
    assert (coloured is None) == (name == "NO_COLOR")


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_that_are_forced_move_no_cursor_in_a_file(printer, terminal, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    file = io.StringIO()
    with printer(console=Console(file=file, width=60)) as shown:
        shown.update(told(1000, 10, seconds=10.0, ran=10, right=9))
    assert file.getvalue().splitlines() == LINES


@pytest.mark.parametrize(("to_a_pipe", "table"), [(True, False), (False, True)])
def test_beside_lines_on_stdout_nothing_is_redrawn_but_where_they_go_to_a_file(
    printer, terminal, tmp_path, monkeypatch, to_a_pipe, table
):
    reader, writer = os.pipe()
    with (tmp_path / "out").open("w") as file, os.fdopen(writer, "w") as pipe, os.fdopen(reader):
        monkeypatch.setattr("sys.stdout", pipe if to_a_pipe else file)
        with printer(console=Console(file=terminal, width=80, height=24), beside_stdout=True) as shown:
            shown.update(told(1000, 10, seconds=10.0, ran=10, right=9))
            assert (shown._table is not None) == table
