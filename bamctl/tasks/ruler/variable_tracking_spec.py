"""The definition of variable tracking, its texts, and where assignments go between lines of noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bamctl.tasks.ruler.spec import NonEmpty, RulerSpec, check_formats, format_around

EXAMPLE_HOPS = 10
"""The most hops that the solved example has."""


class VariableTrackingSpec(RulerSpec):
    """Chains of assignments between lines of noise; all variables of one chain are asked for."""

    task: Literal["variable_tracking"]
    num_chains: Annotated[int, Field(ge=1, le=100)] = 1
    """Chains; the first one is asked for."""
    num_hops: Annotated[int, Field(ge=1, le=1000)] = 4
    """Variables of a chain that take their value from the one before; a chain has one variable more."""
    noise: NonEmpty
    """A line of the haystack."""

    @model_validator(mode="after")
    def _formats(self) -> "VariableTrackingSpec":
        check_formats(lambda: self.around("1"), "{context}, {query} and {num_v}")
        return self

    def around(self, value: str) -> tuple[str, str, str]:
        """The texts before and behind the haystack, and the beginning of the answer, for this value."""
        return format_around(self.template, self.answer_prefix, query=value, num_v=self.num_hops + 1)

    @property
    def sentences(self) -> tuple[str, ...]:
        """One line of noise in parts, as RULER splits it where there are too few lines: at full stops.

        The last part is its newline.
        """
        return tuple(part + "." if part.strip() else part for part in (self.noise + "\n").split("."))

    def units(self, lines: int, hops: int) -> list[str]:
        """What assignments may stand before: lines, or their parts where a chain has as many assignments."""
        return ([self.noise + "\n"] if lines > hops + 1 else list(self.sentences)) * lines


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One chain: a number, and the variables that have it in turn."""

    value: str
    names: tuple[str, ...]

    @property
    def assignments(self) -> list[str]:
        """One for each variable. All but the first end in a space of their own."""
        hops = zip(self.names[1:], self.names, strict=False)
        return [f"VAR {self.names[0]} = {self.value}", *(f"VAR {new} = VAR {old} " for new, old in hops)]


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where one assignment stands."""

    before: int
    """Units of the haystack before it."""
    chain: int
    hop: int


def placed(units: int, positions: Sequence[Sequence[int]]) -> list[Placed]:
    """Where the assignments of chains stand, in the order in which one reads them.

    Args:
        units: how many there are.
        positions: ascending, for each chain. As in RULER, a position counts what is there before the chain
            is: units and the assignments of earlier chains; the assignment goes before what has this number.
    """
    order: list[tuple[int, int, int]] = []  # index among units and assignments, chain, hop
    for chain, places in enumerate(positions):
        order = [(at + sum(place <= at for place in places), earlier, hop) for at, earlier, hop in order]
        order += [(place + hop, chain, hop) for hop, place in enumerate(places)]
    return [
        Placed(before=min(units, index - rank), chain=chain, hop=hop)
        for rank, (index, chain, hop) in enumerate(sorted(order))
    ]


def context(units: Sequence[str], chains: Sequence[Chain], positions: Sequence[Sequence[int]]) -> str:
    """The text of a haystack with the assignments of chains in it."""
    texts: list[str] = []
    done = 0
    for place in placed(len(units), positions):
        texts += [*units[done : place.before], chains[place.chain].assignments[place.hop]]
        done = place.before
    return " ".join([*texts, *units[done:]]).replace(". \n", ".\n")
