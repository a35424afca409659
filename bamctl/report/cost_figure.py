"""The figure of cost against length: seconds to read and to write, and memory; log axes, a line a model."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bamctl.report.axes import mark_train_length, set_length_axis, set_log_axis, train_length_handle
from bamctl.report.costs import CostLine, Costs
from bamctl.report.line_styles import LineStyle, line_handles, line_options, line_styles
from bamctl.report.style import COLUMN_WIDTH, PAGE_WIDTH, add_legend, figure_style, new_figure, plan_legend

_PANELS = {
    "prefill": ("reading a prompt (s)", 1.0),
    "decode": ("answering, a token (s)", 1.0),
    "memory": ("peak memory (GiB)", 2.0**30),
}
"""Field of a line → what its axis says, and its unit."""

_HEIGHT = 1.9
_TICKS = {1: 8, 2: 8, 3: 6}
"""Panels → labels that a length axis has room for."""


def cost_figure(costs: Costs) -> Figure:
    """Draws what was measured: a panel each for prefill, decode and memory, as far as there is something.

    A model has the colour, the marker and the dashes that it has in the figure of its scores.
    """
    names = [name for name in _PANELS if any(known(line, name) for line in costs.lines)]
    styles = line_styles(costs.lines)
    width = COLUMN_WIDTH if len(names) == 1 else PAGE_WIDTH
    lengths = {length for line in costs.lines for length in line.lengths}
    train_lengths = {line.train_length for line in costs.lines if line.train_length}
    with figure_style():
        handles = line_handles(costs.lines, styles)
        handles += [train_length_handle(train_lengths)] if train_lengths else []
        legend = plan_legend(handles, remark=_remark(costs, names), width=width)
        figure, grid = new_figure(width, _HEIGHT + legend.height, ncols=len(names), squeeze=False)
        for axes, name in zip(grid.flat, names, strict=True):
            said, unit = _PANELS[name]
            for length in sorted(train_lengths):
                mark_train_length(axes, length, text=False)
            for line in costs.lines:
                _draw(axes, line, name, unit, styles[line.label])
            set_length_axis(axes, lengths | train_lengths, most_ticks=_TICKS[len(names)])
            set_log_axis(axes, [value / unit for line in costs.lines for value in known(line, name)])
            axes.grid(axis="y")
            axes.set_title(said, loc="left", fontsize=7.5)
            axes.set_xlabel("prompt length (tokens)")
        add_legend(figure, legend)
    return figure


def known(line: CostLine, name: str) -> list[float]:
    """What of a line was measured, under the name of a field."""
    return [value for value in getattr(line, name) if value is not None]


def _draw(axes: Axes, line: CostLine, name: str, unit: float, style: LineStyle) -> None:
    """The line, broken where nothing was measured."""
    values = [math.nan if value is None else value / unit for value in getattr(line, name)]
    axes.plot(line.lengths, values, **line_options(line, style))


def _remark(costs: Costs, names: Sequence[str]) -> str:
    """What was measured, and how, as a few sentences."""
    sentences = [", ".join([*costs.tasks, *costs.common])]
    if "prefill" in names:
        n = " to ".join(str(n) for n in dict.fromkeys((costs.read[0], costs.read[-1])))
        sentences.append(f"Reading: median of prompts read whole, n = {n}")
        if costs.shared:
            sentences[-1] += f"; {costs.shared} others began as an earlier one and are left out"
        if costs.unknown:
            sentences[-1] += f"; of {costs.unknown} it is unknown whether they were read whole"
    if "decode" in names:
        sentences.append("Answering: median of the seconds a token of the answer, its scoring included")
    if "memory" in names:
        on_gpu = any("cuda" in line.device for line in costs.lines)
        on_cpu = any("cuda" not in line.device for line in costs.lines)
        kinds = ["of the process (CPU)"] * on_cpu + ["that torch held (GPU)"] * on_gpu
        sentences.append(f"Memory: the most of any sample, {' or '.join(kinds)}")
    if costs.left_out:
        sentences.append(f"Left out, as not all lines have them: {', '.join(costs.left_out)}")
    return ". ".join(sentences) + "."
