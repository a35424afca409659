"""`bamctl score`: predictions that were made elsewhere, scored."""

from pathlib import Path
from typing import Annotated

import typer

from bamctl.errors import BadInput, did_you_mean


def score(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of predictions as RULER's pipeline writes them: JSON lines with outputs (the right"
            " answers) and pred (what the model wrote).",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="The task whose predictions these are: a name, or a task file.",
            show_default="each file's name, such as niah_single_1.jsonl",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for each file.")] = False,
) -> None:
    """Score predictions made elsewhere, as RULER does.

    The score is that of RULER's own program, in percent. exact counts answers that are right and nothing but
    that, nulls counts empty ones.
    """
    from bamctl.evaluation.predictions import read_predictions, score_predictions, task_of_file
    from bamctl.tasks.catalog import load_spec, task_files

    known = task_files()
    results = []
    for file in files:
        name = task_of_file(file, known) if task is None else task
        if name is None:
            raise BadInput(
                f"{file}: there is no task of this name{did_you_mean(file.stem, known)}; name the task with"
                " --task"
            )
        spec = load_spec(name)
        results.append((file, spec, score_predictions(read_predictions(file), spec.metric)))

    if as_json:
        import json

        for file, spec, result in results:
            record = {
                "task": spec.name,
                "file": str(file),
                "metric": spec.metric,
                "n": result.n,
                "score": result.percent,
                "score_low": round(100 * result.low, 2),
                "score_high": round(100 * result.high, 2),
                "exact": result.exact,
                "nulls": result.nulls,
            }
            print(json.dumps(record))
        return

    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "file", "n", "score %", "95% interval", "exact", "nulls"):
        table.add_column(column, justify="left" if column in ("task", "file") else "right", overflow="fold")
    for file, spec, result in results:
        table.add_row(
            Text(spec.name),
            Text(str(file)),
            str(result.n),
            f"{result.percent:.2f}",
            f"{100 * result.low:.1f}-{100 * result.high:.1f}",
            f"{result.exact}/{result.n}",
            f"{result.nulls}/{result.n}",
        )
    print_listing(table)
