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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer
from transformers.utils import logging

from bamctl.errors import BadInput, did_you_mean
from bamctl.locations import DEFAULT_MODEL as DEFAULT_MODEL
from bamctl.locations import search_path
from bamctl.models.config import BamConfig
from bamctl.models.modeling import BamForCausalLM

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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder whose configuration, tokenizer and weights fit together."""

    name: str
    folder: Path
    config: BamConfig
    tokenizer: "PreTrainedTokenizerBase"
    weight_files: tuple[Path, ...]
    parameters: int

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what decides the model's answers: its form and its weights, however stored.

        Neither starting values nor what transformers adds to a configuration count, so another version of it,
        other shards, or another name leave it as it is.
        """
        digest = hashlib.sha256()
        form = {name: getattr(self.config, name) for name in DEFINING_FIELDS}
        digest.update(json.dumps(form, sort_keys=True).encode())
        for name, tensor in sorted(_stored_tensors(self.weight_files), key=lambda item: item[0]):
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
        try:
            with no_progress_bar():
                model: BamForCausalLM = BamForCausalLM.from_pretrained(
                    self.folder, config=self.config, dtype=DTYPES[dtype], local_files_only=True
                )
        except (OSError, SafetensorError) as error:
            raise BadInput(f"{self.folder}: the weights cannot be read ({_one_line(error)})") from None
        for name, value in model.state_dict().items():  # with the values of a prior that are not learned
            if not torch.isfinite(value).all():
                raise BadInput(f"{self.folder}: weight {name} is not finite in {dtype}")
        torch.nn.Module.to(model, device)  # transformers' own wrapper only adds checks for quantised models
        return model


def model_folders() -> dict[str, Path]:
    """The checkpoints that have a name, sorted; where folders share one, the user's own."""
    found: dict[str, Path] = {}
    for folder in search_path("models"):
        for config in folder.glob("*/config.json"):
            found.setdefault(config.parent.name, config.parent)
    return dict(sorted(found.items()))


def find_model(name_or_folder: str) -> Path:
    """The folder of a checkpoint.

    Raises:
        BadInput: neither the name of a checkpoint nor a folder that holds one.
    """
    folder = _find_folder(name_or_folder)
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} is no checkpoint: it has no config.json")
    return folder


def _find_folder(name_or_folder: str) -> Path:
    known = model_folders()
    if name_or_folder in known:
        return known[name_or_folder]
    try:
        folder = Path(name_or_folder).expanduser()
        exists = folder.exists()
    except (OSError, RuntimeError):  # longer than a path may be, or the home of nobody
        exists = False
    if not exists:
        raise BadInput(f"there is no model {name_or_folder!r}{did_you_mean(name_or_folder, known)}")
    return folder


def open_checkpoint(name_or_folder: str) -> Checkpoint:
    """Finds a checkpoint and checks all of it but the weights' values.

    Raises:
        BadInput: anything about it that is not as it should be, in one line.
    """
    folder = find_model(name_or_folder)
    config = _read_config(folder)
    files = _weight_files(folder)
    parameters = _check_weights(folder, files, config)
    tokenizer = _read_tokenizer(folder)
    if len(tokenizer) > config.vocab_size:
        raise BadInput(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model knows {config.vocab_size}"
        )
    return Checkpoint(
        name=folder.resolve().name,
        folder=folder,
        config=config,
        tokenizer=tokenizer,
        weight_files=files,
        parameters=parameters,
    )


def _read_config(folder: Path) -> BamConfig:
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({_one_line(error)})") from None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != BamConfig.model_type:
        raise BadInput(
            f"{path}: model_type is {kind!r}; the native backend runs {BamConfig.model_type!r} alone"
        )
    try:
        return BamConfig.from_dict(content)
    except Exception as error:  # whatever a value out of place makes transformers raise
        raise BadInput(f"{path}: {_one_line(error)}") from None


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(name for name in names if not (folder / name).is_file())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{index} is no index of weights ({_one_line(error)})") from None
        if missing:
            raise BadInput(f"{folder}: weights {missing[0]} are missing; {index.name} names them")
        return tuple(folder / name for name in sorted(names))
    raise BadInput(f"{folder} has no model.safetensors: weights are read from safetensors alone")


def _stored_tensors(files: tuple[Path, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no dictionary)
                yield name, opened.get_tensor(name)


def _check_weights(folder: Path, files: tuple[Path, ...], config: BamConfig) -> int:
    """Compares the stored shapes with those that the configuration asks for; the number of parameters."""
    stored: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                stored |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise BadInput(f"{file} is damaged or cut short ({_one_line(error)})") from None
    if config.num_hidden_layers > len(stored):  # before a model of so many layers is drawn up
        raise BadInput(
            f"{folder}: config.json says num_hidden_layers {config.num_hidden_layers},"
            f" the weights hold {len(stored)} tensors in all"
        )
    with torch.device("meta"):
        model = BamForCausalLM(config)
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
    return sum(parameter.numel() for parameter in model.parameters())


def open_tokenizer(name_or_folder: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a checkpoint, by its name or folder; nothing else of it is read.

    Raises:
        BadInput: no such folder, or no tokenizer in it.
    """
    tokenizer: PreTrainedTokenizerBase = _read_tokenizer(_find_folder(name_or_folder))
    return tokenizer


def _read_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(f"{folder} has no tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a damaged tokenizer file makes transformers raise
        raise BadInput(f"{folder}: the tokenizer cannot be read ({_one_line(error)})") from None


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


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
