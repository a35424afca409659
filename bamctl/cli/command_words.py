"""The command that measures one model on one task again, as results store it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from bamctl.cli.options import MeasureOptions
from bamctl.lengths import format_length

if TYPE_CHECKING:
    from bamctl.tasks.spec import TaskSpec

REPEATED = {
    "seed": "seed",
    "backend": "backend",
    "model_args": "model-arg",
    "tokenizer": "tokenizer",
    "trust_remote_code": "trust-remote-code",
    "device": "device",
    "dtype": "dtype",
    "batch_size": "batch-size",
    "share_prefixes": "share-prefixes",
    "patience": "patience",
}
"""Fields of `MeasureOptions` that are part of the command where they are not at their default, and their
options."""


def command_words(
    asking: Sequence[str],
    *,
    spec: "TaskSpec",
    overrides: Mapping[str, object | None],
    model: str,
    lengths: Sequence[int],
    options: MeasureOptions,
) -> tuple[str, ...]:
    """The words of the command: lengths, samples and depths always, all else where it is not the default.

    Where results go and what is told on the way is not in it.

    Args:
        asking: the words that ask for this task alone, such as ``("ruler", "--tasks", "vt")``.
        spec: its definition.
        overrides: fields that some task was to have otherwise, None: as its file says.
        model: as the option --model finds it.
        lengths: in tokens.
        options: the options as they were typed.
    """
    words = ["bamctl", *asking, *_option("model", model)]
    words += _option("lengths", ",".join(map(format_length, lengths)))
    words += [*_option("samples", options.samples), *_option("depths", options.depths)]
    for field, value in overrides.items():
        if spec.uses(field):
            words += _option(field.replace("_", "-"), value)
    defaults = {field.name: field.default for field in fields(MeasureOptions)}
    for name, option in REPEATED.items():
        value = getattr(options, name)
        if value != defaults[name]:
            words += _option(option, value)
    for name, value in options.engine.given().items():
        if name in options.engine.engine_args:
            words += _option("engine-arg", f"{name}={json.dumps(value)}")
        else:
            words += _option(name.replace("_", "-"), value)
    return tuple(words)


def _option(option: str, value: object) -> list[str]:
    """An option as it is typed; nothing for one that has no value."""
    match value:
        case None:
            return []
        case True:
            return [f"--{option}"]
        case False:
            return [f"--no-{option}"]
        case list():
            return [word for one in value for word in (f"--{option}", str(one))]
        case _:
            return [f"--{option}", str(value)]
