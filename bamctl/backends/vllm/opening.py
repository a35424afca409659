"""What a user calls a model → a model that vLLM can run, known to be sound."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bamctl.backends.arguments import shown
from bamctl.backends.fetching import is_hub_name
from bamctl.backends.hub import HubModel, open_hub_model
from bamctl.backends.vllm.installed import engine_fields
from bamctl.backends.vllm.options import EngineOptions, check_engine_args
from bamctl.errors import BadInput
from bamctl.models.authors import AuthorsWeights
from bamctl.models.loading import ForeignModel, open_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bamctl.backends.vllm.backend import VllmBackend


@dataclass(frozen=True, kw_only=True)
class VllmModel:
    """`bamctl.backends.opening.OpenedModel` of the backend vllm: what `HubModel` is, in an engine."""

    opened: HubModel
    engine: EngineOptions

    @property
    def name(self) -> str:
        """With what makes another model of it, of its configuration and of the engine."""
        changes = self.engine.of_the_model()
        return f"{self.opened.name} ({shown(changes)})" if changes else self.opened.name

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """See `bamctl.backends.opening.OpenedModel`."""
        return self.opened.tokenizer

    @property
    def train_length(self) -> int | None:
        """See `HubModel.train_length`."""
        return self.opened.train_length

    @property
    def longest_prompt(self) -> int | None:
        """See `HubModel.longest_prompt`."""
        return self.opened.longest_prompt

    def limit_note(self, wanted: int) -> str:
        """See `HubModel.limit_note`."""
        return self.opened.limit_note(wanted)

    def start(self, *, device: str, dtype: str, share_prefixes: bool, longest: int) -> "VllmBackend":
        """See `bamctl.backends.opening.OpenedModel.start`."""
        from bamctl.backends.vllm.backend import VllmBackend

        opened = self.opened.fetch()
        return VllmBackend(
            opened,
            name=self.name,
            digest=self._digest(opened),
            device=device,
            dtype=dtype,
            share_prefixes=share_prefixes,
            longest=longest,
            options=self.engine,
        )

    def _digest(self, opened: HubModel) -> str:
        """That of the other backends, so that rows can be compared; another where the engine changes it."""
        changes = self.engine.of_the_model()
        digest = opened.digest()
        if not changes:
            return digest
        return hashlib.sha256(f"{digest} {json.dumps(changes, sort_keys=True)}".encode()).hexdigest()


def open_vllm_model(
    name: str,
    *,
    tokenizer: str | None,
    model_args: Mapping[str, object],
    trust_remote_code: bool,
    engine: EngineOptions,
) -> VllmModel:
    """Checks all of a model but its weights' values, and the engine's arguments; starts none.

    Args:
        name: of a checkpoint, a folder, or a name on the Hugging Face hub.
        tokenizer: whose tokenizer to take instead of its own.
        model_args: fields of its configuration to have otherwise.
        trust_remote_code: whether code that comes with the model may run.
        engine: what a user asked of the engine.

    Raises:
        NotInstalled: vLLM is not.
        BadInput: vLLM cannot be imported, does not know an argument, or anything about the model is not as
            it should be.
    """
    check_engine_args(engine, engine_fields())
    if not is_hub_name(name):
        try:
            checkpoint = open_checkpoint(name, tokenizer=tokenizer)
        except ForeignModel:
            pass
        else:
            if isinstance(checkpoint.weights, AuthorsWeights):
                raise BadInput(
                    f"{checkpoint.folder}: vLLM reads Hugging Face layout only; bamctl import makes a"
                    " checkpoint of it"
                )
    opened = open_hub_model(
        name, tokenizer=tokenizer, model_args=model_args, trust_remote_code=trust_remote_code
    )
    return VllmModel(opened=opened, engine=engine)
