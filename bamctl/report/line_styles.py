"""Which colour, marker and dashes a model's line has: the same rule in every figure."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType

from bamctl.report.lines import ModelLine
from bamctl.report.runs import UNLEARNED_MARK
from bamctl.report.style import ENCODING_COLOURS, OTHER_COLOURS

_ENCODING_MARKERS = {"ggd": "o", "rotary": "s", "laplace": "^", "uniform": "D", "sinusoidal": "v"}
_OTHER_MARKERS = ("P", "X", "<", ">", "p")


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    """Of one line."""

    colour: str
    marker: str
    dashes: LineStyleType


def colours_and_markers(kin: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """A colour and a marker for each position encoding and kin.

    Of several kin with one encoding the first has the encoding's; others, and those of other encodings, take
    the rest in turn.
    """
    chosen: dict[tuple[str, str], tuple[str, str]] = {}
    taken: set[str] = set()
    for encoding, name in dict.fromkeys(kin):
        if encoding in ENCODING_COLOURS and encoding not in taken:
            chosen[encoding, name] = ENCODING_COLOURS[encoding], _ENCODING_MARKERS[encoding]
            taken.add(encoding)
        else:
            other = len(chosen) - len(taken)
            chosen[encoding, name] = (
                OTHER_COLOURS[other % len(OTHER_COLOURS)],
                _OTHER_MARKERS[other % len(_OTHER_MARKERS)],
            )
    return chosen


def line_styles(lines: Sequence[ModelLine]) -> dict[str, LineStyle]:
    """Label → style. SSMax is solid; beside it, without is dashed."""
    looks = colours_and_markers((line.position_encoding, line.kin) for line in lines)
    some_have_ssmax = any(line.ssmax for line in lines)
    return {
        line.label: LineStyle(
            colour=looks[line.position_encoding, line.kin][0],
            marker=looks[line.position_encoding, line.kin][1],
            dashes="-" if line.ssmax or not some_have_ssmax else (0, (3.2, 1.2)),
        )
        for line in lines
    }


def line_options(line: ModelLine, style: LineStyle) -> dict[str, Any]:
    """What `Axes.plot` is told of a line's looks: another training of a model is thin."""
    thin = line.label != line.repeat_of
    return {
        "label": line.label,
        "color": style.colour,
        "linestyle": style.dashes,
        "linewidth": 0.6 if thin else 1.2,
        "marker": style.marker,
        "markersize": 2.4 if thin else 3.5,
        "markeredgewidth": 0.7,
    }


def line_handles(
    lines: Sequence[ModelLine], styles: dict[str, LineStyle], *, unlearned: Container[str] = ()
) -> list[Line2D]:
    """A legend's entries: one a model, its other trainings, whose lines are thin, in the same; the unlearned
    ones are hollow."""
    entries: dict[str, list[str]] = {}
    for line in lines:
        repeats = entries.setdefault(line.repeat_of, [])
        if line.label not in (line.repeat_of, *repeats):
            repeats.append(line.label)
    return [
        Line2D(
            [],
            [],
            color=styles[label].colour,
            linestyle=styles[label].dashes,
            marker=styles[label].marker,
            markerfacecolor="white" if label in unlearned else styles[label].colour,
            markeredgewidth=0.7,
            label=label
            + _named([repeat.removeprefix(label) for repeat in repeats])
            + (f" {UNLEARNED_MARK}" if label in unlearned else ""),
        )
        for label, repeats in entries.items()
    ]


def _named(repeats: Sequence[str]) -> str:
    if not repeats:
        return ""
    trainings = "another training" if len(repeats) == 1 else "other trainings"
    return f" (thin: {trainings}, {', '.join(repeats)})"
