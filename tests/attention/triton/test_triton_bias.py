"""The polynomials that stand for the bias of far tiles, and the kernels that use them.

The shapes' letters are those of `bamctl.attention.kernels.bias`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian


class FarField(NamedTuple):
    far: Tensor
    series: Tensor
    limits: Tensor


STEP, HALF_SPAN = 64, 96.0


def _far_field(device: torch.device, parameters: Tensor, *, distances: int, first_rel: int) -> FarField:
    from bamctl.attention.kernels import bias

    heads = parameters.shape[1]
    field = FarField(
        far=torch.empty((heads, distances, bias.FAR.value), device=device),
        series=torch.empty((heads, 2, bias.SERIES.value), device=device),
        limits=torch.empty((heads, 2), device=device, dtype=torch.int64),
    )
    grid = (math.ceil(distances / bias.DISTANCES.value), heads)
    farthest = distances * STEP - first_rel
    bias.far_field[grid](
        *field, parameters, heads, distances, first_rel, farthest, STEP=STEP, HALF_SPAN=HALF_SPAN
    )
    return field


def _exact(parameters: Tensor, rel: Tensor) -> Tensor:
    log_rate, beta, mu = parameters.double()[..., None]
    return -(log_rate + beta * torch.log((rel.double() - mu).abs() + 1e-5)).exp()


BETAS = [-3.0, -1.6, -0.5, -0.01, 0.0, 0.3, 0.5, 1.0, 1.2, 2.0, 2.5, 3.0]


@pytest.mark.parametrize(("log_rate", "mu"), [(-12.0, 0.0), (0.0, -300.5), (0.0, 40.25), (3.0, 0.0)])
@pytest.mark.parametrize(("column", "degree"), [(0, 2), (1, 6)])
def test_the_bound_holds_at_every_distance(
    log_rate: float, mu: float, column: int, degree: int, device: torch.device
) -> None:
    parameters = torch.tensor([[log_rate] * len(BETAS), BETAS, [mu] * len(BETAS)], device=device)
    z = torch.arange(-HALF_SPAN, HALF_SPAN + 1, device=device).double()
    for first_rel in (-500, -30_000, -2_000_000):
        field = _far_field(device, parameters, distances=100, first_rel=first_rel)
        centre_S = first_rel - STEP * torch.arange(100, device=device)
        used_HS = centre_S <= field.limits[:, column, None]
        b_c, scale = field.far[..., 0].double()[..., None], field.far[..., 1].double()[..., None]
        polynomial_HSZ = sum(
            b_c * field.series[:, 0, m, None, None].double() * (z * scale) ** m for m in range(degree + 1)
        )
        for h in range(len(BETAS)):
            exact_SZ = _exact(parameters[:, h : h + 1], centre_S[:, None] + z)
            error_SZ = (polynomial_HSZ[h] - exact_SZ).abs()
            # Of the series, and of its coefficients' own rounding.
            allowed_S = 2**-24 * b_c[h, :, 0].abs().clamp(min=1) + 2**-22 * b_c[h, :, 0].abs()
            assert (error_SZ.amax(1) <= allowed_S)[used_HS[h]].all(), BETAS[h]


def test_the_polynomials_are_used_where_they_should_be(device: torch.device) -> None:
    """Neither never nor everywhere: both distances of β = 1/2 and -1.6 are those of the documentation."""
    parameters = torch.tensor([[0.0] * 3, [0.5, -1.6, 0.0], [0.0] * 3], device=device)
    limits = _far_field(device, parameters, distances=1, first_rel=-500).limits.cpu()
    assert (-limits[:, 1]).tolist() == [768, 768, 768]
    assert 8_000 < -limits[0, 0] < 11_000
    assert 768 < -limits[1, 0] < 1_200
    assert -limits[2, 0] == 768


def test_nothing_that_would_overflow_is_a_polynomial(device: torch.device) -> None:
    parameters = torch.tensor([[60.0, 60.0], [3.0, 0.5], [0.0, 0.0]], device=device)
    limits = _far_field(device, parameters, distances=10, first_rel=-500).limits
    assert limits[0].max() < -(2**50)
    assert limits[1].max() > -(2**40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_of_exact_and_polynomial_tiles(dtype: torch.dtype, compare: Callable[..., Any]) -> None:
    """On tiles of 16 × 16 the polynomials begin at 128 and, for this prior, at about 450."""
    prior = GeneralizedGaussian(1, alpha=2.0, beta=-1.6, mu=-9.5)
    compare(prior, queries=16, keys=600, query_start=584, dtype=dtype, ssmax=[0.2]).check(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_through_exact_and_polynomial_tiles(
    dtype: torch.dtype, compare: Callable[..., Any]
) -> None:
    prior = GeneralizedGaussian(1, alpha=20.0, beta=0.5, mu=1.25, learned=("alpha", "beta", "mu"))
    compare(prior, queries=16, keys=280, query_start=264, dtype=dtype, ssmax=[0.2], gradients=True).check(
        dtype
    )


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (64, 32)])
def test_every_tile_a_polynomial(tiles: tuple[int, int], compare: Callable[..., Any]) -> None:
    """The queries stand far behind the last key, so that no exact tile outweighs the others."""
    prior = GeneralizedGaussian(2, alpha=[20.0, 2.0], beta=[0.5, -1.6], mu=[3.0, -9.5])
    compare(prior, queries=37, keys=70, query_start=900, tiles=tiles, gradients=True).check(torch.float32)
    compare(prior, queries=37, keys=70, query_start=6_000, tiles=tiles).check(torch.float32)
