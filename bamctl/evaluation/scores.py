"""How right an answer is."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

Metric = Literal["exact", "string_match_all", "string_match_part"]
"""What a task's score is: an exact answer, or one of RULER's two measures of recall."""

_MOST_STARTS = 10_000
"""Places at which the next reference of a list is looked for, before a prediction is given up on."""

_CONTROL = re.compile(r"[\x00-\x1f]")
_NUMBERED = re.compile(r"(?<!\S)\(?\d{1,3}[.)]\s+")
"""The ``1.`` or ``2)`` before an entry of a list."""
_BETWEEN = re.compile(r"\W|\band\b")
"""What may stand between two answers, in pieces."""
_LONGER = re.compile(r"\w|[.,]\d|[-'’]\w")
"""What behind an answer makes it a longer word or number."""
_LONGER_NUMBER = re.compile(r"\w|[.,]\d")
"""The same where answers are numbers."""
_SIGNED = re.compile(r"[-−.]\d")
"""What before a number makes it another one."""


def postprocess(prediction: str) -> str:
    """A prediction as RULER scores it: control characters as newlines, no white space around it."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def recall(prediction: str, references: Sequence[str], metric: Metric = "string_match_all") -> float:
    """RULER's score of one sample, 0 … 1, with the prediction postprocessed as RULER does it.

    A reference is found where it is a part of the prediction, in whatever case. string_match_all, and exact:
    the share of the references that are found. string_match_part: 1 where at least one is.

    Args:
        prediction: what the model wrote.
        references: the right answers, at least one.
        metric: what the task's score is.
    """
    text = postprocess(prediction).lower()
    found = [reference.lower() in text for reference in references]
    return float(any(found)) if metric == "string_match_part" else sum(found) / len(found)


def exact_match(prediction: str, references: Sequence[str], metric: Metric = "exact") -> bool:
    """Whether the answer, and nothing but the answer, stands at the start of the prediction.

    White space before it is passed over, and case does not matter. What follows must not make it a longer
    word or number: ``12345.`` and ``12345 is`` are right for 12345, while ``912345``, ``123456``, ``12345.6``
    and ``It is 12345`` are wrong. For RULER's metrics a hyphen makes a longer word too: ``red-panda`` is
    wrong for red.

    Of several references string_match_part wants one. The other metrics want each of them once, with nothing
    between but punctuation and "and": exact in order, string_match_all in any order, and numbered (``1.``,
    ``2)``) if the model likes. A list that can be read in thousands of ways, or has thousands of characters
    between its entries, is not.

    Args:
        prediction: what the model wrote.
        references: the right answers, at least one, none of them empty.
        metric: what the task's score is.
    """
    wanted = tuple(reference.lower() for reference in references)
    if metric == "exact":
        return _lists(prediction.lstrip().lower(), wanted, in_order=True, longer=_LONGER_NUMBER)
    text = postprocess(prediction).lower()
    if metric == "string_match_part":
        return any(_lists(text, (one,), in_order=True, longer=_LONGER) for one in wanted)
    return _lists(text, wanted, in_order=False, longer=_LONGER)


def score(exact: bool, recalled: float, metric: Metric) -> float:
    """One sample's score, 0 … 1: what its metric says of `exact_match` and `recall`."""
    return float(exact) if metric == "exact" else recalled


def _lists(text: str, wanted: tuple[str, ...], *, in_order: bool, longer: re.Pattern[str]) -> bool:
    """Whether `text` begins with a list of what is wanted.

    References may begin alike, and so a list may be read in several ways. They are tried depth first, the
    longest reference first; a way is where its last answer ended and what is still to come.
    """
    if not in_order:
        wanted = tuple(sorted(wanted, key=len, reverse=True))
    ways = [(0, wanted)]
    known = set(ways)
    starts_left = _MOST_STARTS + 10 * len(wanted)
    while ways:
        end, missing = ways.pop()
        if not missing:
            if not longer.match(text, end):
                return True
            continue
        starts = _first_starts(text, in_order) if missing == wanted else _starts(text, end, in_order, longer)
        further = []
        for start in starts:
            starts_left -= 1
            if starts_left < 0:
                return False
            for place, reference in enumerate(missing[:1] if in_order else missing):
                if text.startswith(reference, start):
                    further.append((start + len(reference), missing[:place] + missing[place + 1 :]))
        for way in reversed(further):
            if way not in known:
                known.add(way)
                ways.append(way)
    return False


def _first_starts(text: str, in_order: bool) -> Iterator[int]:
    """Where the first answer of a list may begin."""
    yield 0
    if not in_order and (number := _NUMBERED.match(text)):
        yield number.end()


def _starts(text: str, end: int, in_order: bool, longer: re.Pattern[str]) -> Iterator[int]:
    """Where the next answer may begin, behind one that ended at `end`."""
    if longer.match(text, end):
        if text[end] == ",":  # which parts two numbers where the second one comes at once
            yield end + 1
        return
    place = end
    while piece := (not in_order and _NUMBERED.match(text, place)) or _BETWEEN.match(text, place):
        place = piece.end()
        if not _SIGNED.match(text, place - 1):
            yield place
