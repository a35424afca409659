"""Where the commands that show results look for them, and which of them they show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

_DEFAULT = Path("results")
_PUBLISHED = _DEFAULT / "reference"

ResultPaths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="Folders of results, runs, or Parquet files of samples. By default the folder results,"
        " without the published runs in results/reference.",
        show_default=False,
    ),
]
ModelFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="This model alone; a pattern, NAME@DIGEST of several with one name, or repeat it.",
    ),
]


def own_results() -> list[Path]:
    """What lies in the default folder, but for the published runs: nobody is to take them for their own."""
    if not _DEFAULT.is_dir():
        return [_DEFAULT]  # whoever reads it tells what is wrong with it
    return sorted(path for path in _DEFAULT.iterdir() if path.is_dir() and path != _PUBLISHED)


def named(paths: Sequence[Path] | None) -> str:
    """Where was looked, in words; None is the default."""
    return ", ".join(map(str, paths or [_DEFAULT]))


def published_beside(paths: Sequence[Path] | None) -> Path | None:
    """The published runs, where there are some and they were not looked at, as no path was given."""
    return _PUBLISHED if not paths and _PUBLISHED.is_dir() else None
