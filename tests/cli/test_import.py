"""`bamctl import`: a folder of the paper's authors in, a checkpoint with a name out."""

import shutil
from pathlib import Path

import pytest

from bamctl.models.loading import open_bare_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_what_was_imported_is_told(here, call):
    outcome = call("import", AUTHORS / "bam-ssmax")
    assert outcome.status == 0, outcome
    facts = dict(line.rstrip().split("  ", 1) for line in outcome.out.splitlines())
    facts = {name: text.strip() for name, text in facts.items()}
    assert facts == {
        "model": "bam-ssmax",
        "folder": "models/bam-ssmax",
        "positions": "ggd, one prior for all layers, SSMax of content and prior",
        "size": "2 layers, width 32, 4 heads of 8, SwiGLU 64, vocabulary 97",
        "parameters": "26,864",
        "trained at": "96 tokens",
        "weights": "float32",
        "digest": open_bare_checkpoint(str(AUTHORS / "bam-ssmax")).digest,
    }
    assert outcome.err == (
        "models/bam-ssmax has no tokenizer: to measure it, name the one of its training with --tokenizer\n"
    )
    listed = {line.split()[0]: line for line in call("models").out.splitlines()}
    assert listed["bam-ssmax"].split("  ")[0] == "bam-ssmax (no tokenizer)"
    assert listed["bam-ssmax"].split()[-3:] == ["96", "26,864", "models/bam-ssmax"]


def test_where_to_and_in_what_numbers(here, call):
    outcome = call("import", AUTHORS / "nope", "--to", "elsewhere/mine", "--dtype", "bfloat16")
    assert outcome.status == 0, outcome
    rows = [line.rstrip().split(maxsplit=1) for line in outcome.out.splitlines()]
    assert ["model", "mine"] in rows
    assert ["folder", "elsewhere/mine"] in rows
    assert ["weights", "bfloat16"] in rows
    assert (here / "elsewhere" / "mine" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonesuch"], "there is no model 'nonesuch'"),
        (["."], ". is no checkpoint: it has no config.json, nor the args.json of BAM's authors"),
        ([AUTHORS / "nope", "--dtype", "bfloat"], "--dtype 'bfloat' is not known (did you mean bfloat16?)"),
        ([AUTHORS / "nope", "--tokenizer", "nonesuch"], "there is no model or tokenizer 'nonesuch'"),
        ([AUTHORS / "nope", "--to", "."], ". is there already; name another folder with --to, or remove it"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(here, call, arguments, told):
    outcome = call("import", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"bamctl: {told}")
    assert outcome.err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_pickle_that_wants_more_is_refused(here, call, tmp_path_factory):
    import torch

    folder = tmp_path_factory.mktemp("theirs") / "nope"
    shutil.copytree(AUTHORS / "nope", folder)
    torch.save(torch.nn.Linear(2, 2), folder / "model.pt")
    outcome = call("import", folder)
    assert outcome.status == 2
    assert "model.pt is refused: it wants to call torch.nn.modules.linear.Linear when" in outcome.err
    assert list(here.iterdir()) == []


def test_folders_that_are_not_imported_yet_are_listed(here, call):
    shutil.copytree(AUTHORS / "alibi", here / "models" / "theirs")
    other = here / "models" / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    outcome = call("models")
    assert (outcome.status, outcome.err) == (0, "")
    rows = {line.split()[0]: [cell for cell in line.split("  ") if cell] for line in outcome.out.splitlines()}
    assert rows["theirs"][0] == "theirs (no tokenizer) (not imported)"
    assert [cell.strip() for cell in rows["theirs"][1:4]] == ["laplace", "96", "26,848"]
    assert [cell.strip() for cell in rows["other"][1:4]] == ["of llama", "?", "?"]
