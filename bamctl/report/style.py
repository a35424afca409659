"""How all figures look and how they are written: nothing here needs a display or changes matplotlib's state.

Draw inside `figure_style`: matplotlib takes fonts and sizes of ticks, legends and texts from the style in
force when it makes them.
"""

import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from bamctl.errors import BadInput
from bamctl.results.files import reason, replace_file

COLUMN_WIDTH, PAGE_WIDTH = 3.5, 7.0
"""Inches: one column of a two-column paper, and both."""

_LETTER_WIDTH, _KEY_WIDTH = 3.6, 34
"""Points: about a letter of a legend, and what stands before an entry and behind it."""

_LINE_HEIGHT = 0.14
"""Inches of a line of a legend."""

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


def plain(text: str) -> str:
    """Text whose dollars are dollars: matplotlib would read what stands between two of them as a formula."""
    return text.replace("$", r"\$")


def wrapped(text: str, width: float) -> str:
    """Small text (6.5 pt) in lines of at most so many inches; ``n = 20`` stays together."""
    return plain(textwrap.fill(text.replace(" = ", "\u00a0=\u00a0"), width=max(1, int(width * 20))))


@dataclass(frozen=True, kw_only=True)
class Legend:
    """What stands below a figure: entries, with what a reader has to know above them."""

    handles: Sequence[Artist]
    across: int
    """Entries a row."""
    remark: str
    height: float
    """Inches."""


def fits_a_column(handles: Sequence[Artist]) -> bool:
    """Whether each entry has room in one column of a paper."""
    return max((len(str(handle.get_label())) for handle in handles), default=0) <= _letters(COLUMN_WIDTH)


def _letters(width: float) -> int:
    """Of an entry that has a row of so many inches for itself; some room is left for wide ones."""
    return int(0.85 * (width * 72 - _KEY_WIDTH) / _LETTER_WIDTH)


def plan_legend(handles: Sequence[Artist], *, remark: str, width: float, even: bool = False) -> Legend:
    """A legend for a figure of so many inches; wraps the entries' labels and the remark.

    Args:
        handles: what is shown before each entry, with its label.
        remark: sentences.
        width: inches.
        even: whether entries a row are an even number, so that pairs stay together.
    """
    for handle in handles:
        handle.set_label(plain(textwrap.fill(str(handle.get_label()), _letters(width))))
    labels = [str(handle.get_label()).split("\n") for handle in handles]
    widest = max((len(line) for lines in labels for line in lines), default=0) * _LETTER_WIDTH + _KEY_WIDTH
    across = max(1, min(len(handles), int(width * 72 / widest)))
    if even and across > 1:
        across -= across % 2
    rows = [labels[first : first + across] for first in range(0, len(labels), across)]
    remark = wrapped(remark, width)
    lines = sum(max(map(len, row)) for row in rows) + remark.count("\n") + 1
    return Legend(handles=handles, across=across, remark=remark, height=_LINE_HEIGHT * lines)


def add_legend(figure: Figure, legend: Legend) -> None:
    """The legend, below the figure."""
    # matplotlib fills it column by column; this order makes it read row by row.
    by_row = [handle for column in range(legend.across) for handle in legend.handles[column :: legend.across]]
    drawn = figure.legend(
        handles=by_row,
        loc="outside lower center",
        ncols=legend.across,
        title=legend.remark,
        title_fontproperties={"size": 6.5},
        columnspacing=1.2,
    )
    drawn.get_title().set_color(QUIET)


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
