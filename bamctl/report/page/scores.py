"""The chapter of scores: the table of `bamctl report`, row by row, under headings of what can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.report.cells import Cell
from bamctl.report.page.chapters import Chapter, Group, Line, Places, Point
from bamctl.report.page.looks import Look, score_looks
from bamctl.report.page.texts import score_step, typeset, visible
from bamctl.report.panels import Line as Curve
from bamctl.report.panels import Panel, build_panels
from bamctl.report.runs import UNLEARNED_MARK, sorted_runs
from bamctl.report.table import AccuracyTable, build_table

_WHERE_N = 'with "n and 95% intervals"'
"""The box to tick; the page has no row of n."""


def score_chapter(accuracy: pd.DataFrame, places: Places, *, threshold: float) -> Chapter:
    """The table and the curves of scores.

    Args:
        accuracy: rows of ACCURACY_SCHEMA, of scores alone.
        places: where its runs, models and tasks stand in the page.
        threshold: score, 0 … 1, from which a length counts as effective.
    """
    table = build_table(accuracy, threshold=threshold)
    panels = build_panels(accuracy).panels
    looks = score_looks([line for panel in panels for line in panel.lines])
    # Rows and curves are made in one order, that of `sorted_runs`; panels only gather them.
    by_panel: dict[Any, list[_Row]] = {}
    for row in _rows(table, sorted_runs(accuracy)):
        by_panel.setdefault((row.tasks, row.variant, row.depth_policy), []).append(row)
    first, last = table.first_length, table.first_length + len(table.lengths)
    header = list(map(typeset, table.header()))
    return Chapter(
        kind="scores",
        lengths=table.lengths,
        names=tuple(header[first:last]),
        before=tuple(header[1:first]),
        after=tuple(header[last:]),
        groups=tuple(
            _group(panel, rows, looks, places) for panel, rows in zip(panels, by_panel.values(), strict=True)
        ),
        caption=tuple(map(typeset, table.caption(intervals=False, where_n=_WHERE_N))),
        interval_caption=tuple(map(typeset, table.caption(intervals=True))),
        threshold=threshold,
    )


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row of the table: of a run, or of an average over runs."""

    run_ids: tuple[str, ...]
    tasks: tuple[str, ...]
    variant: str
    depth_policy: str
    before: tuple[str, ...]
    points: tuple[Point | None, ...]
    after: tuple[str, ...]
    interval_after: tuple[str, ...]


def _rows(table: AccuracyTable, runs: Sequence[Any]) -> list[_Row]:
    first, last = table.first_length, table.first_length + len(table.lengths)
    plain, long = table.body(intervals=False), table.body(intervals=True)
    averages = [row.average for row in table.averages]
    whose: list[tuple[tuple[str, ...], tuple[str, ...], Mapping[str, Any]]]
    whose = [((run["run_id"],), (run["task"],), run) for run in runs]
    whose += [(tuple(sorted(average.run_ids)), average.tasks, average.run) for average in averages]
    cells = [[_measured(cell) for cell in row.cells] for row in table.rows]
    cells += [
        [
            None
            if score is None
            else _Measured(score=score, interval=row.average.intervals.get(length), notes=("mean of tasks",))
            for length, score in zip(table.lengths, row.scores, strict=True)
        ]
        for row in table.averages
    ]
    return [
        _Row(
            run_ids=run_ids,
            tasks=tasks,
            variant=run["variant"],
            depth_policy=run["depth_policy"],
            before=tuple(map(typeset, texts[1:first])),
            points=tuple(map(_point, of_row, texts[first:last], long_texts[first:last])),
            after=tuple(map(typeset, texts[last:])),
            interval_after=tuple(map(typeset, long_texts[last:])),
        )
        for (run_ids, tasks, run), of_row, texts, long_texts in zip(
            whose, cells, plain[: len(whose)], long[: len(whose)], strict=True
        )
    ]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    score: float | None
    interval: tuple[float, float] | None
    notes: tuple[str, ...]


def _measured(cell: Cell | None) -> _Measured | None:
    if cell is None:
        return None
    counts = {"skipped": cell.skipped, "failed": cell.failed}
    missing = tuple(f"{count} {what}" for what, count in counts.items() if count)
    done = (f"n = {cell.n}",) if cell.n else ()
    return _Measured(score=cell.score, interval=cell.interval, notes=(*done, *missing))


def _point(measured: _Measured | None, text: str, long: str) -> Point | None:
    if measured is None:
        return None
    if measured.score is None:
        return Point(text=text, interval=long, detail=", ".join(measured.notes))
    low, high = measured.interval or (None, None)
    between = "" if low is None or high is None else f", 95% interval {100 * low:.0f} to {100 * high:.0f}%"
    return Point(
        text=text,
        interval=long,
        detail=f"{text}%{between}, {', '.join(measured.notes)}",
        value=measured.score,
        low=low,
        high=high,
        step=score_step(measured.score),
    )


def _group(panel: Panel, rows: Sequence[_Row], looks: dict[str, Look], places: Places) -> Group:
    return Group(
        title=visible(panel.title),
        conditions=tuple(map(visible, panel.conditions)),
        tasks=tuple(places.tasks[task] for task in rows[0].tasks),
        lines=tuple(
            _line(curve, row, looks[curve.label], places)
            for curve, row in zip(panel.lines, rows, strict=True)
        ),
    )


def _line(curve: Curve, row: _Row, look: Look, places: Places) -> Line:
    return Line(
        label=visible(curve.label if curve.learned else f"{curve.label} {UNLEARNED_MARK}"),
        model=places.models[row.run_ids[0]],
        runs=tuple(sorted(places.runs[run_id] for run_id in row.run_ids)),
        look=look,
        train_length=curve.train_length,
        before=row.before,
        points=row.points,
        after=row.after,
        interval_after=row.interval_after,
    )
