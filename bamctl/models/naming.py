"""What a user calls a model → the folder that holds it: names, folders and patterns of either."""

import glob
import os.path
from fnmatch import fnmatchcase
from pathlib import Path

from bamctl.errors import BadInput, did_you_mean
from bamctl.locations import search_path

CONFIGS = ("config.json", "args.json")
"""A folder that holds one of these is a checkpoint, in Hugging Face layout or in that of BAM's authors."""


def model_folders() -> dict[str, Path]:
    """The checkpoints that have a name, sorted; where folders share one, the user's own."""
    found: dict[str, Path] = {}
    for place in search_path("models"):
        for config in CONFIGS:
            for path in place.glob(f"*/{config}"):
                found.setdefault(path.parent.name, path.parent)
    return dict(sorted(found.items()))


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder looks like one; nothing is read."""
    return any((folder / config).is_file() for config in CONFIGS)


def find_model(name_or_folder: str) -> Path:
    """The folder of a checkpoint.

    Raises:
        BadInput: neither the name of a checkpoint nor a folder that holds one.
    """
    path = find_path(name_or_folder)
    if not is_checkpoint(path):
        raise BadInput(f"{path} is no checkpoint: it has no config.json, nor the args.json of BAM's authors")
    return path


def find_path(name_or_path: str, *, kind: str = "model") -> Path:
    """The folder of a checkpoint that has this name, or else what lies at this path.

    Args:
        kind: what is looked for, as the error calls it.

    Raises:
        BadInput: there is neither.
    """
    known = model_folders()
    if name_or_path in known:
        return known[name_or_path]
    path = _existing(name_or_path)
    if path is None and (fitting := [name for name in known if fnmatchcase(name, name_or_path)]):
        raise BadInput(f"{name_or_path!r} is a pattern, and one {kind} is wanted: {' or '.join(fitting)}")
    if path is None:
        raise BadInput(f"there is no {kind} {name_or_path!r}{did_you_mean(name_or_path, known)}")
    return path


def find_models(pattern: str) -> list[str]:
    """What a user may mean by `pattern`: names of checkpoints, then folders, each of them sorted.

    Args:
        pattern: with ``*``, ``?`` or ``[…]``, what it matches among the names of checkpoints and, as a path,
            among the folders that hold one. Anything else, a name, a folder, or a name on the hub, stands
            for itself, and so does the path of something that is there.

    Raises:
        BadInput: nothing matches a pattern.
    """
    known = model_folders()
    if not glob.has_magic(pattern) or pattern in known or _existing(pattern) is not None:
        return [pattern]
    names = [name for name in known if fnmatchcase(name, pattern)]
    paths = sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 (of nobody's home it makes nothing)
    found = list(dict.fromkeys([*names, *(path for path in paths if is_checkpoint(Path(path)))]))
    if not found:
        raise BadInput(f"no model matches {pattern!r} (known: {', '.join(known) or 'none'})")
    return found


def _existing(path: str) -> Path | None:
    try:
        found = Path(path).expanduser()
        return found if found.exists() else None
    except (OSError, RuntimeError, ValueError):  # longer than a path may be, the home of nobody, a null byte
        return None
