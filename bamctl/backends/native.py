"""The native backend: our own model in PyTorch, on a CPU or a GPU.

Shapes: B prompts of one length, C tokens of a call, V vocabulary.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bamctl.backends.base import Completion, ModelDescription
from bamctl.backends.memory import watch_peak_memory
from bamctl.errors import BadInput, RunFailed
from bamctl.models.cache import PreallocatedCache
from bamctl.models.loading import DTYPES, Checkpoint
from bamctl.tasks.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PREFILL_CHUNK = 4096
"""Tokens that go through the model at once while a prompt is read: the activations of so many are held."""


class NativeBackend:
    """Runs a checkpoint of `model_type: bam`.

    Args:
        checkpoint: what to load.
        device: a torch device, or ``auto``: the GPU where there is one.
        dtype: a key of `bamctl.models.loading.DTYPES`.

    Raises:
        BadInput: no such device or dtype here, or weights that cannot be read.
    """

    name = "native"

    def __init__(self, checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "float32") -> None:
        self._device = choose_device(device)
        if dtype not in DTYPES:
            raise BadInput(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        self.dtype = dtype
        self.tokenizer: PreTrainedTokenizerBase = checkpoint.tokenizer
        self.model = ModelDescription(
            name=checkpoint.name,
            digest=checkpoint.digest,
            position_encoding=checkpoint.config.position_encoding,
            ssmax=checkpoint.config.ssmax,
            train_length=checkpoint.config.train_length,
            parameters=checkpoint.parameters,
            longest_prompt=None,
        )
        self._model = checkpoint.load(device=self._device, dtype=dtype)
        self._ends = _end_tokens(self._model.generation_config.eos_token_id, self.tokenizer.eos_token_id)

    @property
    def device(self) -> str:
        """``cpu``, or the GPU with its name."""
        if self._device.type == "cuda":
            return f"{self._device} ({torch.cuda.get_device_name(self._device)})"
        return str(self._device)

    @torch.inference_mode()
    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """See `bamctl.backends.base.Backend.complete`.

        The cache that a prefill fills serves both the reference's log-probability and the generation.
        """
        ids_BC = torch.from_numpy(np.stack([prompt.token_ids for prompt in prompts])).long().to(self._device)
        length = ids_BC.shape[1]
        room = max(prompt.tokens_to_generate + len(prompt.answer_ids[0]) for prompt in prompts)
        peak = watch_peak_memory(self._device)
        try:
            started = self._clock()
            cache = PreallocatedCache(self._model.config.num_hidden_layers, capacity=length + room)
            next_BV = self._model.prefill(ids_BC, cache, chunk_size=PREFILL_CHUNK)
            prefilled = self._clock()
            logprobs = self._answer_logprobs(next_BV, [prompt.answer_ids[0] for prompt in prompts], cache)
            cache.truncate(length)
            generated = self._generate(next_BV, [prompt.tokens_to_generate for prompt in prompts], cache)
            finished = self._clock()
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise RunFailed(
                f"{self.model.name}: out of memory on {self.device} with {len(prompts)} prompts of {length}"
                " tokens; lower --batch-size or the lengths"
            ) from None
        peak_bytes = peak()
        return [
            Completion(
                token_ids=tuple(tokens),
                text=str(self.tokenizer.decode(tokens, skip_special_tokens=True)),
                finish_reason="stop" if stopped else "length",
                answer_logprob=logprob,
                prefill_seconds=(prefilled - started) / len(prompts),
                decode_seconds=(finished - prefilled) / len(prompts),
                peak_memory_bytes=peak_bytes,
            )
            for (tokens, stopped), logprob in zip(generated, logprobs, strict=True)
        ]

    def _answer_logprobs(
        self, next_BV: Tensor, answers: list[tuple[int, ...]], cache: PreallocatedCache
    ) -> list[float]:
        """ln p of each answer, all of its tokens given at once. The cache is left longer than it was."""
        longest = max(len(answer) for answer in answers)
        # What stands behind a shorter answer is never looked at: attention is causal.
        padded_BC = torch.tensor(
            [[*answer, *[0] * (longest - len(answer))] for answer in answers], device=self._device
        )
        logprobs_BCV = next_BV[:, None].log_softmax(dim=-1)
        if longest > 1:
            rest_BCV = self._model(padded_BC[:, :-1], cache=cache).logits.log_softmax(dim=-1)
            logprobs_BCV = torch.cat((logprobs_BCV, rest_BCV), dim=1)
        chosen_BC = logprobs_BCV.gather(-1, padded_BC[..., None])[..., 0].tolist()
        return [sum(row[: len(answer)]) for row, answer in zip(chosen_BC, answers, strict=True)]

    def _generate(
        self, next_BV: Tensor, limits: list[int], cache: PreallocatedCache
    ) -> list[tuple[list[int], bool]]:
        """Greedy tokens of each prompt, and whether it ended by itself."""
        tokens: list[list[int]] = [[] for _ in limits]
        stopped = [False] * len(limits)
        while True:
            chosen_B = next_BV.argmax(dim=-1)
            for row, token in enumerate(chosen_B.tolist()):
                if not stopped[row] and len(tokens[row]) < limits[row]:
                    stopped[row] = token in self._ends
                    tokens[row] += [] if stopped[row] else [token]
            if all(
                done or len(row) == limit for done, row, limit in zip(stopped, tokens, limits, strict=True)
            ):
                return list(zip(tokens, stopped, strict=True))
            next_BV = self._model(chosen_B[:, None], cache=cache).logits[:, -1]

    def _clock(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def choose_device(name: str) -> torch.device:
    """A torch device from its name; ``auto`` is the GPU where there is one.

    Raises:
        BadInput: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"device {name!r} is not known; write cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r}: the native backend runs on cpu and cuda")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise BadInput(f"device {name!r}: this machine has {count} CUDA devices that torch can use")
    return device


def _is_out_of_memory(error: Exception) -> bool:
    """On a CPU torch raises a plain RuntimeError, as cuBLAS does; an illegal access is no lack of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(sign in str(error) for sign in ("allocate memory", "not enough memory", "ALLOC_FAILED"))


def _end_tokens(*sources: int | list[int] | None) -> frozenset[int]:
    ids: set[int] = set()
    for source in sources:
        ids |= set(source) if isinstance(source, list) else set() if source is None else {source}
    return frozenset(ids)
