"""Models of other architectures through the command line, and several models at once."""

import re
import shlex
import shutil

import pytest

from bamctl.results.store import load_samples

ASKED = ["passkey", "--model", "llama", "--lengths", "256", "--samples", "2"]


@pytest.fixture(scope="session")
def foreign(tiny_checkpoint, tmp_path_factory):
    """A Llama of random weights that reads 512 tokens."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.4,
    )
    path = tmp_path_factory.mktemp("foreign") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def folder(folder, foreign):
    """The current folder, with models/llama beside models/tiny."""
    shutil.copytree(foreign, folder / "models" / "llama")
    return folder


def samples(folder):
    return load_samples([folder / "results"])


@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_a_llama_is_measured(folder, call, backend):
    outcome = call(*ASKED, "--backend", backend)
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[1].split()[:2] == ["llama", "512"]
    assert outcome.err.splitlines()[0] == "llama: rotary, trained at 512; transformers on cpu, float32"
    frame = samples(folder)
    assert (set(frame["backend"]), set(frame["dtype"])) == ({"transformers"}, {"float32"})
    assert frame["prompt_tokens"].tolist() == [256, 256]
    assert frame["answer_logprob"].notna().all()
    assert set(frame["status"]) == {"done"}


def test_lengths_beyond_its_positions_are_refused_and_stretched(folder, call):
    for options, factor in ((["--lengths", "1k"], 3), (["--lengths", "512"], 2), (["--max-len", "1k"], 3)):
        outcome = call("passkey", "--model", "llama", "--samples", "2", *options)
        assert (outcome.status, outcome.out) == (2, "")
        assert "tokens of an answer are beyond what llama reads: 512 positions" in outcome.err
        scaling = f'{{"rope_type":"yarn","factor":{factor}.0}}'
        assert f"--model-arg rope_scaling='{scaling}'" in outcome.err
        assert f"--model-arg max_position_embeddings={512 * factor}" in outcome.err
        assert not (folder / "results").exists()
    stretched = ["--model-arg", 'rope_scaling={"rope_type":"yarn","factor":4.0}', "--lengths", "1k"]
    outcome = call("passkey", "--model", "llama", "--samples", "1", *stretched)
    assert outcome.status == 0, outcome
    assert set(samples(folder)["model"]) == {"llama (rope_scaling={rope_type:yarn,factor:4.0})"}


def test_what_a_refused_length_is_told_to_try_is_enough(folder, call):
    refused = call("passkey", "--model", "llama", "--samples", "1", "--lengths", "512")
    tried = re.findall(r"--model-arg (\S+?)(?:, or |\n)", refused.err)
    assert len(tried) == 2
    for argument in (shlex.split(typed)[0] for typed in tried):
        outcome = call(
            *("passkey", "--model", "llama", "--samples", "1", "--lengths", "512", "--model-arg", argument)
        )
        assert outcome.status == 0, outcome


def test_lengths_that_nobody_chose_stay_within_its_positions(folder, call):
    assert call("passkey", "--model", "llama", "--samples", "1").status == 0
    lengths = samples(folder)["length"].tolist()
    assert len(lengths) == 1
    assert 400 < lengths[0] < 512


def test_patterns_and_names_are_one_list_of_models(folder, call):
    shutil.copytree(folder / "models" / "tiny", folder / "models" / "tiny-two")
    models = ("tiny-t?o", "tiny", "models/tiny", "llama")
    asked = [word for model in models for word in ("--model", model)]
    outcome = call("passkey", *asked, "--lengths", "256", "--samples", "1")
    assert outcome.status == 0, outcome
    told = [line.split(":")[0] for line in outcome.err.splitlines() if "trained at" in line]
    assert told == ["tiny-two", "tiny", "llama"]
    rows = sorted(line.split()[0].rstrip(",") for line in outcome.out.splitlines()[1:4])
    assert rows == ["llama", "tiny", "tiny-two"]
    assert set(samples(folder)["backend"]) == {"native", "transformers"}


def test_models_with_one_tokenizer_share_their_tasks(folder, call, monkeypatch):
    import bamctl.tasks.catalog as catalog

    built = []
    build = catalog.build_task
    monkeypatch.setattr(catalog, "build_task", lambda *given: built.append(given) or build(*given))
    assert call(*ASKED, "--model", "tiny").status == 0
    assert len(built) == 1
    assert samples(folder)["model"].nunique() == 2


def test_everything_is_checked_before_the_first_one_runs(folder, call):
    outcome = call("passkey", "--model", "tiny", "--model", "llama", "--lengths", "1k", "--samples", "1")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert not (folder / "results").exists()


def test_there_is_no_explanation_of_a_foreign_model(folder, call):
    outcome = call(*ASKED, "--explain")
    assert outcome.status == 0
    assert "cannot be told with the transformers backend." in " ".join(outcome.out.split())
    assert not (folder / "results").exists()
