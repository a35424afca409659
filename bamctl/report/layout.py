"""What `terminal` and `export` need of a table to give it its looks, whatever it is a table of."""

from collections.abc import Sized
from typing import Protocol


class Table(Protocol):
    """A row a run, a column a length."""

    @property
    def rows(self) -> Sized:
        """The runs: the first rows of `body`."""

    @property
    def averages(self) -> Sized:
        """What stands below them and a line."""

    @property
    def first_length(self) -> int:
        """The column of the first length."""

    def header(self) -> list[str]:
        """The columns' names."""

    def scores(self) -> list[tuple[float | None, ...]]:
        """What colours the cells at each length, 0 … 1, in the order of `body`; none where nothing does."""

    def body(self, *, intervals: bool, separator: str = " ") -> list[list[str]]:
        """The rows' texts, with intervals behind `separator` where they are asked for."""

    def caption(self, *, intervals: bool) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
