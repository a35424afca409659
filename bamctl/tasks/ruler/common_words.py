"""Common words, in RULER's words: a numbered list in which some words stand more often than the others.

A solved example comes first, then the template with the list in its place. Below 4096 tokens RULER's lists
and examples are small ones, from there on large ones; here the small ones go on where a tokenizer makes so
many tokens of a word that the large ones need more. The list ends in entries of one more word, the last of
them cut. Longer than RULER's words reach, it goes on with pairs of them: `adjective-noun`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.common_words_spec import (
    CommonWordsDraw,
    CommonWordsSpec,
    ListSize,
    entries,
    list_words,
    opening_text,
    pair_words,
)
from bamctl.tasks.ruler.layout import anchors_behind
from bamctl.tasks.ruler.limits import (
    chat_tokens,
    check,
    leading_equal,
    prompt_tokens,
    target_length,
    too_short,
)
from bamctl.tasks.ruler.pieces import Numbered, Order, Pieces, first_stable, seams_stable, seeded_shuffle
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer, words_and_spaces

LONG = 4096
"""Tokens, those that may be generated included, from which on RULER's lists are the large ones."""

ENDS_TRIED = 32
"""Words that are tried at the end of a list where it does not survive decoding and encoding."""

_BETWEEN_NUMBERS = (" 1.", " 2.")
_BETWEEN_WORDS = (" word", " word")

_DEVIATIONS = 5
"""Standard deviations above the expected tokens of a list at which all but one draw in a million fit."""


class CommonWordsTask:
    """RULER's common words for one tokenizer. Prompts have no needles, and their depth says nothing."""

    def __init__(self, spec: CommonWordsSpec, tokenizer: PromptTokenizer) -> None:
        """Tokenises what all samples have in common.

        Raises:
            BadInput: a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        before, behind, answer_prefix = spec.around()
        start, gap = words_and_spaces(before)
        self._before = tokenizer.opening(start)
        self._closing = tokenizer.closing(behind, answer_prefix)
        self._first = Pieces.of(
            [f"{gap}1."], tokenizer, between=(before, " word"), behind=anchors_behind(before)
        )
        self._numbers = Numbered(" {i}.", tokenizer, between=_BETWEEN_WORDS, behind=("a", *ANCHORS))
        self._words = _WordTable(tokenizer)
        self._long_from = max(LONG, self._likely_length())
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`."""
        check(self.spec, length, depth, self.shortest_length)
        return self.assemble(self.draw(rng), length=length)

    def draw(self, rng: np.random.Generator) -> CommonWordsDraw:
        """The words of a sample and their order."""
        words, example = (rng.permutation(len(list_words())) for _ in range(2))
        shuffled, example_shuffled = seeded_shuffle(rng), seeded_shuffle(rng)
        pairs = self._words.pairs
        start, step = (int(number) for number in rng.integers(1, pairs, size=2))
        while math.gcd(step, pairs) > 1:  # so that every pair comes once before the first one does again
            step += 1
        return CommonWordsDraw(
            words=words,
            pairs=(start, step),
            shuffled=shuffled,
            example=example,
            example_shuffled=example_shuffled,
        )

    def assemble(self, drawn: CommonWordsDraw, *, length: int) -> Prompt:
        """The sample of a draw.

        Raises:
            BadInput: the length is too short.
        """
        room = prompt_tokens(self.spec, length)
        sizes = [self.spec.short]
        if room + self.spec.tokens_to_generate >= self._long_from:
            sizes.insert(0, self.spec.long)
        for size in sizes:
            filled = self._filled(drawn, size, room)
            if filled is not None:
                break
        else:
            raise too_short(self.spec, length, max(self.shortest_length, length + 1))
        common = tuple(list_words()[word] for word in drawn.words[: self.spec.num_cw])
        answers = self.tokenizer.continuations(
            [" " + word for word in common], behind=(self.spec.around()[2], *ANCHORS)
        )
        return Prompt(
            token_ids=np.concatenate([np.array(self.tokenizer.prefix, dtype=np.int32), *filled.parts]),
            references=common,
            answer_ids=tuple(tuple(answer.ids.tolist()) for answer in answers),
            needle_spans=(),
            depths=(),
            shared_prefix=len(self.tokenizer.prefix) + leading_equal(filled.parts[0], self._before),
            haystack_repeats=0,
            roundtrip_stable=filled.stable and answers[0].clean,
            tokens_to_generate=self.spec.tokens_to_generate,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def _filled(self, drawn: CommonWordsDraw, size: ListSize, room: int) -> "_Filled | None":
        """A prompt with as many words as fit; None where the common ones alone do not."""
        text = words_and_spaces(opening_text(self.spec, size, drawn))[0]
        opening = self.tokenizer.opening(text)
        left = room - len(self.tokenizer.prefix) - len(opening) - len(self._closing)
        uncommon, left = self._uncommon_words(drawn, size, left)
        if uncommon < 0:
            return None
        listed = entries(np.arange(size.common + uncommon), size.common, size.often, size.seldom)
        listed = listed[drawn.shuffled(len(listed))]
        table = self._table(len(listed) + size.seldom)
        ends = self._ends(drawn, size, listed, left, table)
        (listed, cut), stable_end = first_stable(ends, self.tokenizer)
        order = table.entries(self._words.pieces_of(drawn, listed), start=1)
        ids, seams = table.pieces.laid_out(order)
        beginning = np.concatenate([opening, ids[: seams[min(len(order), 3 * 4)]]])
        stable = (
            stable_end
            and bool(table.pieces.stable[order].all())
            and self.tokenizer.are_stable([beginning], opening=True)[0]
            and seams_stable(ids, seams[::3], self.tokenizer)
        )
        return _Filled(parts=(opening, ids, cut, self._closing), stable=stable)

    def _uncommon_words(self, drawn: CommonWordsDraw, size: ListSize, tokens: int) -> tuple[int, int]:
        """How many words beside the common ones fit into so many tokens, and what is left then.

        -1 where the common ones do not fit.
        """
        tried = 512
        while True:
            words = self._words.lengths(drawn, np.arange(size.common + tried))
            counts = size.common * size.often + size.seldom * np.arange(tried + 1)
            numbers = self._numbers.below(int(counts[-1]) + 1).ends
            taken = size.often * words[: size.common].sum() + numbers[counts + 1] - numbers[2]
            taken += len(self._first.token_ids)
            taken[1:] += size.seldom * np.cumsum(words[size.common :])
            if taken[-1] > tokens:
                fitting = int(np.searchsorted(taken, tokens, side="right")) - 1
                return fitting, tokens - int(taken[fitting])
            tried *= 2

    def _ends(
        self, drawn: CommonWordsDraw, size: ListSize, listed: Order, left: int, table: "_Table"
    ) -> Iterator[tuple[tuple[Order, Ids], Ids]]:
        """Ways to end a list on so many tokens, each with the tokens to look at; the best one first.

        The list itself, and as many tokens as are left of entries of the next word. How many that are depends
        on the last word, which gives way to another one.
        """
        last = int(listed.max())
        swapped = last >= size.common
        own = self._words.lengths(drawn, np.array([last]))[0]
        for other in range(last, last + ENDS_TRIED):
            changed = np.where(listed == last, other, listed) if swapped else listed
            rest = left + swapped * size.seldom * int(own - self._words.lengths(drawn, np.array([other]))[0])
            more = self._words.pieces_of(drawn, np.full(size.seldom, other + 1))
            cut, _ = table.pieces.laid_out(table.entries(more, start=len(listed) + 1))
            if 0 <= rest <= len(cut):
                tail = table.entries(self._words.pieces_of(drawn, changed[-2:]), start=len(listed) - 1)
                window = [table.pieces.laid_out(tail)[0], cut[:rest], self._closing]
                yield (changed, cut[:rest]), np.concatenate(window)

    def _table(self, count: int) -> "_Table":
        """Words, and the numbers up to `count`."""
        numbers = self._numbers.below(count + 1)
        pieces = Pieces.joined([self._words.pieces, self._first, numbers])
        return _Table(pieces=pieces, first=len(self._words.pieces))

    def _static_tokens(self, size: ListSize) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Tokens of a prompt with no uncommon word, less the words; how often each of the example's words
        stands in it, and each of the list's."""
        before, behind, answer_prefix = self.spec.around()
        texts = [before, behind, answer_prefix, "\n", before]
        common = min(size.common, size.example_words)
        example = np.array(
            [size.example_often + 1] * common + [size.example_seldom] * (size.example_words - common)
        )
        numbers = self._numbers.below(max(int(example.sum()), size.common * size.often) + 1).ends
        tokens = sum(len(piece.ids) for piece in self.tokenizer.continuations(texts)) + len(self._closing)
        for count in (int(example.sum()) - common, common, size.common * size.often):
            tokens += int(numbers[count + 1])
        tokens += len(self.tokenizer.prefix) + chat_tokens(self.tokenizer) + len(self._first.token_ids)
        return tokens, example, np.full(size.common, size.often)

    def _shortest_length(self) -> int:
        """The length that holds the common words whatever is drawn: of the small lists, words at their
        longest."""
        tokens, example, listed = self._static_tokens(self.spec.short)
        longest = np.sort(self._words.pieces.lengths[: len(list_words())])[::-1]
        for often in (example, listed):
            tokens += int(np.sort(often)[::-1] @ longest[: len(often)])
        return target_length(self.spec, tokens)

    def _likely_length(self) -> int:
        """The length, those tokens that may be generated included, that holds the common words of the large
        lists for nearly every draw."""
        tokens, *lists = self._static_tokens(self.spec.long)
        often = np.concatenate(lists)
        words = self._words.pieces.lengths[: len(list_words())]
        deviation = float(np.sqrt(words.var() * (often**2).sum()))
        expected = tokens + float(often.sum() * words.mean()) + _DEVIATIONS * deviation
        return math.ceil(expected) + self.spec.tokens_to_generate


class _WordTable:
    """The tokens of words: of RULER's own, and of the nouns behind a hyphen of which pairs are made."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._single = len(list_words())
        adjectives, nouns = pair_words()
        own = Pieces.kept(
            lambda: [" " + word for word in list_words()],
            ("words", *list_words()),
            tokenizer,
            between=_BETWEEN_NUMBERS,
            behind=("1.", *ANCHORS),
        )
        behind_hyphen = Pieces.kept(
            lambda: ["-" + noun for noun in nouns],
            ("nouns", *nouns),
            tokenizer,
            between=(" word", " 2."),
            behind=("a", *ANCHORS),
        )
        nothing = Pieces.of([""], tokenizer, between=_BETWEEN_NUMBERS)
        self.pieces = Pieces.joined([own, behind_hyphen, nothing])
        index = {word: number for number, word in enumerate(list_words())}
        self._adjectives = np.array([index[word] for word in adjectives])
        self._nouns = len(nouns)
        self.pairs = len(adjectives) * len(nouns)

    def pieces_of(self, drawn: CommonWordsDraw, words: Order) -> Order:
        """[n, 2]: the pieces of words by their place in the draw, two of a pair, one of others."""
        found = np.full((len(words), 2), len(self.pieces) - 1)
        is_own = words < self._single
        found[is_own, 0] = drawn.words[words[is_own]]
        start, step = drawn.pairs
        pair = (start + (words[~is_own] - self._single) * step) % self.pairs
        found[~is_own, 0] = self._adjectives[pair // self._nouns]
        found[~is_own, 1] = self._single + pair % self._nouns
        return found

    def lengths(self, drawn: CommonWordsDraw, words: Order) -> NDArray[np.int64]:
        """[n], in tokens."""
        lengths: NDArray[np.int64] = self.pieces.lengths[self.pieces_of(drawn, words)].sum(axis=1)
        return lengths


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """The pieces of words, of the first number, and of all numbers from 0 on."""

    pieces: Pieces
    first: int

    def entries(self, words: Order, *, start: int) -> Order:
        """[3 n]: the pieces of entries, a number and at most two of a word each, from number `start` on."""
        numbers = self.first + 1 + start + np.arange(len(words))
        if start == 1:
            numbers[:1] = self.first
        return np.column_stack([numbers, words]).ravel()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Filled:
    parts: tuple[Ids, ...]
    """All of the prompt but the tokenizer's prefix; the opening comes first."""
    stable: bool
