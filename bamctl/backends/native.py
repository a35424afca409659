"""The native backend: our own model in PyTorch, on a CPU or a GPU.

Shapes: B prompts of one length, C tokens of it, V vocabulary.
"""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from bamctl.backends.base import Completion, ModelDescription
from bamctl.backends.decoding import decode
from bamctl.backends.memory import (
    activation_bytes_a_token,
    cache_bytes_a_token,
    chunk_that_fits,
    memory_of,
    watch_peak_memory,
)
from bamctl.backends.prefix import SharedPrefix
from bamctl.backends.workload import NativeWorkload
from bamctl.errors import BadInput, RunFailed
from bamctl.models.loading import DTYPES, Checkpoint
from bamctl.models.work import PrefillWork
from bamctl.tasks.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PREFILL_CHUNK = 4096
"""The most tokens that go through the model at once while a prompt is read; fewer where memory is short."""

ROOM_UNIT = 64
"""A cache's positions come in multiples of this: prompts whose answers differ a little share one."""


class NativeBackend:
    """Runs a checkpoint of `model_type: bam`.

    Args:
        checkpoint: what to load.
        device: a torch device, or ``auto``: the GPU where there is one.
        dtype: a key of `bamctl.models.loading.DTYPES`.
        share_prefixes: whether prompts take over the keys and values of what they have in common with those
            of the call before. Answers are the same either way; one cache stays in memory.

    Raises:
        BadInput: no such device or dtype here, or weights that cannot be read.
    """

    name = "native"

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "auto",
        dtype: str = "float32",
        share_prefixes: bool = True,
    ) -> None:
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
        self._config = checkpoint.config
        self._share_prefixes = share_prefixes
        self._prefix = SharedPrefix(checkpoint.config.num_hidden_layers)
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

        The cache that a prefill fills serves both the reference's log-probability and the generation, and
        then the next call's prompts as far as they begin alike.

        Raises:
            RunFailed: out of memory; before anything is computed where the cache alone is beyond all of it.
        """
        prompt_ids_BC = np.stack([prompt.token_ids for prompt in prompts])
        batch, length = prompt_ids_BC.shape
        room = max(prompt.tokens_to_generate + len(prompt.answer_ids[0]) for prompt in prompts)
        chunk_size = self._chunk_size(batch, length, room)
        peak = watch_peak_memory(self._device)
        try:
            started = self._clock()
            cache = self._prefix.take(prompt_ids_BC, chunk_size=chunk_size, capacity=_capacity(length + room))
            reused = cache.length
            unread_BC = torch.from_numpy(prompt_ids_BC[:, reused:]).long().to(self._device)
            next_BV = self._model.prefill(unread_BC, cache, chunk_size=chunk_size)
            prefilled = self._clock()
            answers = decode(
                self._model,
                cache,
                next_BV,
                references=[prompt.answer_ids[0] for prompt in prompts],
                limits=[prompt.tokens_to_generate for prompt in prompts],
                ends=self._ends,
            )
            finished = self._clock()
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise RunFailed(
                f"{self.model.name}: out of memory on {self.device} with {batch} prompts of {length}"
                " tokens; lower --batch-size or the lengths"
            ) from None
        if self._share_prefixes:
            self._prefix.keep(cache, prompt_ids_BC, chunk_size=chunk_size)
        peak_bytes = peak()
        return [
            Completion(
                token_ids=tuple(answer.tokens),
                text=str(self.tokenizer.decode(answer.tokens, skip_special_tokens=True)),
                finish_reason="stop" if answer.stopped else "length",
                answer_logprob=answer.logprob,
                reused_tokens=reused,
                prefill_seconds=(prefilled - started) / batch,
                decode_seconds=(finished - prefilled) / batch,
                peak_memory_bytes=peak_bytes,
            )
            for answer in answers
        ]

    def workload(self, sample: Prompt, *, longest: int) -> NativeWorkload:
        """See `bamctl.backends.base.Backend.workload`."""
        ids = torch.from_numpy(sample.token_ids).long().to(self._device)
        return NativeWorkload(
            prefill=PrefillWork(self._model, ids, longest=longest),
            memory_bytes=memory_of(self._device).total,
            cache_bytes_a_token=cache_bytes_a_token(self._config, DTYPES[self.dtype]),
            shared_unit=PREFILL_CHUNK if self._share_prefixes else None,
        )

    def _chunk_size(self, batch: int, length: int, room: int) -> int:
        """How many tokens go through the model at once, beside a cache for `length` + `room` positions.

        Raises:
            RunFailed: all the memory there is could not hold the cache.
        """
        config, dtype = self._config, DTYPES[self.dtype]
        position_bytes = batch * cache_bytes_a_token(config, dtype)
        cache_bytes = _capacity(length + room) * position_bytes
        memory = memory_of(self._device)
        if cache_bytes > memory.total:
            longest = memory.total // position_bytes // ROOM_UNIT * ROOM_UNIT - room
            raise RunFailed(
                f"{self.model.name}: the keys and values of {batch} prompts of {length} tokens take"
                f" {cache_bytes / 1e9:.1f} GB, and {self.device} has {memory.total / 1e9:.1f} GB, enough for"
                f" {max(longest, 0)} tokens; lower --batch-size or the lengths"
            )
        return chunk_that_fits(
            memory.available + self._prefix.nbytes() - cache_bytes,
            batch * activation_bytes_a_token(config, dtype),
            largest=PREFILL_CHUNK,
        )

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


def _capacity(positions: int) -> int:
    return math.ceil(positions / ROOM_UNIT) * ROOM_UNIT


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
