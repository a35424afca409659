"""`--explain`: heads, time and memory of a run that is not made."""

import dataclasses
import itertools
import shutil

import psutil
import pytest

from bamctl.backends.native import NativeBackend

ASKED = ["passkey", "--model", "tiny", "--lengths", "128,2k", "--samples", "4", "--explain"]


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def rows(out, first):
    """The lines of the table whose header begins with a word, in cells."""
    lines = [line.split() for line in out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:1] == [first])
    numbered = itertools.takewhile(lambda line: line[0][0].isdigit(), lines[start + 1 :])
    return lines[start], list(numbered)


@pytest.fixture
def timed(monkeypatch):
    """Has the backend say that a prompt took so many seconds and 1 GB, whatever it did take."""
    complete = NativeBackend.complete

    def set_seconds(seconds):
        def completed(self, prompts):
            (completion,) = complete(self, prompts)
            took = {"prefill_seconds": seconds(prompts[0]), "decode_seconds": 0.0}
            return [dataclasses.replace(completion, **took, peak_memory_bytes=10**9)]

        monkeypatch.setattr(NativeBackend, "complete", completed)

    return set_seconds


def test_heads_lengths_and_a_total_on_stdout_and_no_file(folder, call, timed):
    timed(lambda prompt: 1e-5 * len(prompt.token_ids))  # however busy the machine is, no minutes
    before = files(folder)
    outcome = call(*ASKED)
    assert (outcome.status, outcome.err) == (0, "")
    assert files(folder) == before
    assert not (folder / "results").exists()
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert outcome.out.startswith("tiny: ggd with SSMax, trained at 128; native on cpu, float32\n")
    assert "passkey: 4 samples at each of 128, 2k (2048) tokens" in outcome.out

    header, heads = rows(outcome.out, "layer")
    assert header == ["layer", "head", "β", "α", "s", "back", "at", "2k", "computed"]
    assert [row[:2] for row in heads] == [[str(layer), str(head)] for layer in (0, 1) for head in range(4)]
    assert [row[2] for row in heads] == ["1", "1", "0.5", "1.2", "-0.5", "0.3", "-1.5", "1"]
    assert all(row[5] == "all" or 0 < int(row[5]) < 2048 for row in heads)
    assert {len(row) for row in heads} == {7}
    assert heads[4][5:] == ["all", "40%"]  # the last of 4 rows of tiles, which are 10

    header, lengths = rows(outcome.out, "length")
    assert header == ["length", "whole", "prompt", "a", "sample", "4", "samples", "memory"]
    assert [row[0] for row in lengths] == ["128", "2k"]
    assert all(row[2] == row[4] == row[6] == "s" and row[8] == "GB" for row in lengths)
    assert "All samples: " in outcome.out
    caption = " ".join(outcome.out.split())
    assert "the one of 2048 tokens on which content scores were measured." in caption
    assert "that prompts of 512 to 2048 tokens took just now" in caption
    assert f"cpu has {psutil.virtual_memory().total / 1e9:.1f} GB in all" in caption


def test_every_model_is_explained(folder, call):
    shutil.copytree("models/tiny", "models/other")
    out = call(*ASKED, "--model", "other").out
    assert out.count("layer  head") == out.count("All samples: ") == 2


def test_the_numbers_are_those_of_the_library(folder, call, timed):
    """A number of each kind, with a backend whose seconds are known."""
    seconds = iter([9.0, 0.5, 0.25])
    timed(lambda prompt: next(seconds))
    _, (row,) = rows(call(*ASKED, "--lengths", "512").out, "length")
    assert row == ["512", "0.25", "s", "0.25", "s", "1.0", "s", "1.00", "GB"]


@pytest.mark.parametrize("length", ["512k", "4M", "1000000M"])
def test_any_length_is_explained(folder, call, length):
    outcome = call(*ASKED, "--lengths", length)
    assert outcome.status == 0
    assert "took just now" in " ".join(outcome.out.split())


def test_a_task_of_ones_own_is_explained(folder, call):
    outcome = call("run", "passkey", *ASKED[1:])
    assert outcome.status == 0
    assert "layer  head" in outcome.out
    assert not (folder / "results").exists()


def test_where_nothing_can_be_told_that_is_said_in_a_line(folder, call, monkeypatch):
    monkeypatch.setattr(NativeBackend, "workload", lambda self, sample, *, longest: None)
    outcome = call(*ASKED)
    assert outcome.status == 0
    told = " ".join(outcome.out.split())
    assert told.endswith(
        "seed 0 How far its heads look, and what a run will take, cannot be told with the native backend."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "12q"], "length '12q' is not a number of tokens such as 4096, 4k, 512k or 1M"),
        (["--lengths", "1"], "length 1 is too short for passkey"),
        (["--depths", "101%"], "lies outside 0"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_bad_input_is_told_as_without(folder, call, options, message):
    outcome = call(*ASKED, *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err
    assert not (folder / "results").exists()


def test_the_location_is_shown_where_there_is_one(folder, call, make_checkpoint):
    shutil.copytree(make_checkpoint("moved", prior_mu=-3.0), "models/moved")
    header, heads = rows(call(*ASKED, "--model", "moved").out.partition("moved: ")[2], "layer")
    assert header[:5] == ["layer", "head", "β", "α", "μ"]
    assert {row[4] for row in heads} == {"-3"}


def test_a_uniform_prior_looks_at_everything(folder, call, make_checkpoint):
    shutil.copytree(make_checkpoint("flat", position_encoding="uniform", ssmax=False), "models/flat")
    _, heads = rows(call(*ASKED, "--model", "flat").out.partition("flat: ")[2], "layer")
    assert [row[2:] for row in heads[:4]] == [["-", "-", "-", "all", "100%"]] * 4
