"""What every way of running a model offers: prompts in, completions out."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bamctl.tasks.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bamctl.models.work import HeadWork


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model made of one prompt, greedily."""

    token_ids: tuple[int, ...]
    """Generated tokens, without the end of sequence."""
    text: str
    """The same as text, special tokens left out."""
    finish_reason: Literal["stop", "length"]
    """Whether the model ended its answer, or `Prompt.tokens_to_generate` did."""
    answer_logprob: float | None
    """ln p of the first reference's tokens after the prompt, in nats; None where a backend cannot tell."""
    reused_tokens: int | None
    """Leading tokens that were not read again, as an earlier call had left their keys and values; None where
    a backend cannot tell."""
    prefill_seconds: float
    """Reading what was read of the prompt; of prompts run together, an equal share."""
    decode_seconds: float
    """Generating, and scoring the reference; an equal share likewise."""
    peak_memory_bytes: int | None
    """The most memory in use while this ran: of the GPU, or resident of the process on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Prompts of a stream that were answered since others were."""

    completions: dict[int, Completion]
    """By the prompt's number: the first that was taken is 0."""
    seconds: float
    """What they took of the backend; of prompts that run side by side, the time since others finished."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What identifies the model of a backend, and what a reader of its results wants to know."""

    name: str
    digest: str
    position_encoding: str
    ssmax: bool
    train_length: int | None
    """Tokens; None where it is not known."""
    parameters: int | None
    longest_prompt: int | None
    """Tokens; None where the model has no limit of its own."""


class Workload(Protocol):
    """What a backend knows of its work before it does it, for prompts like one that it has looked at."""

    @property
    def sample_tokens(self) -> int:
        """How long that prompt was."""

    @property
    def memory_bytes(self) -> int | None:
        """All the memory there is where the model runs; None where it is not known."""

    def heads(self, length: int) -> "list[HeadWork]":
        """How far each head looks at a length in tokens, layer by layer."""

    def flops(self, length: int, *, alike: int = 0) -> float:
        """Floating-point operations of reading one prompt of `length` tokens.

        Args:
            length: tokens.
            alike: leading tokens in common with the prompt that was read just before. How many of them need
                no reading again is the backend's affair.
        """

    def cache_bytes(self, length: int) -> int:
        """What the keys and values of one prompt take."""


class Backend(Protocol):
    """One model, ready to answer."""

    @property
    def name(self) -> str:
        """``native``, ``transformers`` or ``vllm``."""

    @property
    def model(self) -> ModelDescription:
        """What runs."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's own tokenizer."""

    @property
    def device(self) -> str:
        """Where it runs: ``cpu``, ``cuda:0 (NVIDIA H200)``."""

    @property
    def dtype(self) -> str:
        """``float32``, ``bfloat16`` or ``float16``."""

    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Answers prompts of one length, exactly as they are: nothing is added or cut off.

        Raises:
            RunFailed: out of memory, or the engine died.
        """

    def stream(self, prompts: Iterable[Prompt], *, together: int | None) -> Iterator[Finished]:
        """Answers prompts of one length, taking them one by one as there is room for them.

        Args:
            prompts: perhaps made as they are taken.
            together: how many run at a time; None: 1, or in an engine that schedules them as many as it has
                memory for.

        Returns:
            What finished since the last time.

        Raises:
            RunFailed: out of memory, or the engine died. What was returned before stands.
        """

    def token_logprobs(self, token_ids: NDArray[np.int32], *, first: int = 1) -> NDArray[np.float64]:
        """ln p of each token given all that come before it, of exactly these tokens.

        Args:
            token_ids: ``[N]``.
            first: the first token that is asked about, 1 or more: before token 0 there is nothing.

        Returns:
            ``[N - first]`` in nats: ln p(token_ids[i] | token_ids[:i]) for i = first … N - 1. Not finite
            where the model's own numbers are not.

        Raises:
            RunFailed: out of memory, or the engine died.
        """

    def workload(self, sample: Prompt, *, longest: int) -> Workload | None:
        """What there is to do for prompts like `sample`, which is read once; None where nobody can tell.

        Args:
            sample: a short prompt of the task.
            longest: tokens of the longest prompt that will be asked about.
        """


def in_batches(
    complete: Callable[[Sequence[Prompt]], list[Completion]], prompts: Iterable[Prompt], size: int
) -> Iterator[Finished]:
    """`Backend.stream` by `Backend.complete`, `size` prompts at a time."""
    taken = enumerate(prompts)
    while batch := dict(itertools.islice(taken, size)):
        completions = complete(list(batch.values()))
        yield Finished(
            completions=dict(zip(batch, completions, strict=True)),
            seconds=sum(completion.prefill_seconds + completion.decode_seconds for completion in completions),
        )
