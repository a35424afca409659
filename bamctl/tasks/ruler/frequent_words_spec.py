"""The definition of frequent words, and how often each word occurs."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from bamctl.tasks.ruler.spec import NonEmpty, RulerSpec, check_formats, format_around

ASKED = 3
"""Words that are asked for: those of ranks 2, 3 and 4, behind the noise."""

LENGTH_PER_WORD = 50
"""Tokens of a length for each different word, where the definition does not say how many there are."""


class FrequentWordsSpec(RulerSpec):
    """Coded words whose counts follow a zeta distribution; the most frequent ones are asked for."""

    task: Literal["freq_words_extraction"]
    alpha: Annotated[float, Field(gt=1, le=10)] = 2.0
    """The word of rank k has a share of k^-alpha / zeta(alpha)."""
    coded_wordlen: Annotated[int, Field(ge=4, le=100)] = 6
    """Letters of a word."""
    vocab_size: int = -1
    """Different words at most, the noise among them; -1: a fiftieth of the length in tokens."""
    noise: NonEmpty = "..."
    """Stands for the most frequent word."""

    @field_validator("vocab_size")
    @classmethod
    def _has_what_is_asked_for(cls, words: int) -> int:
        if words <= ASKED and words != -1:
            raise ValueError(f"must be {ASKED + 1} or more, or -1, but is {words}")
        return words

    @field_validator("noise")
    @classmethod
    def _is_one_word(cls, noise: str) -> str:
        if noise.split() != [noise]:
            raise ValueError(f"must be one word, but is {noise!r}")
        return noise

    @model_validator(mode="after")
    def _formats(self) -> "FrequentWordsSpec":
        check_formats(self.around, "{context}")
        return self

    def around(self) -> tuple[str, str, str]:
        """The texts before and behind the words, and the beginning of the answer."""
        return format_around(self.template, self.answer_prefix, query="")

    def vocabulary(self, length: int) -> int:
        """Different words at most, at a length that counts the tokens that may be generated too."""
        return length // LENGTH_PER_WORD if self.vocab_size == -1 else self.vocab_size

    def counts(self, words: int, ranks: int) -> NDArray[np.int64]:
        """[ranks]: how often the word of each rank occurs in so many words, rounded down as RULER does.

        Together they are fewer.
        """
        shares = np.arange(1, ranks + 1) ** -self.alpha
        return (words * shares / zeta(self.alpha)).astype(np.int64)

    def highest_rank(self, words: int) -> int:
        """A rank such that words of higher ranks never occur in so many words."""
        return int((words / zeta(self.alpha)) ** (1 / self.alpha)) + 1

    @property
    def fewest_words(self) -> int:
        """The smallest number of words whose `counts` have an answer: the last word asked for occurs once."""
        number = int(zeta(self.alpha) * (ASKED + 1) ** self.alpha)
        while not is_answerable(self.counts(number, ASKED + 2)):
            number += 1
        return number


def is_answerable(counts: NDArray[np.int64]) -> bool:
    """Whether the words that are asked for occur, and more often than all that are not."""
    return len(counts) > ASKED and bool(counts[ASKED] > counts[ASKED + 1 :].max(initial=0))


def zeta(alpha: float) -> float:
    """Riemann's zeta function for alpha > 1, to the precision of a float: Euler and Maclaurin's formula."""
    terms = 20.0
    total = float((np.arange(1, terms) ** -alpha).sum())
    total += terms ** (1 - alpha) / (alpha - 1) + terms**-alpha / 2
    term: float = alpha * terms ** (-alpha - 1) / 12
    total += term
    for factor, first in ((-1 / 60, 1), (-1 / 42, 3), (-1 / 40, 5)):
        term *= factor * (alpha + first) * (alpha + first + 1) / terms**2
        total += term
    return float(total)
