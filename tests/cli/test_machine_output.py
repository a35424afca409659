"""`--json` and `--quiet`: what other programs read of a measuring command."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from bamctl.cli.machine_output import tell_samples
from bamctl.cli.main import main
from bamctl.results.schema import ACCURACY_SCHEMA, SAMPLE_SCHEMA, SampleRow
from bamctl.results.store import accuracy_table, load_samples

PASSKEY = ["passkey", "--model", "tiny", "--lengths", "128,256", "--samples", "3", "--json"]


def objects(out):
    """The objects by their event, each without it."""
    found = {"sample": [], "length": []}
    for line in out.splitlines():
        assert line.isascii()
        columns = json.loads(line, parse_constant=pytest.fail)
        found[columns.pop("event")].append(columns)
    return found["sample"], found["length"]


def as_stored(frame, schema):
    """Rows of a table as they are in JSON."""
    assert list(frame.columns) == schema.names
    rows = json.loads(frame.drop(columns="started_at", errors="ignore").to_json(orient="records"))
    return {(row.get("row_id"), row["length"]): row for row in rows}


def check(found, frame, schema):
    """Every column of a row, to the last digit but one, whatever the order."""
    stored = as_stored(frame, schema)
    assert len(found) == len(stored)
    for row in found:
        assert set(row) == set(schema.names)
        row.pop("started_at", None)
        other = stored[row.get("row_id"), row["length"]]
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[name], abs=1e-9)
            else:
                assert value == other[name], name


def test_a_line_a_sample_and_a_line_a_length(folder, call):
    outcome = call(*PASSKEY, "--patience", "1")
    assert outcome.status == 0, outcome.err
    samples, lengths = objects(outcome.out)
    assert [(row["length"], row["status"]) for row in samples] == [
        *[(128, "done")] * 3,
        *[(256, "skipped")] * 3,
    ]
    assert [datetime.fromisoformat(row["started_at"]).tzinfo for row in samples] == [UTC] * 6
    stored = load_samples([Path("results")])
    check(samples, stored, SAMPLE_SCHEMA)
    check(lengths, accuracy_table(stored), ACCURACY_SCHEMA)
    assert [(row["length"], row["n"], row["skipped"]) for row in lengths] == [(128, 3, 0), (256, 0, 3)]
    assert outcome.err.splitlines()[2].startswith("  128: 0/3 right, ")
    assert outcome.err.splitlines()[-1].startswith("Results in ")


def test_lines_of_lengths_are_of_all_that_was_asked_for_and_of_nothing_else(folder, call):
    assert call(*PASSKEY).status == 0
    again = call(*PASSKEY, "--samples", "3", "--lengths", "128", "--depths", "equidistant")
    samples, lengths = objects(again.out)
    assert samples == []
    assert [(row["length"], row["n"]) for row in lengths] == [(128, 3)]


@pytest.mark.parametrize("json_too", [True, False])
def test_quiet_leaves_stdout_as_it_is_and_stderr_empty(folder, call, json_too):
    asked = PASSKEY if json_too else PASSKEY[:-1]
    loud, quiet = call(*asked), call(*asked, "--quiet")
    assert (quiet.status, quiet.err) == (0, "")
    assert loud.err != ""
    if json_too:
        assert objects(quiet.out) == ([], objects(loud.out)[1])
    else:
        assert quiet.out == loud.out


def test_quiet_says_what_is_wrong_and_what_is_left_out(folder, call):
    wrong = call(*PASSKEY, "--quiet", "--lengths", "20")
    assert (wrong.status, wrong.out) == (2, "")
    assert wrong.err.startswith("bamctl: length 20 is too short")
    left_out = call(
        "run", "niah_single_1", "--model", "tiny", "--samples", "1", "--max-len", "512", "--quiet"
    )
    assert left_out.status == 0
    [line] = left_out.err.splitlines()
    assert line.startswith("niah_single_1: 128, 256 left out, ")


def test_perplexity_has_a_line_for_each_range_of_positions(folder, call):
    Path("text.txt").write_text(" ".join(f"The sky is blue. Number {number}." for number in range(200)))
    asked = ["perplexity", "tiny", "--text", "text.txt", "--max-len", "300", "--samples", "2", "--json", "-q"]
    outcome = call(*asked, "--windows", "128", "--figure", "loss.png")
    assert (outcome.status, outcome.err) == (0, "")
    samples, lengths = objects(outcome.out)
    stored = load_samples([Path("results")])
    check(samples, stored, SAMPLE_SCHEMA)
    assert [(row["window"], row["length"], row["n"]) for row in lengths] == [
        *[(None, 256, 2), (None, 300, 2)],
        *[(128, 256, 2), (128, 300, 2)],
    ]
    assert all(np.isfinite(row["loss"]) and row["accuracy"] is None for row in lengths)
    assert Path("loss.png").exists()


def test_a_reader_that_has_seen_enough_ends_it_and_what_was_finished_is_kept(
    folder, call, monkeypatch, capsys
):
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, os.fdopen(writer, "w") as pipe:
        patch.setattr(sys, "argv", ["bamctl", *PASSKEY, "--quiet"])
        patch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 1  # or a script would take what there is for all
    assert capsys.readouterr().err == (
        "bamctl: nobody reads the output any more; whatever was finished is kept: the same command goes on"
        " from there\n"
    )
    assert len(load_samples([Path("results")])) == 1
    samples, lengths = objects(call(*PASSKEY).out)
    assert len(samples) == 5
    assert [row["n"] for row in lengths] == [3, 3]


def test_tables_of_explain_are_refused_with_it(folder, call):
    outcome = call(*PASSKEY, "--explain")
    assert (outcome.status, outcome.out) == (2, "")
    assert (
        outcome.err == "bamctl: --explain shows tables, which are nothing for --json; leave out one of them\n"
    )


def test_what_json_does_not_know_is_null_or_escaped(capsys):
    text = dict.fromkeys(
        [
            *("run_id", "row_id", "model", "model_digest", "tokenizer_digest", "position_encoding"),
            *("backend", "device", "dtype", "task", "task_digest", "variant", "depth_policy"),
            "bamctl_version",
        ],
        "é",
    )
    row = SampleRow(
        **text,
        ssmax=False,
        train_length=None,
        seed=0,
        prompt_version=1,
        length=128,
        sample=0,
        status="done",
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        metric="exact",
        prediction="\ud800\n",
        exact=False,
        recall=0.0,
        answer_logprob=float("-inf"),
    )
    tell_samples([row, row])
    out = capsys.readouterr().out
    (told, _), _ = objects(out)
    assert (told["model"], told["prediction"], told["answer_logprob"]) == ("é", "\ud800\n", None)
    assert told["started_at"] == "2026-01-02T00:00:00+00:00"
