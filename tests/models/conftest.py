"""Small configurations, and the authors' checkpoints with what their own model answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bamctl.models import BamConfig, BamForCausalLM
from bamctl.models.loading import open_bare_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"


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
        model = open_bare_checkpoint(str(AUTHORS / name)).load(device="cpu", dtype="float32")
        expected = np.load(AUTHORS / name / "expected.npz")
        return AuthorsCheckpoint(
            model, torch.from_numpy(expected["tokens"]), torch.from_numpy(expected["logits"])
        )

    return load
