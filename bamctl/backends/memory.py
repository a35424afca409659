"""The most memory that a stretch of work takes."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch


def watch_peak_memory(device: torch.device) -> Callable[[], int | None]:
    """Begins to watch; calling what it returns tells the peak since, in bytes.

    On a GPU what torch's allocator held, else the process's resident memory. Linux can forget an earlier
    peak; where that is not allowed, and on macOS, the peak since the process began is told. None on Windows.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":
        _forget_peak()
        return _linux_peak
    return _process_peak


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    except OSError:
        return


def _linux_peak() -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return _process_peak()


def _process_peak() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
