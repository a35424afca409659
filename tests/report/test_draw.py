"""The kinds of figures of `bamctl report`, and `--plot`, which chooses one."""

import subprocess
import sys
import warnings

import pandas as pd
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from bamctl.cli.report_command import report
from bamctl.errors import BadInput
from bamctl.report.averages import task_averages
from bamctl.report.costs import COST_COLUMNS
from bamctl.report.depths import DEPTH_COLUMNS
from bamctl.report.draw import PLOTS, check_plot, draw, plot_columns
from bamctl.report.style import figure_style, save_figure
from bamctl.results.frames import to_table
from bamctl.results.schema import SAMPLE_SCHEMA
from bamctl.results.statistics import accuracy_table

GRID = {(length, depth): [1, 0] for length in (512, 1024) for depth in (0, 50, 100)}


def plot(kind, samples, **options):
    return draw(kind, samples, accuracy_table(samples), threshold=0.856, **options)


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def test_each_kind_is_a_figure_of_its_own(make_answers):
    samples = make_answers(GRID)
    assert {kind: titles(plot(kind, samples)) for kind in PLOTS} == {
        "length": ["passkey"],
        "depth": ["tiny *"],
        "cost": ["reading a prompt (s)", "answering, a token (s)", "peak memory (GiB)"],
    }


def test_the_columns_of_each_kind():
    assert {kind: plot_columns(kind) for kind in PLOTS} == {
        "length": (),
        "depth": DEPTH_COLUMNS,
        "cost": COST_COLUMNS,
    }
    assert {*DEPTH_COLUMNS, *COST_COLUMNS} < set(SAMPLE_SCHEMA.names)


def test_losses_alone_are_drawn_and_with_scores_they_are_not(make_answers, make_losses):
    losses = make_losses({256: [3.0, 3.5], 512: [2.5, 3.0]})
    assert plot("length", losses).axes[0].get_ylabel() == "loss (nats a token)"
    both = pd.concat([make_answers(GRID), losses], ignore_index=True)
    with pytest.raises(BadInput, match=r"^a figure is of scores or of losses; choose tasks of one kind"):
        plot("length", both)
    assert titles(plot("depth", both)) == ["tiny *"]
    assert len(plot("cost", both).axes) == 3


def test_averages_alone_with_their_intervals_though_there_are_losses_too(make_answers, make_losses):
    tasks = [make_answers(GRID, task=task) for task in ("niah_single_1", "niah_single_2")]
    samples = pd.concat([*tasks, make_losses({256: [3.0]})], ignore_index=True)
    figure = plot("length", samples, averages_only=True)
    assert titles(figure) == ["average of 2 tasks"]
    (band,) = figure.axes[0].collections
    (average,) = task_averages(accuracy_table(samples))
    ends = {100 * end for interval in average.intervals.values() for end in interval}
    assert {share for _, share in band.get_paths()[0].vertices} == ends


@pytest.mark.parametrize(("kind", "suffix"), [("length", ".png"), ("depth", ".svg"), ("cost", ".pdf")])
def test_the_same_results_are_the_same_file_in_any_order(make_answers, tmp_path, monkeypatch, kind, suffix):
    samples = pd.concat([make_answers(GRID), make_answers(GRID, model="other")], ignore_index=True)
    samples.loc[0, "status"] = "skipped"  # so that a cell is hatched
    contents = []
    for clock, order in (("1000000000", 1), ("1100000000", -1)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", clock)
        save_figure(plot(kind, samples[::order]), tmp_path / f"f{suffix}")
        contents.append((tmp_path / f"f{suffix}").read_bytes())
    assert contents[0] == contents[1]
    if suffix == ".pdf":
        assert b"/FontFile2" in contents[0]
        assert b"/Subtype /Type3" not in contents[0]
    if suffix == ".svg":
        assert b"<text" not in contents[0]


ODD = {
    "one sample and little known": ({(512, 50): [1]}, {"train_length": None, "decode_seconds": None}),
    "most skipped, the rest wrong": (
        {(512, 0): [0, 0], (1024, 0): [None], (4096, 100): [None]},
        {"reused_tokens": None},
    ),
    "lengths far apart": ({(16, 0): [1], (2**20, 0): [1], (2**40, 0): [0]}, {"train_length": 2**30}),
    "names without end": (
        GRID,
        {"model": r"$\nothing_1$ {} %" * 20, "variant": "haystack=some/long/path " * 6},
    ),
}


@pytest.mark.parametrize("kind", PLOTS)
@pytest.mark.parametrize("name", ODD)
def test_nothing_odd_is_warned_of(make_answers, kind, name):
    answers, columns = ODD[name]
    with warnings.catch_warnings(), figure_style():
        warnings.simplefilter("error")
        plot(kind, make_answers(answers, **columns)).draw_without_rendering()


def test_a_wrong_kind_is_told():
    check_plot("depth")
    with pytest.raises(BadInput, match=r"^--plot 'depht': no such figure \(did you mean depth\?\)$"):
        check_plot("depht")
    with pytest.raises(BadInput, match=r"^--plot '': no such figure \(known: cost, depth, length\)$"):
        check_plot("")


def test_the_command_need_not_import_matplotlib_to_know_the_kinds():
    program = "import sys, bamctl.report.draw; sys.exit(bool({'matplotlib', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.fixture
def call(tmp_path, monkeypatch, make_answers):
    """Calls the command beside a folder of results; a BadInput comes out as it is."""
    app = typer.Typer()
    app.command()(report)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/run").mkdir(parents=True)
    pq.write_table(to_table(make_answers(GRID), SAMPLE_SCHEMA), tmp_path / "results/run/samples.parquet")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return run


@pytest.mark.parametrize("arguments", [(), ("--plot", "length"), ("--plot", "depth"), ("--plot", "cost")])
def test_the_command_draws_what_is_asked_for(call, tmp_path, monkeypatch, arguments):
    from bamctl.report import draw as module

    drawn = []
    original = module.draw
    monkeypatch.setattr(
        module, "draw", lambda kind, *rest, **named: drawn.append(kind) or original(kind, *rest, **named)
    )
    assert call("--figure", "f.png", *arguments) == call()
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [arguments[1] if arguments else "length"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "depth"], "--plot depth has no effect without --figure FILE; name one"),
        (["--figure", "f.png", "--plot", "depths"], "--plot 'depths': no such figure (did you mean depth?)"),
        (["--figure", "f.png", "--plot", "cost", "--averages"], "--averages has no effect on --plot cost"),
        (
            ["--figure", "f.png", "--plot", "cost", "--csv", "--threshold", "90"],
            "--threshold has no effect on --csv",
        ),
        (["--compare", "results", "results", "--plot", "cost"], "--plot has no effect on --compare"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(call, tmp_path, arguments, message):
    with pytest.raises(BadInput) as caught:
        call(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "f.png").exists()
