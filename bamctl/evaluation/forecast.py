"""What a run will take: the work there is, and how fast work of this kind was done just now."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.backends.base import Backend, Workload
from bamctl.evaluation.plan import PlannedSample
from bamctl.evaluation.run import EvaluationRequest, samples_of
from bamctl.lengths import doubling_lengths
from bamctl.tasks.base import Task
from bamctl.tasks.prompt import Prompt

LONGEST_SAMPLE = 4096
"""Tokens of the prompt on which content scores are measured."""

SHORTEST_REHEARSAL, LONGEST_REHEARSAL = 512, 8192
"""Tokens of the prompts that are timed."""

ENOUGH_SECONDS = 2.0
"""Spent on timing, no other prompt is timed."""

_TELLS_APART = 1.5
"""By this factor must two amounts of work differ to tell overhead from speed."""


class Pace:
    """Seconds a sample: overhead + work / speed, neither below 0, by least squares over what was measured."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, w, s, w², w·s over samples
        self._least, self._most = math.inf, 0.0

    def add(self, flops: float, seconds: float, *, samples: int = 1) -> None:
        """Takes into account that a sample of so much work took so long."""
        self._sums += samples * np.array([1.0, flops, seconds, flops**2, flops * seconds])
        self._least, self._most = min(self._least, flops), max(self._most, flops)

    @property
    def tells_overhead(self) -> bool:
        """Whether different amounts of work were seen; until then all of the time counts as work's."""
        return self._most >= _TELLS_APART * self._least

    def seconds(self, flops: float, *, samples: int = 1) -> float:
        """What samples of so much work together will take; at least one was added."""
        count, work, time, square, product = self._sums.tolist()
        slope, overhead = product / square, 0.0
        if self.tells_overhead:
            steeper = (count * product - work * time) / (count * square - work**2)
            if steeper > 0 and time > steeper * work:
                slope, overhead = steeper, (time - steeper * work) / count
        return samples * overhead + slope * flops


class Foresight:
    """The work of a run, known before it is done where the backend can tell."""

    def __init__(self, backend: Backend, task: Task, request: EvaluationRequest) -> None:
        self._backend = backend
        self._task = task
        self._request = request
        self._running: dict[int, NDArray[np.float64]] = {}

    @functools.cached_property
    def workload(self) -> Workload | None:
        """Found out when it is first asked for, by reading one prompt of at most `LONGEST_SAMPLE` tokens."""
        longest = max(self._request.lengths)
        sample = sample_prompt(self._task, min(longest, LONGEST_SAMPLE))
        return self._backend.workload(sample, longest=longest)

    def flops(self, length: int) -> NDArray[np.float64] | None:
        """Operations of the first 0, 1, 2, … samples of a length to run; None where nobody can tell.

        The deepest needle goes first. A prompt has in common with the one before it what lies in front of the
        shallower needle, its own. Depths that are drawn are taken for equidistant ones.
        """
        if self.workload is None:
            return None
        if length not in self._running:
            self._running[length] = np.cumsum([0.0, *self._of_each(self.workload, length)])
        return self._running[length]

    @functools.cached_property
    def _planned(self) -> dict[int, list[PlannedSample]]:
        return samples_of(self._task.spec, self._request)

    def _of_each(self, workload: Workload, length: int) -> Iterator[float]:
        depths = [self._request.depths.depth(sample.sample) for sample in self._planned[length]]
        samples, size = len(depths), self._request.batch_size or 1
        deepest_first = sorted(
            (100 * (i + 0.5) / samples if depth is None else depth for i, depth in enumerate(depths)),
            reverse=True,
        )
        for start in range(0, samples, size):
            batch = deepest_first[start : start + size]
            # With a batch of as many prompts before it, up to the first needle of any.
            shares = start > 0 and len(batch) == size
            alike = int(length * batch[-1] / 100) if shares else 0
            yield from [workload.flops(length, alike=alike)] * len(batch)


def sample_prompt(task: Task, length: int, *, number: int = 0) -> Prompt:
    """A prompt of a task that no run holds; as many tokens as asked for, or the fewest that it can have."""
    rng = np.random.default_rng([length, number])
    return task.build(length=max(length, task.shortest_length), depth=50, rng=rng)


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """How prompts of a few lengths went."""

    workload: Workload
    pace: Pace
    timed: tuple[int, ...]
    """Lengths in tokens."""
    other_bytes: dict[int, int]
    """Of each of these lengths, the peak memory without keys and values; empty where it is not known."""
    batch_size: int

    def memory(self, length: int) -> int | None:
        """Peak memory at a length, in bytes; None where none was measured.

        That of the shortest timed prompt that is as long, or of the longest, with the keys and values of this
        length.
        """
        if not self.other_bytes:
            return None
        like = min((timed for timed in self.other_bytes if timed >= length), default=max(self.other_bytes))
        return self.other_bytes[like] + self.batch_size * self.workload.cache_bytes(length)


def rehearse(backend: Backend, task: Task, request: EvaluationRequest, workload: Workload) -> Rehearsal:
    """Times prompts that belong to no run, and stores nothing.

    Of doubling lengths up to `LONGEST_REHEARSAL` or the longest asked for; twice each, as long as that takes
    less than `ENOUGH_SECONDS`. The quicker time counts.

    Raises:
        RunFailed: out of memory, or the engine died.
    """
    last = min(max(request.lengths), LONGEST_REHEARSAL)
    lengths = doubling_lengths(min(last, max(SHORTEST_REHEARSAL, task.shortest_length)), last)
    seconds: dict[tuple[int, float], float] = {}
    other_bytes: dict[int, int] = {}
    spent = 0.0
    backend.complete(_prompts(task, lengths[0], request))  # the first call pays for what is set up once
    for length in lengths * 2:
        if spent >= ENOUGH_SECONDS:
            break
        prompts = _prompts(task, length, request)
        completions = backend.complete(prompts)
        took = sum(c.prefill_seconds + c.decode_seconds for c in completions)
        spent += took
        key = length, workload.flops(length, alike=completions[0].reused_tokens or 0)
        seconds[key] = min(took / len(prompts), seconds.get(key, math.inf))
        peak = completions[0].peak_memory_bytes
        if peak is not None:
            other_bytes[length] = peak - len(prompts) * workload.cache_bytes(length)
    pace = Pace()
    for (_, flops), best in seconds.items():
        pace.add(flops, best)
    return Rehearsal(
        workload=workload,
        pace=pace,
        timed=tuple(dict.fromkeys(length for length, _ in seconds)),
        other_bytes=other_bytes,
        batch_size=request.batch_size or 1,
    )


def _prompts(task: Task, length: int, request: EvaluationRequest) -> list[Prompt]:
    return [sample_prompt(task, length, number=number) for number in range(request.batch_size or 1)]
