"""How far heads look and what a prefill computes, against a look at every tile and a count of products."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bamctl.attention.reach import content_bound, first_keys
from bamctl.models import BamForCausalLM, modeling
from bamctl.models.cache import PreallocatedCache
from bamctl.models.work import EVERY_TILE, TILE, PrefillWork, content_bounds

LOCAL: dict[str, Any] = {
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "prior_alpha": [[0.5, 3.0, 200.0], [1.0, 40.0, 1.0], [2.0, 5.0, 900.0]],
    "prior_beta": [[1.0, 1.0, 0.8], [-0.5, 0.7, 0.02], [1.0, 0.5, 1.0]],
    "ssmax_initial": 0.2,
}

ONE_PRIOR: dict[str, Any] = {"prior_beta": 1.0, "ssmax_initial": 0.2}


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 50, (700,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def make_work(
    make_model: Callable[..., BamForCausalLM], ids: torch.Tensor
) -> Callable[..., tuple[BamForCausalLM, PrefillWork]]:
    def make(*, longest: int, **fields: Any) -> tuple[BamForCausalLM, PrefillWork]:
        model = make_model(**(LOCAL | fields))
        return model, PrefillWork(model, ids, longest=longest)

    return make


def _first_keys(model: BamForCausalLM, bounds: list[torch.Tensor], layer: int, position: int, queries: int):
    attention = model.model.layers[layer].self_attn
    return first_keys(
        model.model.prior if attention.prior is None else attention.prior,
        content_H=bounds[layer],
        positions_T=torch.tensor([position]),
        queries=queries,
        key_start=0,
        scale_H=None if attention.ssmax is None else attention.ssmax.scale,
        scales_prior=model.config.ssmax_scales_prior,
        dtype=torch.float32,
    )[:, 0].tolist()


@pytest.mark.parametrize("position_encoding", ["ggd", "rotary", "sinusoidal"])
def test_content_scores_are_bounded_by_what_attention_is_given(
    position_encoding: str,
    make_model: Callable[..., BamForCausalLM],
    ids: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(**(LOCAL | {"position_encoding": position_encoding, "hidden_size": 48, "head_dim": 8}))
    seen = []
    original = modeling.attention

    def watched(q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((q.clone(), k.clone()))
        return original(q, k, *args, **kwargs)

    monkeypatch.setattr(modeling, "attention", watched)
    with torch.no_grad():
        model.prefill(ids[None], PreallocatedCache(3), chunk_size=4096)
    assert [q.shape[2] for q, _ in seen] == [700, 700, 1]
    for bound_H, (q, k) in zip(content_bounds(model, ids), seen[:3], strict=True):
        torch.testing.assert_close(bound_H, content_bound(q, k))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        assert (scores.abs().amax(dim=(0, 2, 3)) <= bound_H).all()
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "fields",
    [{}, {"ssmax_scales_prior": False}, {"ssmax": False}, {"position_encoding": "laplace"}],
    ids=["ssmax", "unscaled", "no-ssmax", "laplace"],
)
@pytest.mark.parametrize("length", [1, 511, 5000, 300_001])
def test_a_head_reaches_as_far_as_the_bound_demands(fields, length, make_work, ids) -> None:
    model, work = make_work(longest=300_001, **fields)
    bounds = content_bounds(model, ids)
    heads = work.heads(length)
    assert [(head.layer, head.head) for head in heads] == [(x, y) for x in range(3) for y in range(3)]
    for layer in range(3):
        firsts = _first_keys(model, bounds, layer, length - 1, 1)
        reaches = [head.reach for head in heads if head.layer == layer]
        assert reaches == [length - 1 - first if first else None for first in firsts]
    if length == 300_001 and not fields:
        assert {head.reach is None for head in heads} == {True, False}


@pytest.mark.parametrize("length", [1, 512, 513, 5000, EVERY_TILE * TILE, 200_000])
def test_the_fraction_of_tiles_is_that_of_looking_at_each(length, make_work, ids) -> None:
    model, work = make_work(longest=200_000)
    bounds = content_bounds(model, ids)
    rows = math.ceil(length / TILE)
    for layer in range(3):
        computed = np.zeros(3)
        for row in range(rows) if layer < 2 else [rows - 1]:
            position, queries = (row * TILE, TILE) if layer < 2 else (length - 1, 1)
            computed += [
                row - first // TILE + 1 for first in _first_keys(model, bounds, layer, position, queries)
            ]
        told = [head.computed for head in work.heads(length) if head.layer == layer]
        # Where every tile is looked up they are exactly these; farther out they are interpolated.
        tolerance = 1e-12 if rows <= EVERY_TILE else 1e-3
        assert told == pytest.approx((computed / (rows * (rows + 1) / 2)).tolist(), rel=tolerance)


@pytest.mark.parametrize("start", [0, 512, 1024])
@pytest.mark.parametrize("layers", [1, 3])
def test_operations_are_those_that_run(start, layers, make_model, ids) -> None:
    model = make_model(
        position_encoding="uniform", num_hidden_layers=layers, num_key_value_heads=1, **ONE_PRIOR
    )
    heads, size = model.config.num_attention_heads, model.config.head_dim
    cache = PreallocatedCache(layers)
    prompt = torch.zeros((1, 1536), dtype=torch.long)
    with torch.no_grad():
        if start:
            model.prefill(prompt[:, :start], cache, chunk_size=512)
        with FlopCounterMode(display=False) as counter:
            model.prefill(prompt[:, start:], cache, chunk_size=512)
    products = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    tiles = [TILE * (position + TILE) for position in range(start, 1536, TILE)]
    pairs = heads * ((layers - 1) * sum(tiles) + 1536)
    work = PrefillWork(model, ids, longest=1536)
    assert work.flops(1536, start=start) == products + 4 * size * pairs


def test_a_window_is_counted_as_wide_as_it_is_looked_at(make_model, ids) -> None:
    model = make_model(
        num_attention_heads=1, num_key_value_heads=1, ssmax=False, prior_alpha=3.0, **ONE_PRIOR
    )
    work = PrefillWork(model, ids, longest=8192)
    back = work.heads(8192)[0].reach
    assert back is not None
    assert 16 < back < 256
    without = (
        model.config.hidden_size
        * 2
        * (
            2 * model.config.num_key_value_heads * model.config.head_dim
            + 2 * model.config.head_dim
            + 3 * model.config.intermediate_size
            + 2 * model.config.num_key_value_heads * model.config.head_dim
        )
    )
    a_token = (work.flops(8192) - work.flops(4096)) / 4096 - without
    window = a_token / (4 * model.config.head_dim)
    assert back <= window <= 2 * back + 8  # the window before a block, and the block


def test_longer_prompts_are_more_work_and_what_is_read_already_is_none(make_work) -> None:
    _, work = make_work(longest=2**22)
    lengths = [1, 100, 512, 513, 4096, 100_000, 131_072, 131_073, 2**20, 2**22]
    flops = [work.flops(length) for length in lengths]
    assert flops == sorted(set(flops))
    starts = [work.flops(2**20, start=start) for start in range(0, 2**20, 2**17)]
    assert starts == sorted(set(starts), reverse=True)
    assert starts[0] == work.flops(2**20)


def test_any_length_there_is_can_be_asked_about(make_work) -> None:
    _, work = make_work(longest=2**40)
    assert all(0 < head.computed <= 1 for head in work.heads(2**40))
    assert math.isfinite(work.flops(2**40))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1.0, 0.5, 0.0, 0.2)),
        ({"ssmax": False}, (1.0, 0.5, 0.0, None)),
        ({"position_encoding": "laplace", "num_attention_heads": 2}, (1.0, 16.0, 0.0, 0.2)),
        ({"position_encoding": "uniform"}, (None, None, None, 0.2)),
        ({"shared_prior": True, "prior_mu": -3.0}, (1.0, 0.5, -3.0, 0.2)),
    ],
)
def test_the_prior_is_told_with_each_head(fields, expected, make_model, ids) -> None:
    model = make_model(**({"prior_alpha": 0.5} | ONE_PRIOR | fields))
    for head in PrefillWork(model, ids, longest=512).heads(512)[:: model.config.num_attention_heads]:
        told = (head.beta, head.alpha, head.mu, head.ssmax)
        assert told == tuple(x if x is None else pytest.approx(x) for x in expected)
