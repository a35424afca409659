"""How the kernels are cut up on each kind of GPU."""

import functools
from dataclasses import dataclass

import torch

MOST_DECODED = 16
"""Up to so many queries the keys may be split over programs."""

FIRST_KEYS_WARPS = 2
"""Of ``paged_first_keys``, whose blocks of queries are those of ``paged_forward``."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Queries and keys of a tile, both powers of two, and the warps and pipeline stages of a program.

    In all kernels but ``backward_keys`` there are no fewer queries than keys.
    """

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 2


_INTERPRETER = Tiles(block_m=32, block_n=32)

# Of halves, by architecture, for head sizes up to 64 and up to 128: what benchmarks/compile_kernels.py shows
# to spill nothing. Where there is nothing of its own for ``paged_forward``, it has the tiles of ``forward``.
_TILES = {
    "sm80": {
        "forward": (
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
            Tiles(block_m=128, block_n=32, warps=8, stages=3),
        ),
        "paged_forward": (
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
            Tiles(block_m=128, block_n=32, warps=8),
        ),
        "backward_queries": (Tiles(block_m=128, block_n=32, warps=8), Tiles(block_m=32, block_n=32)),
        "backward_keys": (Tiles(block_m=32, block_n=128, warps=8), Tiles(block_m=32, block_n=64, warps=8)),
    },
    "sm90": {
        "forward": (
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
        ),
        "backward_queries": (
            Tiles(block_m=128, block_n=32, warps=8),
            Tiles(block_m=128, block_n=32, warps=8),
        ),
        "backward_keys": (Tiles(block_m=32, block_n=128, warps=8), Tiles(block_m=32, block_n=64, warps=8)),
    },
    "sm100": {
        "forward": (
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
            Tiles(block_m=128, block_n=64, warps=8, stages=3),
        ),
        "backward_queries": (Tiles(block_m=64, block_n=64, warps=8), Tiles(block_m=64, block_n=32, warps=8)),
        "backward_keys": (Tiles(block_m=64, block_n=64, warps=8), Tiles(block_m=64, block_n=64, warps=8)),
    },
    "gfx": {
        "forward": (Tiles(block_m=128, block_n=64, stages=1), Tiles(block_m=128, block_n=64, stages=1)),
        "backward_queries": (
            Tiles(block_m=64, block_n=32, stages=1),
            Tiles(block_m=64, block_n=32, stages=1),
        ),
        "backward_keys": (Tiles(block_m=64, block_n=64, stages=1), Tiles(block_m=32, block_n=64, stages=1)),
    },
}


def tiles_for(kernel: str, head_size: int, element_size: int, architecture: str) -> Tiles:
    """The tiles of a kernel, such that halves spill nothing up to head size 128 and shared memory suffices.

    Args:
        kernel: ``forward``, ``decode``, ``backward_queries``, ``backward_keys``, ``paged_forward`` or
            ``paged_decode``.
        head_size: D.
        element_size: bytes of an element of q, k and v.
        architecture: as of the function of that name; those that are not known are taken for ``sm80``, with
            less shared memory than that has.
    """
    if architecture == "interpreter":
        return _INTERPRETER
    row_bytes = head_size * element_size
    if kernel in ("decode", "paged_decode"):
        return Tiles(block_m=MOST_DECODED, block_n=64 if row_bytes <= 256 else 32)
    if row_bytes > 512:
        return Tiles(block_m=32, block_n=16, stages=1)
    if row_bytes > 256 or element_size == 4:
        return Tiles(block_m=32, block_n=32, stages=1)
    family = "gfx" if architecture.startswith("gfx") else {"sm103": "sm100"}.get(architecture, architecture)
    of_kernels = _TILES.get(family, _TILES["sm80"])
    if kernel == "paged_forward":
        kernel = kernel if kernel in of_kernels else "forward"
    return of_kernels[kernel][head_size > 64]


@functools.cache
def architecture(device: torch.device) -> str:
    """``sm90``, ``gfx942``, …; ``interpreter`` for a CPU."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm{properties.major}{properties.minor}"
