"""The models that a command was asked for, opened."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bamctl.cli.options import parse_model_args
from bamctl.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from bamctl.backends.opening import OpenedModel


def open_models(
    patterns: Sequence[str],
    *,
    backend: str,
    tokenizer: str | None,
    model_args: list[str] | None,
    trust_remote_code: bool,
    device: str,
    dtype: str,
) -> "Iterator[OpenedModel]":
    """Checks the options, then opens one model after the other; the arguments are those options as typed.

    Raises:
        BadInput: an option's value is not known, or a model is not as it should be.
    """
    from bamctl.backends.devices import choose_device
    from bamctl.backends.opening import BACKENDS, open_model
    from bamctl.models.loading import DTYPES

    for option, chosen, known in (("backend", backend, BACKENDS), ("dtype", dtype, ("auto", *DTYPES))):
        if chosen not in known:
            raise BadInput(f"--{option} {chosen!r} is not known{did_you_mean(chosen, known)}")
    choose_device(device)
    fields = parse_model_args(model_args)
    for name in _each_once(patterns):
        yield open_model(
            name,
            backend=backend,
            tokenizer=tokenizer,
            model_args=fields,
            trust_remote_code=trust_remote_code,
        )


def _each_once(patterns: Sequence[str]) -> list[str]:
    """What the patterns stand for; a checkpoint that is meant twice, by name and as a folder say, is one."""
    from bamctl.models.naming import find_models, find_path

    found: dict[object, str] = {}
    for name in (name for pattern in patterns for name in find_models(pattern)):
        place: object = name
        with contextlib.suppress(BadInput):  # a name on the hub, or one that is refused when it is opened
            place = find_path(name).resolve()
        found.setdefault(place, name)
    return list(found.values())
