"""One run: a model, a task, and every sample of the plan, each stored as soon as it is known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bamctl
from bamctl.backends.base import Backend, Completion
from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.depths import DepthPolicy
from bamctl.evaluation.plan import PlannedSample, plan_samples
from bamctl.evaluation.scores import Metric, exact_match, recall, score
from bamctl.lengths import format_length
from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow
from bamctl.results.store import RunStore
from bamctl.tasks.base import Task
from bamctl.tasks.prompt import Prompt


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be measured, whatever the model."""

    lengths: tuple[int, ...]
    """Target lengths in tokens."""
    samples: int
    """Samples of each length."""
    depths: DepthPolicy
    seed: int = 0
    batch_size: int | None = None
    """Prompts that run together, all of one length; None: as many as the backend thinks fit."""
    patience: int | None = None
    """Skip the lengths behind this many with a score of zero in a row; None skips none."""
    out: Path = Path("results")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Told when a length begins and whenever samples finish: where a run stands at one length."""

    model: str
    task: str
    length: int
    done: int
    """Samples of this length that are done, those of earlier runs included."""
    samples: int
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


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a run left behind."""

    run_id: str
    folder: Path
    row_ids: frozenset[str]
    """The samples of the plan; the folder may hold others of the same run."""
    ran: int
    """Samples that this call ran."""
    found: int
    """Samples of the plan that were there already."""


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
        BadInput: a length that the task cannot fill or the model cannot read.
    """
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
        BadInput: lengths that do not fit the task or the model, or a folder that cannot be written to;
            nothing was written.
        RunFailed: the backend or the disk failed on the way.
    """
    check_request(task, request, backend.model.longest_prompt, backend.model.name)
    identity = run_identity(backend, task, request)
    facts = ModelFacts(
        position_encoding=backend.model.position_encoding,
        ssmax=backend.model.ssmax,
        train_length=backend.model.train_length,
        parameters=backend.model.parameters,
    )
    plan = plan_samples(
        task.spec,
        lengths=request.lengths,
        samples=request.samples,
        depths=request.depths,
        seed=request.seed,
    )
    with RunStore.open(request.out, identity, facts) as store:
        columns = {**identity.columns(), **facts.columns(), "metric": task.spec.metric}
        run = _Run(backend, task, request, store, columns, on_progress)
        row_ids = frozenset(sample.row_id for row in plan.values() for sample in row)
        found = len(store.done() & row_ids)
        zeros = 0
        for length, samples in plan.items():
            if request.patience is not None and zeros >= request.patience and run.pending(samples):
                run.skip(length, samples, request.patience)
            else:
                zeros = 0 if run.measure(length, samples) else zeros + 1
            store.fold()
        return RunSummary(
            run_id=identity.run_id, folder=store.folder, row_ids=row_ids, ran=run.ran, found=found
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
    ) -> None:
        self.backend = backend
        self.task = task
        self.request = request
        self.store = store
        self.run_columns = run_columns
        self.on_progress = on_progress
        self.ran = 0
        stored = store.rows()
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
                for number, completion in finished.completions.items():
                    self._store_done(pending[number], *asked.pop(number), completion)
                self._tell(length, samples, seconds=finished.seconds, ran=len(finished.completions))
        except RunFailed as error:
            for number, (prompt, started_at) in asked.items():
                columns = {**self._columns(pending[number], started_at), **_prompt_columns(prompt)}
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
        for sample in self.pending(samples):
            columns = self._columns(sample, datetime.now(UTC))
            self.store.append(SampleRow(**columns, status="skipped", error=reason))
        self._tell(length, samples, seconds=0.0, ran=0, skipped=True)

    def _store_done(
        self, sample: PlannedSample, prompt: Prompt, started_at: datetime, completion: Completion
    ) -> None:
        metric = self.task.spec.metric
        exact = exact_match(completion.text, prompt.references, metric)
        recalled = recall(completion.text, prompt.references, metric)
        columns = {**self._columns(sample, started_at), **_prompt_columns(prompt)}
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
    ) -> None:
        done = [sample.row_id for sample in samples if sample.row_id in self.scores]
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
            )
        )


def _prompt_columns(prompt: Prompt) -> dict[str, Any]:
    return {
        "depth": prompt.depths,
        "prompt_tokens": len(prompt.token_ids),
        "needle_start": tuple(start for start, _ in prompt.needle_spans),
        "haystack_repeats": prompt.haystack_repeats,
        "roundtrip_stable": prompt.roundtrip_stable,
        "prompt_digest": prompt.digest,
        "chat_prefix": prompt.chat_prefix,
        "references": prompt.references,
    }
