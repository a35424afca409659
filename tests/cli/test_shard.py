"""--shard and --only: parts of a run through the command line."""

from pathlib import Path

import pandas as pd
import pytest

from bamctl.results.store import load_samples

VOLATILE = ["started_at", "prefill_seconds", "decode_seconds", "peak_memory_bytes"]
ASKED = ["passkey", "--model", "tiny", "--lengths", "128,256", "--samples", "3"]


def samples(out):
    return load_samples([Path(out)]).drop(columns=VOLATILE)


def test_two_shards_and_the_report_are_what_one_command_is(folder, call):
    whole = call(*ASKED, "--out", "whole")
    for k, count in ((1, 2), (2, 1)):
        outcome = call(*ASKED, "--shard", f"{k}/2")
        assert outcome.status == 0, outcome
        assert f"n = {count} at every length" in outcome.out
        err = outcome.err.splitlines()
        assert err[1].endswith("depths equidistant:3; seed 0; of them shard {k}/2".replace("{k}", str(k)))
        assert f"  256: 0/{count} right" in outcome.err
        assert err[-1].endswith(f"accuracy.parquet, samples.{k}-of-2.parquet")
    pd.testing.assert_frame_equal(samples("results"), samples("whole"))
    assert call("report").out == call("report", "whole").out
    assert whole.out.splitlines()[0] == call("report").out.splitlines()[0]
    again = call(*ASKED)
    assert "all samples were there already; nothing was run" in again.err


def test_a_shard_that_has_nothing_to_do_says_so_and_is_no_error(folder, call):
    outcome = call(*ASKED, "--shard", "4/8")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == "none of the 3 samples of a length is in shard 4/8; there is nothing to run\n"
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "2"], "--shard '2': is written K/N, 2/8 for the second of eight shards"),
        (["--shard", "0/8"], "--shard 0/8: shards are counted from 1, the last of them is 8/8"),
        (
            ["--shard", "1/2", "--patience", "1"],
            "--patience and --shard exclude each other: a shard does not",
        ),
        (["--shard", "1/2", "--explain"], "--explain tells of all samples; leave out --shard and --only"),
        (["--only", "ff"], "--only ff: no sample of these tasks, lengths, depths and seed has this row_id;"),
    ],
)
def test_what_is_wrong_is_one_line(folder, call, options, message):
    outcome = call(*ASKED, *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"bamctl: {message}")
    assert outcome.err.count("\n") == 1
    assert not (folder / "results").exists()


def test_only_one_sample(folder, call):
    call(*ASKED, "--out", "whole")
    chosen = samples("whole").iloc[[4]].reset_index(drop=True)
    outcome = call(*ASKED, "--only", chosen["row_id"][0])
    assert outcome.status == 0, outcome
    assert "n = 1 at every length" in outcome.out
    pd.testing.assert_frame_equal(samples("results"), chosen)
