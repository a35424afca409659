"""`bamctl report`: what all runs came to, as one table, or how two results compare."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.cli.result_paths import ModelFilter, ResultPaths, named, own_results, published_beside
from bamctl.errors import BadInput
from bamctl.report.draw import LENGTH, check_plot, plot_columns

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

THRESHOLD = 85.6


def report(
    paths: ResultPaths = None,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="With each score its n and its 95% interval.")
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
    json: Annotated[bool, typer.Option("--json", help="The same as a JSON object a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX tabular (booktabs).")] = False,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TASK", help="This task alone; a pattern, or repeat it."),
    ] = None,
    model: ModelFilter = None,
    averages: Annotated[
        bool, typer.Option("--averages", help="Only the averages over RULER's tasks: a row a model.")
    ] = False,
    training_seeds: Annotated[
        bool,
        typer.Option(
            "--training-seeds",
            help="One row for all trainings of a model, NAME, NAME-2, NAME-3 …: the mean and the range of"
            " their scores. Losses keep a row a training.",
        ),
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
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="KIND",
            help="What --figure draws: scores against length, heatmaps of depth against length, or the cost"
            " of each length in seconds and memory: length, depth or cost.",
            show_default="length",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page as well, .html: the table, curves, heatmaps, and every sample. It is one file,"
            " which any browser shows without a network.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Compare two models of these results, or two folders of results, on the same samples"
            " instead: who is right more often, by how much, and which predictions differ. Of two folders it"
            " exits with 0 if each sample that both have done has the same prompt and the same prediction,"
            " with 1 if not, with 2 if they have none in common.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show scores against length. A row for each run, a column for each length.

    Scores are exact answers, or RULER's own score of its tasks. Where a model has several of RULER's tasks
    they are averaged as RULER does. Losses, as bamctl perplexity measures them, have a table of their own.
    """
    formats = {"csv": csv, "json": json, "markdown": markdown, "latex": latex}
    _check_together(**formats)
    if compare is not None:
        from bamctl.cli.compare import print_comparison

        _refuse_beside_compare(
            intervals=intervals,
            threshold=threshold,
            averages=averages,
            training_seeds=training_seeds,
            figure=figure,
            plot=plot,
            html=html,
        )
        print_comparison(
            compare,
            paths=paths,
            default=own_results(),
            tasks=task or [],
            models=model or [],
            format=next((name for name, asked_for in formats.items() if asked_for), None),
        )
        return
    if threshold is not None and not 0 < threshold <= 100:
        raise BadInput(f"--threshold {threshold:g}: must be a percentage above 0, at most 100")
    drawn = figure is not None and plot in (None, LENGTH)
    rows = "--csv" if csv else "--json" if json else None
    if threshold is not None and rows and not drawn and html is None:
        raise BadInput(f"--threshold has no effect on {rows}, which has no effective lengths; leave one out")
    if averages and rows:
        raise BadInput(f"--averages has no effect on {rows}, which has every run; leave one out")
    if training_seeds:
        _check_training_seeds(rows=rows, intervals=intervals, figure=figure, html=html)
    if plot is not None:
        check_plot(plot)
        if figure is None:
            raise BadInput(f"--plot {plot} has no effect without --figure FILE; name one")
        if averages and plot != LENGTH:
            raise BadInput(f"--averages has no effect on --plot {plot}; leave one out")
    if figure is not None:
        from bamctl.report.style import check_figure_path

        check_figure_path(figure)
    if html is not None:
        from bamctl.report.page.document import check_page_path

        if averages:
            raise BadInput("--averages has no effect on --html, which has every run; leave one out")
        check_page_path(html)

    from rich.console import Console

    from bamctl.report.export import to_csv, to_json, to_latex, to_markdown
    from bamctl.report.loss_table import LOSS_COLUMNS, LossTable, build_loss_table
    from bamctl.report.runs import select_runs
    from bamctl.report.table import AccuracyTable, build_table
    from bamctl.report.terminal import print_table
    from bamctl.report.training_seeds import SpreadTable, spread_over_seeds
    from bamctl.results.schema import LOSS
    from bamctl.results.statistics import ACCURACY_COLUMNS
    from bamctl.results.store import accuracy_table, load_samples

    where = own_results() if paths is None else paths
    drawing_needs = () if figure is None else (*LOSS_COLUMNS, *plot_columns(plot or LENGTH))
    # A page shows samples whole; all else is made of few of their columns.
    columns = None if html is not None else list(dict.fromkeys((*ACCURACY_COLUMNS, *drawing_needs)))
    samples = load_samples(where, columns)
    if samples.empty:
        published = published_beside(paths)
        hint = f" (bamctl report {published} shows the published ones)" if published else ""
        raise BadInput(f"no results in {named(paths)}; bamctl passkey makes some{hint}")
    samples = select_runs(samples, tasks=task or [], models=model or [])
    if samples.empty:
        raise BadInput("no results of these tasks by these models; leave out --task or --model")
    everything = accuracy_table(samples)
    accuracy = everything[everything["metric"] != LOSS]
    share = (THRESHOLD if threshold is None else threshold) / 100
    tables: list[AccuracyTable | SpreadTable | LossTable] = []
    if training_seeds and accuracy.empty:
        raise BadInput(
            "--training-seeds has no effect on losses, and these results have no scores; leave it out"
        )
    if averages or not accuracy.empty:
        of_runs = build_table(accuracy, threshold=share, averages_only=averages)
        tables.append(spread_over_seeds(of_runs) if training_seeds else of_runs)
    if len(accuracy) < len(everything) and not averages:
        losses = samples if set(LOSS_COLUMNS) <= set(samples.columns) else load_samples(where, LOSS_COLUMNS)
        tables.append(build_loss_table(losses[losses["run_id"].isin(everything["run_id"])]))
    if figure is not None:
        from bamctl.report.draw import draw
        from bamctl.report.style import save_figure

        drawing = draw(plot or LENGTH, samples, everything, threshold=share, averages_only=averages)
        save_figure(drawing, figure)
    if html is not None:
        _write_page(samples, html, threshold=share, results=paths or [])
    if csv:
        sys.stdout.write(to_csv(everything))
    elif json:
        sys.stdout.write(to_json(everything))
    elif markdown:
        sys.stdout.write("\n".join(to_markdown(table, intervals=intervals) for table in tables))
    elif latex:
        sys.stdout.write("\n".join(to_latex(table, intervals=intervals) for table in tables))
    else:
        for number, table in enumerate(tables):
            if number:
                print()
            print_table(table, Console(), intervals=intervals)


def _write_page(samples: "pd.DataFrame", path: Path, *, threshold: float, results: list[Path]) -> None:
    """Writes the page of what lies in `results`, and says on stderr what is in it."""
    from bamctl.report.page.document import write_page

    written = write_page(samples, path, threshold=threshold, results=results)
    parts = [f"{path}: {written.size / 1e6:.1f} MB, {written.samples} samples"]
    if written.left_out:
        parts.append(f"{written.left_out} more are in its scores alone")
    if written.limit is not None:
        parts.append(f"texts longer than {written.limit} characters are shortened")
    print("; ".join(parts), file=sys.stderr)


def _refuse_beside_compare(**options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise BadInput(f"--{name.replace('_', '-')} has no effect on --compare; leave one out")


def _check_training_seeds(
    *, rows: str | None, intervals: bool, figure: Path | None, html: Path | None
) -> None:
    for name, asked_for in ((rows, rows), ("--figure", figure), ("--html", html)):
        if asked_for:
            raise BadInput(
                f"--training-seeds has no effect on {name}, which has every training; leave one out"
            )
    if intervals:
        raise BadInput(
            "--intervals are of the samples of one training, and --training-seeds shows ranges over several;"
            " leave one out"
        )


def _check_together(**formats: bool) -> None:
    chosen = [f"--{name}" for name, asked_for in formats.items() if asked_for]
    if len(chosen) > 1:
        raise BadInput(f"{' and '.join(chosen)} exclude each other; choose one")


def print_accuracy(accuracy: "pd.DataFrame", console: "Console") -> None:
    """Prints rows of ACCURACY_SCHEMA as the table of scores against length."""
    from bamctl.report.table import build_table
    from bamctl.report.terminal import print_table

    print_table(build_table(accuracy, threshold=THRESHOLD / 100), console)
