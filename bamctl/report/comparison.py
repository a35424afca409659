"""Two results compared sample by sample: whether the same prompts were answered alike, and whose are right.

A and B are any two sets of runs: of two backends, dtypes, versions or models. A sample is told by its
row_id, which knows neither the model nor what ran it. The tables are in `comparison_table`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from bamctl.errors import BadInput
from bamctl.report.pairing import Run, pair_runs
from bamctl.report.runs import name_runs
from bamctl.results.comparison import holm, mcnemar_p, paired_interval, sign_flip_p
from bamctl.results.means import count_scores, difference_interval
from bamctl.results.schema import LOSS

_COLUMNS = [
    "row_id",
    "run_id",
    "length",
    "sample",
    "metric",
    "depth",
    "prompt_digest",
    "references",
    "prediction",
    "exact",
    "recall",
    "answer_logprob",
    "status",
]

_DIFFERENT = " vs "
"""Between A's value and B's, where they are not the same."""

_NAMED = ("model", "model_digest", "task", "variant", "depth_policy", "backend", "dtype", "seed")
"""What labels are made of."""

Fate = Literal["compared", "other_prompt", "not_done", "only_in_a", "only_in_b"]
"""What becomes of a sample."""

_REASONS: dict[str, str] = {
    "other_prompt": "whose prompts are not, or not known to be, the same",
    "not_done": "skipped or failed in A or B",
    "only_in_a": "only in A",
    "only_in_b": "only in B",
}
"""Why one is not compared."""

_Row = Mapping[Any, Any]
_Sample = tuple[_Row | None, _Row | None]
"""What A and B have of one sample; at least one of them has it."""


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """A's mean score minus B's, with its 95% interval, -1 … 1, and p of there being none."""

    mean: float
    low: float
    high: float
    p: float  # `mcnemar_p`, or of recall `sign_flip_p`
    p_holm: float  # adjusted for all that is tested beside it: each length, or each pair's lengths together


@dataclass(frozen=True, kw_only=True)
class ComparedLength:
    """The samples of a pair of runs at one length.

    `identical` … `logprob_difference` are of the compared ones.
    """

    label: str
    task: str
    run_a: str
    run_b: str
    length: int | None  # tokens; None: all lengths of the pair together
    samples: int  # that are compared
    identical: int  # their predictions, character by character
    only_a_right: int
    only_b_right: int
    difference: PairedDifference | None  # None where none is compared
    logprob_difference: float | None  # largest of answer_logprob, nats; None where A or B never has one
    other_prompt: int
    not_done: int
    only_in_a: int
    only_in_b: int

    @property
    def alike(self) -> bool:
        """Whether each sample that both have done has the same prompt and the same prediction."""
        return self.identical == self.samples and not self.other_prompt


@dataclass(frozen=True, kw_only=True)
class DifferingSample:
    """One prompt and two predictions."""

    label: str
    row_id: str
    length: int
    depths: tuple[float, ...]
    references: tuple[str, ...]
    predictions: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What A and B have in common, and in what they differ."""

    subject: str
    """What labels tell apart, as in `bamctl.report.runs.Naming`."""
    lengths: tuple[ComparedLength, ...]
    """The lengths of each pair of runs, and behind them, if there are several, all of them together."""
    differing: tuple[DifferingSample, ...]
    common: tuple[str, ...]
    """What all pairs share, as it is written; A's and B's where these two differ."""
    remarks: tuple[str, ...]
    """What is not the same, and what was left out."""

    @property
    def alike(self) -> bool:
        """Whether each sample that both have done has the same prompt and the same prediction."""
        return all(length.alike for length in self.lengths)


def compare(samples_a: pd.DataFrame, samples_b: pd.DataFrame, *, names: tuple[str, str]) -> Comparison:
    """Compares A with B.

    Args:
        samples_a: rows of SAMPLE_SCHEMA; those that hold a loss are left out.
        samples_b: likewise.
        names: what A and B are called in an error, such as their folders.

    Raises:
        BadInput: no sample is done in both from the same prompt, or it is not clear which runs are meant.
    """
    side_a, side_b = (samples[samples["metric"] != LOSS] for samples in (samples_a, samples_b))
    for side, name in ((side_a, names[0]), (side_b, names[1])):
        if side.empty:
            raise BadInput(f"{name}: has losses alone; predictions are what is compared")
    pairs, alone = pair_runs((side_a, side_b), names)
    rows_a, rows_b = _by_run(side_a), _by_run(side_b)
    subject, labels, common = _labels(pairs)
    lengths: list[ComparedLength] = []
    differing: list[DifferingSample] = []
    for (run_a, run_b), label in zip(pairs, labels, strict=True):
        samples = _matched(rows_a[run_a["run_id"]], rows_b[run_b["run_id"]])
        lengths += _compare_lengths(label, run_a, run_b, samples)
        differing += [_differing(label, a, b) for a, b in samples if a and b and _differ(a, b)]
    each_once = [length for length in lengths if length.length is not None]
    left_out = _left_out(
        other_prompt=sum(length.other_prompt for length in each_once),
        not_done=sum(length.not_done for length in each_once),
        only_in_a=sum(length.only_in_a for length in each_once) + _count(rows_a, alone[0]),
        only_in_b=sum(length.only_in_b for length in each_once) + _count(rows_b, alone[1]),
    )
    if not any(length.samples for length in each_once):
        raise BadInput(
            f"nothing to compare: no sample is done in {names[0]} (A) and in {names[1]} (B) from the same"
            f" prompt; {left_out}"
        )
    remarks = [
        *_unlike(pairs, side_a, side_b),
        *([f"Samples that are not compared: {left_out}."] if left_out else []),
        *_runs_alone(alone),
    ]
    if len(side_a) < len(samples_a) or len(side_b) < len(samples_b):
        remarks.append("Losses are not compared.")
    return Comparison(
        subject=subject,
        lengths=tuple(_adjusted(lengths)),
        differing=tuple(differing),
        common=common,
        remarks=tuple(remarks),
    )


def _by_run(samples: pd.DataFrame) -> dict[str, dict[str, _Row]]:
    """run_id → row_id → row."""
    rows: dict[str, dict[str, _Row]] = {}
    for row in samples[_COLUMNS].to_dict("records"):
        rows.setdefault(row["run_id"], {})[row["row_id"]] = row
    return rows


def _matched(rows_a: Mapping[str, _Row], rows_b: Mapping[str, _Row]) -> list[_Sample]:
    """Every sample of either, by length and number."""
    samples = [(rows_a.get(row_id), rows_b.get(row_id)) for row_id in {**rows_a, **rows_b}]
    return sorted(
        samples, key=lambda sample: [_known(sample)[name] for name in ("length", "sample", "row_id")]
    )


def _known(sample: _Sample) -> _Row:
    row = sample[0] or sample[1]
    assert row is not None
    return row


def _fate(a: _Row | None, b: _Row | None) -> Fate:
    if b is None:
        return "only_in_a"
    if a is None:
        return "only_in_b"
    if a["status"] != "done" or b["status"] != "done":
        return "not_done"
    known = isinstance(a["prompt_digest"], str)  # else it is null
    return "compared" if known and a["prompt_digest"] == b["prompt_digest"] else "other_prompt"


def _differ(a: _Row, b: _Row) -> bool:
    return _fate(a, b) == "compared" and a["prediction"] != b["prediction"]


def _score(row: _Row) -> float:
    return float(row["exact"] if row["metric"] == "exact" else row["recall"])


def _compare_lengths(
    label: str, run_a: Run, run_b: Run, samples: Sequence[_Sample]
) -> Iterator[ComparedLength]:
    by_length: dict[int | None, Sequence[_Sample]] = {}
    for known, of_length in itertools.groupby(samples, lambda sample: int(_known(sample)["length"])):
        by_length[known] = list(of_length)
    if len(by_length) > 1:
        by_length[None] = samples
    for length, of_this in by_length.items():
        fates = Counter(_fate(*sample) for sample in of_this)
        compared = [(a, b) for a, b in of_this if a and b and _fate(a, b) == "compared"]
        scores = [(_score(a), _score(b)) for a, b in compared]
        right = Counter((a == 1, b == 1) for a, b in scores)
        yield ComparedLength(
            label=label,
            task=str(run_a["task"]),
            run_a=str(run_a["run_id"]),
            run_b=str(run_b["run_id"]),
            length=length,
            samples=len(compared),
            identical=sum(not _differ(a, b) for a, b in compared),
            only_a_right=right[True, False],
            only_b_right=right[False, True],
            difference=_difference(scores),
            logprob_difference=_logprob_difference(compared),
            other_prompt=fates["other_prompt"],
            not_done=fates["not_done"],
            only_in_a=fates["only_in_a"],
            only_in_b=fates["only_in_b"],
        )


def _difference(scores: Sequence[tuple[float, float]]) -> PairedDifference | None:
    """Of A's and B's scores; p is not adjusted yet."""
    if not scores:
        return None
    differences = count_scores(a - b for a, b in scores)
    if {score for pair in scores for score in pair} <= {0, 1}:
        only_a, only_b = scores.count((1, 0)), scores.count((0, 1))
        (low, high), p = paired_interval(only_a, only_b, len(scores)), mcnemar_p(only_a, only_b)
    else:
        (low, high), p = difference_interval(differences), sign_flip_p(differences)
    return PairedDifference(mean=differences.mean, low=low, high=high, p=p, p_holm=p)


def _adjusted(lengths: Iterable[ComparedLength]) -> Iterator[ComparedLength]:
    """The same with p adjusted."""
    lengths = list(lengths)
    families: dict[bool, list[float]] = {True: [], False: []}
    for row in lengths:
        if row.difference is not None:
            families[row.length is None].append(row.difference.p)
    adjusted = {together: iter(holm(ps)) for together, ps in families.items()}
    for row in lengths:
        if row.difference is None:
            yield row
        else:
            p_holm = next(adjusted[row.length is None])
            yield replace(row, difference=replace(row.difference, p_holm=p_holm))


def _logprob_difference(compared: Iterable[tuple[_Row, _Row]]) -> float | None:
    both = [(float(a["answer_logprob"]), float(b["answer_logprob"])) for a, b in compared]
    known = [(a, b) for a, b in both if not (math.isnan(a) or math.isnan(b))]
    return max((0.0 if a == b else abs(a - b) for a, b in known), default=None)  # both may be -inf


def _differing(label: str, a: _Row, b: _Row) -> DifferingSample:
    return DifferingSample(
        label=label,
        row_id=a["row_id"],
        length=int(a["length"]),
        depths=tuple(() if a["depth"] is None else map(float, a["depth"])),
        references=tuple(() if a["references"] is None else map(str, a["references"])),
        predictions=(a["prediction"], b["prediction"]),
    )


def _both(a: Run, b: Run) -> dict[Any, Any]:
    """The runs of a pair as one that can be named: where they differ it has both values."""
    both = {name: a[name] if a[name] == b[name] else f"{a[name]}{_DIFFERENT}{b[name]}" for name in _NAMED}
    if a["model_digest"] == b["model_digest"]:
        both["model"] = a["model"]
    elif a["model"] == b["model"]:
        digests = (run["model_digest"].rpartition(":")[2][:7] for run in (a, b))
        both["model"] = _DIFFERENT.join(f"{a['model']} @{digest}" for digest in digests)
    return both


def _labels(pairs: Sequence[tuple[Run, Run]]) -> tuple[str, list[str], tuple[str, ...]]:
    """What the labels of pairs tell apart, these labels, and what all pairs share."""
    runs = [_both(*pair) for pair in pairs]
    naming = name_runs(runs)
    labels = [naming.label(run) for run in runs]
    if len(runs) > 1:
        return naming.subject, labels, naming.common
    task, *others = naming.common
    return "task", [task], (*labels, *others)  # two models' names are long, and would stand in each row


def _left_out(**counts: int) -> str:
    """How many samples are not compared and why; empty where all of them are."""
    return ", ".join(f"{count} {_REASONS[fate]}" for fate, count in counts.items() if count)


def _count(rows: Mapping[str, Mapping[str, _Row]], runs: Iterable[Run]) -> int:
    return sum(len(rows[run["run_id"]]) for run in runs)


def _unlike(pairs: Sequence[tuple[Run, Run]], side_a: pd.DataFrame, side_b: pd.DataFrame) -> Iterator[str]:
    """In what A and B differ that no label says."""
    if any(a["model_digest"] != b["model_digest"] for a, b in pairs):
        yield "Models with different weights are compared."
    if any(a["tokenizer_digest"] != b["tokenizer_digest"] for a, b in pairs):
        yield "Their tokenizers differ."
    for column, what in (("device", "Device"), ("bamctl_version", "Version of bamctl")):
        values = [
            ", ".join(sorted(set(side.loc[side["run_id"].isin([run["run_id"] for run in runs]), column])))
            for side, runs in zip((side_a, side_b), zip(*pairs, strict=True), strict=True)
        ]
        if values[0] != values[1]:
            yield f"{what}: {_DIFFERENT.join(values)}."


def _runs_alone(alone: tuple[Sequence[Run], Sequence[Run]]) -> Iterator[str]:
    for runs, side in zip(alone, "AB", strict=True):
        if runs:
            names = [
                f"{run['model']} on {run['task']} ({run['backend']}, {run['dtype']}, run {run['run_id']})"
                for run in runs
            ]
            yield f"Only {side} has {', '.join(names)}."
