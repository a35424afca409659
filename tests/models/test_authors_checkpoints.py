"""The authors' checkpoints give the authors' logits: whole, through the cache, and once they are imported."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bamctl.models.cache import PreallocatedCache
from bamctl.models.importing import import_checkpoint
from bamctl.models.loading import no_progress_bar, open_bare_checkpoint

AUTHORS = Path(__file__).parents[1] / "fixtures" / "authors"
FOLDERS = sorted(folder.name for folder in AUTHORS.iterdir() if folder.is_dir())

# Theirs is up to 3e-5 from float64 itself.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def agree() -> Iterator[Callable[[str, str, Tensor, Tensor], None]]:
    """Compares logits; with `pytest -s`, tells the worst of each way of computing them in the end."""
    worst: dict[str, tuple[float, str]] = {}

    def compare(way: str, name: str, logits: Tensor, expected: Tensor) -> None:
        assert logits.dtype == torch.float32
        difference = (logits - expected).abs().max().item()
        worst[way] = max(worst.get(way, (0.0, "")), (difference, name))
        assert difference < TOLERANCE

    yield compare
    print(f"\nworst absolute difference of any logit, {len(FOLDERS)} checkpoints of the authors:")
    for way, (difference, name) in worst.items():
        print(f"  {way:24} {difference:.1e}  ({name})")


def test_all_of_them_are_here() -> None:
    assert len(FOLDERS) == 15


@pytest.mark.parametrize("name", FOLDERS)
def test_logits(name: str, load_authors: Callable[[str], Any], agree: Callable[..., None]) -> None:
    model, tokens, expected = load_authors(name)
    assert expected.std() > 100 * TOLERANCE  # so that agreement says something
    with torch.no_grad():
        agree("whole", name, model(tokens).logits, expected)


@pytest.mark.parametrize("chunk_size", [1, 7, 64])
@pytest.mark.parametrize("name", FOLDERS)
def test_logits_through_the_cache(
    name: str, chunk_size: int, load_authors: Callable[[str], Any], agree: Callable[..., None]
) -> None:
    model, tokens, expected = load_authors(name)
    cache = PreallocatedCache(model.config.num_hidden_layers, tokens.shape[1])
    with torch.no_grad():
        chunks = [model(chunk, cache=cache).logits for chunk in tokens.split(chunk_size, dim=1)]
    agree(f"cache, {chunk_size} at a time", name, torch.cat(chunks, dim=1), expected)


@pytest.mark.parametrize("name", FOLDERS)
def test_prefill(name: str, load_authors: Callable[[str], Any], agree: Callable[..., None]) -> None:
    model, tokens, expected = load_authors(name)
    cache = PreallocatedCache(model.config.num_hidden_layers)
    agree("prefill, chunks of 25", name, model.prefill(tokens, cache, chunk_size=25), expected[:, -1])


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_and_digest_after_import_and_after_saving(
    name: str, tmp_path: Path, load_authors: Callable[[str], Any], agree: Callable[..., None]
) -> None:
    model, tokens, expected = load_authors(name)
    imported = import_checkpoint(str(AUTHORS / name), to=tmp_path / "imported")
    with no_progress_bar():
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "imported")
        again.save_pretrained(tmp_path / "saved")
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        before, after, at_last = (m(tokens).logits for m in (model, again, saved))
    agree("imported", name, after, expected)
    assert torch.equal(after, before)
    assert torch.equal(at_last, before)
    digest = open_bare_checkpoint(str(AUTHORS / name)).digest
    assert imported.digest == digest
    assert open_bare_checkpoint(str(tmp_path / "saved")).digest == digest


def test_no_two_of_them_have_one_digest() -> None:
    assert len({open_bare_checkpoint(str(AUTHORS / name)).digest for name in FOLDERS}) == len(FOLDERS)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bam", {"beta": 1.02}),
        ("bam-per-layer-prior", {"log_rate": 1.02}),
        ("bam-ssmax-learned-loc", {"mu": 1.02}),
        ("alibi-twelve-heads", {"slopes": 1.02}),
        ("nope-ssmax", {"ssmax.scale": 1.02}),
    ],
)
def test_a_value_2_percent_off_is_noticed(
    name: str, change: dict[str, float], load_authors: Callable[[str], Any]
) -> None:
    model, tokens, expected = load_authors(name)
    ((suffix, factor),) = change.items()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if key.endswith(suffix):
                value.mul_(factor)
        assert (model(tokens).logits - expected).abs().max() > 5 * TOLERANCE


@pytest.mark.parametrize("name", ["bam-ssmax-prior-unscaled", "alibi-ssmax", "bam-ssmax"])
def test_whether_ssmax_scales_the_prior_is_noticed(name: str, load_authors: Callable[[str], Any]) -> None:
    model, tokens, expected = load_authors(name)
    model.config.ssmax_scales_prior = not model.config.ssmax_scales_prior
    with torch.no_grad():
        assert (model(tokens).logits - expected).abs().max() > 5 * TOLERANCE
