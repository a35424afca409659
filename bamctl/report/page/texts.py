"""Texts that a browser shows as they are, whatever a model wrote."""

import re

from bamctl.report.terminal import SCALE

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""Control characters but tab and line feed, and those that turn the order of what follows them."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with a sign for each character that cannot be seen, or would change how others are shown.

    ASCII's control characters have signs of their own (␀, ␛, …); others are written ⟨U+202E⟩. Half a
    surrogate pair, which no encoding has, is �.
    """
    if text.isprintable():  # as most are, and there are many
        return text
    return _SURROGATES.sub("\ufffd", _UNSEEN.sub(_sign, text))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def typeset(text: str) -> str:
    """A table's text, which is written for terminals, as it is printed."""
    return visible(text).replace(">=", "≥")


def score_step(score: float) -> int:
    """The place in `SCALE` of a score of 0 … 1; the last is for 1 alone."""
    return min(int(score * (len(SCALE) - 1)), len(SCALE) - 1)


def whole_percent(score: float) -> str:
    """A share in whole percent; 0 and 100 are kept for what is exactly that."""
    if score in (0, 1):
        return f"{100 * score:.0f}"
    return str(min(max(round(100 * score), 1), 99))
