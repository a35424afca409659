"""A folder, or a name on the Hugging Face hub → a model of transformers that is known to be loadable.

Configuration, tokenizer and positions are read and checked here, before any weights are; a model is drawn up
without them, so that a configuration that describes none is told at once.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from bamctl.backends.arguments import shown
from bamctl.backends.devices import is_out_of_memory
from bamctl.backends.fetching import SMALL_FILES, fetch_snapshot, find_folder, is_hub_name, quiet
from bamctl.backends.positions import ROPE_FIELDS, Positions, describe_positions, with_rope_scaling
from bamctl.backends.weights import digest_model, weight_files
from bamctl.errors import BadInput, did_you_mean
from bamctl.models.config import BamConfig
from bamctl.models.loading import has_tokenizer, no_progress_bar, open_bare_checkpoint, open_tokenizer
from bamctl.models.reading import one_line, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bamctl.backends.transformers import TransformersBackend


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """`bamctl.backends.opening.OpenedModel` of the backend transformers."""

    name: str
    """As the user knows it, with the arguments that make another model of it."""
    folder: Path
    hub_name: str | None
    """Where what the folder lacks is fetched from."""
    config: Any
    """A ``PreTrainedConfig`` with the arguments in it."""
    form: dict[str, Any]
    """The content of config.json, and the arguments."""
    tokenizer: "PreTrainedTokenizerBase"
    positions: Positions
    parameters: int
    vocabulary: int
    has_arguments: bool
    trust_remote_code: bool

    @property
    def train_length(self) -> int | None:
        """Tokens, before any scaling; None where it is not known."""
        return self.positions.train_length

    @property
    def longest_prompt(self) -> int | None:
        """Positions: of the prompt and of what is generated; None where the model has no limit of its own."""
        return self.positions.limit

    def limit_note(self, wanted: int) -> str:
        """What the limit is, and how to have one of `wanted` positions; empty where there is none."""
        limit, field = self.positions.limit, self.positions.field
        if limit is None:
            return ""
        if self.positions.encoding == "learned":
            return f"{limit} positions, of which each was learned; there are no more"
        factor = -(-wanted // limit)
        ways = f"try it with --model-arg {field}={factor * limit}"
        if self.positions.encoding == "rotary":
            scaling = f'{{"rope_type":"yarn","factor":{factor}.0}}'
            ways = f"stretch it with --model-arg rope_scaling='{scaling}', or {ways}"
        return f"{limit} positions, the {field} of its configuration; {ways}"

    def fetch(self) -> "HubModel":
        """The same with its weights in its folder.

        Raises:
            BadInput: they are neither there nor can be fetched.
        """
        if self.hub_name is None:
            return self  # they are there, or it would not have been opened
        folder = fetch_snapshot(self.hub_name, [*SMALL_FILES, "model*.safetensors"], watched=True)
        if not any(folder.glob("model*.safetensors")):
            folder = fetch_snapshot(self.hub_name, [*SMALL_FILES, "pytorch_model*.bin"], watched=True)
        if not weight_files(folder):
            raise BadInput(f"{self.hub_name} has neither model*.safetensors nor pytorch_model*.bin")
        return dataclasses.replace(self, folder=folder)

    def digest(self) -> str:
        """What the results know the model by; reads all of the weights.

        Raises:
            BadInput: they cannot be read.
        """
        if isinstance(self.config, BamConfig) and not self.has_arguments:
            return open_bare_checkpoint(str(self.folder)).digest
        code = sorted(self.folder.glob("*.py")) if self.trust_remote_code else []
        return digest_model(self.form, weight_files(self.folder), code)

    def start(self, *, device: str, dtype: str, share_prefixes: bool, longest: int) -> "TransformersBackend":
        """See `bamctl.backends.opening.OpenedModel.start`; no prefix is shared, no memory set aside."""
        from bamctl.backends.transformers import TransformersBackend

        return TransformersBackend(self, device=device, dtype=dtype)

    def load(self, *, dtype: torch.dtype | str, device_map: str | None = None) -> Any:
        """Reads the weights; a ``PreTrainedModel`` in evaluation mode, in main memory unless mapped.

        Args:
            dtype: of the weights; ``auto``: as they are stored.
            device_map: transformers' own, which needs accelerate.

        Raises:
            BadInput: files that cannot be read, or that lack a weight.
        """
        mapped = {} if device_map is None else {"device_map": device_map}
        try:
            with no_progress_bar(), quiet():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    self.folder,
                    config=self.config,
                    dtype=dtype,
                    trust_remote_code=self.trust_remote_code,
                    local_files_only=True,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **mapped,
                )
        except Exception as error:  # each format and architecture has its own
            if is_out_of_memory(error):
                raise
            raise BadInput(f"{self.name}: the weights cannot be read ({one_line(error)})") from None
        model, told = loaded
        for name, *shapes in sorted(told["mismatched_keys"]):
            stored, wanted = (list(shape) for shape in shapes)
            raise BadInput(f"{self.name}: weight {name} is {stored}, the configuration asks for {wanted}")
        missing = sorted(told["missing_keys"])
        if missing:
            raise BadInput(f"{self.name}: the weights lack {missing[0]}, which the model needs")
        extra = sorted(told["unexpected_keys"])
        if extra:
            print(
                f"{self.name}: {len(extra)} of the stored weights are not part of a"
                f" {type(model).__name__} and were left out ({extra[0]})",
                file=sys.stderr,
            )
        return model.eval()


@quiet()
def open_hub_model(
    name: str, *, tokenizer: str | None, model_args: Mapping[str, object], trust_remote_code: bool
) -> HubModel:
    """Checks all of a model but its weights.

    Args:
        name: of a checkpoint, a folder, or a name on the hub, of which the local cache may hold a copy.
        tokenizer: whose tokenizer to take instead of its own: likewise, or a tokenizer's file.
        model_args: fields of its configuration to have otherwise.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        BadInput: anything about it that is not as it should be, in one line.
    """
    folder = find_folder(name)
    hub_name = None if folder is not None else name
    if folder is None:
        folder = fetch_snapshot(name, SMALL_FILES)
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} is no checkpoint: it has no config.json")
    raw = read_json(folder / "config.json")
    if not isinstance(raw, dict):
        raise BadInput(f"{folder / 'config.json'}: fields and their values are expected")
    if hub_name is None:
        name = folder.resolve().name
        if not weight_files(folder):
            raise BadInput(f"{folder} has no model.safetensors, nor another file of weights")
    plain = _read_config(folder, raw, trust_remote_code)
    form = _with_arguments(folder, raw, plain, model_args)
    config = plain
    if model_args:
        try:
            config = type(plain).from_dict(form)
        except Exception as error:  # whatever a value out of place makes transformers raise
            raise BadInput(f"{name} with {shown(model_args)}: {one_line(error)}") from None
    parameters, learned = _draw_up(name, config, trust_remote_code)
    positions = describe_positions(
        config.get_text_config(decoder=True),
        plain=plain.get_text_config(decoder=True),
        stretched=any(field in model_args for field in ROPE_FIELDS),
        learned=learned,
    )
    if isinstance(config, BamConfig):
        positions = dataclasses.replace(
            positions, encoding=config.position_encoding, train_length=config.train_length
        )
    opened = _open_tokenizer(folder if tokenizer is None else tokenizer, trust_remote_code)
    vocabulary = int(config.get_text_config(decoder=True).vocab_size)
    _check_vocabulary(name, opened, vocabulary)
    return HubModel(
        name=f"{name} ({shown(model_args)})" if model_args else name,
        folder=folder,
        hub_name=hub_name,
        config=config,
        form=form,
        tokenizer=opened,
        positions=positions,
        parameters=parameters,
        vocabulary=vocabulary,
        has_arguments=bool(model_args),
        trust_remote_code=trust_remote_code,
    )


def _read_config(folder: Path, raw: dict[str, Any], trust_remote_code: bool) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # whatever a value out of place makes transformers raise
        told = str(error)
        path = folder / "config.json"
        if "trust_remote_code" in told:
            raise BadInput(
                f"{folder}: the model brings code of its own; read it, and run it with --trust-remote-code"
            ) from None
        if "model type" in told or "model_type" in told:
            kind = raw.get("model_type")
            raise BadInput(
                f"{path}: model_type is {kind!r}, which transformers {transformers.__version__} does not know"
            ) from None
        raise BadInput(f"{path}: {one_line(error)}") from None


def _with_arguments(
    folder: Path, raw: dict[str, Any], plain: Any, arguments: Mapping[str, object]
) -> dict[str, Any]:
    """The content of config.json as it would be with the arguments written into it.

    Raises:
        BadInput: the configuration has no such field.
    """
    if not arguments:
        return raw
    text = plain.get_text_config(decoder=True)
    nested = "text_config" if text is not plain and isinstance(raw.get("text_config"), dict) else None
    target = dict(raw[nested] if nested else raw)
    known = {*text.to_dict(), *text.attribute_map, *target} - {"model_type", "transformers_version", "dtype"}
    turns = hasattr(text, "rope_parameters") or "rope_scaling" in known
    for field, value in arguments.items():
        if field in ROPE_FIELDS and turns:
            if not isinstance(value, Mapping):
                raise BadInput(
                    f'--model-arg {field}={value}: must be JSON such as {{"rope_type":"yarn","factor":4.0}}'
                )
            kinds = {"default", *ROPE_INIT_FUNCTIONS}
            for part in (value, *value.values()):
                kind = part.get("rope_type", part.get("type")) if isinstance(part, Mapping) else None
                if kind is not None and kind not in kinds:
                    raise BadInput(
                        f"--model-arg {field}: there is no rope_type {kind!r}{did_you_mean(str(kind), kinds)}"
                    )
            for other in ROPE_FIELDS:
                target.pop(other, None)
            renamed = "rope_parameters" if hasattr(text, "rope_parameters") else "rope_scaling"
            target[renamed] = with_rope_scaling(value, text)
        elif field in known:
            target[text.attribute_map.get(field, field)] = value
        else:
            known_fields = {name for name in known if not name.startswith("_")}
            close = did_you_mean(field, known_fields)
            hint = close if close.startswith(" (did") else ""
            raise BadInput(f"--model-arg {field}: a {text.model_type} configuration has no such field{hint}")
    return {**raw, nested: target} if nested else target


def _draw_up(name: str, config: Any, trust_remote_code: bool) -> tuple[int, bool]:
    """Builds the model without weights: how many parameters, and whether it looks positions up in a table."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a value out of place makes an architecture raise
        if "Unrecognized configuration class" in str(error):
            raise BadInput(
                f"{name}: transformers has no causal language model of model_type {config.model_type!r}"
            ) from None
        raise BadInput(f"{name}: its configuration describes no model ({one_line(error)})") from None
    words = model.get_input_embeddings()
    tables = [part for part in model.modules() if isinstance(part, torch.nn.Embedding) and part is not words]
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    learned = any(limit is not None and table.num_embeddings >= limit for table in tables)
    return sum(parameter.numel() for parameter in model.parameters()), learned


def _open_tokenizer(source: str | Path, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    if isinstance(source, str) and not is_hub_name(source):
        return open_tokenizer(source)
    folder = source if isinstance(source, Path) else fetch_snapshot(source, SMALL_FILES)
    if not has_tokenizer(folder) and not trust_remote_code:
        raise BadInput(f"{folder} has no tokenizer.json; name the tokenizer of its training: --tokenizer")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # whatever a damaged tokenizer file makes transformers raise
        raise BadInput(f"{folder}: the tokenizer cannot be read ({one_line(error)})") from None
    return tokenizer


def _check_vocabulary(name: str, tokenizer: "PreTrainedTokenizerBase", vocabulary: int) -> None:
    """Special tokens that the model does not know are left alone: some checkpoints add one for padding."""
    special = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
    words = {index for token, index in tokenizer.get_vocab().items() if token not in special}
    if max(words, default=0) >= vocabulary:
        raise BadInput(f"{name}: the tokenizer has {max(words) + 1} tokens, the model knows {vocabulary}")
