"""Predictions that were made elsewhere, in the files that RULER's own pipeline writes.

A line of such a file is a JSON object with `outputs`, a list of right answers (or `output`, a single one),
and `pred`, what the model wrote (null for nothing). Whatever else it has, such as `index`, `input`, `length`
and `others`, changes no score.
"""

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamctl.errors import BadInput
from bamctl.evaluation.scores import Metric, exact_match, postprocess, recall, score
from bamctl.results.proportions import wilson_interval

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One sample, answered."""

    text: str
    references: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PredictionsScore:
    """What a file of predictions came to."""

    n: int
    score: float
    """Mean of the samples' scores, 0 … 1."""
    low: float
    high: float
    """The ends of its 95% Wilson interval."""
    exact: int
    """Samples with an exact answer."""
    nulls: int
    """Samples with an empty answer, as RULER counts them."""

    @property
    def percent(self) -> float:
        """The score as RULER writes it: in percent, with two decimals."""
        return round(self.score * 100, 2)


def read_predictions(path: Path) -> list[Prediction]:
    """Reads a file of predictions; blank lines are passed over.

    Raises:
        BadInput: the file cannot be read or holds no predictions, or a line is none; the message names the
            file and the line's number.
    """
    predictions = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if content.strip():
                    try:
                        predictions.append(_parsed(content))
                    except _NoPrediction as problem:
                        raise BadInput(f"{path}, line {number}: {problem}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error})") from None
    if not predictions:
        raise BadInput(f"{path}: holds no predictions; a line is expected for each")
    return predictions


def score_predictions(predictions: Sequence[Prediction], metric: Metric) -> PredictionsScore:
    """Scores the predictions of one task; at least one is needed."""
    recalls = [recall(prediction.text, prediction.references, metric) for prediction in predictions]
    exact = [exact_match(prediction.text, prediction.references, metric) for prediction in predictions]
    n = len(predictions)
    total = sum(score(*figures, metric) for figures in zip(exact, recalls, strict=True))
    low, high = wilson_interval(total, n)
    return PredictionsScore(
        n=n,
        score=total / n,
        low=low,
        high=high,
        exact=sum(exact),
        nulls=sum(not postprocess(prediction.text) for prediction in predictions),
    )


def task_of_file(path: Path, tasks: Container[str]) -> str | None:
    """The task whose predictions a file holds by its name: ``TASK.jsonl``, or ``TASK-0.jsonl`` for a part."""
    for name in (path.stem, re.sub(r"-\d+$", "", path.stem)):
        if name in tasks:
            return name
    return None


class _NoPrediction(Exception):
    """What is wrong with a line."""


def _parsed(line: bytes) -> Prediction:
    try:
        values = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _NoPrediction("is not JSON in UTF-8") from None
    if not isinstance(values, dict):
        raise _NoPrediction("is no JSON object with pred and outputs")
    if "pred" not in values:
        raise _NoPrediction("has no pred, what the model wrote; null stands for nothing")
    text = values["pred"]
    if text is not None and not isinstance(text, str):
        raise _NoPrediction("pred must be text or null")
    return Prediction(text=text or "", references=_references(values))


def _references(values: dict[str, Any]) -> tuple[str, ...]:
    if "outputs" not in values and "output" not in values:
        raise _NoPrediction("has neither outputs nor output, the right answers")
    references = values["outputs"] if "outputs" in values else [values["output"]]
    if not isinstance(references, list) or not references:
        raise _NoPrediction("outputs must be a list of right answers, with at least one")
    if not all(isinstance(reference, str) and reference for reference in references):
        raise _NoPrediction("a right answer must be text, and not empty: that is in every prediction")
    return tuple(references)
