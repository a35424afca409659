"""Needles in a haystack, in RULER's words: keys with values, of which some are asked for.

The prompt is the template with the haystack in its place, and the beginning of the answer behind it.
`layout` says where needles go, `fill` how long the haystack is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bamctl.tasks.base import check_depth
from bamctl.tasks.cache import cached, digest_of
from bamctl.tasks.fill import Source, fill, repeated_line
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.corpora import essay_sentences, spaced_essay_sentences
from bamctl.tasks.ruler.distractors import DistractorPool
from bamctl.tasks.ruler.layout import (
    NeedlePrompt,
    anchors_behind,
    essay_slots,
    line_slots,
)
from bamctl.tasks.ruler.limits import (
    MARK,
    chat_tokens,
    prompt_tokens,
    target_length,
    tokens_in_parts,
    too_short,
)
from bamctl.tasks.ruler.niah_spec import NeedleType, NiahSpec
from bamctl.tasks.ruler.words import DIGITS, draw_distinct, word_list
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer, words_and_spaces

DEPTHS = np.round(np.linspace(0, 100, 40)).astype(int)
"""RULER's depths in percent, of which each needle has one of its own."""

UUID_CHARACTERS = 36

_ENOUGH = 20_000
"""Characters of essays in which their first sentence ends."""


@dataclass(frozen=True, kw_only=True)
class NiahDraw:
    """What chance decides of a sample: words, numbers and depths."""

    queries: tuple[str, ...]
    """The keys that are asked for, in the order of the question."""
    answers: tuple[str, ...]
    """Their values: of the first key all, then of the second one."""
    needles: tuple[tuple[str, str, float], ...]
    """Key, value and depth: those of the answers, in their order, then those that nobody asks for."""


class NiahTask:
    """RULER's needle prompts for one tokenizer. No key and no value occurs twice."""

    def __init__(self, spec: NiahSpec, tokenizer: PromptTokenizer) -> None:
        """Tokenises what all samples have in common.

        Raises:
            BadInput: the haystack's text is missing or leaves no token, or a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        before, _, _ = spec.around(["key"] * spec.num_needle_q)
        self._behind_opening = anchors_behind(before)
        self._gap = words_and_spaces(before)[1]
        self._source: Source | None = None
        self._distractors = DistractorPool(spec, tokenizer)
        if spec.type_haystack == "essay":
            self._source = self._essays()
        elif spec.type_haystack != "needle":
            self._source = self._lines()
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`.

        The first needle that is asked for is the one at `depth`; the others have depths of RULER's, drawn
        without replacement.
        """
        check_depth(depth)
        room = prompt_tokens(self.spec, length)
        if room < 1:
            raise too_short(self.spec, length, self.shortest_length)
        drawn = self.draw(depth, rng)
        before, question, answer_prefix = self.spec.around(drawn.queries)
        order = sorted(range(len(drawn.needles)), key=lambda index: drawn.needles[index][2])
        prompt = NeedlePrompt(
            before=before,
            question=question,
            answer_prefix=answer_prefix,
            needles=tuple(self.spec.needle_text(*drawn.needles[index][:2]) for index in order),
            depths=tuple(drawn.needles[index][2] for index in order),
            behind_opening=self._behind_opening,
        )
        source = self._source or self._others(room, drawn, rng)
        slots = essay_slots if self.spec.type_haystack == "essay" else line_slots
        filled = fill(partial(slots, prompt), source, self.tokenizer, room)
        if isinstance(filled, int):
            raise too_short(self.spec, length, max(self.shortest_length, length + filled))
        spans = dict(zip(order, filled.assembly.needles, strict=True))
        answers = self.tokenizer.continuations(
            [" " + answer for answer in drawn.answers], behind=(answer_prefix, *ANCHORS)
        )
        repeats = max(0, (filled.haystack_tokens - 1) // len(source.haystack.token_ids))
        return Prompt(
            token_ids=filled.assembly.token_ids(),
            references=drawn.answers,
            answer_ids=tuple(tuple(answer.ids.tolist()) for answer in answers),
            needle_spans=tuple(spans[index] for index in range(len(spans))),
            depths=tuple(float(depth) for _, _, depth in drawn.needles),
            shared_prefix=min(start for start, _ in spans.values()),
            haystack_repeats=0 if self.spec.repeats_one_line else repeats,
            roundtrip_stable=filled.assembly.is_stable() and answers[0].clean,
            tokens_to_generate=self.spec.tokens_to_generate,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def draw(self, depth: float, rng: np.random.Generator) -> NiahDraw:
        """The words, numbers and depths of a sample whose first needle is at `depth`."""
        spec = self.spec
        if spec.type_needle_k == spec.type_needle_v:
            both = draw_distinct(spec.type_needle_k, spec.keys + spec.needles, rng)
            keys, values = both[: spec.keys], both[spec.keys :]
        else:
            keys = draw_distinct(spec.type_needle_k, spec.keys, rng)
            values = draw_distinct(spec.type_needle_v, spec.needles, rng)
        # Drawn keys have no order of their own, so that the first ones are as good as any.
        asked = spec.num_needle_q * spec.num_needle_v
        # RULER never ends with more needles than its 40 depths; here each needle has one, as far apart.
        grid = DEPTHS if spec.needles <= len(DEPTHS) else np.linspace(0, 100, spec.needles)
        others = grid[np.abs(grid - depth).argsort(kind="stable")[1:]]
        depths = [depth, *rng.permutation(others)[: spec.needles - 1].tolist()]
        return NiahDraw(
            queries=tuple(keys[: spec.num_needle_q]),
            answers=tuple(values[:asked]),
            needles=tuple(
                (keys[index // spec.num_needle_v], value, where)
                for index, (value, where) in enumerate(zip(values, depths, strict=True))
            ),
        )

    def _shortest_length(self) -> int:
        """The length that holds any draw, with no haystack: texts in parts, words at their longest."""
        spec = self.spec
        needle = spec.needle_text(MARK, MARK)
        around = "".join(spec.around([MARK] * spec.num_needle_q))
        key, value = self._longest(spec.type_needle_k), self._longest(spec.type_needle_v)
        keys_in_needle = spec.needle.count("{key}")
        needles = spec.needles * (
            tokens_in_parts(" " + needle + "\n", self.tokenizer)
            + keys_in_needle * key
            + (needle.count(MARK) - keys_in_needle) * value
        )
        texts = tokens_in_parts(around, self.tokenizer) + around.count(MARK) * key
        frame = len(self.tokenizer.prefix) + chat_tokens(self.tokenizer)
        return target_length(spec, frame + texts + needles + spec.needles + 2)

    def _longest(self, kind: NeedleType) -> int:
        """The most tokens that a key or value can take, and one where it joins the text around it."""
        if kind == "numbers":
            return DIGITS + 1
        if kind == "uuids":
            return UUID_CHARACTERS + 1
        parts = (word_list("adjective"), tuple("-" + noun for noun in word_list("noun")))
        key = digest_of("longest", self.tokenizer.digest, *parts[0], *parts[1])
        return 1 + int(
            cached(key, lambda: {"tokens": np.array(sum(map(self._most_tokens, parts)))})["tokens"]
        )

    def _most_tokens(self, words: Sequence[str]) -> int:
        return max(len(piece.ids) for piece in self.tokenizer.continuations(words))

    def _essays(self) -> Source:
        text = self.spec.essay_text
        haystack = Haystack.kept(
            lambda: spaced_essay_sentences(text), ("essays", digest_of(text)), self.tokenizer
        )
        # The first sentence that the haystack has. Splitting all of the text takes seconds.
        first = next(
            sentence
            for part in (text[:_ENOUGH], text)
            for sentence in essay_sentences(part)[: None if len(part) == len(text) else -1]
            if len(self.tokenizer.continuations([" " + sentence])[0].ids)
        )
        return Source(haystack, first=self._first(first))

    def _lines(self) -> Source:
        noise = self.spec.noise
        return repeated_line(noise, self.tokenizer, first=self._first(noise + "\n"))

    def _others(self, tokens: int, drawn: NiahDraw, rng: np.random.Generator) -> Source:
        words = [word for key, value, _ in drawn.needles for word in (key, value)]
        haystack, line = self._distractors.haystack(tokens, without=words, rng=rng)
        return Source(haystack, first=self._first(line))

    def _first(self, sentence: str) -> Ids:
        """The tokens of a sentence at the start of the haystack."""
        return self.tokenizer.continuations([self._gap + sentence], behind=self._behind_opening)[0].ids
