"""The gradients of the kernels against those of the definition in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform

SSMAX = {"softmax": (None, True), "SSMax": ([0.4, -0.3], True), "SSMax on content": ([0.0, 0.6], False)}

# (queries, keys, query_start, key_start), for tiles of 16 × 16
PLACES = {
    "the first token": (1, 1, 0, 0),
    "one more than a block": (17, 17, 0, 0),
    "queries in the middle": (5, 37, 31, 0),
    "the first keys left out": (18, 25, 130, 123),
    "keys that end before the queries": (3, 5, 20, 2),
    "keys beyond every query": (3, 40, 2, 0),
}

EVERYTHING = ("alpha", "beta", "mu")


def _generalized_gaussian(learned: tuple[str, ...] = EVERYTHING) -> Prior:
    return GeneralizedGaussian(2, alpha=[0.7, 3.0], beta=[-1.5, 0.5], mu=[0.0, -7.3], learned=learned)


@pytest.mark.parametrize(
    ("place", "ssmax"),
    [
        *((place, "SSMax") for place in PLACES),
        *(("queries in the middle", ssmax) for ssmax in SSMAX if ssmax != "SSMax"),
    ],
)
def test_every_place_and_ssmax(place: str, ssmax: str, compare: Callable[..., Any]) -> None:
    queries, keys, query_start, key_start = PLACES[place]
    scale, scaled = SSMAX[ssmax]
    comparison = compare(
        _generalized_gaussian(),
        queries=queries,
        keys=keys,
        query_start=query_start,
        key_start=key_start,
        ssmax=scale,
        scaled=scaled,
        gradients=True,
    )
    names = {"q", "k", "v", "log_rate", "beta", "mu"} | ({"s"} if scale else set())
    assert comparison.gradients.keys() == names
    comparison.check(torch.float32)


@pytest.mark.parametrize("ssmax", SSMAX.values(), ids=SSMAX)
@pytest.mark.parametrize("learned", [True, False])
def test_laplace_and_uniform(
    ssmax: tuple[list[float] | None, bool], learned: bool, compare: Callable[..., Any]
) -> None:
    for prior in (Laplace(2, learned=learned), *([] if learned else [Uniform(2)])):
        compare(
            prior, queries=18, keys=35, query_start=17, ssmax=ssmax[0], scaled=ssmax[1], gradients=True
        ).check(torch.float32)


@pytest.mark.parametrize("learned", [("alpha", "beta"), ("beta",), ()])
def test_only_what_is_learned_has_a_gradient(learned: tuple[str, ...], compare: Callable[..., Any]) -> None:
    comparison = compare(_generalized_gaussian(learned), queries=9, keys=20, query_start=11, gradients=True)
    names = {"alpha": "log_rate"}
    assert comparison.gradients.keys() == {"q", "k", "v", *(names.get(name, name) for name in learned)}
    comparison.check(torch.float32)


@pytest.mark.parametrize("groups", [2, 1])
def test_grouped_queries_and_batches(groups: int, compare: Callable[..., Any]) -> None:
    prior = GeneralizedGaussian(4, alpha=[0.7, 3.0, 1.0, 9.0], beta=[-1.5, 0.5, 1.0, 2.0])
    compare(
        prior, queries=18, keys=20, query_start=2, batch=2, groups=groups, gradients=True, ssmax=[0.3] * 4
    ).check(torch.float32)


@pytest.mark.parametrize("tiles", [(32, 16), (32, 32)])
def test_tiles_of_other_shapes(tiles: tuple[int, int], compare: Callable[..., Any]) -> None:
    compare(_generalized_gaussian(), queries=37, keys=42, query_start=5, tiles=tiles, gradients=True).check(
        torch.float32
    )


def test_half_precision(compare: Callable[..., Any]) -> None:
    for prior in (_generalized_gaussian(), Laplace(2, learned=True)):
        compare(
            prior,
            queries=18,
            keys=35,
            query_start=17,
            head_size=20,
            dtype=torch.float16,
            ssmax=[0.4, 0.2],
            gradients=True,
        ).check(torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_that_sees_only_what_is_suppressed(dtype: torch.dtype, compare: Callable[..., Any]) -> None:
    """β = -1.8: the first row's only key has a bias of -1e9, which must not multiply rounding errors."""
    prior = GeneralizedGaussian(2, alpha=1.0, beta=[-1.8, -3.0], learned=EVERYTHING)
    for arguments in ({}, {"ssmax": [0.4, 0.4]}, {"ssmax": [0.4, 0.4], "scaled": False}):
        compare(prior, queries=20, keys=20, query_start=0, dtype=dtype, gradients=True, **arguments).check(
            dtype
        )


def test_the_same_bits_from_run_to_run(compare: Callable[..., Any]) -> None:
    first, second = (
        compare(_generalized_gaussian(), queries=20, keys=20, query_start=0, batch=2, gradients=True)
        for _ in range(2)
    )
    assert all(torch.equal(first.gradients[name], second.gradients[name]) for name in first.gradients)


def test_gradients_that_come_expanded_and_transposed(device: torch.device) -> None:
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    tiles, prior = Tiles(block_m=16, block_n=16), Laplace(2).to(device)
    x = torch.randn(1, 20, 3, 2, 16, generator=torch.Generator().manual_seed(0)).to(device)

    def gradient(of: Callable[[torch.Tensor], torch.Tensor], contiguous: bool) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        q, k, v = (leaf[:, :, i].transpose(1, 2) for i in range(3))
        if contiguous:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        of(attention(q, k, v, prior=prior, query_start=0, tiles=tiles)).backward()
        assert leaf.grad is not None
        return leaf.grad

    for of in (torch.Tensor.sum, lambda out: (out.transpose(1, 2).reshape(1, 20, 32) ** 2).sum()):
        assert torch.equal(gradient(of, False), gradient(of, True))


def test_a_second_derivative_is_refused(device: torch.device) -> None:
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    q, k, v = (torch.randn(1, 2, 3, 16, device=device, requires_grad=True) for _ in range(3))
    out = attention(q, k, v, prior=Laplace(2).to(device), query_start=0, tiles=Tiles(block_m=16, block_n=16))
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention_backward"):
        gradient.sum().backward()
