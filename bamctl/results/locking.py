"""Locks between processes: of a part of a run as long as it is written, of its folder for a moment.

They are the system's own (flock), so they end with the process that holds them, however it ends.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bamctl.errors import RunFailed
from bamctl.results.files import missing_folders, reason, remove_empty

if sys.platform != "win32":
    import fcntl

LOCK = "run.lock"
_ATTEMPTS = 10
"""Times that another process may remove a folder again that it had made, before it counts as an error."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[contextlib.ExitStack]:
    """Makes the folder where there is none, and keeps other processes waiting at this until the block ends.

    Yields:
        What is to be undone if the block raises: callbacks, called before others may go on. The lock's file
        and the folders go as well then, where they were made here and nothing else is in them.

    Raises:
        OSError: the folder cannot be made, or not written to.
    """
    made = missing_folders(folder)
    try:
        descriptor, new = _open_and_lock(folder)
        try:
            with contextlib.ExitStack() as undo:
                if new:
                    undo.callback(_remove, folder / LOCK)
                yield undo
                undo.pop_all()
        finally:
            os.close(descriptor)
    except BaseException:
        remove_empty(made)
        raise


def lock_part(descriptor: int, name: str) -> None:
    """Locks an open file, the journal of a part of a run, for this process until it is closed.

    Raises:
        RunFailed: another process has locked it; `name` says what.
    """
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFailed(f"{name} is open in another process; wait until that has ended") from None
    except OSError as error:  # some network file systems
        _log.warning("%s cannot be locked (%s); do not start it twice at once", name, reason(error))


def _open_and_lock(folder: Path) -> tuple[int, bool]:
    """The lock's descriptor, and whether its file was made here."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, new = _open(folder / LOCK)
        except FileNotFoundError:  # another process that failed to start has removed the folder meanwhile
            if attempt == _ATTEMPTS:
                raise
            continue
        try:
            _wait(descriptor)
            if os.fstat(descriptor).st_nlink:
                return descriptor, new
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # so it has removed the file that was waited for
    raise FileNotFoundError(f"{folder} is removed again and again")


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, flags), False


def _wait(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # where there are no locks, `lock_part` has said so
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
