"""What a page shows beside its samples: tables of scores and of losses, curves, heatmaps, and the runs.

Every number is the table's of `bamctl report`, and is written here; the page chooses among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.lengths import format_length
from bamctl.report.depths import DepthRows
from bamctl.report.page.chapters import Chapter, Places
from bamctl.report.page.depths import Heatmaps, build_heatmaps
from bamctl.report.page.losses import loss_chapter
from bamctl.report.page.metadata import RunFacts, run_facts
from bamctl.report.page.scores import score_chapter
from bamctl.report.page.texts import visible
from bamctl.report.runs import name_runs, sorted_runs
from bamctl.results.schema import LOSS
from bamctl.results.statistics import accuracy_table


@dataclass(frozen=True, kw_only=True)
class Content:
    """All of a page but its samples."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    names: tuple[str, ...]
    """The lengths as they are written."""
    run_ids: tuple[str, ...]
    run_models: tuple[int, ...]
    run_tasks: tuple[int, ...]
    """Of each run, the places of its model and its task."""
    chapters: tuple[Chapter, ...]
    heatmaps: Heatmaps
    runs: RunFacts


def collect(samples: pd.DataFrame, depths: DepthRows, *, threshold: float) -> Content:
    """Arranges results as a page.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once; at least one.
        depths: where the samples stand in the heatmaps of their runs.
        threshold: score, 0 … 1, from which a length counts as effective.
    """
    everything = accuracy_table(samples)
    runs = sorted_runs(everything)
    models = sorted(dict.fromkeys(map(_model, runs)))
    tasks = tuple(dict.fromkeys(run["task"] for run in runs))
    places = Places(
        runs={run["run_id"]: number for number, run in enumerate(runs)},
        models={run["run_id"]: models.index(_model(run)) for run in runs},
        tasks={task: number for number, task in enumerate(tasks)},
    )
    accuracy = everything[everything["metric"] != LOSS]
    chapters = []
    if not accuracy.empty:
        chapters.append(score_chapter(accuracy, places, threshold=threshold))
    if len(accuracy) < len(everything):
        chapters.append(loss_chapter(samples, places))
    lengths = tuple(sorted(int(length) for length in everything["length"].unique()))
    names = name_runs([{**run, "task": "", "variant": "", "depth_policy": ""} for run in runs]).models
    return Content(
        models=tuple(visible(names[model]) for model in models),
        tasks=tuple(map(visible, tasks)),
        lengths=lengths,
        names=tuple(map(format_length, lengths)),
        run_ids=tuple(places.runs),
        run_models=tuple(places.models.values()),
        run_tasks=tuple(places.tasks[run["task"]] for run in runs),
        chapters=tuple(chapters),
        heatmaps=build_heatmaps(samples[samples["metric"] != LOSS], depths, places.runs),
        runs=run_facts(samples, runs, [names[_model(run)] for run in runs]),
    )


def _model(run: Mapping[Any, Any]) -> tuple[str, str]:
    return str(run["model"]), str(run["model_digest"])
