"""The native backend: our own model in PyTorch, on a CPU or a GPU.

Shapes: B prompts of one length, C tokens of it, N tokens to score, K of them in one chunk, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bamctl.backends.base import Completion, Finished, ModelDescription, in_batches
from bamctl.backends.decoding import completions, decode, following_logprobs
from bamctl.backends.devices import choose_device, clock, describe_device, end_tokens, telling_of_memory
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
from bamctl.models.cache import PreallocatedCache
from bamctl.models.loading import DTYPES, Checkpoint
from bamctl.models.work import PrefillWork
from bamctl.tasks.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PREFILL_CHUNK = 4096
"""The most tokens that go through the model at once while a prompt is read; fewer where memory is short."""

FEWER_PROMPTS, FEWER_TOKENS = "lower --batch-size or the lengths", "lower --max-len"

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
        self._ends = end_tokens(self._model.generation_config.eos_token_id, self.tokenizer.eos_token_id)

    @property
    def device(self) -> str:
        """``cpu``, or the GPU with its name."""
        return describe_device(self._device)

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
        with telling_of_memory(self._no_memory(f"{batch} prompts of {length} tokens", FEWER_PROMPTS)):
            started = clock(self._device)
            cache = self._prefix.take(prompt_ids_BC, chunk_size=chunk_size, capacity=_capacity(length + room))
            reused = cache.length
            unread_BC = torch.from_numpy(prompt_ids_BC[:, reused:]).long().to(self._device)
            next_BV = self._model.prefill(unread_BC, cache, chunk_size=chunk_size)
            prefilled = clock(self._device)
            answers = decode(
                self._model,
                cache,
                next_BV,
                references=[prompt.answer_ids[0] for prompt in prompts],
                limits=[prompt.tokens_to_generate for prompt in prompts],
                ends=self._ends,
            )
            finished = clock(self._device)
        if self._share_prefixes:
            self._prefix.keep(cache, prompt_ids_BC, chunk_size=chunk_size)
        peak_bytes = peak()
        return completions(
            answers,
            self.tokenizer,
            reused_tokens=reused,
            prefill_seconds=prefilled - started,
            decode_seconds=finished - prefilled,
            peak_memory_bytes=peak_bytes,
        )

    def stream(self, prompts: Iterable[Prompt], *, together: int | None) -> Iterator[Finished]:
        """See `bamctl.backends.base.Backend.stream`; one prompt at a time unless told otherwise."""
        return in_batches(self.complete, prompts, together or 1)

    @torch.inference_mode()
    def token_logprobs(self, token_ids: NDArray[np.int32], *, first: int = 1) -> NDArray[np.float64]:
        """See `bamctl.backends.base.Backend.token_logprobs`.

        Logits exist for one chunk at a time, and for the tokens before `first` not at all.

        Raises:
            RunFailed: out of memory; before anything is computed where the cache alone is beyond all of it.
        """
        if first < 1:
            raise ValueError(f"first is {first}: there is nothing before token 0")
        read = len(token_ids) - 1  # nothing is asked about what follows the last token
        if first > read:
            return np.empty(0)
        self._prefix = SharedPrefix(self._config.num_hidden_layers)  # what it held gives way
        logit_bytes = self._config.vocab_size * (DTYPES[self.dtype].itemsize + 2 * 4)
        chunk_size = self._chunk_size(1, read, 0, logit_bytes=logit_bytes, remedy=FEWER_TOKENS)
        logprobs = np.empty(len(token_ids) - first)
        with telling_of_memory(self._no_memory(f"{read} tokens and their logits", FEWER_TOKENS)):
            ids_1N = torch.from_numpy(token_ids[None]).long().to(self._device)
            cache = PreallocatedCache(self._config.num_hidden_layers, _capacity(read))
            for start in range(0, read, chunk_size):
                end = min(start + chunk_size, read)
                asked = max(start, first - 1)  # a token's logits are of the one behind it
                if asked >= end:
                    self._model.model(ids_1N[:, start:end], cache=cache, keep=0)
                    continue
                logits_KV = self._model(ids_1N[:, start:end], cache=cache, logits_to_keep=end - asked).logits[
                    0
                ]
                following_K = ids_1N[0, asked + 1 : end + 1]
                logprobs[asked + 1 - first : end + 1 - first] = following_logprobs(logits_KV, following_K)
                del logits_KV  # before the next chunk's take memory beside them
        return logprobs

    def workload(self, sample: Prompt, *, longest: int) -> NativeWorkload:
        """See `bamctl.backends.base.Backend.workload`."""
        ids = torch.from_numpy(sample.token_ids).long().to(self._device)
        return NativeWorkload(
            prefill=PrefillWork(self._model, ids, longest=longest),
            memory_bytes=memory_of(self._device).total,
            cache_bytes_a_token=cache_bytes_a_token(self._config, DTYPES[self.dtype]),
            shared_unit=PREFILL_CHUNK if self._share_prefixes else None,
        )

    def _no_memory(self, what: str, remedy: str) -> str:
        return f"{self.model.name}: out of memory on {self.device} with {what}; {remedy}"

    def _chunk_size(
        self, batch: int, length: int, room: int, *, logit_bytes: int = 0, remedy: str = FEWER_PROMPTS
    ) -> int:
        """How many tokens go through the model at once, beside a cache for `length` + `room` positions.

        Args:
            batch: prompts.
            length: tokens of each.
            room: positions for what follows them.
            logit_bytes: what the logits of one token take, where those of every token are wanted.
            remedy: what a user can do where memory is short.

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
                f" {max(longest, 0)} tokens; {remedy}"
            )
        return chunk_that_fits(
            memory.available + self._prefix.nbytes() - cache_bytes,
            batch * (activation_bytes_a_token(config, dtype) + logit_bytes),
            largest=PREFILL_CHUNK,
        )


def _capacity(positions: int) -> int:
    return math.ceil(positions / ROOM_UNIT) * ROOM_UNIT
