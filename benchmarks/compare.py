"""Timing side by side: every call once a round, in turn, so that a noisy machine is noisy for all of them.

A ratio is taken within a round and its median over the rounds is what is reported, with the 20th and the
80th percentile. Rows are appended to ``benchmarks/results/NAME.jsonl``, one JSON object each.
"""

import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


def time_side_by_side(calls: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            _wait()
            started = time.perf_counter()
            call()
            _wait()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def percentiles(values: list[float]) -> dict[str, float]:
    """Median, 20th and 80th percentile."""
    return {name: float(np.percentile(values, q)) for name, q in (("p50", 50), ("p20", 20), ("p80", 80))}


def ratios(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times as long one takes as the other, round by round."""
    return percentiles([a / b for a, b in zip(slow, fast, strict=True)])


def append_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Adds rows to the named file, each with the machine, the versions and the time."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps({**row, **machine}) + "\n")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
