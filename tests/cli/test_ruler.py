"""`bamctl ruler`, a task file of one's own, and prompts as files, on a model that has learned nothing."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from bamctl.tasks.catalog import RULER_TASKS, task_files

SHORT = ("--model", "tiny", "--samples", 2, "--tokens-to-generate", 4)


def test_two_tasks_make_two_rows_and_two_runs(folder, call):
    outcome = call("ruler", "--tasks", "niah_multikey_2,niah_single_1", "--lengths", "1k,2k", *SHORT)
    assert outcome.status == 0, outcome.err
    assert "RULER" in outcome.out
    named = [name for name in ("niah_single_1", "niah_multikey_2") if name in outcome.out]
    assert named == ["niah_single_1", "niah_multikey_2"]
    assert "niah_single_2" not in outcome.out
    rows = pd.concat(pd.read_parquet(file) for file in folder.glob("results/*/*/samples.parquet"))
    assert len(rows) == 8
    assert set(rows["task"]) == {"niah_single_1", "niah_multikey_2"}
    assert set(rows["metric"]) == {"string_match_all"}
    assert (rows["prompt_tokens"] == rows["length"] - 4).all()
    assert set(rows["variant"]) == {"tokens_to_generate=4"}
    assert set(rows["depth_policy"]) == {"ruler"}
    assert all(len(depths) == 1 for depths in rows["depth"])
    again = call("ruler", "--tasks", "niah_multikey_2,niah_single_1", "--lengths", "1k,2k", *SHORT)
    assert again.out == outcome.out
    assert again.err.count("nothing was run") == 2


def test_lengths_of_the_series_that_are_too_short_are_left_out_and_told(folder, call):
    outcome = call("ruler", "--tasks", "niah_single_1", "--max-len", "2k", "--samples", 1, "--model", "tiny")
    assert outcome.status == 0, outcome.err
    assert "niah_single_1: 128, 256" in outcome.err
    assert "left out, the shortest length that always works with the tokenizer of tiny is" in outcome.err
    assert "2k" in outcome.out
    asked = call("ruler", "--tasks", "niah_single_1", "--lengths", "128", "--samples", 1, "--model", "tiny")
    assert asked.status == 2
    assert "is too short for niah_single_1" in asked.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tasks", "niah_singel_1"], "did you mean niah_single_1?"),
        (["--tasks", ","], "name no task"),
        (["--tasks", "niah_single_1", "--essays", "mine.txt"], "--essays: niah_single_1 has no use for it"),
        (["--tasks", "niah_single_2", "--essays", "none.txt"], "there is no file none.txt"),
        (["--tasks", "niah_single_1", "--tokens-to-generate", "0"], "greater than or equal to 1"),
        (["--tasks", "niah_single_1", "--apply-chat-template"], "has no chat template"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(folder, call, arguments, told):
    outcome = call("ruler", "--model", "tiny", "--lengths", "1k", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert told in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (folder / "results").exists()


def test_tasks_whose_texts_are_not_installed_are_left_out_and_told(folder, call, monkeypatch):
    monkeypatch.setattr("bamctl.tasks.ruler.corpora.find_spec", lambda name: None)
    lines = "niah_single_2 left out: essays: RULER's own PaulGrahamEssays.json is not installed: pip install"
    outcome = call("ruler", "--tasks", "niah_single_1,niah_single_2,qa_1", "--lengths", "1k", *SHORT)
    assert outcome.status == 0
    assert lines in outcome.err
    assert "qa_1 left out: dataset: RULER's own squad.json is not installed: pip install" in outcome.err
    assert [path.name for path in (folder / "results").iterdir()] == ["niah_single_1"]
    alone = call("ruler", "--tasks", "niah_single_2,qa_1", "--lengths", "1k", *SHORT)
    assert (alone.status, alone.out) == (2, "")
    assert "pip install 'bamctl[ruler]'" in alone.err


def test_a_file_of_ones_own_runs(folder, call):
    definition = yaml.safe_load(task_files()["niah_single_1"].read_text(encoding="utf-8"))
    mine = definition | {"num_needle_k": 3, "tokens_to_generate": 4, "needle": "{key}: {value}!"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(mine), encoding="utf-8")
    outcome = call("run", "mine.yaml", "--model", "tiny", "--lengths", "1k", "--samples", 1)
    assert outcome.status == 0, outcome.err
    [file] = folder.glob("results/mine/*/samples.parquet")
    assert len(pd.read_parquet(file)["needle_start"][0]) == 3


def test_prompts_are_written_as_ruler_reads_them(folder, call):
    arguments = ("niah_multikey_2", "--samples", 3, "--tokenizer", "tiny")
    outcome = call("tasks", "export", *arguments, "--lengths", "1k")
    assert (outcome.status, outcome.err) == (0, "")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert {line["length"] for line in lines} == {1024}
    for line in lines:
        [answer] = line["outputs"]
        assert line["input"].count(answer) == 1
        assert line["input"].startswith("A special magic number is hidden within the following text.")
        assert line["input"].endswith("mentioned in the provided text is")
    out = call("tasks", "export", *arguments, "--lengths", "1k,2k", "--out", "data")
    assert (out.status, out.out) == (0, "")
    written = folder / "data" / "1k" / "niah_multikey_2" / "validation.jsonl"
    assert written.read_text(encoding="utf-8") == outcome.out
    assert (folder / "data" / "2k" / "niah_multikey_2" / "validation.jsonl").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["niah_single_1", "--lengths", "1k,2k"], "name one with --out"),
        (["niah_single_1", "--lengths", "64"], "the shortest that always works is"),
        (["niah_single_1", "--format", "rule"], "did you mean ruler?"),
        (["niah_single_9"], "did you mean niah_single_"),
        (["niah_single_1", "--tokenizer", "tinny"], "did you mean tiny?"),
        (["niah_single_1", "--samples", "0"], "--samples 0: must lie between 1 and"),
    ],
)
def test_an_export_that_cannot_be_is_told_in_one_line(folder, call, arguments, told):
    outcome = call("tasks", "export", "--tokenizer", "tiny", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert told in outcome.err
    assert outcome.err.count("\n") == 1


def test_every_task_of_ruler_has_its_file():
    assert set(RULER_TASKS) <= set(task_files())
    assert all(Path(task_files()[name]).is_file() for name in RULER_TASKS)
