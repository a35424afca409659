"""Heatmaps of depth against length, as the page shows them: each cell with its text."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bamctl.report.depths import DepthMap, DepthRows, build_depth_panels
from bamctl.report.page.texts import score_step, whole_percent


@dataclass(frozen=True, kw_only=True)
class DepthCell:
    """A run's samples of one depth, or range of depths, at one length."""

    text: str
    detail: str
    """What is said of the cell where it is looked at."""
    step: int
    """The place of its colour in the scale."""


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A run's scores; a row a depth, a column a length."""

    run: int
    """The place of its run among the page's."""
    depths: tuple[str, ...]
    """The rows' names in percent, from the prompt's start to its end."""
    lengths: tuple[int, ...]
    cells: tuple[tuple[DepthCell | None, ...], ...]
    """A row a depth, in it an entry a length; None where no sample is done."""


@dataclass(frozen=True, kw_only=True)
class Heatmaps:
    """The heatmaps of all runs that have one, in the order of the table."""

    maps: tuple[Heatmap, ...]
    left_out: tuple[str, ...]
    """Tasks that have none, as no answer of theirs is about one needle alone."""


def build_heatmaps(samples: pd.DataFrame, rows: DepthRows, places: Mapping[str, int]) -> Heatmaps:
    """Gives heatmaps their texts.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once; none of them a loss.
        rows: where these stand in the heatmaps of their runs.
        places: run id → its place among the page's runs.
    """
    if not rows.names:
        return Heatmaps(maps=(), left_out=tuple(sorted(set(samples["task"]))))
    content = build_depth_panels(samples)
    maps = tuple(
        Heatmap(
            run=places[str(shown.line.run_id)],
            depths=panel.depths,
            lengths=tuple(panel.lengths[column] for column in columns),
            cells=tuple(
                tuple(_cell(shown, row, column) for column in columns) for row in range(len(panel.depths))
            ),
        )
        for panel in content.panels
        for shown in panel.maps
        for columns in [_columns(shown, panel.lengths)]
    )
    return Heatmaps(maps=maps, left_out=content.left_out)


def _columns(shown: DepthMap, lengths: tuple[int, ...]) -> list[int]:
    """The lengths that the run has; its panel may have more."""
    return [column for column, length in enumerate(lengths) if length in shown.line.lengths]


def _cell(shown: DepthMap, row: int, column: int) -> DepthCell | None:
    score, n = shown.scores[row][column], shown.counts[row][column]
    if score is None:
        return None
    text = whole_percent(score)
    return DepthCell(text=text, detail=f"{text}%, n = {n}", step=score_step(score))
