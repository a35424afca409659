"""What one sample asks: token ids, where its needles lie, and what must be answered."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompt:
    """One prompt in token space, as a backend is to see it: nothing is added, nothing is cut off.

    All positions count tokens from 0 at the start of `token_ids`, special tokens included.
    """

    token_ids: NDArray[np.int32]
    """[length], the tokenizer's leading special tokens included."""
    references: tuple[str, ...]
    """What must be answered, as text: ``("12345",)``."""
    answer_ids: tuple[tuple[int, ...], ...]
    """Each reference as the tokens that continue this prompt, its leading space included."""
    needle_spans: tuple[tuple[int, int], ...]
    """[start, end) of each needle, in tokens, ascending."""
    depths: tuple[float, ...]
    """The depth asked for each needle: 0 (start of the haystack) to 100 (its end)."""
    shared_prefix: int
    """Tokens before the first needle. Every other sample of this task and length whose needles have the
    same number of tokens has these tokens too, up to its own first needle."""
    haystack_repeats: int
    """How often the text of the haystack had to start again; 0 where it is used at most once, and for
    garbage, which repeats by definition."""
    roundtrip_stable: bool
    """Whether text and tokens say the same: True only where encoding the decoded prompt yields these ids."""
    tokens_to_generate: int
    """How many tokens a backend may generate for the answer."""
    chat_prefix: str | None = None
    """What the tokenizer's chat template puts before the question, as text; None where none is applied."""

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the token ids as little-endian 32-bit integers."""
        return hashlib.sha256(self.token_ids.astype("<i4").tobytes()).hexdigest()
