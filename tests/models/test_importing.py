"""An authors' checkpoint in Hugging Face layout: what is written, and that nothing is left over."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from bamctl.errors import BadInput, RunFailed
from bamctl.models.importing import CARD, describe, import_checkpoint
from bamctl.models.loading import BareCheckpoint, Checkpoint, open_bare_checkpoint, open_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def theirs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A checkpoint of theirs whose vocabulary has room for the tokenizer of `tiny_checkpoint`."""
    folder = tmp_path_factory.mktemp("theirs") / "nope"
    shutil.copytree(AUTHORS / "nope", folder)
    args = (folder / "args.json").read_text()
    (folder / "args.json").write_text(args.replace('"vocab_size": 97', '"vocab_size": 500'))
    weights = torch.load(folder / "model.pt", weights_only=True)
    for name in ("tok_embeddings.weight", "output.weight"):
        weights[name] = weights[name].repeat(6, 1)[:500]
    torch.save(weights, folder / "model.pt")
    return folder


def test_its_own_name_below_models(here: Path) -> None:
    imported = import_checkpoint(str(AUTHORS / "bam-ssmax"))
    assert type(imported) is BareCheckpoint
    assert (imported.name, imported.folder) == ("bam-ssmax", here / "models" / "bam-ssmax")
    assert [path.name for path in here.rglob(".*")] == []
    assert sorted(path.name for path in imported.folder.iterdir()) == [
        CARD,
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert (imported.folder / "model.safetensors").stat().st_mode & 0o777 == 0o644
    card = (imported.folder / CARD).read_text()
    assert "# bam-ssmax\n\nImported by `bamctl import` from `bam-ssmax`" in card
    assert "- parameters: 26,864\n- trained at: 96 tokens\n- weights: float32\n" in card
    assert "- it came without a tokenizer: name one with `--tokenizer` to measure it\n" in card
    with pytest.raises(BadInput, match="is in Hugging Face layout already: --model takes it as it is"):
        import_checkpoint("bam-ssmax", to=here / "again")


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("bam", "ggd, one prior for all layers"),
        ("bam-ssmax-learned-loc", "ggd, one prior a layer, location learned, SSMax of content and prior"),
        ("alibi-ssmax", "laplace, SSMax of content alone"),
        ("rotary", "rotary"),
        ("nope-ssmax", "uniform, SSMax"),
    ],
)
def test_what_it_is_in_words(name: str, positions: str) -> None:
    facts = dict(describe(open_bare_checkpoint(str(AUTHORS / name))))
    assert facts["positions"] == positions
    assert facts["size"] == "2 layers, width 32, 4 heads of 8, SwiGLU 64, vocabulary 97"


def test_a_tokenizer_that_is_named(theirs: Path, tiny_checkpoint: Path, here: Path) -> None:
    imported = import_checkpoint(str(theirs), to=here / "one" / "two", tokenizer=str(tiny_checkpoint))
    assert isinstance(imported, Checkpoint)
    assert imported.name == "two"
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    text = "The pass key is 12345."
    assert imported.tokenizer(text).input_ids == tokenizer(text).input_ids
    assert imported.config.eos_token_id == tokenizer.eos_token_id
    assert imported.digest == open_bare_checkpoint(str(theirs)).digest
    assert "without a tokenizer" not in (imported.folder / CARD).read_text()
    model = open_checkpoint(str(here / "one" / "two")).load(device="cpu", dtype="float32")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_tokenizer_that_lies_in_the_folder(theirs: Path, tiny_checkpoint: Path, here: Path) -> None:
    for file in tiny_checkpoint.glob("tokenizer*"):
        shutil.copy(file, theirs)
    assert isinstance(open_checkpoint(str(theirs)), Checkpoint)
    imported = import_checkpoint(str(theirs))
    assert isinstance(imported, Checkpoint)
    assert (imported.folder / "tokenizer.json").is_file()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_are_rounded_and_priors_are_not(dtype: str, here: Path) -> None:
    source = open_bare_checkpoint(str(AUTHORS / "bam-ssmax-learned-loc"))
    imported = import_checkpoint(str(source.folder), dtype=dtype)
    stored, exact = load_file(imported.folder / "model.safetensors"), dict(source.weights.tensors())
    for name, value in exact.items():
        in_full = ".prior." in name or ".ssmax." in name
        assert torch.equal(stored[name], value if in_full else value.to(getattr(torch, dtype)))
    assert dict(describe(imported))["weights"] == dtype
    assert (imported.digest == source.digest) == (dtype == "float32")


def test_half_precision_stays_half(theirs: Path, here: Path) -> None:
    weights = torch.load(theirs / "model.pt", weights_only=True)
    torch.save({name: value.bfloat16() for name, value in weights.items()}, theirs / "model.pt")
    imported = import_checkpoint(str(theirs))
    assert dict(describe(imported))["weights"] == "bfloat16"
    assert imported.digest == open_bare_checkpoint(str(theirs)).digest


def _nothing_left(here: Path, before: set[Path]) -> bool:
    return set(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("prepare", "options", "told"),
    [
        (lambda f: None, {"name": "nonesuch"}, "there is no model 'nonesuch'"),
        (
            lambda f: (f / "models" / "nope").mkdir(parents=True),
            {},
            "models/nope is there already; name another",
        ),
        (lambda f: (f / "models").write_text(""), {}, "models/nope cannot be made: "),
        (lambda f: None, {"tokenizer": "nonesuch"}, "there is no model or tokenizer 'nonesuch'"),
        (lambda f: None, {"tokenizer": "{tiny}"}, " tokens, the model knows 97"),
    ],
    ids=["no such folder", "there already", "a file in the way", "no tokenizer", "a larger tokenizer"],
)
def test_what_cannot_be_imported_leaves_nothing(
    prepare: Callable[[Path], Any], options: dict[str, str], told: str, here: Path, tiny_checkpoint: Path
) -> None:
    prepare(here)
    before = set(here.rglob("*"))
    name = options.get("name", str(AUTHORS / "nope"))
    tokenizer = options.get("tokenizer", "").format(tiny=tiny_checkpoint) or None
    with pytest.raises(BadInput) as error:
        import_checkpoint(name, tokenizer=tokenizer)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert _nothing_left(here, before)


def test_rounding_beyond_float16(theirs: Path, here: Path) -> None:
    weights = torch.load(theirs / "model.pt", weights_only=True)
    weights["output.weight"][3, 4] = 1e5
    torch.save(weights, theirs / "model.pt")
    with pytest.raises(BadInput, match=r"nope: weight lm_head\.weight is not finite in float16"):
        import_checkpoint(str(theirs), dtype="float16")
    assert _nothing_left(here, set())


def test_a_disk_that_fills_up_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bamctl.models.importing._card", fail)  # the weights are written by then
    with pytest.raises(RunFailed, match=r"models/nope cannot be written \(.*No space left on device\)"):
        import_checkpoint(str(AUTHORS / "nope"))
    assert _nothing_left(here, set())
