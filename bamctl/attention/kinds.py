"""What a head's prior is, in words: a table of shapes β, and two cases that come before it."""

import math

from bamctl.attention.mass import HeadPrior

UNIFORM = "uniform"
TURNED_ROUND = "turned round"

UNIFORM_SPREAD = math.log(1.1)
"""Nats: no distance weighs more than 10% more than another."""

SHAPES = {
    "far-looking": -math.inf,
    "heavy tail": 0.0,
    "Laplace-like": 0.8,
    "Gaussian-like": 1.5,
    "window": 2.5,
}
"""From which β on a word is right, in the order of β. β = 1 is Laplace, β = 2 a Gaussian; the boundaries
between them are ours."""

MEANINGS = {
    UNIFORM: "no distance weighs more than 10% more than another",
    "far-looking": "the neighbourhood is suppressed, the mass lies far away",
    "heavy tail": "falls fast at first and ever more slowly",
    "Laplace-like": "falls by a constant factor a token",
    "Gaussian-like": "flat near by, then falling ever faster",
    "window": "as good as flat up to α, as good as nothing beyond",
    TURNED_ROUND: "SSMax's factor is negative, and the head prefers what a prior of its β avoids",
}
"""Every word that `kind_of` may say."""


def kind_of(prior: HeadPrior, *, length: int, factor: float = 1.0) -> str:
    """One of `MEANINGS`.

    uniform: to the last of `length` tokens no distance weighs more than 10% more than another, which takes
    |factor| · spread ≤ `UNIFORM_SPREAD`. turned round: the factor is negative, and the head prefers what one
    of this β avoids. Else the row of `SHAPES` that β falls into.

    Args:
        prior: of one head.
        length: in tokens; longer ones find fewer priors uniform.
        factor: t, what multiplies the prior at that length.
    """
    if abs(factor) * prior.spread(length) <= UNIFORM_SPREAD:
        return UNIFORM
    if factor * prior.rate < 0:
        return TURNED_ROUND
    return [name for name, least in SHAPES.items() if prior.beta >= least][-1]
