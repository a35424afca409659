"""What defines each run, and what became of its samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.lengths import format_length
from bamctl.report.page.texts import visible

_DIGEST = 12
"""Hex digits of a digest that are shown, as many as a run's id has."""

_CONDITIONS = {
    "position_encoding": "position encoding",
    "ssmax": "SSMax",
    "train_length": "train length",
    "task": "task",
    "metric": "metric",
    "variant": "variant",
    "depth_policy": "depths",
    "window": "window",
    "backend": "backend",
    "device": "device",
    "dtype": "dtype",
    "seed": "seed",
    "bamctl_version": "bamctl",
    "prompt_version": "prompt version",
}
_DIGESTS = {
    "model_digest": "model digest",
    "tokenizer_digest": "tokenizer digest",
    "task_digest": "task digest",
}
"""Column of SAMPLE_SCHEMA → how it is called."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The runs, a row each, and what they have in common."""

    common: tuple[tuple[str, str], ...]
    """Name and value of what all runs share."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each begins with the run's id and its model's name."""


def run_facts(samples: pd.DataFrame, runs: Sequence[Mapping[Any, Any]], models: Sequence[str]) -> RunFacts:
    """Gathers what is known of runs.

    Args:
        samples: rows of SAMPLE_SCHEMA.
        runs: a row of each run, with its id, in the order of showing.
        models: what the model of each run is called.
    """
    by_run = samples.groupby("run_id")
    columns = {
        name: [_joined(column, values) for values in by_run[column].unique().loc[[r["run_id"] for r in runs]]]
        for column, name in (_CONDITIONS | _DIGESTS).items()
    }
    common = {name: texts[0] for name, texts in columns.items() if len(runs) > 1 and len(set(texts)) == 1}
    conditions = {name: columns[name] for name in _CONDITIONS.values() if name not in common}
    digests = {name: columns[name] for name in _DIGESTS.values() if name not in common}
    rows = []
    for number, (run, model) in enumerate(zip(runs, models, strict=True)):
        of_run = by_run.get_group(run["run_id"])
        counts = of_run["status"].value_counts()
        done = of_run[of_run["status"] == "done"]
        rows.append(
            (
                str(run["run_id"]),
                visible(model),
                *(texts[number] for texts in conditions.values()),
                *(str(counts.get(status, 0)) for status in ("done", "skipped", "failed")),
                _mean(done["prefill_seconds"]),
                _mean(done["decode_seconds"]),
                _most(done["peak_memory_bytes"]),
                *(
                    f"{moment:%Y-%m-%d %H:%M}"
                    for moment in (of_run["started_at"].min(), of_run["started_at"].max())
                ),
                *(texts[number] for texts in digests.values()),
            )
        )
    return RunFacts(
        common=tuple((name, text) for name, text in common.items() if text),
        header=(
            "run",
            "model",
            *conditions,
            "done",
            "skipped",
            "failed",
            "mean prefill (s)",
            "mean decode (s)",
            "peak memory (MB)",
            "first sample (UTC)",
            "last sample (UTC)",
            *digests,
        ),
        rows=tuple(rows),
    )


def _joined(column: str, values: Iterable[Any]) -> str:
    return ", ".join(sorted(_text(column, value) for value in values if not pd.isna(value)))


def _text(column: str, value: Any) -> str:
    if column in ("train_length", "window"):
        return format_length(int(value))
    if column == "ssmax":
        return "yes" if value else "no"
    if column in _DIGESTS:
        return visible(str(value).rpartition(":")[2][:_DIGEST])
    return visible(str(value))


def _mean(seconds: pd.Series) -> str:
    return "" if seconds.isna().all() else f"{seconds.mean():.3g}"


def _most(size: pd.Series) -> str:
    return "" if size.isna().all() else f"{size.max() / 1e6:,.0f}"
