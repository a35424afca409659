"""One run: a model, a task, and every sample of the plan, each stored as soon as it is known."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bamctl
from bamctl.backends.base import Backend, Completion
from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.depths import DepthPolicy
from bamctl.evaluation.excerpts import prompt_columns
from bamctl.evaluation.plan import PlannedSample, plan_samples, select_samples
from bamctl.evaluation.scores import Metric, exact_match, recall, score
from bamctl.lengths import format_length
from bamctl.results.loading import samples_name
from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow
from bamctl.results.shard import Shard
from bamctl.results.store import RunStore
from bamctl.tasks.base import Task
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.spec import TaskSpec


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be measured, whatever the model."""

    lengths: tuple[int, ...]
    """Target lengths in tokens."""
    samples: int
    """Samples of each length, those of other shards included."""
    depths: DepthPolicy
    seed: int = 0
    batch_size: int | None = None
    """Prompts that run together, all of one length; None: as many as the backend thinks fit."""
    patience: int | None = None
    """Skip the lengths behind this many with a score of zero in a row; None skips none. With `only` it skips
    none, and with `shard` it is refused: a shard does not know the scores of the others."""
    shard: Shard | None = None
    """Run this share of each length's samples, beside other processes that run the others."""
    only: frozenset[str] | None = None
    """Run the samples with these row_ids and no others; None runs all."""
    out: Path = Path("results")
    command: tuple[str, ...] | None = None
    """The words of a command that measures the same of this model and this task alone, to be stored."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Told when a length begins and whenever samples finish: where a run stands at one length."""

    model: str
    task: str
    length: int
    done: int
    """Samples of this length that are done, those of earlier runs included."""
    samples: int
    """Samples of this length that are asked for: of a shard its own."""
    right: int
    """Of the done ones, how many are an exact match."""
    metric: Metric
    """What the task's score is."""
    score_sum: float
    """The scores of the done ones together: `right`, or the sum of their recalls, as `metric` says."""
    seconds: float
    """What those that finished took of the backend's time."""
    ran: int
    """Samples that finished; 0 where a length begins or is skipped."""
    skipped: bool = False
    rows: tuple[SampleRow, ...] = ()
    """Those that finished, or were skipped, as they are stored."""
    depth: float | None = None
    """Depth of the sample in work, the deepest that is not done; None where none is."""
    planned: Mapping[int, int] = field(default_factory=dict)
    """The run's lengths, and how many samples each has."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a run left behind."""

    run_id: str
    folder: Path
    table: str = samples_name(None)
    """Name of the file that the samples are in: ``samples.parquet``, or a shard's own."""
    row_ids: frozenset[str]
    """The samples that were asked for; the folder may hold others of the same run."""
    ran: int
    """Samples that this call ran."""
    found: int
    """Samples that were asked for and were there already."""


def samples_of(spec: TaskSpec, request: EvaluationRequest) -> dict[int, list[PlannedSample]]:
    """The samples that are asked for: for each length, shortest first, those of its shard and of `only`.

    Lengths without any are left out.

    Raises:
        BadInput: `only` has a row_id that the plan has not.
    """
    plan = plan_samples(
        spec, lengths=request.lengths, samples=request.samples, depths=request.depths, seed=request.seed
    )
    return select_samples(plan, shard=request.shard, only=request.only)


def has_prompts(task: Task, length: int, request: EvaluationRequest) -> bool:
    """Whether every sample of a length has a prompt.

    What each draw takes is not known before it is made: below the length at which all of them fit, those of
    the request are tried.
    """
    if length >= task.shortest_length:
        return True
    plan = plan_samples(
        task.spec, lengths=[length], samples=request.samples, depths=request.depths, seed=request.seed
    )
    try:
        for sample in plan[length]:
            task.build(length=length, depth=sample.depth, rng=sample.rng())
    except BadInput:
        return False
    return True


def check_request(task: Task, request: EvaluationRequest, longest_prompt: int | None, model: str) -> None:
    """Checks what can be checked before anything is written.

    Raises:
        BadInput: a length that the task cannot fill or the model cannot read, a shard with patience.
    """
    if request.shard is not None and request.patience is not None:
        raise BadInput(
            "--patience and --shard exclude each other: a shard does not see what the others score; leave one"
            " out"
        )
    longest = max(request.lengths)
    for length in request.lengths:
        if not has_prompts(task, length, request):
            raise BadInput(
                f"length {format_length(length)} is too short for {task.spec.name} with the tokenizer of"
                f" {model}: the shortest that always works is {task.shortest_length}"
            )
    if longest_prompt is not None and longest > longest_prompt:
        raise BadInput(
            f"length {format_length(longest)} is beyond what {model} reads: {longest_prompt} tokens;"
            " lower --max-len or --lengths"
        )


def no_samples(request: EvaluationRequest) -> str:
    """Why a request has no samples, in words."""
    if request.shard is None:
        return "no samples were asked for"
    of = f"the {request.samples} samples" if request.only is None else "the samples asked for"
    return f"none of {of} of a length is in shard {request.shard}"


def run_identity(backend: Backend, task: Task, request: EvaluationRequest) -> RunIdentity:
    """What defines the run that `evaluate` would make."""
    return RunIdentity(
        model=backend.model.name,
        model_digest=backend.model.digest,
        tokenizer_digest=task.tokenizer.digest,
        task=task.spec.name,
        task_digest=task.spec.digest,
        variant=task.spec.variant,
        depths=request.depths.text,
        backend=backend.name,
        dtype=backend.dtype,
        seed=request.seed,
        prompt_version=task.spec.prompt_version,
    )


def evaluate(
    backend: Backend,
    task: Task,
    request: EvaluationRequest,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> RunSummary:
    """Runs every sample of the plan that is not stored yet.

    Rows are on the disk one by one and are folded into Parquet length by length. Whatever ends this early
    (an error, Ctrl-C), what was finished stays, and the same call goes on from there.

    Raises:
        BadInput: lengths that do not fit the task or the model, no sample, or a folder that cannot be written
            to; nothing was written.
        RunFailed: the backend or the disk failed on the way, or another process runs this shard.
    """
    check_request(task, request, backend.model.longest_prompt, backend.model.name)
    identity = run_identity(backend, task, request)
    facts = ModelFacts(
        position_encoding=backend.model.position_encoding,
        ssmax=backend.model.ssmax,
        train_length=backend.model.train_length,
        parameters=backend.model.parameters,
    )
    plan = samples_of(task.spec, request)
    if not plan:
        raise BadInput(f"{task.spec.name}: {no_samples(request)}")
    patience = request.patience if request.only is None else None
    with RunStore.open(request.out, identity, facts, shard=request.shard) as store:
        columns = {
            **identity.columns(),
            **facts.columns(),
            "metric": task.spec.metric,
            "command": request.command,
        }
        planned = {length: len(samples) for length, samples in plan.items()}
        run = _Run(backend, task, request, store, columns, on_progress, planned)
        row_ids = frozenset(sample.row_id for row in plan.values() for sample in row)
        found = len(store.done() & row_ids)
        zeros = 0
        for length, samples in plan.items():
            if patience is not None and zeros >= patience and run.pending(samples):
                run.skip(length, samples, patience)
            else:
                zeros = 0 if run.measure(length, samples) else zeros + 1
            store.fold()
        return RunSummary(
            run_id=identity.run_id,
            folder=store.folder,
            table=samples_name(request.shard),
            row_ids=row_ids,
            ran=run.ran,
            found=found,
        )


class _Run:
    """The state of one call of `evaluate`."""

    def __init__(
        self,
        backend: Backend,
        task: Task,
        request: EvaluationRequest,
        store: RunStore,
        run_columns: dict[str, Any],
        on_progress: Callable[[Progress], None],
        planned: Mapping[int, int],
    ) -> None:
        self.backend = backend
        self.task = task
        self.request = request
        self.store = store
        self.run_columns = run_columns
        self.on_progress = on_progress
        self.planned = planned
        self.ran = 0
        stored = store.rows(["row_id", "status", "exact", "recall"])
        stored = stored[stored["status"] == "done"]
        self.exact: dict[str, bool] = {}
        self.scores: dict[str, float] = {}
        for row_id, exact, recalled in zip(*(stored[c] for c in ("row_id", "exact", "recall")), strict=True):
            self._note(row_id, bool(exact), float(recalled))

    def pending(self, samples: Sequence[PlannedSample]) -> list[PlannedSample]:
        """Those that are not done yet, the deepest needle first.

        Neighbours in this order have the longest beginning in common, which a backend may then read once.
        """
        missing = [sample for sample in samples if sample.row_id not in self.scores]
        return sorted(missing, key=lambda sample: -sample.depth)

    def measure(self, length: int, samples: Sequence[PlannedSample]) -> float:
        """Runs what is missing of one length; the sum of its samples' scores, earlier ones included."""
        self._tell(length, samples, seconds=0.0, ran=0)
        pending = self.pending(samples)
        asked: dict[int, tuple[Prompt, datetime]] = {}

        def prompts() -> Iterator[Prompt]:
            for number, sample in enumerate(pending):
                started_at = datetime.now(UTC)
                prompt = self._build(sample)
                asked[number] = prompt, started_at
                yield prompt

        try:
            for finished in self.backend.stream(prompts(), together=self.request.batch_size):
                rows = [
                    self._store_done(pending[number], *asked.pop(number), completion)
                    for number, completion in finished.completions.items()
                ]
                self._tell(length, samples, seconds=finished.seconds, ran=len(rows), rows=rows)
        except RunFailed as error:
            for number, (prompt, started_at) in asked.items():
                of_prompt = prompt_columns(prompt, self.task.tokenizer)
                columns = {**self._columns(pending[number], started_at), **of_prompt}
                self.store.append(SampleRow(**columns, status="failed", error=str(error)))
            raise
        return sum(self.scores[sample.row_id] for sample in samples)

    def _build(self, sample: PlannedSample) -> Prompt:
        try:
            return self.task.build(length=sample.length, depth=sample.depth, rng=sample.rng())
        except MemoryError:
            raise RunFailed(
                f"{self.task.spec.name}: out of memory while making a prompt of {sample.length} tokens;"
                " lower --max-len or --lengths"
            ) from None

    def skip(self, length: int, samples: Sequence[PlannedSample], patience: int) -> None:
        """Writes down that a length was not run, and why; what an earlier run did of it stays."""
        what = "accuracy" if self.task.spec.metric == "exact" else "recall"
        reason = f"{what} was 0 at {patience} shorter lengths in a row, which is where patience ended"
        rows = []
        for sample in self.pending(samples):
            columns = self._columns(sample, datetime.now(UTC))
            rows.append(SampleRow(**columns, status="skipped", error=reason))
            self.store.append(rows[-1])
        self._tell(length, samples, seconds=0.0, ran=0, skipped=True, rows=rows)

    def _store_done(
        self, sample: PlannedSample, prompt: Prompt, started_at: datetime, completion: Completion
    ) -> SampleRow:
        metric = self.task.spec.metric
        exact = exact_match(completion.text, prompt.references, metric)
        recalled = recall(completion.text, prompt.references, metric)
        columns = {**self._columns(sample, started_at), **prompt_columns(prompt, self.task.tokenizer)}
        row = SampleRow(
            **columns,
            status="done",
            prediction=completion.text,
            exact=exact,
            recall=recalled,
            answer_logprob=completion.answer_logprob,
            completion_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason,
            reused_tokens=completion.reused_tokens,
            prefill_seconds=completion.prefill_seconds,
            decode_seconds=completion.decode_seconds,
            peak_memory_bytes=completion.peak_memory_bytes,
        )
        self.store.append(row)
        self._note(sample.row_id, exact, recalled)
        self.ran += 1
        return row

    def _note(self, row_id: str, exact: bool, recalled: float) -> None:
        self.exact[row_id] = exact
        self.scores[row_id] = score(exact, recalled, self.task.spec.metric)

    def _columns(self, sample: PlannedSample, started_at: datetime) -> dict[str, Any]:
        return {
            **self.run_columns,
            "device": self.backend.device,
            "row_id": sample.row_id,
            "length": sample.length,
            "sample": sample.sample,
            "depth": (sample.depth,),
            "started_at": started_at,
            "bamctl_version": bamctl.__version__,
        }

    def _tell(
        self,
        length: int,
        samples: Sequence[PlannedSample],
        *,
        seconds: float,
        ran: int,
        skipped: bool = False,
        rows: Sequence[SampleRow] = (),
    ) -> None:
        done = [sample.row_id for sample in samples if sample.row_id in self.scores]
        in_work = [] if skipped else self.pending(samples)
        self.on_progress(
            Progress(
                model=self.backend.model.name,
                task=self.task.spec.name,
                length=length,
                done=len(done),
                samples=len(samples),
                right=sum(self.exact[row_id] for row_id in done),
                metric=self.task.spec.metric,
                score_sum=sum(self.scores[row_id] for row_id in done),
                seconds=seconds,
                ran=ran,
                skipped=skipped,
                rows=tuple(rows),
                depth=in_work[0].depth if in_work else None,
                planned=self.planned,
            )
        )
