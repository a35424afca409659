"""A text, and the stretches of it that models predict: the same tokens for every model of a tokenizer."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bamctl.errors import BadInput
from bamctl.lengths import format_length
from bamctl.tasks.haystack import read_text
from bamctl.tasks.ruler.corpora import RULER, read_essays
from bamctl.tasks.tokenization import PromptTokenizer

MOST_SAMPLES = 10
"""Stretches where nobody says how many, if the text has as many."""

_PIECE = 1_000_000
"""Characters that are tokenised at once: what a tokenizer keeps of each token takes more than its id."""

_SEAM = re.compile(r"(?<=\S) (?=\S)")
"""Where a text may be cut for that: every tokenizer begins a token with a single space before a word."""

_NAMED = 3
"""Sources that are named; of more the number is told."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """What is to be predicted, as it was read."""

    name: str
    """For people: the names of the files and folders it is from."""
    content: str

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()


def read_texts(sources: Sequence[str]) -> Text:
    """Reads texts, one after the other with a blank line between.

    Args:
        sources: paths of UTF-8 text files, of folders, whose ``*.txt`` and ``*.md`` files at any depth are
            taken in the order of their paths, or of JSON files with the field ``text``; or ``ruler`` for
            RULER's essays. The latter two are read as RULER reads them, every white space a single space.

    Raises:
        BadInput: one of them does not exist, is not UTF-8 or holds nothing; NotInstalled: RULER's essays.
    """
    documents: list[str] = []
    names: list[str] = []
    for source in sources:
        path = Path(source)
        if source == RULER or path.suffix == ".json":
            documents.append(read_essays(source))
        elif path.is_dir():
            files = sorted(
                file for file in path.rglob("*") if file.suffix in (".txt", ".md") and file.is_file()
            )
            if not files:
                raise BadInput(f"{path} holds no *.txt or *.md file; name a text file or a folder of them")
            documents += [read_text(file).removeprefix("\ufeff") for file in files]
        else:
            documents.append(read_text(path).removeprefix("\ufeff"))
        names.append(source if source == RULER else path.resolve().name)
    more = f"+{len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return Text(name="+".join(names[:_NAMED]) + more, content="\n\n".join(documents))


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretches:
    """Parts of one text as one tokenizer has them, none of which overlap.

    S stretches of N tokens, of which the first `prefix` are what the tokenizer puts before any text (BOS).
    """

    text: str
    """The text's name."""
    digest: str
    """Of the text and of how it is cut; the tokenizer does not count."""
    token_ids: NDArray[np.int32]
    """``[S, N]``."""
    prefix: int
    tokenizer_digest: str

    @property
    def samples(self) -> int:
        """S."""
        return int(self.token_ids.shape[0])

    @property
    def length(self) -> int:
        """N."""
        return int(self.token_ids.shape[1])

    @property
    def first_scored(self) -> int:
        """The first position that is predicted: of the prefix none is, nor is what has nothing before it."""
        return max(1, self.prefix)


def cut_stretches(text: Text, tokenizer: PromptTokenizer, *, length: int, samples: int | None) -> Stretches:
    """Cuts a text into as many parts as there are samples, and takes the middle of each.

    Args:
        text: what to cut.
        tokenizer: whose tokens count.
        length: tokens of each stretch, its prefix included.
        samples: how many; None for as many as there are, at most `MOST_SAMPLES`.

    Raises:
        BadInput: `length` leaves nothing to predict, or the text has too few tokens.
    """
    prefix = len(tokenizer.prefix)
    shortest = max(1, prefix) + 1
    if length < shortest:
        raise BadInput(f"a stretch of {length} tokens has nothing to predict; the shortest has {shortest}")
    ids = _tokenise(text.content, tokenizer)
    wanted = length - prefix
    fitting = len(ids) // wanted
    if fitting < (samples or 1):
        raise BadInput(_too_short(text, len(ids), prefix, length=length, samples=samples or 1))
    if samples is None:
        samples = min(fitting, MOST_SAMPLES)
    part = len(ids) // samples
    starts = [number * len(ids) // samples + (part - wanted) // 2 for number in range(samples)]
    head = np.array(tokenizer.prefix, dtype=np.int32)
    cut = [text.digest, length, samples]
    return Stretches(
        text=text.name,
        digest=hashlib.sha256(json.dumps(cut).encode()).hexdigest(),
        token_ids=np.stack([np.concatenate([head, ids[start : start + wanted]]) for start in starts]),
        prefix=prefix,
        tokenizer_digest=tokenizer.digest,
    )


def _too_short(text: Text, tokens: int, prefix: int, *, length: int, samples: int) -> str:
    has = f"{text.name} has {tokens} tokens"
    fitting = tokens // (length - prefix)
    shorter = tokens // samples + prefix
    if not fitting:
        return (
            f"{has}, too few for --max-len {format_length(length)}; name more text, or a --max-len of at most"
            f" {tokens + prefix}"
        )
    return (
        f"{has}, enough for {fitting} stretches of {format_length(length)} that do not overlap, not for"
        f" {samples}; name more text, lower --samples to {fitting}, or --max-len to {shorter}"
    )


def _tokenise(content: str, tokenizer: PromptTokenizer) -> NDArray[np.int32]:
    """The text's tokens, as those of the inside of a longer text."""
    pieces = []
    start = 0
    while start < len(content):
        seam = _SEAM.search(content, start + _PIECE)
        end = len(content) if seam is None else seam.start()
        pieces.append(tokenizer.continuations([content[start:end]])[0].ids)
        start = end
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
