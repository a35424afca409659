"""What several figures have on their axes: lengths, powers of ten, the train length, titles."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bamctl.lengths import format_length
from bamctl.report.style import QUIET, wrapped

TRAIN_LENGTH: dict[str, Any] = {"color": QUIET, "linewidth": 0.7, "linestyle": (0, (1, 1))}
"""How the line at a train length looks."""

_BEYOND = 2.0**60
"""Right of every length."""

_TITLE_LINE = 0.12
"""Inches of a line of a title."""

_MOST_DECADES = 8
"""Powers of ten that have a label each."""


def set_length_axis(axes: Axes, lengths: Iterable[int], *, most_ticks: int) -> None:
    """A log₂ axis over the lengths, in tokens, with at most so many labels, at powers of 2."""
    lengths = set(lengths)
    first, last = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    axes.set_xscale("log", base=2)
    # What is written along a train length at the first length needs the more, the more octaves there are.
    free = 0.7 + 0.06 * math.log2(max(lengths) / min(lengths))
    axes.set_xlim(min(lengths) / 2**free, max(lengths) * 2**0.5)
    powers = range(first, last + 1, math.ceil((last - first + 1) / most_ticks))
    axes.set_xticks([2**power for power in powers], labels=[format_length(2**power) for power in powers])
    axes.set_xticks([], minor=True)


def mark_train_length(axes: Axes, length: int, *, text: bool) -> None:
    """A dotted line at the train length, and a shade over all beyond; with its name along it if `text`."""
    axes.axvspan(length, _BEYOND, color=QUIET, alpha=0.07, linewidth=0, zorder=0)
    axes.axvline(length, zorder=1, **TRAIN_LENGTH)
    if text:
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


def title_height(title: str, below: Sequence[str], *, width: float, least: int = 0) -> float:
    """Inches that `set_titles` takes."""
    return _TITLE_LINE * (_lines(title, width) + max(least, _lines(", ".join(below), width)))


def most_lines_below(titles: Iterable[tuple[str, Sequence[str]]], *, width: float) -> int:
    """Lines that stand below a title at most; `set_titles` with so many aligns all titles of a row."""
    return max(_lines(", ".join(below), width) for _, below in titles)


def _lines(text: str, width: float) -> int:
    return wrapped(text, width).count("\n") + 1 if text else 0


def set_titles(axes: Axes, title: str, below: Sequence[str], *, width: float, least: int = 0) -> None:
    """A title above the axes' left end and, smaller and quiet, what is to be said below it.

    Args:
        axes: whose titles they are.
        title: wrapped, like the rest.
        below: joined with commas.
        width: inches that they may take.
        least: lines for which there is room below the title, whether they are needed or not.
    """
    text = wrapped(", ".join(below), width)
    own = text.count("\n") + 1 if text else 0
    lines = max(least, own)
    axes.set_title(wrapped(title, width), loc="left", fontsize=7.5, pad=3 + 8 * lines)
    axes.annotate(
        text + "\n" * (lines - own) if text else "",  # right below the title, whatever is free below it
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=6.5,
        color=QUIET,
    )


def train_length_handle(lengths: Iterable[int]) -> Line2D:
    """A legend's entry for the lines at train lengths, which it names."""
    named = ", ".join(format_length(length) for length in sorted(set(lengths)))
    return Line2D([], [], label=f"train length {named}", **TRAIN_LENGTH)


def set_log_axis(axes: Axes, values: Iterable[float]) -> None:
    """A log axis of y over positive values, labelled where their range makes it useful."""
    values = list(values)
    free = 1.1 * (max(values) / min(values)) ** 0.06
    low, high = min(values) / free, max(values) * free
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks = _log_ticks(low, high)
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; over a few of them 2 and 5 of each as well, and over less than one even steps."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high / low < 500 else (1,)
    apart = math.ceil((last - first) / _MOST_DECADES)
    ticks = [step * 10.0**power for power in range(first, last + 1, apart) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 3:
        ticks = [
            tick
            for tick in map(float, MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
            if low <= tick <= high
        ]
    return ticks
