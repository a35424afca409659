"""Where the pieces of a needle prompt go.

RULER joins the sentences of essays by spaces, and all other haystacks line by line. Tokenizers take a newline
together with the full stop before it more often than with the word behind it, so it belongs to the former; a
space they take together with the word behind it, so it belongs to the latter.
Where needles go is RULER's rule too: of m sentences the first int(m · d / 100) stand before a needle at depth
d; of m lines likewise, but that one always stands behind all needles.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bamctl.tasks.fill import Closing, Cut, Opening, Sentences, Slot, Whole
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, words_and_spaces


@dataclass(frozen=True, kw_only=True)
class NeedlePrompt:
    """The texts of one prompt, less its haystack."""

    before: str
    question: str
    answer_prefix: str
    needles: tuple[str, ...]
    """With no white space around them, in ascending order of their depths."""
    depths: tuple[float, ...]
    """0 to 100."""
    behind_opening: tuple[str, ...] = BEHIND_NEWLINE
    """Anchors for what follows `before`: what `anchors_behind` says of it."""


def anchors_behind(before: str) -> tuple[str, ...]:
    """Anchors for what follows a text in front of a haystack; none where there is no such text."""
    text, _ = words_and_spaces(before)
    if text.endswith("\n"):
        return (*BEHIND_NEWLINE, *ANCHORS)
    return (text, *ANCHORS) if text else ()


def essay_slots(prompt: NeedlePrompt, sentences: int, has_cut: bool) -> list[Slot]:
    """Needles between the sentences of essays.

    What lies between needles is joined to them by spaces even where it is empty: a needle at the very start,
    or right behind another one, has a space more, and so has the question behind a needle at the very end.
    """
    count = sentences + has_cut
    opening, gap = words_and_spaces(prompt.before)
    slots: list[Slot] = [Opening(text=opening)]
    done = 0
    for index, (needle, place) in enumerate(zip(prompt.needles, _places(prompt, count), strict=True)):
        slots += _sentences(done, place, sentences)
        at_start = len(slots) == 1
        space = gap + " " if at_start else "  " if index and place == done else " "
        behind = prompt.behind_opening if at_start else ANCHORS
        slots.append(Whole(text=space + needle, needle=True, behind=behind))
        done = place
    slots += _sentences(done, count, sentences)
    question = prompt.question if done < count else " " + prompt.question
    slots.append(Closing(question=question, answer_prefix=prompt.answer_prefix))
    return slots


def line_slots(prompt: NeedlePrompt, lines: int, has_cut: bool) -> list[Slot] | None:
    """Needles between lines; each line has its newline behind it, but the last one where that is cut.

    None where a last line that is not cut would end otherwise than lines do: nothing but a newline in front
    of the question is the end of a line.
    """
    count = lines + has_cut
    ends_line = prompt.question[:1] == "\n" and not prompt.question[1:2].isspace()
    if lines and not has_cut and not ends_line:
        return None
    opening, gap = words_and_spaces(prompt.before)
    slots: list[Slot] = [Opening(text=opening)]
    done = 0
    for index, (needle, place) in enumerate(zip(prompt.needles, _line_places(prompt, count), strict=True)):
        slots += _sentences(done, place, lines)
        at_start = len(slots) == 1
        ends_prompt = not count and index == len(prompt.needles) - 1 and not ends_line
        text = gap * at_start + needle + "\n" * (not ends_prompt)
        behind = prompt.behind_opening if at_start else BEHIND_NEWLINE
        slots.append(Whole(text=text, needle=True, behind=behind))
        done = place
    slots += _sentences(done, count, lines)
    starts_line = ends_line and not has_cut
    slots.append(
        Closing(
            question=prompt.question[1:] if starts_line else prompt.question,
            answer_prefix=prompt.answer_prefix,
            behind=BEHIND_NEWLINE if starts_line else ANCHORS,
        )
    )
    return slots


def _places(prompt: NeedlePrompt, count: int) -> list[int]:
    """Sentences before each needle."""
    return [int(count * (depth / 100)) for depth in prompt.depths]


def _line_places(prompt: NeedlePrompt, count: int) -> list[int]:
    """Lines before each needle."""
    return [min(place, max(0, count - 1)) for place in _places(prompt, count)]


def _sentences(start: int, stop: int, whole: int) -> Sequence[Slot]:
    """Sentences of which the one behind the first `whole` is cut."""
    slots: list[Slot] = []
    if start < min(stop, whole):
        slots.append(Sentences(start=start, stop=min(stop, whole)))
    return [*slots, *itertools.repeat(Cut(), start <= whole < stop)]
