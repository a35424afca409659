"""Lengths as people write them: 512, 4k, 512k, 1M.

k and K are 1024, M is 1024². A length counts tokens of the prompt.
"""

import re

from bamctl.errors import BadInput

LONGEST = 2**40
"""Positions are exact integers up to here, and no prompt may be longer."""

_LENGTH = re.compile(r"(?P<number>[0-9]{1,20})(?P<unit>[kKM]?)")
_UNITS = {"": 1, "k": 1024, "K": 1024, "M": 1024**2}


def parse_length(text: str) -> int:
    """Reads one length in tokens: ``parse_length("512k") == 524288``.

    Raises:
        BadInput: `text` is no length, or lies outside 1 … 2⁴⁰.
    """
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"length {text!r} is not a number of tokens such as 4096, 4k, 512k or 1M")
    length = int(match["number"]) * _UNITS[match["unit"]]
    if not 1 <= length <= LONGEST:
        raise BadInput(f"length {text!r} is {length} tokens; a length lies between 1 and 2^40")
    return length


def parse_lengths(text: str) -> tuple[int, ...]:
    """Reads a comma-separated list of lengths; sorted, each once.

    Raises:
        BadInput: the list is empty, or one of its entries is no length.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise BadInput(f"lengths {text!r} name no length; write for example 512,4k,32k")
    return tuple(sorted({parse_length(part) for part in parts}))


def doubling_lengths(first: int, last: int) -> tuple[int, ...]:
    """`first`, 2·`first`, 4·`first`, … and, where the series misses it, `last` itself.

    Raises:
        BadInput: `last` is shorter than `first`.
    """
    if last < first:
        raise BadInput(
            f"the longest length {format_length(last)} is below the first, {format_length(first)};"
            " name the lengths themselves with --lengths"
        )
    lengths = []
    length = first
    while length < last:
        lengths.append(length)
        length *= 2
    return (*lengths, last)


def format_length(length: int) -> str:
    """The shortest exact way to write a length: 524288 is ``512k``, 1000 is ``1000``."""
    if length >= 1024**2 and length % 1024**2 == 0:
        return f"{length // 1024**2}M"
    if length >= 1024 and length % 1024 == 0:
        return f"{length // 1024}k"
    return str(length)
