"""RULER's average over tasks: which runs of a model belong together, and their mean at each length."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bamctl.lengths import format_length
from bamctl.results.effective import length_weights
from bamctl.results.means import Scores, average_interval
from bamctl.results.statistics import scores_of
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
    samples: Mapping[int, tuple[Scores, ...]]
    """Length in `scores` → what the samples of each task scored there; lacks those where it is not known."""
    missing: str
    """Why there is none at other lengths, or at all: which task lacks which lengths."""

    @cached_property
    def intervals(self) -> Mapping[int, tuple[float, float]]:
        """Length → the 95% interval of its score, by `average_interval`; tasks are its strata."""
        return {length: average_interval(of_tasks) for length, of_tasks in self.samples.items()}

    @cached_property
    def over_lengths(self) -> tuple[tuple[float, float], ...]:
        """The 95% intervals of the three averages over lengths that `length_averages` makes of `scores`.

        Strata are each task at each length. There are none where what samples scored is not known.
        """
        if not self.scores or self.samples.keys() != self.scores.keys():
            return ()
        ascending = [self.samples[length] for length in sorted(self.samples)]
        strata = tuple(scores for of_tasks in ascending for scores in of_tasks)
        return tuple(
            average_interval(
                strata,
                tuple(
                    weight / len(of_tasks)
                    for weight, of_tasks in zip(weights, ascending, strict=True)
                    for _ in of_tasks
                ),
            )
            for weights in length_weights(len(ascending))
        )


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
    samples = {
        (record["task"], int(record["length"])): scores_of(record) for record in runs.to_dict("records")
    }
    of_tasks = {length: [samples.get((task, length)) for task in by_task.index] for length in means}
    run: dict[str, Any] = {str(name): value for name, value in runs.iloc[0].items()}
    if runs["variant"].nunique() > 1:
        run["variant"] = ""
    return TaskAverage(
        run=run,
        run_ids=frozenset(runs["run_id"]),
        tasks=tuple(map(str, by_task.index)),
        lengths=tuple(int(str(length)) for length in by_task.columns),
        scores=means,
        samples={
            length: tuple(scores for scores in known if scores is not None)
            for length, known in of_tasks.items()
            if None not in known
        },
        missing="; ".join(missing),
    )
