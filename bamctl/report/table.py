"""The table of scores against length: one row a run, one column a length, and RULER's averages below.

This is the table's content; `terminal` and `export` give it its looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pandas as pd

from bamctl.errors import BadInput
from bamctl.lengths import format_length
from bamctl.report.averages import TaskAverage, task_averages
from bamctl.report.cells import (
    FAILED,
    NO_DATA,
    SKIPPED,
    UNFINISHED_MARK,
    Interval,
    cell_text,
    count_text,
    effective_text,
    is_whole_percent,
    read_cell,
    share_text,
)
from bamctl.report.lines import Kinship
from bamctl.report.precision import what_n_tells
from bamctl.report.rows import AverageRow, Row
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK, name_runs, planned_samples, sorted_runs
from bamctl.results.effective import effective_interval, effective_length
from bamctl.results.statistics import unlearned_runs

RULER_THRESHOLD = 0.856
"""Score from which RULER counts a length as effective: Llama-2-7B's at 4k (arXiv 2404.06654)."""

LENGTH_AVERAGES = ("Avg.", "wAvg (inc)", "wAvg (dec)")
"""RULER's averages over lengths, as `length_averages` gives them."""

FEWER_LENGTHS_MARK = "#"
"""Stands behind averages over fewer lengths than other rows have in the same columns."""


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
        whole = all(map(is_whole_percent, scores))
        between = separator if intervals else None
        blank = [""] * len(LENGTH_AVERAGES) if self.averages else []
        texts = []
        for row in self.rows:
            cells = [cell_text(cell, whole=whole, separator=between) for cell in row.cells]
            label = row.label if row.learned else f"{row.label} {UNLEARNED_MARK}"
            effective = self._effective(row, row.intervals, between)
            texts.append([label, *self.train_of(row), *cells, effective, *blank])
        for average in self.averages:
            known = average.intervals(self.lengths) if intervals else (None,) * len(self.lengths)
            cells = [
                NO_DATA if score is None else _marked(share_text(score, interval, separator), unfinished)
                for score, interval, unfinished in zip(average.scores, known, average.unfinished, strict=True)
            ]
            over_lengths = average.average.over_lengths if intervals else ()
            mark = FEWER_LENGTHS_MARK if average.fewer_lengths else ""
            partly = any(
                unfinished and score is not None
                for score, unfinished in zip(average.scores, average.unfinished, strict=True)
            )
            texts.append(
                [
                    average.label,
                    *self.train_of(average),
                    *cells,
                    self._effective(average, known, between),
                    *(
                        _marked(share_text(mean, interval, separator, mark=mark), partly)
                        for mean, interval in zip_longest(average.over_lengths, over_lengths)
                    ),
                ]
            )
        if not intervals and (counts := self.count_texts()):
            texts.append(["n", *self._train([""]), *counts, "", *blank])
        return texts

    def count_texts(self) -> list[str]:
        """The number of samples at each length, as a row says it; nothing where it is the same at all."""
        if len(self._counts(self.lengths)) <= 1:
            return []
        return [count_text(self._counts([length])) for length in self.lengths]

    def caption(self, *, intervals: bool, where_n: str = "in the last row") -> list[str]:
        """What a reader has to know, a sentence or two an entry.

        Args:
            intervals: whether cells say their n and their interval.
            where_n: where n stands if it differs and no cell says it.
        """
        counts = self._counts(self.lengths)
        what = self._what_counts()
        if intervals:
            what += self._which_interval()
        elif len(counts) == 1:
            what += f", n = {counts[0]} at every length"
        elif counts:
            what += f", n {where_n}"
        lines = [", ".join(self.common) + "."] if self.common else []
        source = " (RULER)" if self.threshold == RULER_THRESHOLD else ""
        lines.append(
            f"{what}. Effective: the longest length up to which every tested one has at least"
            f" {100 * self.threshold:.6g}%{source}; >= where none has less."
            + (" In brackets: up to which all intervals lie above that, and reach it." if intervals else "")
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
        lines += [*self._legend(), *self._unfinished(), *self._not_counted(), *self._cut_off()]
        return [*lines, *self._precision(intervals=intervals)]

    def tested(self, row: Row | AverageRow) -> dict[int, float]:
        """Length → score of what an effective length is found from: up to the first that is unfinished."""
        count = row.unfinished.index(True) if any(row.unfinished) else len(self.lengths)
        scores = zip(self.lengths[:count], row.scores[:count], strict=True)
        return {length: score for length, score in scores if score is not None}

    def _averaged(self) -> list[str]:
        """The tasks, as no row names them."""
        by_tasks: dict[tuple[str, ...], list[str]] = {}
        for row in self.averages:
            by_tasks.setdefault(row.average.tasks, []).append(row.label)
        if len(by_tasks) == 1:
            return [f"Tasks: {', '.join(tasks)}." for tasks in by_tasks]
        return [f"Tasks of {'; '.join(labels)}: {', '.join(tasks)}." for tasks, labels in by_tasks.items()]

    def _legend(self) -> list[str]:
        not_begun = " or not begun" if any(any(row.unfinished) for row in self.rows) else ""
        marks = {SKIPPED: "skipped", FAILED: "failed", NO_DATA: f"not part of the run{not_begun}"}
        shown = {cell_text(cell, whole=True, separator=None) for row in self.rows for cell in row.cells}
        shown = {text.removeprefix(UNFINISHED_MARK) for text in shown}
        legend = [f"{mark}: {meaning}" for mark, meaning in marks.items() if mark in shown]
        return [", ".join(legend) + "."] if legend else []

    def _unfinished(self) -> list[str]:
        cells = [cell for row in self.runs for cell in row.cells if cell is not None and cell.unfinished]
        if not cells:
            return []
        ended, planned = (
            count_text(sorted(set(counts)))
            for counts in ((cell.ended for cell in cells), (cell.planned for cell in cells))
        )
        sentence = (
            f"{UNFINISHED_MARK}: not finished, {ended} of {planned} samples. The deepest needles are asked"
            " first, so these need not be a fair sample, and the effective length ends before them."
        )
        return [sentence]

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

    def _precision(self, *, intervals: bool) -> list[str]:
        """What the fewest samples at a length do not tell; a mean over tasks has its interval for that."""
        if not self.rows:
            known = any(row.average.samples for row in self.averages)
            return ["--intervals says how precise the averages are."] if known and not intervals else []
        cells = [cell for row in self.rows for cell in row.cells if cell is not None and cell.n]
        finished = [cell for cell in cells if not cell.unfinished]
        counts = {cell.n for cell in finished or cells}
        return what_n_tells(min(counts), self.threshold, smallest=len(counts) > 1) if counts else []

    def _which_interval(self) -> str:
        """What stands behind which scores."""
        if not self.rows:
            return ", with the 95% interval of a bootstrap over the samples of each task"
        what = ", with the number of samples n and the 95% interval"
        if all(row.metric == "exact" for row in self.runs):
            return f"{what} (Wilson's)"
        return f"{what} (Wilson's where each sample is right or wrong, else a bootstrap's over samples)"

    def _what_counts(self) -> str:
        exact = list(dict.fromkeys(row.task for row in self.runs if row.metric == "exact"))
        if all(row.metric == "exact" for row in self.runs):
            return "Exact answers in %"
        if not exact:
            return "RULER's score (recall) in %"
        return f"Exact answers in % ({', '.join(exact)}), RULER's score (recall) in % (the other tasks)"

    def _train(self, column: list[str]) -> list[str]:
        return column if any(row.train_length is not None for row in self.runs) else []

    def train_of(self, row: Row | AverageRow) -> list[str]:
        """The text of the column of train lengths, where there is one."""
        return self._train([NO_DATA if row.train_length is None else format_length(row.train_length)])

    def _counts(self, lengths: Iterable[int]) -> list[int]:
        """The different n > 0 at these lengths, ascending."""
        columns = [self.lengths.index(length) for length in lengths]
        cells = [row.cells[column] for row in self.runs for column in columns]
        return sorted({cell.n for cell in cells if cell is not None and cell.n})

    def _effective(
        self,
        row: Row | AverageRow,
        intervals: Sequence[Interval | None],
        separator: str | None,
    ) -> str:
        """The effective length; with what it lies between behind `separator` where that is not None."""
        tested = self.tested(row)
        if not tested:
            return NO_DATA
        text = effective_text(effective_length(tested, self.threshold), tested)
        known = {
            length: interval
            for length, interval in zip(self.lengths, intervals, strict=True)
            if interval is not None and length in tested
        }
        if separator is None or known.keys() != tested.keys():
            return text
        low, high = effective_interval(known, self.threshold)
        at_least = effective_text(None, tested) if low is None else format_length(low)
        return f"{text}{separator}[{at_least}, {effective_text(high, tested)}]"


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
    averaged_lengths = frozenset[int]().union(*(average.scores for average in of_tasks))
    names = [f"average of {len(average.tasks)} tasks" for average in of_tasks]
    named = [{**average.run, "task": name} for average, name in zip(of_tasks, names, strict=True)]
    naming = name_runs(named if averages_only else runs)
    kinship = Kinship(runs, naming)
    for average, name, run in zip(of_tasks, names, named, strict=True):
        of = naming.label(run, instead_of_task=f"{len(average.tasks)} tasks")
        if not average.scores:
            missing.append(f"No average over {of}: {average.missing}.")
            continue
        label = naming.label(run) if averages_only else naming.label(run, instead_of_task=name)
        fewer_lengths = average.scores.keys() != averaged_lengths
        if average.missing and not fewer_lengths:
            missing.append(f"The average over {of} is of lengths that all of them have: {average.missing}.")
        averages.append(
            AverageRow(
                label=label,
                repeat_of=kinship.repeat_of(run, label),
                average=average,
                train_length=_train_length(run),
                scores=tuple(average.scores.get(length) for length in lengths),
                unfinished=tuple(map(any, zip(*_unfinished_of(average, runs, rows), strict=True))),
                fewer_lengths=fewer_lengths,
            )
        )
    missing += _over_fewer_lengths(averages)
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
    kinship = Kinship(runs, naming)
    unlearned = unlearned_runs(accuracy)
    planned = planned_samples(accuracy)
    cells = {
        (record["run_id"], int(record["length"])): read_cell(record, planned[record["run_id"]])
        for record in accuracy.to_dict("records")
    }
    labels = [naming.label(run) for run in runs]
    labels = [
        f"{label}, run {run['run_id']}" if labels.count(label) > 1 else label
        for label, run in zip(labels, runs, strict=True)
    ]
    return tuple(
        Row(
            label=label,
            repeat_of=kinship.repeat_of(run, label),
            task=run["task"],
            metric=run["metric"],
            train_length=_train_length(run),
            learned=run["run_id"] not in unlearned,
            cells=tuple(cells.get((run["run_id"], length)) for length in lengths),
        )
        for label, run in zip(labels, runs, strict=True)
    )


def _unfinished_of(
    average: TaskAverage, runs: Sequence[Mapping[Any, Any]], rows: Sequence[Row]
) -> list[tuple[bool, ...]]:
    """The `unfinished` of each run of the average."""
    return [row.unfinished for run, row in zip(runs, rows, strict=True) if run["run_id"] in average.run_ids]


def _over_fewer_lengths(averages: Sequence[AverageRow]) -> list[str]:
    """Over which lengths those averages are that are not over all, a sentence a case."""
    labels: dict[str, list[str]] = {}
    for row in averages:
        if row.fewer_lengths:
            lengths = ", ".join(map(format_length, sorted(row.average.scores)))
            labels.setdefault(lengths, []).append(row.label)
    return [
        f"Averages with {FEWER_LENGTHS_MARK} are over {lengths} only: {'; '.join(some)}."
        for lengths, some in labels.items()
    ]


def _marked(text: str, unfinished: bool) -> str:
    return f"{UNFINISHED_MARK}{text}" if unfinished else text


def _train_length(run: Mapping[Any, Any]) -> int | None:
    return None if pd.isna(run["train_length"]) else int(run["train_length"])
