"""The same question has the same prompt and the same answer, however a run comes to ask it (fp32)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from bamctl.backends.base import Backend
from bamctl.backends.opening import open_model
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, Progress, evaluate
from bamctl.results.shard import Shard
from bamctl.results.store import load_samples
from bamctl.tasks.base import Task
from bamctl.tasks.catalog import build_task, load_spec

LENGTHS = (128, 400)
SAMPLES = 5
RULER = pytest.mark.parametrize("asked", ["passkey", "niah_multivalue"], indirect=True, scope="module")
DEPTHS = "0,25,50,75,100"
SAME = ["row_id", "length", "sample", "prompt_digest", "prediction", "exact", "recall", "completion_tokens"]


@dataclass(frozen=True)
class Asked:
    """A model that is loaded, with and without shared prefixes, and what it is asked."""

    backends: dict[bool, Backend]
    task: Task
    lengths: tuple[int, ...]

    def request(self, out: Path, **fields: Any) -> EvaluationRequest:
        values = {"lengths": self.lengths, "samples": SAMPLES, "batch_size": 1, "out": out} | fields
        return EvaluationRequest(depths=parse_depths(DEPTHS, values["samples"]), **values)

    def rows(self, out: Path, *, share_prefixes: bool = True, **fields: Any) -> pd.DataFrame:
        """Runs into the folder, and what lies in it then."""
        evaluate(self.backends[share_prefixes], self.task, self.request(out, **fields))
        return stored(out)


def stored(out: Path) -> pd.DataFrame:
    return load_samples([out]).sort_values(["length", "sample"], ignore_index=True)


def assert_same(left: pd.DataFrame, right: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(left[SAME], right[SAME])
    assert left["answer_logprob"].tolist() == pytest.approx(right["answer_logprob"].tolist(), abs=1e-3)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest, tiny_checkpoint: Path, one_thread: None) -> Iterator[Asked]:
    opened = open_model(str(tiny_checkpoint))
    backends = {
        share: opened.start(device="cpu", dtype="float32", share_prefixes=share, longest=1024)
        for share in (True, False)
    }
    spec, lengths = load_spec("passkey"), LENGTHS
    if getattr(request, "param", "passkey") != "passkey":
        # Not of a text that has to be installed, and as short as it can be.
        spec, lengths = load_spec(request.param, type_haystack="noise", tokens_to_generate=8), (560,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bamctl.backends.native.PREFILL_CHUNK", 64)  # prompts as short as these share some then
        yield Asked(backends, build_task(spec, opened.tokenizer), lengths)


@pytest.fixture(scope="module")
def expected(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    rows = asked.rows(tmp_path_factory.mktemp("expected"))
    assert len(rows) == len(asked.lengths) * SAMPLES
    assert rows["prediction"].nunique() > 3  # answers depend on the prompt, so that they can differ
    assert (rows["reused_tokens"] > 0).sum() > 2
    return rows


@RULER
@pytest.mark.parametrize(("batch_size", "share_prefixes"), [(3, True), (7, True), (1, False), (7, False)])
def test_batches_and_shared_prefixes(asked, expected, tmp_path, batch_size, share_prefixes):
    assert_same(asked.rows(tmp_path, share_prefixes=share_prefixes, batch_size=batch_size), expected)


def test_one_thread_and_two(asked, tmp_path, one_thread):
    long = {"lengths": (1500,), "samples": 2, "batch_size": 2}  # so that there is work for two
    expected = asked.rows(tmp_path / "one", **long)
    torch.set_num_threads(2)
    try:
        rows = asked.rows(tmp_path / "two", **long)
    finally:
        torch.set_num_threads(1)
    assert_same(rows, expected)


def test_the_order_of_lengths_and_runs_of_each_length_alone(asked, expected, tmp_path):
    assert_same(asked.rows(tmp_path / "permuted", lengths=LENGTHS[::-1]), expected)
    for length in LENGTHS[::-1]:
        rows = asked.rows(tmp_path / "alone", lengths=(length,))
    assert_same(rows, expected)


def test_other_lengths_and_more_samples_than_before(asked, expected, tmp_path):
    asked.rows(tmp_path, samples=3, lengths=(LENGTHS[0], 300), batch_size=2)
    rows = asked.rows(tmp_path, samples=SAMPLES + 2, batch_size=4)
    rows = rows[(rows["length"] != 300) & (rows["sample"] < SAMPLES)].reset_index(drop=True)
    assert_same(rows, expected)


class _Stop(Exception):
    pass


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_broken_off_again_and_again(asked, expected, tmp_path, seed):
    chance = random.Random(seed)
    stops = 0
    while stops < 6:
        left = chance.randint(1, 4)

        def stop(progress: Progress) -> None:
            nonlocal left
            left -= progress.ran
            if left < 0:
                raise _Stop

        batch_size, share = chance.choice([1, 2, 3]), chance.choice([True, False])
        try:
            evaluate(
                asked.backends[share],
                asked.task,
                asked.request(tmp_path, batch_size=batch_size),
                on_progress=stop,
            )
            break
        except _Stop:
            stops += 1
    assert stops > 1
    assert_same(asked.rows(tmp_path), expected)


def test_shards_in_any_order(asked, expected, tmp_path):
    for k in (3, 1, 2):
        rows = asked.rows(tmp_path, shard=Shard(k=k, n=3), batch_size=2)
    assert_same(rows, expected)


def test_one_sample_alone(asked, expected, tmp_path):
    for place in (0, 9):
        row = expected.iloc[[place]].reset_index(drop=True)
        alone = asked.rows(tmp_path / str(place), only=frozenset(row["row_id"]))
        assert_same(alone, row)
