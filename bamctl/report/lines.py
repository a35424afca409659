"""Whose line a line of a figure is, and which lines belong together."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.report.runs import Naming


@dataclass(frozen=True, kw_only=True)
class ModelLine:
    """What every line of a figure says of its model."""

    label: str
    kin: str
    """What lines have in common that have one colour: a model with and without SSMax, and its repeats."""
    repeat_of: str
    """The label of the line of which this is another training; its own where it is the first."""
    position_encoding: str
    ssmax: bool
    train_length: int | None


class Kinship:
    """Finds the kin of runs that are shown together.

    A model NAME-2, NAME-3, … is another training of NAME where that is shown too and has its position
    encoding, and NAME-ssmax is NAME with SSMax.
    """

    def __init__(self, runs: Iterable[Mapping[Any, Any]], naming: Naming) -> None:
        """Takes all runs that are shown: rows of ACCURACY_SCHEMA, or of SAMPLE_SCHEMA."""
        self._models = naming.models
        encodings = {
            self._called(run): (run["position_encoding"], bool(_known(run["ssmax"]))) for run in runs
        }
        self._repeats = {}
        for name, encoding in encodings.items():
            match = re.fullmatch(r"(.+)-([0-9]+)", name)
            if match and int(match[2]) >= 2 and encodings.get(match[1]) == encoding:
                self._repeats[name] = match[1]

    def of(self, run: Mapping[Any, Any], label: str) -> dict[str, Any]:
        """The fields of a `ModelLine` with that label, which begins with what the model is called."""
        called = self._called(run)
        ssmax = bool(_known(run["ssmax"]))
        first = self._repeats.get(called, called)
        behind = label.removeprefix(called)
        train_length = _known(run["train_length"])
        return {
            "label": label,
            "kin": (first.removesuffix("-ssmax") if ssmax else first) + behind,
            "repeat_of": self.repeat_of(run, label),
            "position_encoding": run["position_encoding"],
            "ssmax": ssmax,
            "train_length": None if train_length is None else int(train_length),
        }

    def repeat_of(self, run: Mapping[Any, Any], label: str) -> str:
        """The label of the run's model's first training; `label` itself where it is that of the first."""
        called = self._called(run)
        return self._repeats.get(called, called) + label.removeprefix(called)

    def _called(self, run: Mapping[Any, Any]) -> str:
        return self._models[run["model"], run["model_digest"]]


def _known(value: Any) -> Any:
    return None if pd.isna(value) else value
