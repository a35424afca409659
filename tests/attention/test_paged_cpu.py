"""Attention over pages agrees with the definition, wherever the pages lie and whatever lies in between.

Shapes: see `bamctl.attention.paged`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Prior, cpu, reference
from bamctl.attention.paged.cpu import paged_attention

SSMAX_KINDS = {"plain": (False, True), "ssmax": (True, True), "ssmax, prior unscaled": (True, False)}

# (length, queries) of each sequence
BATCHES = {
    "one prompt": [(37, 37)],
    "one token": [(1, 1)],
    "a page to the brim, and one token more": [(8, 8), (9, 1), (16, 2), (17, 17)],
    "prefills, chunks of them and single tokens": [(45, 20), (1, 1), (33, 33), (29, 1), (70, 3), (16, 1)],
    "single tokens": [(5, 1), (64, 1), (23, 1), (8, 1)],
    "a sequence that asks nothing": [(12, 0), (20, 4), (9, 0)],
}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A step of a server, and the same sequences one by one."""

    q_THD: Tensor
    k_PSGD: Tensor
    v_PSGD: Tensor
    query_starts: Tensor
    lengths_B: Tensor
    pages_BP: Tensor
    sequences: list[tuple[Tensor, Tensor, Tensor]]

    def arguments(self) -> dict[str, Any]:
        return {
            "query_starts": self.query_starts,
            "lengths_B": self.lengths_B,
            "pages_BP": self.pages_BP,
            "most_queries": int(self.query_starts.diff().max()),
            "most_keys": int(self.lengths_B.max()),
        }

    def longest_key(self) -> Tensor:
        norms = [torch.linalg.vector_norm(k.float(), dim=-1).amax(dim=(0, 2)) for _, k, _ in self.sequences]
        return torch.stack(norms).amax(dim=0)


def _layout(kind: str, pages: int, slots: int, groups: int, size: int, dtype: torch.dtype) -> Tensor:
    """``[P, S, G, 2 D]`` of NaN, in one of the orders that a cache may have."""
    shapes = {
        "tokens first": ((pages, slots, groups, 2 * size), (0, 1, 2, 3)),
        "heads first": ((pages, groups, slots, 2 * size), (0, 2, 1, 3)),
    }
    shape, order = shapes[kind]
    return torch.full(shape, math.nan, dtype=dtype).permute(order)


def make_batch(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    slots: int = 8,
    order: str = "shuffled",
    layout: str = "tokens first",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Batch:
    """Random sequences in a pool with NaN in its other slots, by a table whose other entries are nonsense."""
    random = torch.Generator().manual_seed(seed)
    counts = [math.ceil(length / slots) for length, _ in lengths]
    pool = sum(counts) + 5
    ids = torch.randperm(pool, generator=random) if order == "shuffled" else torch.arange(pool)
    if order == "descending":
        ids = ids.flip(0)
    cache_PSGC = _layout(layout, pool, slots, groups, size, dtype)
    k_PSGD, v_PSGD = cache_PSGC.split(size, dim=-1)
    pages_BP = torch.full((len(lengths), max(counts) + 2), 10**6, dtype=torch.int32)
    sequences, first = [], 0
    for b, ((length, queries), count) in enumerate(zip(lengths, counts, strict=True)):
        q, k, v = (
            torch.randn(1, n, tokens, size, generator=random).to(dtype)
            for n, tokens in ((heads, queries), (groups, length), (groups, length))
        )
        pages = ids[first : first + count]
        pages_BP[b, :count] = pages
        for j in range(length):
            k_PSGD[pages[j // slots], j % slots] = k[0, :, j]
            v_PSGD[pages[j // slots], j % slots] = v[0, :, j]
        sequences.append((q, k, v))
        first += count
    starts = torch.tensor([0, *(queries for _, queries in lengths)]).cumsum(0)
    return Batch(
        q_THD=torch.cat([q[0].transpose(0, 1) for q, _, _ in sequences]),
        k_PSGD=k_PSGD,
        v_PSGD=v_PSGD,
        query_starts=starts.int(),
        lengths_B=torch.tensor([length for length, _ in lengths], dtype=torch.int32),
        pages_BP=pages_BP,
        sequences=sequences,
    )


def attend(batch: Batch, **arguments: Any) -> Tensor:
    """With rows behind the last query, which stay as they are."""
    out_THD = torch.full((len(batch.q_THD) + 3, *batch.q_THD.shape[1:]), 7.0, dtype=batch.q_THD.dtype)
    padding = batch.q_THD.new_full((3, *batch.q_THD.shape[1:]), math.nan)
    q_THD = torch.cat((batch.q_THD, padding))
    paged_attention(q_THD, batch.k_PSGD, batch.v_PSGD, out_THD=out_THD, **batch.arguments(), **arguments)
    assert (out_THD[len(batch.q_THD) :] == 7.0).all()
    return out_THD[: len(batch.q_THD)]


def expected(batch: Batch, *, prior: Prior, ssmax_scale_H: Tensor | None, ssmax_scales_prior: bool) -> Tensor:
    rows = [
        reference.attention(
            *(x.double() for x in (q, k, v)),
            prior=prior,
            query_start=k.shape[2] - q.shape[2],
            ssmax_scale_H=None if ssmax_scale_H is None else ssmax_scale_H.double(),
            ssmax_scales_prior=ssmax_scales_prior,
        )[0].transpose(0, 1)
        for q, k, v in batch.sequences
        if q.shape[2]
    ]
    return torch.cat(rows)


def _scale(heads: int, used: bool) -> Tensor | None:
    """From negative through exactly 0 to positive."""
    return torch.linspace(-0.4, 0.8, heads).where(torch.arange(heads) != 1, 0.0) if used else None


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("use_ssmax", "scaled"), SSMAX_KINDS.values(), ids=SSMAX_KINDS)
@pytest.mark.parametrize("bounded", [False, True], ids=["no bound", "bound"])
def test_agrees_with_the_reference(
    lengths: list[tuple[int, int]],
    use_ssmax: bool,
    scaled: bool,
    bounded: bool,
    priors_of_every_kind: Callable[[int], list[Prior]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
    for heads, groups in ((4, 4), (4, 2), (3, 1)):
        batch = make_batch(lengths, heads=heads, groups=groups)
        for prior in priors_of_every_kind(heads):
            arguments: dict[str, Any] = {
                "prior": prior,
                "ssmax_scale_H": _scale(heads, use_ssmax),
                "ssmax_scales_prior": scaled,
            }
            out = attend(batch, longest_key_G=batch.longest_key() if bounded else None, **arguments)
            assert (out - expected(batch, **arguments)).abs().max() < 2e-5, prior


@pytest.mark.parametrize("layout", ["tokens first", "heads first"])
@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
@pytest.mark.parametrize("slots", [1, 8, 128])
def test_where_the_pages_lie_changes_nothing(
    layout: str, order: str, slots: int, priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    lengths = BATCHES["prefills, chunks of them and single tokens"]
    batch = make_batch(lengths, layout=layout, order=order, slots=slots)
    for prior in priors_of_every_kind(4):
        arguments: dict[str, Any] = {
            "prior": prior,
            "ssmax_scale_H": _scale(4, True),
            "ssmax_scales_prior": True,
        }
        out = attend(batch, longest_key_G=None, **arguments)
        assert (out - expected(batch, **arguments)).abs().max() < 2e-5


# Half a unit in the last place of the output, 2^-9 of a value in bfloat16 and 2^-12 in float16, twice that
# allowed; the arithmetic before is fp32.
@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 0.0), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str
)
def test_dtypes(dtype: torch.dtype, rtol: float, priors_of_every_kind: Callable[[int], list[Prior]]) -> None:
    batch = make_batch(BATCHES["prefills, chunks of them and single tokens"], dtype=dtype)
    for prior in priors_of_every_kind(4):
        arguments: dict[str, Any] = {
            "prior": prior,
            "ssmax_scale_H": _scale(4, True),
            "ssmax_scales_prior": True,
        }
        out = attend(batch, longest_key_G=batch.longest_key(), **arguments)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected(batch, **arguments), rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("queries", [1, 20])
def test_pages_that_cannot_matter_are_not_read(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read may be NaN."""
    monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
    prior = GeneralizedGaussian(4, alpha=4.0, beta=2.0)
    arguments: dict[str, Any] = {"prior": prior, "ssmax_scale_H": None, "ssmax_scales_prior": True}
    batch = make_batch([(400, queries)], order="shuffled")
    right = expected(batch, **arguments)
    longest_key_G = batch.longest_key()
    first_pages = batch.pages_BP[0, :30].long()
    batch.k_PSGD[first_pages], batch.v_PSGD[first_pages] = math.nan, math.nan
    assert (attend(batch, longest_key_G=longest_key_G, **arguments) - right).abs().max() < 2e-5
    assert attend(batch, longest_key_G=None, **arguments).isnan().any()


def test_a_group_that_looks_near_does_not_read_what_another_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
    prior = GeneralizedGaussian(4, alpha=4.0, beta=[2.0, 2.0, -0.5, -0.5])
    arguments: dict[str, Any] = {"prior": prior, "ssmax_scale_H": None, "ssmax_scales_prior": True}
    batch = make_batch([(400, 1), (300, 1)])
    right = expected(batch, **arguments)
    longest_key_G = batch.longest_key()
    for b in range(2):
        first_pages = batch.pages_BP[b, :30].long()
        batch.k_PSGD[first_pages, :, 0], batch.v_PSGD[first_pages, :, 0] = math.nan, math.nan
    assert (attend(batch, longest_key_G=longest_key_G, **arguments) - right).abs().max() < 2e-5


def test_with_little_to_compute_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch([(40, 3), (40, 1)])

    def fail(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError

    monkeypatch.setattr("bamctl.attention.paged.cpu.first_keys", fail)
    arguments: dict[str, Any] = {
        "prior": GeneralizedGaussian(4),
        "ssmax_scale_H": None,
        "ssmax_scales_prior": True,
    }
    attend(batch, longest_key_G=batch.longest_key(), **arguments)
    monkeypatch.setattr(cpu, "SEARCH_WORTH", 0)
    with pytest.raises(AssertionError):
        attend(batch, longest_key_G=batch.longest_key(), **arguments)


def test_consecutive_pages_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = cpu.attention

    def watched(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        seen.extend((k, v))
        return original(q, k, v, **arguments)

    monkeypatch.setattr(cpu, "attention", watched)
    for order, shares in (("ascending", True), ("shuffled", False)):
        batch = make_batch([(100, 10)], order=order)
        seen.clear()
        attend(
            batch,
            prior=GeneralizedGaussian(4),
            ssmax_scale_H=None,
            ssmax_scales_prior=True,
            longest_key_G=None,
        )
        storage = batch.k_PSGD.untyped_storage().data_ptr()
        assert [x.untyped_storage().data_ptr() == storage for x in seen] == [shares, shares]


def test_wrong_answers_are_told_apart() -> None:
    """One page swapped for another, or one token more in the cache: the tests above would see it."""
    batch = make_batch([(60, 5), (40, 1)])
    arguments: dict[str, Any] = {
        "prior": GeneralizedGaussian(4, alpha=50.0),
        "ssmax_scale_H": None,
        "ssmax_scales_prior": True,
    }
    right = expected(batch, **arguments)
    batch.pages_BP[:, [0, 1]] = batch.pages_BP[:, [1, 0]]
    swapped = attend(batch, longest_key_G=None, **arguments)
    batch.pages_BP[:, [0, 1]] = batch.pages_BP[:, [1, 0]]
    batch.lengths_B.sub_(1)
    shifted = attend(batch, longest_key_G=None, **arguments)
    for wrong in (swapped, shifted):
        assert (wrong - right)[:5].abs().max() > 1e-3
        assert (wrong - right)[5:].abs().max() > 1e-3
