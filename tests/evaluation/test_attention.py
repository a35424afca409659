"""Attention over the samples that a run would have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bamctl.backends.memory import Memory
from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation import attention as module
from bamctl.evaluation.attention import measure_attention
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples
from bamctl.models.loading import open_checkpoint
from bamctl.models.needle_attention import NeedleAttention
from bamctl.tasks.catalog import build_task, load_spec


@pytest.fixture(scope="module")
def opened(tiny_checkpoint: Path) -> tuple[Any, Any]:
    checkpoint = open_checkpoint(str(tiny_checkpoint))
    return checkpoint.load(device="cpu", dtype="float32"), build_task(
        load_spec("passkey"), checkpoint.tokenizer
    )


def measure(opened: tuple[Any, Any], **changes: Any) -> list[NeedleAttention]:
    values = {"lengths": (256, 150), "samples": 2, "depths": parse_depths("0,100", 2), "seed": 3} | changes
    return list(measure_attention(*opened, **values))


def test_it_reads_the_samples_of_the_plan(opened: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, task = opened
    seen = []

    def note(_: Any, tokenizer: Any, prompts: Any, *, chunk_size: int) -> int:
        assert tokenizer is task.tokenizer.tokenizer
        assert chunk_size == module.LARGEST_CHUNK
        seen.append([prompt.digest for prompt in prompts])
        return len(prompts[0].token_ids)

    monkeypatch.setattr(module, "needle_attention", note)
    assert measure(opened) == [150, 256]
    plan = plan_samples(task.spec, lengths=(150, 256), samples=2, depths=parse_depths("0,100", 2), seed=3)
    assert seen == [
        [task.build(length=s.length, depth=s.depth, rng=s.rng()).digest for s in of_length]
        for of_length in plan.values()
    ]


def test_shares_of_every_head_at_every_length(opened: tuple[Any, Any]) -> None:
    found = measure(opened)
    assert [of_length.length for of_length in found] == [150, 256]
    for of_length in found:
        assert of_length.shares_LHR.shape == (2, 4, 5)
        assert of_length.shares_LHR.sum(axis=-1) == pytest.approx(np.ones((2, 4)))
    assert found[0].shares_LHR.std() > 0.01


def test_a_length_that_is_too_short_is_refused(opened: tuple[Any, Any]) -> None:
    with pytest.raises(BadInput, match="too short for passkey"):
        measure(opened, lengths=(20,))


def test_a_length_beyond_all_memory_is_refused_before_anything_is_read(opened: tuple[Any, Any]) -> None:
    with pytest.raises(RunFailed, match=r"keys and values of 1048576M tokens take .* GB; lower --lengths"):
        measure(opened, lengths=(256, 2**40))


def test_memory_that_ends_on_the_way_is_told(
    opened: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(module, "needle_attention", fail)
    with pytest.raises(RunFailed, match="out of memory on cpu at 150 tokens; lower --lengths"):
        measure(opened)


def test_scarce_memory_makes_chunks_small(opened: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = []

    def note(*_: Any, chunk_size: int) -> None:
        chunks.append(chunk_size)

    monkeypatch.setattr(module, "needle_attention", note)
    monkeypatch.setattr(module, "memory_of", lambda device: Memory(total=10**9, available=2 * 10**6))
    measure(opened)
    assert chunks[0] < module.LARGEST_CHUNK
