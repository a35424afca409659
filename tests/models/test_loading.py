"""From a name or a folder to a model: what is found, what is checked, and how it is told."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bamctl.errors import BadInput
from bamctl.models import BamConfig, BamForCausalLM
from bamctl.models.loading import (
    DTYPES,
    BareCheckpoint,
    ForeignModel,
    SafetensorsWeights,
    open_bare_checkpoint,
    open_checkpoint,
)
from bamctl.results.schema import RunIdentity


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., BamForCausalLM]) -> Path:
    """A sound checkpoint, to copy."""
    folder = tmp_path_factory.mktemp("saved") / "sound"
    make_model(train_length=64).save_pretrained(folder)
    words = {f"w{i}": i for i in range(49)} | {"<unk>": 49}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, to damage; the working directory is empty but for it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


def _edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _edit_weights(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _shard(folder: Path) -> None:
    """The same weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    index = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _one_line(error: pytest.ExceptionInfo[BadInput]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def test_a_sound_checkpoint(folder: Path, tokens: Tensor) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.name == "checkpoint"
    assert checkpoint.folder == folder
    assert checkpoint.config.train_length == 64
    assert len(checkpoint.tokenizer) == 50
    assert checkpoint.tokenizer("w3 w14").input_ids == [3, 14]
    assert checkpoint.weights == SafetensorsWeights(files=(folder / "model.safetensors",))
    model = checkpoint.load(device="cpu", dtype="float32")
    assert checkpoint.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert not model.training
    with torch.no_grad():
        expected = BamForCausalLM.from_pretrained(folder)(tokens).logits
        assert torch.equal(model(tokens).logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(folder: Path, dtype: str) -> None:
    model = open_checkpoint(str(folder)).load(device="cpu", dtype=dtype)
    assert model.lm_head.weight.dtype == DTYPES[dtype]
    assert model.model.layers[0].self_attn.prior.beta.dtype == torch.float32


@pytest.mark.parametrize(
    "fields",
    [
        {"position_encoding": "laplace"},
        {"position_encoding": "rotary", "ssmax": False},
        {"shared_prior": True, "learned_location": True},
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_other_architectures(
    fields: dict[str, Any],
    saved: Path,
    tmp_path: Path,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(**fields)
    model.save_pretrained(tmp_path)
    for file in saved.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.parameters == sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        logits = checkpoint.load(device="cpu", dtype="float32")(tokens).logits
        assert torch.equal(logits, model(tokens).logits)


def test_shards(folder: Path, tokens: Tensor) -> None:
    whole = open_checkpoint(str(folder))
    with torch.no_grad():
        expected = whole.load(device="cpu", dtype="float32")(tokens).logits
    _shard(folder)
    checkpoint = open_checkpoint(str(folder))
    assert isinstance(checkpoint.weights, SafetensorsWeights)
    assert [file.name for file in checkpoint.weights.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert checkpoint.parameters == whole.parameters
    with torch.no_grad():
        assert torch.equal(checkpoint.load(device="cpu", dtype="float32")(tokens).logits, expected)


def test_a_relative_folder(folder: Path) -> None:
    assert open_checkpoint("checkpoint").config.num_hidden_layers == 2
    assert open_checkpoint("./checkpoint/").name == "checkpoint"


# --- what is wrong with a folder

DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "is no checkpoint: it has no config.json"),
    "a file for a folder": (
        lambda f: (shutil.rmtree(f), f.write_text("")),
        "is no checkpoint: it has no config.json",
    ),
    "config is no JSON": (
        lambda f: (f / "config.json").write_text('{"model_type": "bam",'),
        r"config\.json cannot be read as JSON \(",
    ),
    "config is no text": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        r"config\.json cannot be read as JSON \(",
    ),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "model_type is None; the native"),
    "foreign model": (
        lambda f: _edit_config(f, model_type="llama"),
        "model_type is 'llama'; the native backend runs 'bam' alone",
    ),
    "no layers": (
        lambda f: _edit_config(f, num_hidden_layers=0),
        r"config\.json: num_hidden_layers must be a whole number from 1",
    ),
    "a million layers": (
        lambda f: _edit_config(f, num_hidden_layers=10**6, prior_beta=1.0),
        "config.json says num_hidden_layers 1000000, the weights hold 29 tensors in all",
    ),
    "a billion layers": (
        lambda f: _edit_config(f, num_hidden_layers=10**9),
        r"config\.json: num_hidden_layers must be a whole number from 1",
    ),
    "every size at its most": (
        lambda f: _edit_config(
            f,
            **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "head_dim"), 2**20),
            num_attention_heads=2**14,
            num_key_value_heads=2**14,
            prior_beta=1.0,
            ssmax_initial=1.0,
        ),
        r"weight lm_head\.weight is \[50, 24\], config\.json asks for \[1048576, 1048576\]",
    ),
    "negative width": (lambda f: _edit_config(f, hidden_size=-24), "hidden_size must be a whole number"),
    "text for a number": (lambda f: _edit_config(f, vocab_size="50"), "vocab_size must be a whole number"),
    "text for a switch": (lambda f: _edit_config(f, ssmax="yes"), "ssmax must be true or false, not 'yes'"),
    "infinite epsilon": (
        lambda f: _edit_config(f, rms_norm_eps=float("inf")),
        "rms_norm_eps must be a number above 0, not inf",
    ),
    "unknown encoding": (
        lambda f: _edit_config(f, position_encoding="rope"),
        "position_encoding 'rope' is none of ggd, laplace",
    ),
    "unknown dtype": (lambda f: _edit_config(f, dtype="float7"), r"config\.json: "),
    "labels out of place": (lambda f: _edit_config(f, id2label=3), r"config\.json: "),
    "a number too large for floating point": (lambda f: _edit_config(f, prior_mu=10**400), r"config\.json: "),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"has no model\.safetensors: weights are read from safetensors alone",
    ),
    "weights as a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        r"has no model\.safetensors: weights are read from safetensors alone",
    ),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "is damaged or cut short"),
    "weights cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1]),
        "is damaged or cut short",
    ),
    "weights cut in the header": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:100]),
        "is damaged or cut short",
    ),
    "a header of 2^62 bytes": (
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}"),
        "is damaged or cut short",
    ),
    "weights are something else": (
        lambda f: (f / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "is damaged or cut short",
    ),
    "a weight missing": (
        lambda f: _edit_weights(f, lambda w: w.pop("model.layers.1.mlp.up_proj.weight")),
        r"the weights lack model\.layers\.1\.mlp\.up_proj\.weight, which config\.json asks for",
    ),
    "a prior missing": (
        lambda f: _edit_weights(f, lambda w: w.pop("model.layers.0.self_attn.prior.mu")),
        r"the weights lack model\.layers\.0\.self_attn\.prior\.mu, which",
    ),
    "a weight too many": (
        lambda f: _edit_weights(f, lambda w: w.update(rotary_table=torch.zeros(3))),
        "the weights hold rotary_table, which config.json has no place for",
    ),
    "priors of another encoding": (
        lambda f: _edit_config(f, position_encoding="uniform"),
        r"the weights hold model\.layers\.0\.self_attn\.prior\.beta, which config\.json has no place for",
    ),
    "no ssmax where there is one": (
        lambda f: _edit_config(f, ssmax=False),
        r"the weights hold model\.layers\.0\.self_attn\.ssmax\.scale, which",
    ),
    "another width": (
        lambda f: _edit_config(f, intermediate_size=41),
        r"mlp\.down_proj\.weight is \[24, 40\], config\.json asks for \[24, 41\]",
    ),
    "a weight of another shape": (
        lambda f: _edit_weights(f, lambda w: w.update({"model.norm.weight": torch.ones(1, 24)})),
        r"weight model\.norm\.weight is \[1, 24\], config\.json asks for \[24\]",
    ),
    "a shard missing": (
        lambda f: (_shard(f), (f / "model-00002-of-00002.safetensors").unlink()),
        r"weights model-00002-of-00002\.safetensors are missing; model\.safetensors\.index\.json names them",
    ),
    "a shard cut short": (
        lambda f: (_shard(f), (f / "model-00001-of-00002.safetensors").write_bytes(b"\x08")),
        r"model-00001-of-00002\.safetensors is damaged or cut short",
    ),
    "an empty index": (
        lambda f: (_shard(f), (f / "model.safetensors.index.json").write_text('{"weight_map": {}}')),
        "the weights hold 0 tensors in all",
    ),
    **{
        f"an index of {content}": (
            lambda f, content=content: (_shard(f), (f / "model.safetensors.index.json").write_text(content)),
            r"index\.json is no index of weights",
        )
        for content in (
            "{",
            "[]",
            "{}",
            '{"weight_map": 3}',
            '{"weight_map": {"a": 1}}',
            '{"weight_map": {"a": []}}',
        )
    },
    "no tokenizer": (
        lambda f: [file.unlink() for file in f.glob("tokenizer*")],
        r"has no tokenizer\.json; name the tokenizer of its training: --tokenizer$",
    ),
    "a damaged tokenizer": (
        lambda f: (f / "tokenizer.json").write_text('{"version": "1.0", "model"'),
        r"the tokenizer cannot be read \(",
    ),
    "a tokenizer of nothing": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        r"the tokenizer cannot be read \(",
    ),
    "a tokenizer too large": (
        lambda f: (
            _edit_config(f, vocab_size=49),
            _edit_weights(
                f, lambda w: w.update({n: w[n][:49] for n in ("lm_head.weight", "model.embed_tokens.weight")})
            ),
        ),
        "the tokenizer has 50 tokens, the model knows 49",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_wrong_is_told_in_one_line(damage: Callable[[Path], Any], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(BadInput) as error:
        open_checkpoint(str(folder))
    line = _one_line(error)
    assert re.search(message, line), line
    assert str(folder) in line


def test_a_foreign_model_says_what_it_is(folder: Path) -> None:
    _edit_config(folder, model_type="llama")
    with pytest.raises(ForeignModel) as error:
        open_checkpoint(str(folder))
    assert error.value.model_type == "llama"
    _edit_config(folder, model_type=["llama"])
    with pytest.raises(BadInput) as unknown:
        open_checkpoint(str(folder))
    assert not isinstance(unknown.value, ForeignModel)


def test_a_bare_checkpoint_needs_no_tokenizer(folder: Path) -> None:
    whole = open_checkpoint(str(folder))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    bare = open_bare_checkpoint(str(folder))
    assert isinstance(bare, BareCheckpoint)
    assert (bare.digest, bare.parameters) == (whole.digest, whole.parameters)
    bare.load(device="cpu", dtype="float32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.prior.beta"])
def test_a_weight_that_is_not_finite(value: float, name: str, folder: Path) -> None:
    _edit_weights(folder, lambda w: w[name].view(-1)[3:4].fill_(value))
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(BadInput) as error:
        checkpoint.load(device="cpu", dtype="float32")
    assert f"weight {name} is not finite in float32" in _one_line(error)


def test_a_location_that_is_not_finite(folder: Path) -> None:
    """It is not learned, so no parameter; it decides the answers all the same."""
    name = "model.layers.0.self_attn.prior.mu"
    _edit_weights(folder, lambda w: w[name].fill_(float("nan")))
    with pytest.raises(BadInput, match=f"weight {re.escape(name)} is not finite"):
        open_checkpoint(str(folder)).load(device="cpu", dtype="float32")


def test_a_weight_beyond_float16(folder: Path) -> None:
    _edit_weights(folder, lambda w: w["lm_head.weight"].view(-1)[3:4].fill_(1e5))
    checkpoint = open_checkpoint(str(folder))
    checkpoint.load(device="cpu", dtype="float32")
    checkpoint.load(device="cpu", dtype="bfloat16")
    with pytest.raises(BadInput, match=r"weight lm_head\.weight is not finite in float16"):
        checkpoint.load(device="cpu", dtype="float16")


def test_weights_that_vanish_between_opening_and_loading(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    (folder / "model.safetensors").unlink()
    for use in (lambda: checkpoint.load(device="cpu", dtype="float32"), lambda: checkpoint.digest):
        with pytest.raises(BadInput) as error:
            use()
        assert "the weights cannot be read" in _one_line(error)


# --- the digest


def test_the_digest_is_that_of_the_content(folder: Path, tmp_path: Path) -> None:
    digest = open_checkpoint(str(folder)).digest
    assert re.fullmatch("[0-9a-f]{64}", digest)
    renamed = tmp_path / "another name"
    folder.rename(renamed)
    assert open_checkpoint(str(renamed)).digest == digest
    _edit_config(renamed, transformers_version="4.0.0", dtype="bfloat16", _name_or_path="x/y")
    assert open_checkpoint(str(renamed)).digest == digest


def test_the_digest_is_the_same_before_and_after_loading(folder: Path) -> None:
    before = open_checkpoint(str(folder))
    digest = before.digest
    after = open_checkpoint(str(folder))
    after.load(device="cpu", dtype="bfloat16")
    assert after.digest == digest


@pytest.mark.parametrize(
    "change",
    [
        lambda f: _edit_config(f, rms_norm_eps=2e-5),
        lambda f: _edit_config(f, ssmax_scales_prior=False),
        lambda f: _edit_weights(f, lambda w: w["lm_head.weight"].view(-1)[0:1].add_(1e-3)),
        lambda f: _edit_weights(f, lambda w: w["model.layers.1.self_attn.prior.beta"].add_(1e-3)),
    ],
    ids=["epsilon", "switch", "weight", "prior"],
)
def test_the_digest_changes_with_what_decides_the_answers(
    change: Callable[[Path], Any], folder: Path
) -> None:
    before = open_checkpoint(str(folder)).digest
    change(folder)
    assert open_checkpoint(str(folder)).digest != before


def test_one_weight_makes_another_run_under_the_same_name(folder: Path) -> None:
    def run_id() -> str:
        checkpoint = open_checkpoint(str(folder))
        assert checkpoint.name == "checkpoint"
        values: dict[str, Any] = dict.fromkeys(RunIdentity.__dataclass_fields__, "same")
        values |= {"model": checkpoint.name, "model_digest": checkpoint.digest}
        return RunIdentity(**values).run_id

    before = run_id()
    assert run_id() == before
    _edit_weights(folder, lambda w: w["model.norm.weight"][5:6].add_(1e-6))
    assert run_id() != before


def test_the_digest_is_not_of_starting_values_or_of_what_transformers_adds(folder: Path) -> None:
    before = open_checkpoint(str(folder)).digest
    _edit_config(
        folder, prior_beta=0.3, initializer_range=0.5, use_cache=False, train_length=77, chunk_size=3
    )
    assert open_checkpoint(str(folder)).digest == before


def test_the_digest_of_shards_is_that_of_the_whole_and_changes_with_any_of_them(folder: Path) -> None:
    whole = open_checkpoint(str(folder)).digest
    _shard(folder)
    before = open_checkpoint(str(folder)).digest
    assert before == whole
    shard = folder / "model-00002-of-00002.safetensors"
    weights = load_file(shard)
    weights[min(weights)].view(-1)[0:1].add_(1e-3)
    save_file(weights, shard, metadata={"format": "pt"})
    assert open_checkpoint(str(folder)).digest != before


def test_the_configuration_is_ours(folder: Path) -> None:
    assert isinstance(open_checkpoint(str(folder)).config, BamConfig)
