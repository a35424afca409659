"""The text that a recipe names: files, folders, and what every Python carries."""

import importlib
import inspect
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from bamctl.errors import BadInput

PYTHON_DOCS = "python-docs"

_DOCUMENTED_MODULES = """
    argparse asyncio collections concurrent.futures configparser contextlib copy csv ctypes datetime
    decimal difflib dis doctest email.message enum fractions functools heapq http.client inspect io
    json locale logging mailbox math multiprocessing optparse os pathlib pickle pickletools pydoc
    random re shutil smtplib socket statistics string subprocess tarfile tempfile textwrap threading
    tkinter traceback turtle types typing unittest unittest.mock urllib.request weakref
    xml.dom.minidom xml.etree.ElementTree zipfile
"""
"""Standard modules whose docstrings explain at length."""


def load_text(sources: Sequence[str], *, relative_to: Path) -> str:
    """All sources, one after the other, with blank lines between documents.

    Args:
        sources: text files, folders (every ``*.txt`` and ``*.md`` below), or `PYTHON_DOCS`.
        relative_to: the folder that relative paths start from.

    Raises:
        BadInput: a source that does not exist, holds no text, or is not UTF-8.
    """
    documents: list[str] = []
    for source in sources:
        if source == PYTHON_DOCS:
            documents += _python_docs()
            continue
        path = relative_to / Path(source).expanduser()
        files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md")) if path.is_dir() else [path]
        try:
            documents += [file.read_text(encoding="utf-8") for file in files]
        except OSError as error:
            raise BadInput(f"text {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise BadInput(f"text {path} is not UTF-8") from None
    text = "\n\n".join(_unwrapped(document) for document in documents)
    if len(text) < 10_000:
        raise BadInput(f"text {', '.join(sources)}: {len(text)} characters are too few to train on")
    return text


def _python_docs() -> list[str]:
    """The language reference's topics and the docstrings of well-documented standard modules."""
    from pydoc_data.topics import topics

    documents = list(topics.values())
    for name in _DOCUMENTED_MODULES.split():
        try:
            module = importlib.import_module(name)
        except ImportError:  # tkinter is often left out
            continue
        with warnings.catch_warnings(action="ignore"):  # looking at a deprecated name is no use of it
            documents += [doc for doc in _docstrings(module, name) if len(doc) > 80]
    return list(dict.fromkeys(documents))


def _docstrings(module: object, name: str) -> list[str]:
    found = [inspect.getdoc(module)]
    for _, member in inspect.getmembers(module):
        if getattr(member, "__module__", None) == name and (
            inspect.isclass(member) or inspect.isfunction(member)
        ):
            found.append(inspect.getdoc(member))
            if inspect.isclass(member):
                found += [
                    inspect.getdoc(method) for _, method in sorted(vars(member).items(), key=lambda x: x[0])
                ]
    return [doc for doc in found if doc]


def _unwrapped(document: str) -> str:
    """Paragraphs on one line each: line breaks inside a paragraph are the terminal's, not the text's."""
    paragraphs = re.split(r"\n\s*\n", document)
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
