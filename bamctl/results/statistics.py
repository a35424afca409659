"""Intervals for what was counted, and the accuracy of runs at each length."""

import functools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev

import pandas as pd

from bamctl.results.frames import empty_frame
from bamctl.results.schema import ACCURACY_SCHEMA, LOSS, RUN_COLUMNS

LEARNED = 0.95
"""Accuracy at its train length from which a model has learned it."""

_ROUNDING = 1e-9
"""By so much may a mean of scores miss what it is exactly."""


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (E. B. Wilson, JASA 22, 1927).

    With p = successes / n and z the normal quantile of the confidence:
    (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike the textbook interval it holds for
    few samples and for proportions of 0 and 1.

    `successes` may also be the sum of n scores of 0 … 1, such as recall: with a mean of p their variance is
    at most p(1-p), which is what it is where each of them is 0 or 1. So the interval is conservative then:
    wider than it had to be, never narrower.

    Returns:
        The interval's lower and upper end, within 0 … 1.

    Raises:
        ValueError: not 0 ≤ `successes` ≤ `n`, `n` < 1, or `confidence` outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n or not 0 < confidence < 1:
        raise ValueError(f"no interval for {successes} of {n} at confidence {confidence}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / shrink
    # At the ends the formula gives 0 and 1; a rounding must not hide that.
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return low, high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval for the mean of independent values: m ± t · s / √n with n - 1 degrees of freedom.

    Tokens of one text are not independent; means over separate stretches of text nearly are. So a loss's
    values are one a stretch, however many tokens it has.

    Returns:
        The interval's ends; None for fewer than two values, which say nothing of their spread.

    Raises:
        ValueError: `confidence` outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"no interval at confidence {confidence}")
    if len(values) < 2:
        return None
    half = _t_quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    middle = fmean(values)
    return middle - half, middle + half


@functools.cache
def _t_quantile(freedom: int, confidence: float) -> float:
    """t with P(|T| < t) = `confidence`, T of Student's distribution; by bisection over θ = atan(t / √ν)."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _t_probability(freedom, middle) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(freedom)


def _t_probability(freedom: int, theta: float) -> float:
    """P(|T| < √ν · tan θ), a finite sum for whole degrees of freedom ν (Abramowitz and Stegun, 26.7.3-4)."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(odd, freedom - 1, 2):  # cos^power θ with its coefficient
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


def effective_length(scores: Mapping[int, float], threshold: float) -> int | None:
    """The longest length up to which every tested length has a score of at least `threshold`.

    Args:
        scores: tested length in tokens → accuracy, or mean recall.
        threshold: between 0 and 1; RULER's (arXiv 2404.06654, section 4) is 0.856.

    Returns:
        The length in tokens; None where nothing was tested, or the shortest length is below the threshold.
    """
    longest = None
    for length in sorted(scores):
        if scores[length] < threshold - _ROUNDING:
            break
        longest = length
    return longest


def length_averages(scores: Mapping[int, float]) -> tuple[float, float, float]:
    """RULER's three averages over lengths (arXiv 2404.06654, section 4): Avg., wAvg. (inc) and wAvg. (dec).

    Of L lengths the shortest has weight 1 and the longest L, or the other way round; the plain average weighs
    them alike.

    Args:
        scores: length in tokens → score; at least one.
    """
    ranked = [scores[length] for length in sorted(scores)]
    count = len(ranked)
    whole = count * (count + 1) / 2
    rising = sum(rank * score for rank, score in enumerate(ranked, start=1)) / whole
    falling = sum((count + 1 - rank) * score for rank, score in enumerate(ranked, start=1)) / whole
    return sum(ranked) / count, rising, falling


def unlearned_runs(accuracy: pd.DataFrame) -> frozenset[str]:
    """Ids of the runs whose accuracy at their model's train length is below `LEARNED`.

    What such a model scores at longer lengths says nothing about extrapolation. Only runs of tasks that count
    exact answers are among them, as RULER's may be too hard at any length; and none that was not run at just
    the train length.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
    """
    at_train_length = accuracy[
        (accuracy["metric"] == "exact") & (accuracy["length"] == accuracy["train_length"]).fillna(False)
    ]
    return frozenset(at_train_length.loc[at_train_length["accuracy"] < LEARNED, "run_id"])


def accuracy_table(samples: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of every run at every length.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once, of any number of runs.

    Returns:
        Rows of ACCURACY_SCHEMA, one per run and length, in a fixed order. Figures are of the done
        samples alone, and null where there are none. Of runs that measure a loss there are no counts and no
        accuracy, and of the others no loss.
    """
    if samples.empty:
        return empty_frame(ACCURACY_SCHEMA)
    keys = ["run_id", "length"]
    samples = samples.assign(
        skipped=samples["status"] == "skipped",
        failed=samples["status"] == "failed",
        cut_off=samples["finish_reason"] == "length",
        score=samples["recall"].where(samples["metric"] != "exact", samples["exact"].astype("float64")),
    )
    everything = samples.groupby(keys)
    done = samples[samples["status"] == "done"].groupby(keys)

    table = everything[[name for name in RUN_COLUMNS if name not in keys]].first()
    table[["skipped", "failed"]] = everything[["skipped", "failed"]].sum()
    table["n"] = done.size().reindex(table.index, fill_value=0)
    answers = table["metric"] != LOSS
    table["exact_count"] = done["exact"].sum().reindex(table.index, fill_value=0).where(answers)
    table["mean_recall"] = done["recall"].mean()
    table["cut_off"] = done["cut_off"].sum().reindex(table.index, fill_value=0).where(answers)
    table["tokens_scored"] = done["tokens_scored"].sum(min_count=1)
    losses = {key: values.tolist() for key, values in done["loss"]}
    loss_columns = ["loss", "loss_low", "loss_high"]
    table[loss_columns] = [
        _loss_figures([] if answered else losses.get(key, []))
        for key, answered in zip(table.index.tolist(), answers.tolist(), strict=True)
    ]
    table["mean_answer_logprob"] = done["answer_logprob"].mean()
    table["prefill_seconds"] = done["prefill_seconds"].mean()
    table["decode_seconds"] = done["decode_seconds"].mean()
    table["peak_memory_bytes"] = done["peak_memory_bytes"].max()

    scores = done["score"].sum().reindex(table.index, fill_value=0.0)
    for sums, names in (
        (table["exact_count"], ("accuracy", "ci_low", "ci_high")),
        (scores, ("score", "score_low", "score_high")),
    ):
        figures = [
            (k / n, *wilson_interval(k, n)) if n and answered else (math.nan,) * 3
            for k, n, answered in zip(sums.tolist(), table["n"].tolist(), answers.tolist(), strict=True)
        ]
        table[list(names)] = figures

    table = table.reset_index()[ACCURACY_SCHEMA.names]
    order = ["task", "variant", "depth_policy", "model", "backend", "dtype", "seed", "run_id", "length"]
    table = table.sort_values(order, ignore_index=True)
    typed: pd.DataFrame = table.astype(empty_frame(ACCURACY_SCHEMA).dtypes)
    return typed


def _loss_figures(losses: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its interval, NaN where there is none."""
    if not losses:
        return (math.nan,) * 3
    return fmean(losses), *(mean_interval(losses) or (math.nan, math.nan))
