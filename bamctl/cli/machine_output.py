"""`--json`: what a measuring command finds, for other programs, as one JSON object a line on stdout.

Every object has a field `event`, and besides it the columns of a table, under their names:

    {"event": "sample", "row_id": "5b0c…", "length": 4096, "depth": [35.0], "exact": true, …}
        As a sample finishes or is skipped, its row of samples.parquet (SAMPLE_SCHEMA of
        `bamctl.results.schema`). As `bamctl perplexity` has read a stretch of text, one for each range of its
        positions. Samples that were there already have no such line.
    {"event": "length", "length": 4096, "n": 20, "accuracy": 0.95, "ci_low": 0.76, …}
        When a model is through with a task, for each length, its row of accuracy.parquet (ACCURACY_SCHEMA)
        over all samples that were asked for.

What is not known is null, and so is a number that is not finite. Times are ISO 8601. All is ASCII, other
characters escaped as JSON has it. Lines are written out one by one. Where nobody reads them any more, the
command ends with a line on stderr and status 1, and what was finished is kept.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import pandas as pd

    from bamctl.results.schema import SampleRow


def tell_samples(rows: "Iterable[SampleRow]") -> None:
    """A line a sample.

    Raises:
        typer.Exit: nobody reads any more.
    """
    for row in rows:
        _tell("sample", json.loads(row.to_json()))


def tell_lengths(accuracy: "pd.DataFrame") -> None:
    """A line a length of each run.

    Args:
        accuracy: rows of ACCURACY_SCHEMA.

    Raises:
        typer.Exit: nobody reads any more.
    """
    from bamctl.results.frames import to_table
    from bamctl.results.schema import ACCURACY_SCHEMA

    for row in to_table(accuracy, ACCURACY_SCHEMA).to_pylist():
        _tell("length", row)


def _tell(event: str, columns: Mapping[str, object]) -> None:
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in columns.items()
    }
    try:
        print(json.dumps({"event": event, **values}, allow_nan=False), flush=True)
    except BrokenPipeError:  # no success: a script would take what there is for all
        print(
            "bamctl: nobody reads the output any more; whatever was finished is kept: the same command goes"
            " on from there",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
