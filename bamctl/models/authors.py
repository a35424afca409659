"""Checkpoints of BAM's authors (arXiv 2505.22842 and its code): `args.json` and `model.pt` → ours.

`args.json` holds the position encoding and the sizes, `model.pt` a state dict. Their decoder is ours under
other names; what differs in value is the location of a prior, which they store as loc with
μ = exp(loc) - exp(-loc), and ALiBi's slopes, which they do not store. Their b = -exp(scale) · (|j - i - μ| +
1e-5)^shape is `bamctl.attention.GeneralizedGaussian` with log_rate = scale and β = shape.

Shapes in comments and tables: V vocabulary, E width, F width of the SwiGLU, H heads, G key-value heads,
D head size.
"""

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from bamctl.attention import Laplace
from bamctl.errors import BadInput, did_you_mean
from bamctl.models.config import BamConfig, PositionEncoding
from bamctl.models.reading import one_line, read_json

ARGS, WEIGHTS = "args.json", "model.pt"

ENCODINGS: dict[str, PositionEncoding] = {
    "bam": "ggd",
    "alibi": "laplace",
    "nope": "uniform",
    "rotary": "rotary",
    "sinusoidal": "sinusoidal",
}
"""Their position encodings, each of which has a variant with `_ssmax`, and ours."""

SINUSOIDAL_THETA = 10000
"""The base that `bamctl.models.positions.sinusoids` knows."""

PREFIXES = re.compile(r"^(?:module\.|_orig_mod\.)+")
"""What DistributedDataParallel and torch.compile put before every name, in either order."""

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Count = Annotated[int, Field(ge=1, le=2**20)]
"""Far above any model, and small enough that a product of three fits into 64 bits."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Training(_Section):
    """`args`: how it was trained."""

    position_encoding: str
    sequence_length: Count | None = None


class _Model(_Section):
    """`model_args`, under their names. What only says how weights are started or trained is left out."""

    dim: Count
    n_layers: Count
    n_heads: Count
    n_kv_heads: Count | None = None
    vocab_size: Count
    multiple_of: Count = 1
    ffn_dim_multiplier: Annotated[float, Field(gt=0, le=2**20)] | None = None
    norm_eps: Positive
    max_seq_len: Count
    rope_theta: Positive | None = None
    sinusoidal_theta: Positive | None = None
    train_loc: bool = False
    global_positional_encoding: bool | None = None
    ssmax_prior: bool | None = None


class _Args(_Section):
    args: _Training
    model_args: _Model


@dataclass(frozen=True, kw_only=True)
class AuthorsWeights:
    """A `model.pt` whose tensors have the names and shapes that its `args.json` asks for."""

    file: Path
    config: BamConfig

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors under our names and in our shapes, with the fixed values that they do not store.

        Priors and SSMax come in fp32, everything else as it is stored.

        Raises:
            BadInput: the file is not what it was, or a value is not finite.
        """
        stored = _read_tensors(self.file)
        _check_tensors(self.file.parent, stored, self.config)
        for theirs, (ours, _) in _expected(self.config).items():
            value = _convert(theirs, stored.pop(theirs))
            if not value.isfinite().all():
                raise BadInput(f"{self.file}: tensor {theirs} holds values that are not finite")
            yield ours, value
        if self.config.position_encoding == "laplace":
            slopes = Laplace(self.config.num_attention_heads).slopes
            for layer in range(self.config.num_hidden_layers):
                yield f"model.layers.{layer}.self_attn.prior.slopes", slopes.clone()


def read_authors(folder: Path) -> AuthorsWeights:
    """Reads `args.json` and checks that `model.pt` holds exactly what it asks for; no value is read.

    Raises:
        BadInput: anything in either that is not as it should be, in one line.
    """
    args = _read_args(folder / ARGS)
    file = folder / WEIGHTS
    if not file.is_file():
        raise BadInput(f"{folder} has {ARGS}, but no {WEIGHTS}")
    stored = _read_tensors(file)
    if args.model_args.n_layers > len(stored):  # before a list of so many layers is drawn up
        raise BadInput(
            f"{folder}: {ARGS} says n_layers {args.model_args.n_layers}, {WEIGHTS} holds {len(stored)}"
            " tensors in all"
        )
    config = _config(folder / ARGS, args, shared_prior="prior.shape" in stored)
    _check_tensors(folder, stored, config)
    config.dtype = stored["output.weight"].dtype
    return AuthorsWeights(file=file, config=config)


def _read_args(path: Path) -> _Args:
    content = read_json(path)
    try:
        return _Args.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        problem = "is missing" if first["type"] == "missing" else _lowered(first["msg"])
        problem = re.sub(r" or instance of \w+", "", problem)  # a class of ours
        raise BadInput(f"{path}: {where}: {problem}") from None


def _lowered(message: str) -> str:
    return message[0].lower() + message[1:]


def _config(path: Path, args: _Args, *, shared_prior: bool) -> BamConfig:
    """`shared_prior`: what the weights say, where `args.json` does not."""
    encoding, model = args.args.position_encoding, args.model_args
    kind = encoding.removesuffix("_ssmax")
    if kind not in ENCODINGS:
        known = [name + suffix for name in ENCODINGS for suffix in ("", "_ssmax")]
        raise BadInput(
            f"{path}: args.position_encoding {encoding!r} is not known{did_you_mean(encoding, known)}"
        )
    if encoding == "bam_ssmax" and model.ssmax_prior is None:
        raise BadInput(
            f"{path}: model_args.ssmax_prior is missing: true where SSMax multiplies content and prior,"
            " false where the content alone"
        )
    if kind == "rotary" and model.rope_theta is None:
        raise BadInput(f"{path}: model_args.rope_theta is missing")
    if kind == "sinusoidal" and model.sinusoidal_theta not in (None, SINUSOIDAL_THETA):
        raise BadInput(
            f"{path}: model_args.sinusoidal_theta is {model.sinusoidal_theta:g}; {SINUSOIDAL_THETA} alone"
            " can be run"
        )
    if kind != "bam":
        shared_prior = False
    elif model.global_positional_encoding is not None:
        shared_prior = model.global_positional_encoding
    try:
        return BamConfig(
            vocab_size=model.vocab_size,
            hidden_size=model.dim,
            intermediate_size=_feed_forward_width(model),
            num_hidden_layers=model.n_layers,
            num_attention_heads=model.n_heads,
            num_key_value_heads=model.n_kv_heads,
            head_dim=model.dim // model.n_heads,
            position_encoding=ENCODINGS[kind],
            ssmax=encoding != kind,
            # Their ALiBi adds its bias behind SSMax, whatever the arguments say.
            ssmax_scales_prior=encoding != "alibi_ssmax" and model.ssmax_prior is not False,
            shared_prior=shared_prior,
            learned_location=model.train_loc,
            rms_norm_eps=model.norm_eps,
            rope_theta=500000.0 if model.rope_theta is None else model.rope_theta,
            train_length=args.args.sequence_length or model.max_seq_len,
        )
    except ValueError as error:
        raise BadInput(f"{path}: {one_line(error)}") from None


def _feed_forward_width(model: _Model) -> int:
    width = int((model.ffn_dim_multiplier or 1) * model.dim)
    return -(-width // model.multiple_of) * model.multiple_of


def _expected(config: BamConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Their name of each tensor → our name and their shape."""
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = (
        heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
    )
    per_head = (1, config.num_attention_heads, 1, 1)
    prior = {"shape": "beta", "scale": "log_rate", "loc": "mu"}
    layer = {
        "attention.wq.weight": ("self_attn.q_proj.weight", (queries, width)),
        "attention.wk.weight": ("self_attn.k_proj.weight", (keys, width)),
        "attention.wv.weight": ("self_attn.v_proj.weight", (keys, width)),
        "attention.wo.weight": ("self_attn.o_proj.weight", (width, queries)),
        "feed_forward.w1.weight": ("mlp.gate_proj.weight", (inner, width)),
        "feed_forward.w3.weight": ("mlp.up_proj.weight", (inner, width)),
        "feed_forward.w2.weight": ("mlp.down_proj.weight", (width, inner)),
        "attention_norm.weight": ("input_layernorm.weight", (width,)),
        "ffn_norm.weight": ("post_attention_layernorm.weight", (width,)),
    }
    whole = {
        "tok_embeddings.weight": ("model.embed_tokens.weight", (config.vocab_size, width)),
        "norm.weight": ("model.norm.weight", (width,)),
        "output.weight": ("lm_head.weight", (config.vocab_size, width)),
    }
    if config.ssmax:
        layer["attention.seq_scale"] = ("self_attn.ssmax.scale", per_head)
    if config.position_encoding == "ggd" and config.shared_prior:
        whole |= {f"prior.{theirs}": (f"model.prior.{ours}", per_head) for theirs, ours in prior.items()}
    elif config.position_encoding == "ggd":
        layer |= {
            f"attention.prior.{theirs}": (f"self_attn.prior.{ours}", per_head)
            for theirs, ours in prior.items()
        }
    for number in range(config.num_hidden_layers):
        whole |= {
            f"layers.{number}.{theirs}": (f"model.layers.{number}.{ours}", shape)
            for theirs, (ours, shape) in layer.items()
        }
    return whole


def _convert(theirs: str, value: Tensor) -> Tensor:
    kind = theirs.rpartition(".")[2]
    if kind == "weight":
        # A copy: the file may be replaced while the values are in use, and no two tensors share memory.
        return value.clone(memory_format=torch.contiguous_format)
    per_head_H = value.float().flatten()
    return 2 * per_head_H.sinh() if kind == "loc" else per_head_H


def _check_tensors(folder: Path, stored: Mapping[str, Tensor], config: BamConfig) -> None:
    expected = _expected(config)
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            raise BadInput(f"{folder}: {WEIGHTS} lacks tensor {name}, which {ARGS} asks for")
        if name not in expected:
            raise BadInput(f"{folder}: {WEIGHTS} holds tensor {name}, which {ARGS} has no place for")
        value, shape = stored[name], expected[name][1]
        if value.shape != shape:
            raise BadInput(
                f"{folder}: tensor {name} is {list(value.shape)} in {WEIGHTS}, {ARGS} asks for {list(shape)}"
            )
        if value.is_meta:
            raise BadInput(f"{folder}: tensor {name} has no values in {WEIGHTS}: it is of device meta")
        if value.dtype not in FLOATS or value.layout != torch.strided:
            raise BadInput(
                f"{folder}: tensor {name} is {value.dtype}, {value.layout}; dense floating-point numbers of"
                " 16 to 64 bits can be read"
            )


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """The state dict without the prefixes of its names; values stay on disk until they are used."""
    content = _unpickle(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file} is no state dict: it holds a {type(content).__name__}")
    tensors: dict[str, Tensor] = {}
    originals: dict[str, str] = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            what = "is no name" if not isinstance(key, str) else f"is a {type(value).__name__}, no tensor"
            raise BadInput(f"{file} is no state dict: {key!r} {what}")
        name = PREFIXES.sub("", key)
        if name in tensors:
            raise BadInput(f"{file}: tensor {name} is there twice, as {originals[name]} and as {key}")
        tensors[name], originals[name] = value, key
    return tensors


def _unpickle(file: Path) -> Any:
    _check_kind(file)
    try:
        with warnings.catch_warnings():  # of pickle protocols that it then refuses
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # whatever a damaged or malicious file makes torch raise
        text = " ".join(str(error).split())
        if wanted := re.search(r"\bGLOBAL (\S+)", text):
            raise BadInput(
                f"{file} is refused: it wants to call {wanted[1]} when it is read, and only tensors are taken"
                " from a pickle; save it again as a state dict"
            ) from None
        told = re.sub(r".*WeightsUnpickler error: | Check the documentation.*", "", text)
        raise BadInput(
            f"{file} cannot be read as a state dict ({told[:200] or type(error).__name__})"
        ) from None


def _check_kind(file: Path) -> None:
    """Tells in plain words of what torch would refuse in its own."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(2)
    except OSError as error:
        raise BadInput(f"{file} cannot be read as a state dict ({error.strerror or error})") from None
    if not begins:
        raise BadInput(f"{file} is empty")
    if begins != b"PK" and begins[:1] != b"\x80":  # torch's archive, and the bare pickle of older versions
        raise BadInput(f"{file} is no state dict that torch has saved")
    if begins == b"PK" and not zipfile.is_zipfile(file):  # its table of contents is at the end
        raise BadInput(f"{file} is cut short: the end of torch's archive is missing")
