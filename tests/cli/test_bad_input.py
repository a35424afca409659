"""Whatever is wrong with what was asked: one line that says what would be right, exit 2, nothing written."""

import json
import os
import shutil

import pytest

from bamctl.models.training.tokenizer import train_tokenizer


@pytest.fixture
def refused(folder, call):
    """Calls bamctl and checks the form of its refusal; returns the line."""

    def run(*arguments):
        before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
        outcome = call(*arguments)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("bamctl: ")
        assert outcome.err.count("\n") == 1
        assert outcome.err.endswith("\n")
        assert "Traceback" not in outcome.err
        assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before
        return outcome.err.removeprefix("bamctl: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["paskey"], "Did you mean 'passkey'?"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["--frobnicate"], "No such option: --frobnicate"),
        (["passkey", "--lenghts", "1k"], "No such option: --lenghts (Possible options: --lengths)"),
        (["passkey", "--lengths"], "'--lengths' requires an argument"),
        (["passkey", "1k"], "unexpected extra argument"),
        (["passkey", "--samples", "many"], "'--samples'"),
        (["passkey", "--samples", "2.5"], "'--samples'"),
        (["passkey", "--seed", "9" * 5000], "'--seed'"),
        (["run"], "Missing argument 'task'"),
    ],
)
def test_the_command_line_itself(refused, arguments, said):
    assert said.lower() in refused(*arguments).lower()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # lengths
        (["--lengths", "0"], "length '0' is 0 tokens; a length lies between 1 and 2^40"),
        (["--lengths=-1"], "length '-1' is not a number of tokens such as 4096, 4k, 512k or 1M"),
        (["--lengths", "-1"], "length '-1' is not a number of tokens"),
        (["--lengths", "12x"], "length '12x' is not a number of tokens"),
        (["--lengths", "1e99"], "length '1e99' is not a number of tokens"),
        (["--lengths", "1.5k"], "length '1.5k' is not a number of tokens"),
        (["--lengths", ""], "lengths '' name no length; write for example 512,4k,32k"),
        (["--lengths", ","], "lengths ',' name no length"),
        (["--lengths", "512,,0"], "length '0' is 0 tokens"),
        (["--lengths", str(2**40 + 1)], "a length lies between 1 and 2^40"),
        (["--lengths", str(2**41)], "a length lies between 1 and 2^40"),
        (["--lengths", "9" * 5000], "length '999"),
        (["--max-len", "0"], "length '0' is 0 tokens"),
        (["--max-len", "big"], "length 'big' is not a number of tokens"),
        (["--max-len", "64"], "the longest length 64 is below the first, 128; name the lengths"),
        (["--lengths", "512", "--max-len", "1k"], "--lengths and --max-len exclude each other"),
        (["--lengths", "65"], "length 65 is too short for passkey with the tokenizer of tiny: the shortest"),
        # depths
        (["--depths", "-1"], "-1 lies outside 0 (start of the haystack) to 100 (its end)"),
        (["--depths", "0,101"], "101 lies outside 0"),
        (["--depths", "nan%"], "nan% lies outside 0"),
        (["--depths", "middle"], "'middle' is no depth; write equidistant, random"),
        (["--depths", "0"], "a number of depths lies between 1 and 10000"),
        (["--depths", ""], "depths '' name no depth"),
        # numbers
        (["--samples", "0"], "--samples 0: must lie between 1 and 1000000"),
        (["--samples", "-3"], "--samples -3: must lie between 1"),
        (["--samples", str(10**9)], "--samples 1000000000: must lie between 1 and 1000000"),
        (["--batch-size", "0"], "--batch-size 0: must lie between 1"),
        (["--batch-size", str(2**63)], f"--batch-size {2**63}: must lie between 1"),
        (["--patience", "0"], "--patience 0: must lie between 1"),
        (["--seed", "-1"], "--seed -1: must lie between 0 and 9223372036854775807"),
        (["--seed", str(2**63)], f"--seed {2**63}: must lie between 0"),
        # the task
        (["--digits", "0"], "digits: input should be greater than or equal to 1, but is 0"),
        (["--digits", "33"], "digits: input should be less than or equal to 32, but is 33"),
        (["--haystack", "no.txt"], "haystack: there is no file no.txt; name a UTF-8 text file"),
        (["--haystack", "models"], "haystack: models is a folder; name a UTF-8 text file"),
        (["--haystack", "models/tiny/model.safetensors"], "is not UTF-8 text"),
        (["--haystack", ""], "haystack"),
        # what runs it
        (["--backend", "vlm"], "--backend 'vlm' is not known (did you mean vllm?)"),
        (["--backend", "x"], "--backend 'x' is not known (known: auto, native, transformers, vllm)"),
        (["--backend", "natvie"], "--backend 'natvie' is not known (did you mean native?)"),
        (["--dtype", "float8"], "--dtype 'float8' is not known (did you mean float"),
        (["--dtype", "int4"], "--dtype 'int4' is not known"),
        (["--model-arg", "hidden_size"], "--model-arg 'hidden_size': write KEY=VALUE, such as"),
        (["--model-arg", "=3"], "--model-arg '=3': write KEY=VALUE"),
        (["--model-arg", "a=3", "--model-arg", "a=4"], "--model-arg a is given twice; leave one out"),
        (["--model-arg", "a=3"], "--model-arg a: tiny runs in the native backend, which takes none"),
        (["--tokenizer", "nobodys"], "nobodys"),
        (["--device", "gpu"], "device 'gpu' is not known; write cpu, cuda, cuda:1 or auto"),
        (["--device", "cuda:77"], "device 'cuda:77': this machine has"),
        # the model
        (["--model", "tiiny"], "there is no model 'tiiny' (did you mean tiny?)"),
        (["--model", "/no/such"], "there is no model '/no/such'"),
        (["--model", "models"], "models is no checkpoint: it has no config.json"),
        (["--model", ""], "."),
    ],
)  # fmt: skip
def test_an_option_of_passkey(refused, options, said):
    model = [] if "--model" in options else ["--model", "tiny"]
    assert said in refused("passkey", *model, *options)


def test_the_second_model_is_checked_before_the_first_one_runs(refused):
    assert "there is no model" in refused(
        "passkey", "--model", "tiny", "--model", "other", "--lengths", "128"
    )


def test_a_length_is_checked_for_every_model_before_the_first_one_runs(refused, folder):
    shutil.copytree(folder / "models" / "tiny", folder / "models" / "bytes")
    train_tokenizer("abc", [], vocab_size=259).save_pretrained(folder / "models" / "bytes")
    said = refused("passkey", "--model", "tiny", "--model", "bytes", "--lengths", "128")
    assert said.startswith(
        "length 128 is too short for passkey with the tokenizer of bytes: the shortest that"
    )


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("passky", "there is no task 'passky' (did you mean passkey?)"),
        ("mine.yaml", "there is no task file mine.yaml"),
        ("models/tiny/config.json", "task: is missing"),
    ],
)
def test_a_task_that_is_none(refused, task, said):
    assert said in refused("run", task, "--model", "tiny")


def change_config(folder, **fields):
    path = folder / "models" / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": -1}, "hidden_size must be a whole number"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"hidden_size": 2**62}, "hidden_size must be a whole number"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 10**6, "prior_beta": 1.0}, "num_hidden_layers 1000000"),
        ({"num_hidden_layers": 1, "prior_beta": 1.0}, "the weights hold"),
        ({"num_hidden_layers": 3, "prior_beta": 1.0}, "the weights lack"),
        ({"hidden_size": 64}, "config.json asks for"),
        ({"vocab_size": 10}, "config.json asks for"),
        ({"num_attention_heads": 3}, "multiple of num_key_value_heads"),
        ({"position_encoding": "magic"}, "position_encoding 'magic' is none of"),
        ({"model_type": "lama"}, "model_type is 'lama', which transformers"),
        ({"prior_beta": float("nan")}, "prior_beta must hold finite numbers"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a number above 0"),
        ({"train_length": 0}, "train_length must be a whole number"),
    ],
)
def test_a_configuration_with_absurd_values(refused, folder, fields, said):
    change_config(folder, **fields)
    assert said in refused("passkey", "--model", "tiny", "--lengths", "128")


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("config.json", lambda path: path.write_text("{"), "cannot be read as JSON"),
        ("config.json", lambda path: path.write_text("[]"), "model_type is None"),
        ("config.json", lambda path: path.unlink(), "is no checkpoint: it has no config.json"),
        ("model.safetensors", lambda path: path.unlink(), "has no model.safetensors"),
        ("model.safetensors", lambda path: cut(path, 100_000), "is damaged or cut short"),
        ("model.safetensors", lambda path: cut(path, 100), "is damaged or cut short"),
        ("model.safetensors", lambda path: cut(path, 0), "is damaged or cut short"),
        ("tokenizer.json", lambda path: cut(path, 1000), "the tokenizer cannot be read"),
    ],
)
def test_a_checkpoint_that_is_damaged(refused, folder, name, damage, said):
    damage(folder / "models" / "tiny" / name)
    assert said in refused("passkey", "--model", "models/tiny", "--lengths", "128")


def test_weights_that_are_not_finite(refused, folder, make_checkpoint):
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "models" / "tiny" / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"][3, 3] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    said = refused("passkey", "--model", "tiny", "--lengths", "128", "--out", "fresh")
    assert "weight lm_head.weight is not finite" in said


@pytest.mark.parametrize("out", ["models/tiny/config.json", "models/tiny/config.json/below"])
def test_an_out_that_cannot_be_written_to(refused, out, monkeypatch):
    from bamctl.backends.opening import OpenedModel

    monkeypatch.setattr(OpenedModel, "start", None)  # told before weights are read or an engine starts
    said = refused("passkey", "--model", "tiny", "--lengths", "128", "--samples", "1", "--out", out)
    assert "results cannot be written there" in said
    assert "name another folder with --out" in said


def test_an_out_on_a_full_disk(refused, monkeypatch):
    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    said = refused("passkey", "--model", "tiny", "--lengths", "128", "--samples", "1", "--out", "new/out")
    assert "results cannot be written there (No space left on device)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "results: no such file or folder"),
        (["report", "nowhere"], "nowhere: no such file or folder"),
        (["report", "models"], "no results in models"),
        (["report", "models/tiny/config.json"], "cannot be read as a table of samples"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_other_commands(refused, arguments, said):
    assert said in refused(*arguments)
