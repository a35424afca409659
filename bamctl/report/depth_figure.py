"""The figure of depth against length: a heatmap a run, all on one scale of colours.

Where no sample is done a cell is hatched, for it is no zero. Columns are equally wide, and rows equally high,
whatever lies between their lengths and depths: the lengths and depths that were measured are all there is.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bamctl.lengths import format_length
from bamctl.report.axes import (
    TRAIN_LENGTH,
    most_lines_below,
    set_titles,
    title_height,
    train_length_handle,
)
from bamctl.report.depths import DepthMap, DepthPanel, DepthPanels
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK
from bamctl.report.style import (
    COLUMN_WIDTH,
    PAGE_WIDTH,
    add_legend,
    figure_style,
    new_figure,
    plan_legend,
)

COLOUR_MAP = "cividis"
"""Rises in lightness alone, from dark blue to yellow: the same order for every kind of colour vision."""

_SCALE = Normalize(0, 100)

_LEAST_HEIGHT, _MOST_HEIGHT, _ROW_HEIGHT = 0.9, 1.5, 0.09
"""Inches of a heatmap, and of one depth in it."""

_BELOW, _TITLE_MARGIN = 0.4, 0.35
"""Inches below a heatmap, for labels; and by which its titles are narrower than it and what is beside it."""

_BESIDE, _BAR_WIDTH = 0.9, 0.12
"""Inches beside all heatmaps, with their labels and the scale; of the scale."""

_LABEL_WIDTH, _MOST_DEPTHS = 0.3, 6
"""Inches that a label of a length has; labels of depths at most."""

_EMPTY: dict[str, Any] = {"facecolor": "white", "edgecolor": "#B0B0B0", "hatch": "//////"}
"""A cell without a sample."""


def depth_figure(content: DepthPanels) -> Figure:
    """Draws the heatmaps: a row of them for each task, or one after the other where a task has one alone."""
    panels = content.panels
    maps = [each for panel in panels for each in panel.maps]
    rows = _rows(panels)
    columns = max(map(len, rows))
    width = COLUMN_WIDTH if columns == 1 else PAGE_WIDTH
    wide = (width - _BESIDE) / columns
    titled = wide - _TITLE_MARGIN
    deepest = max(len(panel.depths) for panel in panels)
    high = min(max(_LEAST_HEIGHT, _ROW_HEIGHT * deepest), _MOST_HEIGHT) * (1.2 if columns == 1 else 1)
    with figure_style():
        legend = plan_legend(_handles(maps), remark=_remark(content), width=width)
        titles = [_titles(panel, each, content) for panel in panels for each in panel.maps]
        least = most_lines_below(titles, width=titled)
        above = max(title_height(*texts, width=titled, least=least) for texts in titles)
        figure_height = (above + high + _BELOW) * len(rows) + legend.height
        figure, grid = new_figure(width, figure_height, nrows=len(rows), ncols=columns, squeeze=False)
        every: list[Axes] = []
        for number, row in enumerate(rows):
            of_row = most_lines_below((_titles(*pair, content) for pair in row), width=titled)
            for place, axes in enumerate(grid[number]):
                if place >= len(row):
                    axes.remove()
                    continue
                panel, each = row[place]
                _draw_map(axes, panel, each)
                set_titles(axes, *_titles(panel, each, content), width=titled, least=of_row)
                _set_ticks(axes, panel, wide)
                axes.tick_params(labelleft=place == 0 or panel.depths != row[place - 1][0].depths)
                if place == 0:
                    axes.set_ylabel("depth (%)")
                if number + 1 == len(rows) or place >= len(rows[number + 1]):
                    axes.set_xlabel("length (tokens)")
                every.append(axes)
        bar = figure.colorbar(
            ScalarMappable(_SCALE, COLOUR_MAP),
            ax=every,
            label="accuracy (%)" if content.exact else "score (%)",
            ticks=range(0, 101, 25),
            fraction=_BAR_WIDTH / width,
            aspect=high / _BAR_WIDTH * (2 if len(rows) > 1 else 1),
            shrink=min(1, 2 / len(rows)),
            pad=0.02,
        )
        bar.outline.set_visible(False)
        add_legend(figure, legend)
    return figure


def _rows(panels: Sequence[DepthPanel]) -> list[list[tuple[DepthPanel, DepthMap]]]:
    """What stands side by side: heatmaps of one task, or of several tasks where each has one."""
    groups = [[(panel, each) for each in panel.maps] for panel in panels]
    if all(len(group) == 1 for group in groups):
        groups = [[pair for group in groups for pair in group]]
    most = max(map(len, groups))
    columns = most if most <= 4 else min((4, 3), key=lambda count: -most % count)
    return [group[first : first + columns] for group in groups for first in range(0, len(group), columns)]


def _draw_map(axes: Axes, panel: DepthPanel, each: DepthMap) -> None:
    """The cells, from 0 to the number of lengths and of depths; the start of the prompt is at the top."""
    scores = [[math.nan if score is None else 100 * score for score in row] for row in each.scores]
    axes.patch.set(linewidth=0, **_EMPTY)
    axes.pcolormesh(
        np.array(scores),  # what is not finite has no colour
        cmap=COLOUR_MAP,
        norm=_SCALE,
        edgecolors="white",
        linewidth=0.3,
    )
    axes.set_ylim(len(panel.depths), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if each.line.train_length is not None:
        seen = sum(length <= each.line.train_length for length in panel.lengths)
        axes.axvline(seen, color="white", linewidth=2.6, clip_on=False)  # seen beside every colour
        axes.axvline(seen, clip_on=False, **TRAIN_LENGTH)


def _titles(panel: DepthPanel, each: DepthMap, content: DepthPanels) -> tuple[str, list[str]]:
    """The task and below it the model, as far as they differ; and what else is to be said of a heatmap."""
    several = len(content.panels) > 1
    labels = {of.line.label for panel in content.panels for of in panel.maps}
    label = each.line.label + ("" if each.line.learned else f" {UNLEARNED_MARK}")
    below = [label] if several and len(labels) > 1 else []
    below += panel.conditions
    if len(_train_lengths(of for panel in content.panels for of in panel.maps)) > 1:
        length = each.line.train_length
        below.append(f"train length {'unknown' if length is None else format_length(length)}")
    return panel.title if several else label, below


def _set_ticks(axes: Axes, panel: DepthPanel, width: float) -> None:
    """Labels below and beside the middle of columns and rows, as many as there is room for."""
    columns = _labelled(len(panel.lengths), int(width / _LABEL_WIDTH))
    rows = _labelled(len(panel.depths), _MOST_DEPTHS)
    axes.set_xticks(
        [place + 0.5 for place in columns], labels=[format_length(panel.lengths[place]) for place in columns]
    )
    axes.set_yticks([place + 0.5 for place in rows], labels=[panel.depths[place] for place in rows])


def _labelled(count: int, most: int) -> list[int]:
    """At most so many of the places 0 … count - 1, the first and the last among them, as even as can be."""
    labels = min(most, count)
    even = [fewer for fewer in range(labels, 2, -1) if (count - 1) % (fewer - 1) == 0]
    places = np.linspace(0, count - 1, even[0] if even else labels)
    return [round(place) for place in places.tolist()]


def _train_lengths(maps: Iterable[DepthMap]) -> set[int | None]:
    return {each.line.train_length for each in maps}


def _handles(maps: Sequence[DepthMap]) -> list[Artist]:
    """An entry for the train length and one for cells without a sample, where there are some."""
    handles: list[Artist] = []
    lengths = {length for length in _train_lengths(maps) if length is not None}
    if lengths:
        handles.append(train_length_handle(lengths))
    if any(score is None for each in maps for row in each.scores for score in row):
        handles.append(Patch(linewidth=0.3, label="no sample", **_EMPTY))
    return handles


def _remark(content: DepthPanels) -> str:
    """What a reader has to know, as a few sentences."""
    maps = [each for panel in content.panels for each in panel.maps]
    labels = list(dict.fromkeys(each.line.label for each in maps))
    shared = [
        content.panels[0].title if len(content.panels) == 1 else "",
        labels[0] if len(labels) == 1 and len(content.panels) > 1 else "",
        *content.common,
    ]
    sentences = [", ".join(text for text in shared if text), _counted(content.panels)]
    if any(not each.line.learned for each in maps):
        sentences.append(f"{UNLEARNED_MARK} {UNLEARNED}")
    if content.left_out:
        sentences.append(f"Left out, as no answer is about one needle alone: {', '.join(content.left_out)}")
    return ". ".join(sentences) + "."


def _counted(panels: Sequence[DepthPanel]) -> str:
    """How many answers a cell is, of each task where they differ in it."""
    counts: dict[str, set[int]] = {}
    for panel in panels:
        of_task = counts.setdefault(panel.title, set())
        of_task |= {n for each in panel.maps for row in each.counts for n in row if n}
    if all(of_task == {1} for of_task in counts.values()):
        return "Cells are one answer each, and no rate"
    tasks: dict[str, list[str]] = {}
    for task, of_task in counts.items():
        least, most = min(of_task), max(of_task)
        tasks.setdefault(f"{least}" if least == most else f"{least} to {most}", []).append(task)
    if len(tasks) == 1:
        return f"Cells: n = {next(iter(tasks))}"
    return "Cells: " + "; ".join(f"n = {n} ({', '.join(of)})" for n, of in tasks.items())
