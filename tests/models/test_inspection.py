"""Heads as they are, and rows of attention as the definition has them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import reference
from bamctl.models import BamForCausalLM
from bamctl.models.inspection import attention_rows, inspect_heads, learned_prior_parameters

MODELS: dict[str, dict[str, Any]] = {
    "ggd, SSMax": {},
    "ggd": {"ssmax": False},
    "ggd, SSMax on the content alone": {"ssmax_scales_prior": False},
    "ggd, one prior for all layers": {"shared_prior": True, "prior_beta": [1.0, 0.5, -0.5, 0.3]},
    "ggd with a location": {"learned_location": True, "prior_mu": [-3.0, 0.4, -7.7, 0.0]},
    "laplace": {"position_encoding": "laplace", "ssmax": False},
    "laplace, SSMax on the content alone": {"position_encoding": "laplace", "ssmax_scales_prior": False},
    "laplace, SSMax": {"position_encoding": "laplace"},
    "uniform": {"position_encoding": "uniform", "ssmax": False},
    "uniform, SSMax": {"position_encoding": "uniform"},
    "rotary": {"position_encoding": "rotary", "ssmax": False},
    "rotary, SSMax": {"position_encoding": "rotary"},
    "sinusoidal": {"position_encoding": "sinusoidal", "ssmax": False},
    "sinusoidal, SSMax": {"position_encoding": "sinusoidal"},
}


@pytest.fixture
def probabilities(monkeypatch: pytest.MonkeyPatch) -> Callable[[BamForCausalLM, Tensor], list[Tensor]]:
    """Attention ``[H, N, N]`` of each layer, by the definition: the values are the unit vectors."""

    def attend(model: BamForCausalLM, ids_N: Tensor) -> list[Tensor]:
        seen = []
        real = reference.attention

        def spy(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
            unit = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
            seen.append(real(q, k, unit, **arguments)[0])
            return real(q, k, v, **arguments)

        monkeypatch.setattr("bamctl.models.modeling.attention", spy)
        with torch.no_grad():
            model(ids_N[None], use_cache=False)
        monkeypatch.undo()
        return seen

    return attend


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_rows_are_those_of_the_definition(
    fields: dict[str, Any],
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
    probabilities: Callable[[BamForCausalLM, Tensor], list[Tensor]],
) -> None:
    model, ids_N = make_model(**fields).double(), tokens[0]
    expected = probabilities(model, ids_N)
    for queries, chunk_size in ((1, 7), (5, 64), (len(ids_N), 7)):
        rows = list(attention_rows(model, ids_N, queries=queries, chunk_size=chunk_size))
        assert len(rows) == len(expected) == 2
        for rows_HKN, expected_HNN in zip(rows, expected, strict=True):
            assert rows_HKN.dtype == torch.float64
            assert rows_HKN.shape == (4, queries, len(ids_N))
            torch.testing.assert_close(rows_HKN, expected_HNN[:, -queries:], rtol=0, atol=1e-12)
            torch.testing.assert_close(rows_HKN.sum(dim=-1), torch.ones(4, queries).double())
    assert expected[1].std() > 0.01  # so that agreement says something


def test_rows_of_a_model_in_bfloat16_are_float64(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    (first, _) = attention_rows(make_model().bfloat16(), tokens[0], queries=2, chunk_size=16)
    assert first.dtype == torch.float64
    torch.testing.assert_close(first.sum(dim=-1), torch.ones(4, 2).double())


def test_no_hook_is_left_behind(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    model = make_model()
    list(attention_rows(model, tokens[0], queries=1, chunk_size=16))
    assert not any(module._forward_hooks for module in model.modules())


def test_heads_are_in_order_with_their_own_values(make_model: Callable[..., BamForCausalLM]) -> None:
    model = make_model(prior_alpha=[1.0, 2.0, 3.0, 4.0], prior_mu=[0.0, -2.0, 0.0, 0.0])
    heads = inspect_heads(model)
    assert [(head.layer, head.head) for head in heads] == [(n, h) for n in (0, 1) for h in range(4)]
    assert [round(head.prior.beta, 6) for head in heads] == [1.0, 1.2, 0.5, -0.5, 0.2, -1.5, 0.4, 1.0]
    assert [head.prior.alpha for head in heads] == pytest.approx([1, 2, 3, 4] * 2, rel=1e-5)
    assert [head.prior.mu for head in heads] == [0, -2, 0, 0] * 2
    assert [head.ssmax for head in heads] == pytest.approx([0.3, 0.4, -0.1, 0.5] * 2)
    assert [head.kind(512) for head in heads[:4]] == [
        "Laplace-like",
        "Laplace-like",
        "turned round",
        "far-looking",
    ]


def test_the_factor_is_ssmax_where_it_multiplies_the_prior(
    make_model: Callable[..., BamForCausalLM],
) -> None:
    head = inspect_heads(make_model())[1]
    assert head.factor(512) == pytest.approx(0.4 * math.log(512))
    assert head.factor(1) == 0
    assert inspect_heads(make_model(ssmax_scales_prior=False))[1].factor(512) == 1
    assert inspect_heads(make_model(ssmax=False))[1].factor(512) == 1


def test_the_mass_is_the_prior_that_attention_has(
    make_model: Callable[..., BamForCausalLM],
    probabilities: Callable[[BamForCausalLM, Tensor], list[Tensor]],
    tokens: Tensor,
) -> None:
    """Without content the last row of attention is the prior."""
    for fields in MODELS.values():
        model = make_model(**fields).double()
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.data.zero_()
        rows = probabilities(model, tokens[0])
        for head in inspect_heads(model):
            back = rows[head.layer][head.head, -1].flip(0).cumsum(0)
            mass = head.mass(len(tokens[0]))
            assert [mass.within(d) for d in range(33)] == pytest.approx(back.tolist(), abs=1e-12)
            assert mass.reach(0.9) == int((back < 0.9 - 1e-12).sum())


@pytest.mark.parametrize(
    ("fields", "learned"),
    [
        ({}, 16),
        ({"learned_location": True}, 24),
        ({"shared_prior": True, "prior_beta": 1.0}, 8),
        ({"position_encoding": "laplace"}, 0),
        ({"position_encoding": "rotary"}, 0),
    ],
)
def test_two_parameters_a_head_and_layer(
    fields: dict[str, Any], learned: int, make_model: Callable[..., BamForCausalLM]
) -> None:
    assert learned_prior_parameters(make_model(**fields)) == learned
