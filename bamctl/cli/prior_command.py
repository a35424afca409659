"""`bamctl prior`: what the heads of a checkpoint are, and what they attend to."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.cli import options
from bamctl.errors import BadInput, did_you_mean
from bamctl.lengths import format_length, parse_lengths

if TYPE_CHECKING:
    from bamctl.models.inspection import InspectedHead
    from bamctl.models.loading import BareCheckpoint, Checkpoint
    from bamctl.models.modeling import BamForCausalLM
    from bamctl.models.needle_attention import NeedleAttention

IF_UNKNOWN = 512
"""Stands for the train length of a checkpoint that does not say what it was trained at."""

LONG = 32 * 1024
SAMPLES = 5
DEPTHS = "50%"

ELSEWHERE = {
    "rotary": "Positions turn queries and keys (rotary); the prior itself is uniform.",
    "sinusoidal": "Positions are added to the embeddings (sinusoidal); the prior itself is uniform.",
}
"""Encodings in which positions enter elsewhere than in a prior."""


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What is of use with --attention alone; None where it was not typed."""

    samples: int | None
    depths: str | None
    digits: int | None
    haystack: str | None
    seed: int | None
    tokenizer: str | None
    device: str | None
    dtype: str | None


def prior(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name or folder of a checkpoint.", show_default=False)
    ],
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            metavar="LENGTHS",
            help="Numbers of tokens at which to look at the prior: 512,4k,1M (k = 1024, M = 1024²).",
            show_default="the train length and 32k",
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="One line a head and length, every column.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw the priors at the longest length, or with --attention what the heads attend to: .png,"
            " .pdf or .svg.",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Measure how much attention each head gives the needle while the model answers passkey"
            " prompts of these lengths.",
        ),
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", "-n", metavar="N", help="Prompts of each length.", show_default=str(SAMPLES)
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths", metavar="DEPTHS", help="Where needles go, as for passkey.", show_default=DEPTHS
        ),
    ] = None,
    digits: options.Digits = None,
    haystack: options.Haystack = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Draws the keys.", show_default="0")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="A checkpoint or file whose tokenizer makes the prompts.",
            show_default="the model's own",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="cpu, cuda, cuda:1, or auto: the GPU if there is one.",
            show_default="auto",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="DTYPE", help="float32, bfloat16 or float16.", show_default="float32"
        ),
    ] = None,
) -> None:
    """Show each head's prior: its values, what it is, its reach.

    --attention measures what the heads attend to as well; the options behind it are for it alone.
    """
    chosen = AttentionOptions(
        samples=samples,
        depths=depths,
        digits=digits,
        haystack=haystack,
        seed=seed,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    _check(chosen, attention=attention)
    asked_for = None if lengths is None else parse_lengths(lengths)
    if figure is not None:
        from bamctl.report.style import check_figure_path

        check_figure_path(figure)

    from bamctl.models.inspection import inspect_heads
    from bamctl.models.loading import Checkpoint

    checkpoint = _open(model, tokenizer, attention=attention)
    at = asked_for or tuple(sorted({checkpoint.config.train_length or IF_UNKNOWN, LONG}))
    measured: Sequence[NeedleAttention] = ()
    if isinstance(checkpoint, Checkpoint):
        loaded, measured = _measure(checkpoint, at, chosen)
    else:
        loaded = checkpoint.load(device="cpu", dtype="float32")
    heads = inspect_heads(loaded)
    if figure is not None:
        _draw(checkpoint.name, heads, at, measured, figure)
    if csv:
        from bamctl.report.prior_table import to_csv

        sys.stdout.write(to_csv(heads, at, measured))
    else:
        _print(checkpoint, loaded, heads, at, measured)


def _check(chosen: AttentionOptions, *, attention: bool) -> None:
    """What is wrong with the options by themselves."""
    typed = [f"--{name}" for name, value in asdict(chosen).items() if value is not None]
    if typed and not attention:
        raise BadInput(f"{', '.join(typed)}: of use with --attention alone; add it, or leave this out")
    options.check_number("samples", chosen.samples, least=1)
    options.check_number("seed", chosen.seed, least=0, most=2**63 - 1)


def _open(model: str, tokenizer: str | None, *, attention: bool) -> "BareCheckpoint":
    """A `Checkpoint` where attention is to be measured, which takes a tokenizer."""
    from bamctl.models.loading import ForeignModel, open_bare_checkpoint, open_checkpoint

    try:
        return open_checkpoint(model, tokenizer=tokenizer) if attention else open_bare_checkpoint(model)
    except ForeignModel as foreign:
        raise BadInput(
            f"{model}: a model of type {foreign.model_type} has no prior over positions; bamctl prior shows"
            " those of type bam and of BAM's authors"
        ) from None


def _measure(
    checkpoint: "Checkpoint", lengths: Sequence[int], chosen: AttentionOptions
) -> "tuple[BamForCausalLM, list[NeedleAttention]]":
    """The model, and what its heads attend to at each length."""
    from bamctl.backends.devices import choose_device
    from bamctl.evaluation.attention import measure_attention
    from bamctl.evaluation.depths import parse_depths
    from bamctl.models.loading import DTYPES
    from bamctl.tasks.catalog import build_task, load_spec

    samples, dtype = chosen.samples or SAMPLES, chosen.dtype or "float32"
    depths = parse_depths(chosen.depths or DEPTHS, samples)
    if dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype!r} is not known{did_you_mean(dtype, DTYPES)}")
    device = choose_device(chosen.device or "auto")
    fields = {"digits": chosen.digits, "haystack": chosen.haystack}
    spec = load_spec("passkey", **{name: value for name, value in fields.items() if value is not None})
    task = build_task(spec, checkpoint.tokenizer)
    model = checkpoint.load(device=device, dtype=dtype)
    measured = []
    for of_length in measure_attention(
        model, task, lengths=lengths, samples=samples, depths=depths, seed=chosen.seed or 0
    ):
        print(
            f"  {format_length(of_length.length)}: {samples} {'prompt' if samples == 1 else 'prompts'} read",
            file=sys.stderr,
            flush=True,
        )
        measured.append(of_length)
    return model, measured


def _draw(
    name: str,
    heads: "Sequence[InspectedHead]",
    lengths: Sequence[int],
    measured: "Sequence[NeedleAttention]",
    path: Path,
) -> None:
    from bamctl.report.prior_figure import draw_attention, draw_priors
    from bamctl.report.style import save_figure

    if measured:
        figure = draw_attention(heads, measured, title=f"Attention of {name} while it answers")
    else:
        longest = max(lengths)
        figure = draw_priors(
            heads, length=longest, title=f"Priors of {name} at {format_length(longest)} tokens"
        )
    save_figure(figure, path)


def _print(
    checkpoint: "BareCheckpoint",
    model: "BamForCausalLM",
    heads: "Sequence[InspectedHead]",
    lengths: Sequence[int],
    measured: "Sequence[NeedleAttention]",
) -> None:
    """Title, table and what its columns mean, for the priors and then for attention."""
    from rich.console import Console
    from rich.text import Text

    from bamctl.attention.kinds import MEANINGS
    from bamctl.cli.listing import print_listing
    from bamctl.models.inspection import learned_prior_parameters
    from bamctl.models.needle_attention import NEIGHBOURHOOD
    from bamctl.report.prior_table import ALIKE, attention_table, count_kinds, prior_table

    console = Console()
    config, longest = checkpoint.config, format_length(max(lengths))

    def say(text: str) -> None:
        console.print(Text(text))

    trained = "?" if config.train_length is None else str(config.train_length)
    with_ssmax = " with SSMax" if config.ssmax else ""
    say(f"{checkpoint.name}: {config.position_encoding}{with_ssmax}, trained at {trained}")
    print_listing(prior_table(heads, lengths))
    factor = ""
    if config.ssmax:
        scaled = "content and prior" if config.ssmax_scales_prior else "the content alone"
        factor = f" SSMax multiplies {scaled} by s · ln n."
    say(
        f"reach: the distance in tokens within which 99% of the prior's mass lies, for the last token of n."
        f"{factor}"
    )
    kinds = {head.kind(max(lengths)) for head in heads}
    meanings = [f"{kind}: {meaning}" for kind, meaning in MEANINGS.items() if kind in kinds]
    say(f"What they are at {longest} tokens: {'; '.join(meanings)}.")
    if config.position_encoding in ELSEWHERE:
        say(ELSEWHERE[config.position_encoding])
    learned = learned_prior_parameters(model)
    shared = ", one prior for all layers" if config.shared_prior else ""
    say(
        f"{count_kinds(heads, max(lengths))}. The priors take {learned} of {checkpoint.parameters:,}"
        f" parameters{shared}{f', SSMax {len(heads)}' if config.ssmax else ''}."
    )
    if measured:
        console.print()
        print_listing(attention_table(heads, measured))
        say(
            "Shares of a head's attention, the mean over the prompts and over the positions that choose the"
            " digits of the key. needle: the sentence with the key; end: the last"
            f" {NEIGHBOURHOOD} tokens, with the question; around: {NEIGHBOURHOOD} tokens on either side of"
            f" the needle; first: the first token; {ALIKE}: the shares of the tokens themselves."
        )
