"""What every format of checkpoint needs to be read: JSON, and errors told in one line."""

import json
from pathlib import Path

from bamctl.errors import BadInput


def read_json(path: Path) -> object:
    """The content of a JSON file.

    Raises:
        BadInput: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # no text, no JSON, or nested without end
        raise BadInput(f"{path} cannot be read as JSON ({one_line(error)})") from None


def one_line(error: BaseException) -> str:
    """What an error of a library says, shortened to a line's tail, behind a whole word."""
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) <= 200:
        return text
    head = text[:196]
    return f"{head.rpartition(' ')[0] or head} ..."
