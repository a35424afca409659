"""The table of scores on a console: at any width, with or without colours."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bamctl.report import layout

SCALE = ("#00224e", "#31446b", "#5e616e", "#a69d75", "#d2c060", "#fee838")
"""Backgrounds from 0 to 100%: cividis, which is read in the same order by every kind of colour vision."""

_DARK, _LIGHT = "#000000", "#ffffff"
_FIRST_BRIGHT = 3  # from this step on the writing is dark
_GAP = 2  # blank columns between two lengths, half of them on either side of the text


def score_style(score: float) -> str:
    """A rich style for a score of 0 … 1. Writing and background are both set, so any theme will do."""
    step = min(int(score * (len(SCALE) - 1)), len(SCALE) - 1)  # the last colour is for 100% alone
    return f"{_DARK if step >= _FIRST_BRIGHT else _LIGHT} on {SCALE[step]}"


def print_table(table: layout.Table, console: Console, *, intervals: bool = False) -> None:
    """Prints the table and its caption.

    Where the lengths do not fit beside each other they go into several tables, one below the other;
    numbers are never cut. Colours are the console's affair: without them the table says the same.
    """
    header = table.header()
    body = table.body(intervals=intervals, separator="\n")
    first, scores = table.first_length, table.scores()
    widths = [
        max(len(line) for text in column for line in text.split("\n")) + _GAP
        for column in zip(header, *body, strict=True)
    ]
    label_width = min(widths[0], max(12, console.width // 3))
    for block in _blocks(widths, label_width, console.width):
        grid = Table(box=None, padding=0, pad_edge=False, leading=1 if intervals else 0)
        grid.width = label_width + sum(widths[column] for column in block)
        grid.add_column(Text(header[0], style="bold"), width=label_width, overflow="fold")
        for column in block:
            title = _padded(header[column], widths[column], "bold")
            grid.add_column(title, width=widths[column], no_wrap=True)
        for number, texts in enumerate(body):
            if not any(texts[column] for column in block):
                continue  # averages over lengths, of which the rows of runs have none
            shades = scores[number] if number < len(scores) else ()
            line = [Text(texts[0])]
            for column in block:
                at = column - first
                score = shades[at] if 0 <= at < len(shades) else None
                style = "" if score is None else score_style(score)
                line.append(_padded(texts[column], widths[column], style))
            grid.add_row(*line)
        console.print(grid, crop=False)
        console.print()
    for sentence in table.caption(intervals=intervals):
        console.print(Text(sentence))


def _blocks(widths: Sequence[int], label_width: int, width: int) -> list[list[int]]:
    """The columns after the label, split so that each part fits beside the label; at least one in each."""
    blocks: list[list[int]] = [[]]
    used = label_width
    for column in range(1, len(widths)):
        if blocks[-1] and used + widths[column] > width:
            blocks.append([])
            used = label_width
        blocks[-1].append(column)
        used += widths[column]
    return blocks


def _padded(text: str, width: int, style: str) -> Text:
    """A cell right-justified by hand, so that its background is one area."""
    return Text("\n".join(f"{line} ".rjust(width) for line in text.split("\n")), style=style)
