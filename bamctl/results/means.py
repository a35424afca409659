"""Intervals for means: of losses, of recall, of its averages over tasks and lengths, of paired differences.

What is resampled is a sample as a whole. Its references stand in one haystack and are found or missed
together, so recall is one value a sample, and never one a reference: samples are the clusters.
"""

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bamctl.results.proportions import CONFIDENCE, normal_quantile, wilson_interval

DRAWS = 2999
"""Resamples of a bootstrap. Of the level of its intervals, 95%, that leaves 0.4 points to chance."""

_MANY = 500
"""Degrees of freedom from more than which the expansion of t's quantile is exact to ten digits."""

_Reals = NDArray[np.float64]


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's t interval for the mean of independent values: m ± t · s / √n with n - 1 degrees of freedom.

    Tokens of one text are not independent; means over separate stretches of text nearly are. So a loss's
    values are one a stretch, however many tokens it has.

    Returns:
        The interval's ends; None for fewer than two values, which say nothing of their spread.

    Raises:
        ValueError: `confidence` outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"no interval at confidence {confidence}")
    n = len(values)
    if n < 2:
        return None
    middle = fmean(values)
    squares = np.square(np.asarray(values, dtype=np.float64) - middle)
    half = _t_quantile(n - 1, confidence) * math.sqrt(math.fsum(squares.tolist()) / (n - 1) / n)
    return middle - half, middle + half


@functools.cache
def _t_quantile(freedom: int, confidence: float) -> float:
    """t with P(|T| < t) = `confidence`, T of Student's distribution.

    By bisection over θ = atan(t / √ν), and for many degrees of freedom ν by its expansion in 1/ν (Abramowitz
    and Stegun, 26.7.5).
    """
    if freedom > _MANY:
        z, nu = normal_quantile(confidence), freedom
        return (
            z
            + (z**3 + z) / (4 * nu)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
        )
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _t_probability(freedom, middle) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(freedom)


def _t_probability(freedom: int, theta: float) -> float:
    """P(|T| < √ν · tan θ), a finite sum for whole degrees of freedom ν (Abramowitz and Stegun, 26.7.3-4)."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(odd, freedom - 1, 2):  # cos^power θ with its coefficient
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of samples that were drawn alike, as how many have each: `values` ascending, 0 … 1."""

    values: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        """The number of samples."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean score, whatever order the samples came in."""
        return (
            math.fsum(value * count for value, count in zip(self.values, self.counts, strict=True)) / self.n
        )


def count_scores(scores: Iterable[float]) -> Scores:
    """Scores as how many there are of each; those that a rounding sets apart are one."""
    counted = sorted(Counter(round(float(score), 12) + 0.0 for score in scores).items())
    return Scores(values=tuple(value for value, _ in counted), counts=tuple(count for _, count in counted))


@functools.lru_cache(maxsize=65536)
def recall_interval(scores: Scores, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean recall.

    Where every score is 0 or 1 it is a proportion, and the interval is Wilson's; else `average_interval`'s.
    """
    if set(scores.values) <= {0, 1}:
        return wilson_interval(round(scores.mean * scores.n), scores.n, confidence)
    return average_interval((scores,), confidence=confidence)


@functools.lru_cache(maxsize=4096)
def average_interval(
    strata: tuple[Scores, ...],
    weights: tuple[float, ...] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """A bootstrap interval for a weighted mean of the means of several strata, such as tasks.

    The Bayesian bootstrap (D. B. Rubin, Annals of Statistics 9, 1981), within each stratum by itself: its n
    samples have Dirichlet weights in place of the usual bootstrap's multinomial ones, of n - 1 in all, as the
    bootstrap of strata takes n - 1 of n (J. N. K. Rao and C. F. J. Wu, JASA 83, 1988). To the samples are
    added half a one of score 0 and half a one of score 1, in a stratum by chance, the likelier the more it
    weighs. They stand for what was not seen: without them samples of one score, or nearly so, have an
    interval of hardly any width, however few they are. For a proportion they make the interval Jeffreys'
    (L. D. Brown, T. T. Cai and A. DasGupta, Statistical Science 16, 2001), nearly. No lower end is
    above Wilson's for as many samples that are all right, no upper end below Wilson's for none that is right.

    What it covers was simulated: recall of 4 and of 10 references, found one by one or together, near ½, near
    1, and nearly always 1, at n of 5, 10, 20 and 50. Of 95% intervals of one task 90 to 100% held the true
    mean, 96% on average; of eight tasks' 92 to 97%, 95% on average; of seven unequal weights' 92 to 99%. Of
    the usual bootstrap's, by percentiles, 20 to 98% did: 20, 40, 65 and 90% where one sample in twenty misses
    one reference. BCa, bootstrap-t and Student's t failed there in the same way. Wilson's, conservative, held
    it in 96 to 100%, and was up to three times as wide.

    The same strata have the same interval each time: random numbers follow from them alone.

    Args:
        strata: the samples of each; at least one.
        weights: what each counts, above 0 and 1 in all; by default all count alike.
        confidence: of the interval.

    Returns:
        The interval's ends, 0 … 1, the weighted mean between them. Where a stratum has one sample, which says
        nothing of their spread, it is Wilson's, for as many samples as make it conservative: the fewest that
        a stratum has by what it weighs.
    """
    shares = np.asarray(weights if weights is not None else [1 / len(strata)] * len(strata))
    means = np.array([scores.mean for scores in strata])
    mean = min(1.0, float(math.fsum(shares * means)))
    # Each stratum adds w²·p_s(1-p_s) / n_s to the variance, which is at most p(1-p) · max(w / n_s) in all.
    n = float(min(scores.n / share for scores, share in zip(strata, shares, strict=True)))
    if any(scores.n == 1 for scores in strata):
        return wilson_interval(mean * n, n, confidence)
    random = _random_stream(strata, shares)
    masses, sums = (
        np.stack(parts) for parts in zip(*(_draw(scores, random) for scores in strata), strict=True)
    )
    every = np.arange(DRAWS)
    for score in (0.0, 1.0):
        at = np.searchsorted(np.cumsum(shares[:-1]), random.random(DRAWS), side="right")
        mass = _halves(random)
        masses[at, every] += mass
        sums[at, every] += mass * score
    low, high = _ends(shares @ (sums / masses), confidence)
    low = min(low, mean, wilson_interval(n, n, confidence)[0])
    high = max(high, mean, wilson_interval(0, n, confidence)[1])
    return (0.0 if mean == 0 else low), (1.0 if mean == 1 else high)


@functools.lru_cache(maxsize=4096)
def difference_interval(differences: Scores, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the mean of paired differences, of recall say.

    As `average_interval`, of one stratum; the two halves of a sample are a difference as large as the largest
    seen, one either way, or of 1 where none was seen. Simulated as there, it held the true difference in 94
    to 100% of cases, where the usual bootstrap and Student's t fell to 39 and 43% if differences were rare.

    Args:
        differences: their values, -1 … 1.
        confidence: of the interval.

    Returns:
        The interval's ends, the mean between them; -1 and 1 for a single difference.
    """
    if differences.n == 1:
        return -1.0, 1.0
    if differences.mean < 0:  # B - A has the interval of A - B, with other signs
        low, high = difference_interval(_mirrored(differences), confidence)
        return -high, -low
    largest = max(map(abs, differences.values)) or 1.0
    random = _random_stream((differences,), np.ones(1))
    masses, sums = _draw(differences, random)
    for difference in (-largest, largest):
        mass = _halves(random)
        masses += mass
        sums += mass * difference
    low, high = _ends(sums / masses, confidence)
    return min(low, differences.mean), max(high, differences.mean)


def _mirrored(scores: Scores) -> Scores:
    values = tuple(0.0 - value for value in reversed(scores.values))  # and not -value: 0 stays 0.0
    return Scores(values=values, counts=scores.counts[::-1])


def _draw(scores: Scores, random: np.random.Generator) -> tuple[_Reals, _Reals]:
    """For each resample the weights in all, of expectation n - 1, and the sum of the scores with them.

    Dirichlet weights are gamma variates divided by their sum; those of equal scores add up to one variate.
    """
    share = (scores.n - 1) / scores.n
    masses, sums = np.zeros(DRAWS), np.zeros(DRAWS)
    for value, count in zip(scores.values, scores.counts, strict=True):
        mass = random.standard_gamma(count * share, DRAWS)
        masses += mass
        sums += mass * value
    return masses, sums


def _halves(random: np.random.Generator) -> _Reals:
    """The gamma variates of half a sample each: half of a chi-squared one with one degree of freedom."""
    halves: _Reals = random.standard_normal(DRAWS) ** 2 / 2
    return halves


def _ends(means: _Reals, confidence: float) -> tuple[float, float]:
    """The order statistics of rank (DRAWS + 1) · α / 2 from either end."""
    rank = max(1, round((DRAWS + 1) * (1 - confidence) / 2))
    ordered = np.partition(means, [rank - 1, DRAWS - rank])
    return float(ordered[rank - 1]), float(ordered[DRAWS - rank])


def _random_stream(strata: Sequence[Scores], weights: _Reals) -> np.random.Generator:
    content = repr([(scores.values, scores.counts) for scores in strata]) + repr(weights.tolist())
    return np.random.default_rng(int.from_bytes(hashlib.sha256(content.encode()).digest()[:16]))
