"""Positions, arguments, weights and names: all that is known of a model before it is loaded."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bamctl.backends.opening import open_model
from bamctl.backends.positions import FrequencySwitch, describe_positions, with_rope_scaling
from bamctl.backends.weights import digest_model, weight_files
from bamctl.errors import BadInput
from bamctl.models.reading import one_line

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 5000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture(scope="session")
def llama(save_foreign):
    return save_foreign("llama", transformers.LlamaConfig(**SIZES))


@pytest.fixture
def copy(llama, tmp_path):
    """The folder of a checkpoint that a test may write to."""
    shutil.copytree(llama, tmp_path / "llama")
    return tmp_path / "llama"


def positions(config, plain=None, *, stretched=False, learned=False):
    told = describe_positions(config, plain=plain or config, stretched=stretched, learned=learned)
    return told.encoding, told.train_length, told.limit, told.switch


def test_how_configurations_say_what_positions_they_have():
    made = {
        "llama": transformers.LlamaConfig(max_position_embeddings=4096),
        "gpt2": transformers.GPT2Config(n_positions=1024),
        "bloom": transformers.BloomConfig(seq_length=2048),
        "mpt": transformers.MptConfig(max_seq_len=2048),
        "falcon": transformers.FalconConfig(alibi=True),
        "falcon, rotary": transformers.FalconConfig(alibi=False),
        "gpt-j": transformers.GPTJConfig(),
        "mamba": transformers.MambaConfig(),
    }
    assert {name: positions(config)[:3] for name, config in made.items()} == {
        "llama": ("rotary", 4096, 4096),
        "gpt2": ("unknown", 1024, 1024),
        "bloom": ("laplace", 2048, None),
        "mpt": ("laplace", 2048, 2048),
        "falcon": ("laplace", 2048, None),
        "falcon, rotary": ("rotary", 2048, 2048),
        "gpt-j": ("rotary", 2048, 2048),
        "mamba": ("state-space", None, None),
    }
    assert positions(made["gpt2"], learned=True)[0] == "learned"


def scaled(limit, **rope):
    return transformers.LlamaConfig(max_position_embeddings=limit, rope_scaling=rope)


@pytest.mark.parametrize(
    ("config", "trained", "limit"),
    [
        # as Llama 3.1 and Phi-3 are published: the limit is the scaled one
        (
            scaled(
                131072,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=8192,
            ),
            8192,
            131072,
        ),
        (scaled(16384, rope_type="linear", factor=4.0), 16384, 16384),
        # as Qwen's cards say to write YaRN: the limit stays the original one
        (
            scaled(32768, rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
            32768,
            131072,
        ),
        (scaled(163840, rope_type="yarn", factor=40.0, original_max_position_embeddings=4096), 4096, 163840),
    ],
)
def test_a_scaling_that_a_checkpoint_came_with(config, trained, limit):
    assert positions(config)[1:3] == (trained, limit)


@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic"])
def test_a_scaling_of_ones_own_stretches_the_limit(kind):
    plain = transformers.LlamaConfig(max_position_embeddings=4096)
    given = with_rope_scaling({"rope_type": kind, "factor": 4.0}, plain)
    config = transformers.LlamaConfig(max_position_embeddings=4096, rope_scaling=given)
    _, trained, limit, switch = positions(config, plain, stretched=True)
    assert (trained, limit) == (4096, 16384)
    assert switch == (FrequencySwitch(at=4096, once=False) if kind == "dynamic" else None)


def test_a_scaling_keeps_the_base_and_the_length_before_it():
    plain = transformers.LlamaConfig(max_position_embeddings=4096, rope_theta=5e5)
    assert with_rope_scaling(YARN, plain) == {
        **YARN,
        "rope_theta": 5e5,
        "original_max_position_embeddings": 4096,
    }
    given = {**YARN, "rope_theta": 1e4, "original_max_position_embeddings": 2048}
    assert with_rope_scaling(given, plain) == given
    linear = {"rope_type": "linear", "factor": 2.0}
    assert with_rope_scaling(linear, plain) == {**linear, "rope_theta": 5e5}


def test_a_scaling_for_one_kind_of_layers_leaves_the_others():
    plain = transformers.Gemma3TextConfig(max_position_embeddings=4096)
    before = plain.rope_parameters
    changed = with_rope_scaling({"full_attention": {"rope_type": "linear", "factor": 8.0}}, plain)
    assert changed["sliding_attention"] == before["sliding_attention"]
    assert changed["full_attention"] == {**before["full_attention"], "rope_type": "linear", "factor": 8.0}


def test_an_argument_makes_another_model(llama):
    plain = open_model(str(llama))
    stretched = open_model(str(llama), model_args={"rope_scaling": YARN})
    same = open_model(str(llama), model_args={"rope_parameters": YARN})
    longer = open_model(str(llama), model_args={"max_position_embeddings": 1024})
    assert [model.longest_prompt for model in (plain, stretched, same, longer)] == [256, 1024, 1024, 1024]
    assert {model.train_length for model in (plain, stretched, longer)} == {256}
    assert (plain.name, stretched.name) == ("llama", "llama (rope_scaling={rope_type:yarn,factor:4.0})")
    assert len({model.digest() for model in (plain, stretched, longer)}) == 3
    assert stretched.digest() == same.digest()
    assert stretched.config.rope_parameters["rope_theta"] == 5000.0
    assert stretched.config.rope_parameters["original_max_position_embeddings"] == 256
    started = stretched.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    assert (started.model.name, started.model.longest_prompt) == (stretched.name, 1024)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rope_scaling": 4}, 'rope_scaling=4: must be JSON such as {"rope_type":"yarn","factor":4.0}'),
        ({"rope_scaling": {"rope_type": "yarm"}}, "there is no rope_type 'yarm' (did you mean yarn?)"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        (
            {"max_position_embedings": 9},
            "a llama configuration has no such field (did you mean max_position_embeddings?)",
        ),
        ({"model_type": "gpt2"}, "a llama configuration has no such field"),
        ({"hidden_size": "big"}, "hidden_size"),
    ],
)
def test_arguments_that_are_refused(llama, arguments, said):
    with pytest.raises(BadInput) as caught:
        open_model(str(llama), model_args=arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shapes_that_disagree_are_told_with_both(llama):
    opened = open_model(str(llama), model_args={"intermediate_size": 64})
    with pytest.raises(BadInput) as caught:
        opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    assert str(caught.value) == (
        "llama (intermediate_size=64): weight model.layers.0.mlp.down_proj.weight is [32, 48], the"
        " configuration asks for [32, 64]"
    )


def change(folder, tensors, *, drop=()):
    path = folder / "model.safetensors"
    stored = {name: value for name, value in load_file(path).items() if name not in drop}
    save_file(stored | tensors, path, metadata={"format": "pt"})


def test_a_weight_that_is_not_there_is_told(copy):
    change(copy, {}, drop=["model.norm.weight"])
    with pytest.raises(BadInput, match=r"^llama: the weights lack model\.norm\.weight, which the"):
        open_model(str(copy)).start(device="cpu", dtype="auto", share_prefixes=True, longest=512)


def test_a_weight_too_many_is_left_out_and_told(copy, capsys):
    change(copy, {"model.prior.weight": torch.ones(3)})
    open_model(str(copy)).start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    assert capsys.readouterr().err == (
        "llama: 1 of the stored weights are not part of a LlamaForCausalLM and were left out"
        " (model.prior.weight)\n"
    )


def test_the_digest_is_of_values_and_not_of_files(copy, llama):
    before = open_model(str(llama)).digest()
    assert open_model(str(copy)).digest() == before
    model = AutoModelForCausalLM.from_pretrained(copy)
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy, max_shard_size="100kB")
    assert len(weight_files(copy)) > 1
    assert open_model(str(copy)).digest() == before
    model.lm_head.weight.data[3, 3] += 1
    model.save_pretrained(copy, max_shard_size="100kB")
    assert open_model(str(copy)).digest() != before


def test_the_digest_is_of_the_form_too():
    assert digest_model({"a": 1, "dtype": "float32"}, []) == digest_model({"a": 1}, [])
    assert digest_model({"a": 1}, []) != digest_model({"a": 2}, [])


def test_a_file_that_is_cut_short(copy):
    opened = open_model(str(copy))
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match="is damaged or cut short"):
        opened.digest()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="is damaged or cut short"):
        opened.digest()


def test_a_folder_without_weights_or_tokenizer(copy, llama, tiny_checkpoint):
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BadInput, match=r"has no tokenizer\.json; name the tokenizer of its training: --tok"):
        open_model(str(copy))
    for source in (tiny_checkpoint, tiny_checkpoint / "tokenizer.json"):
        borrowed = open_model(str(copy), tokenizer=str(source)).tokenizer
        assert borrowed.get_vocab() == open_model(str(llama)).tokenizer.get_vocab()
    (copy / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"has no model\.safetensors, nor another file of weights"):
        open_model(str(copy), tokenizer=str(tiny_checkpoint))


def test_auto_is_native_for_our_own_and_transformers_for_others(tiny_checkpoint, llama):
    kinds = {str(folder): type(open_model(str(folder))).__name__ for folder in (tiny_checkpoint, llama)}
    assert list(kinds.values()) == ["NativeModel", "HubModel"]
    with pytest.raises(BadInput, match="model_type is 'llama'; the native backend runs 'bam' alone"):
        open_model(str(llama), backend="native")
    with pytest.raises(BadInput, match="runs in the native backend, which takes none; --backend"):
        open_model(str(tiny_checkpoint), model_args={"rope_theta": 3})
    with pytest.raises(BadInput, match=r"backend 'vlm' is not known \(did you mean vllm\?\)"):
        open_model(str(llama), backend="vlm")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "lama"}, "model_type is 'lama', which transformers"),
        ({"model_type": "vit"}, "has no causal language model of model_type 'vit'"),
        ({"num_attention_heads": 5}, "is not a multiple of the number of attention"),
        (
            {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
            "brings code of its own; read it, and run it with --trust-remote-code",
        ),
    ],
)
def test_configurations_that_describe_no_model(copy, fields, said):
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(BadInput) as caught:
        open_model(str(copy))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub_cache(llama, tmp_path, monkeypatch):
    """huggingface_hub's cache with a model in it, and no network."""
    import huggingface_hub.constants as constants

    model = tmp_path / "hub" / "models--somebody--small-llama"
    shutil.copytree(llama, model / "snapshots" / ("0" * 40))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_name_on_the_hub_is_found_in_its_cache(hub_cache, llama):
    opened = open_model("somebody/small-llama")
    assert (opened.name, opened.longest_prompt) == ("somebody/small-llama", 256)
    started = opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    assert (started.model.name, started.model.digest) == (opened.name, open_model(str(llama)).digest())


@pytest.mark.parametrize("name", ["somebody/else", "gpt2"])
def test_a_name_that_is_neither_cached_nor_reachable(hub_cache, name):
    with pytest.raises(BadInput) as caught:
        open_model(name, backend="transformers")
    assert str(caught.value) == (
        f"there is no model {name!r}: neither a folder nor in the local Hugging Face cache, and the hub was"
        " not asked, as HF_HUB_OFFLINE is set"
    )


def answered(kind, status):
    """An error of huggingface_hub's, as it makes one of what the hub answers."""
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind("Client Error. And a lot more.", response=response)


def unreachable():
    error = errors.LocalEntryNotFoundError("Got: ConnectError. Please check your internet connection.")
    error.__cause__ = ConnectionError("Name or service not known")
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (unreachable(), "the hub could not be reached"),
        (TimeoutError("timed out"), "the hub could not be reached"),
        (
            answered(errors.RepositoryNotFoundError, 401),
            "the hub has none, unless it is private: then `hf auth login`",
        ),
        (
            answered(errors.GatedRepoError, 403),
            "the hub gives it only to those it was granted to: ask on its page there, then `hf auth login`",
        ),
        (
            answered(errors.HfHubHTTPError, 401),
            "the hub gives it only to those it was granted to: ask on its page there, then `hf auth login`",
        ),
        (answered(errors.HfHubHTTPError, 503), "the hub answered with status 503"),
        (OSError("The disk is full. Free some."), "it could not be fetched (The disk is full)"),
    ],
)
@pytest.mark.parametrize(("name", "near"), [("org/foo", ""), ("org/tiny", " (did you mean tiny?)")])
def test_why_the_hub_gives_no_model(monkeypatch, tmp_path, llama, error, said, name, near):
    def fail(*arguments, **options):
        raise error

    shutil.copytree(llama, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(BadInput) as caught:
        open_model(name)
    assert str(caught.value) == (
        f"there is no model {name!r}: neither a folder nor in the local Hugging Face cache, and {said}{near}"
    )


@pytest.mark.parametrize("backend", ["auto", "native", "transformers"])
def test_a_path_that_leads_nowhere_is_no_name_on_the_hub(monkeypatch, tmp_path, llama, backend):
    shutil.copytree(llama, tmp_path / "mine" / "llama")
    shutil.copytree(llama, tmp_path / "mine" / "other")
    (tmp_path / "mine" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)  # would be a TypeError
    for name, said in (
        ("mine/lama", "there is no model 'lama' in mine (did you mean llama?)"),
        ("./mine/lama", "there is no model 'lama' in ./mine (did you mean llama?)"),
        ("mine/x", "there is no model 'x' in mine (known: llama, other)"),
        ("mine/llama/config.json", "mine/llama/config.json is no checkpoint: it is a file"),
    ):
        with pytest.raises(BadInput) as caught:
            open_model(name, backend=backend)
        assert str(caught.value) == said
    with pytest.raises(BadInput, match=r"^there is no model or tokenizer 'mine/lama'"):
        open_model("mine/llama", tokenizer="mine/lama", backend="transformers")


def test_an_error_of_a_library_ends_behind_a_whole_word():
    assert one_line(ValueError("a  b\nc")) == "a b c"
    assert one_line(ValueError("x" * 200)) == "x" * 200
    assert one_line(ValueError("word " * 50)) == "word " * 39 + "..."
    assert one_line(ValueError("x" * 201)) == "x" * 196 + " ..."
    assert one_line(KeyError()) == "KeyError"
