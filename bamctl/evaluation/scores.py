"""How right an answer is."""

import re
from collections.abc import Sequence


def exact_match(prediction: str, references: Sequence[str]) -> bool:
    """Whether the answer, and nothing but the answer, stands at the start of the prediction.

    White space before it is passed over. What follows must not make it a longer word or number: ``12345.``
    and ``12345 is`` are right for 12345, while ``912345``, ``123456``, ``12345.6`` and ``It is 12345`` are
    wrong. Of several references all are wanted, in order, with nothing between them but punctuation and
    "and".
    """
    between = r"(?:\W|\band\b)+"
    pattern = between.join(re.escape(reference) for reference in references)
    return re.match(rf"\s*{pattern}(?!\w|[.,]\d)", prediction, flags=re.IGNORECASE) is not None


def recall(prediction: str, references: Sequence[str]) -> float:
    """RULER's string_match_all for one sample: the share of references found, in whatever case."""
    found = sum(reference.lower() in prediction.lower() for reference in references)
    return found / len(references)
