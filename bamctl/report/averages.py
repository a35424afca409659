"""RULER's average over tasks: which runs of a model belong together, and their mean at each length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.lengths import format_length
from bamctl.tasks.catalog import RULER_TASKS

_SETTINGS = ["depth_policy", "backend", "dtype", "seed", "model", "model_digest"]
"""What the runs of one average have in common; averages are sorted by these."""


@dataclass(frozen=True, kw_only=True)
class TaskAverage:
    """The mean over several of RULER's tasks, of one model at the same settings."""

    run: Mapping[str, Any]
    """A row of ACCURACY_SCHEMA, for what the runs have in common; `variant` is empty where they differ."""
    run_ids: frozenset[str]
    tasks: tuple[str, ...]
    """In RULER's order."""
    lengths: tuple[int, ...]
    """All that any of the tasks has, ascending."""
    scores: Mapping[int, float]
    """Length in tokens that all tasks have → mean over the tasks, 0 … 1; empty where there is none."""
    missing: str
    """Why there is none at other lengths, or at all: which task lacks which lengths."""


def task_averages(accuracy: pd.DataFrame) -> list[TaskAverage]:
    """The averages of all models that have several of RULER's tasks.

    There is none at a length that a task lacks, as means of different tasks cannot be compared. Options that
    only some tasks have (`variant`) part runs into several averages only if a task was run with and without
    them.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
    """
    of_ruler = accuracy[accuracy["task"].isin(RULER_TASKS)]
    averages = []
    for _, runs in of_ruler.groupby(_SETTINGS):
        parts = [runs] if _runs_a_task(runs) == 1 else [part for _, part in runs.groupby("variant")]
        averages += [_average(part) for part in parts if part["task"].nunique() > 1]
    return averages


def _runs_a_task(runs: pd.DataFrame) -> int:
    """The most runs that any task has."""
    return int(runs.groupby("task")["run_id"].nunique().max())


def _average(runs: pd.DataFrame) -> TaskAverage:
    by_task = runs.pivot_table(index="task", columns="length", values="score", aggfunc="first", dropna=False)
    by_task = by_task.reindex([task for task in RULER_TASKS if task in by_task.index])
    missing = [
        f"{task} lacks {', '.join(format_length(int(length)) for length in lengths)}"
        for task, row in by_task.iterrows()
        if len(lengths := by_task.columns[row.isna()])
    ]
    means = {int(str(length)): float(mean) for length, mean in by_task.dropna(axis="columns").mean().items()}
    if _runs_a_task(runs) > 1:
        counts = runs.groupby("task")["run_id"].nunique()
        missing = [f"{task} has {counts[task]} runs" for task in by_task.index if counts[task] > 1]
        means = {}
    run: dict[str, Any] = {str(name): value for name, value in runs.iloc[0].items()}
    if runs["variant"].nunique() > 1:
        run["variant"] = ""
    return TaskAverage(
        run=run,
        run_ids=frozenset(runs["run_id"]),
        tasks=tuple(map(str, by_task.index)),
        lengths=tuple(int(str(length)) for length in by_task.columns),
        scores=means,
        missing="; ".join(missing),
    )
