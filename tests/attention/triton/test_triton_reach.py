"""Which keys are left out: the search, against that of `bamctl.attention.reach`, and what follows from it."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, reference
from bamctl.attention.reach import first_keys
from bamctl.attention.ssmax import ssmax_factor

QUERIES, BLOCK = 64, 16

PRIORS = {
    "Laplace": lambda: Laplace(4, slopes=[4.0, 1.0, 0.25, -0.5]),
    "Gaussian": lambda: GeneralizedGaussian(4, alpha=[1.0, 4.0, 16.0, 256.0], beta=2.0),
    "heavy tail": lambda: GeneralizedGaussian(4, alpha=[1e-3, 0.1, 1.0, 10.0], beta=[0.5, 0.5, 0.9, 0.3]),
    "suppressed neighbourhood": lambda: GeneralizedGaussian(
        4, alpha=[1e3, 1e4, 1.0, 1.0], beta=[-2.0, -3.0, -1.0, 0.0]
    ),
    "behind": lambda: GeneralizedGaussian(
        4, alpha=2.0, beta=[2.0, 2.0, 1.0, -1.0], mu=[-50.0, -3e9, 7.0, -20.0]
    ),
}


def _of_kernel(
    device: torch.device,
    prior: Prior,
    content_H: Tensor,
    scale_H: Tensor | None,
    *,
    offset: int,
    scaled: bool,
) -> Tensor:
    from bamctl.attention.kernels import reach
    from bamctl.attention.triton import _parameters

    kind, parameters_PH, _ = _parameters(prior)
    assert parameters_PH is not None
    t_HC = None
    if scale_H is not None:
        t_HC = ssmax_factor(scale_H, torch.arange(offset, offset + QUERIES, device=device))
    blocks = -(-QUERIES // BLOCK)
    first_HT = torch.empty((prior.heads, blocks), dtype=torch.int64, device=device)
    reach.first_keys[(1, prior.heads)](
        first_HT,
        content_H,
        content_H if t_HC is None else t_HC,
        parameters_PH.detach(),
        prior.heads,
        QUERIES,
        offset,
        KIND=kind,
        SSMAX=t_HC is not None,
        SCALES_PRIOR=scaled,
        BLOCK_M=BLOCK,
    )
    return first_HT


@pytest.mark.parametrize(
    ("name", "ssmax", "scaled"),
    [
        *((name, [0.4, 1.5, 0.0, -0.3], True) for name in PRIORS),
        ("Gaussian", [0.4, 1.5, 0.0, -0.3], False),
        ("heavy tail", [0.4, 1.5, 0.0, -0.3], False),
        ("Gaussian", None, True),
        ("Laplace", None, True),
    ],
)
def test_the_search_finds_what_the_other_finds(
    name: str, ssmax: list[float] | None, scaled: bool, device: torch.device
) -> None:
    law = PRIORS[name]().to(device)
    content_H = torch.tensor([0.3, 2.0, 5.0, 1.0], device=device)
    scale_H = None if ssmax is None else torch.tensor(ssmax, device=device)
    for offset in (100_000, 1) if name == "heavy tail" else (100_000,):
        found_HT = _of_kernel(device, law, content_H, scale_H, offset=offset, scaled=scaled)
        expected_HT = first_keys(
            copy.deepcopy(law),
            content_H=content_H,
            positions_T=torch.arange(offset, offset + QUERIES, BLOCK, device=device),
            queries=BLOCK,
            key_start=0,
            scale_H=scale_H,
            scales_prior=scaled,
            dtype=torch.float32,
        )
        # Either may look a little farther than it would have to, for rounding of its own.
        difference_HT = (found_HT - expected_HT).abs()
        reach_HT = torch.arange(offset, offset + QUERIES, BLOCK, device=device) - expected_HT
        assert (difference_HT <= 1 + 1e-5 * reach_HT).all()


@pytest.fixture
def search_always(monkeypatch: pytest.MonkeyPatch) -> None:
    from bamctl.attention import triton

    monkeypatch.setattr(triton, "SEARCH_KEYS", 0)


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize("kernel", ["forward", "decode"])
def test_what_is_left_out_is_never_read(kernel: str, device: torch.device) -> None:
    """Values that would spoil every output if their tiles were looked at, even with weight 0."""
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    random = torch.Generator().manual_seed(0)
    queries, keys = (4, 160) if kernel == "decode" else (40, 160)
    q, k, v = (torch.randn(1, 2, n, 16, generator=random).to(device) for n in (queries, keys, keys))
    prior = Laplace(2, slopes=[2.0, 1.0], learned=True).to(device)
    expected = reference.attention(
        q.double(), k.double(), v.double(), prior=copy.deepcopy(prior).double(), query_start=keys - queries
    )
    v[:, :, :64] = torch.nan
    out = attention(
        *(x.requires_grad_() for x in (q, k, v)),
        prior=prior,
        query_start=keys - queries,
        tiles=Tiles(block_m=16, block_n=16),
        splits=3 if kernel == "decode" else 1,
        longest_key_G=k.detach().norm(dim=-1).amax(dim=(0, 2)),
    )
    assert (out - expected).abs().max() < 2e-6
    gradients = torch.autograd.grad(out.sum(), [q, k, v, prior.slopes])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[1][:, :, :64] == 0).all()
    assert (gradients[2][:, :, :64] == 0).all()
    assert (gradients[2][:, :, -queries:] != 0).any()


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize(("ssmax", "scaled"), [(None, True), ([0.4, 1.0], True), ([0.4, 1.0], False)])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_far_key_that_is_aligned_is_not_left_out(
    ssmax: list[float] | None, scaled: bool, splits: int, device: torch.device
) -> None:
    """The worst case for the bound: far keys that weigh as much as all near ones, and large values there."""
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    queries, keys, head_size = (4, 150, 16)
    random = torch.Generator().manual_seed(0)
    q = torch.nn.functional.normalize(torch.randn(1, 1, 1, head_size, generator=random), dim=-1)
    q = q.expand(1, 2, queries, head_size).contiguous()
    slopes = torch.tensor([0.6, 0.2])
    distance = keys - 1 - 3
    k = torch.zeros(1, 2, keys, head_size)
    scale_H = None if ssmax is None else torch.tensor(ssmax)
    for h, slope in enumerate(slopes):
        k[0, h, 3] = q[0, h, 0] * slope * distance * head_size**0.5
        if scale_H is not None and not scaled:
            k[0, h, 3] /= scale_H[h] * math.log(keys)
    v = torch.randn(1, 2, keys, head_size, generator=random)
    prior = Laplace(2, slopes=slopes.tolist())
    expected = reference.attention(
        *(x.double() for x in (q, k, v)),
        prior=copy.deepcopy(prior).double(),
        query_start=keys - queries,
        ssmax_scale_H=None if scale_H is None else scale_H.double(),
        ssmax_scales_prior=scaled,
    )
    q, k, v = (x.to(device) for x in (q, k, v))
    out = attention(
        q,
        k,
        v,
        prior=prior.to(device),
        query_start=keys - queries,
        ssmax_scale_H=None if scale_H is None else scale_H.to(device),
        ssmax_scales_prior=scaled,
        tiles=Tiles(block_m=16, block_n=16),
        splits=splits,
        longest_key_G=k.norm(dim=-1).amax(dim=(0, 2)),
    )
    without = expected - v[:, :, 3:4].cpu().double()
    assert (out.cpu() - expected).abs().max() < 2e-5
    assert without.abs().max() > 0.1


@pytest.mark.usefixtures("search_always")
@pytest.mark.parametrize("name", ["Laplace", "suppressed neighbourhood", "behind"])
def test_leaving_out_changes_nothing(name: str, compare: Callable[..., Any]) -> None:
    compare(
        PRIORS[name](),
        queries=20,
        keys=90,
        query_start=70,
        groups=2,
        ssmax=[0.4, 1.5, 0.0, -0.3],
        gradients=name != "behind",  # where the bias is so large, rounding is all that is left of them
    ).check(torch.float32)


def test_blocks_that_look_at_a_tile_of_keys() -> None:
    """The end of the blocks of queries, where first keys rise, fall, and where blocks differ in size."""
    from bamctl.attention.kernels.launch_backward import last_blocks
    from bamctl.attention.kernels.tiles import Tiles

    first_HT = torch.tensor([[0, 0, 40, 60], [0, 50, 20, 64]])  # of blocks of 32 queries
    tiles = Tiles(block_m=16, block_n=16)
    last_HU = last_blocks(first_HT, 32, tiles, queries=120, key_tiles=8)
    assert last_HU[0].tolist() == [4, 4, 6, 8, 8, 8, 8, 8]
    assert last_HU[1].tolist() == [2, 6, 6, 6, 8, 8, 8, 8]
