"""Which runs a table shows, in what order, and what tells them apart."""

import fnmatch
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.errors import BadInput, did_you_mean
from bamctl.results.statistics import LEARNED
from bamctl.tasks.catalog import RULER_TASKS

_CONDITIONS = {
    "task": "{}",
    "variant": "{}",
    "depth_policy": "depths {}",
    "backend": "{}",
    "dtype": "{}",
    "seed": "seed {}",
}
"""What beside the model tells runs apart, and how it is written, in the order of writing."""

UNLEARNED_MARK = "*"
UNLEARNED = (
    f"below {100 * LEARNED:.0f}% at its train length, which it has not learned: what it scores at longer ones"
    " says nothing about extrapolation"
)


@dataclass(frozen=True, kw_only=True)
class Naming:
    """What runs are called beside each other: by what they differ in, and by nothing else."""

    subject: str
    """What a label begins with: ``model``, or ``task`` where all runs are of one model, of several tasks."""
    common: tuple[str, ...]
    """What all runs share, as it is written."""
    models: Mapping[tuple[str, str], str]
    """Name and digest of each model → what it is called; nothing where the subject is the task."""
    differing: tuple[str, ...]
    """The other columns in which the runs differ."""

    def label(self, run: Mapping[Any, Any], *, instead_of_task: str | None = None) -> str:
        """A label for a run, or for what `instead_of_task` says of a model at the run's settings.

        Args:
            run: a row of ACCURACY_SCHEMA.
            instead_of_task: what stands where the task would; None for the task, if runs differ in it.
        """
        columns = [column for column in self.differing if column != "task" or instead_of_task is None]
        parts = [self.models[_model(run)], instead_of_task, *(_condition(run, column) for column in columns)]
        return " ".join(", ".join(part for part in parts if part).split())


def name_runs(runs: Sequence[Mapping[Any, Any]]) -> Naming:
    """Finds out in what runs differ.

    Of several models with one name each is called by its name and the beginning of its digest.
    """
    models = list(dict.fromkeys(map(_model, runs)))
    given = [name for name, _ in models]
    called = {
        (name, digest): f"{name} @{_short(digest)}" if given.count(name) > 1 else name
        for name, digest in models
    }
    differing = tuple(column for column in _CONDITIONS if len({run[column] for run in runs}) > 1)
    depths = _depths_by_task(runs) if {"task", "depth_policy"} <= set(differing) else ""
    if depths:
        differing = tuple(column for column in differing if column != "depth_policy")
    common = [
        text
        for column in _CONDITIONS
        if column not in differing
        for text in [depths if depths and column == "depth_policy" else _condition(runs[0], column)]
        if text
    ]
    by_task = "task" in differing and len(models) == 1
    return Naming(
        subject="task" if by_task else "model",
        common=(*called.values(), *common) if by_task else tuple(common),
        models=dict.fromkeys(called, "") if by_task else called,
        differing=differing,
    )


def _depths_by_task(runs: Iterable[Mapping[Any, Any]]) -> str:
    """Which tasks have which depths, as it is written; empty where a task has several."""
    tasks: dict[str, list[str]] = {}
    for task, depth_policy in dict.fromkeys((run["task"], run["depth_policy"]) for run in runs):
        tasks.setdefault(depth_policy, []).append(task)
    if len({task for some in tasks.values() for task in some}) < sum(map(len, tasks.values())):
        return ""
    *few, (most, _) = sorted(tasks.items(), key=lambda item: len(item[1]))
    return (
        "depths "
        + "".join(f"{depth_policy} ({', '.join(some)}), " for depth_policy, some in few)
        + f"{most} (the other tasks)"
    )


def sorted_runs(accuracy: pd.DataFrame) -> list[dict[Any, Any]]:
    """A row of each run, in the order of showing: RULER's tasks in RULER's order, behind all others."""
    runs = accuracy.drop_duplicates("run_id")
    place = {task: number for number, task in enumerate(RULER_TASKS)}
    runs = runs.assign(place=[place.get(task, -1) for task in runs["task"]])
    return runs.sort_values(["place", *_CONDITIONS, "model", "run_id"]).to_dict("records")


def planned_samples(accuracy: pd.DataFrame) -> dict[str, int]:
    """How many samples a length of each run has when it is finished, as far as its rows tell.

    That is as many as its fullest length has, and at least as many as it has equidistant depths.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
    """
    ended = accuracy[["n", "skipped", "failed"]].sum(axis="columns")
    planned: dict[str, int] = {}
    for run_id, depth_policy, count in zip(accuracy["run_id"], accuracy["depth_policy"], ended, strict=True):
        kind, _, depths = depth_policy.partition(":")
        least = int(depths) if kind == "equidistant" else 0
        planned[run_id] = max(planned.get(run_id, least), int(count))
    return planned


def select_runs(accuracy: pd.DataFrame, *, tasks: Sequence[str], models: Sequence[str]) -> pd.DataFrame:
    """The rows whose task and model are among those named; an empty list selects all.

    Where each name fits a row but no row fits all, nothing is selected.

    Args:
        accuracy: rows of ACCURACY_SCHEMA, or of SAMPLE_SCHEMA.
        tasks: names of tasks, or patterns such as ``niah_*``.
        models: as `fits_model` takes them.

    Raises:
        BadInput: a name or pattern fits no row.
    """
    chosen = []
    for column, patterns in (("task", tasks), ("model", models)):
        fitting = [
            fits_model(accuracy, pattern) if column == "model" else _fits(accuracy[column], pattern)
            for pattern in patterns
        ]
        for pattern, rows in zip(patterns, fitting, strict=True):
            if not rows.any():
                known = set(accuracy[column].unique())
                raise BadInput(f"no results of {column} {pattern!r}{did_you_mean(pattern, known)}")
        if fitting:
            chosen.append(functools.reduce(operator.or_, fitting))
    return accuracy[functools.reduce(operator.and_, chosen)] if chosen else accuracy  # which may be large


def fits_model(frame: pd.DataFrame, pattern: str) -> pd.Series:
    """Whether each row is of a model that is meant.

    Args:
        frame: has the columns model and model_digest.
        pattern: a name or a pattern of names, of models with one name also ``NAME@DIGEST`` as tables call
            them, of which the beginning is enough.
    """
    fitting = _fits(frame["model"], pattern)
    name, at, beginning = pattern.rpartition("@")
    if fitting.any() or not (at and beginning):
        return fitting
    digests = {digest for digest in frame["model_digest"].unique() if _hex(digest).startswith(beginning)}
    return _fits(frame["model"], name.rstrip()) & frame["model_digest"].isin(digests)


def model_labels(frame: pd.DataFrame) -> list[str]:
    """The models of the rows as ``NAME@DIGEST``, which tells them apart where they have one name."""
    models = frame[["model", "model_digest"]].drop_duplicates().sort_values(["model", "model_digest"])
    return [f"{name}@{_short(digest)}" for name, digest in models.itertuples(index=False)]


def _fits(column: pd.Series, pattern: str) -> pd.Series:
    return column.isin([name for name in column.unique() if fnmatch.fnmatchcase(name, pattern)] + [pattern])


def _hex(digest: str) -> str:
    return digest.rpartition(":")[2]


def _short(digest: str) -> str:
    return _hex(digest)[:7]


def _model(run: Mapping[Any, Any]) -> tuple[str, str]:
    return str(run["model"]), str(run["model_digest"])


def _condition(run: Mapping[Any, Any], column: str) -> str:
    return "" if run[column] == "" else _CONDITIONS[column].format(run[column])
