"""Writing files so that a reader, or the next start after a crash, finds the old one or the new one."""

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from bamctl.errors import BadInput


def replace_file(path: Path, write: Callable[[Path], None], *, by: str = "") -> None:
    """Has `write` fill a file beside `path`, brings it to the disk, and puts it in `path`'s place.

    Args:
        path: the file.
        write: writes its new content to the path that it is given.
        by: who writes, so that several who do it at once do not write to one file beside it.

    Raises:
        OSError: from any of these steps; `path` is the old file or the new one, whole.
    """
    aside = path.with_name(f"{path.name}{by and f'.{by}'}.writing")
    try:
        write(aside)
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)  # noqa: PTH105 - the tests put their fault points here
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Brings a folder's entries to the disk, where the system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """`os.write` until all is written: a single call may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def move_aside(path: Path, mark: str) -> Path:
    """Renames a file to its name with `mark` behind it, or with ``mark-2``, ``mark-3``, … where there is one.

    Returns:
        Its new path.

    Raises:
        OSError: it cannot be renamed.
    """
    names = (f"{path.name}.{mark}{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
    aside = next(new for new in map(path.with_name, names) if not os.path.lexists(new))
    path.rename(aside)
    return aside


def check_out(folder: Path) -> None:
    """Whether results can be written there, as far as that can be told without writing: before long work.

    Raises:
        BadInput: it is no folder, or lies in what is none, or must not be written to.
    """
    standing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        why = "" if os.access(standing, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
        if not standing.is_dir():
            why = f"{standing} is no folder"
    except OSError as error:
        why = reason(error)
    if why:
        raise BadInput(f"{folder}: results cannot be written there ({why}); name another folder with --out")


def missing_folders(folder: Path) -> list[Path]:
    """`folder` and its parents as far as they do not exist, the innermost first."""
    return [path for path in (folder, *folder.parents) if not os.path.lexists(path)]


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of the folders that exist and are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def path_safe(name: str) -> str:
    """A name as one part of a path on any system: at most 80 of letters, digits and ``._+-``."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:80] or "unnamed"


def reason(error: Exception) -> str:
    """What an error of the system says, in one line and without the path."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")
