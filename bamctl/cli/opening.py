"""The models that a command was asked for, opened."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bamctl.cli.options import parse_model_args
from bamctl.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from bamctl.backends.opening import OpenedModel
    from bamctl.backends.vllm.options import EngineOptions


def open_models(
    patterns: Sequence[str],
    *,
    backend: str,
    tokenizer: str | None,
    model_args: list[str] | None,
    trust_remote_code: bool,
    device: str,
    dtype: str,
    engine: "EngineOptions",
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
    check_engine(engine, backend)
    fields = parse_model_args(model_args)
    for name in each_once(patterns):
        yield open_model(
            name,
            backend=backend,
            tokenizer=tokenizer,
            model_args=fields,
            trust_remote_code=trust_remote_code,
            engine=engine,
        )


def check_engine(engine: "EngineOptions", backend: str) -> None:
    """Refuses what only vLLM has a use for where it does not run, and numbers that are none.

    Raises:
        BadInput: such an option was given.
    """
    for name, value in engine.given().items():
        option = f"--engine-arg {name}" if name in engine.engine_args else f"--{name.replace('_', '-')}"
        if backend != "vllm":
            raise BadInput(f"{option} is for vLLM's engine; add --backend vllm or leave it out")
        if name in engine.engine_args:
            continue
        if isinstance(value, int) and value < 1:
            raise BadInput(f"{option} {value}: must be 1 or more")
        if isinstance(value, float) and not 0 < value <= 1:
            raise BadInput(f"{option} {value}: must lie between 0 and 1")


def each_once(patterns: Sequence[str]) -> list[str]:
    """What the patterns stand for, as `open_models` opens it, in its order.

    A checkpoint that is meant twice, by name and as a folder say, is one.
    """
    from bamctl.models.naming import find_models, find_path

    found: dict[object, str] = {}
    for name in (name for pattern in patterns for name in find_models(pattern)):
        place: object = name
        with contextlib.suppress(BadInput):  # a name on the hub, or one that is refused when it is opened
            place = find_path(name).resolve()
        found.setdefault(place, name)
    return list(found.values())
