"""Parts of a run: shards, and chosen samples."""

import pandas as pd
import pytest

from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.run import evaluate, samples_of
from bamctl.results.shard import Shard
from bamctl.results.store import load_samples

VOLATILE = ["started_at", "prefill_seconds", "decode_seconds", "peak_memory_bytes"]


def rows_of(out):
    return load_samples([out]).drop(columns=VOLATILE)


def test_shards_make_the_run_of_one_process(backend, task, request_for, tmp_path):
    evaluate(backend, task, request_for("random", samples=5, out=tmp_path / "whole"))
    answered = backend.answered
    for k, samples in ((2, 2), (1, 3)):
        told = []
        request = request_for("random", samples=5, shard=Shard(k=k, n=2))
        summary = evaluate(backend, task, request, on_progress=told.append)
        assert (summary.ran, summary.found, len(summary.row_ids)) == (3 * samples, 0, 3 * samples)
        assert summary.table == f"samples.{k}-of-2.parquet"
        assert {progress.samples for progress in told} == {samples}
        assert told[-1].done == samples
        stored = pd.read_parquet(summary.folder / summary.table)
        assert set(stored["row_id"]) == summary.row_ids
    assert backend.answered - answered == 15
    pd.testing.assert_frame_equal(rows_of(tmp_path / "out"), rows_of(tmp_path / "whole"))
    accuracy = pd.read_parquet(summary.folder / "accuracy.parquet")
    assert accuracy[["length", "n"]].values.tolist() == [[128, 5], [256, 5], [512, 5]]


def test_what_any_part_has_done_is_not_run_again(backend, task, request_for, tmp_path):
    """A whole run is interrupted, shards of two numbers go on, and another whole run ends it."""
    evaluate(backend, task, request_for(samples=2, lengths=(128,)))
    runs = [(Shard(k=1, n=2), 2, 1), (Shard(k=3, n=4), 0, 1), (Shard(k=2, n=4), 0, 2), (None, 2, 5)]
    ran = []
    for shard, *_ in runs:
        summary = evaluate(backend, task, request_for(samples=7, lengths=(128,), shard=shard))
        ran.append((summary.ran, summary.found))
    assert ran == [(3, 1), (0, 2), (1, 1), (1, 6)]
    assert backend.answered == 7
    assert rows_of(tmp_path / "out")["sample"].tolist() == list(range(7))
    assert pd.read_parquet(summary.folder / "accuracy.parquet")["n"].tolist() == [7]


def test_the_same_shard_twice_at_once_is_refused_and_another_is_not(backend, task, request_for, tmp_path):
    def during(number):
        backend.before = lambda number: None
        with pytest.raises(RunFailed, match="shard 1/2 of this run is open in another process"):
            evaluate(backend, task, request_for(shard=Shard(k=1, n=2)))
        evaluate(backend, task, request_for(shard=Shard(k=2, n=2)))

    backend.before = during
    assert evaluate(backend, task, request_for(shard=Shard(k=1, n=2))).ran == 6
    samples = rows_of(tmp_path / "out")
    assert len(samples) == 9
    accuracy = pd.read_parquet(next((tmp_path / "out").rglob("accuracy.parquet")))
    assert accuracy["n"].tolist() == [3, 3, 3]


def test_a_whole_run_beside_a_shard_runs_samples_twice_and_counts_them_once(
    backend, task, request_for, tmp_path
):
    def during(number):
        backend.before = lambda number: None
        evaluate(backend, task, request_for(shard=Shard(k=1, n=2)))

    backend.before = during
    assert evaluate(backend, task, request_for()).ran == 9
    assert backend.answered == 15
    assert len(rows_of(tmp_path / "out")) == 9
    accuracy = pd.read_parquet(next((tmp_path / "out").rglob("accuracy.parquet")))
    assert accuracy["n"].tolist() == [3, 3, 3]


def test_a_shard_without_samples_writes_nothing(backend, task, request_for, tmp_path):
    with pytest.raises(BadInput, match=r"^passkey: none of the 3 samples of a length is in shard 4/8$"):
        evaluate(backend, task, request_for(shard=Shard(k=4, n=8)))
    assert list(tmp_path.iterdir()) == []
    assert evaluate(backend, task, request_for(shard=Shard(k=3, n=8))).ran == 3


def test_patience_needs_all_samples(backend, task, request_for, tmp_path):
    with pytest.raises(BadInput, match=r"^--patience and --shard exclude each other: [^\n]*$"):
        evaluate(backend, task, request_for(patience=1, shard=Shard(k=1, n=2)))
    assert list(tmp_path.iterdir()) == []


def test_only_the_samples_that_are_named_are_run_whatever_patience_says(backend, task, request_for, tmp_path):
    backend.right = lambda prompt: False
    plan = samples_of(task.spec, request_for())
    chosen = [plan[128][2], plan[256][0], plan[512][1]]
    told = []
    request = request_for(patience=1, only=frozenset(sample.row_id for sample in chosen))
    summary = evaluate(backend, task, request, on_progress=told.append)
    assert (summary.ran, summary.row_ids) == (3, request.only)
    assert {(progress.length, progress.samples) for progress in told} == {(128, 1), (256, 1), (512, 1)}
    rows = rows_of(tmp_path / "out")
    assert rows["status"].tolist() == ["done"] * 3
    assert rows["row_id"].tolist() == [sample.row_id for sample in chosen]
    assert evaluate(backend, task, request_for()).found == 3
    with pytest.raises(BadInput, match="--only 00: no sample"):
        evaluate(backend, task, request_for(only=frozenset({"00"})))
