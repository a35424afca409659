"""A tokenizer for a checkpoint that has none, or another one than its own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bamctl.errors import BadInput
from bamctl.models.loading import open_checkpoint, open_tokenizer

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"


@pytest.fixture
def named(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where the checkpoint has the name `tiny`, and one without a tokenizer `bare`."""
    shutil.copytree(tiny_checkpoint, tmp_path / "models" / "tiny")
    bare = shutil.copytree(tiny_checkpoint, tmp_path / "models" / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(tiny_checkpoint / "tokenizer.json", alone)
    shutil.copy(tiny_checkpoint / "tokenizer.json", alone / "another name.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _refused(use: Callable[[], object]) -> str:
    with pytest.raises(BadInput) as error:
        use()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        "models/tiny",
        "models/tiny/tokenizer.json",
        "alone",
        "alone/tokenizer.json",
        "alone/another name.json",
    ],
)
def test_every_way_to_name_a_tokenizer(name: str, named: Path) -> None:
    own = open_checkpoint("tiny").tokenizer
    text = "The pass key is 12345."
    assert open_tokenizer(name)(text).input_ids == own(text).input_ids
    checkpoint = open_checkpoint("bare", tokenizer=name)
    assert checkpoint.tokenizer(text).input_ids == own(text).input_ids
    assert checkpoint.digest == open_checkpoint("tiny").digest


def test_what_lies_beside_a_tokenizer_is_part_of_it(named: Path) -> None:
    assert open_tokenizer("models/tiny/tokenizer.json").eos_token_id is not None
    assert open_tokenizer("alone/tokenizer.json").eos_token_id is None


def test_none_at_all_is_said(named: Path) -> None:
    message = _refused(lambda: open_checkpoint("bare"))
    assert message.endswith("bare has no tokenizer.json; name the tokenizer of its training: --tokenizer")
    message = _refused(lambda: open_checkpoint(str(AUTHORS / "nope")))
    assert message.endswith("nope has no tokenizer.json; name the tokenizer of its training: --tokenizer")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nonesuch", "there is no model or tokenizer 'nonesuch' (known: "),
        ("tiyn", "there is no model or tokenizer 'tiyn' (did you mean tiny?)"),
        ("bare", "bare has no tokenizer.json"),
        ("models/tiny/model.safetensors", "model.safetensors cannot be read as a tokenizer ("),
        ("models/tiny/config.json", "config.json cannot be read as a tokenizer ("),
    ],
)
def test_what_is_no_tokenizer(name: str, told: str, named: Path) -> None:
    assert told in _refused(lambda: open_checkpoint("tiny", tokenizer=name))


def test_a_tokenizer_with_more_tokens_than_the_model(named: Path) -> None:
    size = len(open_tokenizer("tiny"))
    message = _refused(lambda: open_checkpoint(str(AUTHORS / "nope"), tokenizer="tiny"))
    assert message.endswith(f"nope: the tokenizer of tiny has {size} tokens, the model knows 97")
