"""What a prompt says where it matters, as text: around each needle, and at its end."""

from dataclasses import dataclass
from typing import Any

from bamctl.tasks.prompt import Prompt
from bamctl.tasks.tokenization import Ids, PromptTokenizer

AROUND = 32
"""Tokens that are shown on either side of a needle."""

LONGEST_NEEDLE = 160
"""Tokens of a needle that is shown whole."""

ASKED = 112
"""Tokens at the end of a prompt that are shown: RULER asks for four keys in 107 of a small vocabulary."""

CUT = " … "
"""Stands for the middle of a needle that is longer."""

_HALF_CHARACTER = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """The parts of a prompt that a person wants to read; in the order of its needle spans."""

    needles: tuple[str, ...]
    """Each needle; of one that is longer than LONGEST_NEEDLE the beginning and the end, with CUT between."""
    excerpts: tuple[str, ...]
    """The same with what stands before and behind it."""
    question: str
    """How the prompt ends: what is asked, and a little of what stands before where the question is short."""


def prompt_text(prompt: Prompt, tokenizer: PromptTokenizer) -> PromptText:
    """Decodes a few dozen tokens a needle; the cost does not depend on the prompt's length.

    A window may begin or end within a character whose bytes are several tokens: what is left of such a
    character is dropped.
    """
    ids = prompt.token_ids
    needles, excerpts = [], []
    for start, end in prompt.needle_spans:
        half = LONGEST_NEEDLE // 2
        kept = [(start, end)] if end - start <= LONGEST_NEEDLE else [(start, start + half), (end - half, end)]
        needles.append(CUT.join(_text(ids[first:last], tokenizer) for first, last in kept))
        kept[0] = (max(start - AROUND, 0), kept[0][1])
        kept[-1] = (kept[-1][0], end + AROUND)
        excerpts.append(CUT.join(_text(ids[first:last], tokenizer) for first, last in kept))
    question = _text(ids[-ASKED:], tokenizer)
    return PromptText(needles=tuple(needles), excerpts=tuple(excerpts), question=question)


def prompt_columns(prompt: Prompt, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """What a sample's row holds of its prompt."""
    text = prompt_text(prompt, tokenizer)
    return {
        "depth": prompt.depths,
        "prompt_tokens": len(prompt.token_ids),
        "needle_start": tuple(start for start, _ in prompt.needle_spans),
        "haystack_repeats": prompt.haystack_repeats,
        "roundtrip_stable": prompt.roundtrip_stable,
        "prompt_digest": prompt.digest,
        "chat_prefix": prompt.chat_prefix,
        "references": prompt.references,
        "needles": text.needles,
        "excerpts": text.excerpts,
        "question": text.question,
    }


def _text(ids: Ids, tokenizer: PromptTokenizer) -> str:
    return tokenizer.decode(ids).strip(_HALF_CHARACTER)
