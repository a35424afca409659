"""Where attention goes while a model answers: regions of a prompt, and their shares."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bamctl.models import needle_attention as module
from bamctl.models.loading import Checkpoint, open_checkpoint
from bamctl.models.needle_attention import REGIONS, needle_attention
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.prompt import Prompt


def make_prompt(length: int, *, spans: tuple[tuple[int, int], ...], answer: tuple[int, ...] = (5,)) -> Prompt:
    return Prompt(
        token_ids=np.zeros(length, dtype=np.int32),
        references=("5",),
        answer_ids=(answer,),
        needle_spans=spans,
        depths=(50.0,) * len(spans),
        shared_prefix=0,
        haystack_repeats=0,
        roundtrip_stable=True,
        tokens_to_generate=3,
    )


def regions(length: int, *spans: tuple[int, int], tokens: int | None = None) -> list[tuple[str, int]]:
    """Runs of tokens of one region, as its name and their number."""
    of_tokens = module._regions(make_prompt(length, spans=spans), tokens or length)
    edges = np.flatnonzero(np.diff(of_tokens)) + 1
    runs = np.split(of_tokens, edges)
    return [(REGIONS[run[0]], len(run)) for run in runs]


def test_regions_of_a_needle_in_the_middle() -> None:
    assert regions(1000, (500, 520)) == [
        ("first", 1),
        ("rest", 435),
        ("around", 64),
        ("needle", 20),
        ("around", 64),
        ("rest", 352),
        ("end", 64),
    ]


def test_what_is_answered_belongs_to_the_end() -> None:
    assert regions(1000, (500, 520), tokens=1004)[-1] == ("end", 68)


def test_a_needle_at_the_start_and_one_at_the_end() -> None:
    assert regions(1000, (0, 20), (900, 950)) == [
        ("needle", 20),
        ("around", 64),
        ("rest", 752),
        ("around", 64),
        ("needle", 50),
        ("end", 50),
    ]
    assert regions(1000, (1, 20))[0] == ("around", 1)
    assert regions(1000, (65, 70))[:2] == [("first", 1), ("around", 64)]


def test_a_prompt_shorter_than_a_neighbourhood() -> None:
    assert regions(30, (10, 20)) == [("end", 10), ("needle", 10), ("end", 10)]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(str(tiny_checkpoint))


def test_shares_are_sums_over_regions_and_means_over_prompts_and_positions(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that are told: the first position looks at the needle, the others at the last token."""
    read = []

    def rows(model: Any, ids_N: Tensor, *, queries: int, chunk_size: int) -> Iterator[Tensor]:
        read.append((len(ids_N), queries, chunk_size))
        for layer in range(2):
            rows_HKN = torch.zeros(3, queries, len(ids_N), dtype=torch.float64)
            rows_HKN[:, 0, 505] = 1
            rows_HKN[:, 1:, -1] = 1
            rows_HKN[layer] = 1 / len(ids_N)
            yield rows_HKN

    monkeypatch.setattr(module, "attention_rows", rows)
    digits = tuple(checkpoint.tokenizer.encode("1234", add_special_tokens=False))
    (space,) = checkpoint.tokenizer.encode(" ", add_special_tokens=False)
    assert len(digits) == 4
    prompts = [make_prompt(1000, spans=((500, 520),), answer=answer) for answer in (digits, (space, *digits))]
    model = checkpoint.load(device="cpu", dtype="float32")
    found = needle_attention(model, checkpoint.tokenizer, prompts, chunk_size=99)
    # The space before the second answer is read, and the position that chooses it is left out.
    assert read == [(1003, 4, 99), (1004, 4, 99)]
    assert found.length == 1000
    assert found.shares_LHR.shape == (2, 3, len(REGIONS))
    expected = {"needle": 0.25, "end": 0.75}
    for layer, head in ((0, 1), (0, 2), (1, 0), (1, 2)):
        assert found.shares_LHR[layer, head] == pytest.approx([expected.get(name, 0) for name in REGIONS])
    for layer in (0, 1):
        assert found.shares_LHR[layer, layer] == pytest.approx(found.tokens_R)
    assert found.tokens_R[0] == pytest.approx((20 / 1003 + 20 / 1004) / 2)
    assert found.tokens_R.sum() == pytest.approx(1)


def test_a_head_that_cannot_tell_tokens_apart_gives_what_the_tokens_have(
    make_checkpoint: Callable[..., Path],
) -> None:
    opened = open_checkpoint(str(make_checkpoint("uniform", position_encoding="uniform")))
    model = opened.load(device="cpu", dtype="float32")
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
    task = build_task(load_spec("passkey"), opened.tokenizer)
    prompts = [
        task.build(length=300, depth=depth, rng=np.random.default_rng(0)) for depth in (0.0, 50.0, 100.0)
    ]
    found = needle_attention(model, opened.tokenizer, prompts, chunk_size=128)
    assert found.shares_LHR.sum(axis=-1) == pytest.approx(np.ones((2, 4)))
    # A position in the middle of the answer does not see the rest of it: less than a hundredth of the tokens.
    assert found.shares_LHR == pytest.approx(np.broadcast_to(found.tokens_R, (2, 4, 5)), abs=0.01)
