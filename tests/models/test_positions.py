"""Rotary positions against complex numbers, sinusoidal ones against the formula."""

import cmath
import math

import pytest
import torch

from bamctl.models.positions import rotate, sinusoids


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("size", [2, 6, 64])
def test_rotary_is_multiplication_by_complex_numbers(theta: float, size: int) -> None:
    x = torch.randn(2, 3, 5, size, dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 1000, 2**20])
    turned = rotate(x, positions, theta)
    for c, position in enumerate(positions.tolist()):
        for m in range(size // 2):
            turn = cmath.exp(1j * position * theta ** (-2 * m / size))
            for b, h in ((0, 0), (1, 2)):
                z = complex(x[b, h, c, 2 * m], x[b, h, c, 2 * m + 1]) * turn
                assert turned[b, h, c, 2 * m].item() == pytest.approx(z.real, abs=1e-8)
                assert turned[b, h, c, 2 * m + 1].item() == pytest.approx(z.imag, abs=1e-8)


def test_rotary_keeps_lengths_and_the_first_token() -> None:
    x = torch.randn(1, 2, 9, 16, dtype=torch.float64)
    turned = rotate(x, torch.arange(9), 10000.0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 1:], x[:, :, 1:])


@pytest.mark.parametrize("shift", [1, 100, 2**20])
def test_rotary_scores_depend_on_the_distance_alone(shift: int) -> None:
    q, k = torch.randn(2, 1, 1, 6, 32, dtype=torch.float64)
    positions = torch.tensor([0, 3, 4, 10, 77, 500])

    def scores(offset: int) -> torch.Tensor:
        turned_q, turned_k = (rotate(x, positions + offset, 500000.0) for x in (q, k))
        return turned_q @ turned_k.transpose(-1, -2)

    torch.testing.assert_close(scores(shift), scores(0), rtol=0, atol=1e-7)
    assert not torch.allclose(scores(0), q @ k.transpose(-1, -2), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rotary_angles_are_not_rounded_with_the_input(dtype: torch.dtype) -> None:
    x = torch.randn(1, 1, 4, 8).to(dtype)
    positions = torch.tensor([2**20, 2**20 + 1, 10**6 + 7, 3])
    expected = rotate(x.double(), positions, 10000.0)
    turned = rotate(x, positions, 10000.0)
    assert turned.dtype == dtype
    assert torch.allclose(turned.double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_sinusoids() -> None:
    positions = torch.tensor([0, 1, 2, 511, 2**20])
    table = sinusoids(positions, 12)
    assert table.shape == (5, 12)
    assert table.dtype == torch.float32
    for c, position in enumerate(positions.tolist()):
        for e in range(12):
            angle = position * 10000.0 ** (-e / 12)
            expected = math.cos(angle) if e % 2 else math.sin(angle)
            assert table[c, e].item() == pytest.approx(expected, abs=1e-6)
