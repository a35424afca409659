"""The figure of losses against position: a log axis, a line a run.

Where contexts agree their lines lie upon each other, so full context is thin and solid, upon windows that are
dashed, pale, and the wider the shorter the window is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bamctl.lengths import format_length
from bamctl.report.axes import mark_train_length, train_length_handle
from bamctl.report.line_styles import colours_and_markers
from bamctl.report.loss_table import LossCell, LossRow, LossTable
from bamctl.report.style import (
    COLUMN_WIDTH,
    PAGE_WIDTH,
    QUIET,
    add_legend,
    figure_style,
    fits_a_column,
    new_figure,
    plan_legend,
)

_CROWDED = 5
"""Models from more than which those with SSMax get a panel of their own."""

_DASHES: tuple[tuple[float, ...], ...] = ((2.4, 1.1), (0.7, 0.7), (1.7, 0.5, 0.5, 0.5))
"""Of the windows, the widest first; in widths of the line."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of what one model was run on, and how."""

_MOST_TICKS = 9
_FREE_OCTAVES = 0.2
"""Between the first and the last position and the axis's ends."""

_MOST_BAND, _LEAST_BAND = 0.4, 0.02
"""How far beyond the lines a band stretches the axis: as a share of what they span; at least, in nats."""


@dataclass(frozen=True, kw_only=True)
class LossLine:
    """A run as it is drawn: x in tokens, where a range of positions ends; y and its ends in nats a token."""

    row: LossRow
    ends: tuple[int, ...]
    losses: tuple[float, ...]
    low: tuple[float, ...]
    """The interval's lower end; the loss itself where there is none."""
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Look:
    colour: str
    marker: str
    dashes: Any
    width: float
    """Points."""
    alpha: float
    zorder: float

    def style(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "alpha": self.alpha,
            "dash_capstyle": "butt",
        }


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """What the axes of all panels show."""

    positions: tuple[float, float]
    losses: tuple[float, float]
    cuts_bands: bool
    train_lengths: tuple[int, ...]
    """Those that lie on the axis."""
    outside: tuple[int, ...]


def loss_lines(table: LossTable) -> list[LossLine]:
    """The lines of a table's rows; a range of positions of which a run has no loss is left out."""
    lines = []
    for row in table.rows:
        known = [
            (end, cell.loss, cell)
            for end, cell in zip(table.ends, row.cells, strict=True)
            if cell is not None and cell.loss is not None
        ]
        lines.append(
            LossLine(
                row=row,
                ends=tuple(end for end, _, _ in known),
                losses=tuple(loss for _, loss, _ in known),
                low=tuple(loss if cell.low is None else cell.low for _, loss, cell in known),
                high=tuple(loss if cell.high is None else cell.high for _, loss, cell in known),
            )
        )
    return lines


def loss_figure(table: LossTable) -> Figure:
    """Draws the losses of a table.

    A model has one colour, that of its position encoding where no other model has it already, and a marker
    for each text and setting. A line's points stand where their range of positions ends, so that those left
    of the train length, and on it, were seen in training. The bands are 95% t intervals over stretches; where
    they are far wider than the lines need, the axis cuts them.
    """
    lines = loss_lines(table)
    kin = {line.row.kin for line in lines}
    looks = _looks(lines)
    scale = _scale(table, lines)
    kinds = sorted({line.row.ssmax for line in lines})
    panels = [lines]
    if len(kin) > _CROWDED and len(kinds) == 2:
        panels = [[line for line in lines if line.row.ssmax == ssmax] for ssmax in kinds]
    with figure_style():
        handles = _legend(lines, looks, scale)
        width = COLUMN_WIDTH if len(panels) == 1 and fits_a_column(handles) else PAGE_WIDTH
        legend = plan_legend(handles, remark=_remark(table, scale), width=width)
        figure, grid = new_figure(width, 2.2 + legend.height, ncols=len(panels), squeeze=False, sharey=True)
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
            for line in panel:
                _draw(axes, line, looks[line.row])
            _set_axes(axes, table.ends, scale)
            axes.set_xlabel("position (tokens)")
            if number == 0:
                axes.set_ylabel("loss (nats a token)")
            if len(panels) > 1:
                axes.set_title("with SSMax" if kinds[number] else "without SSMax")
        add_legend(figure, legend)
    return figure


def _draw(axes: Axes, line: LossLine, look: _Look) -> None:
    axes.plot(
        line.ends,
        line.losses,
        label=line.row.label,
        marker=look.marker,
        markersize=2.3 + look.width,
        markeredgewidth=0,
        zorder=look.zorder,
        **look.style(),
    )
    if line.low != line.losses:
        axes.fill_between(line.ends, line.low, line.high, color=look.colour, alpha=0.1, linewidth=0, zorder=1)


def _scale(table: LossTable, lines: Sequence[LossLine]) -> _Scale:
    margin = 2**_FREE_OCTAVES
    first, last = table.ends[0] / margin, table.ends[-1] * margin
    lengths = sorted({line.row.train_length for line in lines if line.row.train_length is not None})
    losses = [loss for line in lines for loss in line.losses] or [0.0]
    ends = [end for line in lines for end in (*line.low, *line.high)] or [0.0]
    most = max(_MOST_BAND * (max(losses) - min(losses)), _LEAST_BAND)
    low, high = max(min(ends), min(losses) - most), min(max(ends), max(losses) + most)
    free = max(0.06 * (high - low), _LEAST_BAND / 4)
    return _Scale(
        positions=(first, last),
        losses=(low - free, high + free),
        cuts_bands=min(ends) < low - free or max(ends) > high + free,
        train_lengths=tuple(length for length in lengths if first <= length <= last),
        outside=tuple(length for length in lengths if not first <= length <= last),
    )


def _set_axes(axes: Axes, ends: Sequence[int], scale: _Scale) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(*scale.positions)
    axes.set_ylim(*scale.losses)
    apart = math.log2(scale.positions[1] / scale.positions[0]) / _MOST_TICKS
    ticks: list[int] = []
    for end in sorted(ends, key=lambda end: (end != ends[-1], math.log2(end) % 1 != 0, -end)):
        if all(abs(math.log2(tick / end)) >= apart for tick in ticks):
            ticks.append(end)
    axes.set_xticks(ticks, [format_length(end) for end in ticks])
    axes.minorticks_off()
    axes.grid(axis="y")
    for length in scale.train_lengths:
        mark_train_length(axes, length, text=False)


def _looks(lines: Sequence[LossLine]) -> dict[LossRow, _Look]:
    """Row → look."""
    chosen = colours_and_markers((line.row.position_encoding, line.row.kin) for line in lines)
    markers: dict[str, dict[str, str]] = {}
    for row in (line.row for line in lines):
        taken = markers.setdefault(row.kin, {})
        taken.setdefault(row.model, _MARKERS[len(taken) % len(_MARKERS)])
    windows = sorted({line.row.window for line in lines if line.row.window is not None}, reverse=True)
    looks = {}
    for row in (line.row for line in lines):
        # 0 for full context, 1 for the widest window and so on
        place = 0 if row.window is None else windows.index(row.window) + 1
        looks[row] = _Look(
            colour=chosen[row.position_encoding, row.kin][0],
            marker=markers[row.kin][row.model],
            dashes="-" if place == 0 else (0, _DASHES[(place - 1) % len(_DASHES)]),
            width=1.0 if place == 0 else 1.8 + 0.8 * min(place, 3),
            alpha=1.0 if place == 0 else 0.45,
            zorder=3 - place / 100,
        )
    return looks


def _legend(lines: Sequence[LossLine], looks: dict[LossRow, _Look], scale: _Scale) -> list[Line2D]:
    """An entry a model, or what it was run on, then one a context, then the train length."""
    models = {line.row.model: looks[line.row] for line in lines}
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linewidth=1, markersize=3.3, label=model)
        for model, look in models.items()
    ]
    contexts = {line.row.window: looks[line.row] for line in lines}
    for window in sorted(contexts, key=lambda window: (window is not None, -(window or 0))):
        name = "full context" if window is None else f"window {format_length(window)}"
        handles.append(Line2D([], [], label=name, **(contexts[window].style() | {"color": QUIET})))
    if scale.train_lengths:
        handles.append(train_length_handle(scale.train_lengths))
    return handles


def _remark(table: LossTable, scale: _Scale) -> str:
    """What is not to be seen in the lines."""
    cells: list[LossCell] = [cell for row in table.rows for cell in row.cells if cell is not None and cell.n]
    counts = sorted({cell.n for cell in cells}) or [0]
    many = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    parts = ["; ".join(table.common), f"mean of {many} {'stretch' if counts == [1] else 'stretches'}"]
    if any(cell.low is not None for cell in cells):
        parts[-1] += f"; bands: 95% t intervals{', some cut off by the axis' if scale.cuts_bands else ''}"
    if longer := [length for length in scale.outside if length > table.ends[-1]]:
        parts.append(f"train length {', '.join(map(format_length, longer))}: right of all points")
    if shorter := [length for length in scale.outside if length < table.ends[0]]:
        parts.append(f"train length {', '.join(map(format_length, shorter))}: left of all points")
    return "; ".join(part for part in parts if part)
