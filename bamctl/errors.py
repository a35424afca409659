"""The two ways a command may end badly, and their exit codes.

Both carry one line that says what is wrong, where, and what would be right. The command line prints
that line on stderr; nothing of ours lets a traceback reach a user for a mistake of the user's.
"""

import difflib
from collections.abc import Iterable, Iterator


class BamctlError(Exception):
    """An error that is told to the user in one line."""

    exit_code = 1


class BadInput(BamctlError):
    """What was asked for cannot be done as asked: exit 2, nothing was written."""

    exit_code = 2


class NotInstalled(BadInput):
    """Something that is not installed is asked for; the message says how to install it."""


class RunFailed(BamctlError):
    """A run failed on its way: exit 1, what was finished is kept."""

    exit_code = 1


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from, each once."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__


def torchvision_in_the_way(error: BaseException) -> str | None:
    """One line where an import failed as torchvision is built for another torch; None where it did not.

    transformers imports torchvision wherever it is installed, though nothing here uses it.
    """
    if not any("torchvision::nms does not exist" in str(cause) for cause in causes(error)):
        return None
    return (
        "torchvision is built for another torch, and nothing here needs it:"
        " pip uninstall -y torchvision torchaudio torchcodec mends it"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name.

    Returns `` (did you mean NAME?)`` where a known name is close to `word`, else the list of known
    names as `` (known: A, B)``; empty where nothing is known.
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]}?)"
    return f" (known: {', '.join(names)})" if names else ""
