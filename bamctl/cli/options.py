"""The options that every measuring command has, spelled and explained once."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from bamctl.backends.arguments import parse_arguments
from bamctl.backends.vllm.options import EngineOptions, parse_engine_args
from bamctl.cli.completion import model_names, ruler_task_names
from bamctl.errors import BadInput

DEFAULT_LONGEST = "32k"

Models = list[str] | None
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
        help="Double the length from the model's train length up to this one; from 4k, or 512, where it was"
        " trained at as much as this.",
        show_default=f"{DEFAULT_LONGEST}, or all that the model reads",
    ),
]
Samples = Annotated[int, typer.Option("--samples", "-n", metavar="N", help="Samples of each length.")]
Depths = Annotated[
    str,
    typer.Option(
        "--depths",
        metavar="DEPTHS",
        help="Where needles go: equidistant, random, ruler (one of RULER's 40 depths, drawn), beginning, end,"
        " a number of equidistant depths, or a list in percent such as 0,25,50 or 50%.",
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
Tasks = Annotated[
    str,
    typer.Option(
        "--tasks",
        metavar="TASKS",
        help="RULER's tasks, by name or pattern, with commas between them: niah_single_1,vt,qa_*; or all.",
        autocompletion=ruler_task_names,
    ),
]
Essays = Annotated[
    str | None,
    typer.Option(
        "--essays",
        metavar="PATH",
        help="Text for the essay haystacks: a UTF-8 text file, a folder of *.txt and *.md files, or a JSON"
        " file with the field text.",
        show_default="RULER's own",
    ),
]
TokensToGenerate = Annotated[
    int | None,
    typer.Option(
        "--tokens-to-generate",
        metavar="N",
        help="Tokens that may be generated for an answer.",
        show_default="each task's own, 30 to 128",
    ),
]
LengthIncludesGeneration = Annotated[
    bool | None,
    typer.Option(
        "--length-includes-generation/--no-length-includes-generation",
        help="Whether a length counts the tokens to generate too.",
        show_default="it does, as in RULER",
    ),
]
ApplyChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--apply-chat-template/--no-apply-chat-template",
        help="Ask in the tokenizer's chat template, whose tokens count.",
        show_default="the task file's, no",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Draws the keys.")]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="What runs a model: native, transformers, vllm, or auto: native for the models of this project"
        " and of BAM's authors, transformers for all others.",
    ),
]
ModelArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="KEY=VALUE",
        help="A field of the model's configuration to have otherwise, such as max_position_embeddings=65536;"
        " JSON or text. It makes another model of it. Repeat it for several. For the backends"
        " transformers and vllm.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="TOKENIZER",
        help="A checkpoint, a folder, a name on the hub or a tokenizer.json whose tokenizer to take.",
        show_default="the model's own",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run the code that a model brings with it."),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, or auto: the GPU if there is one."),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="float32, bfloat16, float16, or auto: float32 for the models of this project, in the backend"
        " transformers and for all others what the weights are stored in.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        help="Prompts that run together.",
        show_default="1, with vllm as many as there is memory for",
    ),
]
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
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Run every N-th sample alone, from the K-th on: 2/8 is the second of eight processes that share"
        " the samples and --out.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="ROW_ID",
        help="Of all samples run this one alone, whatever --patience says; repeat it for several.",
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
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Nothing on stderr but errors and what is left out of the results."),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="For other programs, in place of the table: a JSON object a line on stdout. Its field event says"
        " sample (a row of samples.parquet, as the sample finishes) or length (a row of accuracy.parquet,"
        " when a model is through with a task).",
    ),
]

ENGINE: dict[str, Any] = {
    "tensor_parallel_size": Annotated[
        int | None,
        typer.Option("--tensor-parallel-size", metavar="N", help="vLLM: devices that share each layer."),
    ],
    "pipeline_parallel_size": Annotated[
        int | None,
        typer.Option(
            "--pipeline-parallel-size", metavar="N", help="vLLM: groups of devices, each of some layers."
        ),
    ],
    "max_num_batched_tokens": Annotated[
        int | None,
        typer.Option("--max-num-batched-tokens", metavar="N", help="vLLM: tokens that are read in one step."),
    ],
    "gpu_memory_utilization": Annotated[
        float | None,
        typer.Option(
            "--gpu-memory-utilization",
            metavar="SHARE",
            help="vLLM: the share of a GPU's memory that it takes.",
        ),
    ],
    "kv_cache_memory_bytes": Annotated[
        int | None,
        typer.Option(
            "--kv-cache-memory-bytes",
            metavar="BYTES",
            help="vLLM: memory for keys and values.",
            show_default="on a GPU what is left; on a CPU room for 8 prompts, at most half of what is free",
        ),
    ],
    "quantization": Annotated[
        str | None,
        typer.Option(
            "--quantization",
            metavar="METHOD",
            help="vLLM: how weights are quantised, such as fp8. It makes another model of it.",
        ),
    ],
    "distributed_executor_backend": Annotated[
        str | None,
        typer.Option(
            "--distributed-executor-backend",
            metavar="NAME",
            help="vLLM: what starts its processes: mp on this machine, ray on several.",
        ),
    ],
    "engine_args": Annotated[
        list[str] | None,
        typer.Option(
            "--engine-arg",
            metavar="KEY=VALUE",
            help="vLLM: any other argument of its engine, such as max_num_seqs=8; JSON or text. Repeat it for"
            " several.",
        ),
    ],
}
"""The fields of `EngineOptions` as options of a command."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """The options as they were typed, in the order in which `--help` shows them."""

    models: Models = None
    max_len: MaxLen = None
    lengths: Lengths = None
    samples: Samples = 20
    depths: Depths = "equidistant"
    seed: Seed = 0
    backend: BackendName = "auto"
    model_args: ModelArgs = None
    tokenizer: Tokenizer = None
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    dtype: Dtype = "auto"
    batch_size: BatchSize = None
    share_prefixes: SharePrefixes = True
    patience: Patience = None
    shard: Shard = None
    only: Only = None
    out: Out = Path("results")
    explain: Explain = False
    quiet: Quiet = False
    json: Json = False
    engine: EngineOptions = field(default_factory=EngineOptions)  # the options of `ENGINE`


def measuring(
    *, default_model: str, depths: str = MeasureOptions.depths
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command every option of `MeasureOptions`, behind those of its own.

    The command takes them as its keyword argument `chosen`.

    Args:
        default_model: what runs where no --model is given.
        depths: the command's default of --depths.
    """
    kinds = get_type_hints(MeasureOptions, include_extras=True) | {
        "models": Annotated[
            Models,
            typer.Option(
                "--model",
                "-m",
                metavar="MODEL",
                help="A checkpoint's name, a pattern of names ('small-*'), a folder, or a name on the Hugging"
                " Face hub; repeat it for several.",
                show_default=default_model,
                autocompletion=model_names,
            ),
        ]
    }
    defaults: dict[str, Any] = {f.name: f.default for f in fields(MeasureOptions) if f.name != "engine"}
    defaults["depths"] = depths

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*, engine: EngineOptions, **values: Any) -> None:
            chosen = {name: values.pop(name) for name in defaults}
            chosen["models"] = chosen["models"] or [default_model]
            command(**values, chosen=MeasureOptions(**chosen, engine=engine))

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "chosen"]
        return with_engine(_with_options(call, own, {name: kinds[name] for name in defaults}, defaults))

    return decorate


def with_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `ENGINE`, behind those of its own.

    The command takes them as its keyword argument `engine`.
    """

    @functools.wraps(command)
    def call(**values: Any) -> None:
        given = {name: values.pop(name) for name in ENGINE}
        given["engine_args"] = parse_engine_args(given["engine_args"])
        command(**values, engine=EngineOptions(**given))

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "engine"]
    return _with_options(call, own, ENGINE, dict.fromkeys(ENGINE))


def _with_options(
    call: Callable[..., None],
    own: list[inspect.Parameter],
    kinds: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Callable[..., None]:
    """The command with the signature that typer reads: its own parameters, and the options behind them."""
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in kinds.items()
    ]
    call.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return call


def parse_model_args(typed: list[str] | None) -> dict[str, object]:
    """What `--model-arg` was given: fields and their values, as JSON where they are some, else as text.

    Raises:
        BadInput: no value, or a field twice.
    """
    return parse_arguments("--model-arg", typed, example="max_position_embeddings=65536")


def check_number(option: str, value: int | None, *, least: int, most: int = 1_000_000) -> None:
    """Checks an option's number; None was not typed.

    Raises:
        BadInput: it lies outside `least` … `most`.
    """
    if value is not None and not least <= value <= most:
        raise BadInput(f"--{option} {value}: must lie between {least} and {most}")
