"""The options that every measuring command has, spelled and explained once."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_LONGEST = "32k"

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Name or folder of a checkpoint; repeat it for several.",
        show_default="tiny-bam-ssmax",
    ),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="LENGTHS",
        help="Prompt lengths in tokens: 512,4k,1M (k = 1024, M = 1024²).",
    ),
]
MaxLen = Annotated[
    str | None,
    typer.Option(
        "--max-len",
        metavar="LENGTH",
        help="Double the length from the model's train length up to this one.",
        show_default=DEFAULT_LONGEST,
    ),
]
Samples = Annotated[int, typer.Option("--samples", "-n", metavar="N", help="Samples of each length.")]
Depths = Annotated[
    str,
    typer.Option(
        "--depths",
        metavar="DEPTHS",
        help="Where needles go: equidistant, random, beginning, end, a number of equidistant depths,"
        " or a list in percent such as 0,25,50 or 50%.",
    ),
]
Digits = Annotated[
    int | None,
    typer.Option(
        "--digits", metavar="N", help="Digits of the key, 1 to 32.", show_default="the task file's, 5"
    ),
]
Haystack = Annotated[
    str | None,
    typer.Option(
        "--haystack",
        metavar="FILE",
        help="garbage, or a UTF-8 text file to hide the key in.",
        show_default="the task file's, garbage",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Draws the keys.")]
BackendName = Annotated[str, typer.Option("--backend", metavar="NAME", help="What runs the model: native.")]
Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, or auto: the GPU if there is one."),
]
Dtype = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="float32, bfloat16 or float16.")]
BatchSize = Annotated[int, typer.Option("--batch-size", metavar="N", help="Prompts that run together.")]
SharePrefixes = Annotated[
    bool,
    typer.Option(
        "--share-prefixes/--no-share-prefixes",
        help="Read once what a prompt has in common with the one before. Answers are the same either way.",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience", metavar="N", help="Skip the lengths behind this many at zero accuracy in a row."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for results.")]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Run nothing: show how far each head looks and how much of attention is computed, and predict"
        " time and memory.",
    ),
]
