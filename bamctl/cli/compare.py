"""`bamctl report --compare A B`: two results, or two models of the same results, sample by sample."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bamctl.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from bamctl.report.comparison_table import ComparisonTable, DifferingTable


def print_comparison(
    names: tuple[str, str],
    *,
    paths: Sequence[Path] | None,
    default: Sequence[Path],
    tasks: Sequence[str],
    models: Sequence[str],
    format: str | None,
) -> None:
    """Prints how A and B compare.

    They are folders or files of results where there is something of one of these names, and no path is given;
    else they are models.

    Args:
        names: A and B.
        paths: the results that have both models, where these were named.
        default: the results that have them where none were named.
        tasks: names of tasks, or patterns; empty for all.
        models: likewise; folders have several.
        format: csv, json, markdown or latex; None for the table on the terminal.

    Raises:
        BadInput: A or B is neither results nor a model, or there is nothing to compare.
        typer.Exit: with 1 where A and B are results and a prediction or a prompt differs.
    """
    from bamctl.report.comparison import compare
    from bamctl.report.comparison_table import ComparisonTable, DifferingTable, to_frame
    from bamctl.report.export import to_csv, to_json, to_latex, to_markdown

    of_results = not paths and any(Path(name).exists() for name in names)
    if of_results:
        sides = _two_results(names, tasks, models)
    elif models:
        raise BadInput(f"--model has no effect where {names[0]} and {names[1]} are models; leave it out")
    else:
        sides = _two_models(names, paths or default, tasks)
    comparison = compare(*sides, names=names)
    table = ComparisonTable(comparison=comparison, names=names)
    differing = DifferingTable(comparison=comparison)
    if format in ("csv", "json"):
        sys.stdout.write((to_csv if format == "csv" else to_json)(to_frame(comparison)))
    elif format in ("markdown", "latex"):
        form = to_markdown if format == "markdown" else to_latex
        sys.stdout.write("\n".join(form(part) for part in (table, differing) if len(part.rows)))
    else:
        _print(table, differing)
    if of_results and not comparison.alike:
        raise typer.Exit(1)


def _two_results(
    names: tuple[str, str], tasks: Sequence[str], models: Sequence[str]
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    import pandas as pd

    from bamctl.report.runs import select_runs
    from bamctl.results.store import load_samples

    places = [Path(name).resolve() for name in names]
    if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
        raise BadInput(f"--compare {' '.join(names)}: one is or holds the other; name two that are apart")
    sides = []
    for name in names:
        sides.append(load_samples([Path(name)]).assign(side=name))
        if sides[-1].empty:
            raise BadInput(f"no results in {name}; bamctl passkey makes some")
    # Of both at once: a model that only one of them has may be named.
    selected = select_runs(pd.concat(sides, ignore_index=True), tasks=tasks, models=models)
    for name in names:
        if not (selected["side"] == name).any():
            raise BadInput(f"no results of these tasks by these models in {name}")
    return selected[selected["side"] == names[0]], selected[selected["side"] == names[1]]


def _two_models(
    names: tuple[str, str], paths: Sequence[Path], tasks: Sequence[str]
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    from bamctl.report.runs import model_labels, select_runs
    from bamctl.results.store import load_samples

    if names[0] == names[1]:
        raise BadInput(f"--compare {' '.join(names)}: is one model; name two")
    samples = load_samples(paths)
    where = ", ".join(map(str, paths))
    if samples.empty:
        raise BadInput(f"no results in {where}; bamctl passkey makes some")
    for name in names:
        if not _is_meant(samples, name).any():
            raise BadInput(
                f"--compare {name}: neither a model with results in {where} nor, without a path, a folder of"
                f" results{did_you_mean(name, set(samples['model']))}"
            )
    selected = select_runs(samples, tasks=tasks, models=[])
    sides = [selected[_is_meant(selected, name)] for name in names]
    for name, side in zip(names, sides, strict=True):
        if side.empty:
            raise BadInput(f"no results of these tasks by {name} in {where}")
        if len(labels := model_labels(side)) > 1:
            raise BadInput(f"--compare {name}: several models have this name; name {' or '.join(labels)}")
    return sides[0], sides[1]


def _is_meant(samples: "pd.DataFrame", name: str) -> "pd.Series":
    """The rows of the model of that name, or ``NAME@DIGEST``; a name that looks like a pattern is none."""
    from bamctl.report.runs import fits_model

    named = samples["model"] == name
    return named if named.any() or "@" not in name else fits_model(samples, name)


def _print(table: "ComparisonTable", differing: "DifferingTable") -> None:
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
