"""Small configurations, and the authors' checkpoints under our names."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bamctl.models import BamConfig, BamForCausalLM

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"

# position_encoding of theirs, without _ssmax → ours
ENCODINGS = {
    "bam": "ggd",
    "alibi": "laplace",
    "nope": "uniform",
    "rotary": "rotary",
    "sinusoidal": "sinusoidal",
}

NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


class AuthorsCheckpoint(NamedTuple):
    model: BamForCausalLM
    tokens: Tensor
    """int64 ``[2, n]``."""
    logits: Tensor
    """fp32 ``[2, n, V]``, from the authors' own model."""


@pytest.fixture(scope="session")
def make_config() -> Callable[..., BamConfig]:
    """A tiny configuration, any field of which may be given another value."""

    def make(**fields: Any) -> BamConfig:
        values: dict[str, Any] = {
            "vocab_size": 50,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "prior_beta": [[1.0, 1.2, 0.5, -0.5], [0.2, -1.5, 0.4, 1.0]],
            "ssmax_initial": [0.3, 0.4, -0.1, 0.5],
            "initializer_range": 0.3,
        }
        return BamConfig(**(values | fields))

    return make


@pytest.fixture(scope="session")
def make_model(make_config: Callable[..., BamConfig]) -> Callable[..., BamForCausalLM]:
    """Random weights, large enough for every part of the model to matter to its logits."""

    def make(**fields: Any) -> BamForCausalLM:
        torch.manual_seed(0)
        model = BamForCausalLM(make_config(**fields)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
        return model

    return make


@pytest.fixture(scope="session")
def tokens() -> Tensor:
    return torch.randint(0, 50, (2, 33), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def load_authors() -> Callable[[str], AuthorsCheckpoint]:
    """Reads one of the folders of `tests/fixtures/authors` into a `BamForCausalLM`."""

    def load(name: str) -> AuthorsCheckpoint:
        folder = AUTHORS / name
        args = json.loads((folder / "args.json").read_text())
        encoding, shape = args["args"]["position_encoding"], args["model_args"]
        theirs = {
            re.sub(r"^(?:module\.|_orig_mod\.)*", "", key): value
            for key, value in torch.load(folder / "model.pt", weights_only=True).items()
        }
        config = BamConfig(
            vocab_size=shape["vocab_size"],
            hidden_size=shape["dim"],
            intermediate_size=int(shape["ffn_dim_multiplier"] * shape["dim"]),
            num_hidden_layers=shape["n_layers"],
            num_attention_heads=shape["n_heads"],
            rms_norm_eps=shape["norm_eps"],
            position_encoding=ENCODINGS[encoding.removesuffix("_ssmax")],
            ssmax=encoding.endswith("_ssmax"),
            ssmax_scales_prior=shape.get("ssmax_prior", True) and encoding != "alibi_ssmax",
            shared_prior="prior.shape" in theirs,
            learned_location=shape.get("train_loc", False),
            rope_theta=shape.get("rope_theta", 500000.0),
            train_length=shape["max_seq_len"],
        )
        ours = {}
        for key, value in theirs.items():
            layer = re.match(r"layers\.\d+\.", key)
            prefix = f"model.{layer[0]}" if layer else ""
            part, leaf = key[len(layer[0]) if layer else 0 :].rsplit(".", 1)
            if leaf == "seq_scale":
                ours[f"{prefix}self_attn.ssmax.scale"] = value.flatten()
            elif part.endswith("prior"):
                prior = f"{prefix}self_attn.prior" if layer else "model.prior"
                renamed = {"shape": "beta", "scale": "log_rate", "loc": "mu"}[leaf]
                ours[f"{prior}.{renamed}"] = (
                    value.exp() - (-value).exp() if leaf == "loc" else value
                ).flatten()
            else:
                ours[f"{prefix}{NAMES[part]}.{leaf}"] = value
        model = BamForCausalLM(config).eval()
        fixed = {name for name, _ in model.named_buffers()}  # ALiBi's slopes, which they do not store
        missing, unexpected = model.load_state_dict(ours, strict=False)
        assert not unexpected
        assert set(missing) == {name for name in fixed if name.endswith("slopes")}
        expected = np.load(folder / "expected.npz")
        return AuthorsCheckpoint(
            model, torch.from_numpy(expected["tokens"]), torch.from_numpy(expected["logits"])
        )

    return load
