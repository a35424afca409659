"""Which runs of two results belong together: those of the same task at the same settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bamctl.errors import BadInput
from bamctl.report.runs import sorted_runs

Run = Mapping[Any, Any]
"""Any row of a run, of which only the columns are read that all its rows have in common."""

_SETTING = ("task", "task_digest", "prompt_version", "variant", "depth_policy", "seed")
"""What the runs of a pair have in common: these make the row_ids, whatever the model and its backend."""

_SETTINGS = {
    "task": "tasks",
    "variant": "variants",
    "depth_policy": "depths",
    "seed": "seeds",
    "prompt_version": "versions of the prompts",
    "task_digest": "task files, of digest",
}
"""The same as it is written where it keeps all runs of two results apart, in the order of telling."""

_RAN_ALIKE = (("backend", "dtype"), ("dtype",), ("backend",), ())
"""How much alike two runs of a model are, the most first."""


def pair_runs(
    samples: tuple[pd.DataFrame, pd.DataFrame], names: tuple[str, str]
) -> tuple[list[tuple[Run, Run]], tuple[list[Run], list[Run]]]:
    """Finds for each run of A the one of B that it is to be compared with.

    A run's partner has the same task at the same settings, and the same weights; where none has, a model of
    the same name; and where A and B have one model each of a task at these settings, that one. Of several
    such runs the one with the same backend and dtype is taken, or with the same dtype, or the same backend.

    Args:
        samples: A and B, rows of SAMPLE_SCHEMA.
        names: what they are called in an error.

    Returns:
        The pairs, and the runs of either side that have no partner.

    Raises:
        BadInput: a run has several partners that are equally like it, or no run has one.
    """
    runs_a, runs_b = (sorted_runs(side) for side in samples)
    pairs: list[tuple[Run, Run]] = []
    for setting in dict.fromkeys(_values(run, _SETTING) for run in runs_a):
        of_a, of_b = ([run for run in runs if _values(run, _SETTING) == setting] for runs in (runs_a, runs_b))
        pairs += _pair_models(of_a, of_b, names)
    if not pairs:
        raise BadInput(f"nothing to compare: {_what_differs(runs_a, runs_b, names)}")
    paired_a, paired_b = ({run["run_id"] for run in side} for side in zip(*pairs, strict=True))
    alone_a: list[Run] = [run for run in runs_a if run["run_id"] not in paired_a]
    alone_b: list[Run] = [run for run in runs_b if run["run_id"] not in paired_b]
    return pairs, (alone_a, alone_b)


def _pair_models(runs_a: list[Any], runs_b: list[Any], names: tuple[str, str]) -> list[tuple[Run, Run]]:
    """Pairs the runs of one setting."""
    models = [{run["model_digest"] for run in runs} for runs in (runs_a, runs_b)]
    pairs: list[tuple[Run, Run]] = []
    for columns in [(model, *alike) for model in ("model_digest", "model") for alike in _RAN_ALIKE]:
        pairs += _take_pairs(columns, runs_a, runs_b, names)
    if not pairs and [len(digests) for digests in models] == [1, 1]:
        for columns in _RAN_ALIKE:
            pairs += _take_pairs(columns, runs_a, runs_b, names)
    return pairs


def _take_pairs(
    columns: Sequence[str], runs_a: list[Any], runs_b: list[Any], names: tuple[str, str]
) -> list[tuple[Run, Run]]:
    """Pairs the runs that have the same values in these columns, and takes them off the lists."""
    pairs = []
    for values in dict.fromkeys(_values(run, columns) for run in runs_a):
        of_a, of_b = ([run for run in runs if _values(run, columns) == values] for runs in (runs_a, runs_b))
        if not of_a or not of_b:
            continue
        for runs, name in zip((of_a, of_b), names, strict=True):
            if len(runs) > 1:
                raise BadInput(f"{name}: {_several(runs)}; name the folder of one of them")
        pairs.append((of_a[0], of_b[0]))
    for runs, taken in zip((runs_a, runs_b), zip(*pairs, strict=True), strict=False):
        ids = {run["run_id"] for run in taken}
        runs[:] = [run for run in runs if run["run_id"] not in ids]
    return pairs


def _several(runs: Sequence[Run]) -> str:
    which = ", ".join(f"{run['backend']} {run['dtype']} (run {run['run_id']})" for run in runs)
    return f"any of these runs of {runs[0]['model']} on {runs[0]['task']} may be meant: {which}"


def _what_differs(runs_a: Sequence[Run], runs_b: Sequence[Run], names: tuple[str, str]) -> str:
    """What keeps all runs of A apart from all of B."""
    for column, what in _SETTINGS.items():
        of_a, of_b = ({str(run[column]) for run in runs} for runs in (runs_a, runs_b))
        if not of_a & of_b:
            return f"{names[0]} has {what} {_listed(of_a)}, {names[1]} {_listed(of_b)}"
    if not {_values(run, _SETTING) for run in runs_a} & {_values(run, _SETTING) for run in runs_b}:
        return f"{names[0]} and {names[1]} have no task at the same settings; choose one with --task"
    of_a, of_b = ({str(run["model"]) for run in runs} for runs in (runs_a, runs_b))
    return (
        f"{names[0]} has models {_listed(of_a)}, {names[1]} {_listed(of_b)}; choose one of each with --model"
    )


def _listed(values: set[str]) -> str:
    return ", ".join(value or "none" for value in sorted(values))


def _values(run: Run, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(run[column] for column in columns)
