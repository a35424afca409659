"""Random checkpoints of every encoding, engines of vLLM in this process, and the native backend's answers."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Read when vLLM is imported, or when an engine starts.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

CASES: dict[str, dict[str, Any]] = {
    "ggd": {"learned_location": True, "prior_mu": [[-3.5, 0.0, 1.5, -40.0], [0.0, -7.0, 2.0, 0.5]]},
    "ggd ssmax": {"ssmax": True, "num_key_value_heads": 1},
    "ggd ssmax, shared, prior unscaled": {
        "ssmax": True,
        "ssmax_scales_prior": False,
        "shared_prior": True,
        "tie_word_embeddings": True,
        "prior_beta": [1.0, -0.5, 0.5, 1.2],
    },
    "laplace": {"position_encoding": "laplace"},
    "laplace ssmax": {"position_encoding": "laplace", "ssmax": True, "ssmax_scales_prior": False},
    "uniform": {"position_encoding": "uniform", "num_key_value_heads": 4},
    "uniform ssmax": {"position_encoding": "uniform", "ssmax": True},
    "rotary": {"position_encoding": "rotary"},
    "rotary ssmax": {"position_encoding": "rotary", "ssmax": True, "tie_word_embeddings": True},
    "sinusoidal": {"position_encoding": "sinusoidal"},
    "sinusoidal ssmax": {"position_encoding": "sinusoidal", "ssmax": True},
}
"""Fields of the configuration. Heads are larger than the width over their number in all of them."""

SHIPPED = ("small-bam", "small-bam-ssmax", "small-rope", "tiny-bam-ssmax")

LENGTHS = (5, 70, 700, 3000, 8000)

ANSWER = 8
"""Tokens to generate."""

CLEAR = 1e-3
"""By how much the best token's logit has to be above the next one's: then no rounding changes a token."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What the native backend answers to a prompt."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    margin: float
    """The least lead of a best token over the next one, in nats."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A checkpoint in both backends, and what is to come out."""

    name: str
    model: Any
    engine: Any
    answers: list[Answered]


@pytest.fixture(scope="session")
def find_case(make_checkpoint: Callable[..., Path]) -> Callable[[str], Path]:
    """The folder of a case, or of a checkpoint that we ship.

    Weights that are the same at the start of every model are disturbed: nothing is right by chance.
    """
    import torch
    from safetensors.torch import load_file, save_file

    saved: dict[str, Path] = {}

    def find(case: str) -> Path:
        if case in SHIPPED:
            return Path("models") / case
        if case not in saved:
            fields = {"ssmax": False, "head_dim": 24, "ssmax_initial": [0.3, 0.2, 0.5, -0.1], **CASES[case]}
            folder = make_checkpoint(case.replace(" ", "-").replace(",", ""), **fields)
            file = folder / "model.safetensors"
            tensors = load_file(file)
            for name, tensor in tensors.items():
                if "norm" in name or name.endswith("slopes"):
                    tensor.mul_(torch.rand_like(tensor) + 0.5)
            save_file(tensors, file, metadata={"format": "pt"})
            saved[case] = folder
        return saved[case]

    return find


@pytest.fixture(scope="session")
def open_engine() -> Callable[..., AbstractContextManager[Any]]:
    """An engine that is gone behind the `with`. The budget of tokens a step cuts long prompts into chunks."""

    @contextmanager
    def opened(folder: Path, **options: Any) -> Iterator[Any]:
        from vllm import LLM
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        engine = LLM(
            str(folder),
            **{
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": 8192,
                "max_num_batched_tokens": 1024,
                "block_size": 16,
                "kv_cache_memory_bytes": 64 * 2**20,
                "disable_log_stats": False,
                "seed": 0,
                **options,
            },
        )
        try:
            yield engine
        finally:
            engine.llm_engine.engine_core.shutdown()
            del engine
            gc.collect()
            cleanup_dist_env_and_memory()

    return opened


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[Any]]:
    """Greedy answers of an engine, with log-probabilities, to prompts that it gets all at once."""

    def run(engine: Any, prompts: Sequence[Sequence[int]], *, count: int = ANSWER, logprobs: int = 1) -> Any:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=logprobs)
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return engine.generate(inputs, sampling, use_tqdm=False)

    return run


@pytest.fixture(scope="session")
def answer_natively() -> Callable[..., Answered]:
    """Greedy tokens of a loaded model, and their log-probabilities."""
    import torch

    from bamctl.models import BamForCausalLM
    from bamctl.models.cache import PreallocatedCache

    @torch.inference_mode()
    def answer(model: BamForCausalLM, prompt: Sequence[int], *, count: int = ANSWER) -> Answered:
        cache = PreallocatedCache(model.config.num_hidden_layers, len(prompt) + count)
        logits_1V = model.prefill(torch.tensor([list(prompt)]), cache, chunk_size=4096)
        tokens: list[int] = []
        logprobs: list[float] = []
        margins: list[float] = []
        while True:
            logprob_V = logits_1V[0].double().log_softmax(dim=-1)
            best, second = logprob_V.topk(2).values.tolist()
            tokens.append(int(logprob_V.argmax()))
            logprobs.append(best)
            margins.append(best - second)
            if len(tokens) == count:
                return Answered(prompt=list(prompt), tokens=tokens, logprobs=logprobs, margin=min(margins))
            logits_1V = model(torch.tensor([[tokens[-1]]]), cache=cache).logits[:, -1]

    return answer


@pytest.fixture(scope="session")
def ask_natively(answer_natively: Callable[..., Answered]) -> Callable[..., list[Answered]]:
    """Answers to random prompts of some lengths, of which none hangs on rounding."""

    def ask(
        model: Any, lengths: Sequence[int], *, count: int = ANSWER, margin: float = CLEAR
    ) -> list[Answered]:
        rng = np.random.default_rng(0)

        def clear(length: int) -> Answered:
            while True:
                prompt = rng.integers(2, model.config.vocab_size, size=length).tolist()
                answered = answer_natively(model, prompt, count=count)
                if answered.margin > margin:
                    return answered

        return [clear(length) for length in lengths]

    return ask


@pytest.fixture(scope="session")
def load_natively(find_case: Callable[[str], Path]) -> Callable[..., Any]:
    """A case's model in the native backend."""
    from bamctl.models.loading import open_checkpoint

    def load(name: str, *, dtype: str = "float32") -> Any:
        return open_checkpoint(str(find_case(name))).load(device="cpu", dtype=dtype)

    return load


@pytest.fixture(scope="module", params=[*CASES, *SHIPPED])
def case(
    request: pytest.FixtureRequest,
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    open_engine: Callable[..., AbstractContextManager[Any]],
    ask_natively: Callable[..., list[Answered]],
) -> Iterator[Case]:
    """Of every encoding, with an engine that lives as long as the module's tests of it."""
    model = load_natively(request.param)
    with open_engine(find_case(request.param)) as engine:
        yield Case(name=request.param, model=model, engine=engine, answers=ask_natively(model, LENGTHS))


@pytest.fixture(scope="session")
def differences() -> Callable[..., tuple[list[int], float]]:
    """Which answers of an engine have other tokens, and the largest difference of log-probabilities.

    Log-probabilities are compared up to the first other token.
    """

    def compare(answers: Sequence[Answered], outputs: Sequence[Any]) -> tuple[list[int], float]:
        other, worst = [], 0.0
        for number, (answer, output) in enumerate(zip(answers, outputs, strict=True)):
            tokens = list(output.outputs[0].token_ids)
            assert len(tokens) == len(answer.tokens)
            if tokens != answer.tokens:
                other.append(number)
            for token, theirs, logprob, of_place in zip(
                answer.tokens, tokens, answer.logprobs, output.outputs[0].logprobs, strict=True
            ):
                if token != theirs:
                    break
                worst = max(worst, abs(logprob - of_place[token].logprob))
        return other, worst

    return compare
