"""How all figures look and how they are written: nothing here needs a display or changes matplotlib's state.

Draw inside `figure_style`: matplotlib takes fonts and sizes of ticks, legends and texts from the style in
force when it makes them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bamctl.errors import BadInput
from bamctl.results.files import reason, replace_file

COLUMN_WIDTH, PAGE_WIDTH = 3.5, 7.0
"""Inches: one column of a two-column paper, and both."""

LETTER_WIDTH, KEY_WIDTH = 3.6, 34
"""Points: about a letter of a legend, and what stands before an entry and behind it."""

SUFFIXES = (".png", ".pdf", ".svg")

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, told apart by every kind of colour vision; without their yellow, lost on white."""

ENCODING_COLOURS = {
    "ggd": COLOURS[0],
    "rotary": COLOURS[1],
    "laplace": COLOURS[2],
    "uniform": COLOURS[3],
    "sinusoidal": COLOURS[4],
}
"""A position encoding has the same colour in every figure."""

OTHER_COLOURS = (*COLOURS[len(ENCODING_COLOURS) :], "#882255", "#999933")
"""For what is none of these, in turn: what is left, and two more by Paul Tol."""

QUIET = "#707070"
"""For what stands behind the data: the train length, thresholds, remarks."""

_STYLE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # long enough for a pattern of dashes to be seen
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.fonttype": "path",  # the same on machines that lack the font
    "svg.hashsalt": "bamctl",  # else the same figure is another file each time
}

_METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
"""Left out, so that the same figure is the same file."""


def figure_style() -> AbstractContextManager[None]:
    """The style of all figures, for the time of a `with`; the user's matplotlibrc does not count in it."""
    return matplotlib.style.context(_STYLE, after_reset=True)


def new_figure(width: float = COLUMN_WIDTH, height: float = 2.6, **subplots: Any) -> tuple[Figure, Any]:
    """A figure and its axes.

    Args:
        width: inches.
        height: inches.
        subplots: as `Figure.subplots` takes them: nrows, ncols, sharey, squeeze, …

    Returns:
        The figure, and its Axes, or an array of them where `subplots` asks for several.
    """
    with figure_style():
        figure = Figure(figsize=(width, height))
        return figure, figure.subplots(**subplots)


def entries_a_row(handles: Sequence[Line2D], width: float, *, even: bool) -> int:
    """How many entries of a legend fit beside each other in so many inches; at least one."""
    widest = max(len(str(handle.get_label())) for handle in handles) * LETTER_WIDTH + KEY_WIDTH
    fitting = max(1, min(len(handles), int(width * 72 / widest)))
    return fitting - fitting % 2 if even and fitting > 1 else fitting


def _by_row(handles: Sequence[Line2D], across: int) -> list[Line2D]:
    """matplotlib fills a legend column by column; this order makes it read row by row."""
    return [handle for column in range(across) for handle in handles[column::across]]


def add_legend(figure: Figure, handles: Sequence[Line2D], across: int, *, remark: str) -> None:
    """A legend below the figure, `across` entries a row, with what a reader has to know above it."""
    legend = figure.legend(
        handles=_by_row(handles, across),
        loc="outside lower center",
        ncols=across,
        title=remark,
        title_fontproperties={"size": 6.5},
        columnspacing=1.2,
    )
    legend.get_title().set_color(QUIET)


def check_figure_path(path: Path) -> None:
    """Whether a figure can be written there, to be asked before the work.

    Raises:
        BadInput: the suffix names no format of ours, the folder does not exist, or `path` is a folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"figure {path}: its name must end in .png, .pdf or .svg")
    if not path.parent.is_dir():
        raise BadInput(f"figure {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise BadInput(f"figure {path}: is a folder; name a file")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that the suffix names: PNG at 200 dpi, PDF or SVG with its fonts.

    The same figure is the same file, byte for byte. Whoever looks sees the former file or this one, whole.

    Raises:
        BadInput: nothing can be written there; see `check_figure_path`.
    """
    check_figure_path(path)
    suffix = path.suffix.lower()

    def write(aside: Path) -> None:
        with figure_style():
            figure.savefig(aside, format=suffix[1:], metadata=_METADATA[suffix])

    try:
        replace_file(path, write)
    except OSError as error:
        raise BadInput(f"figure {path}: cannot be written ({reason(error)})") from error
