"""Where a model computes: naming a device, and telling in one line that its memory is at an end."""

import contextlib
import time
from collections.abc import Iterator

import torch

from bamctl.errors import BadInput, RunFailed


def choose_device(name: str) -> torch.device:
    """A torch device from its name; ``auto`` is the GPU where there is one.

    Raises:
        BadInput: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"device {name!r} is not known; write cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r}: models run on cpu and cuda")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise BadInput(f"device {name!r}: this machine has {count} CUDA devices that torch can use")
    return device


def describe_device(device: torch.device) -> str:
    """``cpu``, or the GPU with its name."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def clock(device: torch.device) -> float:
    """Seconds, once everything asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextlib.contextmanager
def telling_of_memory(where: str) -> Iterator[None]:
    """Makes one line of it when memory does not suffice.

    Args:
        where: the line, up to what is to be done about it.

    Raises:
        RunFailed: out of memory. Any other error comes out as it is.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunFailed(where) from None


def is_out_of_memory(error: Exception) -> bool:
    """On a CPU torch raises a plain RuntimeError, as cuBLAS does; an illegal access is no lack of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(sign in str(error) for sign in ("allocate memory", "not enough memory", "ALLOC_FAILED"))


def end_tokens(*sources: int | list[int] | None) -> frozenset[int]:
    """The ids of all sources, each of them none, one or several: tokens that end an answer."""
    ids: set[int] = set()
    for source in sources:
        ids |= set(source) if isinstance(source, list) else set() if source is None else {source}
    return frozenset(ids)
