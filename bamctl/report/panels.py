"""What a figure of scores against length shows: a panel for each thing measured, in it a line for each run.

This is the figure's content; `figure` gives it its looks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.report.averages import task_averages
from bamctl.report.lines import Kinship, ModelLine
from bamctl.report.runs import name_runs, sorted_runs
from bamctl.results.effective import effective_length
from bamctl.results.statistics import unlearned_runs

_OF_PANELS = ("task", "variant", "depth_policy")
"""What the lines of a panel have in common: the same prompts, which alone can be compared."""


@dataclass(frozen=True, kw_only=True)
class Line(ModelLine):
    """A run, or a model's average over tasks.

    The three scores have an entry a length, 0 … 1; None where no sample is done, or there is no interval.
    """

    run_id: str | None
    """None of an average."""
    learned: bool
    """False where the accuracy at the train length says that the model has not learned it."""
    counts: tuple[int, ...]
    """n at each length where some samples are done, in no order; none of an average."""
    lengths: tuple[int, ...]
    scores: tuple[float | None, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]

    def effective_length(self, threshold: float) -> int | None:
        """See `bamctl.results.statistics.effective_length`; lengths without a score were not tested."""
        scores = zip(self.lengths, self.scores, strict=True)
        return effective_length({length: score for length, score in scores if score is not None}, threshold)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines that can be compared."""

    title: str
    conditions: tuple[str, ...]
    """What beside the title tells this panel from others."""
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Panels:
    """All panels, and what the runs in them have in common, as it is written."""

    panels: tuple[Panel, ...]
    common: tuple[str, ...]
    exact: bool
    """Whether all scores are shares of exact answers."""


def build_panels(accuracy: pd.DataFrame, *, averages_only: bool = False) -> Panels:
    """Arranges the scores of runs as panels, in the order of the table: RULER's averages are the last.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.
        averages_only: whether runs themselves are left out.
    """
    runs = [] if averages_only else sorted_runs(accuracy)
    averages = [average for average in task_averages(accuracy) if average.scores]
    everything = [*runs, *(average.run for average in averages)]
    naming = name_runs([{**run, **dict.fromkeys(_OF_PANELS, "")} for run in everything])
    kinship = Kinship(everything, naming)
    unlearned = unlearned_runs(accuracy)

    lines: dict[tuple[str | tuple[str, ...], str, str], list[Line]] = {}
    records = {run_id: rows.sort_values("length") for run_id, rows in accuracy.groupby("run_id")}
    labels = [naming.label(run, instead_of_task="") for run in runs]
    places = [(run["task"], run["variant"], run["depth_policy"]) for run in runs]
    twice = Counter(zip(places, labels, strict=True))
    for run, label, place in zip(runs, labels, places, strict=True):
        rows = records[run["run_id"]]
        label = f"{label}, run {run['run_id']}" if twice[place, label] > 1 else label
        line = Line(
            **kinship.of(run, label),
            run_id=run["run_id"],
            learned=run["run_id"] not in unlearned,
            counts=tuple(int(n) for n in rows["n"] if n),
            lengths=tuple(int(length) for length in rows["length"]),
            scores=_shares(rows["score"]),
            lows=_shares(rows["score_low"]),
            highs=_shares(rows["score_high"]),
        )
        lines.setdefault(place, []).append(line)
    for average in averages:
        intervals = [average.intervals.get(length, (None, None)) for length in average.lengths]
        line = Line(
            **kinship.of(average.run, naming.label(average.run, instead_of_task="")),
            run_id=None,
            learned=True,
            counts=(),
            lengths=average.lengths,
            scores=tuple(average.scores.get(length) for length in average.lengths),
            lows=tuple(low for low, _ in intervals),
            highs=tuple(high for _, high in intervals),
        )
        place = average.tasks, average.run["variant"], average.run["depth_policy"]
        lines.setdefault(place, []).append(line)
    depths = {depth_policy for _, _, depth_policy in lines}
    panels = tuple(
        Panel(
            title=of if isinstance(of, str) else f"average of {len(of)} tasks",
            conditions=tuple(
                text for text in (variant, f"depths {depth_policy}" if len(depths) > 1 else "") if text
            ),
            lines=tuple(of_panel),
        )
        for (of, variant, depth_policy), of_panel in lines.items()
    )
    shared = [f"depths {depth_policy}" for depth_policy in depths] if len(depths) == 1 else []
    return Panels(
        panels=panels,
        common=(*shared, *naming.common),
        exact=all(run["metric"] == "exact" for run in everything),
    )


def _shares(column: Iterable[Any]) -> tuple[float | None, ...]:
    return tuple(None if pd.isna(share) else float(share) for share in column)
