"""A model's heads as tables: their priors, and what they attend to while the model answers."""

import csv
import io
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from bamctl.attention.kinds import MEANINGS
from bamctl.lengths import format_length
from bamctl.models.inspection import InspectedHead
from bamctl.models.needle_attention import REGIONS, NeedleAttention

ALIKE = "every token alike"
"""What the row is called that has the shares of tokens, and not of a head's attention."""

_LEAST_PERCENT = 0.001


def prior_table(heads: Sequence[InspectedHead], lengths: Sequence[int]) -> Table:
    """One row a head: its values, what it is, and its reach at each length."""
    has_location = any(head.prior.mu for head in heads)
    has_ssmax = any(head.ssmax is not None for head in heads)
    table = _table(
        *("layer", "head", "α", "β"),
        *(["μ"] if has_location else []),
        *(["s"] if has_ssmax else []),
        "prior",
        *(f"reach at {format_length(length)}" for length in lengths),
    )
    for head in heads:
        is_uniform = head.prior.is_uniform
        table.add_row(
            str(head.layer),
            str(head.head),
            _number(head.prior.alpha),
            _number(None if is_uniform else head.prior.beta),
            *([_number(None if is_uniform else head.prior.mu)] if has_location else []),
            *([_number(head.ssmax)] if has_ssmax else []),
            head.kind(max(lengths)),
            *(str(head.mass(length).reach()) for length in lengths),
        )
    return table


def count_kinds(heads: Sequence[InspectedHead], length: int) -> str:
    """``12 heads: 3 far-looking, 9 Laplace-like``, as they are at a length."""
    counted = Counter(head.kind(length) for head in heads)
    return f"{len(heads)} heads: " + ", ".join(
        f"{counted[kind]} {kind}" for kind in MEANINGS if counted[kind]
    )


def attention_table(heads: Sequence[InspectedHead], measured: Sequence[NeedleAttention]) -> Table:
    """One row a length and head: how much of its attention each region gets.

    The last row of a length has the regions' shares of all tokens.
    """
    table = _table("length", "layer", "head", "prior", *REGIONS)
    longest = max(of_length.length for of_length in measured)
    for of_length in measured:
        length = format_length(of_length.length)
        for head in heads:
            shares = of_length.shares_LHR[head.layer, head.head].tolist()
            table.add_row(length, str(head.layer), str(head.head), head.kind(longest), *map(_percent, shares))
        table.add_row(length, "", "", ALIKE, *map(_percent, of_length.tokens_R.tolist()), end_section=True)
    return table


def to_csv(
    heads: Sequence[InspectedHead], lengths: Sequence[int], measured: Sequence[NeedleAttention]
) -> str:
    """One line a head and length, with attention where it was measured; what there is not is empty."""
    shares_at = {of_length.length: of_length.shares_LHR for of_length in measured}
    text = io.StringIO()
    columns = ("layer", "head", "alpha", "beta", "mu", "ssmax", "prior", "length", "median", "reach")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *(REGIONS if measured else [])])
    for head in heads:
        prior = head.prior
        values = (None, None, None) if prior.is_uniform else (prior.alpha, prior.beta, prior.mu)
        for length in lengths:
            mass = head.mass(length)
            row: list[object] = [head.layer, head.head, *values, head.ssmax, head.kind(max(lengths)), length]
            row += [mass.reach(0.5), mass.reach()]
            if measured:
                row += shares_at[length][head.layer, head.head].tolist()
            writer.writerow(row)
    return text.getvalue()


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name == "prior" else "right", overflow="fold")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.3g}%" if percent >= _LEAST_PERCENT or not share else f"<{_LEAST_PERCENT}%"
