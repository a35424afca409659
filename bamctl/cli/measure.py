"""What the measuring commands share: check everything, run every model, print the table."""

import functools
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bamctl.cli.command_words import command_words
from bamctl.cli.opening import check_engine, each_once, open_models
from bamctl.cli.options import DEFAULT_LONGEST, MeasureOptions, check_number, parse_model_args
from bamctl.errors import BadInput, NotInstalled
from bamctl.lengths import doubling_lengths, format_length, parse_length, parse_lengths
from bamctl.results.files import check_out
from bamctl.results.shard import parse_shard

if TYPE_CHECKING:
    import pandas as pd

    from bamctl.backends.opening import OpenedModel
    from bamctl.cli.progress import ProgressPrinter
    from bamctl.evaluation.run import EvaluationRequest, Progress, RunSummary
    from bamctl.tasks.base import Task
    from bamctl.tasks.prompt import Prompt
    from bamctl.tasks.spec import TaskSpec
    from bamctl.tasks.tokenization import PromptTokenizer

SHORTEST_IF_UNKNOWN = 512
"""Where the series of lengths begins for a checkpoint that does not say what it was trained at."""

SHORTEST_IF_TRAINED = (4096, 512)
"""Where it begins, at the first that is shorter than the longest, for one that was trained at all of it."""

_DRAWS = 8
"""Prompts that are made to find out how many tokens an answer may take."""

_SPARE = 256
"""Tokens by which a reference may be longer than those of these prompts."""

Job = tuple["OpenedModel", list[tuple["Task", "EvaluationRequest"]]]


def measure(
    tasks: Mapping[str, Sequence[str]], overrides: Mapping[str, object | None], options: MeasureOptions
) -> None:
    """Runs tasks on each model, or explains what that would do; writes nothing before all has been checked.

    Args:
        tasks: names of tasks, or task files, each with the words of a command that ask for it alone.
        overrides: fields to have otherwise than the files say, in the tasks that use them; None: as they are.
        options: all else.

    Raises:
        BadInput: an option, a model or a task is not as it should be.
        RunFailed: a run failed on its way; what was finished is kept.
    """
    _check_numbers(options)

    from bamctl.evaluation.depths import parse_depths

    parse_depths(options.depths, options.samples)
    jobs = _with_samples(_prepare(tasks, overrides, options), options)

    summaries: list[RunSummary] = []
    runs = sum(len(pairs) for _, pairs in jobs)
    for model, pairs in jobs:
        summaries += _run(model, pairs, options, first=len(summaries) + 1, runs=runs)
        gc.collect()  # weights that a cycle still holds, before the next ones take memory
    if summaries and not options.json:
        _print_results(summaries)
    if not options.quiet:
        for summary in summaries:
            print(f"Results in {summary.folder}: accuracy.parquet, {summary.table}", file=sys.stderr)


def _run(
    model: "OpenedModel",
    tasks: "list[tuple[Task, EvaluationRequest]]",
    options: MeasureOptions,
    *,
    first: int,
    runs: int,
) -> "list[RunSummary]":
    """One model: its weights live as long as this call. Of so many runs its first is number `first`."""
    from rich.console import Console

    from bamctl.cli.explain import explain
    from bamctl.cli.machine_output import tell_lengths
    from bamctl.cli.progress import ProgressPrinter
    from bamctl.evaluation.run import evaluate

    backend = model.start(
        device=options.device,
        dtype=options.dtype,
        share_prefixes=options.share_prefixes,
        longest=max(_longest(task, request) for task, request in tasks),
    )
    summaries: list[RunSummary] = []
    for number, (task, request) in enumerate(tasks, start=first):
        if options.explain:
            explain(backend, task, request, Console())
            continue
        with ProgressPrinter(
            backend,
            task,
            request,
            quiet=options.quiet,
            which=f"{number} of {runs}" if runs > 1 else "",
            beside_stdout=options.json,
        ) as printer:
            tell = functools.partial(_tell, printer, json=options.json)
            summary = evaluate(backend, task, request, on_progress=tell)
            printer.finish(summary)
        if options.json:
            tell_lengths(_accuracy([summary]))
        summaries.append(summary)
    return summaries


def _tell(printer: "ProgressPrinter", progress: "Progress", *, json: bool) -> None:
    """What a run tells, on stdout if a program reads it there, and on stderr."""
    from bamctl.cli.machine_output import tell_samples

    if json:
        tell_samples(progress.rows)
    printer.update(progress)


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
    if options.shard is not None:
        parse_shard(options.shard)
    if options.explain and (options.shard or options.only):
        raise BadInput("--explain tells of all samples; leave out --shard and --only")
    parse_model_args(options.model_args)
    check_engine(options.engine, options.backend)
    if not options.explain:
        check_out(options.out)
    if options.explain and options.json:
        raise BadInput("--explain shows tables, which are nothing for --json; leave out one of them")
    if options.explain and options.backend == "vllm":
        raise BadInput(
            "--explain: what vLLM computes is its scheduler's affair and cannot be told beforehand; leave out"
            " --explain or --backend"
        )


def _prepare(
    tasks: Mapping[str, Sequence[str]], overrides: Mapping[str, object | None], options: MeasureOptions
) -> list[Job]:
    """Each model with its tasks and requests, checked as far as can be without reading weights."""
    specs = specs_of(list(tasks), overrides)
    asking = {spec.name: words for spec, words in zip(specs, tasks.values(), strict=True)}
    built = _Tasks(specs)
    jobs: list[Job] = []
    names = each_once(options.models or [])
    opened = open_models(
        names,
        backend=options.backend,
        tokenizer=options.tokenizer,
        model_args=options.model_args,
        trust_remote_code=options.trust_remote_code,
        device=options.device,
        dtype=options.dtype,
        engine=options.engine,
    )
    for name, model in zip(names, opened, strict=True):
        pairs = []
        for task in built.of(model):
            room = _room(task) if model.longest_prompt is not None else 0
            request = _request(task, model, room, options)
            _check_request(task, request, model, room)
            words = command_words(
                asking[task.spec.name],
                spec=task.spec,
                overrides=overrides,
                model=name,
                lengths=request.lengths,
                options=options,
            )
            pairs.append((task, replace(request, command=words)))
        jobs.append((model, pairs))
    return jobs


def _with_samples(jobs: list[Job], options: MeasureOptions) -> list[Job]:
    """The jobs that have samples to run: a shard may have none, and `--only` may name those of one task.

    Raises:
        BadInput: no task has a sample of such a row_id.
    """
    from bamctl.evaluation.run import no_samples, samples_of

    asked_for = frozenset(options.only or ())
    known: set[str] = set()
    left: list[Job] = []
    without = ""
    for model, tasks in jobs:
        pairs = []
        for task, request in tasks:
            if asked_for:
                plan = samples_of(task.spec, replace(request, shard=None, only=None))
                row_ids = {sample.row_id for samples in plan.values() for sample in samples}
                known |= row_ids
                request = replace(request, only=asked_for & row_ids)
            if samples_of(task.spec, request):
                pairs.append((task, request))
            else:
                without = no_samples(request)
        left += [(model, pairs)] if pairs else []
    if asked_for - known:
        raise BadInput(
            f"--only {min(asked_for - known)}: no sample of these tasks, lengths, depths and seed has this"
            " row_id; bamctl show prints the command that has it"
        )
    if not left:
        print(f"{without}; there is nothing to run", file=sys.stderr)
    return left


class _Tasks:
    """The tasks for each model; models whose tokenizers do the same share them."""

    def __init__(self, specs: "Sequence[TaskSpec]") -> None:
        self._specs = specs
        self._built: dict[tuple[str, ...], list[Task]] = {}

    def of(self, model: "OpenedModel") -> "list[Task]":
        """Those whose texts are installed.

        Raises:
            BadInput: a task and the tokenizer do not go together, or no task's texts are installed.
        """
        from bamctl.tasks.tokenization import PromptTokenizer

        tokenizers = {
            chat: PromptTokenizer(model.tokenizer, chat=chat)
            for chat in dict.fromkeys(spec.apply_chat_template for spec in self._specs)
        }
        key = tuple(tokenizer.digest for tokenizer in tokenizers.values())
        if key not in self._built:
            self._built[key] = self._build(tokenizers, tell=not self._built)
        return self._built[key]

    def _build(self, tokenizers: "Mapping[bool, PromptTokenizer]", *, tell: bool) -> "list[Task]":
        from bamctl.tasks.catalog import build_task

        tasks: list[Task] = []
        for spec in self._specs:
            try:
                tasks.append(build_task(spec, tokenizers[spec.apply_chat_template]))
            except NotInstalled as error:
                if spec is self._specs[-1] and not tasks:
                    raise
                if tell:
                    reason = str(error).removeprefix(f"{spec.name}: ")
                    print(f"{spec.name} left out: {reason}", file=sys.stderr)
        return tasks


def _request(task: "Task", model: "OpenedModel", room: int, options: MeasureOptions) -> "EvaluationRequest":
    """What is to be measured; of a series of lengths those that the task has prompts for."""
    from bamctl.evaluation.depths import parse_depths
    from bamctl.evaluation.run import EvaluationRequest, has_prompts

    if options.lengths is not None:
        lengths = parse_lengths(options.lengths)
    else:
        longest = parse_length(options.max_len or DEFAULT_LONGEST)
        first = model.train_length or SHORTEST_IF_UNKNOWN
        if options.max_len is None and model.longest_prompt is not None:
            longest = min(longest, model.longest_prompt - room)
            first = min(first, longest)
        if first >= longest:
            first = next((length for length in SHORTEST_IF_TRAINED if length < longest), first)
        lengths = doubling_lengths(first, longest)
    request = EvaluationRequest(
        lengths=lengths,
        samples=options.samples,
        depths=parse_depths(options.depths, options.samples),
        seed=options.seed,
        batch_size=options.batch_size,
        patience=options.patience,
        shard=None if options.shard is None else parse_shard(options.shard),
        only=frozenset(options.only) if options.only else None,
        out=options.out,
    )
    left_out = (
        [] if options.lengths else [length for length in lengths if not has_prompts(task, length, request)]
    )
    if len(left_out) in (0, len(lengths)):  # all of them: that is refused
        return request
    print(
        f"{task.spec.name}: {', '.join(map(format_length, left_out))} left out, the shortest length that"
        f" always works with the tokenizer of {model.name} is {task.shortest_length} tokens",
        file=sys.stderr,
    )
    return replace(request, lengths=tuple(length for length in lengths if length not in left_out))


def _drawn(task: "Task") -> "list[Prompt]":
    """Short prompts, which tell what answers may take."""
    from bamctl.evaluation.forecast import sample_prompt

    return [sample_prompt(task, task.shortest_length, number=number) for number in range(_DRAWS)]


def _room(task: "Task") -> int:
    """Tokens of an answer beside a length."""
    if task.spec.length_includes_generation:
        return 0
    return max(prompt.tokens_to_generate for prompt in _drawn(task))


def _longest(task: "Task", request: "EvaluationRequest") -> int:
    """Tokens of the longest prompt with its answer.

    What a task says of its length may leave out an answer, and a reference may be longer than an answer.
    """
    longest, drawn = max(request.lengths), _drawn(task)
    counted = drawn[0].tokens_to_generate if task.spec.length_includes_generation else 0
    room = max(max(p.tokens_to_generate, *(len(ids) for ids in p.answer_ids)) for p in drawn)
    return longest - counted + room + _SPARE


def _check_request(task: "Task", request: "EvaluationRequest", model: "OpenedModel", room: int) -> None:
    """See `bamctl.evaluation.run.check_request`; what is generated needs positions too.

    Raises:
        BadInput: a length that the task cannot fill or the model cannot read.
    """
    from bamctl.evaluation.run import check_request

    check_request(task, request, None, model.name)
    longest = max(request.lengths)
    wanted = longest + room
    if model.longest_prompt is not None and wanted > model.longest_prompt:
        asked = f"length {format_length(longest)}"
        asked += f" and the {room} tokens of an answer are" if room else " is"
        raise BadInput(f"{asked} beyond what {model.name} reads: {model.limit_note(wanted)}")


def _print_results(summaries: "list[RunSummary]") -> None:
    """The table of what was asked for."""
    from rich.console import Console

    from bamctl.cli.report_command import print_accuracy

    print_accuracy(_accuracy(summaries), Console())


def _accuracy(summaries: "list[RunSummary]") -> "pd.DataFrame":
    """Rows of ACCURACY_SCHEMA, of the samples that were asked for; a run's folder may hold more."""
    from bamctl.results.statistics import ACCURACY_COLUMNS
    from bamctl.results.store import accuracy_table, load_samples

    stored = load_samples([summary.folder for summary in summaries], ("row_id", *ACCURACY_COLUMNS))
    asked_for = frozenset().union(*(summary.row_ids for summary in summaries))
    return accuracy_table(stored[stored["row_id"].isin(asked_for)])
