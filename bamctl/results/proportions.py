"""Proportions: the interval of one, and how many samples it takes to tell two of them apart."""

import math
from statistics import NormalDist

CONFIDENCE = 0.95
"""Of every interval that is shown."""

POWER = 0.8
"""Chance to find a difference that there is, in planning how many samples to take."""


def wilson_interval(successes: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval for a proportion (E. B. Wilson, JASA 22, 1927).

    With p = successes / n and z the normal quantile of the confidence:
    (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike the textbook interval it holds for
    few samples and for proportions of 0 and 1.

    `successes` may also be the sum of n scores of 0 … 1, such as recall: with a mean of p their variance is
    at most p(1-p), which is what it is where each of them is 0 or 1. So the interval is conservative then:
    wider than it had to be, never narrower.

    Returns:
        The interval's lower and upper end, within 0 … 1.

    Raises:
        ValueError: not 0 ≤ `successes` ≤ `n`, `n` < 1, or `confidence` outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n or not 0 < confidence < 1:
        raise ValueError(f"no interval for {successes} of {n} at confidence {confidence}")
    z = normal_quantile(confidence)
    p = successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / shrink
    # At the ends the formula gives 0 and 1; a rounding must not hide that.
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return low, high


def samples_to_reach(threshold: float, confidence: float = CONFIDENCE) -> int | None:
    """The fewest samples of which all right have a Wilson interval at or above the threshold.

    Its lower end is then n / (n + z²).

    Args:
        threshold: 0 … 1.
        confidence: of the interval.

    Returns:
        The number of samples; None for a threshold of 1, which no number reaches.
    """
    if threshold >= 1:
        return None
    z = normal_quantile(confidence)
    n = max(1, math.floor(threshold / (1 - threshold) * z * z))
    while wilson_interval(n, n, confidence)[0] < threshold:
        n += 1
    return n


def samples_to_tell_apart(difference: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Samples that each of two proportions needs for their difference to be found with this chance.

    By the two-sided z test for proportions ½ ± difference / 2, where they vary most, so that this many are
    enough anywhere (J. L. Fleiss, Statistical Methods for Rates and Proportions, 1981, equation 3.14):
    n = (z_α·sqrt(½) + z_β·sqrt(½ - d²/2))² / d². Means of scores of 0 … 1 vary less, and need fewer.

    Args:
        difference: d, above 0 and at most 1.
        power: the chance.
        confidence: 1 - α.
    """
    return math.ceil(_exact_samples(difference, power, confidence))


def told_apart(n: int, power: float = POWER, confidence: float = CONFIDENCE) -> float | None:
    """The inverse of `samples_to_tell_apart`: the least difference that n samples each tell.

    Returns:
        The difference, 0 … 1; None where there is none, as n is too small.
    """
    if _exact_samples(1, power, confidence) > n:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _exact_samples(middle, power, confidence) > n else (low, middle)
    return high


def _exact_samples(difference: float, power: float, confidence: float) -> float:
    z_alpha, z_beta = normal_quantile(confidence), NormalDist().inv_cdf(power)
    return (
        (z_alpha * math.sqrt(0.5) + z_beta * math.sqrt((1 - difference**2) / 2)) / max(difference, 1e-12)
    ) ** 2


def normal_quantile(confidence: float) -> float:
    """z with P(|Z| < z) = `confidence`, Z normally distributed."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
