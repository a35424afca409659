"""What `bamctl passkey` and `bamctl run` share: check everything, run every model, print the table."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bamctl.cli.options import DEFAULT_LONGEST
from bamctl.errors import BadInput, did_you_mean
from bamctl.lengths import doubling_lengths, parse_length, parse_lengths

if TYPE_CHECKING:
    from bamctl.evaluation.run import EvaluationRequest, RunSummary
    from bamctl.models.loading import Checkpoint
    from bamctl.tasks.base import Task
    from bamctl.tasks.spec import TaskSpec

BACKENDS = ("native",)
SHORTEST_IF_UNKNOWN = 512
"""Where the series of lengths begins for a checkpoint that does not say what it was trained at."""

MOST = 1_000_000
"""Of samples of a length, of prompts that run together."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """The options as they were typed."""

    models: list[str] | None
    max_len: str | None
    lengths: str | None
    samples: int
    depths: str
    seed: int
    backend: str
    device: str
    dtype: str
    batch_size: int
    share_prefixes: bool
    patience: int | None
    out: Path
    explain: bool


def measure(task_name: str, overrides: dict[str, object], options: MeasureOptions) -> None:
    """Runs a task on each model, or explains what that would do; writes nothing before all has been checked.

    Raises:
        BadInput: an option, a model or the task is not as it should be.
        RunFailed: a run failed on its way; what was finished is kept.
    """
    _check_numbers(options)

    from bamctl.evaluation.depths import parse_depths
    from bamctl.tasks.catalog import load_spec

    parse_depths(options.depths, options.samples)
    spec = load_spec(task_name, **{name: value for name, value in overrides.items() if value is not None})
    jobs = _prepare(spec, options)

    from rich.console import Console

    from bamctl.backends.native import NativeBackend
    from bamctl.cli.explain import explain
    from bamctl.cli.progress import ProgressPrinter
    from bamctl.evaluation.run import evaluate

    summaries = []
    for checkpoint, task, request in jobs:
        backend = NativeBackend(
            checkpoint,
            device=options.device,
            dtype=options.dtype,
            share_prefixes=options.share_prefixes,
        )
        if options.explain:
            explain(backend, task, request, Console())
        else:
            with ProgressPrinter(backend, task, request) as progress:
                summary = evaluate(backend, task, request, on_progress=progress.update)
                progress.finish(summary)
            summaries.append(summary)
            del progress
        del backend  # with what it holds of the last prompts, before the next one takes memory
    if summaries:
        _print_results(summaries)


def _check_numbers(options: MeasureOptions) -> None:
    """What is wrong by itself is told before anything heavy is imported."""
    limits: tuple[tuple[str, int | None, int, int], ...] = (
        ("samples", options.samples, 1, MOST),
        ("batch-size", options.batch_size, 1, MOST),
        ("patience", options.patience, 1, MOST),
        ("seed", options.seed, 0, 2**63 - 1),  # results hold it in 64 bits
    )
    for name, value, least, most in limits:
        if value is not None and not least <= value <= most:
            raise BadInput(f"--{name} {value}: must lie between {least} and {most}")
    if options.lengths is not None and options.max_len is not None:
        raise BadInput("--lengths and --max-len exclude each other; choose one")
    if options.lengths is not None:
        parse_lengths(options.lengths)
    if options.max_len is not None:
        parse_length(options.max_len)
    if options.backend not in BACKENDS:
        raise BadInput(f"--backend {options.backend!r} is not known{did_you_mean(options.backend, BACKENDS)}")


def _prepare(
    spec: "TaskSpec", options: MeasureOptions
) -> list[tuple["Checkpoint", "Task", "EvaluationRequest"]]:
    """Each model with its task and its request, checked as far as can be without reading weights."""
    from bamctl.backends.native import choose_device
    from bamctl.evaluation.depths import parse_depths
    from bamctl.evaluation.run import EvaluationRequest, check_request
    from bamctl.models.loading import DEFAULT_MODEL, DTYPES, open_checkpoint
    from bamctl.tasks.catalog import build_task

    if options.dtype not in DTYPES:
        raise BadInput(f"--dtype {options.dtype!r} is not known{did_you_mean(options.dtype, DTYPES)}")
    choose_device(options.device)
    jobs = []
    for name in dict.fromkeys(options.models or [DEFAULT_MODEL]):
        checkpoint = open_checkpoint(name)
        task = build_task(spec, checkpoint.tokenizer)
        if options.lengths is not None:
            lengths = parse_lengths(options.lengths)
        else:
            first = checkpoint.config.train_length or SHORTEST_IF_UNKNOWN
            lengths = doubling_lengths(first, parse_length(options.max_len or DEFAULT_LONGEST))
        request = EvaluationRequest(
            lengths=lengths,
            samples=options.samples,
            depths=parse_depths(options.depths, options.samples),
            seed=options.seed,
            batch_size=options.batch_size,
            patience=options.patience,
            out=options.out,
        )
        check_request(task, request, None, checkpoint.name)
        jobs.append((checkpoint, task, request))
    return jobs


def _print_results(summaries: "list[RunSummary]") -> None:
    """The table of what was asked for; a run's folder may hold more."""
    from rich.console import Console

    from bamctl.cli.report_command import print_accuracy
    from bamctl.results.store import accuracy_table, load_samples

    stored = load_samples([summary.folder for summary in summaries])
    asked_for = frozenset().union(*(summary.row_ids for summary in summaries))
    print_accuracy(accuracy_table(stored[stored["row_id"].isin(asked_for)]), Console())
    for summary in summaries:
        print(f"Results in {summary.folder}: accuracy.parquet, samples.parquet", file=sys.stderr)
