"""What a user calls a model → a model that is known to be sound, whichever backend runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bamctl.backends.base import Backend
from bamctl.backends.vllm.options import EngineOptions
from bamctl.errors import BadInput, did_you_mean
from bamctl.models.loading import Checkpoint, ForeignModel, open_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BACKENDS = ("auto", "native", "transformers", "vllm")
"""What runs a model; ``auto``: native for `model_type: bam` and BAM's authors' own, else transformers."""


class OpenedModel(Protocol):
    """A model of which everything but its weights' values was read and checked."""

    @property
    def name(self) -> str:
        """What it is called in tables and results."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Its own, or the one that was asked for."""

    @property
    def train_length(self) -> int | None:
        """Tokens; None where it is not known."""

    @property
    def longest_prompt(self) -> int | None:
        """Tokens, those that are generated included; None where the model has no limit of its own."""

    def limit_note(self, wanted: int) -> str:
        """Where that limit is from and what moves it to `wanted` tokens; empty where there is none."""

    def start(self, *, device: str, dtype: str, share_prefixes: bool, longest: int) -> Backend:
        """Reads the weights.

        Args:
            device: a torch device, or ``auto``: the GPU where there is one.
            dtype: a key of `bamctl.models.loading.DTYPES`, or ``auto``: float32 where the backend is native
                or vLLM runs a model of ours, else what the weights are stored in.
            share_prefixes: whether prompts may take over what they have in common with the call before.
            longest: tokens of the longest prompt with its answer, for a backend that sets memory aside.

        Raises:
            BadInput: no such device or dtype here, or weights that cannot be read.
            RunFailed: no memory for the weights, or an engine that does not start.
        """


@dataclass(frozen=True, kw_only=True)
class NativeModel:
    """`OpenedModel` of the native backend."""

    checkpoint: Checkpoint
    longest_prompt: int | None = None

    def limit_note(self, wanted: int) -> str:
        """See `OpenedModel`: there is no limit."""
        return ""

    @property
    def name(self) -> str:
        """See `OpenedModel`."""
        return self.checkpoint.name

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """See `OpenedModel`."""
        return self.checkpoint.tokenizer

    @property
    def train_length(self) -> int | None:
        """See `OpenedModel`."""
        return self.checkpoint.config.train_length

    def start(self, *, device: str, dtype: str, share_prefixes: bool, longest: int) -> Backend:
        """See `OpenedModel.start`."""
        from bamctl.backends.native import NativeBackend

        return NativeBackend(
            self.checkpoint,
            device=device,
            dtype="float32" if dtype == "auto" else dtype,
            share_prefixes=share_prefixes,
        )


def open_model(
    name: str,
    *,
    backend: str = "auto",
    tokenizer: str | None = None,
    model_args: Mapping[str, object] | None = None,
    trust_remote_code: bool = False,
    engine: EngineOptions | None = None,
) -> OpenedModel:
    """Finds a model and checks all of it but its weights' values.

    Args:
        name: of a checkpoint, a folder, or a name on the Hugging Face hub.
        backend: one of `BACKENDS`.
        tokenizer: whose tokenizer to take instead of its own: a checkpoint, a folder, a name on the hub or a
            tokenizer's file.
        model_args: fields of its configuration to have otherwise; the native backend takes none.
        trust_remote_code: whether code that comes with the model may run.
        engine: what vLLM's engine shall be like; for the backend vllm.

    Raises:
        BadInput: no such backend, no such model, or anything about it that is not as it should be.
    """
    if backend not in BACKENDS:
        raise BadInput(f"backend {backend!r} is not known{did_you_mean(backend, BACKENDS)}")
    from bamctl.backends.fetching import is_hub_name, refuse_path
    from bamctl.backends.hub import open_hub_model

    refuse_path(name)
    if backend == "vllm":
        from bamctl.backends.vllm.opening import open_vllm_model

        return open_vllm_model(
            name,
            tokenizer=tokenizer,
            model_args=model_args or {},
            trust_remote_code=trust_remote_code,
            engine=engine or EngineOptions(),
        )
    if backend == "native" or (backend == "auto" and not is_hub_name(name)):
        try:
            checkpoint = open_checkpoint(name, tokenizer=tokenizer)
        except ForeignModel:
            if backend == "native":
                raise
        else:
            if model_args:
                raise BadInput(
                    f"--model-arg {next(iter(model_args))}: {checkpoint.name} runs in the native backend,"
                    " which takes none; --backend transformers does"
                )
            return NativeModel(checkpoint=checkpoint)
    return open_hub_model(
        name, tokenizer=tokenizer, model_args=model_args or {}, trust_remote_code=trust_remote_code
    )
