"""Many small pieces of text (words, numbers, documents), tokenised once and laid out in any order.

A piece is stable where it survives decoding and encoding between two neighbours that look, at their edges, as
its neighbours in a prompt do. A prompt of stable pieces is then stable too with every tokenizer that splits a
text before it looks for tokens. Others may have tokens across an edge; `seams_stable` looks at the edges of a
prompt itself: at all of them, or at as many as are checked in a few milliseconds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bamctl.tasks.cache import Arrays, cached, digest_of
from bamctl.tasks.haystack import laid_out
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer

T = TypeVar("T")
Order = NDArray[np.int64]
Shuffle = Callable[[int], Order]
"""So many numbers from 0 on in an order of their own."""

_VERSION = 1
"""Of what is kept on the disk: rises whenever the same texts would give other arrays."""

_WINDOW = 24
"""Neighbouring pieces that are checked together."""

_WINDOWS = 48
"""Windows that are checked of one prompt at most."""

_CHUNK = 1024
"""Numbers that are tokenised together; later chunks are twice as long, each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Texts as tokens: piece i lies at the tokens ends[i] … ends[i + 1]."""

    token_ids: Ids
    ends: NDArray[np.int64]
    """[pieces + 1], ascending from 0."""
    stable: NDArray[np.bool_]
    """[pieces]: which of them survive decoding and encoding between their neighbours."""

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        tokenizer: PromptTokenizer,
        *,
        between: tuple[str, str],
        behind: Sequence[str] = ANCHORS,
    ) -> "Pieces":
        """Tokenises texts.

        Args:
            texts: each with the white space that joins it to what comes before.
            tokenizer: whose tokens are wanted.
            between: texts that stand for what comes before and behind each piece.
            behind: anchors, as `PromptTokenizer.continuations` takes them.

        Raises:
            BadInput: the tokenizer makes a special token of a single character in a text.
        """
        found = tokenizer.continuations(texts, behind=behind)
        before = tokenizer.continuations([between[0]])[0].ids
        after = tokenizer.continuations([between[1]], behind=behind)[0].ids
        windows = [np.concatenate([before, piece.ids, after]) for piece in found]
        return cls(
            token_ids=np.concatenate([np.empty(0, dtype=np.int32), *(piece.ids for piece in found)]),
            ends=np.concatenate([[0], np.cumsum([len(piece.ids) for piece in found])]).astype(np.int64),
            stable=_survive(windows, tokenizer) & np.array([piece.clean for piece in found], dtype=np.bool_),
        )

    @classmethod
    def kept(
        cls,
        texts: Callable[[], Sequence[str]],
        depends_on: Sequence[str],
        tokenizer: PromptTokenizer,
        *,
        between: tuple[str, str],
        behind: Sequence[str] = ANCHORS,
    ) -> "Pieces":
        """`of`, out of the cache on the disk where it has these texts for this tokenizer.

        Args:
            texts: makes them, where they are not there yet.
            depends_on: all that decides what `texts` makes.
            tokenizer, between, behind: see `of`.
        """
        key = digest_of("pieces", str(_VERSION), tokenizer.digest, *behind, "", *between, *depends_on)

        def made() -> Arrays:
            pieces = cls.of(texts(), tokenizer, between=between, behind=behind)
            return {"token_ids": pieces.token_ids, "ends": pieces.ends, "stable": pieces.stable}

        return cls(**cached(key, made))

    @classmethod
    def joined(cls, tables: Iterable["Pieces"]) -> "Pieces":
        """All pieces of several tables, in order."""
        all_of = list(tables)
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *(table.lengths for table in all_of)])
        return cls(
            token_ids=np.concatenate([np.empty(0, dtype=np.int32), *(table.token_ids for table in all_of)]),
            ends=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            stable=np.concatenate([np.empty(0, dtype=np.bool_), *(table.stable for table in all_of)]),
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.stable)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[pieces], in tokens."""
        return np.diff(self.ends)

    def piece(self, index: int) -> Ids:
        """The tokens of one piece."""
        return self.token_ids[self.ends[index] : self.ends[index + 1]]

    def laid_out(self, order: Order) -> tuple[Ids, NDArray[np.int64]]:
        """Pieces one behind the other; see `bamctl.tasks.haystack.laid_out`."""
        return laid_out(self.token_ids, self.ends, order)


class Numbered:
    """A text with a number in it, for every number from 0 on.

    Numbers are tokenised in chunks when they are first needed, and kept on the disk.
    """

    def __init__(
        self,
        text: str,
        tokenizer: PromptTokenizer,
        *,
        between: tuple[str, str],
        behind: Sequence[str] = ANCHORS,
    ) -> None:
        """Takes a text with {i} in it; for `between` and `behind` see `Pieces.of`."""
        self._text = text
        self._tokenizer = tokenizer
        self._between = between
        self._behind = behind
        self._pieces = Pieces.joined([])

    def below(self, count: int) -> Pieces:
        """At least the numbers 0 … count - 1; piece i is number i."""
        while len(self._pieces) < count:
            start = len(self._pieces)
            numbers = range(start, max(_CHUNK, 2 * start))
            chunk = Pieces.kept(
                lambda: [self._text.format(i=number) for number in numbers],  # noqa: B023 (called at once)
                ("numbered", self._text, str(numbers.start), str(numbers.stop)),
                self._tokenizer,
                between=self._between,
                behind=self._behind,
            )
            self._pieces = Pieces.joined([self._pieces, chunk])
        return self._pieces


def _survive(windows: list[Ids], tokenizer: PromptTokenizer) -> NDArray[np.bool_]:
    """Which windows survive decoding and encoding: several at once, one by one where those do not."""
    starts = range(0, len(windows), _WINDOW)
    blocks = [np.concatenate(windows[start : start + _WINDOW]) for start in starts]
    survive = np.repeat(np.array(tokenizer.are_stable(blocks), dtype=np.bool_), _WINDOW)[: len(windows)]
    left = np.flatnonzero(~survive)
    survive[left] = tokenizer.are_stable([windows[index] for index in left])
    return survive


def seeded_shuffle(rng: np.random.Generator) -> Shuffle:
    """So many numbers from 0 on in an order that is drawn now, whatever their count will be."""
    seed = int(rng.integers(2**63))
    return lambda count: np.random.default_rng(seed).permutation(count)


def seams_stable(ids: Ids, ends: NDArray[np.int64], tokenizer: PromptTokenizer) -> bool:
    """Whether stretches of pieces that lie one behind the other survive decoding and encoding.

    Of few pieces every seam is looked at, of many those in windows at even distances.

    Args:
        ids: the tokens.
        ends: of the pieces, ``[pieces + 1]`` from 0.
        tokenizer: which they belong to.
    """
    pieces = len(ends) - 1
    starts = range(0, max(1, pieces - 1), _WINDOW)
    if len(starts) > _WINDOWS:
        starts_at = np.linspace(0, starts[-1], _WINDOWS).astype(int)
    else:
        starts_at = np.array(starts)
    windows = [ids[ends[start] : ends[min(start + _WINDOW + 1, pieces)]] for start in starts_at]
    return all(tokenizer.are_stable(windows))


def first_stable(candidates: Iterable[tuple[T, Ids]], tokenizer: PromptTokenizer) -> tuple[T, bool]:
    """The first of some candidates that survives decoding and encoding, or the first one of all.

    Args:
        candidates: each with the stretch of tokens to look at, one at least.
        tokenizer: which the tokens belong to.

    Returns:
        The candidate, and whether it survives.
    """
    first: T | None = None
    for candidate, window in candidates:
        if tokenizer.are_stable([window])[0]:
            return candidate, True
        first = candidate if first is None else first
    assert first is not None
    return first, False
