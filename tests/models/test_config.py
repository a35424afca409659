"""What describes a model, and what does not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig

from bamctl.models import BamConfig


def test_defaults_are_the_papers() -> None:
    config = BamConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (768, 12, 16)
    assert config.head_dim == 48
    assert config.num_key_value_heads == 16
    assert config.position_encoding == "ggd"
    assert config.ssmax
    assert config.ssmax_scales_prior
    assert not config.learned_location


COUNTS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
]


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2**20 + 1, 2**31, 10**30, 1.5, 8.0, "8", True, [8], {}, math.nan])
def test_counts(field: str, value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be a whole number from 1 to 1048576, not "):
        make_config(**{field: value})


@pytest.mark.parametrize("field", COUNTS[:5])
def test_counts_without_a_default_value(field: str, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be a whole number"):
        make_config(**{field: None})


@pytest.mark.parametrize("value", [0, -512, 512.0, "512", True, 2**40 + 1])
def test_train_length(value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=r"^train_length must be a whole number from 1 to 1099511627776"):
        make_config(train_length=value)
    assert make_config(train_length=2**40).train_length == 2**40
    assert make_config(train_length=None).train_length is None


@pytest.mark.parametrize(
    "field",
    ["ssmax", "ssmax_scales_prior", "shared_prior", "learned_location", "use_cache", "tie_word_embeddings"],
)
@pytest.mark.parametrize("value", ["false", 0, 1, None, [True]])
def test_switches(field: str, value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be true or false, not "):
        make_config(**{field: value})
    for switch in (True, False):
        assert getattr(make_config(**{field: switch}), field) is switch


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta", "initializer_range"])
@pytest.mark.parametrize("value", [0, -1e-5, math.inf, math.nan, "1e-5", None, [1.0]])
def test_numbers_above_0(field: str, value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be a number above 0, not "):
        make_config(**{field: value})


@pytest.mark.parametrize("value", ["rope", "GGD", "", None, 1, ["ggd"]])
def test_position_encoding(value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=r"is none of ggd, laplace, uniform, rotary, sinusoidal$"):
        make_config(position_encoding=value)


@pytest.mark.parametrize("field", ["prior_alpha", "prior_beta", "prior_mu", "ssmax_initial"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "must hold finite numbers"),
        ([1.0, 1.0, math.inf, 1.0], "must hold finite numbers"),
        ("1", "must hold finite numbers"),
        ([1.0, None, 1.0, 1.0], "must hold finite numbers"),
        ([[1.0] * 4, [1.0, 1.0, 1.0, "x"]], "must hold finite numbers"),
        ([], "has 0 values for 4 heads"),
        ([1.0] * 3, "has 3 values for 4 heads"),
        ([[1.0] * 4, [1.0] * 5], "has 5 values for 4 heads"),
        ([[1.0] * 4], "has 1 layers of values for 2 layers"),
        ([[1.0] * 4] * 3, "has 3 layers of values for 2 layers"),
    ],
)
def test_starting_values(field: str, value: Any, message: str, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} {message}"):
        make_config(**{field: value})


@pytest.mark.parametrize("value", [0.0, -1.0, [1.0, 1.0, 0.0, 1.0], [[1.0] * 4, [1.0, -2.0, 1.0, 1.0]]])
def test_alpha_is_above_0(value: Any, make_config: Callable[..., BamConfig]) -> None:
    with pytest.raises(ValueError, match=r"^prior_alpha must be above 0, not"):
        make_config(prior_alpha=value)


def test_starting_values_of_a_layer(make_config: Callable[..., BamConfig]) -> None:
    config = make_config(
        prior_alpha=2, prior_beta=[1.0, 2.0, 3.0, 4.0], prior_mu=[[0.0] * 4, [-1.0, -2.0, -3.0, -4.0]]
    )
    assert config.initial_values("prior_alpha", 1) == [2.0] * 4
    assert config.initial_values("prior_beta", 1) == [1.0, 2.0, 3.0, 4.0]
    assert config.initial_values("prior_mu", 0) == [0.0] * 4
    assert config.initial_values("prior_mu", 1) == [-1.0, -2.0, -3.0, -4.0]
    assert make_config(prior_alpha=None).initial_values("prior_alpha", 0) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 25}, "hidden_size 25 is no multiple of num_attention_heads 4; give head_dim"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 8}, "no multiple of num_key_value_heads 8"),
        ({"position_encoding": "rotary", "head_dim": 7}, "head_dim must be even, not 7"),
        (
            {"position_encoding": "sinusoidal", "hidden_size": 25, "head_dim": 6},
            "sinusoidal needs an even hidden_size, not 25",
        ),
    ],
)
def test_fields_that_do_not_fit_together(
    fields: dict[str, Any], message: str, make_config: Callable[..., BamConfig]
) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**fields)


def test_a_head_size_of_its_own(make_config: Callable[..., BamConfig]) -> None:
    assert make_config(hidden_size=25, head_dim=7).head_dim == 7
    assert make_config(hidden_size=24).head_dim == 6


def test_the_most_layers_are_not_walked_through_one_by_one(
    make_config: Callable[..., BamConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = BamConfig.initial_values

    def spy(config: BamConfig, name: str, layer: int) -> list[float] | None:
        asked.append(name)
        return original(config, name, layer)

    monkeypatch.setattr(BamConfig, "initial_values", spy)
    assert make_config(num_hidden_layers=2**20, prior_beta=1.0).num_hidden_layers == 2**20
    assert len(asked) == 4


def test_round_trip(make_config: Callable[..., BamConfig], tmp_path: Any) -> None:
    config = make_config(
        position_encoding="rotary",
        rope_theta=1234.5,
        rms_norm_eps=3e-6,
        ssmax=False,
        ssmax_scales_prior=False,
        shared_prior=True,
        learned_location=True,
        prior_alpha=[1.0, 2.0, 3.0, 4.0],
        train_length=512,
        head_dim=8,
        tie_word_embeddings=True,
        eos_token_id=3,
    )
    config.save_pretrained(tmp_path)
    for again in (BamConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert isinstance(again, BamConfig)
        first, second = config.to_dict(), again.to_dict()
        assert {k: v for k, v in first.items() if not k.startswith("_")} == {
            k: v for k, v in second.items() if not k.startswith("_")
        }
