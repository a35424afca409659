"""Variable tracking, in RULER's words: which variables have a number, some of them through others.

A solved example comes first, with names of three letters; then the template with the haystack in its place.
RULER joins lines of noise and assignments by spaces, each line with its newline behind it, so that there is a
space at the start of a line, and two behind an assignment that ends in one.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bamctl.tasks.fill import Closing, Cut, Opening, Sentences, Slot, Source, Whole, fill, turns
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.layout import anchors_behind
from bamctl.tasks.ruler.limits import (
    MARK,
    chat_tokens,
    check,
    leading_equal,
    most_tokens,
    prompt_tokens,
    target_length,
    tokens_in_parts,
    too_short,
)
from bamctl.tasks.ruler.variable_tracking_spec import (
    EXAMPLE_HOPS,
    Chain,
    VariableTrackingSpec,
    context,
    placed,
)
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, PromptTokenizer, words_and_spaces

LETTERS = 5
"""Of a variable's name."""

EXAMPLE_LETTERS = 3
"""Of a variable's name in the example."""

VALUES = (10_000, 99_999)
"""Numbers from the first on, up to but not including the second."""

EXAMPLE_TOKENS = 500
"""What the example may have, the tokens that may be generated included."""

EXAMPLE_STEP = 5
"""Lines of noise in the example are a multiple of this, and at least this many."""


@dataclass(frozen=True, kw_only=True)
class VariableTrackingDraw:
    """What chance decides of a sample. No name and no value occurs in two chains."""

    chains: tuple[Chain, ...]
    places: tuple[tuple[float, ...], ...]
    """Of each chain where its assignments go: ascending, 0 to 1, of what is left for them. The first one of
    the first chain goes where the depth says and has none."""
    example: tuple[Chain, ...]
    example_places: tuple[tuple[float, ...], ...]


class VariableTrackingTask:
    """RULER's variable tracking for one tokenizer."""

    def __init__(self, spec: VariableTrackingSpec, tokenizer: PromptTokenizer) -> None:
        """Tokenises what all samples have in common.

        Raises:
            BadInput: the noise leaves no token, or a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        before = spec.around("1")[0]
        line, gap = spec.noise + "\n", words_and_spaces(before)[1]
        haystack = Haystack.of([" " + line], tokenizer, behind=(*BEHIND_NEWLINE, *ANCHORS))
        first = tokenizer.continuations([gap + line], behind=anchors_behind(before))[0]
        run_on, *beginnings = tokenizer.continuations([" " + text for text in turns(spec.noise)])
        self._source = Source(
            haystack, first=first.ids, run_on=run_on.ids, beginnings=[text.ids for text in beginnings]
        )
        self._before = tokenizer.opening(" " + before)
        self.example_lines = self._example_lines()
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`.

        The first assignment of the chain that is asked for is the one at `depth`, or as near as the others,
        which come behind it, let it be.
        """
        check(self.spec, length, depth, self.shortest_length)
        return self.assemble(self.draw(rng), length=length, depth=depth)

    def draw(self, rng: np.random.Generator) -> VariableTrackingDraw:
        """The names, values and places of a sample."""
        spec = self.spec
        hops = min(EXAMPLE_HOPS, spec.num_hops)
        drawn = rng.choice(VALUES[1] - VALUES[0], size=2 * spec.num_chains, replace=False) + VALUES[0]
        values = [str(value) for value in drawn]
        chains = _chains(values[: spec.num_chains], spec.num_hops, LETTERS, rng)
        example = _chains(values[spec.num_chains :], hops, EXAMPLE_LETTERS, rng)
        free = [spec.num_hops, *[spec.num_hops + 1] * (spec.num_chains - 1)]
        return VariableTrackingDraw(
            chains=chains,
            places=tuple(tuple(np.sort(rng.random(count)).tolist()) for count in free),
            example=example,
            example_places=tuple(tuple(np.sort(rng.random(hops + 1)).tolist()) for _ in example),
        )

    def assemble(self, drawn: VariableTrackingDraw, *, length: int, depth: float) -> Prompt:
        """The sample of a draw.

        Raises:
            BadInput: the length is too short.
        """
        spec = self.spec
        room = prompt_tokens(spec, length)
        slots = partial(self._slots, drawn, self._opening(drawn), depth)
        filled = fill(slots, self._source, self.tokenizer, room)
        if isinstance(filled, int):
            raise too_short(spec, length, max(self.shortest_length, length + filled))
        units = self._units(filled.sentences, filled.has_cut)
        where = placed(units, self._positions(drawn, units, depth))
        spans = {(at.chain, at.hop): span for at, span in zip(where, filled.assembly.needles, strict=True)}
        depths = {(at.chain, at.hop): 100 * at.before / units for at in where}
        depths[0, 0] = float(depth)
        ids, start = filled.assembly.token_ids(), len(self.tokenizer.prefix)
        names = drawn.chains[0].names
        prefix = spec.around(drawn.chains[0].value)[2]
        answers = self.tokenizer.continuations([" " + name for name in names], behind=(prefix, *ANCHORS))
        return Prompt(
            token_ids=ids,
            references=names,
            answer_ids=tuple(tuple(answer.ids.tolist()) for answer in answers),
            needle_spans=tuple(spans[which] for which in sorted(spans)),
            depths=tuple(depths[which] for which in sorted(spans)),
            shared_prefix=start + leading_equal(ids[start:], self._before),
            haystack_repeats=0,
            roundtrip_stable=filled.assembly.is_stable() and answers[0].clean,
            tokens_to_generate=spec.tokens_to_generate,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def _slots(
        self, drawn: VariableTrackingDraw, opening: str, depth: float, lines: int, has_cut: bool
    ) -> list[Slot] | None:
        """The prompt with so many lines of noise, or their parts, and a cut line or not.

        None where the chains have no room; with no line at all, which is how `fill` finds out how much room
        there is for them, assignments stand side by side.
        """
        spec = self.spec
        units = self._units(lines, has_cut)
        if 0 < units <= spec.num_hops + 1:
            return None
        before, behind, answer_prefix = spec.around(drawn.chains[0].value)
        start, gap = words_and_spaces(before)
        newlines = "" if has_cut else behind[: len(behind) - len(behind.lstrip("\n"))]
        layout = _Layout(Opening(text=opening + start), gap, anchors_behind(before))
        whole = units - has_cut
        add_noise = layout.add_lines if self._has_lines(lines, has_cut) else layout.add_parts
        done = 0
        for at in placed(units, self._positions(drawn, units, depth)):
            add_noise(spec, done, min(at.before, whole))
            layout.add(drawn.chains[at.chain].assignments[at.hop], needle=True)
            done = at.before
        add_noise(spec, done, whole, ending=newlines)
        if has_cut:
            layout.slots.append(Cut())
        layout.slots.append(
            Closing(
                question=behind[len(newlines) :],
                answer_prefix=answer_prefix,
                behind=ANCHORS if has_cut else BEHIND_NEWLINE,
            )
        )
        return layout.slots

    def _units(self, lines: int, has_cut: bool) -> int:
        """What assignments may stand before."""
        return has_cut + lines * (1 if self._has_lines(lines, has_cut) else len(self.spec.sentences))

    def _has_lines(self, lines: int, has_cut: bool) -> bool:
        """Whether assignments go between whole lines, and not between their parts."""
        return lines + has_cut > self.spec.num_hops + 1

    def _positions(self, drawn: VariableTrackingDraw, units: int, depth: float) -> list[list[int]]:
        """Where the assignments of each chain go, in RULER's manner of counting."""
        hops = self.spec.num_hops
        first = max(0, min(int(units * (depth / 100)), units - 1 - hops))
        others = _spread(drawn.places[0], units - 1 - first)
        positions = [[first, *(first + 1 + place for place in others)]]
        for chain, places in enumerate(drawn.places[1:], start=1):
            positions.append(_spread(places, units + chain * (hops + 1)))
        return positions

    def _opening(self, drawn: VariableTrackingDraw) -> str:
        """The example, solved, and what stands between it and the template."""
        return f" {self._example(drawn, self.example_lines)} {' '.join(drawn.example[0].names)}\n\n\n\n"

    def _example(self, drawn: VariableTrackingDraw, lines: int) -> str:
        units = self.spec.units(lines, len(drawn.example[0].names) - 1)
        positions = [
            _spread(places, len(units) + chain * len(places))
            for chain, places in enumerate(drawn.example_places)
        ]
        before, behind, answer_prefix = self.spec.around(drawn.example[0].value)
        return before + context(units, drawn.example, positions) + behind + answer_prefix

    def _example_lines(self) -> int:
        """Lines of noise in the example, found as RULER does, which counts its answer as a list too."""
        drawn = self.draw(np.random.default_rng(0))
        names = str(list(drawn.example[0].names))
        most = EXAMPLE_TOKENS - self.spec.tokens_to_generate
        lines = EXAMPLE_STEP
        while True:
            text = f"{self._example(drawn, lines + EXAMPLE_STEP)} {names}"
            if len(self.tokenizer.opening(text)) > most:
                return lines
            lines += EXAMPLE_STEP

    def _shortest_length(self) -> int:
        """The length that holds any draw: texts in parts, names and values at their longest, few lines."""
        spec, tokenizer = self.spec, self.tokenizer
        hops = min(EXAMPLE_HOPS, spec.num_hops)
        marked = VariableTrackingDraw(
            chains=(_marked(spec.num_hops),) * spec.num_chains,
            places=(),
            example=(_marked(hops),) * spec.num_chains,
            example_places=(tuple(np.linspace(0, 1, hops + 1, endpoint=False).tolist()),) * spec.num_chains,
        )
        value = most_tokens(string.digits, len(str(VALUES[0])), tokenizer)
        values = spec.num_chains + (spec.template + spec.answer_prefix).count("{query}")
        example = self._opening(marked)
        assignments = [text for chain in marked.chains for text in chain.assignments]
        main = " ".join(["".join(spec.around(MARK)), *assignments])
        tokens = len(tokenizer.prefix) + chat_tokens(tokenizer)
        for text, letters in ((example, EXAMPLE_LETTERS), (main, LETTERS)):
            tokens += tokens_in_parts(text, tokenizer) + values * value
            tokens += (text.count(MARK) - values) * most_tokens(string.ascii_uppercase, letters, tokenizer)
        parts = tokenizer.continuations([" " + part for part in spec.sentences])
        lines = (spec.num_hops + 1) // len(parts) + 1
        tokens += lines * sum(len(part.ids) + 1 for part in parts)
        return target_length(spec, tokens)


class _Layout:
    """Slots of one prompt, in order: what follows the opening joins it, everything else has a space first."""

    def __init__(self, opening: Opening, gap: str, behind_opening: tuple[str, ...]) -> None:
        self.slots: list[Slot] = [opening]
        self._gap = gap
        self._behind_opening = behind_opening

    def add(self, text: str, *, needle: bool = False) -> None:
        """Adds a text that stays whole."""
        if len(self.slots) == 1:
            slot = Whole(text=self._gap + text, needle=needle, behind=self._behind_opening)
        else:
            slot = Whole(text=" " + text, needle=needle)
        self.slots.append(slot)

    def add_lines(self, spec: VariableTrackingSpec, start: int, stop: int, *, ending: str = "") -> None:
        """Adds lines of noise; newlines behind the last one are one text with it."""
        whole = stop - bool(ending)
        if start < whole:
            self.slots.append(Sentences(start=start, stop=whole))
        if start < stop and ending:
            self.add(spec.noise + "\n" + ending)

    def add_parts(self, spec: VariableTrackingSpec, start: int, stop: int, *, ending: str = "") -> None:
        """Adds parts of lines; a newline right behind a full stop has no space, and is one text with it."""
        texts: list[str] = []
        for unit in range(start, stop):
            part = spec.sentences[unit % len(spec.sentences)]
            if texts and texts[-1].endswith(".") and part.startswith("\n"):
                texts[-1] += part
            else:
                texts.append(part)
        for index, text in enumerate(texts, start=1):
            self.add(text + ending * (index == len(texts)))


def _chains(values: Sequence[str], hops: int, letters: int, rng: np.random.Generator) -> tuple[Chain, ...]:
    """Chains for some values. No name occurs twice, none is `VAR`."""
    found: dict[str, None] = {}
    while len(found) < len(values) * (hops + 1):
        name = "".join(string.ascii_uppercase[letter] for letter in rng.integers(26, size=letters))
        if name != "VAR":
            found[name] = None
    names = list(found)
    return tuple(
        Chain(value=value, names=tuple(names[start : start + hops + 1]))
        for start, value in zip(range(0, len(names), hops + 1), values, strict=True)
    )


def _marked(hops: int) -> Chain:
    return Chain(value=MARK, names=(MARK,) * (hops + 1))


def _spread(places: Sequence[float], free: int) -> list[int]:
    """Ascending places from 0 to 1 as different numbers below `free`, which is at least as many."""
    spare = max(0, free - len(places))
    return [index + int(place * (spare + 1)) for index, place in enumerate(places)]
