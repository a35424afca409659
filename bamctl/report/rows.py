"""The rows of the table of scores against length: a run, and a model's average over tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from bamctl.report.averages import TaskAverage
from bamctl.report.cells import Cell, Interval
from bamctl.results.effective import length_averages


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run; `cells` has an entry a length of the table, None where the run does not have it."""

    label: str
    repeat_of: str  # see `ModelLine`
    task: str
    metric: str
    train_length: int | None
    learned: bool  # False where the accuracy at the train length says that it is not
    cells: tuple[Cell | None, ...]

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The score at each length of the table."""
        return tuple(None if cell is None else cell.score for cell in self.cells)

    @property
    def intervals(self) -> tuple[Interval | None, ...]:
        """The score's interval at each length of the table."""
        return tuple(None if cell is None else cell.interval for cell in self.cells)

    @property
    def unfinished(self) -> tuple[bool, ...]:
        """Whether samples are still to come, at each length of the table."""
        return tuple(cell is not None and cell.unfinished for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class AverageRow:
    """A model's mean over several of RULER's tasks."""

    label: str
    repeat_of: str  # see `ModelLine`
    average: TaskAverage
    train_length: int | None
    scores: tuple[float | None, ...]  # at each length of the table
    unfinished: tuple[bool, ...]  # whether samples of any task are still to come, at each of them
    fewer_lengths: bool  # than all that some average has

    def intervals(self, lengths: Sequence[int]) -> tuple[Interval | None, ...]:
        """The score's interval at each of these lengths; None also where it is not known."""
        return tuple(map(self.average.intervals.get, lengths))

    @property
    def over_lengths(self) -> tuple[float, float, float]:
        """See `length_averages`."""
        return length_averages(self.average.scores)
