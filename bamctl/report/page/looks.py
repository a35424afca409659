"""How curves are told apart: by colour, marker and dashes, as in the figures, on light ground and on dark."""

from collections.abc import Sequence
from dataclasses import dataclass

from bamctl.report.line_styles import colours_and_markers, line_styles
from bamctl.report.loss_table import LossRow
from bamctl.report.panels import Line

ON_DARK = {
    "#D55E00": "#FF8B3D",
    "#0072B2": "#58B1EA",
    "#009E73": "#2FCB9C",
    "#000000": "#F1F1F1",
    "#CC79A7": "#E79BC4",
    "#E69F00": "#F4B63C",
    "#56B4E9": "#A5DAFA",
    "#882255": "#DB79AB",
    "#999933": "#C9C95E",
}
"""A figure's colour → its like on dark ground."""

_PLACES = {colour: place for place, colour in enumerate(ON_DARK)}


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a curve is drawn."""

    colour: int
    """The place in `ON_DARK`."""
    marker: str
    """As matplotlib calls it: o, s, ^, …"""
    dashed: bool
    hollow: bool = False
    """Whether its markers are: the model has not learned its train length."""
    thin: bool = False
    """Whether it is another training of a model that is shown."""


def score_looks(lines: Sequence[Line]) -> dict[str, Look]:
    """Label → look, of all curves of scores of a page."""
    styles = line_styles(lines)
    return {
        line.label: Look(
            colour=_PLACES[styles[line.label].colour],
            marker=styles[line.label].marker,
            dashed=styles[line.label].dashes != "-",
            hollow=not line.learned,
            thin=line.label != line.repeat_of,
        )
        for line in lines
    }


def loss_looks(rows: Sequence[LossRow]) -> dict[str, Look]:
    """Label → look: full context is solid, a window is dashed."""
    chosen = colours_and_markers((row.position_encoding, row.kin) for row in rows)
    looks = {}
    for row in rows:
        colour, marker = chosen[row.position_encoding, row.kin]
        looks[row.label] = Look(colour=_PLACES[colour], marker=marker, dashed=row.window is not None)
    return looks
