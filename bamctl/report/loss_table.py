"""The table of losses against position: a row a model and context, and what context beyond a window is worth.

This is the table's content; `terminal` and `export` give it its looks.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import pandas as pd

from bamctl.lengths import format_length
from bamctl.report.runs import name_runs, sorted_runs
from bamctl.results.means import mean_interval
from bamctl.results.positions import bucket_start, context_name
from bamctl.results.schema import LOSS
from bamctl.results.statistics import ACCURACY_COLUMNS, accuracy_table

NO_DATA, FAILED = "-", "fail"

_PAIR = [
    "model",
    "model_digest",
    "tokenizer_digest",
    "backend",
    "dtype",
    "variant",
    "prompt_digest",
    "length",
]
"""What the rows of a pair have in common: the same tokens, predicted by the same model."""

LOSS_COLUMNS = tuple(dict.fromkeys((*ACCURACY_COLUMNS, *_PAIR, "row_id")))
"""The columns of SAMPLE_SCHEMA that a table of losses is made of."""

_PARTS = re.compile(r" (?=max_len=\S+ samples=\S+$|samples=\S+$)")
"""Between what a variant says: of which text, how long the stretches, and how many."""

_MOST_NATS = 700
"""Beyond this exp overflows."""

_LONG_PERPLEXITY = 1e6
"""From here on a perplexity is written with an exponent."""


@dataclass(frozen=True, kw_only=True)
class LossCell:
    """A mean over n stretches, in nats a token; None where no stretch is done, its ends also where one is."""

    n: int
    loss: float | None
    low: float | None
    high: float | None
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """A run; `cells` has an entry a column of the table, None where the run does not have it."""

    run_id: str
    model: str
    """What tells the model, and how and on what it was run, from others."""
    kin: str
    """The model alone: the same, however and on what it was run."""
    window: int | None
    position_encoding: str
    ssmax: bool
    train_length: int | None
    cells: tuple[LossCell | None, ...]

    @property
    def label(self) -> str:
        """``tiny, full`` or ``tiny, W512``: short, so that it does not wrap."""
        return f"{self.model}, {'full' if self.window is None else _window(self.window)}"


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """A model's loss in full context minus that in a sliding window, over the same tokens."""

    run_id: str
    """The run's in the window."""
    model: str
    window: int
    train_length: int | None
    cells: tuple[LossCell | None, ...]

    @property
    def label(self) -> str:
        """``tiny, full-W512``."""
        return f"{self.model}, full-{_window(self.window)}"


@dataclass(frozen=True, kw_only=True)
class LossTable:
    """The table, and what its runs have in common."""

    ends: tuple[int, ...]
    """A column each: the positions up to this one, exclusive, from where the stretch before it ends."""
    rows: tuple[LossRow, ...]
    differences: tuple[LossDifference, ...]
    common: tuple[str, ...]  # conditions that all runs share, as they are written

    @property
    def averages(self) -> tuple[LossDifference, ...]:
        """See `bamctl.report.layout.Table`."""
        return self.differences

    def header(self) -> list[str]:
        """The columns' names."""
        return ["model", *self._train(["train"]), *map(format_length, self.ends)]

    @property
    def first_length(self) -> int:
        """The column of the first stretch of positions."""
        return 1 + len(self._train([""]))

    def scores(self) -> list[tuple[float | None, ...]]:
        """Nothing: a loss is no share, and has no colour."""
        return []

    def body(self, *, intervals: bool, separator: str = " ") -> list[list[str]]:
        """The rows' texts, differences behind them.

        Args:
            intervals: whether cells say their n and their interval.
            separator: what stands between a cell's loss and its interval.
        """
        behind = separator if intervals else None
        losses = [
            [row.label, *self._train_of(row), *(_loss_text(cell, behind) for cell in row.cells)]
            for row in self.rows
        ]
        differences = [
            [row.label, *self._train_of(row), *map(_difference_text, row.cells)] for row in self.differences
        ]
        return [*losses, *differences]

    def caption(self, *, intervals: bool) -> list[str]:
        """What a reader has to know, a sentence or two an entry."""
        counts = sorted({cell.n for row in self.rows for cell in row.cells if cell is not None and cell.n})
        what = "Loss in nats a token (perplexity, its exp)"
        if counts:
            many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            what += f", the mean over {many} {'stretch' if counts == [1] else 'stretches'} of text"
        if intervals:
            what += ", with the 95% t interval over them"
        lines = [f"{', '.join(self.common)}."] if self.common else []
        lines.append(f"{what}. Tokens are those of each model's own tokenizer.")
        lines.append(self._columns())
        if any(row.window is not None for row in self.rows):
            lines.append(
                f"Full: a token is predicted from all before it. {self._windows()}: a sliding window of W,"
                " the first W as in full, each other one from at least W/2 and fewer than W."
            )
        if self.differences:
            lines.append(
                "Full-W: the loss in full minus that in the window, on the same tokens; below 0 where more"
                " context helps, 0 by definition up to position W"
                f"{', ± its 95% paired t interval' if self._has_intervals() else ''}."
            )
        if any(cell is not None and cell.failed for row in self.rows for cell in row.cells):
            lines.append(f"{FAILED}: failed; {NO_DATA}: not part of the run.")
        return lines

    def _windows(self) -> str:
        windows = sorted({row.window for row in self.rows if row.window is not None}, reverse=True)
        return ", ".join(map(_window, windows))

    def _columns(self) -> str:
        """An example of what a column holds."""
        end = self.ends[-1]
        return f"By position: {format_length(end)} is of the tokens at {bucket_start(end)} to {end - 1}."

    def _has_intervals(self) -> bool:
        return any(
            cell is not None and cell.low is not None for row in self.differences for cell in row.cells
        )

    def _train(self, column: list[str]) -> list[str]:
        return column if any(row.train_length is not None for row in self.rows) else []

    def _train_of(self, row: LossRow | LossDifference) -> list[str]:
        return self._train([NO_DATA if row.train_length is None else format_length(row.train_length)])


def build_loss_table(samples: pd.DataFrame) -> LossTable:
    """Arranges losses as a table.

    Args:
        samples: rows of SAMPLE_SCHEMA, or LOSS_COLUMNS of them, each sample once; those that hold no loss are
            left out.

    Raises:
        ValueError: none of them holds a loss.
    """
    samples = samples[samples["metric"] == LOSS]
    if samples.empty:
        raise ValueError("no row holds a loss")
    readings, shared = _readings(samples)
    samples = samples.assign(variant=readings)
    losses = accuracy_table(samples)
    ends = tuple(sorted(int(end) for end in losses["length"].unique()))
    cells = {(record["run_id"], int(record["length"])): _cell(record) for record in losses.to_dict("records")}
    runs = sorted_runs(losses)
    naming = name_runs(runs)
    contexts = [(naming.label(run), _whole(run["window"])) for run in runs]
    models = {
        run["run_id"]: context[0] if contexts.count(context) == 1 else f"{context[0]}, run {run['run_id']}"
        for run, context in zip(runs, contexts, strict=True)
    }
    place = {model: number for number, model in enumerate(dict.fromkeys(models.values()))}
    # Each model's full context, then its windows, the widest first.
    runs.sort(key=lambda run: (place[models[run["run_id"]]], -(_whole(run["window"]) or math.inf)))
    differences = _differences(samples)
    return LossTable(
        ends=ends,
        rows=tuple(
            LossRow(
                run_id=run["run_id"],
                model=models[run["run_id"]],
                kin=f"{run['model']} {run['model_digest']}",
                window=_whole(run["window"]),
                position_encoding=str(run["position_encoding"]),
                ssmax=bool(run["ssmax"]),
                train_length=_whole(run["train_length"]),
                cells=tuple(cells.get((run["run_id"], end)) for end in ends),
            )
            for run in runs
        ),
        differences=tuple(
            LossDifference(
                run_id=run["run_id"],
                model=models[run["run_id"]],
                window=window,
                train_length=_whole(run["train_length"]),
                cells=tuple(differences[run["run_id"]].get(end) for end in ends),
            )
            for run in runs
            if (window := _whole(run["window"])) is not None and run["run_id"] in differences
        ),
        common=(*naming.common, *shared),
    )


def _readings(samples: pd.DataFrame) -> tuple[list[str], tuple[str, ...]]:
    """What each row's model read, without its context, as far as runs differ in it; and what all share."""
    readings = [
        variant.removesuffix(context_name(_whole(window))).rstrip()
        for variant, window in zip(samples["variant"], samples["window"], strict=True)
    ]
    parts = [_PARTS.split(reading) for reading in readings]
    if len(set(readings)) == 1 or len({len(part) for part in parts}) > 1:
        return readings, ()
    shared = [values[0] if len(set(values)) == 1 else None for values in zip(*parts, strict=True)]
    differing = [
        " ".join(value for value, common in zip(part, shared, strict=True) if common is None)
        for part in parts
    ]
    return differing, tuple(value for value in shared if value is not None)


def _differences(samples: pd.DataFrame) -> dict[str, dict[int, LossCell]]:
    """Sliding run's id → end of positions → full minus sliding; nothing where there is no full context."""
    done = samples[samples["status"] == "done"]
    full, sliding = done[done["window"].isna()], done[done["window"].notna()]
    pairs = sliding.merge(full, on=_PAIR, suffixes=("", "_full")).drop_duplicates(["run_id", "row_id"])
    found: dict[str, dict[int, LossCell]] = {}
    for key, group in pairs.groupby(["run_id", "length"]):
        run_id, end = cast("tuple[str, int]", key)
        values = (group["loss_full"] - group["loss"]).tolist()
        low, high = mean_interval(values) or (None, None)
        cell = LossCell(n=len(values), loss=fmean(values), low=low, high=high)
        found.setdefault(run_id, {})[int(end)] = cell
    return found


def _cell(record: Mapping[Any, Any]) -> LossCell:
    def real(name: str) -> float | None:
        return None if pd.isna(record[name]) else float(record[name])

    return LossCell(
        n=int(record["n"]),
        loss=real("loss"),
        low=real("loss_low"),
        high=real("loss_high"),
        failed=int(record["failed"]),
    )


def _whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _window(tokens: int) -> str:
    return f"W{format_length(tokens)}"


def _loss_text(cell: LossCell | None, separator: str | None) -> str:
    """A cell's text; with its n and interval behind `separator` where that is not None."""
    if cell is None:
        return NO_DATA
    if cell.loss is None:
        return FAILED
    perplexity = math.exp(cell.loss) if cell.loss < _MOST_NATS else math.inf
    text = f"{cell.loss:.3f} ({perplexity:{'.2f' if perplexity < _LONG_PERPLEXITY else '.2e'}})"
    if separator is None:
        return text
    interval = (
        "" if cell.low is None or cell.high is None else f"{separator}[{cell.low:.3f}, {cell.high:.3f}]"
    )
    return f"{text} n={cell.n}{interval}"


def _difference_text(cell: LossCell | None) -> str:
    """A difference and half its interval; what is 0 as it is written has no sign, and no interval of 0."""
    if cell is None or cell.loss is None:
        return NO_DATA
    mean = f"{cell.loss:+.3f}"
    half = "" if cell.high is None else f"{cell.high - cell.loss:.3f}"
    if float(mean) == 0:
        mean = "0.000"
        half = "" if half == "0.000" else half
    return f"{mean} ±{half}" if half else mean
