"""The table of accuracy against length: one row a run, one column a length.

This is the table's content; `terminal` and `export` give it its looks.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.errors import BadInput, did_you_mean
from bamctl.lengths import format_length
from bamctl.results.statistics import effective_length

RULER_THRESHOLD = 0.856
"""Accuracy from which RULER counts a length as effective: Llama-2-7B's at 4k (arXiv 2404.06654)."""

NO_DATA, SKIPPED, FAILED = "-", "skip", "fail"

_CONDITIONS = {
    "task": "{}",
    "variant": "{}",
    "depth_policy": "depths {}",
    "backend": "{}",
    "dtype": "{}",
    "seed": "seed {}",
}
"""What beside the model tells runs apart, and how it is written, in the order of writing."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run at one length; accuracy and its interval are shares, None where no sample is done."""

    n: int
    accuracy: float | None
    ci_low: float | None
    ci_high: float | None
    skipped: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run; `cells` has an entry a length of the table, None where the run does not have it."""

    label: str
    train_length: int | None
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, kw_only=True)
class AccuracyTable:
    """The table, and what its runs have in common."""

    lengths: tuple[int, ...]  # tokens, ascending
    rows: tuple[Row, ...]
    common: tuple[str, ...]  # conditions that all runs share, as they are written
    threshold: float

    def header(self) -> list[str]:
        """The columns' names."""
        return ["model", *self._train(["train"]), *map(format_length, self.lengths), "effective"]

    def body(self, *, intervals: bool, separator: str = " ") -> list[list[str]]:
        """The rows' texts, and a last row with n where it differs and the cells do not say it.

        Args:
            intervals: whether cells say their n and their interval.
            separator: what stands between a cell's accuracy and its interval.
        """
        whole = all(abs(100 * a - round(100 * a)) < 1e-9 for a in self._accuracies())
        texts = []
        for row in self.rows:
            cells = [_cell_text(cell, whole, separator if intervals else None) for cell in row.cells]
            train = format_length(row.train_length) if row.train_length is not None else NO_DATA
            texts.append([row.label, *self._train([train]), *cells, self._effective(row)])
        if not intervals and len(self._counts(self.lengths)) > 1:
            counts = [_range(self._counts([length])) for length in self.lengths]
            texts.append(["n", *self._train([""]), *counts, ""])
        return texts

    def caption(self, *, intervals: bool) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
        counts = self._counts(self.lengths)
        what = "Exact answers in %"
        if intervals:
            what += ", with the 95% Wilson interval and the number of samples n"
        elif len(counts) == 1:
            what += f", n = {counts[0]} at every length"
        elif counts:
            what += ", n in the last row"
        lines = [", ".join(self.common) + "."] if self.common else []
        source = " (RULER)" if self.threshold == RULER_THRESHOLD else ""
        lines.append(
            f"{what}. Effective: the longest length up to which every tested one has at least"
            f" {_percent(self.threshold, whole=False)}%{source}; >= where none has less."
        )
        cells = [cell for row in self.rows for cell in row.cells]
        marks = {SKIPPED: "skipped", FAILED: "failed", NO_DATA: "not part of the run"}
        shown = {_cell_text(cell, True, None) for cell in cells}
        if legend := [f"{mark}: {meaning}" for mark, meaning in marks.items() if mark in shown]:
            lines.append(", ".join(legend) + ".")
        skipped, failed = (
            sum(getattr(cell, count) for cell in cells if cell is not None and cell.n)
            for count in ("skipped", "failed")
        )
        if skipped or failed:
            lines.append(
                f"Not counted, at lengths where others are done: {skipped} skipped, {failed} failed."
            )
        return lines

    def _train(self, column: list[str]) -> list[str]:
        return column if any(row.train_length is not None for row in self.rows) else []

    def _accuracies(self) -> list[float]:
        return [
            c.accuracy for row in self.rows for c in row.cells if c is not None and c.accuracy is not None
        ]

    def _counts(self, lengths: Iterable[int]) -> list[int]:
        """The different n > 0 at these lengths, ascending."""
        columns = [self.lengths.index(length) for length in lengths]
        cells = [row.cells[column] for row in self.rows for column in columns]
        return sorted({cell.n for cell in cells if cell is not None and cell.n})

    def _effective(self, row: Row) -> str:
        tested = {
            length: cell.accuracy
            for length, cell in zip(self.lengths, row.cells, strict=True)
            if cell is not None and cell.accuracy is not None
        }
        if not tested:
            return NO_DATA
        effective = effective_length(tested, self.threshold)
        if effective is None:
            return f"<{format_length(min(tested))}"
        return f"{'>=' if effective == max(tested) else ''}{format_length(effective)}"


def select_runs(accuracy: pd.DataFrame, *, tasks: Sequence[str], models: Sequence[str]) -> pd.DataFrame:
    """The rows whose task and model are among those named; an empty list selects all.

    Where each name fits a row but no row fits all, nothing is selected.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        tasks: names of tasks, or patterns such as ``niah_*``.
        models: names of models, or patterns.

    Raises:
        BadInput: a name or pattern fits no row.
    """
    selected = accuracy
    for column, patterns in (("task", tasks), ("model", models)):
        known = set(accuracy[column])
        chosen: set[str] = set()
        for pattern in patterns:
            fitting = {name for name in known if name == pattern or fnmatch.fnmatchcase(name, pattern)}
            if not fitting:
                raise BadInput(f"no results of {column} {pattern!r}{did_you_mean(pattern, known)}")
            chosen |= fitting
        if patterns:
            selected = selected[selected[column].isin(chosen)]
    return selected


def build_table(accuracy: pd.DataFrame, *, threshold: float = RULER_THRESHOLD) -> AccuracyTable:
    """Arranges the accuracy of runs as a table.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        threshold: accuracy, 0 … 1, from which a length counts as effective.
    """
    lengths = tuple(sorted(int(length) for length in accuracy["length"].unique()))
    runs = accuracy.drop_duplicates("run_id").sort_values([*_CONDITIONS, "model", "run_id"])
    differing = [column for column in _CONDITIONS if runs[column].nunique() > 1]
    common = [
        _CONDITIONS[column].format(value)
        for column in _CONDITIONS
        if column not in differing and (value := runs[column].iloc[0] if len(runs) else "") != ""
    ]
    cells = {
        (record["run_id"], int(record["length"])): _cell(record) for record in accuracy.to_dict("records")
    }
    rows = [
        Row(
            label=label,
            train_length=None if pd.isna(train_length) else int(train_length),
            cells=tuple(cells.get((run_id, length)) for length in lengths),
        )
        for label, run_id, train_length in zip(
            _labels(runs, differing), runs["run_id"], runs["train_length"], strict=True
        )
    ]
    return AccuracyTable(lengths=lengths, rows=tuple(rows), common=tuple(common), threshold=threshold)


def _labels(runs: pd.DataFrame, differing: Sequence[str]) -> list[str]:
    """A label a run: its model and the conditions in which these runs differ, and no others.

    A model's digest is added where several models have one name, the run_id where all that is shown is equal.
    """
    digests = runs.groupby("model")["model_digest"].nunique()
    labels = []
    for run in runs.to_dict("records"):
        name = str(run["model"])
        if digests[run["model"]] > 1:
            name += f" @{str(run['model_digest']).rpartition(':')[2][:7]}"
        parts = [_CONDITIONS[column].format(run[column]) for column in differing if run[column] != ""]
        labels.append(" ".join(", ".join([name, *parts]).split()))
    return [
        f"{label}, run {run_id}" if labels.count(label) > 1 else label
        for label, run_id in zip(labels, runs["run_id"], strict=True)
    ]


def _cell(record: dict[Any, Any]) -> Cell:
    def share(name: str) -> float | None:
        return None if pd.isna(record[name]) else float(record[name])

    return Cell(
        n=int(record["n"]),
        accuracy=share("accuracy"),
        ci_low=share("ci_low"),
        ci_high=share("ci_high"),
        skipped=int(record["skipped"]),
        failed=int(record["failed"]),
    )


def _cell_text(cell: Cell | None, whole: bool, separator: str | None) -> str:
    """A cell's text; with its n and interval behind `separator` where that is not None."""
    if cell is None:
        return NO_DATA
    if cell.accuracy is None:
        return FAILED if cell.failed else SKIPPED
    text = _percent(cell.accuracy, whole=whole)
    if separator is None or cell.ci_low is None or cell.ci_high is None:
        return text
    return f"{text} n={cell.n}{separator}[{100 * cell.ci_low:.0f}, {100 * cell.ci_high:.0f}]"


def _percent(share: float, *, whole: bool) -> str:
    """A share in percent; 0 and 100 are kept for what is exactly that."""
    if whole or share in (0, 1):
        return f"{100 * share:.0f}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return NO_DATA
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
