"""The transformers backend: any causal language model that transformers loads.

Shapes: B prompts of one length, C tokens of it, A tokens of the longest reference, N tokens to score, V
vocabulary.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bamctl.backends.base import Completion, Finished, ModelDescription, in_batches
from bamctl.backends.decoding import Answer, completions, following_logprobs
from bamctl.backends.devices import choose_device, clock, describe_device, end_tokens, telling_of_memory
from bamctl.backends.fetching import quiet
from bamctl.backends.hub import HubModel
from bamctl.backends.memory import chunk_that_fits, count_in, memory_of, watch_peak_memory
from bamctl.backends.reading import PROBED, Carrying, Reader, Reading, logits_of_all
from bamctl.errors import BadInput, RunFailed
from bamctl.models.config import BamConfig
from bamctl.models.loading import DTYPES
from bamctl.tasks.prompt import Prompt

PREFILL_CHUNK = 4096
"""The most tokens that go through the model at once while a prompt is read; fewer where memory is short."""

_FITS = 0.9
"""Of a GPU's free memory, what weights may take for the model to be put there whole."""


class TransformersBackend:
    """Runs a model of transformers, with the cache that transformers makes for it.

    Args:
        opened: what to load.
        device: a torch device, or ``auto``: the GPU where there is one, and, where accelerate is installed,
            all of them and main memory for weights that do not fit onto one.
        dtype: a key of `bamctl.models.loading.DTYPES`, or ``auto``: as the weights are stored.

    Raises:
        BadInput: no such device or dtype here, or weights that cannot be read or fetched.
        RunFailed: no memory for the weights.
    """

    name = "transformers"

    @quiet()
    def __init__(self, opened: HubModel, *, device: str = "auto", dtype: str = "auto") -> None:
        chosen = choose_device(device)
        if dtype != "auto" and dtype not in DTYPES:
            raise BadInput(f"dtype {dtype!r} is none of auto, {', '.join(DTYPES)}")
        limit = opened.longest_prompt
        if limit is not None and limit < PROBED:
            raise BadInput(f"{opened.name}: it has {limit} positions, and trying its cache takes {PROBED}")
        opened = opened.fetch()
        self.tokenizer = opened.tokenizer
        self.model = ModelDescription(
            name=opened.name,
            digest=opened.digest(),
            position_encoding=opened.positions.encoding,
            ssmax=isinstance(opened.config, BamConfig) and opened.config.ssmax,
            train_length=opened.train_length,
            parameters=opened.parameters,
            longest_prompt=opened.longest_prompt,
        )
        self._vocabulary = opened.vocabulary
        with telling_of_memory(f"{opened.name}: no memory for its weights on {describe_device(chosen)}"):
            self._model = _load(opened, chosen, device, dtype)
        self.dtype = str(self._model.dtype).removeprefix("torch.")
        try:
            self._reader = Reader(self._model, opened.vocabulary, opened.positions.switch)
        except BadInput as error:
            raise BadInput(f"{opened.name}: {error}") from None
        self._device = self._reader.device
        generation = getattr(self._model, "generation_config", None)
        self._ends = end_tokens(
            getattr(generation, "eos_token_id", None), getattr(self.tokenizer, "eos_token_id", None)
        )
        self._told: set[Carrying] = set()
        self._tell(self._reader.carrying)

    @property
    def device(self) -> str:
        """``cpu``, or the GPU with its name; of a model that is spread, all of them."""
        places = {str(place) for place in getattr(self._model, "hf_device_map", {}).values()}
        if len(places) > 1:
            return ", ".join(sorted(f"cuda:{place}" if place.isdigit() else place for place in places))
        return describe_device(self._device)

    @quiet()
    @torch.inference_mode()
    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """See `bamctl.backends.base.Backend.complete`.

        Greedy is what the model's own logits say: penalties of its generation config do not count.

        Raises:
            RunFailed: out of memory; or a prompt that the model has no positions or no tokens for.
        """
        ids_BC = np.stack([prompt.token_ids for prompt in prompts])
        batch, length = ids_BC.shape
        references = [prompt.answer_ids[0] for prompt in prompts]
        room = max(max(prompt.tokens_to_generate for prompt in prompts), *map(len, references)) - 1
        self._check(length, room, int(ids_BC.max()))
        self._tell(self._reader.carrying_of(length, room))
        peak = watch_peak_memory(self._device)
        with telling_of_memory(
            f"{self.model.name}: out of memory on {self.device} with {batch} prompts of {length} tokens;"
            " lower --batch-size or the lengths"
        ):
            started = clock(self._device)
            reading = Reading(
                self._reader,
                torch.from_numpy(ids_BC).long().to(self._device),
                room=room,
                chunk_size=self._chunk_size(batch, length),
            )
            prefilled = clock(self._device)
            logprobs = _score(reading, references)
            answers = [
                Answer(limit=prompt.tokens_to_generate, logprob=logprob)
                for prompt, logprob in zip(prompts, logprobs, strict=True)
            ]
            _generate(reading, answers, self._ends)
            finished = clock(self._device)
        peak_bytes = peak()
        return completions(
            answers,
            self.tokenizer,
            reused_tokens=0,
            prefill_seconds=prefilled - started,
            decode_seconds=finished - prefilled,
            peak_memory_bytes=peak_bytes,
        )

    def stream(self, prompts: Iterable[Prompt], *, together: int | None) -> Iterator[Finished]:
        """See `bamctl.backends.base.Backend.stream`; one prompt at a time unless told otherwise."""
        return in_batches(self.complete, prompts, together or 1)

    @quiet()
    @torch.inference_mode()
    def token_logprobs(self, token_ids: NDArray[np.int32], *, first: int = 1) -> NDArray[np.float64]:
        """See `bamctl.backends.base.Backend.token_logprobs`.

        Logits exist for one stretch at a time; a model without `logits_to_keep` makes them for what it reads.

        Raises:
            RunFailed: out of memory; or a text that the model has no positions or no tokens for.
        """
        if first < 1:
            raise ValueError(f"first is {first}: there is nothing before token 0")
        read = len(token_ids) - 1  # nothing is asked about what follows the last token
        if first > read:
            return np.empty(0)
        self._check(read, 0, int(token_ids.max()))
        self._tell(self._reader.carrying_of(read, 0))
        logprobs = np.empty(len(token_ids) - first)
        with telling_of_memory(
            f"{self.model.name}: out of memory on {self.device} with {read} tokens; lower the lengths"
        ):
            ids_N = torch.from_numpy(token_ids).long().to(self._device)
            for start, logits_KV in logits_of_all(
                self._reader,
                ids_N[None, :read],
                first=first - 1,
                chunk_size=self._chunk_size(1, read),
                block=self._chunk_size(1, read, logits=True),
            ):
                following_K = ids_N[start + 1 : start + 1 + len(logits_KV)]
                place = start + 1 - first
                logprobs[place : place + len(logits_KV)] = following_logprobs(logits_KV, following_K)
                del logits_KV  # before the next stretch's take memory beside them
        return logprobs

    def workload(self, sample: Prompt, *, longest: int) -> None:
        """None: what an architecture of someone else's computes cannot be told."""

    def _check(self, length: int, room: int, highest: int) -> None:
        """Refuses what would be cut off, repeated, or looked up beyond a table's end."""
        limit = self.model.longest_prompt
        if limit is not None and length + room > limit:
            raise RunFailed(
                f"{self.model.name}: {length} tokens and {room} behind them are beyond its {limit} positions"
            )
        if highest >= self._vocabulary:
            raise RunFailed(
                f"{self.model.name}: the tokenizer made token {highest}, the model knows {self._vocabulary}"
            )

    def _tell(self, carrying: Carrying) -> None:
        """Says once on stderr what costs time or memory."""
        if carrying in self._told:
            return
        self._told.add(carrying)
        remarks = {
            Carrying.STEPS: "its cache does not carry over between chunks, so prompts are read whole",
            Carrying.NOTHING: "no usable cache, so the whole prompt is read again for every token",
        }
        if carrying in remarks:
            print(f"{self.model.name}: {remarks[carrying]}", file=sys.stderr, flush=True)

    def _chunk_size(self, batch: int, length: int, *, logits: bool = False) -> int:
        """How many tokens go through the model at once, beside the keys and values of the prompts.

        Args:
            batch: prompts.
            length: tokens of each.
            logits: whether the logits of every token are wanted.
        """
        config = self._model.config.get_text_config(decoder=True)
        size = self._model.dtype.itemsize
        width = count_in(config, "hidden_size") or 4096
        heads = count_in(config, "num_attention_heads") or 1
        inner = count_in(config, "intermediate_size") or 4 * width
        head = count_in(config, "head_dim") or width // heads
        groups = count_in(config, "num_key_value_heads") or heads
        layers = count_in(config, "num_hidden_layers") or 1
        # What a layer of attention holds of every token; windows and states take less. Once more, as
        # transformers' cache copies a layer where it grows.
        cache = batch * length * 2 * groups * head * size * (layers + 1)
        # Scores, or a mask, against every key there is; scaled_dot_product_attention makes no scores.
        scores = heads * (size + 4) if self._model.config._attn_implementation == "eager" else 4
        bytes_a_token = (6 * width + 4 * heads * head + 3 * inner) * size + 8 * width + length * scores
        if logits or not self._reader.selects_logits:
            bytes_a_token += self._vocabulary * (size + 2 * 4)
        return chunk_that_fits(
            max(memory_of(self._device).available - cache, 0), batch * bytes_a_token, largest=PREFILL_CHUNK
        )


def _load(opened: HubModel, device: torch.device, asked: str, dtype: str) -> Any:
    wanted: torch.dtype | str = DTYPES[dtype] if dtype != "auto" else "auto"
    if asked == "auto" and device.type == "cuda" and find_spec("accelerate"):
        itemsize = wanted.itemsize if isinstance(wanted, torch.dtype) else 2
        if opened.parameters * itemsize > _FITS * memory_of(device).available:
            return opened.load(dtype=wanted, device_map="auto")
    model = opened.load(dtype=wanted)
    torch.nn.Module.to(model, device)  # transformers' own wrapper only adds checks for quantised models
    return model


def _score(reading: Reading, references: Sequence[tuple[int, ...]]) -> list[float]:
    """ln p of each prompt's reference, in nats; reads none of it."""
    longest = max(map(len, references))
    # What stands behind a shorter reference is never looked at: a model is causal.
    ids_BA = torch.tensor(
        [[*ids, *[0] * (longest - len(ids))] for ids in references], device=reading.next_BV.device
    )
    logprobs_BAV = reading.look_ahead(ids_BA[:, :-1]).float().log_softmax(dim=-1)
    logprobs_BA = logprobs_BAV.gather(-1, ids_BA[..., None])[..., 0].tolist()
    return [sum(row[: len(ids)]) for row, ids in zip(logprobs_BA, references, strict=True)]


def _generate(reading: Reading, answers: Sequence[Answer], ends: frozenset[int]) -> None:
    """Adds tokens to each answer until none wants another."""
    while True:
        chosen = reading.next_BV.argmax(dim=-1).tolist()
        for answer, token in zip(answers, chosen, strict=True):
            answer.add(token, ends)
        if all(answer.complete for answer in answers):
            return
        reading.append(torch.tensor(chosen, device=reading.next_BV.device)[:, None])
