"""Where the pieces of a needle prompt go.

RULER joins the sentences of essays by spaces, and all other haystacks line by line. Tokenizers take a newline
together with the full stop before it more often than with the word behind it, so it belongs to the former.
Where needles go is RULER's rule too: of m sentences the first int(m · d / 100) stand before a needle at depth
d; of m lines likewise, but that one always stands behind all needles.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bamctl.tasks.fill import Closing, Cut, Opening, Sentences, Slot, Whole
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE


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


def essay_slots(prompt: NeedlePrompt, sentences: int, has_cut: bool) -> list[Slot]:
    """Needles between the sentences of essays.

    What lies between needles is joined to them by spaces even where it is empty: a needle at the very start,
    or right behind another one, has a space more, and so has the question behind a needle at the very end.
    """
    count = sentences + has_cut
    slots: list[Slot] = [Opening(text=prompt.before)]
    done = 0
    for index, (needle, place) in enumerate(zip(prompt.needles, _places(prompt, count), strict=True)):
        space = "  " if index and place == done else " "
        slots += _sentences(done, place, sentences)
        slots.append(Whole(text=space + needle, needle=True))
        done = place
    slots += _sentences(done, count, sentences)
    question = prompt.question if done < count else " " + prompt.question
    slots.append(Closing(question=question, answer_prefix=prompt.answer_prefix))
    return slots


def line_slots(prompt: NeedlePrompt, lines: int, has_cut: bool) -> list[Slot]:
    """Needles between lines; each line has its newline behind it, but the last one where that is cut."""
    count = lines + has_cut
    places = [min(place, max(0, count - 1)) for place in _places(prompt, count)]
    slots: list[Slot] = [Opening(text=prompt.before)]
    done = 0
    for needle, place in zip(prompt.needles, places, strict=True):
        slots += _sentences(done, place, lines)
        slots.append(Whole(text=needle + "\n", needle=True, behind=BEHIND_NEWLINE))
        done = place
    slots += _sentences(done, count, lines)
    starts_line = not has_cut and prompt.question.startswith("\n")
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


def _sentences(start: int, stop: int, whole: int) -> Sequence[Slot]:
    """Sentences of which the one behind the first `whole` is cut."""
    slots: list[Slot] = []
    if start < min(stop, whole):
        slots.append(Sentences(start=start, stop=min(stop, whole)))
    return [*slots, *itertools.repeat(Cut(), stop > whole)]
