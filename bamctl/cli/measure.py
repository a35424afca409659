"""What the measuring commands share: check everything, run every model, print the table."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bamctl.cli.options import DEFAULT_LONGEST, MeasureOptions, check_number
from bamctl.errors import BadInput, NotInstalled, did_you_mean
from bamctl.lengths import doubling_lengths, format_length, parse_length, parse_lengths

if TYPE_CHECKING:
    from bamctl.evaluation.run import EvaluationRequest, RunSummary
    from bamctl.models.loading import Checkpoint
    from bamctl.tasks.base import Task
    from bamctl.tasks.spec import TaskSpec

BACKENDS = ("native",)
SHORTEST_IF_UNKNOWN = 512
"""Where the series of lengths begins for a checkpoint that does not say what it was trained at."""


def measure(
    task_names: Sequence[str], overrides: Mapping[str, object | None], options: MeasureOptions
) -> None:
    """Runs tasks on each model, or explains what that would do; writes nothing before all has been checked.

    Args:
        task_names: names of tasks, or task files.
        overrides: fields to have otherwise than the files say, in the tasks that use them; None: as they are.
        options: all else.

    Raises:
        BadInput: an option, a model or a task is not as it should be.
        RunFailed: a run failed on its way; what was finished is kept.
    """
    _check_numbers(options)

    from bamctl.evaluation.depths import parse_depths

    parse_depths(options.depths, options.samples)
    jobs = _prepare(specs_of(task_names, overrides), options)

    from rich.console import Console

    from bamctl.backends.native import NativeBackend
    from bamctl.cli.explain import explain
    from bamctl.cli.progress import ProgressPrinter
    from bamctl.evaluation.run import evaluate

    summaries = []
    for checkpoint, tasks in jobs:
        backend = NativeBackend(
            checkpoint,
            device=options.device,
            dtype=options.dtype,
            share_prefixes=options.share_prefixes,
        )
        for task, request in tasks:
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


def specs_of(task_names: Sequence[str], overrides: Mapping[str, object | None]) -> "list[TaskSpec]":
    """The tasks' definitions, each with the overrides that it has a use for; None: as the file says.

    Raises:
        BadInput: no such task, or an override that is wrong or that no task has a use for.
    """
    from bamctl.tasks.catalog import load_spec

    given = {field: value for field, value in overrides.items() if value is not None}
    used: set[str] = set()
    specs = []
    for name in task_names:
        plain = load_spec(name)
        fields = {field: value for field, value in given.items() if plain.uses(field)}
        specs.append(load_spec(name, **fields) if fields else plain)
        used |= set(fields)
    for field in given:
        if field not in used:
            option = field.replace("_", "-")
            raise BadInput(f"--{option}: {', '.join(task_names)} has no use for it; leave it out")
    return specs


def _check_numbers(options: MeasureOptions) -> None:
    """What is wrong by itself is told before anything heavy is imported."""
    check_number("samples", options.samples, least=1)
    check_number("batch-size", options.batch_size, least=1)
    check_number("patience", options.patience, least=1)
    check_number("seed", options.seed, least=0, most=2**63 - 1)  # results hold it in 64 bits
    if options.lengths is not None and options.max_len is not None:
        raise BadInput("--lengths and --max-len exclude each other; choose one")
    if options.lengths is not None:
        parse_lengths(options.lengths)
    if options.max_len is not None:
        parse_length(options.max_len)
    if options.backend not in BACKENDS:
        raise BadInput(f"--backend {options.backend!r} is not known{did_you_mean(options.backend, BACKENDS)}")


def _prepare(
    specs: "Sequence[TaskSpec]", options: MeasureOptions
) -> "list[tuple[Checkpoint, list[tuple[Task, EvaluationRequest]]]]":
    """Each model with its tasks and requests, checked as far as can be without reading weights."""
    from bamctl.backends.native import choose_device
    from bamctl.evaluation.run import check_request
    from bamctl.models.loading import DTYPES, open_checkpoint
    from bamctl.tasks.catalog import build_task
    from bamctl.tasks.tokenization import PromptTokenizer

    if options.dtype not in DTYPES:
        raise BadInput(f"--dtype {options.dtype!r} is not known{did_you_mean(options.dtype, DTYPES)}")
    choose_device(options.device)
    jobs = []
    for name in dict.fromkeys(options.models or []):
        checkpoint = open_checkpoint(name)
        tokenizers = {
            chat: PromptTokenizer(checkpoint.tokenizer, chat=chat)
            for chat in dict.fromkeys(spec.apply_chat_template for spec in specs)
        }
        tasks: list[tuple[Task, EvaluationRequest]] = []
        for spec in specs:
            try:
                task = build_task(spec, tokenizers[spec.apply_chat_template])
            except NotInstalled as error:
                if spec is specs[-1] and not tasks:
                    raise
                reason = str(error).removeprefix(f"{spec.name}: ")
                print(f"{spec.name} left out: {reason}", file=sys.stderr)
                continue
            request = _request(task, checkpoint, options)
            check_request(task, request, None, checkpoint.name)
            tasks.append((task, request))
        jobs.append((checkpoint, tasks))
    return jobs


def _request(task: "Task", checkpoint: "Checkpoint", options: MeasureOptions) -> "EvaluationRequest":
    """What is to be measured; of a series of lengths those that the task has prompts for."""
    from bamctl.evaluation.depths import parse_depths
    from bamctl.evaluation.run import EvaluationRequest, has_prompts

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
    left_out = (
        [] if options.lengths else [length for length in lengths if not has_prompts(task, length, request)]
    )
    if len(left_out) in (0, len(lengths)):  # all of them: that is refused
        return request
    print(
        f"{task.spec.name}: {', '.join(map(format_length, left_out))} left out, the shortest length that"
        f" always works with the tokenizer of {checkpoint.name} is {task.shortest_length} tokens",
        file=sys.stderr,
    )
    return replace(request, lengths=tuple(length for length in lengths if length not in left_out))


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
