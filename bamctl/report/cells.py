"""A cell of the table of scores: a run at one length, and how scores, intervals and lengths are written."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.lengths import format_length

Interval = tuple[float, float]
"""Lower and upper end, shares."""

NO_DATA, SKIPPED, FAILED = "-", "skip", "fail"

UNFINISHED_MARK = "~"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run at one length; score and its interval are shares, None where no sample is done."""

    n: int
    score: float | None
    interval: Interval | None
    cut_off: int
    skipped: int
    failed: int
    planned: int
    """Samples that the length has when it is finished."""

    @property
    def ended(self) -> int:
        """Samples that need no more work."""
        return self.n + self.skipped + self.failed

    @property
    def unfinished(self) -> bool:
        """Whether samples are still to come. None are where some were skipped, as that ends a length."""
        return not self.skipped and self.ended < self.planned


def read_cell(record: Mapping[Any, Any], planned: int) -> Cell:
    """The cell of a row of ACCURACY_SCHEMA whose run has so many samples a length."""
    known = not pd.isna(record["score_low"])
    return Cell(
        n=int(record["n"]),
        score=None if pd.isna(record["score"]) else float(record["score"]),
        interval=(float(record["score_low"]), float(record["score_high"])) if known else None,
        cut_off=0 if pd.isna(record["cut_off"]) else int(record["cut_off"]),
        skipped=int(record["skipped"]),
        failed=int(record["failed"]),
        planned=planned,
    )


def cell_text(cell: Cell | None, *, whole: bool, separator: str | None) -> str:
    """A cell's text; with its n and interval behind `separator` where that is not None."""
    if cell is None:
        return NO_DATA
    mark = UNFINISHED_MARK if cell.unfinished else ""
    if cell.score is None:
        return mark + (FAILED if cell.failed else SKIPPED)
    text = mark + percent(cell.score, whole=whole)
    if separator is None:
        return text
    return f"{text} n={cell.n}{_interval_text(cell.interval, separator)}"


def share_text(score: float, interval: Interval | None, separator: str, *, mark: str = "") -> str:
    """A share, a mark, and behind `separator` its interval, if there is one."""
    return f"{percent(score, whole=False)}{mark}{_interval_text(interval, separator)}"


def _interval_text(interval: Interval | None, separator: str) -> str:
    return "" if interval is None else f"{separator}[{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"


def effective_text(effective: int | None, tested: Collection[int]) -> str:
    """An effective length, as far as the tested ones tell it."""
    if effective is None:
        return f"<{format_length(min(tested))}"
    return f"{'>=' if effective == max(tested) else ''}{format_length(effective)}"


def is_whole_percent(share: float) -> bool:
    """Whether a share is a whole number of percent, but for rounding."""
    return abs(100 * share - round(100 * share)) < 1e-9


def percent(share: float, *, whole: bool) -> str:
    """A share in percent; 0 and 100 are kept for what is exactly that."""
    if whole or share in (0, 1):
        return f"{100 * share:.0f}"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def count_text(counts: Sequence[int]) -> str:
    """Ascending counts as one or as a range."""
    if not counts:
        return NO_DATA
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
