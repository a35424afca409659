"""Two models on the same samples: whether they differ, and by how much."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bamctl.results.means import Scores
from bamctl.results.proportions import CONFIDENCE, normal_quantile

_MOST_STEPS = 10_000
"""So many steps may all differences come to for the distribution of their sum to be found exactly."""

_MOST_PARTS = 5_000
"""Parts into which 1 is divided at most for a step; beyond that differences are rounded."""


def mcnemar_p(only_a: int, only_b: int) -> float:
    """McNemar's exact test, two-sided: whether two answer equally many of the same questions rightly.

    If they do, each of the n = `only_a` + `only_b` questions that one alone has right is A's or B's with even
    chances (Q. McNemar, Psychometrika 12, 1947): p = min(1, 2 · Σ_{k ≤ min(only_a, only_b)} C(n, k) / 2ⁿ).
    """
    n = only_a + only_b
    ways, term = 0, 1
    for k in range(min(only_a, only_b) + 1):
        ways += term
        term = term * (n - k) // (k + 1)
    return 1.0 if 2 * ways >= 2**n else 2 * ways / 2**n


def sign_flip_p(differences: Scores) -> float:
    """The permutation test of paired differences, two-sided: whether two score alike on the same samples.

    If they do, each difference might as well have the other sign (R. A. Fisher, The Design of Experiments,
    1935, section 21). So p is the share, of all 2ⁿ choices of signs, of those whose sum is as far from 0 as
    the one that was seen. It is found exactly, by convolution, while the differences come to no more than
    10000 steps (recall of 4 references has steps of ¼); more are so nearly normal, with a variance of Σ d²,
    that the normal distribution is taken. Of differences of -1, 0 and 1 it is McNemar's exact test.

    Args:
        differences: their values, -1 … 1; of scores that are fractions, such as recall.
    """
    parts = math.lcm(*(Fraction(value).limit_denominator(1000).denominator for value in differences.values))
    signed = [round(value * min(parts, _MOST_PARTS)) for value in differences.values]
    seen = abs(sum(steps * count for steps, count in zip(signed, differences.counts, strict=True)))
    sizes: Counter[int] = Counter()
    for steps, count in zip(signed, differences.counts, strict=True):
        sizes[abs(steps)] += count
    del sizes[0]
    if seen == 0:
        return 1.0
    if len(sizes) == 1:
        [(step, count)] = sizes.items()
        return mcnemar_p((count + seen // step) // 2, (count - seen // step) // 2)
    most = sum(step * count for step, count in sizes.items())
    if most > _MOST_STEPS:
        variance = sum(step**2 * count for step, count in sizes.items())
        return math.erfc(seen / math.sqrt(2 * variance))
    chances: NDArray[np.float64] = np.ones(1)  # of the sum of those that have a plus, in steps
    for step, count in sizes.items():
        spaced = np.zeros(step * count + 1)
        spaced[::step] = _even_chances(count)
        chances = np.convolve(chances, spaced).astype(np.float64, copy=False)
    return float(min(1.0, 2 * chances[: (most - seen) // 2 + 1].sum()))


def _even_chances(n: int) -> NDArray[np.float64]:
    """The chances of 0 … n heads among n throws of a coin."""
    logs = np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1, n + 1)))])  # ln k!
    chances: NDArray[np.float64] = np.exp(logs[n] - logs - logs[::-1] - n * math.log(2))
    return chances


def paired_interval(only_a: int, only_b: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Tango's score interval for the difference of two paired proportions, A's minus B's.

    It holds the differences Δ with |only_a - only_b - nΔ| ≤ z·sqrt(n·(2q + Δ(1-Δ))), where q is the most
    likely share of samples that B alone has right if the difference is Δ: the positive root of
    2n·q² - (only_a + only_b - (2n - only_a + only_b)·Δ)·q - only_b·Δ(1-Δ) (T. Tango, Statistics in Medicine
    17, 1998; recommended by M. W. Fagerland, S. Lydersen and P. Laake, Statistics in Medicine 33, 2014). At
    Δ = 0 that is McNemar's test, though not the exact one.

    Args:
        only_a: samples that A alone has right.
        only_b: samples that B alone has right.
        n: all samples, at least one.
        confidence: of the interval.

    Returns:
        The interval's ends, -1 … 1, the difference between them.

    Raises:
        ValueError: there are no such counts.
    """
    if min(only_a, only_b) < 0 or n < 1 or only_a + only_b > n:
        raise ValueError(f"no interval for {only_a} and {only_b} of {n}")
    z = normal_quantile(confidence)

    def beyond(difference: float) -> bool:
        linear = -only_a - only_b + (2 * n - only_a + only_b) * difference
        share = difference * (1 - difference)
        q = (math.sqrt(max(0.0, linear**2 + 8 * n * only_b * share)) - linear) / (4 * n)
        return abs(only_a - only_b - n * difference) > z * math.sqrt(max(0.0, n * (2 * q + share)))

    seen = (only_a - only_b) / n
    ends = []
    for outside in (-1.0, 1.0):
        inside = seen
        if beyond(outside):
            for _ in range(60):
                middle = (inside + outside) / 2
                inside, outside = (inside, middle) if beyond(middle) else (middle, outside)
        ends.append(outside)
    return ends[0], ends[1]


def holm(ps: Sequence[float]) -> list[float]:
    """p of several tests, adjusted so that all of them together err as seldom as one alone.

    By S. Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979): the least p times their
    number, the next one times one less, and so on, none below the one before it, none above 1.
    """
    adjusted = [0.0] * len(ps)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = min(1.0, max(least, (len(ps) - rank) * ps[place]))
        adjusted[place] = least
    return adjusted
