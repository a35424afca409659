import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bamctl.cli.report_command import THRESHOLD, print_accuracy, report
from bamctl.errors import BadInput
from bamctl.report.table import RULER_THRESHOLD
from bamctl.results.schema import SAMPLE_SCHEMA, ModelFacts, RunIdentity, SampleRow
from bamctl.results.store import RunStore


def parts(model: str = "tiny", task: str = "passkey") -> tuple[RunIdentity, ModelFacts]:
    identity = RunIdentity(
        model=model,
        model_digest=f"{model}-digest",
        tokenizer_digest="t",
        task=task,
        task_digest="k",
        variant="",
        depths="0,50,100",
        backend="native",
        dtype="float32",
        seed=0,
        prompt_version=1,
    )
    return identity, ModelFacts(position_encoding="ggd", ssmax=True, train_length=512, parameters=None)


def make_row(sample: int, model: str = "tiny", task: str = "passkey") -> SampleRow:
    """Right, unless it is the first of its length."""
    identity, facts = parts(model, task)
    return SampleRow(
        **identity.columns(),
        **facts.columns(),
        row_id=str(sample),
        device="cpu",
        length=512,
        sample=sample,
        status="done",
        started_at=datetime(2025, 1, 1, tzinfo=UTC),
        bamctl_version="0.1.0",
        prediction="1",
        exact=sample > 0,
        recall=1.0,
    )


def make_results(out: Path, model: str = "tiny", task: str = "passkey") -> Path:
    """A run of four samples, finished; returns its folder."""
    with RunStore.open(out, *parts(model, task)) as store:
        for sample in range(4):
            store.append(make_row(sample, model, task))
    return store.folder


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls the command in a folder of its own; a BadInput comes out as it is."""
    app = typer.Typer()
    app.command()(report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        assert result.stderr == ""
        return result.stdout

    return run


def test_the_folder_results_is_the_default(call, tmp_path):
    make_results(tmp_path / "results")
    text = call()
    assert [line.split() for line in text.split("\n")[:2]] == [
        ["model", "train", "512", "effective"],
        ["tiny", "*", "512", "75", "<512"],
    ]
    assert text == call("results") == call(str(tmp_path), "results")
    assert "[30, 95]" not in text
    assert "[30, 95]" in call("--intervals")


def test_published_runs_are_shown_where_they_are_named_alone(call, tmp_path):
    """A clone comes with them, and nobody is to take them for a run of his own."""
    make_results(tmp_path / "results/reference")
    with pytest.raises(BadInput, match=r"no results in results; .*bamctl report results/reference shows"):
        call()
    assert "tiny" in call("results/reference")
    make_results(tmp_path / "results")
    assert len(call().splitlines()) == len(call("results/reference").splitlines())


def test_a_run_that_is_still_running_is_shown(call, tmp_path):
    make_results(tmp_path / "results")
    expected = call("--csv")
    with RunStore.open(tmp_path / "running", *parts()) as store:
        for sample in range(4):
            store.append(make_row(sample))
        assert not (store.folder / "samples.parquet").exists()
        assert call("--csv", "running") == expected


def test_formats(call, tmp_path):
    make_results(tmp_path / "results")
    frame = pd.read_csv(io.StringIO(call("--csv")))
    assert frame[["model", "length", "n", "exact_count", "accuracy"]].values.tolist() == [
        ["tiny", 512, 4, 3, 0.75]
    ]
    [row] = map(json.loads, call("--json").splitlines())
    assert list(row) == list(frame.columns)
    assert (row["model"], row["length"], row["n"], row["accuracy"]) == ("tiny", 512, 4, 0.75)
    assert row["loss"] is row["mean_answer_logprob"] is row["window"] is None
    assert call("--markdown").startswith("| model | train | 512 | effective |\n")
    assert "\\toprule" in call("--latex")
    assert "[30, 95]" in call("--markdown", "--intervals")


def test_the_threshold_is_ruler_s_unless_another_is_asked_for(call, tmp_path):
    assert THRESHOLD / 100 == RULER_THRESHOLD
    make_results(tmp_path / "results")  # 75% at 512
    for form in ([], ["--markdown"], ["--latex"]):
        assert "85.6" in call(*form)
        assert "(RULER)" in call(*form)
        assert call(*form, "--threshold", "85.6") == call(*form)
        changed = call(*form, "--threshold", "75")
        assert "75%" in changed.replace("\\%", "%")
        assert "(RULER)" not in changed
    assert call("--threshold", "75").split("\n")[1].split()[-1] == ">=512"
    assert call("--threshold", "75.1").split("\n")[1].split()[-1] == "<512"
    assert call("--threshold", "100").split("\n")[1].split()[-1] == "<512"


def test_filters(call, tmp_path):
    for model in ("one", "two"):
        for task in ("passkey", "niah_single_1"):
            make_results(tmp_path / "results", model, task)
    lines = call("--csv", "--task", "niah_*", "--model", "two").split("\n")
    assert len(lines) == 3
    assert "two,two-digest" in lines[1]
    assert len(call("--csv", "--model", "one", "--model", "two").split("\n")) == 6


def make_ruler_results(out: Path) -> None:
    for task in ("niah_single_1", "niah_single_2"):
        make_results(out, "tiny", task)
    make_results(out)


def test_averages_alone(call, tmp_path):
    make_ruler_results(tmp_path / "results")
    assert "niah_single_1" in call().split("\n")[2]
    header, row, *_ = call("--averages").split("\n")
    assert header.split()[:3] == ["model", "train", "512"]
    assert row.split()[:3] == ["tiny", "512", "75.0"]
    text = " ".join(call("--averages").split())
    assert "average of 2 tasks, depths 0,50,100" in text
    assert "Tasks: niah_single_1, niah_single_2." in text
    assert "[" not in row
    assert re.match(r"\[\d\d, 9\d\]", call("--averages", "--intervals").split("\n")[2].strip())
    assert call("--averages", "--markdown").count("\n| ") == 2
    assert "\\midrule\n\\midrule" not in call("--averages", "--latex")


def test_trainings_with_other_seeds_are_one_row(call, tmp_path):
    for model in ("tiny", "tiny-2", "other"):
        make_results(tmp_path / "results", model)
    header, *rows = call("--training-seeds").split("\n")
    assert header.split()[:3] == ["model", "seeds", "train"]
    assert [row.split()[:4] for row in rows[:2]] == [["other", "*", "1", "512"], ["tiny", "*", "2", "512"]]
    assert "tiny: tiny, tiny-2." in call("--training-seeds", "--markdown")
    with pytest.raises(BadInput, match="no model that is shown is another training"):
        call("--training-seeds", "--model", "tiny-2")


def test_losses_have_no_spread_over_trainings(call, tmp_path, make_losses):
    table = pa.Table.from_pandas(make_losses({256: [3.0, 3.5]}), schema=SAMPLE_SCHEMA, preserve_index=False)
    pq.write_table(table, tmp_path / "losses.parquet")
    assert "perplexity" in call("losses.parquet")
    with pytest.raises(BadInput, match="--training-seeds has no effect on losses"):
        call("losses.parquet", "--training-seeds")


def test_a_figure_beside_the_table(call, tmp_path):
    make_ruler_results(tmp_path / "results")
    assert call("--figure", "f.png") == call()
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert call("results", "--figure", "f.pdf", "--csv", "--threshold", "70") == call("--csv")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_is_of_what_is_selected(call, tmp_path, monkeypatch):
    drawn = []
    from bamctl.report import figure

    draw = figure.accuracy_figure
    monkeypatch.setattr(
        figure,
        "accuracy_figure",
        lambda *frame, **options: drawn.append((frame, options)) or draw(*frame, **options),
    )
    make_ruler_results(tmp_path / "results")
    call("--task", "niah_*", "--averages", "--threshold", "70", "--figure", "f.svg")
    [((frame,), options)] = drawn
    assert set(frame["task"]) == {"niah_single_1", "niah_single_2"}
    assert options == {"threshold": 0.7, "averages_only": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "results: no such file or folder"),
        (["nowhere"], "nowhere: no such file or folder"),
        (["empty"], "no results in empty; bamctl passkey makes some"),
        (["made", "--task", "paskey"], "no results of task 'paskey' (did you mean passkey?)"),
        (["made", "--task", "niah", "--model", "tiny"], "no results of these tasks by these models"),
        (["made", "--threshold", "0"], "--threshold 0: must be a percentage above 0, at most 100"),
        (["made", "--threshold", "100.1"], "--threshold 100.1: must be a percentage above 0, at most 100"),
        (["made", "--threshold", "nan"], "--threshold nan: must be a percentage above 0, at most 100"),
        (["made", "--threshold", "90", "--csv"], "--threshold has no effect on --csv"),
        (["made", "--averages"], "there are no averages: no model has several of the tasks of RULER"),
        (["nowhere", "--averages", "--csv"], "--averages has no effect on --csv, which has every run"),
        (["made", "--threshold", "90", "--json"], "--threshold has no effect on --json"),
        (["nowhere", "--averages", "--json"], "--averages has no effect on --json, which has every run"),
        (["nowhere", "--training-seeds", "--csv"], "--training-seeds has no effect on --csv, which has"),
        (["nowhere", "--training-seeds", "--figure", "f.png"], "--training-seeds has no effect on --figure"),
        (["nowhere", "--training-seeds", "--html", "p.html"], "--training-seeds has no effect on --html"),
        (["nowhere", "--training-seeds", "--intervals"], "--intervals are of the samples of one training"),
        (["made", "--training-seeds"], "--training-seeds: no model that is shown is another training"),
        (["--compare", "a", "b", "--training-seeds"], "--training-seeds has no effect on --compare"),
        (["--json", "--markdown", "nowhere"], "--json and --markdown exclude each other; choose one"),
        (["nowhere", "--figure", "f.jpg"], "figure f.jpg: its name must end in .png, .pdf or .svg"),
        (["made", "--figure", "no/f.png"], "figure no/f.png: there is no folder no"),
        (["--csv", "--latex", "nowhere"], "--csv and --latex exclude each other; choose one"),
        (["--csv", "--markdown", "--latex"], "--csv and --markdown and --latex exclude each other"),
    ],
)
def test_bad_input_is_one_line(call, tmp_path, arguments, message):
    make_results(tmp_path / "made")
    make_results(tmp_path / "made", "other", "niah")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput) as caught:
        call(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_other_commands_print_the_same_table(two_models):
    console = Console(file=io.StringIO(), width=200)
    print_accuracy(two_models, console)
    assert console.file.getvalue().split("\n")[2].split()[0] == "tiny-rope"
