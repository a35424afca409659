"""Attention over pages: every sequence of a batch against the definition in float64.

Whatever a kernel has no business with is NaN: slots behind a sequence's last token, pages of nobody. Entries
of the table behind a sequence's last page are far outside the pool, and rows of the output behind the last
query hold a mark that has to stay.

Shapes: T tokens, B sequences, P pages, S slots of a page, H query heads, G key-value heads, D head size.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, reference

SSMAX = [0.4, -0.3, 0.0, 1.7]
MARK = 7.0
PADDING = 3  # rows behind the last query


def _generalized_gaussian() -> Prior:
    """Both signs of β and μ, a Gaussian, and one that is flat."""
    return GeneralizedGaussian(
        4, alpha=[0.7, 3.0, 12.0, 5.0], beta=[-1.5, 0.5, 2.0, 0.0], mu=[0.0, -7.3, 2.6, 0.0]
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of (queries, tokens), in pages and, for the definition, each in one piece."""

    sequences: Sequence[tuple[int, int]]
    q_THD: Tensor
    k_PSGD: Tensor
    v_PSGD: Tensor
    starts: Tensor
    lengths: Tensor
    pages: Tensor
    keys_and_values: list[Tensor]
    """``[tokens, G, 2D]`` each."""

    @property
    def longest_key(self) -> Tensor:
        """``[G]``."""
        keys = torch.cat(self.keys_and_values).float()
        return torch.linalg.vector_norm(keys[..., : self.q_THD.shape[-1]], dim=-1).amax(dim=0)


def make_batch(
    sequences: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    heads: int = 4,
    groups: int = 2,
    head_size: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Batch:
    random = torch.Generator().manual_seed(0)
    counts = [-(-tokens // page) for _, tokens in sequences]
    pool = torch.full((sum(counts) + 2, page, groups, 2 * head_size), torch.nan, dtype=dtype)
    shuffled = torch.randperm(len(pool), generator=random).int()
    table = torch.full((len(sequences), max(counts) + 1), 10**6, dtype=torch.int32)
    pieces = [
        torch.randn(tokens, groups, 2 * head_size, generator=random).to(dtype) for _, tokens in sequences
    ]
    of_sequences = shuffled.split([*counts, 2])
    for row, own, piece in zip(table, of_sequences, pieces, strict=False):
        row[: len(own)] = own
        for index, part in zip(own, piece.split(page), strict=False):
            pool[index, : len(part)] = part
    queries = [n for n, _ in sequences]
    q = torch.randn(sum(queries) + PADDING, heads, head_size, generator=random).to(device, dtype)
    pool = pool.to(device)
    return Batch(
        sequences=sequences,
        q_THD=q,
        k_PSGD=pool[..., :head_size],
        v_PSGD=pool[..., head_size:],
        starts=torch.tensor([0, *queries]).cumsum(0).int().to(device),
        lengths=torch.tensor([tokens for _, tokens in sequences]).int().to(device),
        pages=table.to(device),
        keys_and_values=[piece.to(device) for piece in pieces],
    )


def attend(batch: Batch, prior: Prior, *, tiles: tuple[int, int] = (16, 16), **changes: Any) -> Tensor:
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.paged.triton import paged_attention

    out = torch.full_like(batch.q_THD, MARK)
    arguments: dict[str, Any] = {
        "query_starts": batch.starts,
        "lengths_B": batch.lengths,
        "pages_BP": batch.pages,
        "most_queries": max(n for n, _ in batch.sequences),
        "most_keys": max(tokens for _, tokens in batch.sequences),
        "ssmax_scale_H": None,
        "ssmax_scales_prior": True,
        "longest_key_G": batch.longest_key,
        "tiles": Tiles(block_m=tiles[0], block_n=tiles[1]),
    } | changes
    paged_attention(
        batch.q_THD, batch.k_PSGD, batch.v_PSGD, out_THD=out, prior=prior.to(out.device), **arguments
    )
    return out


@pytest.fixture
def check(largest_logits: Callable[..., Tensor]) -> Callable[..., None]:
    def check(batch: Batch, out: Tensor, prior: Prior, ssmax: Tensor | None, scaled: bool) -> None:
        """fp32 is off by less than 5e-7 times the size of logits, fp16 by less than 2e-3."""
        exact_prior = copy.deepcopy(prior).double()
        assert (out[batch.starts[-1] :] == MARK).all()
        for b, (queries, tokens) in enumerate(batch.sequences):
            if queries == 0:
                continue
            rows = slice(int(batch.starts[b]), int(batch.starts[b + 1]))
            k_and_v = batch.keys_and_values[b].double().transpose(0, 1)[None]
            q, (k, v) = batch.q_THD[rows].double().transpose(0, 1)[None], k_and_v.chunk(2, dim=-1)
            arguments: dict[str, Any] = {"query_start": tokens - queries, "ssmax_scales_prior": scaled}
            scale = None if ssmax is None else ssmax.double()
            expected = reference.attention(q, k, v, prior=exact_prior, ssmax_scale_H=scale, **arguments)
            leaves = {"q": q, "k": k, "v": v} | ({} if scale is None else {"s": scale})
            logits_H = largest_logits(leaves, exact_prior, arguments | {"key_start": 0})
            error_H = (out[rows].double() - expected[0].transpose(0, 1)).abs().amax(dim=(0, 2))
            tolerance_H = 5e-7 * logits_H.clamp(min=8) if out.dtype == torch.float32 else 2e-3
            assert (error_H < tolerance_H).all(), f"{queries} of {tokens}: off by {error_H}"

    return check


@pytest.fixture
def compare(device: torch.device, check: Callable[..., None]) -> Callable[..., Tensor]:
    def compare(
        prior: Prior,
        sequences: Sequence[tuple[int, int]],
        *,
        ssmax: list[float] | None = None,
        scaled: bool = True,
        tiles: tuple[int, int] = (16, 16),
        changes: dict[str, Any] | None = None,
        **layout: Any,
    ) -> Tensor:
        batch = make_batch(sequences, device=device, heads=prior.heads, **layout)
        scale = None if ssmax is None else torch.tensor(ssmax, device=device)
        out = attend(
            batch,
            prior,
            tiles=tiles,
            ssmax_scale_H=scale,
            ssmax_scales_prior=scaled,
            **(changes or {}),
        )
        check(batch, out, prior, scale, scaled)
        return out

    return compare


# Sequences of (queries, tokens), for blocks of 16 queries, tiles of 16 keys and pages of 16 slots.
BATCHES = {
    "blocks and tiles, one short, whole and one more": [(15, 15), (16, 32), (17, 33), (16, 31), (2, 18)],
    "decoding among prefills": [(1, 1), (20, 21), (1, 16), (1, 17), (33, 33), (1, 40)],
    "sequences without queries": [(0, 0), (18, 20), (0, 25), (1, 7), (0, 0)],
    "one sequence": [(19, 45)],
}


@pytest.mark.parametrize("sequences", BATCHES.values(), ids=BATCHES)
def test_every_batch(sequences: list[tuple[int, int]], compare: Callable[..., Tensor]) -> None:
    compare(_generalized_gaussian(), sequences, ssmax=SSMAX)


@pytest.mark.parametrize(("ssmax", "scaled"), [(None, True), (SSMAX, True), (SSMAX, False)])
@pytest.mark.parametrize("kind", [_generalized_gaussian, lambda: Laplace(4), lambda: Uniform(4)])
def test_every_prior(
    kind: Callable[[], Prior], ssmax: list[float] | None, scaled: bool, compare: Callable[..., Tensor]
) -> None:
    compare(kind(), [(18, 35), (1, 20)], ssmax=ssmax, scaled=scaled)
    compare(kind(), [(2, 20)], ssmax=ssmax, scaled=scaled, changes={"splits": 2})


@pytest.mark.parametrize("splits", [1, 3, 18])
@pytest.mark.parametrize("queries", [1, 3, 8])
def test_all_sequences_decode(queries: int, splits: int, compare: Callable[..., Tensor]) -> None:
    """Over as many parts as one, as a few, and as are more than combined at once, most of them empty."""
    ends = (8, 16, 17, 48)
    sequences = [(min(queries, n + 1), end) for n, end in enumerate(ends)] + [(0, 0), (queries, 50)]
    compare(_generalized_gaussian(), sequences, ssmax=SSMAX, changes={"splits": splits})


def test_bounds_may_be_loose(compare: Callable[..., Tensor]) -> None:
    """Bounds choose kernels and grids, and no more."""
    sequences = [(1, 40), (3, 33), (0, 0)]
    for most_queries in (3, 4, 8, 9, 1000):
        changes = {"most_queries": most_queries, "most_keys": 10_000, "splits": 3}
        compare(_generalized_gaussian(), sequences, ssmax=SSMAX, changes=changes)


@pytest.mark.parametrize(
    ("most_queries", "sequences", "heads_a_group", "element_size", "decoded"),
    [
        (1, 1, 1, 2, 1),
        (16, 5, 4, 2, 16),  # 64 rows
        (17, 5, 1, 2, 1),
        (9, 5, 8, 2, 1),  # rounded up to 16, 128 rows
        (8, 5, 8, 2, 8),
        (8, 5, 2, 4, 8),  # 16 rows
        (9, 5, 2, 4, 1),
        (1, 5, 16, 4, 1),
        (1, 5, 17, 4, 0),
        (17, 1, 1, 2, 0),  # nothing to decode beside a prefill
        (0, 3, 1, 2, 1),
    ],
)
def test_which_sequences_decode(
    most_queries: int, sequences: int, heads_a_group: int, element_size: int, decoded: int
) -> None:
    from bamctl.attention.paged.triton import _most_decoded

    assert _most_decoded(most_queries, sequences, heads_a_group, element_size) == decoded


@pytest.mark.parametrize("page", [16, 32, 48, 64])
@pytest.mark.parametrize("tiles", [(16, 16), (64, 32)])
def test_pages_of_any_size(page: int, tiles: tuple[int, int], compare: Callable[..., Tensor]) -> None:
    compare(Laplace(2), [(20, 97), (1, 65), (1, 48)], page=page, tiles=tiles, groups=1)


@pytest.mark.parametrize(
    ("head_size", "dtype"),
    [
        *((head_size, torch.float32) for head_size in (32, 80, 256)),
        *((head_size, torch.float16) for head_size in (16, 64, 128)),
    ],
)
def test_head_sizes_and_types(head_size: int, dtype: torch.dtype, compare: Callable[..., Tensor]) -> None:
    prior = GeneralizedGaussian(2, alpha=[0.7, 3.0], beta=[-1.5, 0.5])
    layout: dict[str, Any] = {"head_size": head_size, "dtype": dtype, "ssmax": [0.4, 0.2], "groups": 1}
    compare(prior, [(18, 35), (1, 20)], **layout)
    compare(prior, [(2, 20)], **layout)


@pytest.mark.parametrize("groups", [4, 1])
def test_heads_share_keys(groups: int, compare: Callable[..., Tensor]) -> None:
    compare(_generalized_gaussian(), [(17, 20), (1, 33)], groups=groups)
    compare(_generalized_gaussian(), [(3, 33)], groups=groups, changes={"splits": 2})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_far_keys_by_their_polynomials(
    dtype: torch.dtype, device: torch.device, compare: Callable[..., Tensor]
) -> None:
    from bamctl.attention.kernels import launch
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.paged import triton

    def prior() -> Prior:
        return GeneralizedGaussian(3, alpha=[60.0, 1e3, 4.0], beta=[1.0, -1.6, 0.5], mu=[0.0, 0.0, -3.7])

    tiles = Tiles(block_m=32, block_n=16)
    kind, parameters = launch.prior_parameters(prior().to(device))
    assert parameters is not None
    _, limits = triton._series_and_limits(parameters.detach(), kind, 3, 400, tiles)
    low_H, high_H = limits.T
    assert (low_H > -330).any(), "a polynomial of low degree holds for some tile"
    assert ((low_H < -330) & (high_H > -330)).any(), "one of high degree for some that no other holds for"
    compare(prior(), [(17, 350), (20, 341)], tiles=(32, 16), dtype=dtype, groups=1, ssmax=[0.4, 0.2, 0.3])


@pytest.mark.parametrize(
    "sequences",
    [[(20, 150), (1, 170), (3, 140), (0, 0), (1, 30)], [(3, 150), (0, 90), (1, 170), (2, 2), (4, 140)]],
    ids=["mixed", "decoding"],
)
def test_each_sequence_looks_as_far_back_as_it_needs(
    sequences: list[tuple[int, int]],
    device: torch.device,
    check: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values that would spoil every output if their tiles were looked at, even with weight 0."""
    from bamctl.attention.paged import triton

    monkeypatch.setattr(triton, "SEARCH_KEYS", 0)
    batch = make_batch(sequences, device=device)
    for table, (_, tokens) in zip(batch.pages, sequences, strict=True):
        if tokens > 100:
            batch.v_PSGD[table[:4].long()] = torch.nan
    prior = Laplace(4, slopes=[2.0, 1.0, 1.0, 2.0])
    check(batch, attend(batch, prior, splits=3), prior, None, True)
    assert attend(batch, prior, splits=3, longest_key_G=None).isnan().any()


def test_any_layout_of_the_pool(device: torch.device) -> None:
    """Heads before slots, keys and values in tensors of their own, queries cut out of something wider."""
    batch = make_batch([(18, 40), (1, 20)], device=device)
    out = attend(batch, Laplace(4))
    for by_head in (True, False):
        k, v = (
            x.transpose(1, 2).contiguous().transpose(1, 2) if by_head else x.contiguous()
            for x in (batch.k_PSGD, batch.v_PSGD)
        )
        q = torch.cat((batch.q_THD, batch.q_THD), dim=-1)[..., :16]
        table = batch.pages.T.contiguous().T
        other = Batch(**(vars(batch) | {"q_THD": q, "k_PSGD": k, "v_PSGD": v, "pages": table}))
        assert other.k_PSGD.stride() != batch.k_PSGD.stride()
        assert torch.equal(attend(other, Laplace(4)), out)


def test_the_wide_paths_compute_the_same(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from bamctl.attention.kernels import launch

    batch = make_batch([(18, 40), (1, 20)], device=device, head_size=20)
    narrow = attend(batch, _generalized_gaussian())
    asked = []

    def yes(*arguments: Any) -> bool:
        asked.append(arguments)
        return True

    monkeypatch.setattr(launch, "needs_wide_offsets", yes)
    assert torch.equal(attend(batch, _generalized_gaussian()), narrow)
    assert asked


@pytest.mark.usefixtures("overflow_checks")
def test_a_pool_beyond_32_bits(device: torch.device) -> None:
    """Pages that begin beyond 2³¹ elements. What no page covers of the 4 GiB is never touched."""
    batch = make_batch([(18, 40), (1, 20)], device=device, groups=1, head_size=16, dtype=torch.float16)
    expected = attend(batch, Laplace(4))
    apart, shift = 2**17, 2**14  # elements from page to page, and pages before the first
    memory = torch.empty((shift + len(batch.k_PSGD)) * apart, dtype=torch.float16, device=device)
    far = memory.as_strided((shift + len(batch.k_PSGD), 16, 1, 32), (apart, 32, 32, 1))
    far[shift:, ..., :16] = batch.k_PSGD
    far[shift:, ..., 16:] = batch.v_PSGD
    pages = batch.pages + shift
    other = Batch(**(vars(batch) | {"k_PSGD": far[..., :16], "v_PSGD": far[..., 16:], "pages": pages}))
    assert torch.equal(attend(other, Laplace(4)), expected)


def test_a_calls_size_follows_from_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without contents: whoever waited for one would fail."""
    from bamctl.attention.kernels import bias, paged
    from bamctl.attention.paged import triton

    grids: dict[str, tuple[int, ...]] = {}

    class Recorded:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids[self.name] = grid
            return lambda *args, **kwargs: None

    names = ("paged_first_keys", "paged_forward", "paged_decode", "paged_combine")
    for module, name in (*((paged, name) for name in names), (bias, "far_field")):
        monkeypatch.setattr(module, name, Recorded(name))
    monkeypatch.setattr(triton, "why_not", lambda *args: None)

    batch = make_batch([(1, 40), (0, 0), (18, 40)], device=torch.device("meta"))
    longest_key_G = torch.empty(2, device="meta")
    attend(batch, _generalized_gaussian(), most_keys=600, longest_key_G=longest_key_G, splits=5)
    blocks = (19 + PADDING) // 16 + 3
    assert grids == {
        "paged_first_keys": (blocks, 4),
        "far_field": (1, 4),
        "paged_forward": (blocks * 4,),
        "paged_decode": (5 * 3 * 2,),
        "paged_combine": (3 * 4,),
    }
    grids.clear()
    attend(batch, Laplace(4), most_queries=3, most_keys=511, longest_key_G=longest_key_G, splits=5)
    assert grids == {"paged_decode": (5 * 3 * 2,), "paged_combine": (3 * 4 * 4,)}
    grids.clear()
    nothing = Batch(**(vars(batch) | {"lengths": torch.empty(0, device="meta")}))
    attend(nothing, Laplace(4), longest_key_G=None)
    assert not grids


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ({"dtype": torch.float64}, {}, "one of torch.float16, torch.bfloat16, torch.float32 for all three"),
        ({"head_size": 257}, {}, "heads of up to 256, not 257"),
        ({}, {"most_keys": 2**31 - 1023}, "up to 2147482624 keys, not 2147482625"),
    ],
)
def test_what_there_is_no_kernel_for(
    layout: dict[str, Any], changes: dict[str, Any], message: str, device: torch.device
) -> None:
    with pytest.raises(ValueError, match=message):
        attend(make_batch([(1, 3)], device=device, **layout), Laplace(4), **changes)
