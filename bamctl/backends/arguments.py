"""Fields of someone else's configuration or engine, as a user types them and as a model's name shows them."""

import json
from collections.abc import Callable, Mapping

from bamctl.errors import BadInput

_SHOWN = 60
"""Characters of an argument's value in a model's name."""


def parse_arguments(
    option: str, typed: list[str] | None, *, example: str, spell: Callable[[str], str] = str
) -> dict[str, object]:
    """What an option was given that takes KEY=VALUE: values as JSON where they are some, else as text.

    Args:
        option: as it is typed.
        typed: its values; None: it was not given.
        example: of one, for an error.
        spell: brings the ways to write one key to the same.

    Raises:
        BadInput: no key, no value, or a key twice.
    """
    parsed: dict[str, object] = {}
    for word in typed or []:
        key, sign, value = word.partition("=")
        key = spell(key)
        if not sign or not key:
            raise BadInput(f"{option} {word!r}: write KEY=VALUE, such as {example}")
        if key in parsed:
            raise BadInput(f"{option} {key} is given twice; leave one out")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


def shown(arguments: Mapping[str, object]) -> str:
    """``rope_scaling={rope_type:yarn,factor:4.0}, quantization=fp8``."""
    return ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":")).replace('"', "")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
