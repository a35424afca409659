"""The table of scores against length: one row a run, one column a length, and RULER's averages below.

This is the table's content; `terminal` and `export` give it its looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.errors import BadInput
from bamctl.lengths import format_length
from bamctl.report.averages import task_averages
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK, name_runs, sorted_runs
from bamctl.results.statistics import effective_length, length_averages, unlearned_runs

RULER_THRESHOLD = 0.856
"""Score from which RULER counts a length as effective: Llama-2-7B's at 4k (arXiv 2404.06654)."""

NO_DATA, SKIPPED, FAILED = "-", "skip", "fail"
LENGTH_AVERAGES = ("Avg.", "wAvg (inc)", "wAvg (dec)")
"""RULER's averages over lengths, as `length_averages` gives them."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run at one length; score and its interval are shares, None where no sample is done."""

    n: int
    score: float | None
    low: float | None
    high: float | None
    cut_off: int
    skipped: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run; `cells` has an entry a length of the table, None where the run does not have it."""

    label: str
    task: str
    metric: str
    train_length: int | None
    learned: bool  # False where the accuracy at the train length says that it is not
    cells: tuple[Cell | None, ...]

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The score at each length of the table."""
        return tuple(None if cell is None else cell.score for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class AverageRow:
    """A model's mean over several of RULER's tasks."""

    label: str
    tasks: tuple[str, ...]
    train_length: int | None
    scores: tuple[float | None, ...]  # at each length of the table


@dataclass(frozen=True, kw_only=True)
class AccuracyTable:
    """The table, and what its runs have in common."""

    subject: str  # what rows are told apart by first: "model", or "task" where all are of one model
    lengths: tuple[int, ...]  # tokens, ascending
    rows: tuple[Row, ...]  # none where only averages are shown
    averages: tuple[AverageRow, ...]
    runs: tuple[Row, ...]  # all that are shown or averaged
    missing: tuple[str, ...]  # a sentence for each average that there is not, or not at every length
    common: tuple[str, ...]  # conditions that all runs share, as they are written
    threshold: float

    def header(self) -> list[str]:
        """The columns' names."""
        averages = LENGTH_AVERAGES if self.averages else ()
        lengths = map(format_length, self.lengths)
        return [self.subject, *self._train(["train"]), *lengths, "effective", *averages]

    @property
    def first_length(self) -> int:
        """The column of the first length."""
        return 1 + len(self._train([""]))

    def scores(self) -> list[tuple[float | None, ...]]:
        """The scores at each length of the rows that have some, in the order of `body`."""
        return [*(row.scores for row in self.rows), *(average.scores for average in self.averages)]

    def body(self, *, intervals: bool, separator: str = " ") -> list[list[str]]:
        """The rows' texts, averages behind them, and a last row with n where it differs and no cell says it.

        Args:
            intervals: whether cells say their n and their interval.
            separator: what stands between a cell's score and its interval.
        """
        scores = [score for row in self.rows for score in row.scores if score is not None]
        whole = all(abs(100 * score - round(100 * score)) < 1e-9 for score in scores)
        blank = [""] * len(LENGTH_AVERAGES) if self.averages else []
        texts = []
        for row in self.rows:
            cells = [_cell_text(cell, whole, separator if intervals else None) for cell in row.cells]
            label = row.label if row.learned else f"{row.label} {UNLEARNED_MARK}"
            texts.append([label, *self._train_of(row), *cells, self._effective(row.scores), *blank])
        for average in self.averages:
            cells = [NO_DATA if score is None else _percent(score, whole=False) for score in average.scores]
            over_lengths = length_averages(self._by_length(average.scores))
            texts.append(
                [
                    average.label,
                    *self._train_of(average),
                    *cells,
                    self._effective(average.scores),
                    *(_percent(mean, whole=False) for mean in over_lengths),
                ]
            )
        if not intervals and len(self._counts(self.lengths)) > 1:
            counts = [_range(self._counts([length])) for length in self.lengths]
            texts.append(["n", *self._train([""]), *counts, "", *blank])
        return texts

    def caption(self, *, intervals: bool) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
        counts = self._counts(self.lengths)
        what = self._what_counts()
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
            f" {100 * self.threshold:.6g}%{source}; >= where none has less."
        )
        if self.averages:
            lines.append(
                "Averages are RULER's: over tasks at each length, and of these over lengths, plain (Avg.) or"
                " with weights that rise (inc) or fall (dec) linearly with the length's rank."
            )
        if not self.rows:
            lines += self._averaged()
        lines += self.missing
        if any(not row.learned for row in self.rows):
            lines.append(f"{UNLEARNED_MARK} {UNLEARNED}.")
        return [*lines, *self._legend(), *self._not_counted(), *self._cut_off()]

    def _averaged(self) -> list[str]:
        """The tasks, as no row names them."""
        by_tasks: dict[tuple[str, ...], list[str]] = {}
        for average in self.averages:
            by_tasks.setdefault(average.tasks, []).append(average.label)
        if len(by_tasks) == 1:
            return [f"Tasks: {', '.join(tasks)}." for tasks in by_tasks]
        return [f"Tasks of {'; '.join(labels)}: {', '.join(tasks)}." for tasks, labels in by_tasks.items()]

    def _legend(self) -> list[str]:
        marks = {SKIPPED: "skipped", FAILED: "failed", NO_DATA: "not part of the run"}
        shown = {_cell_text(cell, True, None) for row in self.rows for cell in row.cells}
        legend = [f"{mark}: {meaning}" for mark, meaning in marks.items() if mark in shown]
        return [", ".join(legend) + "."] if legend else []

    def _not_counted(self) -> list[str]:
        cells = [cell for row in self.runs for cell in row.cells if cell is not None and cell.n]
        skipped, failed = sum(cell.skipped for cell in cells), sum(cell.failed for cell in cells)
        if not skipped and not failed:
            return []
        return [f"Not counted, at lengths where others are done: {skipped} skipped, {failed} failed."]

    def _cut_off(self) -> list[str]:
        """Of RULER's tasks alone: the answer to a passkey has hardly more tokens than are generated."""
        rows = [row for row in self.runs if row.metric != "exact"]
        cells = [cell for row in rows for cell in row.cells if cell is not None]
        cut_off, n = sum(cell.cut_off for cell in cells), sum(cell.n for cell in cells)
        if not cut_off:
            return []
        whose = "" if len(rows) == len(self.runs) else " to RULER's tasks"
        return [f"Cut off by the limit of tokens to generate: {cut_off} of {n} answers{whose}."]

    def _what_counts(self) -> str:
        exact = list(dict.fromkeys(row.task for row in self.runs if row.metric == "exact"))
        if all(row.metric == "exact" for row in self.runs):
            return "Exact answers in %"
        if not exact:
            return "RULER's score (recall) in %"
        return f"Exact answers in % ({', '.join(exact)}), RULER's score (recall) in % (the other tasks)"

    def _train(self, column: list[str]) -> list[str]:
        return column if any(row.train_length is not None for row in self.runs) else []

    def _train_of(self, row: Row | AverageRow) -> list[str]:
        return self._train([NO_DATA if row.train_length is None else format_length(row.train_length)])

    def _counts(self, lengths: Iterable[int]) -> list[int]:
        """The different n > 0 at these lengths, ascending."""
        columns = [self.lengths.index(length) for length in lengths]
        cells = [row.cells[column] for row in self.runs for column in columns]
        return sorted({cell.n for cell in cells if cell is not None and cell.n})

    def _by_length(self, scores: Sequence[float | None]) -> dict[int, float]:
        pairs = zip(self.lengths, scores, strict=True)
        return {length: score for length, score in pairs if score is not None}

    def _effective(self, scores: Sequence[float | None]) -> str:
        tested = self._by_length(scores)
        if not tested:
            return NO_DATA
        effective = effective_length(tested, self.threshold)
        if effective is None:
            return f"<{format_length(min(tested))}"
        return f"{'>=' if effective == max(tested) else ''}{format_length(effective)}"


def build_table(
    accuracy: pd.DataFrame, *, threshold: float = RULER_THRESHOLD, averages_only: bool = False
) -> AccuracyTable:
    """Arranges the scores of runs as a table.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        threshold: score, 0 … 1, from which a length counts as effective.
        averages_only: whether only RULER's averages are shown: a row a model.

    Raises:
        BadInput: only averages are asked for, and there are none.
    """
    of_tasks = task_averages(accuracy)
    if averages_only:
        if not any(average.scores for average in of_tasks):
            why = "; ".join(average.missing for average in of_tasks)
            raise BadInput(f"there are no averages: {why or 'no model has several of the tasks of RULER'}")
        averaged = frozenset[str]().union(*(average.run_ids for average in of_tasks))
        accuracy = accuracy[accuracy["run_id"].isin(averaged)]
    lengths = tuple(sorted(int(length) for length in accuracy["length"].unique()))
    runs = sorted_runs(accuracy)
    rows = _rows(accuracy, runs, lengths)
    averages, missing = [], []
    names = [f"average of {len(average.tasks)} tasks" for average in of_tasks]
    named = [{**average.run, "task": name} for average, name in zip(of_tasks, names, strict=True)]
    naming = name_runs(named if averages_only else runs)
    for average, name, run in zip(of_tasks, names, named, strict=True):
        of = naming.label(run, instead_of_task=f"{len(average.tasks)} tasks")
        if not average.scores:
            missing.append(f"No average over {of}: {average.missing}.")
            continue
        if average.missing:
            missing.append(f"The average over {of} is of lengths that all of them have: {average.missing}.")
        averages.append(
            AverageRow(
                label=naming.label(run) if averages_only else naming.label(run, instead_of_task=name),
                tasks=average.tasks,
                train_length=_train_length(run),
                scores=tuple(average.scores.get(length) for length in lengths),
            )
        )
    return AccuracyTable(
        subject=naming.subject,
        lengths=lengths,
        rows=() if averages_only else rows,
        averages=tuple(averages),
        runs=rows,
        missing=tuple(missing),
        common=naming.common,
        threshold=threshold,
    )


def _rows(
    accuracy: pd.DataFrame, runs: Sequence[Mapping[Any, Any]], lengths: Sequence[int]
) -> tuple[Row, ...]:
    naming = name_runs(runs)
    unlearned = unlearned_runs(accuracy)
    cells = {
        (record["run_id"], int(record["length"])): _cell(record) for record in accuracy.to_dict("records")
    }
    labels = [naming.label(run) for run in runs]
    return tuple(
        Row(
            label=f"{label}, run {run['run_id']}" if labels.count(label) > 1 else label,
            task=run["task"],
            metric=run["metric"],
            train_length=_train_length(run),
            learned=run["run_id"] not in unlearned,
            cells=tuple(cells.get((run["run_id"], length)) for length in lengths),
        )
        for label, run in zip(labels, runs, strict=True)
    )


def _train_length(run: Mapping[Any, Any]) -> int | None:
    return None if pd.isna(run["train_length"]) else int(run["train_length"])


def _cell(record: dict[Any, Any]) -> Cell:
    def share(name: str) -> float | None:
        return None if pd.isna(record[name]) else float(record[name])

    return Cell(
        n=int(record["n"]),
        score=share("score"),
        low=share("score_low"),
        high=share("score_high"),
        cut_off=int(record["cut_off"]),
        skipped=int(record["skipped"]),
        failed=int(record["failed"]),
    )


def _cell_text(cell: Cell | None, whole: bool, separator: str | None) -> str:
    """A cell's text; with its n and interval behind `separator` where that is not None."""
    if cell is None:
        return NO_DATA
    if cell.score is None:
        return FAILED if cell.failed else SKIPPED
    text = _percent(cell.score, whole=whole)
    if separator is None or cell.low is None or cell.high is None:
        return text
    return f"{text} n={cell.n}{separator}[{100 * cell.low:.0f}, {100 * cell.high:.0f}]"


def _percent(share: float, *, whole: bool) -> str:
    """A share in percent; 0 and 100 are kept for what is exactly that."""
    if whole or share in (0, 1):
        return f"{100 * share:.0f}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return NO_DATA
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
