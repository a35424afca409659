"""Where a run stands, on stderr: a bar on a terminal, a line a length elsewhere."""

import sys
from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bamctl.backends.base import Backend
from bamctl.evaluation.forecast import Foresight, Pace
from bamctl.evaluation.run import EvaluationRequest, RunSummary
from bamctl.evaluation.run import Progress as RunProgress
from bamctl.lengths import format_length
from bamctl.tasks.base import Task


class ProgressPrinter:
    """Tells of one run. A context manager; the bar is gone when it ends."""

    def __init__(self, backend: Backend, task: Task, request: EvaluationRequest) -> None:
        self._request = request
        self._console = Console(stderr=True)
        self._estimate = TimeLeft(request, Foresight(backend, task, request).flops)
        self._bar: Progress | None = None
        self._title = title(backend, task, request)

    def __enter__(self) -> "ProgressPrinter":
        return self

    def _begin(self) -> None:
        """Not before the run tells something: until then it may still be refused, in one line."""
        for line in self._title:
            self._say(line)
        self._title = ()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[figures]}"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            total = len(self._request.lengths) * self._request.samples
            self._row = self._bar.add_task("", total=total, figures="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: RunProgress) -> None:
        """Takes what `evaluate` tells."""
        if self._title:
            self._begin()
        self._estimate.update(progress)
        length = format_length(progress.length)
        if self._bar is not None:
            self._bar.update(
                self._row,
                completed=self._estimate.samples_done,
                description=f"{length} {progress.done}/{progress.samples},"
                f" {_how_right(progress, f'{progress.right}')}",
                figures=self._estimate.text(),
            )
        if progress.skipped:
            self._say(f"  {length}: skipped")
        elif progress.done == progress.samples:
            rate = self._estimate.rate(progress.length)
            speed = "found" if rate is None else f"{rate:,.0f} tokens/s"
            ends = self._bar is not None or not self._estimate.seconds_left()
            left = "" if ends else f", {self._estimate.left_text()}"
            right = _how_right(progress, f"{progress.right}/{progress.samples}")
            self._say(f"  {length}: {right}, {speed}{left}")

    def finish(self, summary: RunSummary) -> None:
        """Says what this call added."""
        if summary.found == len(self._request.lengths) * self._request.samples:
            self._say("  all samples were there already; nothing was run")
        elif summary.found:
            self._say(f"  samples run: {summary.ran}; {summary.found} were there already")

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


class TimeLeft:
    """How long the rest of a run will take.

    What is left is counted in floating-point operations, which the backend foresees; the time that one takes,
    and what a sample takes besides, is fitted to the batches that were run. Samples of one amount of work
    cannot tell the two apart, and so say nothing of longer ones. Where the backend foresees nothing, only
    lengths that have begun are told of.

    Args:
        request: what is to be run.
        flops: see `bamctl.evaluation.forecast.Foresight.flops`.
    """

    def __init__(
        self, request: EvaluationRequest, flops: Callable[[int], NDArray[np.float64] | None]
    ) -> None:
        self._samples = request.samples
        self._flops = flops
        self._left = dict.fromkeys(request.lengths, request.samples)
        self._seconds: dict[int, float] = {}
        self._ran: dict[int, int] = {}
        self._pace = Pace()
        self._pace_but_first = Pace()
        """The first batch of all also pays for what is set up once."""

    def update(self, progress: RunProgress) -> None:
        """Takes a batch into account."""
        left = 0 if progress.skipped else progress.samples - progress.done
        self._left[progress.length] = left
        if not progress.ran:
            return
        flops = self._flops(progress.length)
        if flops is not None:
            batch = float(flops[progress.done] - flops[progress.done - progress.ran])
            for pace in (self._pace, *([self._pace_but_first] if self._ran else [])):
                pace.add(batch / progress.ran, progress.seconds / progress.ran, samples=progress.ran)
        self._seconds[progress.length] = self._seconds.get(progress.length, 0.0) + progress.seconds
        self._ran[progress.length] = self._ran.get(progress.length, 0) + progress.ran

    @property
    def samples_done(self) -> int:
        """Of all lengths, those that need no more work."""
        return len(self._left) * self._samples - sum(self._left.values())

    def rate(self, length: int) -> float | None:
        """Prompt tokens a second at one length; None where nothing was run."""
        seconds = self._seconds.get(length, 0.0)
        return length * self._ran[length] / seconds if seconds else None

    def seconds_left(self) -> float | None:
        """None until enough was measured to tell."""
        if not self._ran:
            return None
        left = {length: count for length, count in self._left.items() if count}
        foreseen = self._flops(next(iter(self._ran))) is not None
        pace = self._pace_but_first if self._pace_but_first.tells_overhead else self._pace
        if any(length not in self._ran for length in left) and not (foreseen and pace.tells_overhead):
            return None
        if not foreseen:
            return sum(count * self._seconds[length] / self._ran[length] for length, count in left.items())
        seconds = 0.0
        for length, count in left.items():
            flops = self._flops(length)
            assert flops is not None
            # The deepest are done, in this run or in one before.
            seconds += pace.seconds(float(flops[-1] - flops[-1 - count]), samples=count)
        return seconds

    def text(self) -> str:
        """Speed and time left, for the bar."""
        rate = self.rate(max(self._ran)) if self._ran else None
        return self.left_text() if rate is None else f"{rate:,.0f} tokens/s, {self.left_text()}"

    def left_text(self) -> str:
        """Time left in words."""
        seconds = self.seconds_left()
        if seconds is None:
            return "time left unknown"
        return f"{words_for_seconds(seconds)} left"


def _how_right(progress: RunProgress, right: str) -> str:
    """``9/10 right``, or the mean of the scores where that is what counts."""
    if progress.metric == "exact":
        return f"{right} right"
    return f"recall {100 * progress.score_sum / progress.done:.0f}%" if progress.done else "recall -"


def words_for_seconds(seconds: float) -> str:
    """``99 s``, ``2 min``: as much as an estimate can say."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def title(backend: Backend, task: Task, request: EvaluationRequest) -> tuple[str, ...]:
    """What runs and what is asked, every option as it was understood."""
    model = backend.model
    trained = "" if model.train_length is None else f", trained at {model.train_length}"
    variant = f" ({task.spec.variant})" if task.spec.variant else ""
    what_runs = (
        f"{model.name}: {model.position_encoding}{' with SSMax' if model.ssmax else ''}{trained};"
        f" {backend.name} on {backend.device}, {backend.dtype}"
    )
    what_is_asked = (
        f"{task.spec.name}{variant}: {_counted(request.samples)}"
        f" {', '.join(_spelled(length) for length in request.lengths)} tokens;"
        f" depths {request.depths.text}; seed {request.seed}"
    )
    return what_runs, what_is_asked


def _counted(samples: int) -> str:
    return "1 sample at each of" if samples == 1 else f"{samples} samples at each of"


def _spelled(length: int) -> str:
    short = format_length(length)
    return short if short == str(length) else f"{short} ({length})"
