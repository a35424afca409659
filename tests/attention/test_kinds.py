"""A prior in words, on both sides of every boundary."""

import math

import pytest

from bamctl.attention.kinds import MEANINGS, SHAPES, UNIFORM_SPREAD, kind_of
from bamctl.attention.mass import HeadPrior


def kind(beta: float, *, rate: float = 1.0, factor: float = 1.0, length: int = 512) -> str:
    return kind_of(HeadPrior(rate=rate, beta=beta, mu=0.0, epsilon=1e-5), length=length, factor=factor)


@pytest.mark.parametrize(
    ("below", "above", "boundary"),
    [
        ("far-looking", "heavy tail", 0.0),
        ("heavy tail", "Laplace-like", 0.8),
        ("Laplace-like", "Gaussian-like", 1.5),
        ("Gaussian-like", "window", 2.5),
    ],
)
def test_the_shape_decides(below: str, above: str, boundary: float) -> None:
    """At 0 itself every prior is uniform; the rates are high enough for its neighbours not to be."""
    assert kind(boundary - 1e-6, rate=1e6) == below
    assert kind(boundary + 1e-6, rate=1e6) == above
    assert kind(boundary, rate=1e6) == (above if boundary else "uniform")


def test_the_shapes_of_the_paper() -> None:
    assert [kind(beta) for beta in (-1, 0.5, 1, 2, 8)] == list(SHAPES)


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_uniform_is_what_differs_by_no_more_than_a_tenth(factor: float, sign: int) -> None:
    """Of Laplace, from distance 0 to 511."""
    just = UNIFORM_SPREAD / (511 * factor)
    assert kind(1.0, rate=just * 0.999, factor=sign * factor) == "uniform"
    assert kind(1.0, rate=just * 1.001, factor=sign * factor) != "uniform"
    assert kind(1.0, rate=just * 0.999, factor=sign * factor, length=1024) != "uniform"
    assert math.exp(UNIFORM_SPREAD) == pytest.approx(1.1)


@pytest.mark.parametrize("beta", [-1.0, 0.0, 1.0])
def test_no_rate_and_no_factor_are_uniform(beta: float) -> None:
    assert kind(beta, rate=0.0) == kind(beta, factor=0.0) == "uniform"


@pytest.mark.parametrize("beta", [-1.0, 0.5, 1.0, 2.0, 8.0])
def test_a_negative_factor_turns_every_shape_round(beta: float) -> None:
    assert kind(beta, factor=-1e-2, rate=10) == "turned round"
    assert kind(beta, factor=1e-2, rate=10) != "turned round"


def test_a_negative_slope_turns_round_too() -> None:
    assert kind(1.0, rate=-0.1) == "turned round"
    assert kind(1.0, rate=-0.1, factor=-1.0) == "Laplace-like"


def test_every_word_has_a_meaning() -> None:
    assert set(MEANINGS) == {*SHAPES, "uniform", "turned round"}
    assert list(SHAPES.values()) == sorted(SHAPES.values())
