"""What a run does now and how right it is at each length so far, as a table that redraws itself."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bamctl.cli.time_left import words_for_seconds, words_for_time_left
from bamctl.evaluation.run import Progress
from bamctl.lengths import format_length
from bamctl.report.terminal import score_style

_REDRAWN_A_SECOND = 2.0
_BAR = 20  # columns
_BESIDE_LENGTHS = 4  # lines: what runs, the header, the bar, and one that stays free below


def redraws(console: Console, *, beside_stdout: bool = False) -> bool:
    """Whether the console can show something that redraws itself: a terminal that a person looks at.

    FORCE_COLOR asks for colours, not for movements of a cursor in a file; and what a CI system gives a
    program for a terminal ends in a log.

    Args:
        console: where it would be shown.
        beside_stdout: whether lines go to stdout meanwhile. They would come in between on the same terminal,
            and so would those of a program behind a pipe.
    """
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if in_ci or not console.file.isatty() or not console.is_interactive:
        return False
    return not beside_stdout or not (
        sys.stdout.isatty() or stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    )


class LiveTable:
    """One run as it goes: a row a length, the one in work marked, and the time left.

    It takes the height that there is; of more lengths than fit, those that lead up to the one in work. But
    for what runs, nothing is wider than 60 columns: a terminal that is made narrower breaks no line of it.

    Args:
        title: what runs.
        planned: the run's lengths in tokens, and how many samples each has.
        clock: gives the time in seconds.
    """

    def __init__(
        self, title: str, planned: Mapping[int, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._planned = planned
        self._clock = clock
        # Each has every length from the start: the thread that redraws may be in the middle of them.
        self._told: dict[int, Progress | None] = dict.fromkeys(planned)
        self._rates: dict[int, float | None] = dict.fromkeys(planned)
        self._in_work = min(planned)
        self._has_depths = False  # as far as is known: tasks without needles have none
        self._since = clock()
        self._seconds_left: float | None = None
        self._live: Live | None = None

    def show(self, console: Console) -> None:
        """Begins to redraw it at the end of the console, below whatever is printed meanwhile.

        What is written to stderr goes above it; stdout is left alone.
        """
        self._live = Live(
            self,
            console=console,
            refresh_per_second=_REDRAWN_A_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def remove(self) -> None:
        """Takes it away, and gives the terminal back its cursor."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, progress: Progress, *, rate: float | None, seconds_left: float | None) -> None:
        """Takes what `evaluate` tells, the speed at its length in tokens a second, and the time left."""
        self._told[progress.length] = progress
        self._rates[progress.length] = rate
        self._in_work = progress.length
        self._has_depths = self._has_depths or any(row.depth for row in progress.rows)
        self._since = self._clock()
        self._seconds_left = seconds_left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        in_work = self._told[self._in_work]
        right = "right" if in_work is None or in_work.metric == "exact" else "recall"
        for name in ("length", "done", right, "tokens/s"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column()
        for length in self._shown(options.size.height - _BESIDE_LENGTHS):
            table.add_row(*self._row(length), style="" if self._told[length] else "dim")
        yield table
        yield self._bar(options.max_width)

    def _shown(self, room: int) -> tuple[int, ...]:
        """The lengths for which there is room: all, or those up to the one behind the one in work."""
        lengths, room = tuple(self._planned), max(room, 1)
        if len(lengths) <= room:
            return lengths
        last = min(lengths.index(self._in_work) + min(room, 2), len(lengths))
        return lengths[max(0, last - room) : max(last, room)]

    def _row(self, length: int) -> Iterator[Text]:
        progress = self._told[length]
        yield Text(format_length(length), style="bold" if length == self._in_work else "")
        if progress is None:
            yield Text(f"0/{self._planned[length]}")
            return
        yield Text(f"{progress.done}/{progress.samples}")
        if progress.done:
            score = progress.score_sum / progress.done
            yield Text(f" {percent(score)}".rjust(5), style=score_style(score))
        else:
            yield Text("-")
        rate = self._rates[length]
        yield Text("-" if rate is None else f"{rate:,.0f}")
        if progress.skipped:
            yield Text("skipped")
        elif progress.depth is not None and length == self._in_work:
            where = f"depth {progress.depth:.0f}%, " if self._has_depths else ""
            yield Text(where + words_for_seconds(self._clock() - self._since))

    def _bar(self, width: int) -> Table:
        """How much of the run is done, and how long the rest will take."""
        total = sum(self._planned.values())
        told = [progress for progress in self._told.values() if progress is not None]
        done = sum(progress.samples if progress.skipped else progress.done for progress in told)
        left = self._seconds_left
        if left is not None:
            left = max(left - (self._clock() - self._since), 0.0)
        text = f"{done}/{total} samples, {words_for_time_left(left)}"
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(
            ProgressBar(total=total, completed=done, width=min(_BAR, max(1, width - len(text) - 1))),
            Text(text, no_wrap=True),
        )
        return line


def percent(share: float) -> str:
    """``82%``; 0 and 100 are kept for what is exactly that."""
    return f"{100 * share:.0f}%" if share in (0, 1) else f"{min(max(round(100 * share), 1), 99)}%"
