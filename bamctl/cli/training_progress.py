"""Where a training stands, on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import math
import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bamctl.cli.live_table import redraws
from bamctl.cli.time_left import words_for_seconds
from bamctl.lengths import format_length

if TYPE_CHECKING:
    from bamctl.evaluation.run import Progress as MeasuringProgress
    from bamctl.models.training.trainer import StepReport

SECONDS_BETWEEN_LINES = 10.0
STEPS_AVERAGED = 20


class TrainingPrinter:
    """Tells of one training. A context manager; the bar is gone when it ends."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._recent: deque[StepReport] = deque(maxlen=STEPS_AVERAGED)
        self._last_line = -math.inf

    def __enter__(self) -> "TrainingPrinter":
        if redraws(self._console):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[figures]}"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
            self._row = self._bar.add_task("starting", total=None, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, report: "StepReport") -> None:
        """Takes what the trainer tells after every step."""
        self._recent.append(report)
        title = f"step {report.step}/{report.steps}"
        if self._bar is not None:
            self._bar.update(
                self._row,
                total=report.steps,
                completed=report.step,
                description=title,
                figures=self._figures(),
            )
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES or report.step == report.steps:
            self._last_line = now
            self.say(f"{title}: {self._figures()}")

    def measured(self, progress: "MeasuringProgress") -> None:
        """Takes what the measuring for the card tells after every sample."""
        if progress.done == progress.samples:
            self.say(f"  {format_length(progress.length)}: {progress.right}/{progress.samples} right")

    def say(self, line: str) -> None:
        """A line that stays."""
        print(line, file=sys.stderr, flush=True)

    def _figures(self) -> str:
        """Means over the last steps, the speed over them, and the time left at that speed."""
        first, last = self._recent[0], self._recent[-1]
        loss = sum(report.loss for report in self._recent) / len(self._recent)
        answers = [r.answer_accuracy for r in self._recent if r.answer_accuracy is not None]
        text = f"loss {loss:.3f}"
        if answers:
            text += f", answers {100 * sum(answers) / len(answers):.0f}% right"
        if last.seconds > first.seconds:
            seconds_a_step = (last.seconds - first.seconds) / (last.step - first.step)
            left = seconds_a_step * (last.steps - last.step)
            speed = (last.tokens - first.tokens) / (last.seconds - first.seconds)
            text += f", {speed:,.0f} tokens/s, {words_for_seconds(left)} left"
        return text
