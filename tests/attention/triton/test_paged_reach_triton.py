"""Which keys in pages are left out: the search, against that of `bamctl.attention.reach`, and what follows.

Shapes: T tokens, P pages, S slots of a page, H query heads, G key-value heads, C queries, N keys, D head
size, L blocks of queries.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, reference
from bamctl.attention.reach import first_keys

BLOCK = 16
PAGE = 16

PRIORS: dict[str, Callable[[], Prior]] = {
    "Laplace": lambda: Laplace(4, slopes=[4.0, 1.0, 0.25, -0.5]),
    "Gaussian": lambda: GeneralizedGaussian(4, alpha=[1.0, 4.0, 16.0, 256.0], beta=2.0),
    "suppressed neighbourhood": lambda: GeneralizedGaussian(
        4, alpha=[1e3, 1e4, 1.0, 1.0], beta=[-2.0, -3.0, -1.0, 0.0]
    ),
    "behind": lambda: GeneralizedGaussian(
        4, alpha=2.0, beta=[2.0, 2.0, 1.0, -1.0], mu=[-50.0, -3e9, 7.0, -20.0]
    ),
}
SSMAX = [0.4, 1.5, 0.0, -0.3]


@pytest.fixture
def search_always(monkeypatch: pytest.MonkeyPatch) -> None:
    from bamctl.attention.paged import triton

    monkeypatch.setattr(triton, "SEARCH_KEYS", 0)


@pytest.mark.parametrize(
    ("name", "ssmax", "scaled"),
    [
        *((name, SSMAX, True) for name in PRIORS),
        ("Gaussian", SSMAX, False),
        ("Laplace", SSMAX, False),
        ("Gaussian", None, True),
        ("Laplace", None, True),
    ],
)
def test_the_search_finds_what_the_other_finds(
    name: str, ssmax: list[float] | None, scaled: bool, device: torch.device
) -> None:
    """Blocks whole and not, of sequences that are short, long, as long as any, and without queries."""
    from bamctl.attention.kernels import launch, paged

    prior = PRIORS[name]().to(device)
    queries, lengths = [40, 0, 1, 16, 3, 16], [100_000, 0, 70, 16, 2**31 - 1024, 100]
    starts = torch.tensor([0, *queries], device=device).cumsum(0).int()
    random = torch.Generator().manual_seed(0)
    tokens = sum(queries)
    q_1HTD = torch.randn(1, 4, tokens, 20, generator=random) * torch.rand(tokens, 1, generator=random)
    q_1HTD = q_1HTD.to(device)
    longest_key_G = torch.tensor([4.0, 5.0], device=device)
    scale_H = None if ssmax is None else torch.tensor(ssmax, device=device)
    kind, parameters_PH = launch.prior_parameters(prior)
    assert parameters_PH is not None
    blocks = tokens // BLOCK + len(queries)
    found_HL = torch.full((4, blocks), -1, dtype=torch.int64, device=device)
    paged.paged_first_keys[(blocks, 4)](
        found_HL,
        q_1HTD,
        longest_key_G,
        q_1HTD if scale_H is None else scale_H,
        parameters_PH.detach(),
        starts,
        torch.tensor(lengths, device=device).int(),
        q_1HTD.stride(),
        4,
        len(queries),
        blocks,
        GROUP=2,
        KIND=kind,
        SSMAX=scale_H is not None,
        SCALES_PRIOR=scaled,
        WIDE_OFFSETS=False,
        HEAD_SIZE=20,
        BLOCK_D=32,
        BLOCK_M=BLOCK,
    )
    searched = set()
    for b, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        for first in range(0, count, BLOCK):
            here = range(first, min(first + BLOCK, count))
            start = int(starts[b])
            norm_H = q_1HTD[0, :, start + here.start : start + here.stop].norm(dim=-1).amax(dim=1)
            position = length - count + first
            expected_H = first_keys(
                copy.deepcopy(prior),
                content_H=norm_H * longest_key_G.repeat_interleave(2) * 1.001 / math.sqrt(20),
                positions_T=torch.tensor([position], device=device),
                queries=BLOCK if scaled else len(here),  # whose last has the largest factor
                key_start=0,
                scale_H=scale_H,
                scales_prior=scaled,
                dtype=torch.float32,
            )[:, 0]
            index = start // BLOCK + b + first // BLOCK
            searched.add(index)
            # Either may look a little farther than it would have to, for rounding of its own.
            difference_H = (found_HL[:, index] - expected_H).abs()
            assert (difference_H <= 1 + 1e-5 * (position - expected_H)).all(), (b, first)
    untouched = [index for index in range(blocks) if index not in searched]
    assert (found_HL[:, untouched] == -1).all()


def _pages(keys: int) -> int:
    return -(-keys // PAGE)


def _in_pages(x_GND: Tensor) -> Tensor:
    """``[P, S, G, D]``: one sequence in pages that lie in reverse order."""
    pages = _pages(x_GND.shape[1])
    padded = torch.nn.functional.pad(x_GND, (0, 0, 0, pages * PAGE - x_GND.shape[1]))
    return padded.unflatten(1, (pages, PAGE)).permute(1, 2, 0, 3).flip(0)


def _attend(q_HCD: Tensor, k_GND: Tensor, v_GND: Tensor, prior: Prior, **changes: Any) -> Tensor:
    """``[H, C, D]``: the last C of N tokens."""
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.paged.triton import paged_attention

    (queries, keys), device = (q_HCD.shape[1], k_GND.shape[1]), q_HCD.device
    out_THD = torch.empty_like(q_HCD.transpose(0, 1))
    arguments: dict[str, Any] = {
        "ssmax_scale_H": None,
        "ssmax_scales_prior": True,
        "longest_key_G": k_GND.norm(dim=-1).amax(dim=1),
        "tiles": Tiles(block_m=BLOCK, block_n=16),
    } | changes
    paged_attention(
        q_HCD.transpose(0, 1),
        _in_pages(k_GND),
        _in_pages(v_GND),
        pages_BP=torch.arange(_pages(keys) - 1, -1, -1, device=device).int()[None],
        out_THD=out_THD,
        prior=prior,
        query_starts=torch.tensor([0, queries], device=device).int(),
        lengths_B=torch.tensor([keys], device=device).int(),
        most_queries=queries,
        most_keys=keys,
        **arguments,
    )
    return out_THD.transpose(0, 1)


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize(("queries", "splits"), [(40, None), (4, 1), (4, 3)])
def test_what_is_left_out_is_never_read(queries: int, splits: int | None, device: torch.device) -> None:
    """Values that would spoil every output if their tiles were looked at, even with weight 0."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, generator=random).to(device) for n in (queries, 160, 160))
    prior = Laplace(2, slopes=[2.0, 1.0]).to(device)
    expected = reference.attention(
        *(x[None].double() for x in (q, k, v)),
        prior=copy.deepcopy(prior).double(),
        query_start=160 - queries,
    )[0]
    v[:, :64] = torch.nan
    out = _attend(q, k, v, prior, splits=splits)
    assert (out - expected).abs().max() < 2e-6
    assert _attend(q, k, v, prior, splits=splits, longest_key_G=None).isnan().any()
    unknown = torch.tensor([torch.nan, torch.inf], device=device)
    assert _attend(q, k, v, prior, splits=splits, longest_key_G=unknown).isnan().all(dim=(1, 2)).all()


def test_few_keys_are_all_looked_at(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from bamctl.attention.paged import triton

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 16, generator=random).to(device) for n in (2, 100, 100))
    v[:, :16] = torch.nan
    for least, reads_all in ((101, True), (100, False)):
        monkeypatch.setattr(triton, "SEARCH_KEYS", least)
        assert bool(_attend(q, k, v, Laplace(1, slopes=4.0).to(device)).isnan().any()) is reads_all


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize(("ssmax", "scaled"), [(None, True), ([0.4, 1.0], True), ([0.4, 1.0], False)])
@pytest.mark.parametrize("queries", [4, 17])
def test_a_far_key_that_is_aligned_is_not_left_out(
    ssmax: list[float] | None, scaled: bool, queries: int, device: torch.device
) -> None:
    """The worst case for the bound: far keys that weigh as much as all near ones, and large values there."""
    keys, head_size = 150, 16
    random = torch.Generator().manual_seed(0)
    q = torch.nn.functional.normalize(torch.randn(1, 1, head_size, generator=random), dim=-1)
    q = q.expand(2, queries, head_size).contiguous()
    slopes = torch.tensor([0.6, 0.2])
    k = torch.zeros(2, keys, head_size)
    scale_H = None if ssmax is None else torch.tensor(ssmax)
    for h, slope in enumerate(slopes):
        k[h, 3] = q[h, 0] * slope * (keys - 1 - 3) * head_size**0.5
        if scale_H is not None and not scaled:
            k[h, 3] /= scale_H[h] * math.log(keys)
    v = torch.randn(2, keys, head_size, generator=random)
    prior = Laplace(2, slopes=slopes.tolist())
    expected = reference.attention(
        *(x[None].double() for x in (q, k, v)),
        prior=copy.deepcopy(prior).double(),
        query_start=keys - queries,
        ssmax_scale_H=None if scale_H is None else scale_H.double(),
        ssmax_scales_prior=scaled,
    )[0]
    q, k, v = (x.to(device) for x in (q, k, v))
    out = _attend(
        q,
        k,
        v,
        prior.to(device),
        ssmax_scale_H=None if scale_H is None else scale_H.to(device),
        ssmax_scales_prior=scaled,
        splits=3,
    )
    assert (out.cpu() - expected).abs().max() < 2e-5
    without = expected - v[:, 3:4].double()
    assert without.abs().max() > 0.1


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize("name", [*PRIORS, "uniform"])
@pytest.mark.parametrize("queries", [3, 20])
def test_leaving_out_changes_nothing(name: str, queries: int, device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    shapes = ((4, queries), (2, 90), (2, 90))
    q, k, v = (torch.randn(*shape, 16, generator=random).to(device) for shape in shapes)
    prior = (PRIORS[name]() if name in PRIORS else Uniform(4)).to(device)
    for scaled in (True, False):
        arguments: dict[str, Any] = {
            "ssmax_scale_H": torch.tensor(SSMAX, device=device),
            "ssmax_scales_prior": scaled,
        }
        out = _attend(q, k, v, prior, splits=3, **arguments)
        of_all = _attend(q, k, v, prior, splits=3, longest_key_G=None, **arguments)
        assert (out - of_all).abs().max() < 2e-6
