"""How much haystack goes into a prompt, so that it has exactly so many tokens.

A prompt is a list of slots: texts that stay whole, runs of whole sentences, and at most one cut sentence
behind the last whole one, which makes up the exact number. Where the cut does not survive decoding and
encoding (half a character, say) another sentence's beginning is taken.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bamctl.tasks.assembly import Assembly, Stretch
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.tokenization import ANCHORS, Ids, PromptTokenizer

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
    """

    def __init__(self, haystack: Haystack, *, first: Ids | None = None, run_on: Ids | None = None) -> None:
        self.haystack = haystack
        self.first = haystack.sentence(0) if first is None else first
        self._run_on = run_on

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Filled:
    """A prompt of the length that was asked for."""

    assembly: Assembly
    haystack_tokens: int
    """Of whole sentences and the cut one."""


def fill(
    slots_of: Callable[[int, bool], Sequence[Slot]],
    source: Source,
    tokenizer: PromptTokenizer,
    tokens: int,
) -> Filled | int:
    """Puts a prompt together.

    Args:
        slots_of: the prompt's slots with so many whole sentences, and with a cut one behind them or not.
        source: where sentences come from.
        tokenizer: of the texts.
        tokens: how many the prompt has to have, `PromptTokenizer.prefix` included.

    Returns:
        The prompt, or by how many tokens there is too little room for it.
    """
    fixed = _Fixed(tokenizer)
    room = tokens - len(tokenizer.prefix)
    lacking = 0
    most = source.haystack.whole_sentences(max(0, room - fixed.tokens(slots_of(0, False)))) + 1
    for count, has_cut in itertools.product(range(most, -1, -1), (False, True)):
        slots = slots_of(count, has_cut)
        left = room - fixed.tokens(slots)
        left -= sum(
            source.length(slot, at_start=_at_start(index, slot))
            for index, slot in enumerate(slots)
            if isinstance(slot, Sentences)
        )
        if left == 0 and not has_cut:
            return _assembled(slots, source, tokenizer, fixed, None)
        if left > 0 and has_cut:
            return _assembled(slots, source, tokenizer, fixed, (count, left))
        lacking = max(1, -left)
    return lacking


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
    cut: tuple[int, int] | None,
) -> Filled:
    """The slots as a prompt; `cut` is the cut sentence's number and its tokens."""
    assembly = Assembly(tokenizer)
    haystack_tokens = 0
    before: Ids = np.empty(0, dtype=np.int32)
    for index, slot in enumerate(slots):
        match slot:
            case Sentences():
                stretch = source.stretch(slot, at_start=_at_start(index, slot))
                assembly.add_stretch(stretch)
                before = stretch.last
                haystack_tokens += len(stretch.ids)
            case Cut():
                assert cut is not None
                following = slots[index + 1]
                assert not isinstance(following, Sentences | Cut)
                candidates = source.cuts(*cut, at_start=index == 1)
                before = _first_stable(candidates, before, fixed.ids(following), tokenizer)
                assembly.add(before)
                haystack_tokens += cut[1]
            case _:
                before = fixed.ids(slot)
                assembly.add(before, needle=isinstance(slot, Whole) and slot.needle)
    return Filled(assembly=assembly, haystack_tokens=haystack_tokens)


def _first_stable(candidates: Iterator[Ids], before: Ids, behind: Ids, tokenizer: PromptTokenizer) -> Ids:
    """The first candidate that survives between its neighbours; where none does, the first one."""
    first = next(candidates)
    if tokenizer.are_stable([np.concatenate([before, first, behind])])[0]:
        return first
    others = list(itertools.islice(candidates, CUTS_TRIED))
    stable = tokenizer.are_stable([np.concatenate([before, ids, behind]) for ids in others])
    return next(itertools.compress(others, stable), first)
