"""The format of BAM's authors: what `args.json` and `model.pt` may be, and what is said of all else."""

import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bamctl.errors import BadInput
from bamctl.models.loading import BareCheckpoint, open_bare_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of their folders, to change."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in ("args.json", "model.pt"):
            shutil.copyfile(AUTHORS / name / file, folder / file)
        return folder

    return make


@pytest.fixture
def folder(copy: Callable[[str], Path]) -> Path:
    """A checkpoint with one prior for all layers, SSMax, two layers, width 32, four heads, vocabulary 97."""
    return copy("bam-ssmax")


def _edit_args(folder: Path, *remove: str, section: str = "model_args", **fields: Any) -> None:
    path = folder / "args.json"
    content = json.loads(path.read_text())
    content[section] |= fields
    for name in remove:
        del content[section][name]
    path.write_text(json.dumps(content))


def _edit_weights(folder: Path, edit: Callable[[dict[str, Any]], Any], **options: Any) -> None:
    weights = torch.load(folder / "model.pt", weights_only=True)
    edit(weights)
    torch.save(weights, folder / "model.pt", **options)


def _rename(change: Callable[[str], str]) -> Callable[[dict[str, Any]], None]:
    def edit(weights: dict[str, Any]) -> None:
        renamed = {change(name): value for name, value in weights.items()}
        weights.clear()
        weights.update(renamed)

    return edit


def _refused(use: Callable[[], object]) -> str:
    with pytest.raises(BadInput) as error:
        use()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def _open(folder: Path) -> BareCheckpoint:
    return open_bare_checkpoint(str(folder))


# --- what is read


def test_the_configuration(folder: Path) -> None:
    checkpoint = _open(folder)
    config = checkpoint.config
    assert (checkpoint.name, checkpoint.folder) == ("bam-ssmax", folder)
    assert (config.position_encoding, config.ssmax, config.ssmax_scales_prior) == ("ggd", True, True)
    assert (config.shared_prior, config.learned_location) == (True, False)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (97, 32, 64)
    assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (2, 4, 8)
    assert config.num_key_value_heads == 4
    assert (config.rms_norm_eps, config.train_length, config.tie_word_embeddings) == (1e-5, 96, False)
    model = checkpoint.load(device="cpu", dtype="float32")
    assert checkpoint.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert not model.training


@pytest.mark.parametrize(
    ("name", "encoding", "ssmax", "scales_prior", "shared", "learned"),
    [
        ("bam", "ggd", False, True, True, False),
        ("bam-per-layer-prior", "ggd", False, True, False, False),
        ("bam-ssmax-prior-unscaled", "ggd", True, False, True, False),
        ("bam-ssmax-learned-loc", "ggd", True, True, False, True),
        ("alibi", "laplace", False, True, False, False),
        ("alibi-ssmax", "laplace", True, False, False, False),
        ("nope-ssmax", "uniform", True, True, False, False),
        ("rotary", "rotary", False, True, False, False),
        ("sinusoidal-ssmax", "sinusoidal", True, True, False, False),
    ],
)
def test_position_encodings(
    name: str, encoding: str, ssmax: bool, scales_prior: bool, shared: bool, learned: bool
) -> None:
    config = _open(AUTHORS / name).config
    assert (config.position_encoding, config.ssmax) == (encoding, ssmax)
    assert config.ssmax_scales_prior == scales_prior
    assert (config.shared_prior, config.learned_location) == (shared, learned)


@pytest.mark.parametrize(
    "change",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"module._orig_mod.module.{name}",
        lambda name: f"module.{name}" if "layers.1" in name else f"_orig_mod.{name}",
    ],
    ids=["module", "compiled", "module of compiled", "compiled module", "three", "each another"],
)
def test_prefixes(change: Callable[[str], str], folder: Path) -> None:
    before = _open(folder).digest
    _edit_weights(folder, _rename(change))
    assert _open(folder).digest == before


def test_location(copy: Callable[[str], Path]) -> None:
    folder = copy("bam-ssmax-learned-loc")
    loc = torch.tensor([0.0, 1e-4, -2.5, 8.0])
    _edit_weights(folder, lambda w: w.update({"layers.1.attention.prior.loc": loc.view(1, 4, 1, 1)}))
    model = _open(folder).load(device="cpu", dtype="float32")
    expected = loc.double().exp() - (-loc.double()).exp()
    torch.testing.assert_close(
        model.state_dict()["model.layers.1.self_attn.prior.mu"], expected.float(), rtol=1e-6, atol=0
    )


def test_the_weights_say_where_the_prior_is_if_the_arguments_do_not(copy: Callable[[str], Path]) -> None:
    for name, shared in (("bam", True), ("bam-per-layer-prior", False)):
        folder = copy(name)
        before = _open(folder).digest
        _edit_args(folder, "global_positional_encoding")
        assert _open(folder).config.shared_prior == shared
        assert _open(folder).digest == before


@pytest.mark.parametrize(
    "change",
    [
        lambda f: _edit_args(f, "sequence_length", section="args"),
        lambda f: _edit_args(f, max_seq_len=4096),
        lambda f: _edit_args(f, "multiple_of", "max_batch_size", "n_kv_heads"),
        lambda f: _edit_args(f, n_kv_heads=4),
        lambda f: _edit_args(f, ffn_dim_multiplier=2.03),
        lambda f: _edit_args(f, ffn_dim_multiplier=1.9, multiple_of=32),
        lambda f: _edit_weights(f, lambda w: None, _use_new_zipfile_serialization=False),
    ],
    ids=["no sequence", "room for more", "fewer fields", "heads", "rounded down", "rounded up", "old file"],
)
def test_the_same_said_otherwise(change: Callable[[Path], Any], folder: Path) -> None:
    before = _open(folder).digest
    change(folder)
    assert _open(folder).digest == before
    assert _open(folder).config.train_length == 96


def test_no_multiplier_is_a_factor_of_one(folder: Path) -> None:
    _edit_args(folder, "ffn_dim_multiplier")
    assert _refused(lambda: _open(folder)).endswith("args.json asks for [32, 32]")


def test_grouped_queries(folder: Path) -> None:
    """The format has them, with keys and values repeated for neighbouring heads, as ours do."""
    expected = _open(folder)
    two: dict[str, Tensor] = {}

    def share(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if name.endswith(("wk.weight", "wv.weight"))]:
            two[name] = weights[name].view(4, 8, 32)[::2].reshape(16, 32)
            weights[name] = two[name].view(2, 8, 32).repeat_interleave(2, dim=0).reshape(32, 32)

    _edit_weights(folder, share)
    tokens = torch.randint(0, 97, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = _open(folder).load(device="cpu", dtype="float32")(tokens).logits
        _edit_args(folder, n_kv_heads=2)
        _edit_weights(folder, lambda w: w.update(two))
        grouped = _open(folder)
        assert grouped.parameters < expected.parameters
        torch.testing.assert_close(
            grouped.load(device="cpu", dtype="float32")(tokens).logits, whole, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(dtype: str, folder: Path) -> None:
    kind = getattr(torch, dtype)
    _edit_weights(folder, lambda w: w.update({name: value.to(kind) for name, value in w.items()}))
    tensors = dict(_open(folder).weights.tensors())
    assert tensors["lm_head.weight"].dtype == kind
    assert tensors["model.prior.beta"].dtype == tensors["model.layers.0.self_attn.ssmax.scale"].dtype
    assert tensors["model.prior.beta"].dtype == torch.float32


def test_nothing_is_read_before_it_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening maps the file: its values stay on disk."""
    told: dict[str, Any] = {}
    load = torch.load
    monkeypatch.setattr(
        torch, "load", lambda *args, **options: told.update(options) or load(*args, **options)
    )
    _open(folder)
    assert told["mmap"] is True
    assert told["weights_only"] is True


def test_tensors_do_not_depend_on_the_file(folder: Path) -> None:
    _edit_weights(folder, lambda w: w.update({"output.weight": w["tok_embeddings.weight"]}))
    tensors = dict(_open(folder).weights.tensors())
    assert tensors["lm_head.weight"].data_ptr() != tensors["model.embed_tokens.weight"].data_ptr()
    before = tensors["lm_head.weight"].clone()
    content = (folder / "model.pt").read_bytes()
    with (folder / "model.pt").open("r+b") as file:
        file.write(bytes(len(content)))
    assert torch.equal(tensors["lm_head.weight"], before)


# --- what is wrong


class _Call:
    """Runs a command once it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.mark}'",)


def _pickled(folder: Path, content: object, protocol: int) -> None:
    (folder / "model.pt").write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (lambda f, call: torch.save({"a": torch.zeros(2), "b": call}, f / "model.pt"), "posix.system"),
        (
            lambda f, call: torch.save(call, f / "model.pt", _use_new_zipfile_serialization=False),
            "posix.system",
        ),
        (lambda f, call: _pickled(f, call, 2), "posix.system"),
        (lambda f, call: torch.save(nn.Linear(2, 2), f / "model.pt"), "torch.nn.modules.linear.Linear"),
        (
            lambda f, call: torch.save({"loss": np.float64(3)}, f / "model.pt"),
            "numpy._core.multiarray.scalar",
        ),
    ],
    ids=["in a state dict", "older format", "bare pickle", "whole model", "numpy"],
)
def test_a_pickle_that_wants_more_than_tensors(
    write: Callable[[Path, _Call], Any], wanted: str, folder: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "it ran"
    write(folder, _Call(mark))
    message = _refused(lambda: _open(folder))
    assert message.startswith(f"{folder / 'model.pt'} is refused: it wants to call {wanted} when it is read")
    assert not mark.exists()


def test_a_pickle_of_a_later_protocol(folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    mark = tmp_path / "it ran"
    _pickled(folder, _Call(mark), 5)
    message = _refused(lambda: _open(folder))
    assert message.startswith(f"{folder / 'model.pt'} cannot be read as a state dict (Unsupported operand")
    assert not mark.exists()
    assert not recwarn.list


WEIGHT_DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (lambda f: (f / "model.pt").unlink(), "has args.json, but no model.pt"),
    "a folder": (
        lambda f: ((f / "model.pt").unlink(), (f / "model.pt").mkdir()),
        "has args.json, but no model.pt",
    ),
    "empty": (lambda f: (f / "model.pt").write_bytes(b""), "model.pt is empty"),
    "cut short": (
        lambda f: (f / "model.pt").write_bytes((f / "model.pt").read_bytes()[:-30]),
        "model.pt is cut short: the end of torch's archive is missing",
    ),
    "something else": (
        lambda f: (f / "model.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "model.pt is no state dict that torch has saved",
    ),
    "an archive of something else": (
        lambda f: zipfile.ZipFile(f / "model.pt", "w").close(),
        "model.pt cannot be read as a state dict (",
    ),
    "a list": (
        lambda f: torch.save([torch.zeros(2)], f / "model.pt"),
        "model.pt is no state dict: it holds a list",
    ),
    "a state dict inside": (
        lambda f: _edit_weights(f, lambda w: w.update(model=dict(w))),
        "model.pt is no state dict: 'model' is a dict, no tensor",
    ),
    "a number for a name": (
        lambda f: _edit_weights(f, lambda w: w.update({3: torch.zeros(2)})),
        "model.pt is no state dict: 3 is no name",
    ),
    "no values": (
        lambda f: _edit_weights(f, lambda w: w.update({"norm.weight": torch.ones(32, device="meta")})),
        "tensor norm.weight has no values in model.pt: it is of device meta",
    ),
    "one name twice": (
        lambda f: _edit_weights(f, lambda w: w.update({"module.norm.weight": torch.ones(32)})),
        "tensor norm.weight is there twice, as norm.weight and as module.norm.weight",
    ),
    "one missing": (
        lambda f: _edit_weights(f, lambda w: w.pop("layers.1.feed_forward.w3.weight")),
        "model.pt lacks tensor layers.1.feed_forward.w3.weight, which args.json asks for",
    ),
    "a prior missing": (
        lambda f: _edit_weights(f, lambda w: w.pop("prior.loc")),
        "model.pt lacks tensor prior.loc, which args.json asks for",
    ),
    "one too many": (
        lambda f: _edit_weights(f, lambda w: w.update(freqs_cis=torch.zeros(3))),
        "model.pt holds tensor freqs_cis, which args.json has no place for",
    ),
    "no priors asked for": (
        lambda f: _edit_args(f, section="args", position_encoding="nope_ssmax"),
        "model.pt holds tensor prior.loc, which args.json has no place for",
    ),
    "no ssmax asked for": (
        lambda f: _edit_args(f, section="args", position_encoding="bam"),
        "model.pt holds tensor layers.0.attention.seq_scale, which",
    ),
    "a prior a layer asked for": (
        lambda f: _edit_args(f, global_positional_encoding=False),
        "model.pt lacks tensor layers.0.attention.prior.loc, which",
    ),
    "another width": (
        lambda f: _edit_args(f, ffn_dim_multiplier=3),
        "tensor layers.0.feed_forward.w1.weight is [64, 32] in model.pt, args.json asks for [96, 32]",
    ),
    "another vocabulary": (
        lambda f: _edit_args(f, vocab_size=98),
        "tensor output.weight is [97, 32] in model.pt, args.json asks for [98, 32]",
    ),
    "more heads": (
        lambda f: _edit_args(f, n_heads=8),
        "tensor layers.0.attention.seq_scale is [1, 4, 1, 1] in model.pt, args.json asks for [1, 8, 1, 1]",
    ),
    "a prior of another form": (
        lambda f: _edit_weights(f, lambda w: w.update({"prior.shape": torch.ones(4)})),
        "tensor prior.shape is [4] in model.pt, args.json asks for [1, 4, 1, 1]",
    ),
    "whole numbers": (
        lambda f: _edit_weights(f, lambda w: w.update({"norm.weight": w["norm.weight"].int()})),
        "tensor norm.weight is torch.int32, torch.strided; dense floating-point numbers",
    ),
    "eight bits": (
        lambda f: _edit_weights(
            f, lambda w: w.update({"norm.weight": w["norm.weight"].to(torch.float8_e4m3fn)})
        ),
        "tensor norm.weight is torch.float8_e4m3fn, torch.strided;",
    ),
    "sparse": (
        lambda f: _edit_weights(f, lambda w: w.update({"output.weight": w["output.weight"].to_sparse()})),
        "tensor output.weight is torch.float32, torch.sparse_coo;",
    ),
    "a million layers": (
        lambda f: _edit_args(f, n_layers=2**20),
        "args.json says n_layers 1048576, model.pt holds 26 tensors in all",
    ),
    "every size at its most": (
        lambda f: _edit_args(f, dim=2**20, vocab_size=2**20, n_heads=2**10, ffn_dim_multiplier=1),
        "is [1, 4, 1, 1] in model.pt, args.json asks for [1, 1024, 1, 1]",
    ),
}


@pytest.mark.parametrize(("damage", "told"), WEIGHT_DAMAGES.values(), ids=WEIGHT_DAMAGES)
def test_what_is_wrong_with_the_weights(damage: Callable[[Path], Any], told: str, folder: Path) -> None:
    damage(folder)
    message = _refused(lambda: _open(folder))
    assert told in message
    assert str(folder) in message


ARGS_DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no JSON": (
        lambda f: (f / "args.json").write_text('{"args": '),
        "args.json cannot be read as JSON (",
    ),
    "no text": (
        lambda f: (f / "args.json").write_bytes(b"\xff\xfe\x00"),
        "args.json cannot be read as JSON (",
    ),
    "nested without end": (
        lambda f: (f / "args.json").write_text("[" * 100_000),
        "args.json cannot be read as JSON (",
    ),
    "a list": (lambda f: (f / "args.json").write_text("[]"), "args.json: the file: input should be a valid"),
    "no section": (lambda f: (f / "args.json").write_text('{"args": {}}'), "position_encoding: is missing"),
    "a section that is none": (
        lambda f: (f / "args.json").write_text('{"args": 3, "model_args": {}}'),
        "args.json: args: input should be a valid dictionary",
    ),
    **{
        f"no {field}": (
            lambda f, field=field: _edit_args(f, field),
            f"args.json: model_args.{field}: is missing",
        )
        for field in ("dim", "n_layers", "n_heads", "vocab_size", "norm_eps", "max_seq_len")
    },
    "no ssmax_prior": (
        lambda f: _edit_args(f, "ssmax_prior"),
        "args.json: model_args.ssmax_prior is missing: true where SSMax multiplies content and prior",
    ),
    "a misspelt encoding": (
        lambda f: _edit_args(f, section="args", position_encoding="bam_ssmaxx"),
        "args.json: args.position_encoding 'bam_ssmaxx' is not known (did you mean bam_ssmax?)",
    ),
    "an unknown encoding": (
        lambda f: _edit_args(f, section="args", position_encoding="t5"),
        "args.position_encoding 't5' is not known (known: alibi, alibi_ssmax, bam, bam_ssmax, nope, nope_",
    ),
    "no text for an encoding": (
        lambda f: _edit_args(f, section="args", position_encoding=None),
        "args.json: args.position_encoding: input should be a valid string",
    ),
    "no rope_theta": (
        lambda f: _edit_args(f, section="args", position_encoding="rotary"),
        "args.json: model_args.rope_theta is missing",
    ),
    "other sinusoids": (
        lambda f: (
            _edit_args(f, section="args", position_encoding="sinusoidal"),
            _edit_args(f, sinusoidal_theta=500),
        ),
        "args.json: model_args.sinusoidal_theta is 500; 10000 alone can be run",
    ),
    "no width": (
        lambda f: _edit_args(f, dim=0),
        "args.json: model_args.dim: input should be greater than or equal to 1",
    ),
    "beyond every width": (
        lambda f: _edit_args(f, dim=2**20 + 1),
        "args.json: model_args.dim: input should be less than or equal to 1048576",
    ),
    "half a layer": (
        lambda f: _edit_args(f, n_layers=1.5),
        "args.json: model_args.n_layers: input should be a valid integer",
    ),
    "text for a number": (lambda f: _edit_args(f, vocab_size="97"), "model_args.vocab_size: input should be"),
    "true for a number": (lambda f: _edit_args(f, n_heads=True), "model_args.n_heads: input should be"),
    "text for a switch": (lambda f: _edit_args(f, ssmax_prior="yes"), "model_args.ssmax_prior: input should"),
    "no epsilon": (
        lambda f: _edit_args(f, norm_eps=0),
        "model_args.norm_eps: input should be greater than 0",
    ),
    "no finite epsilon": (
        lambda f: _edit_args(f, norm_eps=float("inf")),
        "model_args.norm_eps: input should be a finite number",
    ),
    "a multiplier without end": (
        lambda f: _edit_args(f, ffn_dim_multiplier=float("inf")),
        "model_args.ffn_dim_multiplier: input should be less",
    ),
    "no SwiGLU left": (
        lambda f: _edit_args(f, ffn_dim_multiplier=0.01),
        "args.json: intermediate_size must be a whole number from 1",
    ),
    "more heads than width": (
        lambda f: _edit_args(f, n_heads=64),
        "args.json: head_dim must be a whole number from 1",
    ),
    "no multiple of key heads": (
        lambda f: _edit_args(f, n_kv_heads=3),
        "args.json: num_attention_heads 4 is no multiple of num_key_value_heads 3",
    ),
    "odd pairs": (
        lambda f: (
            _edit_args(f, section="args", position_encoding="rotary"),
            _edit_args(f, dim=28, rope_theta=1e4),
        ),
        "args.json: rotary turns pairs, so head_dim must be even, not 7",
    ),
}


@pytest.mark.parametrize(("damage", "told"), ARGS_DAMAGES.values(), ids=ARGS_DAMAGES)
def test_what_is_wrong_with_the_arguments(damage: Callable[[Path], Any], told: str, folder: Path) -> None:
    damage(folder)
    message = _refused(lambda: _open(folder))
    assert told in message
    assert str(folder) in message
    assert "instance of" not in message  # a class of this code


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["layers.1.attention.wq.weight", "prior.shape", "prior.loc"])
def test_values_that_are_not_finite(value: float, name: str, folder: Path) -> None:
    _edit_weights(folder, lambda w: w[name].view(-1)[2:3].fill_(value))
    checkpoint = _open(folder)
    for use in (lambda: checkpoint.load(device="cpu", dtype="float32"), lambda: checkpoint.digest):
        assert _refused(use) == f"{folder / 'model.pt'}: tensor {name} holds values that are not finite"


def test_a_location_beyond_every_number(folder: Path) -> None:
    _edit_weights(folder, lambda w: w["prior.loc"].fill_(100.0))
    assert "tensor prior.loc holds values that are not finite" in _refused(lambda: _open(folder).digest)


def test_a_weight_beyond_float16(folder: Path) -> None:
    _edit_weights(folder, lambda w: w["output.weight"].view(-1)[3:4].fill_(1e5))
    checkpoint = _open(folder)
    checkpoint.load(device="cpu", dtype="bfloat16")
    message = _refused(lambda: checkpoint.load(device="cpu", dtype="float16"))
    assert message == f"{folder}: weight lm_head.weight is not finite in float16"


def test_weights_that_vanish_between_opening_and_loading(folder: Path) -> None:
    checkpoint = _open(folder)
    (folder / "model.pt").unlink()
    message = _refused(lambda: checkpoint.load(device="cpu", dtype="float32"))
    assert re.match(rf"{re.escape(str(folder / 'model.pt'))} cannot be read as a state dict \(", message)


def test_a_folder_in_both_formats_is_the_imported_one(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    assert "config.json: model_type is None" in _refused(lambda: _open(folder))
