"""A prompt in token space, put together from pieces, and whether its text is what these tokens say.

Tokens are stable where decoding and encoding gives them back. Inside a stretch of haystack that is known from
when the haystack was made; what is left to look at are the seams, each with the sentences on its two sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bamctl.tasks.tokenization import Ids, PromptTokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretch:
    """Tokens of which only the ends need to be looked at."""

    ids: Ids
    first: Ids
    """The sentence it begins with."""
    last: Ids
    """The sentence it ends with."""
    stable: bool
    """Whether it survives decoding and encoding, as far as it has more than one sentence."""


class Assembly:
    """The pieces of one prompt, in order. The tokenizer's `prefix` comes first by itself."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: list[Ids] = [np.array(tokenizer.prefix, dtype=np.int32)]
        self._length = len(tokenizer.prefix)
        self._windows: list[list[Ids]] = [[]]
        self._stable = True
        self._checked: bool | None = None
        self.needles: list[tuple[int, int]] = []
        """[start, end) of the needles so far, in tokens of the prompt."""

    def __len__(self) -> int:
        """Tokens so far."""
        return self._length

    def add(self, ids: Ids, *, needle: bool = False) -> None:
        """Adds a piece whose tokens are all to be looked at."""
        if needle:
            self.needles.append((self._length, self._length + len(ids)))
        self._windows[-1].append(ids)
        self._append(ids)

    def add_stretch(self, stretch: Stretch) -> None:
        """Adds a piece of which only the ends are to be looked at; nothing where it has no token."""
        if not len(stretch.ids):
            return
        self._windows[-1].append(stretch.first)
        if len(stretch.first) < len(stretch.ids):
            self._windows.append([stretch.last])
            self._stable &= stretch.stable
        self._append(stretch.ids)

    def token_ids(self) -> Ids:
        """The prompt, ``[length]``."""
        return np.concatenate(self._pieces)

    def is_stable(self) -> bool:
        """Whether encoding the decoded prompt would yield its tokens. Looked at once."""
        if self._checked is None:
            opening, *others = [_joined(window) for window in self._windows]
            self._checked = (
                self._stable
                and self._tokenizer.are_stable([opening], opening=True)[0]
                and all(self._tokenizer.are_stable(others))
            )
        return self._checked

    def _append(self, ids: Ids) -> None:
        self._checked = None
        self._pieces.append(ids)
        self._length += len(ids)


def _joined(pieces: Sequence[Ids]) -> Ids:
    return np.concatenate([np.empty(0, dtype=np.int32), *pieces])
