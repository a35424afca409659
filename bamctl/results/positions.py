"""Stretches of positions over which losses are averaged, and what a loss's context is called."""

FIRST_END = 256
"""Tokens: the first stretch of positions is 0 … 255, and each other one as long as all before it."""


def position_buckets(length: int) -> list[tuple[int, int]]:
    """The stretches of a text of `length` tokens: (0, 256), (256, 512), (512, 1024), …, the last cut off.

    Each is a half-open range of 0-based positions. The token at position i has i tokens before it.

    Raises:
        ValueError: `length` is below 1.
    """
    if length < 1:
        raise ValueError(f"a text of {length} tokens has no positions")
    buckets = []
    start, end = 0, FIRST_END
    while end < length:
        buckets.append((start, end))
        start, end = end, 2 * end
    return [*buckets, (start, length)]


def bucket_start(end: int) -> int:
    """Where the stretch begins that ends at `end`, of any text."""
    return position_buckets(end)[-1][0]


def context_name(window: int | None) -> str:
    """How a run's `variant` says how much context its losses had."""
    return "context=full" if window is None else f"window={window}"
