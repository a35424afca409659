"""One sample, looked at and run again, with a checkpoint that knows nothing."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bamctl.backends.opening import open_model
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.rerun import find_rows
from bamctl.evaluation.run import EvaluationRequest, evaluate
from bamctl.results.journal import rows_table
from bamctl.results.schema import SampleRow
from bamctl.results.store import load_samples
from bamctl.tasks.catalog import build_task, load_spec

COMMAND = "bamctl passkey --model tiny --lengths 256 --samples 3 --depths equidistant"


def stored(out="results"):
    return load_samples([Path(out)])


@pytest.fixture(scope="module")
def finished(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left: three samples of passkey at 256 tokens."""
    out = tmp_path_factory.mktemp("finished")
    opened = open_model(str(tiny_checkpoint))
    backend = opened.start(device="cpu", dtype="float32", share_prefixes=True, longest=300)
    depths = parse_depths("equidistant", 3)
    request = EvaluationRequest(
        lengths=(256,), samples=3, depths=depths, out=out, command=tuple(COMMAND.split())
    )
    evaluate(backend, build_task(load_spec("passkey"), opened.tokenizer), request)
    return out


@pytest.fixture
def row(finished: Path, folder: Path) -> SampleRow:
    """The sample in the middle, of the run that is the only one in the folder results."""
    shutil.copytree(finished, folder / "results")
    (row,) = find_rows([Path("results")], stored()["row_id"][1])
    return row


def changed(row, **columns):
    """A folder with this one row and no other."""
    (Path("changed")).mkdir()
    pq.write_table(rows_table([replace(row, **columns)]), "changed/samples.parquet")
    return "changed"


@pytest.mark.parametrize(
    "asked",
    [
        "passkey --lengths 128,256",
        "passkey --lengths 300 --digits 7 --depths 0,100 --seed 5",
        "ruler --tasks niah_single_1 --lengths 700 --tokens-to-generate 9",
        "run 'my tasks/mine.yaml' --max-len 200 --batch-size 2",
    ],
)
def test_the_command_that_is_shown_gives_the_same_again(folder, call, asked):
    (folder / "my tasks").mkdir()
    text = (Path(__file__).parents[2] / "tasks" / "passkey.yaml").read_text(encoding="utf-8")
    (folder / "my tasks" / "mine.yaml").write_text(text, encoding="utf-8")
    assert call(*shlex.split(asked), "--model", "t*y", "--samples", "2", "--quiet").status == 0
    row_id = stored()["row_id"].iloc[-1]
    (before,) = find_rows([Path("results")], row_id)
    shown = json.loads(call("show", row_id, "--json").out)
    words = shlex.split(shown["rerun"])
    assert shown["command"] == words[:-4]
    assert words[-4:] == ["--only", row_id, "--out", "rerun"]
    assert call(*words[1:]).status == 0
    (after,) = find_rows([Path("rerun")], row_id)
    assert len(stored("rerun")) == 1
    for name in (
        "run_id",
        "prompt_digest",
        "prediction",
        "exact",
        "recall",
        "needles",
        "excerpts",
        "question",
    ):
        assert getattr(after, name) == getattr(before, name)
    assert after.answer_logprob == pytest.approx(before.answer_logprob, abs=1e-3)


def test_what_is_told_of_a_sample(row, call):
    outcome = call("show", row.row_id[:6])
    assert (outcome.status, outcome.err) == (0, "")
    facts, _, command = outcome.out.partition("\n\n")
    told = dict(re.split(" +", line, maxsplit=1) for line in facts.splitlines())
    assert list(told) == [
        *("row", "model", "task", "length", "needle", "question", "answer"),
        *("prediction", "score", "time", "started"),
    ]
    (key,) = row.references
    assert told["row"] == f"{row.row_id}, of run {row.run_id}"
    assert told["model"] == "tiny (native on cpu, float32)"
    assert told["length"] == "256 tokens; sample 1, seed 0"
    assert told["needle"].startswith(f"at depth 50%, token {row.needle_start[0]}: … ")
    assert f" The pass key is {key}. Remember it. {key} is the pass key." in told["needle"]
    assert told["needle"].endswith(" …")
    assert told["question"].endswith(" What is the pass key? The pass key is")
    assert told["answer"] == key
    assert told["score"].startswith("not exact, recall 0, log-probability of the answer -")
    assert "s to read" in told["time"]
    assert f"to write {row.completion_tokens} tokens" in told["time"]
    assert command.splitlines() == [
        "To run it again, in the folder in which it was run:",
        f"{COMMAND} --only {row.row_id} --out rerun",
    ]


def test_no_ellipsis_where_the_prompt_begins_or_ends(row, call):
    needle = re.search("^needle.*$", call("show", stored()["row_id"][2]).out, re.MULTILINE)[0]
    assert needle.endswith(" What is the pass key? The pass key is")
    folder = changed(row, needle_start=(3,))
    assert ": … " not in call("show", row.row_id, folder).out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_has_it_folded_with_needle_and_answer_marked(row, call, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = call("show", row.row_id, changed(row, prediction=f" {row.references[0]}!")).out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    facts, _, command = plain.partition("\n\n")
    assert max(map(len, facts.splitlines())) <= width
    assert len(command.splitlines()) == 2  # a command that is folded cannot be copied
    bold = "".join("".join(re.findall(r"\x1b\[1(?:;32)?m([^\x1b]*)", out)).split())
    assert "Thepasskeyis{0}.Rememberit.{0}isthepasskey.".format(row.references[0]) in bold
    assert out.count(f"\x1b[1;32m{row.references[0]}\x1b[0m") == 4  # twice in the needle, answer, prediction


def test_control_characters_are_shown_and_not_sent(row, call):
    text = "\x1b[31mred\r\nnext\u2028\u202e\x07 \u200d é漢😀"
    out = call("show", row.row_id, changed(row, prediction=text, model="a\x1b]0;b", variant="x\ny")).out
    assert r"prediction   \x1b[31mred\r\nnext\u2028\u202e\x07 " + "\u200d é漢😀\n" in out
    assert r"a\x1b]0;b" in out
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)


def test_several_are_listed_and_one_is_chosen(row, folder, call):
    others = [replace(row, model="other", run_id="0"), replace(row, dtype="bfloat16", run_id="1")]
    (folder / "results" / "more").mkdir()
    pq.write_table(rows_table(others), "results/more/samples.parquet")
    outcome = call("show", row.row_id)
    assert outcome.status == 0
    header, *lines = [line.split() for line in outcome.out.splitlines()]
    assert header == ["run", "model", "task", "length", "sample", "outcome"]
    assert sorted(line[1] for line in lines) == ["other", "tiny", "tiny"]
    assert all(line[2:5] == ["passkey", "256", "1"] for line in lines)
    assert outcome.err == "3 samples fit; choose one with --model or --run\n"
    assert "model        other (native" in call("show", row.row_id, "--model", "o*").out
    assert "float32" in call("show", row.row_id, "--model", "tiny", "--run", row.run_id[:5]).out
    lines = call("show", row.row_id, "--model", "tiny", "--json").out.splitlines()
    assert {json.loads(line)["dtype"] for line in lines} == {"bfloat16", "float32"}
    wrong = call("show", row.row_id, "--model", "tinny")
    assert (wrong.status, wrong.err) == (2, "bamctl: no results of model 'tinny' (did you mean tiny?)\n")


def test_json_has_null_where_a_number_is_not_finite(row, call):
    (line,) = call("show", row.row_id, changed(row, answer_logprob=float("-inf")), "--json").out.splitlines()
    told = json.loads(line, parse_constant=pytest.fail)
    assert told["answer_logprob"] is None
    assert told["prediction"] == row.prediction


def test_samples_whose_ids_begin_alike_are_told_apart(row, call):
    twin = replace(row, row_id=f"{row.row_id[:4]}{'0' * 20}", length=9999, exact=True, recall=1.0)
    Path("twins").mkdir()
    pq.write_table(rows_table([row, twin]), "twins/samples.parquet")
    outcome = call("show", row.row_id[:4], "twins")
    assert outcome.err == "2 samples fit; choose one with more of its row_id\n"
    assert [line.split()[0] for line in outcome.out.splitlines()[1:]] == [row.row_id, twin.row_id]
    assert outcome.out.splitlines()[2].split()[-1] == "exact"


def test_what_is_not_there_is_one_line(row, folder, call):
    for words, error in [
        (["0000"], "no sample 0000 in results"),
        (["0000", "--run", "abc"], "no sample 0000 in a run abc in results"),
        ([row.row_id, "--run", "zz"], f"no sample {row.row_id} in a run zz in results"),
        (["abc"], "row 'abc': at least 4 characters of a row_id are needed"),
        ([row.row_id, "nowhere"], "nowhere: no such file or folder"),
    ]:
        outcome = call("show", *words)
        assert (outcome.status, outcome.out, outcome.err) == (2, "", f"bamctl: {error}\n")
    (folder / "results" / "reference").mkdir()
    shutil.move(folder / "results" / "passkey", folder / "results" / "reference")
    error = f"no sample {row.row_id} in results; the published ones are in results/reference"
    assert call("show", row.row_id).err == f"bamctl: {error}\n"
    assert call("show", row.row_id, "results/reference").status == 0


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_why_a_sample_has_no_answer(row, call, status):
    scores = dict.fromkeys(["prediction", "exact", "recall", "answer_logprob"])
    times = dict.fromkeys(["completion_tokens", "finish_reason", "prefill_seconds", "decode_seconds"])
    prompt = dict.fromkeys(["prompt_digest", "needle_start", "needles", "excerpts", "question", "references"])
    columns = {**scores, **times, **(prompt if status == "skipped" else {})}
    out = call("show", row.row_id, changed(row, **columns, status=status, error="why\nnot")).out
    assert re.search(rf"^{status} +why\\nnot$", out, re.MULTILINE)
    assert not any(re.search(f"^{label}", out, re.MULTILINE) for label in ("prediction", "score", "time"))
    assert ("The pass key is" in out) == (status == "failed")
    assert bool(re.search("^depth +50%$", out, re.MULTILINE)) == (status == "skipped")


def test_a_loss_is_shown_without_a_prompt(row, call):
    scores = dict.fromkeys(["prediction", "exact", "recall", "answer_logprob", "references", "command"])
    prompt = dict.fromkeys(["prompt_digest", "needle_start", "needles", "excerpts", "question", "depth"])
    folder = changed(row, **scores, **prompt, metric="loss", loss=2.5, tokens_scored=255)
    out = call("show", row.row_id, folder).out
    assert re.search(r"^score +loss 2\.5000 nats a token, of 255 tokens$", out, re.MULTILINE)
    assert "prompt " not in out
    assert out.endswith("How to run it again is not known: the row does not hold the command of its run.\n")


def test_a_row_from_before_texts_were_stored(row, folder, call):
    columns = ["needles", "excerpts", "question", "command"]
    whole = call("show", row.row_id).out
    old = changed(row, **dict.fromkeys(columns))
    path = Path(old) / "samples.parquet"
    pd.read_parquet(path)  # as any reader would
    pq.write_table(pq.read_table(path).drop_columns(columns), path)
    out = call("show", row.row_id, old).out
    assert re.search(r"^prompt +made anew, its digest is the row's: .*$\n", out, re.MULTILINE)
    for label in ("needle", "question"):
        (line,) = re.findall(f"^{label} .*$", out, re.MULTILINE)
        assert line in whole
    again = call(*shlex.split(out.splitlines()[-1])[1:])
    assert again.status == 0
    assert stored("rerun")["prediction"].tolist() == [row.prediction]

    shutil.rmtree(folder / "models" / "tiny")
    out = call("show", row.row_id, old).out
    assert re.search(
        r"^prompt +the row is older than its text, and it cannot be made anew: there is no model or tokenizer"
        r" 'tiny'.*$",
        out,
        re.MULTILINE,
    )
    assert re.search(r"^needle +at depth 50%, token \d+$", out, re.MULTILINE)
