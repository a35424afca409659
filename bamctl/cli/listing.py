"""Prints a listing: folded to the width of a terminal, whole where another program reads it."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000
"""Columns: wider than any path."""


def print_listing(table: Table) -> None:
    """Prints a table on stdout. Piped, no cell is folded: a path in two pieces is no path."""
    console = Console()
    if not console.is_terminal:
        options = console.options.update(max_width=_WIDEST)
        console.width = max(console.width, Measurement.get(console, options, table).maximum)
    console.print(table)
