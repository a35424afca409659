"""`bamctl report`: what all runs came to, as one table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

DEFAULT = Path("results")
THRESHOLD = 85.6
PUBLISHED = "reference"


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Folders of results, runs, or Parquet files of samples. By default the folder results,"
            " without the published runs in results/reference.",
            show_default=False,
        ),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="With each score its n and its 95% Wilson interval.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="PERCENT",
            help="Score from which a length counts as effective.",
            show_default=f"RULER's, {THRESHOLD}",
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="One line a run and length, every column.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX tabular (booktabs).")] = False,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TASK", help="This task alone; a pattern, or repeat it."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="This model alone; a pattern, or repeat it."),
    ] = None,
) -> None:
    """Show scores against length. A row for each run, a column for each length.

    Scores are exact answers, or RULER's own score of its tasks. Where a model has several of RULER's tasks
    they are averaged as RULER does.
    """
    formats = [
        f"--{name}" for name, chosen in (("csv", csv), ("markdown", markdown), ("latex", latex)) if chosen
    ]
    if len(formats) > 1:
        raise BadInput(f"{' and '.join(formats)} exclude each other; choose one")
    if threshold is not None and not 0 < threshold <= 100:
        raise BadInput(f"--threshold {threshold:g}: must be a percentage above 0, at most 100")
    if threshold is not None and csv:
        raise BadInput("--threshold has no effect on --csv, which has no effective lengths; leave one out")

    from rich.console import Console

    from bamctl.report.export import to_csv, to_latex, to_markdown
    from bamctl.report.runs import select_runs
    from bamctl.report.table import build_table
    from bamctl.results.store import accuracy_table, load_samples

    where = _own_results() if paths is None else paths
    accuracy = accuracy_table(load_samples(where))
    if accuracy.empty:
        looked_in = ", ".join(map(str, paths or [DEFAULT]))
        raise BadInput(f"no results in {looked_in}; bamctl passkey makes some{_hint_at_published(paths)}")
    accuracy = select_runs(accuracy, tasks=task or [], models=model or [])
    if accuracy.empty:
        raise BadInput("no results of these tasks by these models; leave out --task or --model")
    percent = THRESHOLD if threshold is None else threshold
    if csv:
        sys.stdout.write(to_csv(accuracy))
    elif markdown:
        sys.stdout.write(to_markdown(build_table(accuracy, threshold=percent / 100), intervals=intervals))
    elif latex:
        sys.stdout.write(to_latex(build_table(accuracy, threshold=percent / 100), intervals=intervals))
    else:
        print_accuracy(accuracy, Console(), intervals=intervals, threshold=percent)


def _own_results() -> list[Path]:
    """What lies in the default folder, but for the published runs: nobody is to take them for their own."""
    if not DEFAULT.is_dir():
        return [DEFAULT]  # load_samples tells what is wrong with it
    return sorted(path for path in DEFAULT.iterdir() if path.is_dir() and path.name != PUBLISHED)


def _hint_at_published(paths: list[Path] | None) -> str:
    published = DEFAULT / PUBLISHED
    return (
        f" (bamctl report {published} shows the published ones)" if not paths and published.is_dir() else ""
    )


def print_accuracy(
    accuracy: "pd.DataFrame", console: "Console", *, intervals: bool = False, threshold: float = THRESHOLD
) -> None:
    """Prints rows of ACCURACY_SCHEMA as the table of scores against length; the threshold is in percent."""
    from bamctl.report.table import build_table
    from bamctl.report.terminal import print_table

    print_table(build_table(accuracy, threshold=threshold / 100), console, intervals=intervals)
