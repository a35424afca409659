"""Arrays that take long to make, kept on the disk from one run to the next.

An entry is named by the digest of all that it depends on, so it is never out of date. It is written aside and
moved into place, so that runs at the same time see all of it or nothing; two that make the same entry at once
write the same bytes. A cache that cannot be read or written costs time and nothing else.
"""

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = "BAMCTL_CACHE"
"""The environment variable that names the folder; empty: nothing is kept."""

Arrays = Mapping[str, NDArray[Any]]
_log = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Where entries lie; None where nothing is to be kept."""
    named = os.environ.get(FOLDER)
    try:
        if named is not None:
            return Path(named).expanduser() if named else None
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "bamctl"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bamctl"
    except RuntimeError:  # there is no home folder, or no user of that name
        return None


def digest_of(*parts: str) -> str:
    """The name of an entry that depends on these strings, in this order."""
    hashed = hashlib.sha256()
    for part in parts:
        text = part.encode("utf-8", "surrogatepass")
        hashed.update(len(text).to_bytes(8, "little") + text)
    return hashed.hexdigest()


def cached(key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays of an entry, made where the cache does not have them.

    Args:
        key: what `digest_of` says of all that `make` depends on, its code's version included.
        make: computes the arrays, none of them of objects.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    path = folder / f"{key}.npz"
    with contextlib.suppress(FileNotFoundError):
        try:
            with np.load(path, allow_pickle=False) as entry:
                return {name: entry[name] for name in entry.files}
        except FileNotFoundError:
            raise
        except Exception as error:  # zipfile, zlib, numpy and the system each have their own
            _log.debug("%s: made again (%s)", path, error)
    arrays = make()
    try:
        _write(path, arrays)
    except OSError as error:
        _log.debug("%s: not kept (%s)", path, error)
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as aside:
        try:
            np.savez(aside, allow_pickle=False, **arrays)
            aside.close()
            Path(aside.name).replace(path)
        except BaseException:
            aside.close()
            Path(aside.name).unlink(missing_ok=True)
            raise
