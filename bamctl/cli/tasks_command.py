"""`bamctl tasks`: which tasks there are, and their prompts as files."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bamctl.cli import options
from bamctl.errors import BadInput, did_you_mean
from bamctl.lengths import format_length, parse_lengths
from bamctl.locations import RULER_MODEL

FORMATS = ("ruler",)


def tasks_or_command(context: typer.Context) -> None:
    """List the tasks. What they ask, and where their files are. `export` writes prompts."""
    if context.invoked_subcommand is None:
        tasks()


def tasks() -> None:
    """Prints the tasks."""
    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.tasks.catalog import load_spec, task_files

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "kind", "asks for", "file"):
        table.add_column(column, overflow="fold")
    for name, file in task_files().items():
        here = Path.cwd()
        shown = Text(str(file.relative_to(here) if file.is_relative_to(here) else file))
        try:
            spec = load_spec(name)
        except BadInput as error:
            table.add_row(Text(name), "", Text(str(error), style="red"), shown)
            continue
        table.add_row(Text(name), Text(spec.task), Text(spec.summary), shown)
    print_listing(table)


def export(
    task: Annotated[str, typer.Argument(help="The name of a task, or a task file.")],
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="LENGTHS", help="Lengths in tokens: 4k,32k (k = 1024).")
    ] = "4k",
    samples: options.Samples = 20,
    depths: options.Depths = "ruler",
    seed: options.Seed = 0,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="Whose tokens are counted: a checkpoint's name, or a folder with a tokenizer.",
        ),
    ] = RULER_MODEL,
    essays: options.Essays = None,
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="ruler.")] = "ruler",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Write FOLDER/<length>/<task>/validation.jsonl.",
            show_default="one length goes to stdout",
        ),
    ] = None,
) -> None:
    """Write a task's prompts, a JSON line each.

    RULER's own pipeline reads them. They are what `bamctl ruler` asks a model with this tokenizer. `bamctl
    score` scores them when a field pred holds the answers.
    """
    if format not in FORMATS:
        raise BadInput(f"--format {format!r} is not known{did_you_mean(format, FORMATS)}")
    asked = parse_lengths(lengths)
    if len(asked) > 1 and out is None:
        raise BadInput(f"--lengths {lengths}: several lengths need a folder; name one with --out")
    options.check_number("samples", samples, least=1)
    options.check_number("seed", seed, least=0, most=2**63 - 1)

    from bamctl.cli.measure import specs_of
    from bamctl.evaluation.depths import parse_depths
    from bamctl.evaluation.export import ruler_lines
    from bamctl.models.loading import open_tokenizer
    from bamctl.tasks.catalog import build_task

    policy = parse_depths(depths, samples)
    [spec] = specs_of([task], {"essays": essays})
    built = build_task(spec, open_tokenizer(tokenizer))
    for length in asked:
        if length < built.shortest_length:
            raise BadInput(
                f"length {format_length(length)} is too short for {spec.name} with the tokenizer of"
                f" {tokenizer}: the shortest that always works is {built.shortest_length}"
            )
    unstable = 0
    for length in asked:
        lines = []
        for line in ruler_lines(built, length=length, samples=samples, depths=policy, seed=seed):
            unstable += not line["others"]["roundtrip_stable"]
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        if out is None:
            sys.stdout.writelines(lines)
            continue
        path = out / format_length(length) / spec.name / "validation.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--out {out}: {path} cannot be written ({error.strerror or error})") from None
        print(f"{len(lines)} prompts of {format_length(length)} tokens in {path}", file=sys.stderr)
    if unstable:
        print(
            f"{unstable} prompts are other tokens once they are text (roundtrip_stable): their length may"
            " differ by some tokens",
            file=sys.stderr,
        )
