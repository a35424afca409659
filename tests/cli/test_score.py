import json
import random
import re

import pytest
import typer
from long_context_eval.eval.synthetic import constants

from bamctl.cli import main
from bamctl.cli.score_command import score
from bamctl.results.proportions import wilson_interval
from bamctl.tasks.catalog import RULER_TASKS


@pytest.fixture
def call_score(call, monkeypatch, tmp_path):
    """Runs `bamctl score` in a folder of its own."""
    app = typer.Typer(context_settings={"token_normalize_func": lambda word: word.replace("_", "-")})
    app.command()(score)
    app.callback()(lambda: None)
    monkeypatch.setattr(main, "app", app)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: call("score", *arguments)


def write(path, *samples):
    lines = [
        {
            "index": number,
            "pred": pred,
            "input": "…",
            "outputs": outputs,
            "others": {"id": number},
            "length": 9,
        }
        for number, (pred, outputs) in enumerate(samples)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.name


def columns(text):
    return [re.split(r" {2,}", line.strip()) for line in text.strip().split("\n")]


def test_a_table_of_files(call_score, tmp_path):
    first = write(
        tmp_path / "niah_multiquery.jsonl",
        ("1, 2, 3 and 4", ["4", "3", "2", "1"]),
        ("1 and 2", ["1", "2", "33", "44"]),
        (None, ["5", "6", "7", "8"]),
    )
    second = write(tmp_path / "qa_1-0.jsonl", ("Denver Broncos.", ["Broncos", "Denver Broncos"]))
    outcome = call_score(first, second)
    assert (outcome.status, outcome.err) == (0, "")
    assert columns(outcome.out) == [
        ["task", "file", "n", "score %", "95% interval", "exact", "nulls"],
        ["niah_multiquery", "niah_multiquery.jsonl", "3", "50.00", "12.5-87.5", "1/3", "1/3"],
        ["qa_1", "qa_1-0.jsonl", "1", "100.00", "20.7-100.0", "1/1", "0/1"],
    ]


def test_one_json_object_a_line(call_score, tmp_path):
    first = write(tmp_path / "niah_multivalue.jsonl", ("A B", ["a", "b", "c"]), ("C A B", ["a", "b", "c"]))
    second = write(tmp_path / "mine.jsonl", ("A", ["a"]))
    outcome = call_score("--json", first)
    assert (outcome.status, outcome.err) == (0, "")
    low, high = wilson_interval(5 / 3, 2)
    assert json.loads(outcome.out) == {
        "task": "niah_multivalue",
        "file": "niah_multivalue.jsonl",
        "metric": "string_match_all",
        "n": 2,
        "score": 83.33,
        "score_low": round(100 * low, 2),
        "score_high": round(100 * high, 2),
        "exact": 1,
        "nulls": 0,
    }
    both = call_score("--json", "--task", "qa_2", first, second).out.splitlines()
    records = [json.loads(line) for line in both]
    assert [(r["task"], r["file"], r["metric"], r["score"]) for r in records] == [
        ("qa_2", "niah_multivalue.jsonl", "string_match_part", 100.0),
        ("qa_2", "mine.jsonl", "string_match_part", 100.0),
    ]


def test_a_task_that_counts_exact_answers(call_score, tmp_path):
    name = write(tmp_path / "passkey.jsonl", ("12345", ["12345"]), ("It is 12345", ["12345"]))
    record = json.loads(call_score("--json", name).out)
    assert (record["metric"], record["score"], record["exact"]) == ("exact", 50.0, 1)


@pytest.mark.parametrize("task", RULER_TASKS)
def test_every_task_of_ruler_s_has_ruler_s_score(call_score, tmp_path, task):
    rng = random.Random(task)
    samples = []
    for _ in range(40):
        outputs = [f"Word{rng.randrange(100)}" for _ in range(rng.randint(1, 4))]
        told = rng.sample(outputs, rng.randint(0, len(outputs)))
        samples.append((f" {', '.join(told)}\x07\n".lower(), outputs))
    record = json.loads(call_score("--json", write(tmp_path / f"{task}.jsonl", *samples)).out)
    function = constants.string_match_part if task.startswith("qa") else constants.string_match_all
    assert record["task"] == task
    assert record["score"] == function(*map(list, zip(*samples, strict=True)))
    assert 0 < record["score"] < 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'FILE...'"),
        (["nowhere.jsonl"], "nowhere.jsonl: there is no task of this name (known: cwe, "),
        (
            ["nowhere.jsonl", "--task", "niah_multivalue"],
            "nowhere.jsonl: cannot be read (No such file or directory)",
        ),
        (
            ["niah_multivalue.jsonl", "niah_single1.jsonl"],
            "niah_single1.jsonl: there is no task of this name (did you mean",
        ),
        (
            ["niah_multivalue.jsonl", "--task", "niah_singel_1"],
            "there is no task 'niah_singel_1' (did you mean niah_single_1?)",
        ),
        (
            ["niah_multivalue.jsonl", "bad.jsonl", "--task", "niah_multivalue"],
            "bad.jsonl, line 2: is not JSON in UTF-8",
        ),
        (["empty.jsonl", "--task", "niah_multivalue"], "empty.jsonl: holds no predictions"),
        (["."], "there is no task of this name"),
        ([".", "--task", "niah_multivalue"], ".: cannot be read (Is a directory)"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_scored(call_score, tmp_path, arguments, said):
    good = write(tmp_path / "niah_multivalue.jsonl", ("A", ["a"]))
    (tmp_path / "bad.jsonl").write_text((tmp_path / good).read_text() + "{\n")
    (tmp_path / "empty.jsonl").write_text("")
    before = sorted(tmp_path.iterdir())
    outcome = call_score(*arguments)
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith("bamctl: ")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_task_file_of_one_s_own(call_score, tmp_path):
    from bamctl.tasks.catalog import task_files

    (tmp_path / "mine.yaml").write_text(task_files()["niah_single_1"].read_text())
    name = write(tmp_path / "predictions.jsonl", ("A", ["a"]))
    assert json.loads(call_score("--json", name, "--task", "mine.yaml").out)["task"] == "mine"
