"""A name or a folder → a checkpoint that is known to be sound → a model.

`open_checkpoint` reads configuration, tokenizer and the headers of the weights, and compares every shape
before anything is allocated, so that what is wrong is told in one line and at once. `Checkpoint.load` then
reads the weights.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from bamctl.errors import BadInput
from bamctl.locations import DEFAULT_MODEL as DEFAULT_MODEL
from bamctl.models.authors import AuthorsWeights, read_authors
from bamctl.models.config import BamConfig
from bamctl.models.modeling import BamForCausalLM
from bamctl.models.naming import find_model as find_model
from bamctl.models.naming import find_models as find_models
from bamctl.models.naming import find_path
from bamctl.models.reading import one_line, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""A checkpoint's tokenizer lies in one of these, if it has any."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

DEFINING_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "position_encoding",
    "ssmax",
    "ssmax_scales_prior",
    "shared_prior",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
)
"""Fields of the configuration that decide what the weights compute."""


class ForeignModel(BadInput):
    """A checkpoint of another architecture, which the backend transformers may know."""

    def __init__(self, message: str, *, model_type: str) -> None:
        super().__init__(message)
        self.model_type = model_type


@dataclass(frozen=True, kw_only=True)
class SafetensorsWeights:
    """Weights in Hugging Face layout, in one file or several."""

    files: tuple[Path, ...]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor with its name."""
        for file in self.files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (no dictionary)
                    yield name, opened.get_tensor(name)


@dataclass(frozen=True, kw_only=True)
class BareCheckpoint:
    """A folder whose configuration and weights fit together."""

    name: str
    folder: Path
    config: BamConfig
    weights: SafetensorsWeights | AuthorsWeights
    parameters: int

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what decides the model's answers: its form and its weights, however stored.

        Neither starting values nor what transformers adds to a configuration count, so another version of it,
        other shards, another name, or the import of an authors' checkpoint leave it as it is.

        Raises:
            BadInput: the weights cannot be read.
        """
        digest = hashlib.sha256()
        form = {name: getattr(self.config, name) for name in DEFINING_FIELDS}
        digest.update(json.dumps(form, sort_keys=True).encode())
        with self._readable_weights():
            for name, tensor in sorted(self.weights.tensors(), key=lambda item: item[0]):
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def load(self, *, device: str | torch.device, dtype: str) -> BamForCausalLM:
        """Reads the weights.

        Args:
            device: where the model is to be.
            dtype: a key of `DTYPES`; priors and SSMax stay in fp32.

        Raises:
            BadInput: a weight is not finite, or a file cannot be read.
        """
        ours = isinstance(self.weights, SafetensorsWeights)
        with self._readable_weights(), no_progress_bar():
            model: BamForCausalLM = BamForCausalLM.from_pretrained(
                self.folder if ours else None,
                config=self.config,
                state_dict=None if ours else dict(self.weights.tensors()),
                dtype=DTYPES[dtype],
                local_files_only=True,
            )
        for name, value in model.state_dict().items():  # with the values of a prior that are not learned
            if not torch.isfinite(value).all():
                raise BadInput(f"{self.folder}: weight {name} is not finite in {dtype}")
        torch.nn.Module.to(model, device)  # transformers' own wrapper only adds checks for quantised models
        return model

    @contextlib.contextmanager
    def _readable_weights(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise BadInput(f"{self.folder}: the weights cannot be read ({one_line(error)})") from None


@dataclass(frozen=True, kw_only=True)
class Checkpoint(BareCheckpoint):
    """A checkpoint with a tokenizer that fits its vocabulary."""

    tokenizer: "PreTrainedTokenizerBase"


def open_checkpoint(name_or_folder: str, *, tokenizer: str | None = None) -> Checkpoint:
    """Finds a checkpoint and checks all of it but the weights' values.

    Args:
        name_or_folder: of a checkpoint in Hugging Face layout, or in that of BAM's authors.
        tokenizer: whose tokenizer to take instead of its own, as for `open_tokenizer`.

    Raises:
        BadInput: anything about it that is not as it should be, in one line.
    """
    bare = open_bare_checkpoint(name_or_folder)
    if tokenizer is None and not has_tokenizer(bare.folder):
        raise BadInput(
            f"{bare.folder} has no tokenizer.json; name the tokenizer of its training: --tokenizer"
        )
    opened = _read_tokenizer(bare.folder) if tokenizer is None else open_tokenizer(tokenizer)
    if len(opened) > bare.config.vocab_size:
        whose = "the tokenizer" if tokenizer is None else f"the tokenizer of {tokenizer}"
        raise BadInput(
            f"{bare.folder}: {whose} has {len(opened)} tokens, the model knows {bare.config.vocab_size}"
        )
    parts = {field.name: getattr(bare, field.name) for field in fields(bare)}
    return Checkpoint(**parts, tokenizer=opened)


def open_bare_checkpoint(name_or_folder: str) -> BareCheckpoint:
    """The same without a tokenizer, which then need not be there.

    Raises:
        BadInput: anything about the rest that is not as it should be, in one line.
    """
    folder = find_model(name_or_folder)
    weights: SafetensorsWeights | AuthorsWeights
    if (folder / "config.json").is_file():
        config = _read_config(folder)
        weights = SafetensorsWeights(files=_weight_files(folder))
        parameters = _check_weights(folder, weights.files, config)
    else:
        weights = read_authors(folder)
        config = weights.config
        parameters = _count_parameters(_without_weights(config))
    return BareCheckpoint(
        name=folder.resolve().name, folder=folder, config=config, weights=weights, parameters=parameters
    )


def _read_config(folder: Path) -> BamConfig:
    path = folder / "config.json"
    content = read_json(path)
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(content, dict) or kind != BamConfig.model_type:
        told = f"{path}: model_type is {kind!r}; the native backend runs {BamConfig.model_type!r} alone"
        raise ForeignModel(told, model_type=kind) if isinstance(kind, str) else BadInput(told)
    try:
        return BamConfig.from_dict(content)
    except Exception as error:  # whatever a value out of place makes transformers raise
        raise BadInput(f"{path}: {one_line(error)}") from None


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(name for name in names if not (folder / name).is_file())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{index} is no index of weights ({one_line(error)})") from None
        if missing:
            raise BadInput(f"{folder}: weights {missing[0]} are missing; {index.name} names them")
        return tuple(folder / name for name in sorted(names))
    raise BadInput(f"{folder} has no model.safetensors: weights are read from safetensors alone")


def _check_weights(folder: Path, files: tuple[Path, ...], config: BamConfig) -> int:
    """Compares the stored shapes with those that the configuration asks for; the number of parameters."""
    stored: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                stored |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise BadInput(f"{file} is damaged or cut short ({one_line(error)})") from None
    if config.num_hidden_layers > len(stored):  # before a model of so many layers is drawn up
        raise BadInput(
            f"{folder}: config.json says num_hidden_layers {config.num_hidden_layers},"
            f" the weights hold {len(stored)} tensors in all"
        )
    model = _without_weights(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
        stored.pop("lm_head.weight", None)
    for name in sorted(wanted.keys() | stored.keys()):
        if name not in stored:
            raise BadInput(f"{folder}: the weights lack {name}, which config.json asks for")
        if name not in wanted:
            raise BadInput(f"{folder}: the weights hold {name}, which config.json has no place for")
        if stored[name] != wanted[name]:
            raise BadInput(
                f"{folder}: weight {name} is {list(stored[name])}, config.json asks for {list(wanted[name])}"
            )
    return _count_parameters(model)


def _without_weights(config: BamConfig) -> BamForCausalLM:
    """The model on paper: shapes that take no memory."""
    with torch.device("meta"):
        return BamForCausalLM(config)


def _count_parameters(model: BamForCausalLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def open_tokenizer(name_or_path: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a checkpoint, and nothing else of it.

    Args:
        name_or_path: the name of a checkpoint, a folder with a tokenizer, or a tokenizer's file.

    Raises:
        BadInput: there is no such thing, or it holds no tokenizer.
    """
    path = find_path(name_or_path, kind="model or tokenizer")
    if path.is_file() and path.name in TOKENIZER_FILES:
        path = path.parent  # with what may lie beside it
    tokenizer: PreTrainedTokenizerBase = (
        _read_tokenizer_file(path) if path.is_file() else _read_tokenizer(path)
    )
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer; nothing is read."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _read_tokenizer(folder: Path) -> Any:
    if not has_tokenizer(folder):
        raise BadInput(f"{folder} has no tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a damaged tokenizer file makes transformers raise
        raise BadInput(f"{folder}: the tokenizer cannot be read ({one_line(error)})") from None


def _read_tokenizer_file(file: Path) -> Any:
    try:
        return PreTrainedTokenizerFast(tokenizer_file=str(file))
    except Exception as error:
        raise BadInput(f"{file} cannot be read as a tokenizer ({one_line(error)})") from None


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keeps transformers from drawing a bar on stderr, which belongs to the program that calls it."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
