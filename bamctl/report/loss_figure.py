"""The figure of losses against position: a log axis, a line a run, full context solid and windows dashed."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bamctl.lengths import format_length
from bamctl.report.loss_table import LossCell, LossRow, LossTable
from bamctl.report.style import (
    COLUMN_WIDTH,
    ENCODING_COLOURS,
    OTHER_COLOURS,
    PAGE_WIDTH,
    QUIET,
    figure_style,
    new_figure,
)

_CROWDED = 5
"""Models from more than which those with SSMax get a panel of their own."""

_DASHES: tuple[tuple[int, tuple[float, ...]], ...] = (
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
)
"""Of the windows, the widest first."""

_MOST_TICKS = 9
_LEGEND_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class LossLine:
    """A run as it is drawn: x in tokens, where a range of positions ends; y and its ends in nats a token."""

    row: LossRow
    ends: tuple[int, ...]
    losses: tuple[float, ...]
    low: tuple[float, ...]
    """The interval's lower end; the loss itself where there is none."""
    high: tuple[float, ...]


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

    A model has one colour, that of its position encoding where no other model has it already. A line's points
    stand where their range of positions ends, so that those left of the train length, and on it, were seen in
    training. The bands are 95% t intervals over stretches.
    """
    lines = loss_lines(table)
    models = {line.row.model: line.row for line in lines}
    colours = _colours(list(models.values()))
    windows = sorted({line.row.window for line in lines if line.row.window is not None}, reverse=True)
    dashes: dict[int | None, Any] = {
        window: _DASHES[number % len(_DASHES)] for number, window in enumerate(windows)
    }
    dashes[None] = "-"
    kinds = sorted({line.row.ssmax for line in lines})
    panels = [lines]
    if len(models) > _CROWDED and len(kinds) == 2:
        panels = [[line for line in lines if line.row.ssmax == ssmax] for ssmax in kinds]
    handles = _legend(list(models.values()), colours, dashes, lines)
    width = COLUMN_WIDTH if len(panels) == 1 else PAGE_WIDTH
    columns = _LEGEND_COLUMNS * len(panels)
    remark = textwrap.fill(_remark(table), width=int(width * 20))
    with figure_style():
        legend_lines = -(-len(handles) // columns) + remark.count("\n") + 1
        figure, grid = new_figure(
            width, 2.2 + 0.14 * legend_lines, ncols=len(panels), squeeze=False, sharey=True
        )
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
            for line in panel:
                _draw(axes, line, colours[line.row.model], dashes[line.row.window])
            _set_axes(axes, table.ends, lines)
            axes.set_xlabel("position (tokens)")
            if number == 0:
                axes.set_ylabel("loss (nats a token)")
            if len(panels) > 1:
                axes.set_title("with SSMax" if kinds[number] else "without SSMax")
        legend = figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            title=remark,
            title_fontproperties={"size": 6.5},
            columnspacing=1.2,
        )
        legend.get_title().set_color(QUIET)
    return figure


def _draw(axes: Axes, line: LossLine, colour: str, dashes: Any) -> None:
    axes.plot(line.ends, line.losses, color=colour, linestyle=dashes, marker="o", label=line.row.label)
    if line.low != line.losses:
        axes.fill_between(line.ends, line.low, line.high, color=colour, alpha=0.12, linewidth=0)


def _set_axes(axes: Axes, ends: Sequence[int], lines: Sequence[LossLine]) -> None:
    axes.set_xscale("log", base=2)
    every = -(-len(ends) // _MOST_TICKS)
    axes.set_xticks(ends[::-1][::every], [format_length(end) for end in ends[::-1][::every]])
    axes.minorticks_off()
    axes.grid(axis="y")
    for length in sorted(_train_lengths(lines)):
        axes.axvline(length, color=QUIET, linestyle=":", linewidth=0.9, zorder=0)


def _train_lengths(lines: Sequence[LossLine]) -> set[int]:
    return {line.row.train_length for line in lines if line.row.train_length is not None}


def _colours(models: Sequence[LossRow]) -> dict[str, str]:
    """Model → colour."""
    colours: dict[str, str] = {}
    others = 0
    for model in models:
        colour = ENCODING_COLOURS.get(model.position_encoding)
        if colour is None or colour in colours.values():
            colour = OTHER_COLOURS[others % len(OTHER_COLOURS)]
            others += 1
        colours[model.model] = colour
    return colours


def _legend(
    models: Sequence[LossRow],
    colours: dict[str, str],
    dashes: dict[int | None, Any],
    lines: Sequence[LossLine],
) -> list[Line2D]:
    handles = [Line2D([], [], color=colours[row.model], marker="o", label=row.model) for row in models]
    contexts = dict.fromkeys(line.row.window for line in lines)
    for window in sorted(contexts, key=lambda window: (window is not None, -(window or 0))):
        name = "full context" if window is None else f"window {format_length(window)}"
        handles.append(Line2D([], [], color=QUIET, linestyle=dashes[window], label=name))
    if _train_lengths(lines):
        lengths = ", ".join(map(format_length, sorted(_train_lengths(lines))))
        handles.append(
            Line2D([], [], color=QUIET, linestyle=":", linewidth=0.9, label=f"train length {lengths}")
        )
    return handles


def _remark(table: LossTable) -> str:
    """What is not to be seen in the lines."""
    cells: list[LossCell] = [cell for row in table.rows for cell in row.cells if cell is not None and cell.n]
    counts = sorted({cell.n for cell in cells})
    stretches = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    spread = ", 95% t intervals" if any(cell.low is not None for cell in cells) else ""
    return f"{'; '.join(table.common)}; mean of {stretches} stretches{spread}"
