#!/usr/bin/env python
"""Compiles the attention kernels ahead of time, for GPUs that need not be there, and shows what they use.

    python benchmarks/compile_kernels.py

A row is a kernel at one head size and dtype on one target, in the variant with the most in it: a generalized
Gaussian prior, SSMax that scales it, skipping, and gradients of α and β. Registers are 32-bit ones a thread.
Exits with 1 if a kernel for fp16 or bf16 spills registers to memory, or wants more shared memory than there
is; fp32 (--dtypes fp32) is for information. It needs triton and the assemblers that come with it, and no GPU.
"""

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # the interpreter's kernels cannot be compiled

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bamctl.attention.kernels import backward_keys, backward_queries, bias, decode, forward, paged, reach
from bamctl.attention.kernels.tiles import FIRST_KEYS_WARPS, Tiles, tiles_for

KERNELS = {
    "forward": forward.forward,
    "decode": decode.decode,
    "backward_queries": backward_queries.backward_queries,
    "backward_keys": backward_keys.backward_keys,
    "paged_forward": paged.paged_forward,
    "paged_decode": paged.paged_decode,
}

SMALL_KERNELS = {
    "combine": decode.combine,
    "far_field": bias.far_field,
    "first_keys": reach.first_keys,
    "paged_first_keys": paged.paged_first_keys,
    "paged_combine": paged.paged_combine,
}
"""What runs before and after; they are much the same for all head sizes and dtypes."""

TARGETS = {
    "sm80": GPUTarget("cuda", 80, 32),
    "sm90": GPUTarget("cuda", 90, 32),
    "sm100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

SHARED_MEMORY = {"sm80": 163 * 1024, "sm90": 227 * 1024, "sm100": 227 * 1024, "gfx942": 64 * 1024}
"""Bytes that one program may have."""

ELEMENT_SIZE = {"fp16": 2, "bf16": 2, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Variant:
    kernel: str
    target: str
    head_size: int
    dtype: str

    @property
    def tiles(self) -> Tiles:
        if self.kernel == "paged_first_keys":
            blocks = tiles_for("paged_forward", self.head_size, ELEMENT_SIZE[self.dtype], self.target)
            return Tiles(block_m=blocks.block_m, block_n=blocks.block_n, warps=FIRST_KEYS_WARPS)
        kernel = "decode" if self.kernel in SMALL_KERNELS else self.kernel
        return tiles_for(kernel, self.head_size, ELEMENT_SIZE[self.dtype], self.target)


@dataclass(frozen=True, kw_only=True)
class Usage:
    variant: Variant
    registers: int
    spilled: int
    """Bytes a thread (NVIDIA) or registers (AMD)."""
    shared: int
    seconds: float

    @property
    def fails(self) -> bool:
        too_much = self.spilled > 0 or self.shared > SHARED_MEMORY[self.variant.target]
        return too_much and self.variant.dtype != "fp32"


def source(variant: Variant, **changes: Any) -> ASTSource:
    """What the launcher would compile; `changes` replaces constants."""
    tiles, function = variant.tiles, (KERNELS | SMALL_KERNELS)[variant.kernel]
    constants: dict[str, Any] = {
        "GROUP": 4 if variant.kernel in ("decode", "paged_decode") else 1,
        "QUERIES": 1,
        "KIND": bias.GENERALIZED_GAUSSIAN.value,
        "SSMAX": True,
        "SCALES_PRIOR": True,
        "LEARNS_PRIOR": True,
        "LEARNS_MU": False,
        "SKIPS": True,
        "WIDE_OFFSETS": False,
        "WIDE_POSITIONS": False,
        "FLOAT64": variant.dtype == "fp32",
        "HEAD_SIZE": variant.head_size,
        "BLOCK_D": variant.head_size,
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_R": 16,
        "FIRST_BLOCK": tiles.block_m,
        "PAGE": 16,
        "BLOCK_P": 64,
        "STEP": 64,
        "HALF_SPAN": 96.0,
    } | changes
    in_fp32 = (
        *("lse_ptr", "delta_ptr", "t_ptr", "parameters_ptr", "far_ptr", "series_ptr", "d_t_ptr"),
        *("d_parameters_ptr", "content_ptr", "parts_ptr", "part_lse_ptr", "scale_ptr", "longest_ptr"),
    )
    in_int32 = ("last_ptr", "starts_ptr", "lengths_ptr", "pages_ptr")
    types: dict[str, str] = dict.fromkeys(in_fp32, "*fp32")
    types |= {"first_ptr": "*i64", "limits_ptr": "*i64"} | dict.fromkeys(in_int32, "*i32")
    if variant.kernel == "decode":
        types["out_ptr"] = "*fp32"  # of the parts

    aligned = [["tt.divisibility", 16]]
    signature: dict[str, Any] = {}
    values: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for index, name in enumerate(function.arg_names):
        if name.isupper():
            signature[name], values[(index,)] = "constexpr", constants[name]
        elif name.endswith("_strides"):
            signature[name], values[(index, 3)] = ("i32", "i32", "i32", "constexpr"), 1
            attributes |= {(index, axis): aligned for axis in range(3)}
        elif name.endswith("_ptr"):
            signature[name], attributes[(index,)] = types.get(name, f"*{variant.dtype}"), aligned
        else:
            signature[name] = "i32"
    return ASTSource(function, signature, values, attributes)


def compile_variant(variant: Variant) -> Usage:
    started = time.monotonic()
    target, tiles = TARGETS[variant.target], variant.tiles
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    compiled = triton.compile(source(variant), target=target, options=options)
    if target.backend == "cuda":
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            text = subprocess.run(command, check=True, capture_output=True, text=True)
        found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout + text.stderr)
        assert found is not None, f"no resource usage in {text.stdout!r}"
        registers, spilled = int(found[1]), int(found[2])
    else:
        numbers = dict(re.findall(r"\.(\w+):\s+(\d+)\n", compiled.asm["amdgcn"]))
        registers, spilled = int(numbers["vgpr_count"]), int(numbers["vgpr_spill_count"])
    return Usage(
        variant=variant,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        seconds=time.monotonic() - started,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = list(KERNELS | SMALL_KERNELS)
    parser.add_argument("--kernels", nargs="+", choices=every, default=every)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--head-sizes", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", choices=ELEMENT_SIZE, default=["fp16", "bf16"])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    variants = [
        Variant(kernel=kernel, target=target, head_size=head_size, dtype=dtype)
        for kernel in options.kernels
        if kernel in KERNELS
        for target in options.targets
        for head_size in options.head_sizes
        for dtype in options.dtypes
    ]
    variants += [
        Variant(kernel=kernel, target=target, head_size=128, dtype="fp16")
        for kernel in options.kernels
        if kernel in SMALL_KERNELS
        for target in options.targets
    ]
    heading = (
        "kernel",
        "target",
        "head",
        "dtype",
        "tile",
        "warps",
        "stages",
        "registers",
        "spilled",
        "shared KiB",
        "s",
    )
    widths = (16, 6, 4, 5, 7, 5, 6, 9, 7, 10, 4)
    print("  ".join(word.ljust(width) for word, width in zip(heading, widths, strict=True)).rstrip())
    failures = 0
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        for usage in pool.map(compile_variant, variants):
            variant, tiles = usage.variant, usage.variant.tiles
            row = (
                variant.kernel,
                variant.target,
                str(variant.head_size),
                variant.dtype,
                f"{tiles.block_m}x{tiles.block_n}",
                str(tiles.warps),
                str(tiles.stages),
                str(usage.registers),
                str(usage.spilled),
                f"{usage.shared / 1024:.1f}",
                f"{usage.seconds:.0f}",
            )
            cells = (word.ljust(width) for word, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip() + ("  <-- too much" if usage.fails else ""), flush=True)
            failures += usage.fails
    print(f"{len(variants)} kernels compiled, {failures} with spilled registers or too much shared memory")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
