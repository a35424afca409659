import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from bamctl.cli.report_command import report
from bamctl.errors import BadInput
from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow
from bamctl.results.store import RunStore


def make_results(out: Path, predictions: list[str], **changes) -> Path:
    """A run, from the predictions of its samples; returns its folder."""
    values = {
        "model": "tiny",
        "model_digest": "tiny-digest",
        "tokenizer_digest": "t",
        "task": "passkey",
        "task_digest": "k",
        "variant": "",
        "depths": "0,50,100",
        "backend": "native",
        "dtype": "float32",
        "seed": 0,
        "prompt_version": 1,
    }
    identity = RunIdentity(**(values | changes))
    facts = ModelFacts(position_encoding="ggd", ssmax=True, train_length=512, parameters=None)
    with RunStore.open(out, identity, facts) as store:
        for sample, prediction in enumerate(predictions):
            row = SampleRow(
                **identity.columns(),
                **facts.columns(),
                row_id=f"{identity.task_digest}{sample}",
                device="cpu",
                length=512,
                sample=sample,
                status="done",
                started_at=datetime(2025, 1, 1, tzinfo=UTC),
                bamctl_version="0.1.0",
                prompt_digest=f"prompt {sample}",
                references=("1",),
                prediction=prediction,
                exact=prediction == "1",
                recall=1.0,
            )
            store.append(row)
    return store.folder


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls the command in a folder of its own, and gives what it printed and its exit code."""
    app = typer.Typer()
    app.command()(report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[str, int]:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.stderr == ""
        return result.stdout, result.exit_code

    return run


def test_two_backends_that_agree(call, tmp_path):
    make_results(tmp_path / "a", ["1", "2", "1"])
    make_results(tmp_path / "b", ["1", "2", "1"], backend="vllm")
    text, code = call("--compare", "a", "b")
    assert code == 0
    assert [line.split() for line in text.split("\n")[:2]] == [
        ["task", "length", "samples", "identical", "only", "A", "only", "B", "A-B", "p"],
        ["passkey", "512", "3", "3", "0", "0", "0.0", "1"],
    ]
    assert "native vs vllm" in text
    assert "row id" not in text


def test_two_backends_that_differ(call, tmp_path):
    a = make_results(tmp_path / "a", ["1", "2", "1"])
    b = make_results(tmp_path / "b", ["1", "2", "[b]3\n"], backend="vllm")
    text, code = call("--compare", "a", "b")
    assert code == 1
    assert ["k2", "512", "1", "'1'", r"'[b]3\n'"] in [line.split() for line in text.split("\n")]
    assert text.endswith("Samples with different predictions: 1.\n")
    assert call("--compare", str(a), str(b))[0].split("\n")[0] == text.split("\n")[0]


def test_formats(call, tmp_path):
    make_results(tmp_path / "a", ["1", "2"])
    make_results(tmp_path / "b", ["1", "3"], backend="vllm")
    text, code = call("--compare", "a", "b", "--markdown")
    assert code == 1
    assert text.startswith("| task | length | samples |")
    assert "\n| row id | length | depth | reference | A | B |\n" in text
    text, code = call("--compare", "a", "b", "--latex")
    assert text.count("\\toprule") == 2
    assert code == 1
    text, code = call("--compare", "a", "b", "--csv")
    frame = pd.read_csv(io.StringIO(text))
    assert frame[["task", "length", "samples", "identical", "p"]].values.tolist() == [
        ["passkey", 512, 2, 1, 1.0]
    ]
    assert code == 1
    text, code = call("--compare", "a", "b", "--json")
    [row] = map(json.loads, text.splitlines())
    assert (row["length"], row["p"], row["difference"], row["logprob_difference"]) == (512, 1.0, 0.0, None)
    assert code == 1


def two_models(out: Path) -> None:
    """Of passkey and of vt, in one folder of results; one of them is right more often."""
    for task in ("passkey", "vt"):
        make_results(out, ["1", "1", "1"], task=task, task_digest=task)
        make_results(out, ["1", "2", "2"], task=task, task_digest=task, model="other", model_digest="o")


@pytest.mark.parametrize("where", [("results",), ()])
def test_two_models_of_the_same_results(call, tmp_path, where):
    two_models(tmp_path / "results")
    text, code = call(*where, "--compare", "tiny", "other")
    assert code == 0  # nothing is checked
    assert "A: tiny, B: other." in text
    rows = [line.split() for line in text.split("\n") if line.startswith(("passkey", "vt"))]
    assert [row[:7] for row in rows[:2]] == [
        ["passkey", "512", "3", "1", "2", "0", "+66.7"],
        ["vt", "512", "3", "1", "2", "0", "+66.7"],
    ]
    text, _ = call(*where, "--compare", "other", "tiny", "--task", "vt", "--csv")
    frame = pd.read_csv(io.StringIO(text))
    assert frame[["task", "only_b_right", "p", "p_holm"]].values.tolist() == [["vt", 2, 0.5, 0.5]]
    assert frame["difference"].tolist() == [pytest.approx(-2 / 3)]


def test_models_of_one_name_are_compared_by_their_digests(call, tmp_path):
    two_models(tmp_path / "results")
    make_results(
        tmp_path / "results", ["1", "1", "2"], task_digest="passkey", model_digest="sha256:0123456789"
    )
    told = r"^--compare tiny: several models have this name; name tiny@0123456 or tiny@tiny-di$"
    with pytest.raises(BadInput, match=told):
        call("results", "--compare", "tiny", "other")
    for name in ("tiny@0123456", "tiny @0123456", "tiny@01"):
        text, _ = call("results", "--compare", name, "other", "--csv")
        frame = pd.read_csv(io.StringIO(text))
        assert frame[["only_a_right", "only_b_right"]].values.tolist() == [[1, 0]]
    text, _ = call("results", "--compare", "tiny@tiny", "tiny@01", "--csv")
    assert pd.read_csv(io.StringIO(text))["only_a_right"].tolist() == [1]


def test_where_a_path_is_given_a_folder_of_a_model_s_name_does_not_matter(call, tmp_path):
    two_models(tmp_path / "results")
    (tmp_path / "tiny").mkdir()
    assert "A: tiny, B: other." in call("results", "--compare", "tiny", "other")[0]
    with pytest.raises(BadInput, match=r"^other: no such file or folder$|^no results in tiny"):
        call("--compare", "tiny", "other")


def test_a_model_without_results_of_the_task_is_told(call, tmp_path):
    two_models(tmp_path / "results")
    make_results(tmp_path / "results", ["1"], task="cwe", task_digest="c")
    with pytest.raises(BadInput, match=r"^no results of these tasks by other in results$"):
        call("results", "--compare", "tiny", "other", "--task", "cwe")


def test_tasks_and_models_are_selected_on_either_side(call, tmp_path):
    make_results(tmp_path / "a", ["1"])
    make_results(tmp_path / "a", ["1"], task="vt", task_digest="v")
    make_results(tmp_path / "a", ["1"], model="other", model_digest="o")
    make_results(tmp_path / "b", ["1"], model="third", model_digest="3")
    make_results(tmp_path / "b", ["2"], task="vt", task_digest="v")
    assert call("--compare", "a", "b", "--task", "vt")[1] == 1
    text, code = call("--compare", "a", "b", "--task", "passkey", "--model", "other", "--model", "third")
    assert code == 0
    assert "other vs third" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "nowhere"], "nowhere: no such file or folder"),
        (["a", "empty"], "no results in empty; bamctl passkey makes some"),
        (["a", "a"], "--compare a a: one is or holds the other; name two that are apart"),
        (["a", "."], "--compare a .: one is or holds the other"),
        (["a/passkey", "a"], "--compare a/passkey a: one is or holds the other"),
        (["a", "b"], "nothing to compare: a has tasks passkey, b vt"),
        (["a", "b", "--task", "vt"], "no results of these tasks by these models in a"),
        (["a", "b", "--task", "paskey"], "no results of task 'paskey' (did you mean passkey?)"),
        (["a", "b", "c"], "c: no such file or folder"),
        (["a", "b", "b"], "--compare a: neither a model with results in b nor, without a path, a folder of"),
        (["tiny", "tinny", "a"], "--compare tinny: neither a model with results in a nor, without a path, a"),
        (["tiny", "tiny", "a"], "--compare tiny tiny: is one model; name two"),
        (["tiny@00", "tiny", "a"], "--compare tiny@00: neither a model with results in a nor"),
        (["tiny", "other", "empty"], "no results in empty; bamctl passkey makes some"),
        (["tiny", "other"], "results: no such file or folder"),
        (["tiny", "other", "a", "--model", "tiny"], "--model has no effect where tiny and other are models"),
        (["a", "b", "--figure", "f.png"], "--figure has no effect on --compare; leave one out"),
        (["a", "b", "--threshold", "90"], "--threshold has no effect on --compare"),
        (["a", "b", "--intervals"], "--intervals has no effect on --compare"),
        (["a", "b", "--averages"], "--averages has no effect on --compare"),
        (["a", "b", "--csv", "--latex"], "--csv and --latex exclude each other"),
        (["a", "b", "--csv", "--json"], "--csv and --json exclude each other"),
    ],
)
def test_bad_input_is_one_line(call, tmp_path, arguments, message):
    make_results(tmp_path / "a", ["1"])
    make_results(tmp_path / "b", ["1"], task="vt", task_digest="v")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput) as caught:
        call("--compare", *arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
