"""The accuracy of runs at each length, from their samples."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bamctl.results.frames import empty_frame
from bamctl.results.means import Scores, mean_interval, recall_interval
from bamctl.results.proportions import wilson_interval
from bamctl.results.schema import ACCURACY_SCHEMA, LOSS, RUN_COLUMNS

LEARNED = 0.95
"""Accuracy at its train length from which a model has learned it."""

ACCURACY_COLUMNS = (
    *RUN_COLUMNS,
    "length",
    "status",
    "finish_reason",
    "exact",
    "recall",
    "answer_logprob",
    "prefill_seconds",
    "decode_seconds",
    "peak_memory_bytes",
    "loss",
    "tokens_scored",
)
"""The columns of SAMPLE_SCHEMA that `accuracy_table` reads."""

_ORDER = ["task", "variant", "depth_policy", "model", "backend", "dtype", "seed", "run_id", "length"]


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


def scores_of(row: Mapping[Any, Any]) -> Scores | None:
    """What the samples scored that a row of ACCURACY_SCHEMA is of; None where it does not say."""
    if row["metric"] == "exact":
        if pd.isna(row["exact_count"]) or not row["n"]:
            return None
        right = int(row["exact_count"])
        values, counts = [0.0, 1.0], [int(row["n"]) - right, right]
    elif np.ndim(row["recall_values"]) and np.ndim(row["recall_counts"]):
        values, counts = list(map(float, row["recall_values"])), list(map(int, row["recall_counts"]))
    else:
        return None
    some = [(value, count) for value, count in zip(values, counts, strict=True) if count]
    return Scores(values=tuple(value for value, _ in some), counts=tuple(count for _, count in some))


def accuracy_table(samples: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of every run at every length.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once, of any number of runs; ACCURACY_COLUMNS of them will
            do.

    Returns:
        Rows of ACCURACY_SCHEMA, one per run and length, in a fixed order. Figures are of the done
        samples alone, and null where there are none. Of runs that measure a loss there are no counts and no
        accuracy, and of the others no loss.
    """
    if samples.empty:
        return empty_frame(ACCURACY_SCHEMA)
    cells = _Cells(samples)
    table, n = cells.runs, cells.count(cells.done)
    answered = (table["metric"] != LOSS).to_numpy() & (n > 0)
    table["n"] = n
    for name in ("skipped", "failed"):
        table[name] = cells.count((samples["status"] == name).to_numpy())
    exact = cells.count(cells.done & samples["exact"].fillna(False).to_numpy(dtype=bool))
    table["exact_count"] = _where(answered, exact)
    cut_off = cells.count(
        cells.done & (samples["finish_reason"] == "length").fillna(False).to_numpy(dtype=bool)
    )
    table["cut_off"] = _where(answered, cut_off)

    recalls = cells.scores("recall")
    table["recall_values"] = _objects(None if of is None else np.array(of.values) for of in recalls)
    table["recall_counts"] = _objects(None if of is None else np.array(of.counts) for of in recalls)
    table["mean_recall"] = [None if of is None else of.mean for of in recalls]
    proportions = [
        (count / of, *wilson_interval(count, of)) if some else (None,) * 3
        for count, of, some in zip(exact.tolist(), n.tolist(), answered.tolist(), strict=True)
    ]
    table[["accuracy", "ci_low", "ci_high"]] = proportions
    table[["score", "score_low", "score_high"]] = [
        proportion if metric == "exact" or of is None else (of.mean, *recall_interval(of))
        for metric, proportion, of in zip(table["metric"].tolist(), proportions, recalls, strict=True)
    ]

    for mean, name in (
        ("mean_answer_logprob", "answer_logprob"),
        ("prefill_seconds", "prefill_seconds"),
        ("decode_seconds", "decode_seconds"),
    ):
        table[mean] = cells.mean(name)
    table["peak_memory_bytes"] = cells.largest("peak_memory_bytes")
    table[["loss", "loss_low", "loss_high"]] = [_loss_figures(losses) for losses in cells.lists("loss")]
    table["tokens_scored"] = cells.total("tokens_scored")

    table = table[ACCURACY_SCHEMA.names].sort_values(_ORDER, ignore_index=True)
    typed: pd.DataFrame = table.astype(empty_frame(ACCURACY_SCHEMA).dtypes)
    return typed


class _Cells:
    """The samples of each run at each length, a cell each; what is asked for has an entry a cell."""

    def __init__(self, samples: pd.DataFrame) -> None:
        runs, _ = pd.factorize(samples["run_id"])
        lengths, different = pd.factorize(samples["length"])
        self._samples = samples
        self._cell, found = pd.factorize(runs.astype(np.int64) * len(different) + lengths)
        self._number = len(found)
        first = np.empty(self._number, dtype=np.int64)
        first[self._cell[::-1]] = np.arange(len(samples))[::-1]  # of several at one place the last one stays
        self.runs = samples.iloc[first][[*RUN_COLUMNS, "length"]].reset_index(drop=True)
        self.done = (samples["status"] == "done").to_numpy(dtype=bool)

    def count(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of these samples each cell has."""
        return np.bincount(self._cell[which], minlength=self._number).astype(np.int64)

    def mean(self, column: str) -> NDArray[np.float64]:
        """The mean over the done samples that have a value, NaN where none has."""
        cell, values = self._known(column)
        number = np.bincount(cell, minlength=self._number)
        total = np.bincount(cell, weights=values, minlength=self._number)
        means: NDArray[np.float64] = np.full(self._number, np.nan)
        np.divide(total, number, out=means, where=number > 0)
        return means

    def total(self, column: str) -> pd.Series:
        """The sum of whole numbers over the done samples that have one, null where none has."""
        cell, values = self._known(column)
        total = np.bincount(cell, weights=values, minlength=self._number)
        return _where(np.bincount(cell, minlength=self._number) > 0, total.astype(np.int64))

    def largest(self, column: str) -> pd.Series:
        """The largest of whole numbers above 0 over the done samples that have one, null where none has."""
        cell, values = self._known(column)
        largest = np.zeros(self._number)
        np.maximum.at(largest, cell, values)
        return _where(np.bincount(cell, minlength=self._number) > 0, largest.astype(np.int64))

    def scores(self, column: str) -> list[Scores | None]:
        """How many of the done samples have which value; None where none has any."""
        cell, values = self._known(column)
        code, different = pd.factorize(values, sort=True)
        pair, found = pd.factorize(cell * max(1, len(different)) + code, sort=True)
        counts = np.bincount(pair, minlength=len(found)).tolist()
        of_cell, of_value = np.divmod(found, max(1, len(different)))
        starts = np.searchsorted(of_cell, np.arange(self._number + 1)).tolist()
        values_found = different[of_value].tolist()
        return [
            Scores(values=tuple(values_found[start:end]), counts=tuple(counts[start:end]))
            if start < end
            else None
            for start, end in itertools.pairwise(starts)
        ]

    def lists(self, column: str) -> list[list[float]]:
        """The values of the done samples that have one."""
        cell, values = self._known(column)
        order = np.argsort(cell, kind="stable")
        starts = np.searchsorted(cell[order], np.arange(1, self._number))
        return [part.tolist() for part in np.split(values[order], starts)]

    def _known(self, column: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Cell and value of the done samples that have one."""
        values = self._samples[column].to_numpy(dtype=np.float64, na_value=np.nan)
        known = self.done & ~np.isnan(values)
        return self._cell[known], values[known]


def _where(known: NDArray[np.bool_], numbers: NDArray[np.int64]) -> pd.Series:
    """Whole numbers, null where nothing is known."""
    return pd.Series(pd.arrays.IntegerArray(numbers, ~known))


def _objects(values: Any) -> pd.Series:
    """One object a row, lists among them, which pandas would else take for rows."""
    listed = list(values)
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return pd.Series(column)


def _loss_figures(losses: Sequence[float]) -> tuple[float | None, ...]:
    """The mean and its interval."""
    if not losses:
        return (None,) * 3
    return fmean(losses), *(mean_interval(losses) or (None, None))
