"""The tables of a comparison: one row a pair of runs and length, and the first samples that differ.

This is the tables' content; `terminal` and `export` give them their looks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import pandas as pd

from bamctl.lengths import format_length
from bamctl.report.comparison import ComparedLength, Comparison, DifferingSample, PairedDifference

MOST_SHOWN = 10
"""Differing samples that are shown."""

NO_DATA = "-"
ALL_LENGTHS = "all"

_COLUMNS = {"mean": "difference", "low": "difference_low", "high": "difference_high"}
"""What figures of a difference are called beside others."""

_LONGEST_TEXT = 32
_BEFORE_DIFFERENCE = 8
"""Characters of a shortened prediction, and how many of them stand before the first one that differs."""


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """`bamctl.report.layout.Table` of a comparison's counts."""

    comparison: Comparison
    names: tuple[str, str]  # of A and B

    averages = ()
    first_length = 1

    @property
    def rows(self) -> Sequence[ComparedLength]:
        """Those with something to compare; what was left out, remarks say."""
        return [row for row in self.comparison.lengths if row.difference is not None]

    def header(self) -> list[str]:
        """The columns' names."""
        counts = ("length", "samples", "identical", "only A", "only B")
        return [self.comparison.subject, *counts, "A-B", "p", *self._if_several(["p Holm"]), "dlogprob"]

    def scores(self) -> list[tuple[float | None, ...]]:
        """Nothing: no cell has a colour."""
        return []

    def body(self, *, intervals: bool = False, separator: str = " ") -> list[list[str]]:
        """The rows' texts; the difference always has its interval, behind `separator`."""
        return [[row.label, *self._texts(row, separator)] for row in self.rows]

    def caption(self, *, intervals: bool = False) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
        common = [", ".join(self.comparison.common) + "."] if self.comparison.common else []
        adjusted = " P Holm: adjusted for all lengths tested here; for all pairs where they are together."
        meaning = (
            "Samples: done in A and in B from the same prompt. Identical: the predictions, character by"
            " character. Only A, only B: right in it alone (exact, or RULER's score at 100%). A-B: the"
            " difference of the mean scores in points, with its 95% paired interval (Tango's; of recall a"
            " bootstrap's). P: whether it is none, two-sided, by McNemar's exact test of only A and only B;"
            " of recall by its permutation test, the signs of differences flipped."
            f"{adjusted if self._if_several(['p']) else ''} Dlogprob: the largest difference of the reference"
            " answer's log-probability, in nats."
        )
        sides = f"A: {self.names[0]}, B: {self.names[1]}."
        return [sides, *common, *self.comparison.remarks, meaning]

    def _texts(self, row: ComparedLength, separator: str) -> list[str]:
        length = ALL_LENGTHS if row.length is None else format_length(row.length)
        assert row.difference is not None
        counts = (row.samples, row.identical, row.only_a_right, row.only_b_right)
        off = NO_DATA if row.logprob_difference is None else f"{row.logprob_difference:.2g}"
        ps = [f"{row.difference.p:.2g}", *self._if_several([f"{row.difference.p_holm:.2g}"])]
        return [length, *map(str, counts), _difference_text(row.difference, separator), *ps, off]

    def _if_several(self, column: list[str]) -> list[str]:
        """The column, where several lengths are tested."""
        return column if sum(row.length is not None for row in self.rows) > 1 else []


@dataclass(frozen=True, kw_only=True)
class DifferingTable:
    """`bamctl.report.layout.Table` of the first samples whose predictions differ."""

    comparison: Comparison

    averages = ()
    first_length = 1

    @property
    def rows(self) -> Sequence[DifferingSample]:
        """See `bamctl.report.layout.Table`."""
        return self.comparison.differing[:MOST_SHOWN]

    def header(self) -> list[str]:
        """The columns' names."""
        subject = self._if_several([self.comparison.subject])
        return ["row id", *subject, "length", "depth", "reference", "A", "B"]

    def scores(self) -> list[tuple[float | None, ...]]:
        """Nothing: no cell has a colour."""
        return []

    def body(self, *, intervals: bool = False, separator: str = " ") -> list[list[str]]:
        """The rows' texts, predictions as Python writes them: so are spaces and line ends seen."""
        return [
            [
                row.row_id,
                *self._if_several([row.label]),
                format_length(row.length),
                ", ".join(f"{depth:.3g}" for depth in row.depths),
                _shortened(", ".join(row.references)),
                *_excerpts(row.predictions),
            ]
            for row in self.rows
        ]

    def caption(self, *, intervals: bool = False) -> list[str]:
        """How many there are."""
        total = len(self.comparison.differing)
        shown = f", of which these are the first {len(self.rows)}" if len(self.rows) < total else ""
        return [f"Samples with different predictions: {total}{shown}."]

    def _if_several(self, column: list[str]) -> list[str]:
        return column if len({row.label for row in self.rows}) > 1 else []


def to_frame(comparison: Comparison) -> pd.DataFrame:
    """Every figure, one row a pair of runs and length; those of the difference null where there is none."""
    none = dict.fromkeys(field.name for field in fields(PairedDifference))
    rows = []
    for row in comparison.lengths:
        if row.length is not None:
            figures = none if row.difference is None else asdict(row.difference)
            named = {_COLUMNS.get(name, name): value for name, value in figures.items()}
            rows.append({**asdict(row), **named, "alike": row.alike})
    return pd.DataFrame(rows)


def _difference_text(difference: PairedDifference, separator: str) -> str:
    """A difference in points with its interval; what is 0 as it is written has no sign."""
    mean, low, high = (
        f"{round(100 * share, 1) + 0.0:.1f}" for share in (difference.mean, difference.low, difference.high)
    )
    return f"{'+' if float(mean) > 0 else ''}{mean}{separator}[{low}, {high}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _excerpts(predictions: tuple[str, str]) -> list[str]:
    """Both as far as there is room, from shortly before the first character that differs."""
    pairs = zip(*predictions, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(map(len, predictions)))
    start = max(0, same - _BEFORE_DIFFERENCE) if max(map(len, predictions)) > _LONGEST_TEXT else 0
    excerpts = [text[start : start + _LONGEST_TEXT] for text in predictions]
    return [
        f"{'…' if start else ''}{excerpt!r}{'…' if start + len(excerpt) < len(text) else ''}"
        for text, excerpt in zip(predictions, excerpts, strict=True)
    ]
