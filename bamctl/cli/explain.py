"""`--explain`: how far each head looks, and what a run will take, without running it."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bamctl.attention.cpu import TILE
from bamctl.backends.base import Backend
from bamctl.cli.progress import title
from bamctl.cli.time_left import words_for_seconds
from bamctl.evaluation.forecast import Foresight, Rehearsal, rehearse
from bamctl.evaluation.run import EvaluationRequest
from bamctl.lengths import format_length
from bamctl.models.work import HeadWork
from bamctl.tasks.base import Task


def explain(backend: Backend, task: Task, request: EvaluationRequest, console: Console) -> None:
    """Prints what one model would do; runs no sample of the plan and writes no file.

    Raises:
        RunFailed: out of memory, or the engine died.
    """
    for line in title(backend, task, request):
        console.print(Text(line))
    foresight = Foresight(backend, task, request)
    workload = foresight.workload
    if workload is None:
        console.print(
            Text(
                f"How far its heads look, and what a run will take, cannot be told with the {backend.name}"
                " backend."
            )
        )
        return
    rehearsal = rehearse(backend, task, request, workload)
    longest = max(request.lengths)
    console.print()
    console.print(_heads(workload.heads(longest), format_length(longest)))
    console.print(
        Text(
            f"back: tokens that the last one of {longest} has to look back; computed: of the causal tiles"
            f" of {TILE} by {TILE} tokens, those computed as the prompt is read. Both hold for prompts like"
            f" the one of {workload.sample_tokens} tokens on which content scores were measured."
        )
    )
    console.print()
    console.print(_lengths(foresight, rehearsal, request))
    timed = " to ".join(dict.fromkeys(str(length) for length in (rehearsal.timed[0], rehearsal.timed[-1])))
    has = ""
    if workload.memory_bytes is not None:
        has = f"; {backend.device} has {workload.memory_bytes / 1e9:.1f} GB in all"
    total = sum(seconds for _, seconds in _seconds(foresight, rehearsal, request))
    console.print(
        Text(
            f"All samples: {_time(total)}, if none is stored yet. Predicted from the work there is and the"
            f" time that prompts of {timed} tokens took just now. Where neighbours begin alike, a sample"
            f" takes less on average than a whole prompt. Memory: the most that is in use at once{has}."
        )
    )


def _heads(heads: list[HeadWork], length: str) -> Table:
    """One row a head."""
    has_location = any(head.mu for head in heads)
    table = Table(box=None, pad_edge=False)
    columns = ["layer", "head", "β", "α", *(["μ"] if has_location else []), "s"]
    for name in (*columns, f"back at {length}", "computed"):
        table.add_column(name, justify="right", no_wrap=True)
    for head in heads:
        prior = (head.beta, head.alpha, *([head.mu] if has_location else []), head.ssmax)
        table.add_row(
            str(head.layer),
            str(head.head),
            *("-" if value is None else f"{value:.3g}" for value in prior),
            "all" if head.reach is None else str(head.reach),
            f"{100 * head.computed:.2g}%" if head.computed < 0.995 else "100%",
        )
    return table


def _lengths(foresight: Foresight, rehearsal: Rehearsal, request: EvaluationRequest) -> Table:
    """One row a length."""
    table = Table(box=None, pad_edge=False)
    for name in ("length", "whole prompt", "a sample", f"{request.samples} samples", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for length, (whole, seconds) in zip(
        request.lengths, _seconds(foresight, rehearsal, request), strict=True
    ):
        memory = rehearsal.memory(length)
        table.add_row(
            format_length(length),
            _time(whole),
            _time(seconds / request.samples),
            _time(seconds),
            "-" if memory is None else f"{memory / 1e9:.2f} GB",
        )
    return table


def _seconds(
    foresight: Foresight, rehearsal: Rehearsal, request: EvaluationRequest
) -> Iterator[tuple[float, float]]:
    """For each length, of a prompt that has nothing in common with the one before, and of all samples."""
    for length in request.lengths:
        flops = foresight.flops(length)
        assert flops is not None
        whole = rehearsal.workload.flops(length)
        yield rehearsal.pace.seconds(whole), rehearsal.pace.seconds(float(flops[-1]), samples=request.samples)


def _time(seconds: float) -> str:
    """As much as a prediction can say: ``0.02 s``, ``5.6 s``, ``99 s``, ``2 min``, ``5 h``."""
    return words_for_seconds(seconds) if seconds >= 10 else f"{seconds:.{1 if seconds >= 1 else 2}f} s"
