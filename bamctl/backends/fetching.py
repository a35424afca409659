"""A name on the Hugging Face hub → a folder of huggingface_hub's cache; and what is no such name."""

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

from bamctl.errors import BadInput, causes, did_you_mean
from bamctl.models.loading import no_progress_bar
from bamctl.models.naming import find_path, is_checkpoint, model_folders
from bamctl.models.reading import one_line

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
"""What is fetched of a model to check it; weights follow when it is to run."""


def find_folder(name: str) -> Path | None:
    """The folder of this name or path; None where there is none."""
    try:
        path = find_path(name)
    except BadInput:
        return None
    return path if path.is_dir() else None


def is_hub_name(name: str) -> bool:
    """Whether a name can only be one of the hub's: ``org/name``, and ``org`` is no folder here."""
    return bool(HUB_NAME.fullmatch(name)) and find_folder(name) is None and not _is_folder(name.split("/")[0])


def refuse_path(name: str) -> None:
    """Refuses a path that leads to no folder, though what stands before its last part is one.

    Raises:
        BadInput: so it is; the line tells what else is there. The hub is not asked for such a name.
    """
    parent, _, last = name.rstrip("/").rpartition("/")
    if not parent or not _is_folder(parent):
        return
    try:
        path = find_path(name)
    except BadInput:
        beside = [path.name for path in Path(parent).expanduser().glob("*") if is_checkpoint(path)]
        raise BadInput(f"there is no model {last!r} in {parent}{did_you_mean(last, beside)}") from None
    if not path.is_dir():
        raise BadInput(f"{path} is no checkpoint: it is a file")


def fetch_snapshot(name: str, patterns: list[str], *, watched: bool = False) -> Path:
    """The folder of huggingface_hub's cache that holds these files of a model, fetched where they lack.

    Args:
        name: of the model.
        patterns: of its files.
        watched: whether a terminal shows how far that is.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        with quiet(), contextlib.nullcontext() if watched and sys.stderr.isatty() else no_progress_bar():
            return Path(snapshot_download(name, allow_patterns=patterns))
    except HFValidationError:
        raise BadInput(f"there is no model {name!r}{did_you_mean(name, model_folders())}") from None
    except Exception as error:  # of the network, of the hub, or of the cache
        if hasattr(error, "snapshot_path"):  # IncompleteSnapshotError, which older versions do not have
            raise BadInput(
                f"{name}: a part of it is in the local Hugging Face cache, and {_why_not_fetched(error)}"
            ) from None
        near = did_you_mean(name.rpartition("/")[2], model_folders())
        raise BadInput(
            f"there is no model {name!r}: neither a folder nor in the local Hugging Face cache, and"
            f" {_why_not_fetched(error)}{near if near.startswith(' (did') else ''}"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps libraries from telling on stderr what they find amiss; what matters is told in a line here."""
    levels = [(log, log.get_verbosity()) for log in (logging, hub_logging)]
    for log, _ in levels:
        log.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels:
            log.set_verbosity(level)


def _is_folder(path: str) -> bool:
    try:
        return Path(path).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # as no path can be, or the home of nobody
        return False


def _why_not_fetched(error: BaseException) -> str:
    """What kept the hub from giving a model; an error of the network lies within the one that is raised."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    within = list(causes(error))
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in within):
        return "the hub was not asked, as HF_HUB_OFFLINE is set"
    answer = next((cause for cause in within if isinstance(cause, HfHubHTTPError)), None)
    if isinstance(answer, RepositoryNotFoundError) and not isinstance(answer, GatedRepoError):
        return "the hub has none, unless it is private: then `hf auth login`"
    if answer is not None and answer.response.status_code in (401, 403):
        return "the hub gives it only to those it was granted to: ask on its page there, then `hf auth login`"
    if answer is not None:
        return f"the hub answered with status {answer.response.status_code}"
    if any(
        isinstance(cause, (LocalEntryNotFoundError, ConnectionError, TimeoutError))
        or type(cause).__module__.partition(".")[0].startswith("httpx")  # whichever of the two is in use
        for cause in within
    ):
        return "the hub could not be reached"
    return f"it could not be fetched ({one_line(error).partition('. ')[0]})"
