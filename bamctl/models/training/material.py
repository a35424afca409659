"""What training examples are made of: text, garbage, words, numbers and sentences that nobody asks about."""

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bamctl.errors import BadInput
from bamctl.models.training.recipe import DataRecipe
from bamctl.tasks.catalog import load_spec
from bamctl.tasks.haystack import split_sentences
from bamctl.tasks.passkey import PasskeySpec
from bamctl.tasks.spec import TaskSpec
from bamctl.tasks.tokenization import PromptTokenizer

Ids = NDArray[np.int64]

MOST_DISTRACTORS = 6
"""In one haystack."""


class Material:
    """A recipe's text in tokens, and what is drawn beside it.

    Args:
        data: the recipe's part on data.
        tokenizer: the recipe's own.
        text: the recipe's text.
    """

    def __init__(self, data: DataRecipe, tokenizer: PromptTokenizer, text: str) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.text = self.joined([f" {sentence}" for sentence in split_sentences(text)])
        self.garbage = self.joined([f" {sentence}" for sentence in passkey_spec("passkey").garbage])
        self.words = np.array(sorted(set(re.findall(r"\b[a-z]{3,10}\b", text))))

    def pieces(self, texts: Sequence[str]) -> list[Ids]:
        """The tokens of texts that continue a prompt."""
        return [piece.ids.astype(np.int64) for piece in self.tokenizer.continuations(texts)]

    def joined(self, texts: Sequence[str]) -> Ids:
        """`pieces`, one behind the other."""
        return np.concatenate(self.pieces(texts))

    def stretch(self, source: Ids, tokens: int, rng: np.random.Generator) -> Ids:
        """`tokens` consecutive tokens of `source` from a random place, starting over at its end."""
        start = int(rng.integers(len(source)))
        return np.take(source, np.arange(start, start + tokens), mode="wrap")

    def number(self, digits: tuple[int, int], rng: np.random.Generator) -> str:
        """A number of so many digits, some of them of two different ones only."""
        count = int(rng.integers(digits[0], digits[1] + 1))
        alphabet = np.arange(10)
        if rng.random() < self.data.few_digits_share:
            alphabet = rng.choice(10, size=2, replace=False)
        return "".join(str(digit) for digit in rng.choice(alphabet, size=count))

    def distractors(self, rng: np.random.Generator) -> list[str]:
        """Sentences for one haystack, each behind a space; often none."""
        templates = self.data.distractors
        if not templates or rng.random() >= self.data.distractor_share:
            return []
        return [
            " "
            + str(rng.choice(templates))
            .replace("{word}", str(rng.choice(self.words)))
            .replace("{number}", self.number((1, 10), rng))
            for _ in range(rng.integers(1, MOST_DISTRACTORS + 1))
        ]


Spec = TypeVar("Spec", bound=TaskSpec)


def spec_of_kind(kind: type[Spec], word: str, task: str) -> Spec:
    """The task of this name, for the recipe's examples of that kind, which errors call by `word`.

    Raises:
        BadInput: there is no such task, or it is of another kind.
    """
    spec = load_spec(task)
    if not isinstance(spec, kind):
        raise BadInput(f"the recipe's {word} examples need a {word} task, and {task} is none")
    return spec


def passkey_spec(task: str) -> PasskeySpec:
    """The passkey task of this name; see `spec_of_kind`."""
    return spec_of_kind(PasskeySpec, "passkey", task)
