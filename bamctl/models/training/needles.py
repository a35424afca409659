"""Training examples of RULER's needle tasks: whole prompts, and streams of short facts and questions."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bamctl.models.training.material import Ids, Material, spec_of_kind
from bamctl.models.training.recipe import Counts, NiahExamples, Recipe, StreamExamples
from bamctl.tasks.ruler.niah_spec import NeedleType, NiahSpec, listed
from bamctl.tasks.ruler.words import DIGITS, draw, word_list
from bamctl.tasks.tokenization import PromptTokenizer

Row = tuple[Ids, NDArray[np.bool_]]
"""The tokens of an example, and which of them were asked for."""

SIMILAR_KEYS = 0.2
"""Share of the examples whose keys share few adjectives and few nouns, so that half a key tells nothing."""

FACT_SHARE = (0.3, 0.8)
"""Of facts where there is something to ask, drawn anew for each stream: questions come soon or late."""

MORE_VALUES = 0.6
"""Of facts, where keys may have several values: those that add one to a key."""

SHORTEST_NEEDLE = 16
SHORTEST_FACT = 8
"""In tokens, about: what decides how many keys are at hand."""

TURNS_AT_ONCE = 32
"""Texts that are tokenised together."""


class NeedleExamples:
    """Draws examples of the needle tasks that a recipe names.

    Several values of one key are answered in ascending order; several keys in the order of the question, each
    before its value and once more behind it.

    Args:
        recipe: which tasks.
        tokenizer: the recipe's own.
        material: haystacks and numbers.
        eos_token_id: ends every answer.

    Raises:
        BadInput: a task that is no needle task.
    """

    def __init__(
        self, recipe: Recipe, tokenizer: PromptTokenizer, material: Material, eos_token_id: int
    ) -> None:
        self.tokenizer = tokenizer
        self.material = material
        self.bos = np.array(tokenizer.prefix, dtype=np.int64)
        self.eos = np.array([eos_token_id])
        self.garbage_share = recipe.data.garbage
        self.specs = {
            examples.task: niah_spec(examples.task)
            for examples in recipe.data.examples
            if isinstance(examples, (NiahExamples, StreamExamples))
        }
        self.adjectives, self.nouns = key_words(recipe.data.held_out_nouns) if self.specs else ((), ())
        self.lines = {spec.noise: material.joined([f"{spec.noise}\n"]) for spec in self.specs.values()}
        self._openings: dict[str, Ids] = {}

    def prompt(self, kind: NiahExamples, length: int, rng: np.random.Generator) -> Row:
        """A prompt and its answer in exactly `length` tokens.

        The text before the haystack gives way where there is no room for it, and a stream of the same task
        takes the place of an example that has no room at all.
        """
        spec = self.specs[kind.task]
        counts = {"num_needle_k": kind.keys, "num_needle_v": kind.values, "num_needle_q": kind.queries}
        spec = spec.model_copy(
            update={name: _between(given, rng) for name, given in counts.items() if given is not None}
        )
        in_needles = spec.type_haystack == "needle"
        most = spec.keys + (length // SHORTEST_NEEDLE + 1 if in_needles else 0)
        # Drawn together, so that keys nobody asks for are as like the others as those are among themselves.
        drawn = list(itertools.islice(self._keys(spec.type_needle_k, most, rng), most))
        keys, others = drawn[: spec.keys], drawn[spec.keys :]
        pairs = [
            (key, self._value(spec.type_needle_v, rng)) for key in keys for _ in range(spec.num_needle_v)
        ]
        queries = [keys[index] for index in rng.permutation(len(keys))[: spec.num_needle_q]]
        in_lines = spec.type_haystack != "essay"
        needles = [spec.needle_text(key, value) for key, value in pairs]
        needles = [f"{needle}\n" if in_lines else f" {needle}" for needle in needles]
        before, behind, answer_prefix = spec.around(queries)
        distractors = [] if in_lines else self.material.distractors(rng)
        question, answer, *inserted = self.material.pieces(
            [behind + answer_prefix, _answer(queries, pairs), *needles, *distractors]
        )
        ending = np.concatenate([question, answer, self.eos])
        budget = length - len(self.bos) - len(ending) - sum(map(len, inserted[: len(needles)]))
        if budget < 0:
            return self.stream(kind.task, length, rng, values=spec.num_needle_v, queries=spec.num_needle_q)
        opening = self.bos
        if len(self._opening(before)) <= budget:
            opening = np.concatenate([self.bos, self._opening(before)])
        budget -= len(opening) - len(self.bos)
        if sum(map(len, inserted[len(needles) :])) > budget // 4:
            inserted = inserted[: len(needles)]
        budget -= sum(map(len, inserted[len(needles) :]))
        haystack, ends = self._haystack(spec, budget, others, rng)
        rows = [opening]
        start = 0
        boundaries = np.sort(rng.choice(ends, size=len(inserted)))
        for boundary, index in zip(boundaries, rng.permutation(len(inserted)), strict=True):
            rows += [haystack[start:boundary], inserted[index]]
            start = boundary
        ids = np.concatenate([*rows, haystack[start:], ending])
        is_answer = np.zeros(length, dtype=np.bool_)
        is_answer[length - len(answer) - 1 :] = True
        return ids, is_answer

    def stream(self, task: str, length: int, rng: np.random.Generator, *, values: int, queries: int) -> Row:
        """Facts and questions about them by turns, cut off at `length` tokens.

        Args:
            task: whose words.
            length: in tokens.
            rng: draws all.
            values: the most values of one key.
            queries: the most keys in one question.
        """
        spec = self.specs[task].model_copy(update={"num_needle_v": values})
        turns = self._turns(spec, length, queries, rng)
        ids, marks = [self.bos], [np.zeros(len(self.bos), dtype=np.bool_)]
        while sum(map(len, ids)) < length:
            some = list(itertools.islice(turns, TURNS_AT_ONCE))
            pieces = self.material.pieces([text for text, _ in some])
            for piece, (_, is_asked) in zip(pieces, some, strict=True):
                ids.append(np.concatenate([piece, self.eos]) if is_asked else piece)
                marks.append(np.full(len(ids[-1]), is_asked))
        return np.concatenate(ids)[:length], np.concatenate(marks)[:length]

    def _turns(
        self, spec: NiahSpec, length: int, queries: int, rng: np.random.Generator
    ) -> Iterator[tuple[str, bool]]:
        """The texts of a stream without end, and whether they were asked for."""
        keys = self._keys(spec.type_needle_k, length // SHORTEST_FACT + 1, rng)
        facts: dict[str, list[str]] = {}
        unasked: list[str] = []  # asked again at once, a key would be answered from its last answer
        fact_share = rng.uniform(*FACT_SHARE)
        while True:
            if not unasked or rng.random() < fact_share:
                growing = [key for key, values in facts.items() if len(values) < spec.num_needle_v]
                more = growing and rng.random() < MORE_VALUES
                key = growing[rng.integers(len(growing))] if more else next(keys)
                value = self._value(spec.type_needle_v, rng)
                facts.setdefault(key, []).append(value)
                unasked += [] if key in unasked else [key]
                yield _from_word_before(spec.needle_text(key, value), key), False
            else:
                most = min(queries, len(unasked))
                count = rng.integers(1, most + 1, size=2).max()  # rather many: they are the harder ones
                asked = [str(key) for key in rng.permutation(unasked)[:count]]
                unasked = [key for key in unasked if key not in asked]
                several = spec.model_copy(update={"num_needle_q": len(asked)})
                yield _from_word_before(several.around(asked)[2], asked[0]), False
                pairs = [(key, value) for key in asked for value in facts[key]]
                yield _answer(asked, pairs), True

    def _haystack(
        self, spec: NiahSpec, tokens: int, keys: Sequence[str], rng: np.random.Generator
    ) -> tuple[Ids, NDArray[np.int64]]:
        """So many tokens of a haystack, and the places in it where a needle may stand.

        Of needles there are as many as there are `keys`, cut off at `tokens`.
        """
        match spec.type_haystack:
            case "essay":
                source = self.material.garbage if rng.random() < self.garbage_share else self.material.text
                return self.material.stretch(source, tokens, rng), np.arange(tokens + 1)
            case "needle":
                values = [self._value(spec.type_needle_v, rng) for _ in keys]
                needles = [spec.needle_text(key, value) for key, value in zip(keys, values, strict=True)]
                lines = self.material.pieces([f"{needle}\n" for needle in needles])
            case _:
                line = self.lines[spec.noise]
                lines = [line] * (tokens // len(line) + 1)
        ends = np.cumsum([0, *map(len, lines)])
        return np.concatenate(lines)[:tokens], ends[ends <= tokens]

    def _keys(self, kind: NeedleType, count: int, rng: np.random.Generator) -> Iterator[str]:
        """Different keys without end; those that are words are short of variety for more than `count`."""
        adjectives, nouns = list(self.adjectives), list(self.nouns)
        if kind == "words" and rng.random() < SIMILAR_KEYS:
            few = math.isqrt(count + TURNS_AT_ONCE) + 2
            adjectives = [str(word) for word in rng.choice(adjectives, size=few, replace=False)]
            nouns = [str(word) for word in rng.choice(nouns, size=few, replace=False)]
        seen = set()
        while True:
            if kind == "words":
                key = f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"
            else:
                key = draw(kind, rng)
            if key not in seen:
                seen.add(key)
                yield key

    def _value(self, kind: NeedleType, rng: np.random.Generator) -> str:
        return self.material.number((DIGITS, DIGITS), rng) if kind == "numbers" else draw(kind, rng)

    def _opening(self, text: str) -> Ids:
        if text not in self._openings:
            self._openings[text] = self.tokenizer.opening(text).astype(np.int64)
        return self._openings[text]


def niah_spec(task: str) -> NiahSpec:
    """The needle task of this name; see `spec_of_kind`."""
    return spec_of_kind(NiahSpec, "needle", task)


def key_words(held_out_nouns: float) -> tuple[Sequence[str], Sequence[str]]:
    """The adjectives and the nouns that training keys are made of."""
    nouns = [noun for noun in word_list("noun") if not is_held_out(noun, held_out_nouns)]
    return word_list("adjective"), nouns


def is_held_out(noun: str, share: float) -> bool:
    """Whether a noun is among the `share` of them that no training key has; the same on every machine."""
    digest = hashlib.sha256(noun.encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def _answer(queries: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """`` 1, 2, 3`` for one key, `` a: 1 a, b: 2 b, and c: 3 c`` for several.

    Values ascend: the next one is found by its key and its digits, wherever it lies. A key stands before its
    value, which is looked up by it, and behind, where the question shows what comes next.
    """
    parts = []
    for query in queries:
        values = ", ".join(sorted(value for key, value in pairs if key == query))
        parts.append(f"{query}: {values} {query}" if len(queries) > 1 else values)
    return " " + listed(parts)


def _from_word_before(text: str, key: str) -> str:
    """The end of `text` from the word before `key` on, with the space before it."""
    return text[text.rindex(" ", 0, text.index(key) - 1) :]


def _between(counts: Counts, rng: np.random.Generator) -> int:
    return int(rng.integers(counts[0], counts[1] + 1))
