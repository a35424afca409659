"""The figure of scores against length: a log axis, a line a model with its 95% intervals.

`panels` says what is shown; here is how. Lines of one panel stand side by side at each length, a few
hundredths of an octave apart, so that none hides another: where they meet is mostly at 0 and at 100%. The
intervals of few lines are bands; those of many would lie upon each other, and are bars.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D, Transform

from bamctl.report.axes import (
    mark_train_length,
    most_lines_below,
    set_length_axis,
    set_titles,
    title_height,
)
from bamctl.report.line_styles import LineStyle, line_handles, line_options, line_styles
from bamctl.report.panels import Line, Panel, build_panels
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK
from bamctl.report.style import (
    COLUMN_WIDTH,
    PAGE_WIDTH,
    QUIET,
    add_legend,
    figure_style,
    new_figure,
    plan_legend,
)
from bamctl.report.table import RULER_THRESHOLD

_CROWDED = 5
"""Lines of a panel from more than which those with SSMax get a panel of their own."""

_MOST_BANDS = 3
"""Lines of a panel up to which their intervals are bands."""

_STEP, _SPAN = 0.09, 0.45
"""Octaves between neighbouring lines, and between the first and the last at most."""

_RING: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 7,
    "markerfacecolor": "none",
    "markeredgewidth": 0.7,
    "clip_on": False,  # at 100% it reaches beyond the axes
}
"""Around the point of an effective length."""

_MARGIN, _TITLES = 0.5, 0.36
"""Inches of a panel's width that its axes do not have; of its height, that titles may have."""

_ROW_HEIGHTS = {1: 2.4, 2: 2.2, 3: 1.75, 4: 1.5}
"""Columns of panels → inches of a row."""

_TICKS = {1: 8, 2: 10, 3: 7, 4: 5}
"""Columns of panels → labels that a length axis has room for."""


def accuracy_figure(
    accuracy: pd.DataFrame, *, threshold: float = RULER_THRESHOLD, averages_only: bool = False
) -> Figure:
    """Draws the scores of runs, a panel a task, and RULER's averages in panels of their own.

    Of a panel that would hold more than five lines those with SSMax get another beside it. A position
    encoding has one colour and one marker; SSMax is solid, beside it without is dashed. A length of which a
    run has no sample is a gap. A ring is around the last point up to which a line reaches the threshold.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        threshold: score, 0 … 1, from which a length counts as effective; a thin line.
        averages_only: whether RULER's averages alone are shown.
    """
    content = build_panels(accuracy, averages_only=averages_only)
    panels = _parted(content.panels)
    shown = [panel for panel in panels if panel is not None]
    lines = [line for panel in content.panels for line in panel.lines]
    styles = line_styles(lines)
    few = max(len(panel.lines) for panel in shown) <= _MOST_BANDS
    bands = few and any(len(stretch) > 1 for line in lines for stretch in _stretches(line))
    paired = len(shown) > len(content.panels)
    columns = _columns(len(panels), paired=paired)
    rows = math.ceil(len(panels) / columns)
    width = COLUMN_WIDTH if columns == 1 else PAGE_WIDTH
    remark = _remark(lines, content.common, threshold, bands=bands, exact=content.exact)
    with figure_style():
        legend = plan_legend(_handles(lines, styles, threshold), remark=remark, width=width, even=paired)
        titled = width / columns - _MARGIN
        titles = [(panel.title, panel.conditions) for panel in shown]
        least = most_lines_below(titles, width=titled)
        most = max(title_height(*texts, width=titled, least=least) for texts in titles)
        height = (_ROW_HEIGHTS[columns] + max(0, most - _TITLES)) * rows + legend.height
        figure, grid = new_figure(width, height, nrows=rows, ncols=columns, squeeze=False)
        panels += [None] * (rows * columns - len(panels))
        for place, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
            if panel is None:
                axes.remove()
                continue
            _draw_panel(axes, panel, styles, threshold, bands=bands)
            set_titles(axes, panel.title, panel.conditions, width=titled, least=least)
            _set_axes(axes, lines, _TICKS[columns])
            axes.tick_params(labelleft=place % columns == 0)
            if place % columns == 0:
                axes.set_ylabel("accuracy (%)" if content.exact else "score (%)")
            if place + columns >= len(panels) or panels[place + columns] is None:
                axes.set_xlabel("prompt length (tokens)")
            else:
                axes.tick_params(labelbottom=False)
        add_legend(figure, legend)
    return figure


def _parted(panels: Sequence[Panel]) -> list[Panel | None]:
    """The panels; in place of one that is crowded, what is in it without SSMax and with, where there is both.

    Such pairs begin at even places, so that they are in one row; None is a place left free for that.
    """
    parted: list[Panel | None] = []
    for panel in panels:
        if len(panel.lines) <= _CROWDED or len({line.ssmax for line in panel.lines}) == 1:
            parted.append(panel)
            continue
        parted += [None] * (len(parted) % 2)
        parted += [
            Panel(
                title=panel.title,
                conditions=(*panel.conditions, "with SSMax" if ssmax else "without SSMax"),
                lines=tuple(line for line in panel.lines if line.ssmax == ssmax),
            )
            for ssmax in (False, True)
        ]
    return parted


def _columns(panels: int, *, paired: bool) -> int:
    if paired:
        return 2 if panels <= 4 else 4
    return min(panels, 2 if panels == 4 else 3)


def _draw_panel(
    axes: Axes, panel: Panel, styles: dict[str, LineStyle], threshold: float, *, bands: bool
) -> None:
    """The panel's lines, upon what they are measured by; each train length is marked where models differ."""
    for length in sorted({line.train_length for line in panel.lines if line.train_length}):
        mark_train_length(axes, length, text=True)
    axes.axhline(100 * threshold, color=QUIET, linewidth=0.5, zorder=1)
    axes.grid(axis="y")
    step = min(_STEP, _SPAN / max(1, len(panel.lines) - 1))
    for place, line in enumerate(panel.lines):
        octaves = step * (place - (len(panel.lines) - 1) / 2)
        transform = Affine2D().scale(2**octaves, 1) + axes.transData
        style = styles[line.label]
        _draw_intervals(axes, line, style.colour, transform, bands=bands)
        _draw_line(axes, line, style, transform)
        _draw_ring(axes, line, style.colour, transform, threshold)


def _draw_intervals(axes: Axes, line: Line, colour: str, transform: Transform, *, bands: bool) -> None:
    """A band over neighbouring lengths that have intervals, or bars; a length by itself always has a bar."""
    thin = line.label != line.repeat_of
    for stretch in _stretches(line):
        lengths, lows, highs = zip(*stretch, strict=True)
        if bands and len(stretch) > 1:
            axes.fill_between(
                lengths,
                lows,
                highs,
                color=colour,
                alpha=0.08 if thin else 0.15,
                linewidth=0,
                zorder=2,
                transform=transform,
            )
        else:
            axes.vlines(
                lengths,
                lows,
                highs,
                color=colour,
                alpha=0.3 if thin else 0.45,
                linewidth=0.5 if thin else 0.8,
                zorder=2,
                transform=transform,
            )


def _stretches(line: Line) -> list[list[tuple[int, float, float]]]:
    """Length, lower and upper end in percent, parted where a length has no interval."""
    stretches: list[list[tuple[int, float, float]]] = [[]]
    for length, low, high in zip(line.lengths, line.lows, line.highs, strict=True):
        if low is not None and high is not None:
            stretches[-1].append((length, 100 * low, 100 * high))
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _draw_line(axes: Axes, line: Line, style: LineStyle, transform: Transform) -> None:
    """The line, broken where it has no score."""
    axes.plot(
        line.lengths,
        [math.nan if score is None else 100 * score for score in line.scores],
        **line_options(line, style),
        markerfacecolor=style.colour if line.learned else "white",
        zorder=3,
        transform=transform,
    )


def _draw_ring(axes: Axes, line: Line, colour: str, transform: Transform, threshold: float) -> None:
    """Around the point of the effective length, where there is one."""
    effective = line.effective_length(threshold)
    if effective is None:
        return
    score = line.scores[line.lengths.index(effective)]
    assert score is not None  # an effective length was tested
    thin = line.label != line.repeat_of
    axes.plot(
        [effective],
        [100 * score],
        **{**_RING, "markersize": 5.2 if thin else _RING["markersize"]},
        color=colour,
        zorder=4,
        transform=transform,
    )


def _set_axes(axes: Axes, lines: Sequence[Line], most_ticks: int) -> None:
    """One length axis and one score axis for all panels."""
    lengths = {length for line in lines for length in line.lengths}
    lengths |= {line.train_length for line in lines if line.train_length}
    set_length_axis(axes, lengths, most_ticks=most_ticks)
    axes.set_ylim(-4, 104)
    axes.set_yticks(range(0, 101, 25))


def _handles(lines: Sequence[Line], styles: dict[str, LineStyle], threshold: float) -> list[Line2D]:
    """An entry a model, its repeats in the same, one for the threshold and one for effective lengths."""
    unlearned = {line.repeat_of for line in lines if not line.learned}
    source = " (RULER's)" if threshold == RULER_THRESHOLD else ""
    label = f"threshold {100 * threshold:.6g}%{source}"
    handles = [
        *line_handles(lines, styles, unlearned=unlearned),
        Line2D([], [], color=QUIET, linewidth=0.5, label=label),
    ]
    if any(line.effective_length(threshold) for line in lines):
        handles.append(Line2D([], [], color=QUIET, label="effective length", **_RING))
    return handles


def _remark(
    lines: Sequence[Line], common: Sequence[str], threshold: float, *, bands: bool, exact: bool
) -> str:
    """What a reader has to know, as a few sentences."""
    several = len({line.label for line in lines}) > 1
    counts = sorted({n for line in lines for n in line.counts})
    sentences = [", ".join(common)]
    if any(low is not None for line in lines for low in line.lows):
        text = f"{'bands' if bands else 'bars'}: 95% {'Wilson ' if exact else ''}intervals"
        if counts:  # of averages there are none
            text += f", n = {counts[0]}" if len(counts) == 1 else f", n = {counts[0]} to {counts[-1]}"
            text += " a task" if any(line.run_id is None for line in lines) else ""
        if several and not bands:
            text += ", side by side at each length"
        if not exact:
            text += " (Wilson's where each sample is right or wrong, else a bootstrap's over samples)"
        sentences.append(text)
    if any(line.effective_length(threshold) for line in lines):
        sentences.append("effective: the longest length up to which every tested one reaches the threshold")
    if any(not line.learned for line in lines):
        sentences.append(f"{UNLEARNED_MARK} (hollow): {UNLEARNED}")
    return ". ".join(f"{text[0].upper()}{text[1:]}" for text in sentences if text) + "."
