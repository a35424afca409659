"""Memory: what there is, what a prompt will take, and the most that a stretch of work took."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from bamctl.models.config import BamConfig

SMALLEST_CHUNK = 128
"""Fewer tokens at once would save little memory and cost much time."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of a GPU, or of the machine; in bytes."""

    total: int
    available: int
    """What this process could still have."""


def memory_of(device: torch.device) -> Memory:
    """What there is where a device computes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        kept_back = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(total=total, available=free + kept_back)
    machine = psutil.virtual_memory()
    return Memory(total=machine.total, available=machine.available)


def count_in(config: Any, field: str) -> int | None:
    """A whole number of a configuration; None for a field that an architecture lacks, or has a list of."""
    value = getattr(config, field, None)
    return value if isinstance(value, int) and value > 0 else None


def cache_bytes_a_token(config: BamConfig, dtype: torch.dtype) -> int:
    """What one token's keys and values take, all layers together."""
    width = config.num_key_value_heads * config.head_dim
    return 2 * config.num_hidden_layers * width * dtype.itemsize


def activation_bytes_a_token(config: BamConfig, dtype: torch.dtype) -> int:
    """What one token of a chunk takes while it goes through a layer: an estimate from above.

    The attention half of a layer holds residual, norm and output (E each) and queries, keys, values and
    what attention makes of them; the other half residual, norm, output and four times the SwiGLU's width.
    Norms and attention work in fp32 whatever the dtype.
    """
    attention = (3 * config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    in_dtype = 3 * config.hidden_size + max(attention, 4 * config.intermediate_size)
    in_fp32 = 2 * config.hidden_size + 2 * config.num_attention_heads * config.head_dim
    return in_dtype * dtype.itemsize + in_fp32 * 4


def chunk_that_fits(available: int, bytes_a_token: int, *, largest: int) -> int:
    """`largest`, halved until so many tokens fit into `available` bytes, or it is `SMALLEST_CHUNK`.

    Half of what is available is left to attention, whose own buffers grow with the prompt.
    """
    chunk = largest
    while chunk > SMALLEST_CHUNK and chunk * bytes_a_token > available // 2:
        chunk //= 2
    return chunk


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
