"""Where a run stands, on stderr: a live table on a terminal, plain lines elsewhere and behind it."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console
from rich.text import Text

from bamctl.backends.base import Backend
from bamctl.cli.live_table import LiveTable, percent, redraws
from bamctl.cli.time_left import TimeLeft, words_for_time_left
from bamctl.evaluation.forecast import Foresight
from bamctl.evaluation.run import EvaluationRequest, RunSummary
from bamctl.evaluation.run import Progress as RunProgress
from bamctl.lengths import format_length
from bamctl.tasks.base import Task

SECONDS_BETWEEN_LINES = 60.0
"""Where nothing redraws itself, a length that takes long is told of in its middle, no more often than this"""

LINES_A_LENGTH = 10
"""and about as many times at most."""


class ProgressPrinter:
    """Tells of one run. A context manager; when it ends, the live table is gone and the lines are left.

    Args:
        backend: what runs.
        task: what is asked.
        request: how much of it.
        quiet: whether it tells nothing.
        which: which run of how many this is, such as ``2 of 8``; empty for the only one.
        beside_stdout: whether lines go to stdout meanwhile.
        console: where it is shown.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        task: Task,
        request: EvaluationRequest,
        *,
        quiet: bool = False,
        which: str = "",
        beside_stdout: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._redraws = redraws(self._console, beside_stdout=beside_stdout)
        self._clock = clock
        self._foresight = Foresight(backend, task, request)
        self._title = title(backend, task, request)
        self._name = f"{backend.model.name}, {task.spec.name}{f' ({which})' if which else ''}"
        self._estimate: TimeLeft | None = None  # from when the run begins
        self._table: LiveTable | None = None
        self._lines: list[str] = []
        self._last_line = clock()
        self._part_told = 0

    def __enter__(self) -> "ProgressPrinter":
        return self

    def _begin(self, planned: Mapping[int, int]) -> TimeLeft:
        """Not before the run tells something: until then it may still be refused, in one line."""
        for line in self._title:
            self._say(line)
        if self._redraws:
            self._table = LiveTable(self._name, planned, self._clock)
            self._table.show(self._console)
        return TimeLeft(planned, self._foresight.flops)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """The table goes, and what is known of each length stays in lines."""
        if self._table is not None:
            self._table.remove()
            self._table = None
        while self._lines:
            self._say(self._lines.pop(0))

    def update(self, progress: RunProgress) -> None:
        """Takes what `evaluate` tells."""
        if self._quiet:
            return
        if self._estimate is None:
            self._estimate = self._begin(progress.planned)
        self._estimate.update(progress)
        rate = self._estimate.rate(progress.length)
        seconds_left = self._estimate.seconds_left()
        complete = progress.skipped or progress.done == progress.samples
        if self._table is not None:
            self._table.update(progress, rate=rate, seconds_left=seconds_left)
            if complete:
                self._lines.append(_line(progress, rate))
        elif complete or self._is_time_for_a_line(progress):
            self._part_told = LINES_A_LENGTH * progress.done // progress.samples
            self._last_line = self._clock()
            left = f", {words_for_time_left(seconds_left)}" if seconds_left else ""
            self._say(_line(progress, rate) + left)

    def _is_time_for_a_line(self, progress: RunProgress) -> bool:
        """Whether a length is told of in its middle."""
        part = LINES_A_LENGTH * progress.done // progress.samples
        if not progress.ran:
            self._part_told = part
        return part != self._part_told and self._clock() - self._last_line >= SECONDS_BETWEEN_LINES

    def finish(self, summary: RunSummary) -> None:
        """Says what this call added."""
        self._end()
        if self._quiet:
            return
        if summary.found == len(summary.row_ids):
            self._say("  all samples were there already; nothing was run")
        elif summary.found:
            self._say(f"  samples run: {summary.ran}; {summary.found} were there already")

    def _say(self, line: str) -> None:
        """Broken between words on a terminal, whole elsewhere."""
        self._console.print(Text(line), soft_wrap=not self._redraws)


def _line(progress: RunProgress, rate: float | None) -> str:
    """One length: ``9/10 right``, or the mean of the scores where that is what counts, and the speed."""
    length = format_length(progress.length)
    if progress.skipped:
        return f"  {length}: skipped"
    complete = progress.done == progress.samples
    if progress.metric != "exact":
        right = f"recall {percent(progress.score_sum / progress.done)}"
    else:
        right = f"{progress.right}{f'/{progress.samples}' if complete else ''} right"
    so_far = "" if complete else f"{progress.done} of {progress.samples} done, "
    return f"  {length}: {so_far}{right}, {'found' if rate is None else f'{rate:,.0f} tokens/s'}"


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
        f"{'' if request.shard is None else f'; of them shard {request.shard}'}"
        f"{'' if request.only is None else f'; of them {len(request.only)} alone'}"
    )
    return what_runs, what_is_asked


def _counted(samples: int) -> str:
    return "1 sample at each of" if samples == 1 else f"{samples} samples at each of"


def _spelled(length: int) -> str:
    short = format_length(length)
    return short if short == str(length) else f"{short} ({length})"
