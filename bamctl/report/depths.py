"""What a heatmap of depth against length shows: how a run scores where its needle lies, and how deep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.errors import BadInput
from bamctl.report.panels import Line, build_panels
from bamctl.results.schema import LOSS
from bamctl.results.statistics import ACCURACY_COLUMNS, accuracy_table

DEPTH_COLUMNS = (*ACCURACY_COLUMNS, "depth")
"""Of SAMPLE_SCHEMA, what `build_depth_panels` reads."""

MOST_DEPTHS = 25
"""Of more different depths than these, and of those that were drawn by chance, rows are ranges."""

_DRAWN = ("random", "ruler")
"""Policies that draw each sample's depth by chance: a row a depth would be mostly empty."""

_MANY = 50
"""Samples of a run and length from which there are ten ranges; five for fewer, so that each has some."""


@dataclass(frozen=True, kw_only=True)
class DepthRows:
    """Where samples stand in the heatmap of their run."""

    rows: pd.Series
    """Each sample's row, from 0; -1 where its run has no heatmap, or it has no depth."""
    names: Mapping[str, tuple[str, ...]]
    """Run id → names of the rows, from the start of the prompt to its end: ``26``, or ``20–40`` for a range.
    A run without a heatmap is not among them."""


@dataclass(frozen=True, kw_only=True)
class DepthMap:
    """A run's scores by depth and length."""

    line: Line
    scores: tuple[tuple[float | None, ...], ...]
    """0 … 1; a row a depth, in it an entry a length; None where no sample is done."""
    counts: tuple[tuple[int, ...], ...]
    """The samples done, in the same order."""


@dataclass(frozen=True, kw_only=True)
class DepthPanel:
    """The heatmaps of one task with the same depths, which can be compared."""

    title: str
    conditions: tuple[str, ...]
    """What beside the title tells this panel from others."""
    depths: tuple[str, ...]
    """Names of the rows, in percent."""
    lengths: tuple[int, ...]
    maps: tuple[DepthMap, ...]


@dataclass(frozen=True, kw_only=True)
class DepthPanels:
    """All heatmaps, and what their runs have in common, as it is written."""

    panels: tuple[DepthPanel, ...]
    common: tuple[str, ...]
    exact: bool
    """Whether all scores are shares of exact answers."""
    left_out: tuple[str, ...]
    """Tasks of which nothing can be shown, as no answer of theirs is about one needle alone."""


def depth_rows(samples: pd.DataFrame) -> DepthRows:
    """Finds the row of each sample.

    A run has a heatmap if each of its samples that are done has one needle: of several nobody can say which
    one an answer missed. Runs of one task with the same depths have the same rows. A row is one depth, or a
    tenth or a fifth of the haystack where depths are drawn by chance, or are many.

    Args:
        samples: rows of SAMPLE_SCHEMA with an index of their own each; run_id, task, variant, depth_policy,
            metric, length, status and depth of them.
    """
    needles = pd.Series([0 if depth is None else len(depth) for depth in samples["depth"]], samples.index)
    done = samples["status"] == "done"
    unfit = set(samples.loc[done & ((needles != 1) | (samples["metric"] == LOSS)), "run_id"])
    fit = samples["run_id"].isin(set(samples.loc[done, "run_id"]) - unfit) & (needles == 1)
    shown = samples.loc[fit, ["run_id", "task", "variant", "depth_policy", "length"]]
    shown = shown.assign(depth=[float(depth[0]) for depth in samples.loc[fit, "depth"]], done=done[fit])
    rows = pd.Series(-1, index=samples.index)
    names: dict[str, tuple[str, ...]] = {}
    for (_, _, policy), group in shown.groupby(["task", "variant", "depth_policy"]):
        different = sorted(group["depth"].unique())
        if policy in _DRAWN or len(different) > MOST_DEPTHS:
            samples_a_length = group.groupby(["run_id", "length"])["done"].sum()
            ranges = 10 if samples_a_length[samples_a_length > 0].median() >= _MANY else 5
            width = 100 // ranges
            rows[group.index] = (group["depth"] // width).clip(upper=ranges - 1).astype(int)
            called = tuple(f"{start}–{start + width}" for start in range(0, 100, width))
        else:
            rows[group.index] = group["depth"].map({depth: row for row, depth in enumerate(different)})
            called = tuple(f"{depth:.6g}" for depth in _rounded(different))
        names |= dict.fromkeys(map(str, group["run_id"].unique()), called)
    return DepthRows(rows=rows, names=names)


def build_depth_panels(samples: pd.DataFrame) -> DepthPanels:
    """Arranges heatmaps in the order of the table.

    Args:
        samples: rows of SAMPLE_SCHEMA, DEPTH_COLUMNS of them, each sample once, with an index of its own.

    Raises:
        BadInput: no run has a heatmap.
    """
    placed = depth_rows(samples)
    shown = samples[samples["run_id"].isin(placed.names)]
    left_out = tuple(sorted(set(samples["task"].unique()) - set(shown["task"].unique())))
    if shown.empty:
        raise BadInput(
            f"no figure of depths: no answer in {', '.join(left_out)} is about one needle alone; those of"
            " passkey and niah_single_1, for example, are"
        )
    content = build_panels(accuracy_table(shown))
    cells = _cells(samples, placed.rows)
    panels = []
    for panel in content.panels:
        ids = [line.run_id for line in panel.lines if line.run_id is not None]
        if not ids:  # averages
            continue
        depths = placed.names[ids[0]]
        lengths = tuple(sorted({length for line in panel.lines for length in line.lengths}))
        panels.append(
            DepthPanel(
                title=panel.title,
                conditions=panel.conditions,
                depths=depths,
                lengths=lengths,
                maps=tuple(_depth_map(line, cells, len(depths), lengths) for line in panel.lines),
            )
        )
    return DepthPanels(panels=tuple(panels), common=content.common, exact=content.exact, left_out=left_out)


def _cells(samples: pd.DataFrame, rows: pd.Series) -> dict[tuple[str, int, int], tuple[int, float]]:
    """Run id, row and length → the samples done, and their score; what has none done is left out."""
    placed = samples[rows >= 0]
    of_row = placed.assign(run_id=placed["run_id"].astype(str) + "/" + rows[rows >= 0].astype(str))
    scores = accuracy_table(of_row)[["run_id", "length", "n", "score"]]
    cells = {}
    for key, length, n, score in scores[scores["n"] > 0].itertuples(index=False):
        run_id, _, row = key.rpartition("/")
        cells[run_id, int(row), int(length)] = int(n), float(score)
    return cells


def _depth_map(
    line: Line, cells: Mapping[tuple[Any, int, int], tuple[int, float]], rows: int, lengths: Sequence[int]
) -> DepthMap:
    found = [[cells.get((line.run_id, row, length)) for length in lengths] for row in range(rows)]
    return DepthMap(
        line=line,
        scores=tuple(tuple(None if cell is None else cell[1] for cell in row) for row in found),
        counts=tuple(tuple(0 if cell is None else cell[0] for cell in row) for row in found),
    )


def _rounded(depths: Sequence[float]) -> list[float]:
    """Whole percent, or as many decimals as it takes to tell the depths apart."""
    for decimals in range(4):
        rounded = [round(depth, decimals) for depth in depths]
        if len(set(rounded)) == len(depths):
            return rounded
    return list(depths)
