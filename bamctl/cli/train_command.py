"""`bamctl train`: a checkpoint from a recipe."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bamctl.cli.options import check_number
from bamctl.errors import BadInput


def train(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Folder for the checkpoint.",
            show_default="models/NAME of the recipe",
        ),
    ] = None,
    accelerator: Annotated[
        str, typer.Option("--accelerator", metavar="NAME", help="cpu, cuda, auto.")
    ] = "auto",
    devices: Annotated[str, typer.Option("--devices", metavar="N", help="How many, or auto: all.")] = "auto",
    until_step: Annotated[
        int | None,
        typer.Option(
            "--until-step",
            metavar="N",
            help="Pause behind step N; the same command goes on from there.",
            show_default="the recipe's end",
        ),
    ] = None,
    card: Annotated[
        bool,
        typer.Option("--card/--no-card", help="Measure the checkpoint when it is done and write its card."),
    ] = True,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for what is measured for the card.")
    ] = Path("results"),
    card_haystack: Annotated[
        list[str] | None,
        typer.Option(
            "--card-haystack",
            metavar="FILE",
            help="A text file to measure in too, beside garbage; repeat it.",
        ),
    ] = None,
) -> None:
    """Train a checkpoint from a recipe. A training that was killed goes on with the same command.

    Beside the weights lie the recipe, the tokenizer, the log of every step, and a card with what it measures.
    """
    if devices != "auto" and not (devices.isdecimal() and int(devices)):
        raise BadInput(f"--devices {devices!r}: must be a number above 0, or auto")
    check_number("until-step", until_step, least=1)

    from bamctl.models.training.recipe import load_recipe
    from bamctl.tasks.catalog import load_spec

    folder = to or Path("models") / load_recipe(recipe).name
    haystacks = ["garbage", *(card_haystack or [])]
    for haystack in haystacks:  # before hours of training, not behind them
        load_spec("passkey", haystack=haystack)
    try:
        from bamctl.models.training.trainer import train as run_training
    except ModuleNotFoundError as error:
        raise BadInput(
            f"training needs {error.name}: pip install 'lightning-fabric>=2.5' (the extra train)"
        ) from None
    from bamctl.cli.training_progress import TrainingPrinter

    with TrainingPrinter() as printer:
        log = run_training(
            recipe,
            folder,
            accelerator=accelerator,
            devices=devices if devices == "auto" else int(devices),
            until_step=until_step,
            on_step=printer.update,
        )
    if log is None:  # one of several processes, and not the first
        return
    if len(log) < log[-1].steps:
        print(f"{folder}: paused behind step {log[-1].step} of {log[-1].steps}", file=sys.stderr)
        return
    if card:
        from bamctl.evaluation.card import write_card

        printer.say("measuring it for its card")
        write_card(folder, out=out, haystacks=haystacks, on_progress=printer.measured)
    print(folder)
