"""The text that needles are hidden in: sentences, tokenised once, laid out to any length in tokens."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bamctl.errors import BadInput
from bamctl.tasks.cache import Arrays, cached, digest_of
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer

LONGEST_SENTENCE = 1000
"""Characters. A longer stretch without an end is broken, so that a needle finds a place near its depth."""

_VERSION = 1
"""Of what is kept on the disk: rises whenever the same text would give other sentences or tokens."""

_BLOCK = 16
"""Sentences that are checked at once for surviving decoding and encoding."""

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE_END = re.compile(
    r"""(?<=[.!?…])["'”’»)\]]*\s+"""  # an end, closing quotes and brackets, then space …
    r"|(?<=[。！？])(?![。！？])[”’」』）]*\s*"  # … or an end of Chinese or Japanese, which needs no space
)


def split_sentences(text: str) -> list[str]:
    """Splits running text into sentences, in order; white space within a sentence becomes single spaces.

    A sentence ends at a blank line; behind ``. ! ? …`` (and closing quotes or brackets) where white space
    follows and the next word does not start in lower case; and behind ``。！？``. A stretch of more than
    `LONGEST_SENTENCE` characters is broken at its last space before that, or without one just there.
    Abbreviations before a capital letter (``Mr. Smith``) end a sentence too. A byte order mark is dropped.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return [
        part
        for paragraph in _BLANK_LINE.split(text)
        for sentence in _sentences_of_paragraph(" ".join(paragraph.split()))
        for part in _broken(sentence)
    ]


def _sentences_of_paragraph(paragraph: str) -> list[str]:
    sentences = []
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        if not paragraph[match.end() : match.end() + 1].islower():
            sentences.append(paragraph[start : match.end()].rstrip())
            start = match.end()
    sentences.append(paragraph[start:])
    return [sentence for sentence in sentences if sentence]


def _broken(sentence: str) -> list[str]:
    parts = []
    start = 0
    while len(sentence) - start > LONGEST_SENTENCE:
        space = sentence.rfind(" ", start + 1, start + LONGEST_SENTENCE + 1)
        end = space if space > 0 else start + LONGEST_SENTENCE
        parts.append(sentence[start:end])
        start = end + (space > 0)
    return [*parts, sentence[start:]]


def read_text(path: Path) -> str:
    """Reads a haystack's text exactly: encoding it again gives the file's bytes.

    Raises:
        BadInput: there is no such file, it cannot be read, is not UTF-8, or holds nothing but white space.
    """
    try:
        text = path.expanduser().read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}; name a UTF-8 text file") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; name a UTF-8 text file") from None
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # unreadable, no home folder for ~, a NUL in the path
        raise BadInput(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not text.strip():
        raise BadInput(f"{path} is empty; name a UTF-8 text file with sentences in it")
    return text


@dataclass(frozen=True, kw_only=True, eq=False)
class Haystack:
    """Sentences as tokens, read over and over: sentence i lies at the tokens ends[i] … ends[i + 1].

    Sentence numbers and positions run on through the repeats: sentence `sentences` is the first one again.
    """

    token_ids: Ids
    """One run through the text."""
    ends: NDArray[np.int64]
    """[sentences + 1], ascending from 0 to len(token_ids)."""
    first_unstable: int | None
    """The first sentence that does not, together with the one behind it, survive decoding and encoding."""

    @classmethod
    def of(
        cls, sentences: Sequence[str], tokenizer: PromptTokenizer, *, behind: Sequence[str] = ANCHORS
    ) -> "Haystack":
        """Tokenises sentences. Those that leave no token are dropped.

        Args:
            sentences: each with the white space that joins it to its neighbours.
            tokenizer: whose tokens are wanted.
            behind: anchors, as `PromptTokenizer.continuations` takes them.

        Raises:
            BadInput: no sentence leaves a token, or one becomes a special token.
        """
        pieces = [piece.ids for piece in tokenizer.continuations(sentences, behind=behind)]
        pieces = [ids for ids in pieces if len(ids)]
        if not pieces:
            raise BadInput("the haystack's text leaves no token with this tokenizer; name another text file")
        return cls(
            token_ids=np.concatenate(pieces),
            ends=np.concatenate([[0], np.cumsum([len(ids) for ids in pieces])]).astype(np.int64),
            first_unstable=_first_unstable(pieces, tokenizer),
        )

    @classmethod
    def kept(
        cls,
        sentences: Callable[[], Sequence[str]],
        depends_on: Sequence[str],
        tokenizer: PromptTokenizer,
        *,
        behind: Sequence[str] = ANCHORS,
    ) -> "Haystack":
        """`of`, out of the cache on the disk where it has these sentences for this tokenizer.

        Args:
            sentences: makes them, where they are not there yet.
            depends_on: all that decides what `sentences` makes: names, versions, texts.
            tokenizer, behind: see `of`.
        """
        key = digest_of("haystack", str(_VERSION), tokenizer.digest, *behind, "", *depends_on)
        return cls.from_arrays(cached(key, lambda: cls.of(sentences(), tokenizer, behind=behind).arrays()))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Haystack":
        """The inverse of `arrays`."""
        unstable = int(arrays["first_unstable"])
        return cls(
            token_ids=arrays["token_ids"],
            ends=arrays["ends"],
            first_unstable=None if unstable < 0 else unstable,
        )

    def arrays(self) -> Arrays:
        """All of it, as what can be kept on the disk."""
        unstable = -1 if self.first_unstable is None else self.first_unstable
        return {"token_ids": self.token_ids, "ends": self.ends, "first_unstable": np.array(unstable)}

    @property
    def sentences(self) -> int:
        """Sentences in one run through the text."""
        return len(self.ends) - 1

    def start_of(self, sentence: int) -> int:
        """The position, in tokens, at which a sentence starts."""
        repeats, index = divmod(sentence, self.sentences)
        return repeats * len(self.token_ids) + int(self.ends[index])

    def sentence(self, sentence: int) -> Ids:
        """The tokens of a sentence."""
        index = sentence % self.sentences
        return self.token_ids[self.ends[index] : self.ends[index + 1]]

    def whole_sentences(self, tokens: float) -> int:
        """How many whole sentences fit into so many tokens."""
        repeats, rest = divmod(tokens, len(self.token_ids))
        return int(repeats) * self.sentences + int(np.searchsorted(self.ends, rest, side="right")) - 1

    def tokens(self, start: int, stop: int) -> Ids:
        """The tokens from one position on up to another."""
        run, begin = divmod(start, len(self.token_ids))
        end = stop - run * len(self.token_ids)
        if end <= len(self.token_ids):
            return self.token_ids[begin:end]
        runs, rest = divmod(end, len(self.token_ids))
        return np.concatenate([self.token_ids[begin:], *[self.token_ids] * (runs - 1), self.token_ids[:rest]])

    def first(self, sentences: int) -> Ids:
        """The tokens of so many sentences."""
        return self.tokens(0, self.start_of(sentences))

    def is_stable(self, sentences: int) -> bool:
        """Whether so many sentences in a row survive decoding and encoding, their seams included.

        The first and the last one only where they have a neighbour among them.
        """
        return self.first_unstable is None or sentences - 1 <= self.first_unstable


def laid_out(
    token_ids: Ids, ends: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[Ids, NDArray[np.int64]]:
    """Pieces of one array, in another order.

    Args:
        token_ids: of all pieces.
        ends: piece i lies at the tokens ends[i] … ends[i + 1].
        order: [n], which pieces, in which order.

    Returns:
        Their tokens, and the ends of the n pieces in them, ``[n + 1]`` from 0.
    """
    lengths = np.diff(ends)[order]
    new_ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(new_ends[-1]) - np.repeat(new_ends[:-1], lengths)
    return token_ids[np.repeat(ends[order], lengths) + within], new_ends


def _first_unstable(sentences: list[Ids], tokenizer: PromptTokenizer) -> int | None:
    """The first sentence that does not survive together with the next one; the first one follows the last."""
    around = [*sentences, sentences[0]]
    starts = range(0, len(sentences), _BLOCK)
    blocks = tokenizer.are_stable([np.concatenate(around[start : start + _BLOCK + 1]) for start in starts])
    if all(blocks):
        return None
    start = starts[blocks.index(False)]
    block = around[start : start + _BLOCK + 1]
    pairs = tokenizer.are_stable([np.concatenate(pair) for pair in itertools.pairwise(block)])
    # A block may fail where none of its pairs does: a token that spans three sentences.
    return start + (0 if all(pairs) else pairs.index(False))
