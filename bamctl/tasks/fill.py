"""How much haystack goes into a prompt, so that it has exactly so many tokens.

A prompt is a list of slots: texts that stay whole, runs of whole sentences, and at most one cut sentence
behind the last whole one, which makes up the exact number. Where the cut does not survive decoding and
encoding (half a character, say) another sentence's beginning is taken; where whole sentences alone make up
the number and do not survive (their last full stop and what follows are one token), the last one is cut.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bamctl.tasks.assembly import Assembly, Stretch
from bamctl.tasks.haystack import Haystack, split_sentences
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, Ids, PromptTokenizer

CUTS_TRIED = 32
"""Sentences whose first tokens are tried as the cut sentence where those of the next one do not survive."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The text at the start of a prompt."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A text that stays whole, with the white space that joins it to what comes before."""

    text: str
    needle: bool = False
    behind: tuple[str, ...] = ANCHORS
    """Anchors, as `PromptTokenizer.continuations` takes them."""


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The question and the beginning of the answer, at the end of a prompt."""

    question: str
    answer_prefix: str
    behind: tuple[str, ...] = ANCHORS


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """The haystack's sentences from `start` on up to `stop`, one at least."""

    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The first tokens of a sentence, as many as are left."""


Slot = Opening | Whole | Closing | Sentences | Cut


class Source:
    """Where sentences come from.

    Args:
        haystack: all sentences, each as it stands behind another piece.
        first: the first sentence's tokens where the haystack starts with it, if they differ: the white space
            in front of it may be missing there.
        run_on: tokens of endless text without the white space behind sentences, for a cut that is longer than
            every sentence; the haystack's own by default.
        beginnings: more such texts, whose first tokens may be a cut as well where no sentence's are any good.
    """

    def __init__(
        self,
        haystack: Haystack,
        *,
        first: Ids | None = None,
        run_on: Ids | None = None,
        beginnings: Sequence[Ids] = (),
    ) -> None:
        self.haystack = haystack
        self.first = haystack.sentence(0) if first is None else first
        self._run_on = run_on
        self._beginnings = beginnings

    def stretch(self, slot: Sentences, *, at_start: bool) -> Stretch:
        """The tokens of whole sentences; `at_start`: nothing stands between them and the opening."""
        haystack = self.haystack
        ids = haystack.tokens(haystack.start_of(slot.start), haystack.start_of(slot.stop))
        first = haystack.sentence(slot.start)
        if at_start:
            ids, first = np.concatenate([self.first, ids[len(first) :]]), self.first
        return Stretch(
            ids=ids,
            first=first,
            last=first if slot.stop - slot.start == 1 else haystack.sentence(slot.stop - 1),
            stable=haystack.is_stable(slot.stop),
        )

    def length(self, slot: Sentences, *, at_start: bool) -> int:
        """The tokens that `stretch` has, without making it."""
        length = self.haystack.start_of(slot.stop) - self.haystack.start_of(slot.start)
        return length + (len(self.first) - len(self.haystack.sentence(slot.start))) * at_start

    def cuts(self, sentence: int, tokens: int, *, at_start: bool) -> Iterator[Ids]:
        """Beginnings of so many tokens that may stand in the place of a sentence, the best one first."""
        if at_start and len(self.first) >= tokens:
            yield self.first[:tokens]
        for index in range(sentence, sentence + self.haystack.sentences):
            ids = self.haystack.sentence(index)
            # A sentence that is not cut ends as sentences do, and not as the last one has to.
            if len(ids) > tokens and not at_start:
                yield ids[:tokens]
        start = self.haystack.start_of(sentence)
        ids = self.haystack.tokens(start, start + tokens)
        if at_start:
            ids = np.concatenate([self.first, ids[len(self.haystack.sentence(sentence)) :], ids])[:tokens]
        if self._run_on is not None:
            ids = np.resize(self._run_on, tokens)
        yield ids
        yield from (np.resize(beginning, tokens) for beginning in self._beginnings)


def repeated_line(line: str, tokenizer: PromptTokenizer, *, first: Ids) -> Source:
    """One line over and over. A cut starts with any of its sentences, or of its words where it has but one.

    Args:
        line: without the newline at its end.
        tokenizer: whose tokens are wanted.
        first: the line's tokens at the start of the haystack, its newline included.
    """
    turned = turns(line)
    starts = tokenizer.continuations(turned, behind=BEHIND_NEWLINE)
    again = tokenizer.continuations([" " + text for text in turned])
    run_on, *beginnings = [np.concatenate([one.ids, two.ids]) for one, two in zip(starts, again, strict=True)]
    haystack = Haystack.of([line + "\n"], tokenizer, behind=BEHIND_NEWLINE)
    return Source(haystack, first=first, run_on=run_on, beginnings=beginnings)


def turns(line: str) -> list[str]:
    """A line that begins with each of its sentences in turn; with each of its words where it has but one."""
    sentences = split_sentences(line)
    parts = sentences if len(sentences) > 1 else line.split(" ")
    return [line, *(" ".join(parts[start:] + parts[:start]) for start in range(1, len(parts)))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Filled:
    """A prompt of the length that was asked for."""

    assembly: Assembly
    haystack_tokens: int
    """Of whole sentences and the cut one, as the haystack counts them."""
    sentences: int
    """Whole ones."""
    has_cut: bool
    """Whether there is a cut one behind them."""


def fill(
    slots_of: Callable[[int, bool], Sequence[Slot] | None],
    source: Source,
    tokenizer: PromptTokenizer,
    tokens: int,
) -> Filled | int:
    """Puts a prompt together.

    Args:
        slots_of: the prompt's slots with so many whole sentences, and with a cut one behind them or not; None
            where there is no such prompt. There is one with no sentence at all.
        source: where sentences come from.
        tokenizer: of the texts.
        tokens: how many the prompt has to have, `PromptTokenizer.prefix` included.

    Returns:
        The prompt, or by how many tokens there is too little room for it.
    """
    fixed = _Fixed(tokenizer)
    room = tokens - len(tokenizer.prefix)
    lacking = 0
    exact: Filled | None = None
    most = source.haystack.whole_sentences(max(0, room - fixed.tokens(slots_of(0, False) or ()))) + 1
    for count, has_cut in itertools.product(range(most, -1, -1), (False, True)):
        slots = slots_of(count, has_cut)
        if slots is None:
            continue
        left = room - fixed.tokens(slots)
        left -= sum(
            source.length(slot, at_start=_at_start(index, slot))
            for index, slot in enumerate(slots)
            if isinstance(slot, Sentences)
        )
        if left == 0 and not has_cut:
            exact = _assembled(slots, source, tokenizer, fixed, count, 0)
            if exact.assembly.is_stable():
                return exact
        elif left > 0 and has_cut:
            cut = _assembled(slots, source, tokenizer, fixed, count, left)
            return cut if exact is None or cut.assembly.is_stable() else exact
        lacking = max(1, -left)
    return exact or lacking


def _at_start(index: int, slot: Sentences) -> bool:
    return index == 1 and slot.start == 0


class _Fixed:
    """Tokens of texts, each found once."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[Opening | Whole | Closing, Ids] = {}

    def ids(self, slot: Opening | Whole | Closing) -> Ids:
        if slot not in self._known:
            match slot:
                case Opening():
                    ids = self._tokenizer.opening(slot.text)
                case Whole():
                    ids = self._tokenizer.continuations([slot.text], behind=slot.behind)[0].ids
                case Closing():
                    ids = self._tokenizer.closing(slot.question, slot.answer_prefix, behind=slot.behind)
            self._known[slot] = ids
        return self._known[slot]

    def tokens(self, slots: Sequence[Slot]) -> int:
        return sum(len(self.ids(slot)) for slot in slots if not isinstance(slot, Sentences | Cut))


def _assembled(
    slots: Sequence[Slot],
    source: Source,
    tokenizer: PromptTokenizer,
    fixed: _Fixed,
    sentences: int,
    cut_tokens: int,
) -> Filled:
    """The slots as a prompt with so many whole sentences and so many tokens of a cut one."""
    assembly = Assembly(tokenizer)
    before: Ids = np.empty(0, dtype=np.int32)
    for index, slot in enumerate(slots):
        match slot:
            case Sentences():
                stretch = source.stretch(slot, at_start=_at_start(index, slot))
                assembly.add_stretch(stretch)
                before = stretch.last
            case Cut():
                following = slots[index + 1]
                assert not isinstance(following, Sentences | Cut)
                candidates = source.cuts(sentences, cut_tokens, at_start=index == 1)
                before = _first_stable(candidates, before, fixed.ids(following), tokenizer)
                assembly.add(before)
            case _:
                before = fixed.ids(slot)
                assembly.add(before, needle=isinstance(slot, Whole) and slot.needle)
    return Filled(
        assembly=assembly,
        haystack_tokens=source.haystack.start_of(sentences) + cut_tokens,
        sentences=sentences,
        has_cut=cut_tokens > 0,
    )


def _first_stable(candidates: Iterator[Ids], before: Ids, behind: Ids, tokenizer: PromptTokenizer) -> Ids:
    """The first candidate that survives between its neighbours; where none does, the first one."""
    first = next(candidates)
    if tokenizer.are_stable([np.concatenate([before, first, behind])])[0]:
        return first
    others = list(itertools.islice(candidates, CUTS_TRIED))
    stable = tokenizer.are_stable([np.concatenate([before, ids, behind]) for ids in others])
    return next(itertools.compress(others, stable), first)
