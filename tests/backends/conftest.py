"""Prompts of any length, and what a model makes of them when everything is computed anew for every token."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bamctl.models import BamForCausalLM
from bamctl.models.loading import Checkpoint, open_checkpoint
from bamctl.tasks.prompt import Prompt


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(str(tiny_checkpoint))


@pytest.fixture(scope="session")
def model(checkpoint: Checkpoint) -> BamForCausalLM:
    return checkpoint.load(device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def make_prompt(checkpoint: Checkpoint) -> Callable[..., Prompt]:
    """Random tokens: what is asked does not matter to a backend."""

    def make(length: int = 90, *, seed: int = 0, answer: int = 5, limit: int = 7) -> Prompt:
        rng = np.random.default_rng([seed, length])
        ids = rng.integers(2, len(checkpoint.tokenizer), size=length + answer)
        return Prompt(
            token_ids=ids[:length].astype(np.int32),
            references=("12345",),
            answer_ids=(tuple(ids[length:].tolist()),),
            needle_spans=((1, 2),),
            depths=(0.0,),
            shared_prefix=1,
            haystack_repeats=0,
            roundtrip_stable=True,
            tokens_to_generate=limit,
        )

    return make


@pytest.fixture
def greedy(model: BamForCausalLM) -> Callable[..., tuple[list[int], str]]:
    """Greedy tokens and the reason for their end, the whole text read again for each of them."""

    @torch.inference_mode()
    def generate(prompt: Prompt, ends: Collection[int]) -> tuple[list[int], str]:
        tokens: list[int] = []
        while len(tokens) < prompt.tokens_to_generate:
            ids = torch.tensor([[*prompt.token_ids.tolist(), *tokens]])
            token = int(model(input_ids=ids, use_cache=False).logits[0, -1].argmax())
            if token in ends:
                return tokens, "stop"
            tokens.append(token)
        return tokens, "length"

    return generate


@pytest.fixture
def answer_logprob(model: BamForCausalLM) -> Callable[[Prompt], float]:
    """ln p of the answer's tokens, from one reading of prompt and answer together."""

    @torch.inference_mode()
    def score(prompt: Prompt) -> float:
        answer: Sequence[int] = prompt.answer_ids[0]
        ids = torch.tensor([[*prompt.token_ids.tolist(), *answer]])
        logprobs = model(input_ids=ids, use_cache=False).logits[0].double().log_softmax(dim=-1)
        first = len(prompt.token_ids) - 1
        return sum(float(logprobs[first + i, token]) for i, token in enumerate(answer))

    return score


@pytest.fixture(scope="session")
def save_foreign(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Any], Path]:
    """Writes a model of another architecture with random weights, made of its configuration.

    The weights are large enough at random for its answers to depend on the prompt.
    """
    from transformers import AutoModelForCausalLM

    from bamctl.models.loading import no_progress_bar

    folder = tmp_path_factory.mktemp("foreign")

    def save(name: str, config: Any) -> Path:
        config.vocab_size = len(checkpoint.tokenizer)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases are constant at the start
                torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
        with no_progress_bar():
            model.save_pretrained(folder / name)
        checkpoint.tokenizer.save_pretrained(folder / name)
        return folder / name

    return save
