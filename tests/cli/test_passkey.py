"""The main job through the command line, with a checkpoint that knows nothing."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from bamctl.results.store import RunStore, load_samples
from bamctl.tasks.catalog import task_files

VOLATILE = ["started_at", "prefill_seconds", "decode_seconds", "peak_memory_bytes", "command"]
ASKED = ["passkey", "--model", "tiny", "--lengths", "128,256", "--samples", "3"]


def samples(out):
    return load_samples([Path(out)]).drop(columns=VOLATILE)


def test_the_table_goes_to_stdout_and_everything_else_to_stderr(folder, call):
    outcome = call(*ASKED)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["model", "train", "128", "256", "effective"]
    assert lines[1].split() == ["tiny", "*", "128", "0", "0", "<128"]  # it has not learned anything
    assert max(map(len, lines)) <= 80
    (run,) = (folder / "results" / "passkey").iterdir()
    err = outcome.err.splitlines()
    assert err[0] == "tiny: ggd with SSMax, trained at 128; native on cpu, float32"
    assert err[1] == ("passkey: 3 samples at each of 128, 256 tokens; depths equidistant:3; seed 0")
    assert [line.split(",")[0] for line in err[2:4]] == ["  128: 0/3 right", "  256: 0/3 right"]
    assert err[4:] == [f"Results in results/passkey/{run.name}: accuracy.parquet, samples.parquet"]
    assert "Loading" not in outcome.err

    frame = pd.read_parquet(run / "samples.parquet")
    assert frame[["length", "sample"]].values.tolist() == [
        [length, sample] for length in (128, 256) for sample in range(3)
    ]
    assert (
        frame.drop(columns=["error", "chat_prefix", "window", "loss", "tokens_scored"]).notna().all(axis=None)
    )
    assert (frame["bamctl_version"].nunique(), set(frame["device"])) == (1, {"cpu"})
    assert pd.read_parquet(run / "accuracy.parquet")["n"].tolist() == [3, 3]


def test_the_same_command_again_says_that_all_is_there(folder, call):
    first = call(*ASKED)
    before = samples("results")
    again = call(*ASKED)
    assert again.out == first.out
    assert "all samples were there already; nothing was run" in again.err
    assert "0/3 right, found\n" in again.err
    pd.testing.assert_frame_equal(samples("results"), before)


def test_what_is_missing_is_run(folder, call):
    call(*ASKED, "--depths", "0,50%,100")
    outcome = call(*ASKED[:-1], "5", "--depths", "0,50,100")
    assert "samples run: 4; 6 were there already" in outcome.err
    assert len(samples("results")) == 10


def test_max_len_doubles_from_the_train_length(folder, call):
    for option in ("--max-len", "--max_len"):
        outcome = call("passkey", "--model", "tiny", option, "300", "--samples", "1", "--out", option[-3:])
        assert outcome.status == 0, outcome
        assert samples(option[-3:])["length"].tolist() == [128, 256, 300]
        assert "at each of 128, 256, 300 tokens" in outcome.err


def test_a_length_is_echoed_as_it_was_understood(folder, call):
    assert "at each of 128, 1k (1024) tokens" in call(*ASKED, "--lengths", "1K,128,128").err


def test_the_table_is_of_the_samples_asked_for(folder, call):
    asked = ["passkey", "--model", "tiny", "--lengths", "128", "--depths", "0,50"]
    assert "n = 4 at every length" in call(*asked, "--samples", "4").out
    assert "n = 2 at every length" in call(*asked, "--samples", "2").out


def test_batches_change_nothing(folder, call):
    call(*ASKED, "--out", "one")
    call(*ASKED, "--out", "three", "--batch-size", "3")
    left, right = samples("one"), samples("three")
    pd.testing.assert_frame_equal(left.drop(columns="answer_logprob"), right.drop(columns="answer_logprob"))
    assert left["answer_logprob"].tolist() == pytest.approx(right["answer_logprob"].tolist(), abs=1e-4)


@pytest.mark.parametrize("off", ["--no-share-prefixes", "--no_share_prefixes"])
def test_sharing_prefixes_is_on_and_changes_nothing_but_time(folder, call, monkeypatch, off):
    monkeypatch.setattr("bamctl.backends.native.PREFILL_CHUNK", 16)
    runs = {}
    for name, options in (("default", []), ("on", ["--share-prefixes"]), ("off", [off])):
        outcome = call(*ASKED, "--out", name, *options)
        assert outcome.status == 0
        runs[name] = outcome.out, samples(name)
    assert runs["default"][1]["reused_tokens"].tolist() == runs["on"][1]["reused_tokens"].tolist()
    # The deepest of three needles, sample 2, is read in full; its haystack serves the one half way down.
    assert (runs["on"][1]["reused_tokens"] > 0).tolist() == [True, True, False] * 2
    assert runs["off"][1]["reused_tokens"].tolist() == [0] * 6
    for out, frame in runs.values():
        assert out == runs["on"][0]
        pd.testing.assert_frame_equal(
            frame.drop(columns="reused_tokens"), runs["on"][1].drop(columns="reused_tokens")
        )


def test_options_that_define_a_run(folder, call):
    for options in (
        [],
        ["--seed", str(2**63 - 1)],
        ["--dtype", "bfloat16"],
        ["--depths", "random"],
        ["--digits", "32"],
    ):
        assert call(*ASKED[:3], "--lengths", "256", "--samples", "2", *options).status == 0
    frame = samples("results")
    assert frame["run_id"].nunique() == 5
    assert set(frame["seed"]) == {0, 2**63 - 1}
    assert set(frame["dtype"]) == {"float32", "bfloat16"}
    assert set(frame["depth_policy"]) == {"equidistant:2", "random"}
    assert set(frame["variant"]) == {"", "digits=32"}
    assert {len(references[0]) for references in frame["references"]} == {5, 32}


def test_a_haystack_of_ones_own(folder, call):
    (folder / "text.txt").write_text("One sentence of mine. Another one, which is longer. And a third!\n" * 3)
    outcome = call(*ASKED, "--haystack", "text.txt")
    assert "passkey (haystack=text.txt): 3 samples" in outcome.err
    assert set(samples("results")["variant"]) == {"haystack=text.txt"}


def test_several_models_are_rows_of_one_table(folder, call):
    shutil.copytree(folder / "models" / "tiny", folder / "elsewhere" / "other")
    outcome = call(*ASKED, "--model", "elsewhere/other", "--model", "tiny", "--model", "tiny")
    assert outcome.status == 0
    assert [line.split()[0] for line in outcome.out.splitlines()[1:3]] == ["other", "tiny"]
    assert outcome.err.count("tiny: ggd") == outcome.err.count("other: ggd") == 1
    assert len(list((folder / "results" / "passkey").iterdir())) == 2
    frame = samples("results")
    keys = frame.groupby("model")["references"].apply(lambda column: [key for (key,) in column])
    assert keys["tiny"] == keys["other"]


def test_patience_skips_and_says_so(folder, call):
    outcome = call("passkey", "--model", "tiny", "--max-len", "512", "--samples", "2", "--patience", "1")
    assert outcome.err.splitlines()[3:5] == ["  256: skipped", "  512: skipped"]
    assert samples("results")["status"].tolist() == ["done"] * 2 + ["skipped"] * 4


def test_a_task_file_of_ones_own(folder, call):
    text = task_files()["passkey"].read_text().replace("digits: 5", "digits: 7")
    (folder / "mine.yaml").write_text(text)
    outcome = call("run", "mine.yaml", *ASKED[1:])
    assert outcome.status == 0, outcome
    frame = samples("results")
    assert set(frame["task"]) == {"mine"}
    assert {len(references[0]) for references in frame["references"]} == {7}
    assert call("run", "passkey", *ASKED[1:]).status == 0


def test_the_report_shows_what_was_run(folder, call):
    printed = call(*ASKED).out
    report = call("report")
    assert (report.status, report.err) == (0, "")
    assert report.out == printed
    assert call("report", "--csv").out.count("\n") == 3


@pytest.mark.parametrize("what", ["journal", "tables"])
def test_a_disk_that_fills_up_on_the_way(folder, call, monkeypatch, what):
    call(*ASKED, "--out", "whole")
    sync, calls = os.fsync, []
    last = {"journal": 4, "tables": 6}[what]  # run.json and its folder, then each of the three rows

    def fill(descriptor):
        calls.append(descriptor)
        if len(calls) >= last:
            raise OSError(28, os.strerror(28))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill)
        outcome = call(*ASKED)
    assert (outcome.status, outcome.out) == (1, "")
    last_line = outcome.err.splitlines()[-1]
    assert last_line.startswith("bamctl: results/passkey/tiny-")
    assert last_line.endswith("(No space left on device); what was finished is kept")
    assert len(samples("results")) == {"journal": 1, "tables": 3}[what]
    assert call(*ASKED).status == 0
    pd.testing.assert_frame_equal(samples("results"), samples("whole"))


def test_a_run_that_is_open_elsewhere_is_waited_for(folder, call, monkeypatch):
    call(*ASKED)
    opened = RunStore.open

    def open_twice(*arguments, **options):
        with opened(*arguments, **options):
            return opened(*arguments, **options)

    monkeypatch.setattr(RunStore, "open", open_twice)
    outcome = call(*ASKED)
    assert outcome.status == 1
    assert "this run is open in another process" in outcome.err.splitlines()[-1]
