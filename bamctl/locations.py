"""Where task files and checkpoints lie: the user's own folders first, then what the package ships.

In a checkout the shipped folders are `tasks/` and `models/` beside the package; an installed wheel
carries them inside it, under `bamctl/_shipped/`.
"""

from pathlib import Path

DEFAULT_MODEL = "tiny-bam-ssmax"
"""The checkpoint that runs where none is named."""

RULER_MODEL = "small-bam-ssmax"
"""The same for RULER's tasks."""

_PACKAGE = Path(__file__).resolve().parent


def search_path(kind: str) -> list[Path]:
    """The existing folders to look through for `kind` (``"tasks"`` or ``"models"``), best first."""
    candidates = [Path.cwd() / kind, _PACKAGE / "_shipped" / kind]
    if (_PACKAGE.parent / "pyproject.toml").is_file():  # a checkout, not site-packages
        candidates.append(_PACKAGE.parent / kind)
    found: list[Path] = []
    for folder in candidates:
        if folder.is_dir() and folder.resolve() not in [other.resolve() for other in found]:
            found.append(folder)
    return found
