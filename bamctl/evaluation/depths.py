"""Where needles go: a depth for every sample of a length."""

import math
from dataclasses import dataclass

import numpy as np

from bamctl.errors import BadInput
from bamctl.tasks.ruler.niah import DEPTHS

_NAMED = {"beginning": 0.0, "end": 100.0}


@dataclass(frozen=True, kw_only=True)
class DepthPolicy:
    """A rule that gives every sample its depth, 0 (start of the haystack) to 100 (its end).

    `values` are taken in turn. None draws each sample's depth from its own random stream: one of `choices`,
    or of all depths where there are none.
    """

    text: str
    """As results tell it: ``equidistant:20``, ``0,50,100``, ``random``."""
    values: tuple[float, ...] | None
    choices: tuple[float, ...] | None = None

    def depth(self, sample: int) -> float | None:
        """The depth of a sample, None where it is to be drawn."""
        return None if self.values is None else self.values[sample % len(self.values)]

    def drawn(self, rng: np.random.Generator) -> float:
        """A depth by chance."""
        return float(rng.uniform(0, 100) if self.choices is None else rng.choice(self.choices))


def parse_depths(text: str, samples: int) -> DepthPolicy:
    """Reads ``--depths``.

    ``equidistant``: as many as there are samples, from 0 to 100. A number N: N equidistant ones, taken in
    turn. A list ``0,25,50`` or one value ``50%``: these, in turn. ``beginning``, ``end``, ``random``;
    ``ruler``: drawn from RULER's 40.

    Raises:
        BadInput: none of these, a depth outside 0 … 100, or more equidistant depths than samples.
    """
    words = text.strip()
    if words == "random":
        return DepthPolicy(text="random", values=None)
    if words == "ruler":
        return DepthPolicy(text="ruler", values=None, choices=tuple(DEPTHS.tolist()))
    if words == "equidistant":
        return DepthPolicy(text=f"equidistant:{samples}", values=_equidistant(samples))
    if words in _NAMED:
        values: tuple[float, ...] = (_NAMED[words],)
    elif words.isdecimal():
        if len(words) > 5 or not 1 <= int(words) <= 10_000:
            raise BadInput(
                f"depths {text!r}: a number of depths lies between 1 and 10000; a single depth is written 50%"
            )
        if int(words) > samples:  # the last ones, deep in the haystack, would never be looked at
            raise BadInput(
                f"depths {text!r}: {words} equidistant depths need as many samples, not {samples}; a single"
                " depth is written 50%"
            )
        return DepthPolicy(text=f"equidistant:{int(words)}", values=_equidistant(int(words)))
    else:
        values = tuple(_depth(part, text) for part in words.split(",") if part.strip())
        if not values:
            raise BadInput(f"depths {text!r} name no depth; write for example 0,25,50,75,100")
    return DepthPolicy(text=",".join(f"{value:.15g}" for value in values), values=values)


def _equidistant(count: int) -> tuple[float, ...]:
    return (50.0,) if count == 1 else tuple(100 * index / (count - 1) for index in range(count))


def _depth(part: str, text: str) -> float:
    try:
        value = float(part.strip().removesuffix("%"))
    except ValueError:
        raise BadInput(
            f"depths {text!r}: {part.strip()!r} is no depth; write equidistant, random, ruler, a number of"
            " depths, or a list such as 0,25,50"
        ) from None
    if not (math.isfinite(value) and 0 <= value <= 100):
        raise BadInput(
            f"depths {text!r}: {part.strip()} lies outside 0 (start of the haystack) to 100 (its end)"
        )
    return value
