"""How far a model reads, from its scores at several lengths: RULER's averages, and the effective length."""

from collections.abc import Mapping

_ROUNDING = 1e-9
"""By so much may a mean of scores miss what it is exactly."""


def effective_length(scores: Mapping[int, float], threshold: float) -> int | None:
    """The longest length up to which every tested length has a score of at least `threshold`.

    Args:
        scores: tested length in tokens → accuracy, or mean recall.
        threshold: between 0 and 1; RULER's (arXiv 2404.06654, section 4) is 0.856.

    Returns:
        The length in tokens; None where nothing was tested, or the shortest length is below the threshold.
    """
    longest = None
    for length in sorted(scores):
        if scores[length] < threshold - _ROUNDING:
            break
        longest = length
    return longest


def effective_interval(
    intervals: Mapping[int, tuple[float, float]], threshold: float
) -> tuple[int | None, int | None]:
    """Between which tested lengths the effective length lies, from the intervals of the scores.

    Its lower end is the longest length up to which every interval lies at or above the threshold, its upper
    end the longest one up to which every interval reaches it.

    With 95% intervals, of which each end is wrong in 2.5% of cases, the lower end is too long in at most
    2.5%, however many lengths were tested: for that the interval at one certain length, the first whose true
    score is below the threshold, has to lie above it. Tests in a fixed order up to the first that fails need
    no correction (W. Maurer, L. A. Hothorn and W. Lehmacher, 1995; J. C. Hsu and R. L. Berger, 1999).

    The upper end is too short where at any of the lengths up to the true one the interval lies below the
    threshold. That has a chance of 2.5% for each of them whose true score is just at the threshold, and next
    to none for those well above it, so of 2.5% as a rule, and at worst of 2.5% times their number.

    Args:
        intervals: tested length in tokens → lower and upper end of its score's interval.
        threshold: between 0 and 1.

    Returns:
        Both ends in tokens, the effective length between them; None for shorter than all that was tested.
    """
    lows = {length: low for length, (low, _) in intervals.items()}
    highs = {length: high for length, (_, high) in intervals.items()}
    return effective_length(lows, threshold), effective_length(highs, threshold)


def length_averages(scores: Mapping[int, float]) -> tuple[float, float, float]:
    """RULER's three averages over lengths (arXiv 2404.06654, section 4): Avg., wAvg. (inc) and wAvg. (dec).

    Of L lengths the shortest has weight 1 and the longest L, or the other way round; the plain average weighs
    them alike.

    Args:
        scores: length in tokens → score; at least one.
    """
    ranked = [scores[length] for length in sorted(scores)]
    plain, rising, falling = (
        sum(weight * score for weight, score in zip(weights, ranked, strict=True))
        for weights in length_weights(len(ranked))
    )
    return plain, rising, falling


def length_weights(count: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """What each of so many lengths counts in `length_averages`, the shortest first; 1 in all."""
    whole = count * (count + 1) / 2
    rising = tuple(rank / whole for rank in range(1, count + 1))
    return (1 / count,) * count, rising, rising[::-1]
