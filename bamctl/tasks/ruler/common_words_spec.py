"""The definition of common words, what chance decides of a sample, and lists as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from bamctl.errors import BadInput
from bamctl.tasks.ruler.pieces import Order, Shuffle
from bamctl.tasks.ruler.spec import RulerSpec, check_formats, format_around
from bamctl.tasks.ruler.words import word_list


class CommonWordsSpec(RulerSpec):
    """A numbered list of words, the most common ones of which are asked for."""

    task: Literal["common_words_extraction"]
    freq_cw: Annotated[int, Field(ge=1, le=10_000)] = 30
    """How often each common word stands in the list."""
    freq_ucw: Annotated[int, Field(ge=1, le=10_000)] = 3
    """How often every other word stands in it."""
    num_cw: Annotated[int, Field(ge=1, le=1000)] = 10
    """Common words."""

    @model_validator(mode="after")
    def _is_answerable(self) -> "CommonWordsSpec":
        if self.freq_cw <= self.freq_ucw:
            raise BadInput(
                f"freq_cw: must be above freq_ucw ({self.freq_ucw}), but is {self.freq_cw}: the common words"
                " would not be the most common ones"
            )
        check_formats(self.around, "{context}")
        return self

    def around(self) -> tuple[str, str, str]:
        """The texts before and behind the list, and the beginning of the answer."""
        return format_around(self.template, self.answer_prefix, query="")

    @property
    def short(self) -> "ListSize":
        """RULER's sizes below 4096 tokens."""
        return ListSize(
            often=6, seldom=1, common=self.num_cw, example_words=20, example_often=3, example_seldom=1
        )

    @property
    def long(self) -> "ListSize":
        """RULER's sizes from 4096 tokens on."""
        return ListSize(
            often=self.freq_cw,
            seldom=self.freq_ucw,
            common=self.num_cw,
            example_words=40,
            example_often=10,
            example_seldom=3,
        )


@dataclass(frozen=True, kw_only=True)
class ListSize:
    """How often words stand in a list, and in the example before it."""

    common: int
    """Common words."""
    often: int
    seldom: int
    example_words: int
    """Different words of the example, the common ones first, as many as in the list if there are so many."""
    example_often: int
    example_seldom: int


@dataclass(frozen=True, kw_only=True)
class CommonWordsDraw:
    """What chance decides of a sample. Words are numbered as in `list_words`."""

    words: Order
    """All words, in the order in which they are used: the common ones first."""
    pairs: tuple[int, int]
    """The first pair of an adjective and a noun behind them, and the step from one to the next."""
    shuffled: Shuffle
    """So many entries in the order of the list."""
    example: Order
    """All words, in the order in which the example uses them."""
    example_shuffled: Shuffle


@cache
def list_words() -> tuple[str, ...]:
    """RULER's words: the nouns, adjectives and verbs of wonderwords, each once, sorted."""
    return tuple(sorted({word for kind in ("noun", "adjective", "verb") for word in word_list(kind)}))


@cache
def pair_words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The adjectives and the nouns of pairs, such that no `adjective-noun` is in `list_words`."""
    taken = {word.split("-")[0] for word in list_words() if "-" in word}
    adjectives = tuple(word for word in sorted(set(word_list("adjective"))) if word not in taken)
    return adjectives, tuple(sorted(set(word_list("noun"))))


def entries(words: Order, common: int, often: int, seldom: int) -> Order:
    """A list before it is shuffled: the first `common` words `often`, the others `seldom`."""
    return np.concatenate([np.tile(words[:common], often), np.tile(words[common:], seldom)])


def numbered(words: Sequence[str]) -> str:
    """``1. apple 2. pear``."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def opening_text(spec: CommonWordsSpec, size: ListSize, drawn: CommonWordsDraw) -> str:
    """The solved example, and the template up to the list.

    As in RULER, nothing stands between the beginning of the example's answer and the answer.
    """
    names = list_words()
    words = drawn.example[: size.example_words]
    listed = entries(words, size.common, size.example_often, size.example_seldom)
    before, behind, answer_prefix = spec.around()
    example = numbered([names[word] for word in listed[drawn.example_shuffled(len(listed))]])
    answer = numbered([names[word] for word in words[: size.common]])
    return f"{before}{example}{behind}{answer_prefix}{answer}\n{before}"
