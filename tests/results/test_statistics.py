import math

import numpy as np
import pandas as pd
import pytest

from bamctl.results.frames import to_frame
from bamctl.results.journal import rows_table
from bamctl.results.means import count_scores, recall_interval
from bamctl.results.proportions import wilson_interval
from bamctl.results.schema import ACCURACY_SCHEMA
from bamctl.results.statistics import ACCURACY_COLUMNS, accuracy_table, scores_of


@pytest.fixture
def samples(make_row) -> pd.DataFrame:
    rows = [
        make_row(0, answer_logprob=-1.0, prefill_seconds=1.0, decode_seconds=0.5, peak_memory_bytes=10),
        make_row(1, answer_logprob=None, prefill_seconds=2.0, decode_seconds=1.0, peak_memory_bytes=30),
        make_row(
            2,
            exact=False,
            recall=0.5,
            finish_reason="stop",
            answer_logprob=-3.0,
            prefill_seconds=6.0,
            decode_seconds=0.0,
            peak_memory_bytes=20,
        ),
        make_row(3, status="failed"),
        make_row(0, length=1024, status="skipped"),
        make_row(1, length=1024, status="skipped"),
        make_row(
            0, length=1024, run_id="other", variant="essays", train_length=None, exact=False, recall=0.0
        ),
    ]
    return to_frame(rows_table(rows))


def test_every_figure_by_hand(samples, identity):
    first, second, third = accuracy_table(samples).to_dict("records")
    low, high = wilson_interval(2, 3)
    of_losses = {"window", "loss", "loss_low", "loss_high", "tokens_scored"}
    counted = [first.pop(name).tolist() for name in ("recall_values", "recall_counts")]
    assert counted == [[0.5, 1.0], [1, 2]]
    assert {name for name in first if pd.isna(first[name])} == of_losses
    assert {name: value for name, value in first.items() if name not in of_losses} == {
        "run_id": identity.run_id,
        "model": "models/tiny",
        "model_digest": "aa" * 32,
        "position_encoding": "ggd",
        "ssmax": True,
        "train_length": 512,
        "task": "passkey",
        "metric": "exact",
        "variant": "",
        "depth_policy": "equidistant:20",
        "backend": "native",
        "dtype": "float32",
        "seed": 0,
        "length": 512,
        "n": 3,
        "exact_count": 2,
        "accuracy": 2 / 3,
        "ci_low": low,
        "ci_high": high,
        "mean_recall": 2.5 / 3,
        "score": 2 / 3,
        "score_low": low,
        "score_high": high,
        "cut_off": 2,
        "mean_answer_logprob": -2.0,
        "prefill_seconds": 3.0,
        "decode_seconds": 0.5,
        "peak_memory_bytes": 30,
        "skipped": 0,
        "failed": 1,
    }
    assert (second["length"], second["n"], second["skipped"], second["failed"]) == (1024, 0, 2, 0)
    assert pd.isna(second["exact_count"])
    assert pd.isna(second["cut_off"])
    assert second["recall_values"] is None
    assert (third["run_id"], third["n"], third["accuracy"]) == ("other", 1, 0.0)
    assert third["ci_low"] == 0.0
    assert pd.isna(third["train_length"])


@pytest.mark.parametrize("metric", ["string_match_all", "string_match_part"])
def test_ruler_s_score_is_the_mean_recall(make_row, metric):
    recalls = [1.0, 0.25, 0.5, 0.0]
    rows = [
        make_row(sample, metric=metric, exact=recall == 1, recall=recall)
        for sample, recall in enumerate(recalls)
    ]
    (row,) = accuracy_table(
        to_frame(rows_table([*rows, make_row(4, status="failed", metric=metric)]))
    ).to_dict("records")
    assert (row["metric"], row["n"], row["cut_off"], row["failed"]) == (metric, 4, 4, 1)
    assert (row["accuracy"], row["ci_low"], row["ci_high"]) == (0.25, *wilson_interval(1, 4))
    assert row["score"] == row["mean_recall"] == 1.75 / 4
    assert (row["score_low"], row["score_high"]) == recall_interval(count_scores(recalls))


@pytest.mark.parametrize(
    ("recall", "score"),
    [(1.0, (1.0, pytest.approx(0.5655, abs=1e-4), 1.0)), (0.0, (0.0, 0.0, pytest.approx(0.4345, abs=1e-4)))],
)
def test_a_score_at_an_end_has_its_interval_s_end_there(make_row, recall, score):
    rows = [make_row(sample, metric="string_match_all", exact=False, recall=recall) for sample in range(5)]
    table = accuracy_table(to_frame(rows_table(rows)))
    assert tuple(table[["score", "score_low", "score_high"]].iloc[0]) == score


def test_where_nothing_is_done_every_figure_is_null(samples):
    second = accuracy_table(samples).iloc[1]
    nullable = {field.name for field in ACCURACY_SCHEMA if field.nullable} - {"train_length"}
    assert {name for name in ACCURACY_SCHEMA.names if pd.isna(second[name])} == nullable


def test_no_row_done_at_all(samples):
    table = accuracy_table(samples[samples["status"] != "done"])
    assert table["n"].tolist() == [0, 0]
    assert table["accuracy"].isna().all()
    assert all(math.isnan(value) for value in table["ci_low"])


def test_the_order_of_the_samples_does_not_matter(samples):
    expected = accuracy_table(samples)
    pd.testing.assert_frame_equal(accuracy_table(samples.iloc[::-1]), expected)
    pd.testing.assert_frame_equal(accuracy_table(samples.sample(frac=1, random_state=1)), expected)


def test_losses_are_averaged_over_stretches_and_are_no_accuracy(make_row, make_loss_row):
    rows = [
        make_loss_row(0, loss=2.0, tokens_scored=100),
        make_loss_row(1, loss=3.0, tokens_scored=60),
        make_loss_row(2, loss=4.0, tokens_scored=60),
        make_loss_row(3, status="failed"),
        make_loss_row(0, 1024, loss=1.5, tokens_scored=512),
        make_loss_row(0, 2048, status="failed"),
        make_row(0, run_id="other"),
    ]
    first, single, nothing, answers = accuracy_table(to_frame(rows_table(rows))).to_dict("records")
    half = 4.302652729911275 / math.sqrt(3)  # t for two degrees of freedom
    assert (first["n"], first["failed"], first["tokens_scored"], first["window"]) == (3, 1, 220, 512)
    assert first["loss"] == 3.0
    assert (first["loss_low"], first["loss_high"]) == pytest.approx((3 - half, 3 + half))
    figures = ("accuracy", "ci_low", "ci_high", "mean_recall", "score", "score_low", "score_high")
    for row in (first, single, nothing):
        assert all(pd.isna(row[name]) for name in (*figures, "exact_count", "cut_off"))
    assert (single["n"], single["loss"]) == (1, 1.5)
    assert pd.isna(single["loss_low"])
    assert pd.isna(single["loss_high"])
    assert (nothing["n"], nothing["failed"]) == (0, 1)
    assert pd.isna(nothing["loss"])
    assert (answers["score"], answers["exact_count"], answers["cut_off"]) == (1.0, 1, 1)
    assert pd.isna(answers["loss"])
    assert pd.isna(answers["tokens_scored"])


def test_a_loss_has_no_recall_and_no_recall_has_no_scores(make_loss_row, make_row):
    rows = [make_loss_row(0), make_row(0, run_id="other", status="skipped")]
    for row in accuracy_table(to_frame(rows_table(rows))).to_dict("records"):
        assert scores_of(row) is scores_of({**row, "metric": "string_match_all"}) is None


def test_recalls_are_kept_as_how_many_there_are_of_each(make_row):
    recalls = [1.0, 0.25, 0.25, 0.0, 1.0]
    rows = [make_row(sample, exact=recall > 0.5, recall=recall) for sample, recall in enumerate(recalls)]
    (row,) = accuracy_table(to_frame(rows_table(rows))).to_dict("records")
    assert scores_of({**row, "metric": "string_match_all"}) == count_scores(recalls)
    assert scores_of(row) == count_scores([0.0, 0.0, 0.0, 1.0, 1.0])
    assert scores_of({**row, "exact_count": 0}) == count_scores([0.0] * 5)


def test_no_other_columns_are_read(samples):
    pd.testing.assert_frame_equal(accuracy_table(samples[list(ACCURACY_COLUMNS)]), accuracy_table(samples))


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_random_samples_are_those_of_pandas(make_row, make_loss_row, seed):
    """Several runs at several lengths, in any order, against the plainest way to say each figure."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(120):
        run, length = random.choice(["a", "b", "loss"]), int(random.choice([512, 1024, 2048]))
        status = str(random.choice(["done", "done", "done", "failed", "skipped"]))
        if run == "loss":
            figures = {"loss": random.random(), "tokens_scored": int(random.integers(1, 99))}
            rows.append(
                make_loss_row(
                    number, length, status, run_id=run, **(figures if status == "done" else {"loss": None})
                )
            )
            continue
        recall = float(random.choice([0, 0.25, 1]))
        figures = {
            "exact": recall == 1,
            "recall": recall,
            "finish_reason": str(random.choice(["stop", "length"])),
            "answer_logprob": random.choice([None, -random.random()]),
            "prefill_seconds": random.random(),
            "peak_memory_bytes": int(random.integers(1, 2**40)),
        }
        metric = "exact" if run == "a" else "string_match_all"
        figures = figures if status == "done" else {}
        rows.append(make_row(number, length, status, run_id=run, metric=metric, **figures))
    samples = to_frame(rows_table(rows)).sample(frac=1, random_state=seed)
    for row in accuracy_table(samples).to_dict("records"):
        cell = samples[(samples["run_id"] == row["run_id"]) & (samples["length"] == row["length"])]
        done = cell[cell["status"] == "done"]
        answers = done[done["metric"] != "loss"]
        some = len(answers) > 0
        expected = {
            "n": len(done),
            "skipped": (cell["status"] == "skipped").sum(),
            "failed": (cell["status"] == "failed").sum(),
            "exact_count": answers["exact"].sum() if some else None,
            "cut_off": (answers["finish_reason"] == "length").sum() if some else None,
            "mean_recall": answers["recall"].mean(),
            "mean_answer_logprob": answers["answer_logprob"].mean(),
            "prefill_seconds": done["prefill_seconds"].mean(),
            "peak_memory_bytes": done["peak_memory_bytes"].max(),
            "loss": done["loss"].mean(),
            "tokens_scored": done["tokens_scored"].sum(min_count=1),
        }
        for name, value in expected.items():
            if value is None or pd.isna(value):
                assert pd.isna(row[name]), name
            else:
                assert row[name] == pytest.approx(value, rel=1e-12), name
