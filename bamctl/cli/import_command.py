"""`bamctl import`: a checkpoint of BAM's authors becomes one in Hugging Face layout."""

from pathlib import Path
from typing import Annotated

import typer

from bamctl.errors import BadInput, did_you_mean


def import_checkpoint(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="A folder with args.json and model.pt, as the authors' code writes them.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Folder for the checkpoint.",
            show_default="models/NAME of the folder",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="TOKENIZER",
            help="The tokenizer it was trained with: a checkpoint's name, a folder, or a tokenizer.json.",
            show_default="the folder's own, if it has one",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Round the weights to float32, bfloat16 or float16.",
            show_default="as they are",
        ),
    ] = None,
) -> None:
    """Bring a checkpoint of BAM's authors into our layout.

    That is Hugging Face's. It answers as before, and results know it by the same digest. --model takes such a
    folder without an import, too.
    """
    import sys

    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.models.importing import describe
    from bamctl.models.importing import import_checkpoint as run_import
    from bamctl.models.loading import DTYPES, Checkpoint

    if dtype is not None and dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype!r} is not known{did_you_mean(dtype, DTYPES)}")
    checkpoint = run_import(folder, to=to, tokenizer=tokenizer, dtype=dtype)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    where = Path("models") / checkpoint.name if to is None else to
    for label, value in [
        ("model", checkpoint.name),
        ("folder", str(where)),
        *describe(checkpoint),
        ("digest", checkpoint.digest),
    ]:
        table.add_row(label, Text(value))
    print_listing(table)
    if not isinstance(checkpoint, Checkpoint):
        print(
            f"{where} has no tokenizer: to measure it, name the one of its training with --tokenizer",
            file=sys.stderr,
        )
