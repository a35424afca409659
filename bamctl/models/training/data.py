"""Training examples, made on the fly in token space.

Every batch is a function of the recipe's seed, the step and the rank alone, so that a training that was
killed goes on with the very examples it would have seen.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.models.training.material import Ids, Material, passkey_spec
from bamctl.models.training.needles import NeedleExamples
from bamctl.models.training.recipe import (
    CopyExamples,
    Examples,
    LookupExamples,
    NiahExamples,
    PasskeyExamples,
    Recipe,
    StreamExamples,
)
from bamctl.tasks.tokenization import PromptTokenizer

_NO_IDS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples of one length L.

    `is_answer` marks tokens that a question asked for, their end of sequence included.
    """

    ids: Ids
    """[B, L]"""
    is_answer: NDArray[np.bool_]
    """[B, L]"""


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """The words of an example, before they have tokens or the example a length."""

    opening: Ids
    needles: list[str]
    question: str
    answer: str
    distractors: list[str]

    @property
    def texts(self) -> list[str]:
        """Everything that is to be tokenised, in the order in which `_filled` takes it back."""
        return [*self.needles, *self.distractors, self.question, self.answer]


class ExampleSource:
    """Draws batches for one recipe.

    Args:
        recipe: what to draw.
        tokenizer: the recipe's own.
        text: the recipe's text.
        eos_token_id: ends every answer.
    """

    def __init__(self, recipe: Recipe, tokenizer: PromptTokenizer, text: str, eos_token_id: int) -> None:
        self.recipe = recipe
        self.eos = np.array([eos_token_id])
        self.bos = np.array(tokenizer.prefix, dtype=np.int64)
        self.material = Material(recipe.data, tokenizer, text)
        self.needles = NeedleExamples(recipe, tokenizer, self.material, eos_token_id)
        self.passkeys = {
            examples.task: passkey_spec(examples.task)
            for examples in recipe.data.examples
            if isinstance(examples, PasskeyExamples)
        }
        self.openings = {
            task: tokenizer.opening(spec.description).astype(np.int64) for task, spec in self.passkeys.items()
        }
        weights = np.array([examples.weight for examples in recipe.data.examples])
        self.shares = weights / weights.sum()

    def batch(self, step: int, *, rank: int, ranks: int) -> Batch:
        """The batch of one step and rank: about ``tokens_per_step / ranks`` tokens, all of one length."""
        rng = np.random.default_rng([self.recipe.seed, step, rank])
        fraction = step / self.recipe.optimiser.steps
        stage = next(stage for stage in self.recipe.stages if fraction < stage.until)
        shared = np.random.default_rng([self.recipe.seed, step])  # the same length on every rank
        length = int(shared.integers(stage.lengths[0], stage.lengths[1] + 1))
        count = max(1, self.recipe.optimiser.tokens_per_step // ranks // length)
        kinds = [self.recipe.data.examples[k] for k in rng.choice(len(self.shares), count, p=self.shares)]
        drafts = [self._draft(kind, rng) for kind in kinds]
        # One call of the tokenizer a batch: a call costs more than the few tokens of a sentence.
        pieces = iter(self.material.pieces([text for draft in drafts if draft for text in draft.texts]))
        rows = []
        for kind, draft in zip(kinds, drafts, strict=True):
            row = None
            if draft is not None:
                row = self._filled(draft, [next(pieces) for _ in draft.texts], length, rng)
            elif isinstance(kind, CopyExamples):
                row = self._copy(length, rng)
            elif isinstance(kind, NiahExamples):
                row = self.needles.prompt(kind, length, rng)
            elif isinstance(kind, StreamExamples):
                row = self.needles.stream(kind.task, length, rng, values=kind.values, queries=kind.queries)
            rows.append(self._plain(length, rng) if row is None else row)
        return Batch(
            ids=np.stack([ids for ids, _ in rows]), is_answer=np.stack([is_answer for _, is_answer in rows])
        )

    def _draft(self, kind: Examples, rng: np.random.Generator) -> _Draft | None:
        """The words of a question, or None for a kind that asks for nothing."""
        if isinstance(kind, PasskeyExamples):
            spec = self.passkeys[kind.task]
            number = self.material.number(kind.digits, rng)
            return _Draft(
                opening=self.openings[kind.task],
                needles=[" " + spec.information.replace("{key}", number)],
                question=" " + spec.question,
                answer=f" {number}",
                distractors=self.material.distractors(rng),
            )
        if isinstance(kind, LookupExamples):
            count = rng.integers(kind.keys[0], kind.keys[1] + 1)
            keys = [str(key) for key in rng.choice(self.material.words, size=count, replace=False)]
            values = [self.material.number(kind.digits, rng) for _ in keys]
            return _Draft(
                opening=_NO_IDS,
                needles=[
                    " " + kind.needle.replace("{key}", key).replace("{value}", value)
                    for key, value in zip(keys, values, strict=True)
                ],
                question=" " + kind.question.replace("{key}", keys[0]),
                answer=f" {values[0]}",
                distractors=self.material.distractors(rng),
            )
        return None

    def _filled(
        self, draft: _Draft, pieces: list[Ids], length: int, rng: np.random.Generator
    ) -> tuple[Ids, NDArray[np.bool_]] | None:
        """The example at exactly `length` tokens, or None where what must be in it is longer.

        The opening gives way where there is no room for it, and distractors where they would take more
        than a quarter of the haystack.
        """
        needles, distractors = pieces[: len(draft.needles)], pieces[len(draft.needles) : -2]
        ending = np.concatenate([*pieces[-2:], self.eos])
        budget = length - len(self.bos) - len(ending) - sum(len(ids) for ids in needles)
        if budget < 0:
            return None
        opening = self.bos
        if len(draft.opening) <= budget:
            opening = np.concatenate([self.bos, draft.opening])
            budget -= len(draft.opening)
        fitting = np.cumsum([len(ids) for ids in distractors]) <= budget // 4
        inserted = [*needles, *itertools.compress(distractors, fitting)]
        budget -= sum(len(ids) for ids in inserted[len(needles) :])
        source = self.material.garbage if rng.random() < self.recipe.data.garbage else self.material.text
        haystack = self.material.stretch(source, budget, rng)
        rows = [opening]
        start = 0
        boundaries = np.sort(rng.integers(0, budget + 1, size=len(inserted)))
        for boundary, index in zip(boundaries, rng.permutation(len(inserted)), strict=True):
            rows += [haystack[start:boundary], inserted[index]]
            start = boundary
        ids = np.concatenate([*rows, haystack[start:], ending])
        is_answer = np.zeros(length, dtype=np.bool_)
        is_answer[length - len(pieces[-1]) - 1 :] = True
        return ids, is_answer

    def _plain(self, length: int, rng: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
        ids = np.concatenate([self.bos, self.material.stretch(self.material.text, length, rng)])[:length]
        return ids, np.zeros(length, dtype=np.bool_)

    def _copy(self, length: int, rng: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
        half = (length - len(self.bos)) // 2
        stretch = self.material.stretch(self.material.text, half, rng)
        ids = np.concatenate(
            [self.bos, stretch, stretch, self.material.stretch(self.material.text, length, rng)]
        )[:length]
        return ids, np.zeros(length, dtype=np.bool_)
