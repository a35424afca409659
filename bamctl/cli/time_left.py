"""How long a run will go on: fitted to what was measured of it so far."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from bamctl.evaluation.forecast import Pace
from bamctl.evaluation.run import Progress


class TimeLeft:
    """How long the rest of a run will take.

    What is left is counted in floating-point operations, which the backend foresees; the time that one takes,
    and what a sample takes besides, is fitted to the batches that were run. Samples of one amount of work
    cannot tell the two apart, and so say nothing of longer ones. Where the backend foresees nothing, only
    lengths that have begun are told of.

    Args:
        planned: the run's lengths in tokens, and how many samples each has.
        flops: see `bamctl.evaluation.forecast.Foresight.flops`.
    """

    def __init__(
        self, planned: Mapping[int, int], flops: Callable[[int], NDArray[np.float64] | None]
    ) -> None:
        self._flops = flops
        self._left = dict(planned)
        self._seconds: dict[int, float] = {}
        self._ran: dict[int, int] = {}
        self._pace = Pace()
        self._pace_but_first = Pace()
        """The first batch of all also pays for what is set up once."""

    def update(self, progress: Progress) -> None:
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


def words_for_seconds(seconds: float) -> str:
    """``99 s``, ``2 min``, ``5 h``: as much as an estimate can say."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{math.ceil(seconds / 3600)} h"


def words_for_time_left(seconds: float | None) -> str:
    """``99 s left``; None is not known."""
    return "time left unknown" if seconds is None else f"{words_for_seconds(seconds)} left"
