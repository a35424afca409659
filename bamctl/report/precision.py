"""What a number of samples can tell, and how many it takes to tell more, as sentences."""

from bamctl.results.proportions import (
    CONFIDENCE,
    POWER,
    samples_to_reach,
    samples_to_tell_apart,
    told_apart,
    wilson_interval,
)

WANTED = 0.1
"""A difference that samples should tell."""


def what_n_tells(n: int, threshold: float, *, smallest: bool = False) -> list[str]:
    """What n samples do not tell: a difference of 10 points, and that a score is above the threshold.

    Args:
        n: samples at a length.
        smallest: whether other lengths have more.
        threshold: score, 0 … 1, from which a length counts as effective.

    Returns:
        A sentence for each, none where there are samples enough.
    """
    sentences = []
    needed = samples_to_tell_apart(WANTED)
    if n < needed:
        least = told_apart(n)
        what = "no lengths" if least is None else f"lengths that differ by {100 * least:.0f} points"
        which = f"The smallest n, {n}," if smallest else f"n = {n}"
        sentences.append(
            f"{which} tells {what} apart; {100 * WANTED:.0f} points take n = {needed} (two-sided"
            f" {100 * (1 - CONFIDENCE):.0f}%, power {100 * POWER:.0f}%, scores near 50; else fewer)."
        )
    enough = samples_to_reach(threshold)
    if enough is None:
        sentences.append("No number of samples puts an interval wholly at 100%.")
    elif n < enough:
        low, _ = wilson_interval(n, n)
        sentences.append(
            f"Even {n} of {n} right have an interval from {100 * low:.1f}%, below {100 * threshold:.6g}%;"
            f" that takes n = {enough}."
        )
    return sentences
