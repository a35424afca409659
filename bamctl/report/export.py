"""The table of scores as text for other programs: CSV, JSON, Markdown, LaTeX."""

import json
import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from bamctl.report.layout import Table


def to_csv(accuracy: pd.DataFrame) -> str:
    """Every column of the accuracy, one line a run and length.

    A null is an empty field, and a list its entries with spaces between.
    """
    return str(accuracy.apply(_with_texts).to_csv(index=False, lineterminator="\n"))


def _with_texts(column: pd.Series) -> pd.Series:
    if column.dtype != object:
        return column
    return column.map(lambda entry: " ".join(map(str, entry)) if isinstance(entry, np.ndarray) else entry)


def to_json(accuracy: pd.DataFrame) -> str:
    """The same as a JSON object a line; what is not known is null, and so is a number that is not finite."""
    return "".join(
        json.dumps({name: _finite(value) for name, value in row.items()}, allow_nan=False) + "\n"
        for row in pa.Table.from_pandas(accuracy, preserve_index=False).to_pylist()
    )


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_markdown(table: Table, *, intervals: bool = False) -> str:
    """A table as GitHub renders it, and its caption below."""
    header, *body = [
        [_escape_markdown(text) for text in texts]
        for texts in [table.header(), *table.body(intervals=intervals)]
    ]
    rule = ["---", *["--:"] * (len(header) - 1)]
    lines = [f"| {' | '.join(texts)} |" for texts in [header, rule, *body]]
    caption = [_escape_markdown(sentence) for sentence in table.caption(intervals=intervals)]
    return "\n".join([*lines, "", *caption]) + "\n"


def to_latex(table: Table, *, intervals: bool = False) -> str:
    """A tabular of the package booktabs; the caption stands before it as a comment."""
    header = [_escape_latex(text) for text in table.header()]
    body = [
        [_escape_latex(label), *map(_latex_cell, cells)] for label, *cells in table.body(intervals=intervals)
    ]
    return "\n".join(
        [
            *(f"% {sentence}" for sentence in table.caption(intervals=intervals)),
            "% needs \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            "\\toprule",
            _latex_row(header),
            "\\midrule",
            *map(_latex_row, body[: len(table.rows)]),
            *(["\\midrule"] if len(table.rows) and len(table.averages) else []),
            *map(_latex_row, body[len(table.rows) :]),
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def _latex_row(texts: Sequence[str]) -> str:
    return f"{' & '.join(texts)} \\\\"


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\|`*<>" else character for character in text)


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "[": "{[}",  # at the start of a row it would be read as an argument of the \\ before it
    "]": "{]}",
}


_MATHS = re.compile(r"[+-]\d+\.\d+(?: ±\d+\.\d+)?|\d+\.\d+ ±\d+\.\d+|\[-?[\d.]+, -?[\d.]+\]")
"""Signed numbers, numbers with half an interval, and intervals: a hyphen is no minus."""


def _latex_cell(text: str) -> str:
    parts, start = [], 0
    for match in _MATHS.finditer(text):
        number = match[0].replace(" ±", r" \pm ")
        parts += [_escape_latex(text[start : match.start()]), f"${number}$"]
        start = match.end()
    return "".join([*parts, _escape_latex(text[start:])])


def _escape_latex(text: str) -> str:
    parts = ("".join(_LATEX.get(character, character) for character in part) for part in text.split(">="))
    return "$\\geq$".join(parts)
