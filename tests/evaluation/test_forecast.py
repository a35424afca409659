"""Work counted before it is done, and the pace of what was."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.backends.base import Completion
from bamctl.evaluation import forecast
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.forecast import Foresight, Pace, Rehearsal, rehearse, sample_prompt
from bamctl.evaluation.run import EvaluationRequest, evaluate


class Linear:
    """One operation for every token that is read."""

    sample_tokens = 100
    memory_bytes = None

    def heads(self, length):
        return []

    def flops(self, length, *, alike=0):
        return float(length - alike)

    def cache_bytes(self, length):
        return 10 * length


@dataclass
class Reader:
    """Takes a second for 1000 tokens, and half a second for every prompt; the first call 100 seconds more."""

    known: bool = True
    peak: int | None = 5000
    reused: int = 0
    calls: list[list[int]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def workload(self, sample, *, longest):
        self.samples.append(len(sample.token_ids))
        self.longest = longest
        return Linear() if self.known else None

    def complete(self, prompts):
        self.calls.append([len(prompt.token_ids) for prompt in prompts])
        first = 100.0 if len(self.calls) == 1 else 0.0
        return [
            Completion(
                token_ids=(),
                text="",
                finish_reason="stop",
                answer_logprob=None,
                reused_tokens=self.reused,
                prefill_seconds=(len(prompt.token_ids) - self.reused) / 1000 + first / len(prompts),
                decode_seconds=0.5,
                peak_memory_bytes=None
                if self.peak is None
                else self.peak + len(prompts) * 10 * len(prompt.token_ids),
            )
            for prompt in prompts
        ]


def asked(*lengths, depths="0,50,100", samples=3, **fields):
    return EvaluationRequest(lengths=lengths, samples=samples, depths=parse_depths(depths, samples), **fields)


def work_of_each(request, task, length):
    return np.diff(Foresight(Reader(), task, request).flops(length)).tolist()


def test_a_prompt_begins_like_the_one_before_up_to_its_own_needle(task):
    assert work_of_each(asked(1000), task, 1000) == [1000, 500, 1000]
    # In the order in which they run, whatever the order in which depths were named.
    assert work_of_each(asked(1000, depths="50,90,20"), task, 1000) == [1000, 500, 800]
    assert work_of_each(asked(1000, depths="50%"), task, 1000) == [1000, 500, 500]


def test_depths_to_be_drawn_are_taken_for_equidistant_ones(task):
    assert work_of_each(asked(1000, depths="random", samples=4), task, 1000) == [1000, 375, 625, 875]


def test_prompts_that_run_together_share_up_to_the_first_needle_of_any(task):
    request = asked(1000, depths="0,20,40,60,80", samples=5, batch_size=2)
    # The last one is alone, and a cache for two is none for one.
    assert work_of_each(request, task, 1000) == [1000, 1000, 800, 800, 1000]


def test_the_order_is_that_of_the_run(task, request_for, backend):
    request = request_for(lengths=(512,), samples=7, depths="equidistant", batch_size=2)
    evaluate(backend, task, request)
    shared = []
    for before, batch in zip([None, *backend.batches], backend.batches, strict=False):
        same = before is not None and len(before) == len(batch)
        shared += [min(p.depths[0] for p in batch) if same else 0.0] * len(batch)
    told = work_of_each(request, task, 512)
    assert told == [512 - int(512 * depth / 100) for depth in shared]


def test_the_workload_is_looked_into_once_and_when_asked(task):
    reader = Reader()
    foresight = Foresight(reader, task, asked(128, 256, 100_000))
    assert reader.samples == []
    for length in (128, 256, 128):
        foresight.flops(length)
    assert (reader.samples, reader.longest) == ([forecast.LONGEST_SAMPLE], 100_000)


def test_a_sample_is_no_longer_than_what_is_asked_for(task):
    reader = Reader()
    Foresight(reader, task, asked(128, 256)).flops(128)
    assert reader.samples == [256]


def test_what_a_backend_cannot_tell_stays_unknown(task):
    assert Foresight(Reader(known=False), task, asked(128)).flops(128) is None


def test_a_sample_prompt_is_the_same_whenever_and_as_long_as_it_can_be(task):
    first, second, other = (sample_prompt(task, 300, number=number) for number in (0, 0, 1))
    assert first.digest == second.digest != other.digest
    assert len(first.token_ids) == 300
    assert len(sample_prompt(task, 1).token_ids) == task.shortest_length


@settings(max_examples=50, deadline=None)
@given(
    overhead=st.floats(0, 10),
    slope=st.floats(1e-3, 10),
    works=st.lists(st.floats(1, 1e6), min_size=2, max_size=6),
    scale=st.sampled_from([1.0, 1e9, 1e15]),
)
def test_overhead_and_speed_are_found_again(overhead, slope, works, scale):
    pace = Pace()
    for work in works:
        pace.add(work * scale, overhead + slope * work)
    if max(works) >= 1.5 * min(works) * (1 + 1e-9):
        assert pace.tells_overhead
        assert pace.seconds(3e6 * scale) == pytest.approx(overhead + slope * 3e6, rel=1e-3)
        assert pace.seconds(6e6 * scale, samples=2) == pytest.approx(2 * overhead + slope * 6e6, rel=1e-3)


def test_one_amount_of_work_is_all_speed():
    pace = Pace()
    pace.add(100.0, 2.0)
    pace.add(149.0, 2.98)
    assert not pace.tells_overhead
    assert pace.seconds(200.0) == pytest.approx(4.0)
    pace.add(150.0, 3.0)
    assert pace.tells_overhead


@pytest.mark.parametrize("seconds", [(5.0, 1.0), (1.0, 3.0)])
def test_neither_speed_nor_overhead_is_ever_below_nothing(seconds):
    pace = Pace()
    for work, took in zip((1.0, 2.0), seconds, strict=True):
        pace.add(work, took)
    assert pace.seconds(0.0) == 0
    assert pace.seconds(10.0) == pytest.approx(10 * (seconds[0] + 2 * seconds[1]) / 5)


def test_samples_count_as_often_as_they_ran():
    left, right = Pace(), Pace()
    left.add(1.0, 1.0)
    left.add(2.0, 4.0, samples=3)
    right.add(1.0, 1.0)
    for _ in range(3):
        right.add(2.0, 4.0)
    assert left.seconds(7.0) == right.seconds(7.0)


def test_a_rehearsal_is_short_and_its_first_call_counts_for_nothing(task):
    reader = Reader()
    told = rehearse(reader, task, asked(128, 100_000), Linear())
    assert reader.calls == [[512], [512], [1024]]  # the last two took 1 s and 1.5 s
    assert told.timed == (512, 1024)
    assert told.pace.seconds(100_000.0) == pytest.approx(100.5)


def test_a_rehearsal_times_doubling_lengths_twice(task, monkeypatch):
    monkeypatch.setattr(forecast, "ENOUGH_SECONDS", 1000.0)
    reader = Reader()
    told = rehearse(reader, task, asked(128, 100_000), Linear())
    assert reader.calls[1:] == [[length] for length in (512, 1024, 2048, 4096, 8192)] * 2
    assert told.pace.seconds(100_000.0) == pytest.approx(100.5)
    assert told.pace.seconds(0.0) == pytest.approx(0.5)


def test_what_was_reused_is_not_counted_as_read(task, monkeypatch):
    monkeypatch.setattr(forecast, "ENOUGH_SECONDS", 1000.0)
    reader = Reader(reused=256)
    told = rehearse(reader, task, asked(100_000), Linear())
    assert told.pace.seconds(100_000.0) == pytest.approx(100.5)


def test_the_quicker_time_counts(task, monkeypatch):
    monkeypatch.setattr(forecast, "ENOUGH_SECONDS", 1000.0)
    reader = Reader()
    complete, slow = reader.complete, iter([0.0, 7.0, 0.0])
    monkeypatch.setattr(
        reader,
        "complete",
        lambda prompts: [replace(c, decode_seconds=0.5 + next(slow)) for c in complete(prompts)],
    )
    assert rehearse(reader, task, asked(512), Linear()).pace.seconds(512.0) == pytest.approx(1.012)


@pytest.mark.parametrize(("longest", "timed"), [(512, (512,)), (600, (512, 600)), (200, (200,))])
def test_no_prompt_of_a_rehearsal_is_longer_than_asked_for(task, longest, timed):
    reader = Reader()
    assert rehearse(reader, task, asked(longest), Linear()).timed == timed


def test_prompts_of_a_rehearsal_run_together_as_those_of_the_run(task, monkeypatch):
    monkeypatch.setattr(forecast, "ENOUGH_SECONDS", 1000.0)
    reader = Reader()
    told = rehearse(reader, task, asked(1024, batch_size=3), Linear())
    assert reader.calls[1:] == [[512] * 3, [1024] * 3] * 2
    assert told.pace.seconds(1024.0) == pytest.approx(1.524)
    assert told.memory(2000) == 5000 + 3 * 10 * 2000


def test_memory_is_that_of_the_shortest_timed_prompt_as_long_with_its_own_cache():
    told = Rehearsal(
        workload=Linear(), pace=Pace(), timed=(512, 1024), other_bytes={512: 7, 1024: 9}, batch_size=1
    )
    assert [told.memory(length) for length in (100, 512, 513, 1024, 5000)] == [
        1007,
        5127,
        5139,
        10249,
        50009,
    ]


def test_memory_is_unknown_where_no_peak_is(task):
    assert rehearse(Reader(peak=None), task, asked(512), Linear()).memory(512) is None
