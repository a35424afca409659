"""The forward kernel against the definition in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform

SSMAX = {
    "softmax": (None, True),
    "SSMax": ([0.4, -0.3, 0.0, 1.7], True),
    "SSMax on content": ([0.4, -0.3, 0.0, 1.7], False),
}

# (queries, keys, query_start, key_start), for tiles of 16 × 16
PLACES = {
    "the first token": (1, 1, 0, 0),
    "the first two": (2, 2, 0, 0),
    "one short of a block": (15, 15, 0, 0),
    "a whole block": (16, 16, 0, 0),
    "one more than a block": (17, 17, 0, 0),
    "queries in the middle": (5, 37, 31, 0),
    "a query at a block's start": (1, 33, 32, 0),
    "the first keys left out": (20, 30, 133, 123),
    "keys that end before the queries": (3, 5, 20, 2),
    "keys beyond every query": (3, 40, 2, 0),
}


def _generalized_gaussian() -> Prior:
    """Both signs of β and μ, a Gaussian, and one that is flat."""
    return GeneralizedGaussian(
        4, alpha=[0.7, 3.0, 12.0, 5.0], beta=[-1.5, 0.5, 2.0, 0.0], mu=[0.0, -7.3, 2.6, 0.0]
    )


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("ssmax", SSMAX.values(), ids=SSMAX)
def test_every_place_and_ssmax(
    place: tuple[int, int, int, int], ssmax: tuple[list[float] | None, bool], compare: Callable[..., Any]
) -> None:
    queries, keys, query_start, key_start = place
    others = [Laplace(4), Uniform(4)] if queries == 5 or ssmax[0] is None else []
    for prior in (_generalized_gaussian(), *others):
        compare(
            prior,
            queries=queries,
            keys=keys,
            query_start=query_start,
            key_start=key_start,
            groups=2,
            ssmax=ssmax[0],
            scaled=ssmax[1],
        ).check(torch.float32)


@pytest.mark.parametrize(
    ("head_size", "dtype"),
    [
        *((head_size, torch.float32) for head_size in (16, 20, 64, 128, 256)),
        *((head_size, torch.float16) for head_size in (31, 96, 256)),
    ],
)
def test_head_sizes(head_size: int, dtype: torch.dtype, compare: Callable[..., Any]) -> None:
    compare(
        GeneralizedGaussian(2, alpha=[0.7, 3.0], beta=[-1.5, 0.5]),
        queries=18,
        keys=35,
        query_start=17,
        head_size=head_size,
        dtype=dtype,
        ssmax=[0.4, 0.2],
    ).check(dtype)


@pytest.mark.parametrize(
    "prior", [_generalized_gaussian(), Laplace(4), Uniform(4)], ids=lambda p: type(p).__name__
)
def test_half_precision(prior: Prior, compare: Callable[..., Any]) -> None:
    compare(prior, queries=21, keys=50, query_start=29, dtype=torch.float16, ssmax=SSMAX["SSMax"][0]).check(
        torch.float16
    )


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_grouped_queries_and_batches(groups: int, compare: Callable[..., Any]) -> None:
    compare(_generalized_gaussian(), queries=18, keys=20, query_start=2, batch=2, groups=groups).check(
        torch.float32
    )


@pytest.mark.parametrize("tiles", [(32, 16), (64, 16), (32, 32)])
def test_tiles_of_other_shapes(tiles: tuple[int, int], compare: Callable[..., Any]) -> None:
    prior = GeneralizedGaussian(2, alpha=[0.7, 3.0], beta=[-1.5, 0.5])
    compare(prior, queries=70, keys=75, query_start=5, tiles=tiles).check(torch.float32)


@pytest.mark.parametrize("beta", [-3.0, -1.6, 0.0, 0.5, 1.0, 3.0])
def test_scales_over_twelve_decades(beta: float, compare: Callable[..., Any]) -> None:
    alphas = [10.0**exponent for exponent in range(-6, 7, 2)]
    for mu in (0.0, -2.4):
        prior = GeneralizedGaussian(7, alpha=alphas, beta=beta, mu=mu)
        compare(prior, queries=4, keys=20, query_start=16, ssmax=[0.4] * 6 + [-0.1]).check(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_bias_below_what_half_precision_holds(dtype: torch.dtype, compare: Callable[..., Any]) -> None:
    """β = -1.8 gives a token's own position -1e9; the first row sees nothing else."""
    prior = GeneralizedGaussian(2, alpha=1.0, beta=[-1.8, -3.0])
    compare(prior, queries=20, keys=20, query_start=0, dtype=dtype).check(dtype)
    compare(prior, queries=20, keys=20, query_start=0, dtype=dtype, ssmax=[0.4, 0.4]).check(dtype)


def test_rows_of_any_layout(device: torch.device) -> None:
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    tiles = Tiles(block_m=16, block_n=16)
    qkv = torch.randn(2, 20, 3, 2, 16, generator=torch.Generator().manual_seed(0)).to(device)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    prior = Laplace(2).to(device)
    out = attention(q, k, v, prior=prior, query_start=0, tiles=tiles)
    expected = attention(*(x.contiguous() for x in (q, k, v)), prior=prior, query_start=0, tiles=tiles)
    assert torch.equal(out, expected)


@pytest.mark.usefixtures("overflow_checks")
def test_keys_far_beyond_32_bits(compare: Callable[..., Any]) -> None:
    prior = GeneralizedGaussian(2, alpha=1e9, beta=[-0.5, 0.3])
    for query_start in (2**31 - 40, 2**31 - 3, 2**31 + 5, 2**40):
        compare(prior, queries=6, keys=20, query_start=query_start, ssmax=[0.1, 0.1]).check(torch.float32)
        compare(
            prior, queries=6, keys=20, query_start=query_start, key_start=query_start - 14, ssmax=[0.1, 0.1]
        ).check(torch.float32)


def test_the_wide_paths_compute_the_same(
    compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bamctl.attention.kernels import launch

    def run() -> Any:
        prior = GeneralizedGaussian(2, alpha=[0.7, 3.0], beta=[-1.5, 0.5])
        return compare(prior, queries=18, keys=35, query_start=17, head_size=20, gradients=True)

    narrow = run()
    asked = []

    def yes(*arguments: Any) -> bool:
        asked.append(arguments)
        return True

    monkeypatch.setattr(launch, "needs_wide_offsets", yes)
    monkeypatch.setattr(launch, "needs_wide_positions", yes)
    wide = run()
    assert len(asked) == 4
    assert torch.equal(narrow.out, wide.out)
    assert all(torch.equal(narrow.gradients[name], wide.gradients[name]) for name in narrow.gradients)


@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((1, 1, 2**22, 128), (2**40, 2**40, 128, 1), False),  # long, but what counts is within a tile
        ((1, 1, 1000, 128), (2**40, 2**40, 2**24, 1), False),
        ((1, 1, 1000, 128), (2**40, 2**40, (2**31 - 1 - 127) // 127, 1), False),
        ((1, 1, 1000, 128), (2**40, 2**40, (2**31 - 1 - 127) // 127 + 1, 1), True),
        ((1, 1, 1000, 128), (2**40, 2**40, 1, 2**24), False),
        ((1, 1, 1000, 128), (2**40, 2**40, 1, 2**25), True),
    ],
)
def test_when_offsets_want_64_bits(shape: tuple[int, ...], strides: tuple[int, ...], wide: bool) -> None:
    from bamctl.attention.kernels.launch import needs_wide_offsets

    small = torch.empty(1, device="meta")
    assert needs_wide_offsets([small.new_empty_strided(shape, strides)], 128) is wide


def test_when_positions_want_64_bits() -> None:
    from bamctl.attention.kernels.launch import needs_wide_positions

    assert not needs_wide_positions(2**31 - 1001, 1000 - 256, 10, 128)
    assert needs_wide_positions(2**31 - 1001, 1001 - 256, 10, 128)
    assert needs_wide_positions(0, 1, 2**31 - 256, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "one of torch.float16, torch.bfloat16, torch.float32 for all three"),
        ({"head_size": 257}, "heads of up to 256, not 257"),
        (
            {"queries": 17, "keys": 17, "splits": 2},
            "17 queries, 17 rows for each head of keys, are too many to split the keys",
        ),
        (
            {"queries": 9, "keys": 9, "splits": 2, "groups": 1},
            "9 queries, 18 rows for each head of keys, are too many to split the keys",
        ),
    ],
)
def test_what_there_is_no_kernel_for(
    changes: dict[str, Any], message: str, compare: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        compare(Laplace(2), **({"queries": 3, "keys": 3, "query_start": 0} | changes))
