"""The figure of scores against length: a log axis, a line a model with its 95% Wilson intervals.

`panels` says what is shown; here is how. Lines of one panel stand side by side at each length, a few
hundredths of an octave apart, so that none hides another: where they meet is mostly at 0 and at 100%.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D, Transform
from matplotlib.typing import LineStyleType

from bamctl.lengths import format_length
from bamctl.report.panels import Line, Panel, build_panels
from bamctl.report.runs import UNLEARNED, UNLEARNED_MARK
from bamctl.report.style import (
    COLUMN_WIDTH,
    ENCODING_COLOURS,
    OTHER_COLOURS,
    PAGE_WIDTH,
    QUIET,
    add_legend,
    entries_a_row,
    figure_style,
    new_figure,
)
from bamctl.report.table import RULER_THRESHOLD

_ENCODING_MARKERS = {"ggd": "o", "rotary": "s", "laplace": "^", "uniform": "D", "sinusoidal": "v"}
_OTHER_MARKERS = ("P", "X", "<", ">", "p")

_CROWDED = 5
"""Lines of a panel from more than which those with SSMax get a panel of their own."""

_STEP, _SPAN = 0.09, 0.45
"""Octaves between neighbouring lines, and between the first and the last at most."""

_ROW_HEIGHTS = {1: 2.4, 2: 2.2, 3: 1.75, 4: 1.5}
"""Columns of panels → inches of a row."""

_TICKS = {1: 8, 2: 10, 3: 7, 4: 5}
"""Columns of panels → labels that a length axis has room for."""


@dataclass(frozen=True, kw_only=True)
class _Look:
    colour: str
    marker: str
    dashes: LineStyleType


def accuracy_figure(
    accuracy: pd.DataFrame, *, threshold: float = RULER_THRESHOLD, averages_only: bool = False
) -> Figure:
    """Draws the scores of runs, a panel a task, and RULER's averages in panels of their own.

    Where a panel would hold more than five lines, those with SSMax get another beside it. A position encoding
    has one colour and one marker; SSMax is solid, beside it without is dashed. A length of which a run has no
    sample is a gap.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        threshold: score, 0 … 1, from which a length counts as effective; a thin line.
        averages_only: whether RULER's averages alone are shown.
    """
    content = build_panels(accuracy, averages_only=averages_only)
    crowded = max(len(panel.lines) for panel in content.panels) > _CROWDED
    panels = [part for panel in content.panels for part in _parts(panel, split=crowded)]
    lines = [line for panel in content.panels for line in panel.lines]
    looks = _looks(lines)
    paired = len(panels) > len(content.panels)
    columns = _columns(len(panels), paired=paired)
    rows = math.ceil(len(panels) / columns)
    width = COLUMN_WIDTH if columns == 1 else PAGE_WIDTH
    remark = textwrap.fill(_remark(lines, content.common), width=int(width * 20))
    with figure_style():
        handles = _legend(lines, looks, threshold)
        across = entries_a_row(handles, width, even=paired)
        below = math.ceil(len(handles) / across) + remark.count("\n") + 1  # lines of text
        height = _ROW_HEIGHTS[columns] * rows + 0.14 * below
        figure, grid = new_figure(width, height, nrows=rows, ncols=columns, squeeze=False)
        every = list(grid.flat)
        titled = max(len(panel.conditions) for panel in panels) > 0
        for place, (axes, panel) in enumerate(zip(every, panels, strict=False)):
            _draw_panel(axes, panel, looks, threshold, two_lines=titled)
            _set_axes(axes, lines, _TICKS[columns])
            axes.tick_params(labelleft=place % columns == 0)
            if place % columns == 0:
                axes.set_ylabel("accuracy (%)" if content.exact else "score (%)")
            if place + columns >= len(panels):
                axes.set_xlabel("prompt length (tokens)")
            else:
                axes.tick_params(labelbottom=False)
        for axes in every[len(panels) :]:
            axes.remove()
        add_legend(figure, handles, across, remark=remark)
    return figure


def _parts(panel: Panel, *, split: bool) -> list[Panel]:
    """The panel; or what is in it without SSMax and with, where there is both."""
    kinds = {line.ssmax for line in panel.lines}
    if not split or len(kinds) == 1:
        return [panel]
    return [
        Panel(
            title=panel.title,
            conditions=(*panel.conditions, "with SSMax" if ssmax else "without SSMax"),
            lines=tuple(line for line in panel.lines if line.ssmax == ssmax),
        )
        for ssmax in (False, True)
    ]


def _columns(panels: int, *, paired: bool) -> int:
    if paired:
        return 2 if panels <= 4 else 4
    return min(panels, 2 if panels == 4 else 3)


def _looks(lines: Sequence[Line]) -> dict[str, _Look]:
    """Label → look. Of several models with one encoding the first has its colour, others one of the rest."""
    colours: dict[tuple[str, str], tuple[str, str]] = {}
    taken: set[str] = set()
    for encoding, kin in dict.fromkeys((line.position_encoding, line.kin) for line in lines):
        if encoding in ENCODING_COLOURS and encoding not in taken:
            colours[encoding, kin] = ENCODING_COLOURS[encoding], _ENCODING_MARKERS[encoding]
            taken.add(encoding)
        else:
            other = len(colours) - len(taken)
            colours[encoding, kin] = (
                OTHER_COLOURS[other % len(OTHER_COLOURS)],
                _OTHER_MARKERS[other % len(_OTHER_MARKERS)],
            )
    some_have_ssmax = any(line.ssmax for line in lines)
    return {
        line.label: _Look(
            colour=colours[line.position_encoding, line.kin][0],
            marker=colours[line.position_encoding, line.kin][1],
            dashes="-" if line.ssmax or not some_have_ssmax else (0, (3.2, 1.2)),
        )
        for line in lines
    }


def _draw_panel(
    axes: Axes, panel: Panel, looks: dict[str, _Look], threshold: float, *, two_lines: bool
) -> None:
    """The panel's lines, upon what they are measured by; each train length is marked where models differ."""
    for length in sorted({line.train_length for line in panel.lines if line.train_length}):
        axes.axvspan(length, 2**60, color=QUIET, alpha=0.07, linewidth=0, zorder=0)
        axes.axvline(length, color=QUIET, linewidth=0.7, linestyle=(0, (1, 1)), zorder=1)
        axes.annotate(
            f"train length {format_length(length)}",
            (length, 0.04),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-1.5, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=6,
            color=QUIET,
            zorder=1,
        )
    axes.axhline(100 * threshold, color=QUIET, linewidth=0.5, zorder=1)
    axes.grid(axis="y")
    step = min(_STEP, _SPAN / max(1, len(panel.lines) - 1))
    for place, line in enumerate(panel.lines):
        octaves = step * (place - (len(panel.lines) - 1) / 2)
        _draw_line(axes, line, looks[line.label], Affine2D().scale(2**octaves, 1) + axes.transData)
    axes.set_title(panel.title, loc="left", fontsize=7.5, pad=11 if two_lines else 3)
    axes.annotate(
        ", ".join(panel.conditions),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=6.5,
        color=QUIET,
    )


def _draw_line(axes: Axes, line: Line, look: _Look, transform: Transform) -> None:
    """The line, broken where it has no score, and its intervals."""
    thin = line.label != line.repeat_of
    scores = [math.nan if score is None else 100 * score for score in line.scores]
    intervals = [
        (length, 100 * low, 100 * high)
        for length, low, high in zip(line.lengths, line.lows, line.highs, strict=True)
        if low is not None and high is not None
    ]
    if intervals:
        lengths, lows, highs = zip(*intervals, strict=True)
        axes.vlines(
            lengths,
            lows,
            highs,
            color=look.colour,
            alpha=0.3 if thin else 0.45,
            linewidth=0.5 if thin else 0.8,
            zorder=2,
            transform=transform,
        )
    axes.plot(
        line.lengths,
        scores,
        label=line.label,
        color=look.colour,
        linestyle=look.dashes,
        linewidth=0.6 if thin else 1.2,
        marker=look.marker,
        markersize=2.4 if thin else 3.5,
        markeredgewidth=0.7,
        markerfacecolor=look.colour if line.learned else "white",
        zorder=3,
        transform=transform,
    )


def _set_axes(axes: Axes, lines: Sequence[Line], most_ticks: int) -> None:
    """One length axis and one score axis for all panels."""
    lengths = {length for line in lines for length in line.lengths}
    lengths |= {line.train_length for line in lines if line.train_length}
    first, last = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(lengths) / 2**0.7, max(lengths) * 2**0.5)
    every = range(first, last + 1, math.ceil((last - first + 1) / most_ticks))
    axes.set_xticks(
        [2**power for power in every], labels=[format_length(2**power) for power in every], minor=False
    )
    axes.set_xticks([], minor=True)
    axes.set_ylim(-4, 104)
    axes.set_yticks(range(0, 101, 25))


def _legend(lines: Sequence[Line], looks: dict[str, _Look], threshold: float) -> list[Line2D]:
    """An entry a model, its repeats in the same, and one for the threshold."""
    entries: dict[str, list[str]] = {}
    for line in lines:
        repeats = entries.setdefault(line.repeat_of, [])
        if line.label not in (line.repeat_of, *repeats):
            repeats.append(line.label)
    unlearned = {line.repeat_of for line in lines if not line.learned}
    handles = [
        Line2D(
            [],
            [],
            color=looks[label].colour,
            linestyle=looks[label].dashes,
            marker=looks[label].marker,
            markerfacecolor="white" if label in unlearned else looks[label].colour,
            markeredgewidth=0.7,
            label=label
            + "".join(f", {repeat.removeprefix(label)}" for repeat in repeats)
            + (f" {UNLEARNED_MARK}" if label in unlearned else ""),
        )
        for label, repeats in entries.items()
    ]
    source = " (RULER's)" if threshold == RULER_THRESHOLD else ""
    label = f"threshold {100 * threshold:.6g}%{source}"
    return [*handles, Line2D([], [], color=QUIET, linewidth=0.5, label=label)]


def _remark(lines: Sequence[Line], common: Sequence[str]) -> str:
    """What a reader has to know, as a few sentences."""
    several = len({line.label for line in lines}) > 1
    counts = sorted({n for line in lines for n in line.counts})
    sentences = [", ".join(common)]
    if counts:
        n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
        sentences.append(
            f"bars: 95% Wilson intervals, {n}{', side by side at each length' if several else ''}"
        )
    if any(not line.learned for line in lines):
        sentences.append(f"{UNLEARNED_MARK} (hollow): {UNLEARNED}")
    return ". ".join(f"{text[0].upper()}{text[1:]}" for text in sentences if text) + "."
