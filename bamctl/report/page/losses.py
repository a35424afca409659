"""The chapter of losses: the table of `bamctl report`, row by row."""

from collections.abc import Sequence

import pandas as pd

from bamctl.report.loss_table import LossCell, LossDifference, LossRow, build_loss_table
from bamctl.report.page.chapters import Chapter, Group, Line, Places, Point
from bamctl.report.page.looks import Look, loss_looks
from bamctl.report.page.texts import typeset, visible
from bamctl.results.schema import LOSS


def loss_chapter(samples: pd.DataFrame, places: Places) -> Chapter:
    """The table and the curves of losses: contexts of each model, then what context is worth.

    Args:
        samples: rows of SAMPLE_SCHEMA, some of which hold a loss.
        places: where its runs, models and tasks stand in the page.
    """
    table = build_loss_table(samples)
    looks = loss_looks(table.rows)
    header, first = table.header(), table.first_length
    rows: list[LossRow | LossDifference] = [*table.rows, *table.differences]
    lines = [
        _line(row, texts, long, first, looks.get(row.label), places)
        for row, texts, long in zip(
            rows, table.body(intervals=False), table.body(intervals=True), strict=True
        )
    ]
    tasks = sorted(places.tasks[task] for task in samples.loc[samples["metric"] == LOSS, "task"].unique())
    return Chapter(
        kind="losses",
        lengths=table.ends,
        names=tuple(header[first:]),
        before=tuple(header[1:first]),
        after=(),
        groups=(Group(title="perplexity", conditions=(), tasks=tuple(tasks), lines=tuple(lines)),),
        caption=tuple(map(typeset, table.caption(intervals=False))),
        interval_caption=tuple(map(typeset, table.caption(intervals=True))),
        threshold=None,
    )


def _line(
    row: LossRow | LossDifference,
    texts: Sequence[str],
    long: Sequence[str],
    first: int,
    look: Look | None,
    places: Places,
) -> Line:
    """`texts` and `long` are the row's, without intervals and with them; the lengths' begin at `first`."""
    return Line(
        label=visible(row.label),
        model=places.models[row.run_id],
        runs=(places.runs[row.run_id],),
        look=look,
        train_length=row.train_length,
        before=tuple(texts[1:first]),
        points=tuple(map(_point, row.cells, texts[first:], long[first:])),
        after=(),
        interval_after=(),
    )


def _point(cell: LossCell | None, text: str, long: str) -> Point | None:
    if cell is None:
        return None
    if cell.loss is None:
        return Point(text=text, interval=long, detail=f"{cell.failed} failed")
    interval = "" if cell.low is None else f", 95% interval {cell.low:.3f} to {cell.high:.3f}"
    return Point(
        text=text,
        interval=long,
        detail=f"{text} nats a token{interval}, n = {cell.n}",
        value=cell.loss,
        low=cell.low,
        high=cell.high,
    )
