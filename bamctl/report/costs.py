"""What prompts of each length cost: seconds and memory, a line for each model and what it ran on."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.errors import BadInput
from bamctl.report.lines import Kinship, ModelLine
from bamctl.report.runs import name_runs
from bamctl.results.schema import LOSS, RUN_COLUMNS

_SETTINGS = ["model", "model_digest", "backend", "device", "dtype"]
"""What the samples of one line have in common: whatever else differs, a length costs the same."""

COST_COLUMNS = (
    *RUN_COLUMNS,
    "device",
    "length",
    "status",
    "completion_tokens",
    "reused_tokens",
    "prefill_seconds",
    "decode_seconds",
    "peak_memory_bytes",
)
"""Of SAMPLE_SCHEMA, what `build_costs` reads."""

_OTHER_CONDITIONS = ("task", "variant", "depth_policy", "seed")


@dataclass(frozen=True, kw_only=True)
class CostLine(ModelLine):
    """A model on one device; entries a length, None where nothing was measured, or nothing above zero."""

    device: str
    lengths: tuple[int, ...]
    """Tokens, ascending."""
    prefill: tuple[float | None, ...]
    """Seconds to read a prompt whole: the median."""
    decode: tuple[float | None, ...]
    """Seconds of generating the answer and scoring the reference, a token of the answer: the median."""
    memory: tuple[float | None, ...]
    """Bytes: the most of all samples."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All lines, and what they have in common, as it is written."""

    lines: tuple[CostLine, ...]
    tasks: tuple[str, ...]
    """Those that every line has: the samples of these alone count."""
    left_out: tuple[str, ...]
    """The other tasks."""
    common: tuple[str, ...]
    read: tuple[int, ...]
    """The different numbers of prompts behind a point of `prefill`, ascending."""
    shared: int
    """Samples whose prompt was not read whole: an earlier one had begun alike."""
    unknown: int
    """Samples of which nobody knows whether theirs was."""


def build_costs(samples: pd.DataFrame) -> Costs:
    """Gathers what was measured.

    The tasks that all lines have are taken together: those that only some have would set them apart by more
    than what they cost. Answers are longer or shorter, so their seconds are those of a token. A prompt that
    was not read whole says nothing of what reading one costs, and does not count there.

    Args:
        samples: rows of SAMPLE_SCHEMA, COST_COLUMNS of them.

    Raises:
        BadInput: nothing was measured, or the lines have no task in common.
    """
    done = samples[(samples["status"] == "done") & (samples["metric"] != LOSS)]
    tasks = _common_tasks(done)
    left_out = set(done["task"].unique()).difference(tasks)
    done = done[done["task"].isin(tasks)]
    reused = done["reused_tokens"]
    shared = (reused > 0).fillna(False).astype(bool)
    tokens = done["completion_tokens"].astype("Float64")
    measured = done.assign(
        prefill=_positive(done["prefill_seconds"].where(~shared)),
        decode=_positive(done["decode_seconds"] / tokens.where(tokens > 0)),
        memory=_positive(done["peak_memory_bytes"]),
    )
    points = measured.groupby([*_SETTINGS, "length"], observed=True).agg(
        prefill=("prefill", "median"),
        read=("prefill", "count"),
        decode=("decode", "median"),
        memory=("memory", "max"),
    )
    if points[["prefill", "decode", "memory"]].isna().all(axis=None):
        raise BadInput("no figure of cost: no answer has its seconds or its memory (losses have no answers)")
    runs = _runs(measured)
    naming = name_runs([run for run, _ in runs])
    kinship = Kinship((run for run, _ in runs), naming)
    lines = []
    for run, settings in runs:
        of_run = points.xs(settings, level=_SETTINGS)
        lines.append(
            CostLine(
                **kinship.of(run, naming.label(run)),
                device=run["device"],
                lengths=tuple(int(length) for length in of_run.index),
                prefill=_known(of_run["prefill"]),
                decode=_known(of_run["decode"]),
                memory=_known(of_run["memory"]),
            )
        )
    return Costs(
        lines=tuple(lines),
        tasks=tasks,
        left_out=tuple(sorted(left_out)),
        common=naming.common,
        read=tuple(sorted({int(n) for n in points["read"] if n})),
        shared=int(shared.sum()),
        unknown=int(reused.isna().sum()),
    )


def _common_tasks(done: pd.DataFrame) -> tuple[str, ...]:
    """The tasks that every line has, by name.

    Raises:
        BadInput: there are lines, and no task is in all of them.
    """
    of_lines = {
        settings: set(tasks.unique()) for settings, tasks in done.groupby(_SETTINGS, observed=True)["task"]
    }
    common = set.intersection(*of_lines.values()) if of_lines else set()
    if of_lines and not common:
        listed = "; ".join(
            f"{model} on {device}, {dtype}: {', '.join(sorted(tasks))}"
            for (model, _, _, device, dtype), tasks in of_lines.items()
        )
        raise BadInput(
            f"no figure of cost: there is no task that all models have ({listed});"
            " choose some with --model or --task"
        )
    return tuple(sorted(common))


def _runs(measured: pd.DataFrame) -> list[tuple[dict[Any, Any], tuple[str, ...]]]:
    """A row for each line, without what lines have no part in, and its settings; in the order of showing."""
    first = measured.drop_duplicates(_SETTINGS).astype(dict.fromkeys(_SETTINGS, "str"))
    return [
        (
            {
                **run,
                **dict.fromkeys(_OTHER_CONDITIONS, ""),
                "backend": f"{run['backend']} on {run['device']}",
            },
            tuple(run[name] for name in _SETTINGS),
        )
        for run in first.sort_values(_SETTINGS).to_dict("records")
    ]


def _positive(values: pd.Series) -> pd.Series:
    """Without what was not measured, and without zeros, which no log axis has."""
    numbers = pd.Series(values.to_numpy(dtype="float64", na_value=math.nan), index=values.index)
    return numbers.where(numbers > 0)


def _known(values: pd.Series) -> tuple[float | None, ...]:
    return tuple(None if pd.isna(value) else float(value) for value in values)
