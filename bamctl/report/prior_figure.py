"""Two figures of a model's heads: their priors as curves, and what they attend to as bars."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from bamctl.attention.kinds import MEANINGS
from bamctl.lengths import format_length
from bamctl.models.inspection import InspectedHead
from bamctl.models.needle_attention import NEIGHBOURHOOD, REGIONS, NeedleAttention
from bamctl.report.style import COLOURS, PAGE_WIDTH, QUIET, figure_style, new_figure

KIND_COLOURS = dict(zip(MEANINGS, (COLOURS[i] for i in (3, 0, 4, 1, 2, 6, 5)), strict=True))
"""A kind of prior has the same colour in every figure."""

REGION_COLOURS = dict(zip(REGIONS, (COLOURS[0], COLOURS[6], COLOURS[5], COLOURS[3], "#DDDDDD"), strict=True))

REGION_LABELS = {
    "needle": "needle",
    "end": f"last {NEIGHBOURHOOD} tokens, with the question",
    "around": f"{NEIGHBOURHOOD} tokens on either side of the needle",
    "first": "first token",
    "rest": "rest",
}

LEAST_WEIGHT = 1e-3
"""Of a uniform prior's: where the curves are cut off."""

MOST_LABELLED = 8
"""Heads of a layer that a legend names; of more, colours tell the kind alone."""

MOST_BARS = 32
"""Heads that have a bar; of more, those that give the needle most."""

_DASHES = ("-", "--", ":", "-.")


def draw_priors(heads: Sequence[InspectedHead], *, length: int, title: str) -> Figure:
    """The weight of each distance for the last of `length` tokens, a uniform prior's being 1.

    A panel a layer, a line a head, in the colour of its kind; a dot where 99% of its mass lie within.
    """
    layers = [list(of_layer) for _, of_layer in groupby(heads, key=lambda head: head.layer)]
    columns = min(len(layers), 3 if len(layers) <= 9 else 4)
    rows = math.ceil(len(layers) / columns)
    with figure_style():
        figure, axes = new_figure(
            PAGE_WIDTH, 0.65 + 1.75 * rows, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False
        )
        panels: list[Axes] = list(axes.flat)
        for panel, of_layer in zip(panels, layers, strict=False):
            _draw_layer(panel, of_layer, length)
        _finish_grid(panels, len(layers), columns, xlabel="distance (tokens)")
        panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
        panels[0].set_yscale("log")
        panels[0].set_xlim(0, max(length - 1, 1))
        panels[0].set_ylim(LEAST_WEIGHT, 3 * length)
        panels[0].xaxis.set_major_formatter(FuncFormatter(_distance))
        figure.supylabel("weight (uniform = 1)", fontsize="medium")
        figure.suptitle(title, fontsize="large")
        found = {head.kind(length) for head in heads}
        handles = [Line2D([], [], color=KIND_COLOURS[kind], label=kind) for kind in MEANINGS if kind in found]
        handles.append(
            Line2D([], [], color=QUIET, marker="o", linestyle="", label="99% of the mass lies within")
        )
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_layer(panel: Axes, heads: Sequence[InspectedHead], length: int) -> None:
    panel.axhline(1, color=QUIET, linewidth=0.6, zorder=1)
    drawn: dict[str, int] = {}
    for head in heads:
        kind, mass = head.kind(length), head.mass(length)
        dashes = _DASHES[drawn.get(kind, 0) % len(_DASHES)]
        drawn[kind] = drawn.get(kind, 0) + 1
        distances = _distances(length, centre=-head.prior.mu)
        panel.plot(
            distances,
            mass.at(distances) * length,
            color=KIND_COLOURS[kind],
            linestyle=dashes,
            label=_label(head),
        )
        reach = mass.reach()
        at_reach = mass.at(np.array([float(reach)])) * length
        panel.plot([reach], at_reach, "o", color=KIND_COLOURS[kind], clip_on=False)
    panel.set_title(f"layer {heads[0].layer}")
    if len(heads) <= MOST_LABELLED:
        panel.legend(loc="best", handlelength=1.8, labelspacing=0.2, borderpad=0.2)


def _distance(value: float, _: int | None) -> str:
    """A tick's label: from 10⁴ on as a power, which is shorter."""
    return f"{value:.0f}" if value < 10_000 else f"$10^{{{math.log10(value):.0f}}}$"


def _finish_grid(panels: Sequence[Axes], used: int, columns: int, *, xlabel: str) -> None:
    """Labels the lowest panel of each column, and hides those that are left over."""
    for number, panel in enumerate(panels):
        if number >= used:
            panel.set_axis_off()
        elif number + columns >= used:
            panel.set_xlabel(xlabel)
            panel.tick_params(labelbottom=True)


def _distances(length: int, *, centre: float) -> NDArray[np.float64]:
    """Every distance near the query and near the centre, and more and more widely spaced ones beyond."""
    spaced = np.geomspace(1, max(length - 1, 1), 400).round()
    near = np.arange(64.0)
    places = np.concatenate([near, spaced, *(math.ceil(centre) + sign * near for sign in (1, -1))])
    return np.unique(places[(places >= 0) & (places < length)])


def _label(head: InspectedHead) -> str:
    """``2: β = −1.59``; without β where the prior has none."""
    name = str(head.head)
    return (
        name if head.prior.is_uniform else f"{name}: β = {head.prior.beta:.2f}".replace("-", "\N{MINUS SIGN}")
    )


def draw_attention(
    heads: Sequence[InspectedHead], measured: Sequence[NeedleAttention], *, title: str
) -> Figure:
    """Where each head's attention goes while the model answers: a panel a length, a bar a head.

    The lowest bar is what a head gives that looks at every token alike. Where there are more heads than
    `MOST_BARS`, those are drawn that give the needle most at any of the lengths.
    """
    needle_HN = np.array([of_length.shares_LHR[..., 0].ravel() for of_length in measured]).T
    chosen = sorted(np.argsort(-needle_HN.max(axis=1), kind="stable")[:MOST_BARS].tolist())
    if len(chosen) < len(heads):
        title += f"; the {len(chosen)} of {len(heads)} heads that give the needle most"
    columns = min(len(measured), 4)
    rows = math.ceil(len(measured) / columns)
    labels = [f"{heads[i].layer}.{_label(heads[i])}" for i in chosen] + ["every token alike"]
    places = np.array([*range(len(chosen)), len(chosen) + 0.5])
    with figure_style():
        figure, axes = new_figure(
            PAGE_WIDTH,
            0.75 + rows * (0.45 + 0.14 * len(labels)),
            nrows=rows,
            ncols=columns,
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        panels: list[Axes] = list(axes.flat)
        for panel, of_length in zip(panels, measured, strict=False):
            shares = of_length.shares_LHR.reshape(-1, len(REGIONS))[chosen]
            shares = np.concatenate([shares, of_length.tokens_R[None]])
            left = np.zeros(len(labels))
            for region, share in zip(REGIONS, shares.T, strict=True):
                panel.barh(places, share, left=left, height=0.8, color=REGION_COLOURS[region])
                left += share
            panel.set_title(f"{format_length(of_length.length)} tokens")
        _finish_grid(panels, len(measured), columns, xlabel="attention")
        panels[0].set_yticks(places, labels)
        panels[0].set_ylim(len(chosen) + 1, -0.5)
        panels[0].set_xlim(0, 1)
        panels[0].xaxis.set_major_formatter(PercentFormatter(1))
        figure.suptitle(title, fontsize="large")
        handles = [Patch(color=REGION_COLOURS[region], label=REGION_LABELS[region]) for region in REGIONS]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1.2)
    return figure
