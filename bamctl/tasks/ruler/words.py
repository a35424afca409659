"""The keys and values of needles, drawn as RULER draws them."""

import uuid
from functools import cache
from importlib import resources

import numpy as np

from bamctl.tasks.ruler.niah_spec import NeedleType

DIGITS = 7
"""Of a number, the first of them not 0."""


@cache
def word_list(kind: str) -> tuple[str, ...]:
    """A list of the package wonderwords: ``noun``, ``adjective`` or ``verb``; each word once."""
    text = resources.files("wonderwords.assets").joinpath(f"{kind}list.txt").read_text(encoding="utf-8")
    return tuple(dict.fromkeys(line.rstrip() for line in text.splitlines()))


def draw(kind: NeedleType, rng: np.random.Generator) -> str:
    """One key or value: seven digits, ``adjective-noun``, or a uuid of version 4."""
    match kind:
        case "numbers":
            return str(rng.integers(10 ** (DIGITS - 1), 10**DIGITS))
        case "words":
            adjectives, nouns = word_list("adjective"), word_list("noun")
            return f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"
        case "uuids":
            return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def draw_distinct(kind: NeedleType, count: int, rng: np.random.Generator) -> list[str]:
    """Several, none of them twice: what is asked for has one answer."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw(kind, rng)] = None
    return list(found)
