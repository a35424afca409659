"""What a page's tables and curves are made of.

A chapter is a table and its curves; what it holds is written as the table of `bamctl report` writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bamctl.report.page.looks import Look


@dataclass(frozen=True, kw_only=True)
class Point:
    """A cell of a table and a point of a curve."""

    text: str
    """What the cell says."""
    interval: str
    """What it says where intervals are asked for."""
    detail: str
    """What is said of the point where it is looked at."""
    value: float | None = None
    """A share, or nats a token; None where nothing is done."""
    low: float | None = None
    high: float | None = None
    step: int | None = None
    """The place of its colour in the scale; None for a loss, which has none."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a table and a curve: a run, or an average of several."""

    label: str
    model: int
    """The place of its model among the page's."""
    runs: tuple[int, ...]
    """The places of its runs among the page's."""
    look: Look | None
    """None where it is no curve."""
    train_length: int | None
    before: tuple[str, ...]
    """The texts of the columns between the label and the lengths."""
    points: tuple[Point | None, ...]
    """An entry a length of its chapter; None where it does not have it."""
    after: tuple[str, ...]
    interval_after: tuple[str, ...]
    """The texts of the columns behind the lengths, without intervals and with them."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Lines that can be compared: a panel of curves, and rows of a table under a heading."""

    title: str
    conditions: tuple[str, ...]
    tasks: tuple[int, ...]
    """The places of its tasks among the page's."""
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A table and its curves; of scores, or of losses."""

    kind: str
    """``scores`` or ``losses``."""
    lengths: tuple[int, ...]
    names: tuple[str, ...]
    """The lengths as they are written."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    """The names of the columns before the lengths, without the label's, and behind them."""
    groups: tuple[Group, ...]
    caption: tuple[str, ...]
    interval_caption: tuple[str, ...]
    """What a reader has to know, without intervals and with them."""
    threshold: float | None
    """A share; None for losses."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where runs stand in the page, and their models, by the run's id; and tasks by their name."""

    runs: Mapping[str, int]
    models: Mapping[str, int]
    tasks: Mapping[str, int]
