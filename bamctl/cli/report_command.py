"""`bamctl report`: what all runs came to, as one table, or how two results compare."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from bamctl.report.comparison_table import ComparisonTable, DifferingTable

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
    averages: Annotated[
        bool, typer.Option("--averages", help="Only the averages over RULER's tasks: a row a model.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw the scores against length as well: .png, .pdf or .svg.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Compare the predictions of two folders of results, sample by sample, instead. Exits with 0"
            " if each sample that both have done has the same prompt and the same prediction, with 1 if not,"
            " with 2 if they have none in common.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show scores against length. A row for each run, a column for each length.

    Scores are exact answers, or RULER's own score of its tasks. Where a model has several of RULER's tasks
    they are averaged as RULER does. Losses, as bamctl perplexity measures them, have a table of their own.
    """
    _check_together(csv=csv, markdown=markdown, latex=latex)
    if compare is not None:
        _refuse_beside_compare(
            paths=paths, intervals=intervals, threshold=threshold, averages=averages, figure=figure
        )
        _compare(compare, tasks=task or [], models=model or [], csv=csv, markdown=markdown, latex=latex)
        return
    if threshold is not None and not 0 < threshold <= 100:
        raise BadInput(f"--threshold {threshold:g}: must be a percentage above 0, at most 100")
    if threshold is not None and csv and figure is None:
        raise BadInput("--threshold has no effect on --csv, which has no effective lengths; leave one out")
    if averages and csv:
        raise BadInput("--averages has no effect on --csv, which has every run; leave one out")
    if averages and intervals:
        raise BadInput("--intervals has no effect on --averages, which have none; leave one out")
    if figure is not None:
        from bamctl.report.style import check_figure_path

        check_figure_path(figure)

    from rich.console import Console

    from bamctl.report.export import to_csv, to_latex, to_markdown
    from bamctl.report.loss_table import LossTable, build_loss_table
    from bamctl.report.runs import select_runs
    from bamctl.report.table import AccuracyTable, build_table
    from bamctl.report.terminal import print_table
    from bamctl.results.schema import LOSS
    from bamctl.results.store import accuracy_table, load_samples

    where = _own_results() if paths is None else paths
    samples = load_samples(where)
    if samples.empty:
        looked_in = ", ".join(map(str, paths or [DEFAULT]))
        raise BadInput(f"no results in {looked_in}; bamctl passkey makes some{_hint_at_published(paths)}")
    samples = select_runs(samples, tasks=task or [], models=model or [])
    if samples.empty:
        raise BadInput("no results of these tasks by these models; leave out --task or --model")
    everything = accuracy_table(samples)
    accuracy = everything[everything["metric"] != LOSS]
    share = (THRESHOLD if threshold is None else threshold) / 100
    tables: list[AccuracyTable | LossTable] = []
    if averages or not accuracy.empty:
        tables.append(build_table(accuracy, threshold=share, averages_only=averages))
    if len(accuracy) < len(everything) and not averages:
        tables.append(build_loss_table(samples))
    if figure is not None:
        from bamctl.report.figure import accuracy_figure
        from bamctl.report.loss_figure import loss_figure
        from bamctl.report.style import save_figure

        if len(tables) > 1:
            raise BadInput(
                f"figure {figure}: is of scores or of losses; choose tasks of one kind with --task"
            )
        (table,) = tables
        drawing = (
            loss_figure(table)
            if isinstance(table, LossTable)
            else accuracy_figure(accuracy, threshold=share, averages_only=averages)
        )
        save_figure(drawing, figure)
    if csv:
        sys.stdout.write(to_csv(everything))
    elif markdown:
        sys.stdout.write("\n".join(to_markdown(table, intervals=intervals) for table in tables))
    elif latex:
        sys.stdout.write("\n".join(to_latex(table, intervals=intervals) for table in tables))
    else:
        for number, table in enumerate(tables):
            if number:
                print()
            print_table(table, Console(), intervals=intervals)


def _refuse_beside_compare(paths: list[Path] | None, **options: object) -> None:
    if paths:
        raise BadInput(f"--compare takes two folders and there is no room for {paths[0]}; leave it out")
    for name, value in options.items():
        if value is not None and value is not False:
            raise BadInput(f"--{name} has no effect on --compare; leave one out")


def _compare(
    paths: tuple[Path, Path],
    *,
    tasks: list[str],
    models: list[str],
    csv: bool,
    markdown: bool,
    latex: bool,
) -> None:
    """Prints how two results compare.

    Raises:
        BadInput: a path holds no results, or there is nothing to compare.
        typer.Exit: with 1 where a prediction or a prompt differs.
    """
    import pandas as pd

    from bamctl.report.comparison import compare
    from bamctl.report.comparison_table import ComparisonTable, DifferingTable, to_frame
    from bamctl.report.export import to_csv, to_latex, to_markdown
    from bamctl.report.runs import select_runs
    from bamctl.results.store import load_samples

    names = (str(paths[0]), str(paths[1]))
    places = [path.resolve() for path in paths]
    if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
        raise BadInput(f"--compare {' '.join(names)}: one is or holds the other; name two that are apart")
    sides = []
    for path in paths:
        sides.append(load_samples([path]).assign(side=str(path)))
        if sides[-1].empty:
            raise BadInput(f"no results in {path}; bamctl passkey makes some")
    # Of both at once: a model that only one of them has may be named.
    selected = select_runs(pd.concat(sides, ignore_index=True), tasks=tasks, models=models)
    sides = [selected[selected["side"] == name] for name in names]
    for side, name in zip(sides, names, strict=True):
        if side.empty:
            raise BadInput(f"no results of these tasks by these models in {name}")
    comparison = compare(sides[0], sides[1], names=names)
    table, differing = (
        ComparisonTable(comparison=comparison, names=names),
        DifferingTable(comparison=comparison),
    )
    if csv:
        sys.stdout.write(to_csv(to_frame(comparison)))
    elif markdown or latex:
        form = to_markdown if markdown else to_latex
        sys.stdout.write("\n".join(form(part) for part in (table, differing) if len(part.rows)))
    else:
        _print_comparison(table, differing)
    if not comparison.alike:
        raise typer.Exit(1)


def _print_comparison(table: "ComparisonTable", differing: "DifferingTable") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.report.terminal import print_table

    print_table(table, Console())
    if not differing.rows:
        return
    listing = Table(box=None, pad_edge=False, header_style="bold")
    for column in differing.header():
        listing.add_column(column, overflow="fold")
    for texts in differing.body():
        listing.add_row(*map(Text, texts))
    print()
    print_listing(listing)
    print("\n".join(differing.caption()))


def _check_together(**formats: bool) -> None:
    chosen = [f"--{name}" for name, asked_for in formats.items() if asked_for]
    if len(chosen) > 1:
        raise BadInput(f"{' and '.join(chosen)} exclude each other; choose one")


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


def print_accuracy(accuracy: "pd.DataFrame", console: "Console") -> None:
    """Prints rows of ACCURACY_SCHEMA as the table of scores against length."""
    from bamctl.report.table import build_table
    from bamctl.report.terminal import print_table

    print_table(build_table(accuracy, threshold=THRESHOLD / 100), console)
