import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, t

from bamctl.results.frames import to_frame
from bamctl.results.journal import rows_table
from bamctl.results.schema import ACCURACY_SCHEMA
from bamctl.results.statistics import (
    accuracy_table,
    effective_length,
    length_averages,
    mean_interval,
    wilson_interval,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_agrees_with_scipy(n, share, confidence):
    successes = round(share * n)
    interval = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    low, high = wilson_interval(successes, n, confidence)
    assert low == pytest.approx(interval.low, abs=1e-12)
    assert high == pytest.approx(interval.high, abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1


@pytest.mark.parametrize(("n", "low"), [(10, 0.72), (20, 0.84), (100, 0.96)])
def test_wilson_where_all_are_right_or_none(n, low):
    assert wilson_interval(n, n) == (pytest.approx(low, abs=0.005), 1.0)
    assert wilson_interval(0, n) == (0.0, pytest.approx(1 - low, abs=0.005))


@pytest.mark.parametrize(
    ("successes", "n", "confidence"),
    [(0, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 0.0), (1, 5, 1.0)],
)
def test_wilson_refuses_what_has_no_interval(successes, n, confidence):
    with pytest.raises(ValueError, match="no interval"):
        wilson_interval(successes, n, confidence)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=2, max_size=40),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_the_interval_of_a_mean_agrees_with_scipy(values, confidence):
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = t.ppf((1 + confidence) / 2, n - 1) * error
    low, high = mean_interval(values, confidence)
    assert (low, high) == (pytest.approx(mean - half, abs=1e-6), pytest.approx(mean + half, abs=1e-6))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 31, 1000])
def test_the_interval_is_as_wide_as_the_tables_of_t_say(freedom):
    values = [(-1.0) ** number for number in range(freedom + 1)]
    low, high = mean_interval(values)
    wide = t.interval(0.95, freedom, loc=sum(values) / len(values), scale=pd.Series(values).sem())
    assert (low, high) == pytest.approx(wide, rel=1e-9)


@pytest.mark.parametrize("values", [[], [2.5]])
def test_fewer_than_two_values_say_nothing_of_their_spread(values):
    assert mean_interval(values) is None


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_no_mean_has_an_interval_at_such_a_confidence(confidence):
    with pytest.raises(ValueError, match="no interval"):
        mean_interval([1.0, 2.0], confidence)


@pytest.mark.parametrize(
    ("accuracies", "effective"),
    [
        ({}, None),
        ({512: 0.855}, None),
        ({512: 0.856}, 512),
        ({512: 1.0, 1024: 0.9, 2048: 0.85}, 1024),
        ({2048: 1.0, 512: 1.0, 1024: 0.5}, 512),
        ({512: 1.0, 1024: 1.0}, 1024),
    ],
)
def test_effective_length_ends_before_the_first_length_below_the_threshold(accuracies, effective):
    assert effective_length(accuracies, 0.856) == effective


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
    assert second["exact_count"] == 0
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
    assert (row["score_low"], row["score_high"]) == wilson_interval(1.75, 4)


@pytest.mark.parametrize(
    ("recall", "score"),
    [(1.0, (1.0, pytest.approx(0.5655, abs=1e-4), 1.0)), (0.0, (0.0, 0.0, pytest.approx(0.4345, abs=1e-4)))],
)
def test_a_score_at_an_end_has_its_interval_s_end_there(make_row, recall, score):
    rows = [make_row(sample, metric="string_match_all", exact=False, recall=recall) for sample in range(5)]
    table = accuracy_table(to_frame(rows_table(rows)))
    assert tuple(table[["score", "score_low", "score_high"]].iloc[0]) == score


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fractions(0, 1, max_denominator=40), min_size=1, max_size=60))
def test_wilson_of_a_sum_of_scores_lies_between_those_of_the_counts_beside_it(scores):
    total, n = float(sum(scores)), len(scores)
    low, high = wilson_interval(total, n)
    below, above = wilson_interval(math.floor(total), n), wilson_interval(math.ceil(total), n)
    assert below[0] <= low <= above[0]
    assert below[1] <= high <= above[1]
    assert low <= total / n <= high


@pytest.mark.parametrize(
    ("scores", "averages"),
    [  # Rows of RULER's own leaderboard, 4k to 128k: Gemini-1.5-pro, GPT-4-1106-preview.
        ([96.7, 95.8, 96.0, 95.9, 95.9, 94.4], (95.8, 95.5, 96.1)),
        ([96.6, 96.3, 95.2, 93.2, 87.0, 81.2], (91.6, 89.0, 94.1)),
        ([50.0], (50.0, 50.0, 50.0)),
        ([90.0, 30.0], (60.0, 50.0, 70.0)),
    ],
)
def test_ruler_s_averages_over_lengths(scores, averages):
    by_length = {4096 * 2**rank: score for rank, score in enumerate(scores)}
    backwards = dict(reversed(by_length.items()))
    for order in (by_length, backwards):
        assert tuple(round(average, 1) for average in length_averages(order)) == averages


def test_an_effective_length_does_not_end_at_a_rounding():
    tenths = [0.1] * 8
    assert sum(tenths) < 0.8
    assert effective_length({512: sum(tenths)}, 0.8) == 512


def test_where_nothing_is_done_every_figure_is_null(samples):
    second = accuracy_table(samples).iloc[1]
    known = {"train_length", "exact_count", "cut_off"}
    nullable = {field.name for field in ACCURACY_SCHEMA if field.nullable} - known
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
