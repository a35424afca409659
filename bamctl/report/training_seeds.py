"""The table of scores over training seeds: one row for all trainings of a model, with their spread.

A row has the mean over the trainings, and their lowest and highest score. Of few trainings no more can be
said without assuming how they are distributed: 0, 100 and 100% have no useful t interval. What a range says
holds for any distribution (S. S. Wilks, 1941): of k + 1 trainings that differ in nothing but chance each is
as likely as any other to be the highest, or the lowest, so another one lies within the range of k with a
chance of at least (k - 1) / (k + 1), and a greater one where some are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bamctl.errors import BadInput
from bamctl.report.cells import NO_DATA, UNFINISHED_MARK, cell_text, effective_text, is_whole_percent, percent
from bamctl.report.rows import AverageRow, Row
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK
from bamctl.report.table import FEWER_LENGTHS_MARK, LENGTH_AVERAGES, AccuracyTable
from bamctl.results.effective import effective_length

SEEDS = "seeds"
"""The column of how many trainings a row has."""


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """The rows of one model's trainings; the label is that of the first."""

    label: str
    rows: tuple[Row | AverageRow, ...]
    scores: tuple[tuple[float, ...], ...]
    """The trainings' scores at each length of the table.

    There are none at a length where one of them has none, or another number of samples: a mean over unlike
    samples would tell easy ones from hard ones.
    """

    @property
    def unlearned(self) -> tuple[str, ...]:
        """The labels of the trainings that have not learned their train length."""
        return tuple(row.label for row in self.rows if isinstance(row, Row) and not row.learned)


@dataclass(frozen=True, kw_only=True)
class SpreadTable:
    """The rows of a table, those of one model's trainings as one."""

    table: AccuracyTable
    rows: tuple[Trainings, ...]
    averages: tuple[Trainings, ...]

    @property
    def first_length(self) -> int:
        """The column of the first length."""
        return 1 + self.table.first_length

    def header(self) -> list[str]:
        """The columns' names."""
        subject, *others = self.table.header()
        return [subject, SEEDS, *others]

    def scores(self) -> list[tuple[float | None, ...]]:
        """The mean scores at each length, in the order of `body`."""
        return [
            tuple(fmean(scores) if scores else None for scores in row.scores)
            for row in (*self.rows, *self.averages)
        ]

    def body(self, *, intervals: bool = False, separator: str = " ") -> list[list[str]]:
        """The rows' texts, averages and a row with n behind them as in the table.

        Args:
            intervals: without effect; there are ranges.
            separator: what stands between a mean and its range.
        """
        blank = [""] * len(LENGTH_AVERAGES) if self.averages else []
        texts = [[*self._texts(row, separator), *blank] for row in self.rows]
        texts += [[*self._texts(row, separator), *_length_averages(row, separator)] for row in self.averages]
        if counts := self.table.count_texts():
            texts.append(["n", *[""] * (self.first_length - 1), *counts, "", *blank])
        return texts

    def caption(self, *, intervals: bool = False) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
        rows = (*self.rows, *self.averages)
        several = [row for row in rows if len(row.rows) > 1]
        chances = ", ".join(
            f"{100 * (count - 1) / (count + 1):.0f}% for {count}"
            for count in sorted({len(row.rows) for row in several})
        )
        unlearned = [label for row in rows for label in row.unlearned]
        what = (
            "A row is the mean over trainings of one recipe with different seeds, in brackets the lowest and"
            " the highest where they differ; there is none where they do not have the same samples."
            f" Another training lies in the range with a chance of at least {chances}."
        )
        return [
            *(sentence for sentence in self.table.caption(intervals=False) if UNLEARNED not in sentence),
            what,
            *(f"{row.label}: {', '.join(member.label for member in row.rows)}." for row in several),
            *([f"{UNLEARNED_MARK} {', '.join(unlearned)}: {UNLEARNED}."] if unlearned else []),
        ]

    def _texts(self, trainings: Trainings, separator: str) -> list[str]:
        return [
            f"{trainings.label} {UNLEARNED_MARK}" if trainings.unlearned else trainings.label,
            str(len(trainings.rows)),
            *self.table.train_of(trainings.rows[0]),
            *(self._cell(trainings, column, separator) for column in range(len(self.table.lengths))),
            self._effective(trainings, separator),
        ]

    def _cell(self, trainings: Trainings, column: int, separator: str) -> str:
        scores = trainings.scores[column]
        mark = UNFINISHED_MARK if any(row.unfinished[column] for row in trainings.rows) else ""
        if scores:
            return f"{mark}{spread_text(scores, separator)}"
        cells = [row.cells[column] for row in trainings.rows if isinstance(row, Row)]
        texts = {cell_text(cell, whole=False, separator=None) for cell in cells}
        if len(texts) == 1 and all(row.scores[column] is None for row in trainings.rows):
            return texts.pop()  # all of them skipped, for example
        return f"{mark}{NO_DATA}"

    def _effective(self, trainings: Trainings, separator: str) -> str:
        """The trainings' effective lengths, from the shortest to the longest; of the same samples alone."""
        of_trainings = [self.table.tested(row) for row in trainings.rows]
        first, *others = (tested.keys() for tested in of_trainings)
        shared = {
            length for length, scores in zip(self.table.lengths, trainings.scores, strict=True) if scores
        }
        if not first or not first <= shared or any(other != first for other in others):
            return NO_DATA
        lengths = []
        for tested in of_trainings:
            effective = effective_length(tested, self.table.threshold)
            lengths.append((effective or 0, effective_text(effective, tested)))
        (_, shortest), (_, longest) = min(lengths), max(lengths)
        return shortest if shortest == longest else f"{shortest}{separator}to {longest}"


def spread_over_seeds(table: AccuracyTable) -> SpreadTable:
    """Puts the rows of one model's trainings together.

    A model NAME-2, NAME-3, … is another training of NAME where that is in the table too and has its position
    encoding.

    Raises:
        BadInput: no model of the table has another training in it.
    """
    rows, averages = _trainings(table.rows, table.lengths), _trainings(table.averages, table.lengths)
    if all(len(row.rows) == 1 for row in (*rows, *averages)):
        raise BadInput(
            "--training-seeds: no model that is shown is another training of one beside it, as NAME-2 is of"
            " NAME if both have the same position encoding and no other model has their names; leave it out"
        )
    return SpreadTable(table=table, rows=rows, averages=averages)


def spread_text(scores: Sequence[float], separator: str) -> str:
    """Scores of 0 … 1 as their mean in percent and, behind `separator`, their range where they differ."""
    mean, low, high = (
        percent(score, whole=is_whole_percent(score)) for score in (fmean(scores), min(scores), max(scores))
    )
    return mean if low == high else f"{mean}{separator}({low}-{high})"


def _trainings(rows: Sequence[Row] | Sequence[AverageRow], lengths: Sequence[int]) -> tuple[Trainings, ...]:
    together: dict[str, list[Row | AverageRow]] = {}
    for row in rows:
        together.setdefault(row.repeat_of, []).append(row)
    return tuple(
        Trainings(label=label, rows=tuple(some), scores=_shared_scores(some, lengths))
        for label, some in together.items()
    )


def _shared_scores(rows: Sequence[Row | AverageRow], lengths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """See `Trainings.scores`."""
    columns = zip(
        zip(*(row.scores for row in rows), strict=True),
        zip(*(_sample_counts(row, lengths) for row in rows), strict=True),
        strict=True,
    )
    return tuple(_all_known(scores) if len(set(counts)) == 1 else () for scores, counts in columns)


def _length_averages(trainings: Trainings, separator: str) -> list[str]:
    """The averages over lengths; none where the trainings have not the same samples at each of them."""
    rows = [row for row in trainings.rows if isinstance(row, AverageRow)]
    known = [any(score is not None for score in of) for of in zip(*(row.scores for row in rows), strict=True)]
    if known != [bool(scores) for scores in trainings.scores]:
        return [NO_DATA] * len(LENGTH_AVERAGES)
    mark = FEWER_LENGTHS_MARK if rows[0].fewer_lengths else ""
    means = zip(*(row.over_lengths for row in rows), strict=True)
    return [f"{spread_text(of_trainings, separator)}{mark}" for of_trainings in means]


def _sample_counts(row: Row | AverageRow, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """The number of samples at each of these lengths, of an average that of each task."""
    if isinstance(row, Row):
        return [() if cell is None else (cell.n,) for cell in row.cells]
    return [tuple(scores.n for scores in row.average.samples.get(length, ())) for length in lengths]


def _all_known(scores: Sequence[float | None]) -> tuple[float, ...]:
    known = tuple(score for score in scores if score is not None)
    return known if len(known) == len(scores) else ()
