"""The authors' checkpoints give the authors' logits, whole and through the cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bamctl.models.cache import PreallocatedCache

FOLDERS = sorted(
    folder.name
    for folder in (Path(__file__).parents[1] / "fixtures" / "authors").iterdir()
    if folder.is_dir()
)

# Theirs is up to 3e-5 from float64 itself.
TOLERANCE = 1e-4


def test_all_of_them_are_here() -> None:
    assert len(FOLDERS) == 15


@pytest.mark.parametrize("name", FOLDERS)
def test_logits(name: str, load_authors: Callable[[str], Any]) -> None:
    model, tokens, expected = load_authors(name)
    with torch.no_grad():
        logits = model(tokens).logits
    worst = (logits - expected).abs().max().item()
    print(f"{name}: whole, {worst:.1e}")
    assert logits.dtype == torch.float32
    assert worst < TOLERANCE
    assert expected.std() > 100 * TOLERANCE  # so that agreement says something


@pytest.mark.parametrize("chunk_size", [7, 64])
@pytest.mark.parametrize("name", FOLDERS)
def test_logits_through_the_cache(name: str, chunk_size: int, load_authors: Callable[[str], Any]) -> None:
    model, tokens, expected = load_authors(name)
    cache = PreallocatedCache(model.config.num_hidden_layers, tokens.shape[1])
    with torch.no_grad():
        chunks = [model(chunk, cache=cache).logits for chunk in tokens.split(chunk_size, dim=1)]
    worst = (torch.cat(chunks, dim=1) - expected).abs().max().item()
    print(f"{name}: chunks of {chunk_size}, {worst:.1e}")
    assert worst < TOLERANCE


@pytest.mark.parametrize("name", FOLDERS)
def test_prefill(name: str, load_authors: Callable[[str], Any]) -> None:
    model, tokens, expected = load_authors(name)
    cache = PreallocatedCache(model.config.num_hidden_layers)
    last = model.prefill(tokens, cache, chunk_size=25)
    assert (last - expected[:, -1]).abs().max() < TOLERANCE


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
