"""Frequent words, in RULER's words: coded words, of which the three most frequent ones are asked for.

Their counts follow a zeta distribution; the most frequent word is noise, `...`. What the counts leave of a
length is filled with more of it, and the rest, less than one of them, is a part of one. Where RULER would ask
for a word that is no more frequent than another one, there are fewer coded words and more noise.
"""

import string
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.frequent_words_spec import ASKED, FrequentWordsSpec, is_answerable
from bamctl.tasks.ruler.limits import (
    chat_tokens,
    check,
    leading_equal,
    most_tokens,
    prompt_tokens,
    target_length,
    too_short,
)
from bamctl.tasks.ruler.pieces import Pieces, Shuffle, first_stable, seams_stable, seeded_shuffle
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer, words_and_spaces

COUNTS_TRIED = 32
"""Numbers of words that are tried for one that leaves no part of a word."""


@dataclass(frozen=True, kw_only=True)
class FrequentWordsDraw:
    """What chance decides of a sample."""

    words: tuple[str, ...]
    """By rank, the noise first."""
    ends: tuple[float, float]
    """0 to 1: which of all words is the first one, and which of the others is the last one, in the order of
    ranks."""
    shuffled: Shuffle
    """So many words between them in the order of the text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Words:
    """The words of one prompt, by rank."""

    first: int
    counts: NDArray[np.int64]
    """[ranks] of the words between the first and the last one."""
    last: int
    cut: int
    """Tokens of a part of a noise word."""


class FrequentWordsTask:
    """RULER's frequent words for one tokenizer. Prompts have no needles, and their depth says nothing."""

    def __init__(self, spec: FrequentWordsSpec, tokenizer: PromptTokenizer) -> None:
        """Tokenises what all samples have in common.

        Raises:
            BadInput: a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        self._noise = tokenizer.continuations([" " + spec.noise], behind=("a", *ANCHORS))[0].ids
        self._before = tokenizer.opening(words_and_spaces(spec.around()[0])[0])
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`."""
        check(self.spec, length, depth, self.shortest_length)
        return self.assemble(self.draw(length, rng), length=length)

    def draw(self, length: int, rng: np.random.Generator) -> FrequentWordsDraw:
        """The words of a sample and their order; the same for all tokenizers."""
        return FrequentWordsDraw(
            words=(self.spec.noise, *self._coded(self._ranks(length) - 1, rng)),
            ends=(rng.random(), rng.random()),
            shuffled=seeded_shuffle(rng),
        )

    def assemble(self, drawn: FrequentWordsDraw, *, length: int) -> Prompt:
        """The sample of a draw.

        Raises:
            BadInput: the length is too short.
        """
        room = prompt_tokens(self.spec, length)
        text = _Text(self.spec, self.tokenizer, drawn.words)
        words = self._words(drawn, text, room)
        if words is None:
            raise too_short(self.spec, length, max(self.shortest_length, length + 1))
        opening, closing = text.opening(words.first), text.closing(words.last)
        between = np.repeat(np.arange(len(words.counts)), words.counts)
        between = between[drawn.shuffled(len(between))]
        ids, ends = text.pieces.laid_out(between)
        cut = self._noise[: words.cut]
        beginning = np.concatenate([opening, ids[: ends[min(4, len(between))]]])
        ending = np.concatenate([ids[ends[max(0, len(between) - 4)] :], cut, closing])
        asked = drawn.words[1 : ASKED + 1]
        answers = self.tokenizer.continuations(
            [" " + word for word in asked], behind=(self.spec.around()[2], *ANCHORS)
        )
        stable = (
            bool(text.pieces.stable[words.counts > 0].all())
            and self.tokenizer.are_stable([beginning], opening=True)[0]
            and self.tokenizer.are_stable([ending])[0]
            and seams_stable(ids, ends, self.tokenizer)
        )
        prefix = np.array(self.tokenizer.prefix, dtype=np.int32)
        return Prompt(
            token_ids=np.concatenate([prefix, opening, ids, cut, closing]),
            references=asked,
            answer_ids=tuple(tuple(answer.ids.tolist()) for answer in answers),
            needle_spans=(),
            depths=(),
            shared_prefix=len(prefix) + leading_equal(opening, self._before),
            haystack_repeats=0,
            roundtrip_stable=stable and answers[0].clean,
            tokens_to_generate=self.spec.tokens_to_generate,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def _words(self, drawn: FrequentWordsDraw, text: "_Text", room: int) -> _Words | None:
        """As many words as fit, the noise made up to the exact length; None where too few of them fit.

        Of the numbers of words that are nearly as many as fit, the first one that leaves no part of a word;
        else the first one whose part survives decoding and encoding.
        """
        found: list[tuple[_Words, Ids]] = []
        for number in range(self._most(text, room), 0, -1):
            words = self._with(number, drawn, text, room)
            if words is None:
                continue
            if not words.cut:
                return words
            window = np.concatenate([self._noise, self._noise[: words.cut], text.closing(words.last)])
            found.append((words, window))
            if len(found) == COUNTS_TRIED:
                break
        return first_stable(found, self.tokenizer)[0] if found else None

    def _most(self, text: "_Text", room: int) -> int:
        """Words that fit, or a few more, whichever come first and last."""
        lengths = text.pieces.lengths
        low, high = 0, room + 1
        while high - low > 1:
            number = (low + high) // 2
            taken = int(self.spec.counts(number, len(lengths)) @ lengths)
            low, high = (number, high) if taken <= room else (low, number)
        return low

    def _with(self, number: int, drawn: FrequentWordsDraw, text: "_Text", room: int) -> _Words | None:
        """So many words, and more noise; None where they do not fit or the answer would not be clear."""
        counts = self.spec.counts(number, len(drawn.words))
        if not is_answerable(counts):
            return None
        ends = []
        for place in drawn.ends:
            ends.append(int(np.searchsorted(np.cumsum(counts), place * counts.sum(), side="right")))
            counts[ends[-1]] -= 1
        first, last = ends
        fixed = len(self.tokenizer.prefix) + len(text.opening(first)) + len(text.closing(last))
        left = room - fixed - int(counts @ text.pieces.lengths)
        if left < 0:
            return None
        noise, cut = divmod(left, len(self._noise))
        counts[0] += noise
        return _Words(first=first, counts=counts, last=last, cut=cut)

    def _ranks(self, length: int) -> int:
        """Ranks that may occur in a prompt of this length, of those that the definition allows."""
        room = prompt_tokens(self.spec, length)
        most = self.spec.vocabulary(room + self.spec.tokens_to_generate)
        possible = len(string.ascii_lowercase) ** self.spec.coded_wordlen
        return min(most, int(possible) // 2, max(ASKED + 2, self.spec.highest_rank(room)))

    def _coded(self, count: int, rng: np.random.Generator) -> list[str]:
        """Different words of random letters."""
        found: dict[str, None] = {}
        while len(found) < count:
            letters = rng.integers(len(string.ascii_lowercase), size=(count, self.spec.coded_wordlen))
            for row in letters.tolist():
                found["".join(string.ascii_lowercase[letter] for letter in row)] = None
        return list(found)[:count]

    def _shortest_length(self) -> int:
        """The length that holds any draw with the fewest words that have an answer, letters at their most."""
        spec, tokenizer = self.spec, self.tokenizer
        number = spec.fewest_words
        counts = spec.counts(number, spec.highest_rank(number))
        word = most_tokens(string.ascii_lowercase, spec.coded_wordlen, tokenizer)
        texts = sum(len(piece.ids) for piece in tokenizer.continuations(list(spec.around())))
        fixed = len(tokenizer.prefix) + chat_tokens(tokenizer) + texts
        tokens = fixed + int(counts[0]) * (len(self._noise) + 1) + int(counts[1:].sum()) * word
        length = target_length(spec, tokens)
        while spec.vocabulary(prompt_tokens(spec, length) + spec.tokens_to_generate) <= ASKED:
            length += 1
        return length


class _Text:
    """The words of one draw as tokens. The first one belongs to the opening, and the last one to the closing:
    what tokens a text has at its ends depends on both."""

    def __init__(self, spec: FrequentWordsSpec, tokenizer: PromptTokenizer, words: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._words = words
        self._before, self._behind, self._answer_prefix = spec.around()
        noise = " " + spec.noise
        spaced = [" " + word for word in words]
        self.pieces = Pieces.of(spaced, tokenizer, between=(noise, noise), behind=("a", *ANCHORS))
        self._known: dict[tuple[str, int], Ids] = {}

    def opening(self, first: int) -> Ids:
        """The opening and the word of a rank."""
        if ("opening", first) not in self._known:
            self._known["opening", first] = self._tokenizer.opening(self._before + self._words[first])
        return self._known["opening", first]

    def closing(self, last: int) -> Ids:
        """The word of a rank and the closing."""
        if ("closing", last) not in self._known:
            question = f" {self._words[last]}{self._behind}"
            self._known["closing", last] = self._tokenizer.closing(question, self._answer_prefix)
        return self._known["closing", last]
