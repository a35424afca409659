"""What a length has room for, and what is said where that is too little."""

import numpy as np

from bamctl.errors import BadInput
from bamctl.lengths import format_length
from bamctl.tasks.base import check_depth
from bamctl.tasks.ruler.spec import RulerSpec
from bamctl.tasks.tokenization import Ids, PromptTokenizer

MARK = "\0"
"""Stands in a text for what chance decides."""


def prompt_tokens(spec: RulerSpec, length: int) -> int:
    """Tokens of a prompt whose target length is `length`."""
    return length - spec.tokens_to_generate if spec.length_includes_generation else length


def target_length(spec: RulerSpec, prompt: int) -> int:
    """The target length at which a prompt has so many tokens: the inverse of `prompt_tokens`."""
    return prompt + spec.tokens_to_generate if spec.length_includes_generation else prompt


def check(spec: RulerSpec, length: int, depth: float, shortest: int) -> None:
    """Refuses what no prompt can be made for.

    Raises:
        BadInput: `depth` lies outside 0–100, or `length` is below `shortest`.
    """
    check_depth(depth)
    if length < shortest:
        raise too_short(spec, length, shortest)


def too_short(spec: RulerSpec, length: int, shortest: int) -> BadInput:
    """What to say of a length that is too short."""
    return BadInput(
        f"length {format_length(length)} is too short for {spec.name}: with this tokenizer the shortest that"
        f" always works is {shortest} tokens"
    )


def tokens_in_parts(text: str, tokenizer: PromptTokenizer) -> int:
    """Tokens of a text less its marks: what lies between them is counted by itself."""
    return sum(len(piece.ids) for piece in tokenizer.continuations(text.split(MARK)))


def most_tokens(alphabet: str, characters: int, tokenizer: PromptTokenizer) -> int:
    """The most tokens of so many characters of an alphabet, and one where they join the text around them."""
    longest = max(len(piece.ids) for piece in tokenizer.continuations(list(alphabet)))
    return characters * longest + 1


def chat_tokens(tokenizer: PromptTokenizer) -> int:
    """What a chat template adds behind the question."""
    return 0 if tokenizer.chat is None else len(tokenizer.closing("", ""))


def leading_equal(one: Ids, other: Ids) -> int:
    """With how many of the same tokens two stretches begin."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
