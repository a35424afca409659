"""Prompts out of pieces: order, needles, and whether text and tokens agree at every seam."""

from typing import Any

import numpy as np
import pytest

from bamctl.tasks.assembly import Assembly, Stretch
from bamctl.tasks.tokenization import PromptTokenizer


def pieces_of(tokenizer: PromptTokenizer, *texts: str) -> list[Any]:
    return [piece.ids for piece in tokenizer.continuations(texts)]


def test_pieces_come_in_order_behind_the_prefix(kind: str, tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of(kind))
    assembly = Assembly(tokenizer)
    assert len(assembly) == len(tokenizer.prefix)
    opening = tokenizer.opening("The grass is green.")
    first, needle, last = pieces_of(tokenizer, " The sky is blue.", " The pass key is 17.", " Here we go.")
    assembly.add(opening)
    assembly.add_stretch(Stretch(ids=np.concatenate([first, last]), first=first, last=last, stable=True))
    assembly.add(needle, needle=True)
    assembly.add(last)
    ids = assembly.token_ids()
    assert ids.dtype == np.int32
    assert ids.tolist() == [*tokenizer.prefix, *opening, *first, *last, *needle, *last]
    assert len(assembly) == len(ids)
    [(start, end)] = assembly.needles
    assert ids[start:end].tolist() == needle.tolist()
    assert assembly.is_stable()


def test_an_empty_stretch_is_nothing(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    assembly = Assembly(tokenizer)
    none = np.empty(0, dtype=np.int32)
    assembly.add_stretch(Stretch(ids=none, first=none, last=none, stable=False))
    assert len(assembly) == 0
    assert assembly.is_stable()


@pytest.mark.parametrize("where", range(5))
def test_one_seam_that_does_not_hold_is_enough(where: int, tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    [whole] = pieces_of(tokenizer, " The sky is blue.")
    [joined] = pieces_of(tokenizer, " grass")
    broken = np.array(tokenizer.tokenizer.convert_tokens_to_ids(["Ġ", *"grass"]), dtype=np.int32)
    assert len(joined) < len(broken)
    for word, stable in ((joined, True), (broken, False)):
        parts = [whole] * 5
        parts[where] = word
        stretch = np.concatenate([parts[1], whole, whole, parts[2]])
        assembly = Assembly(tokenizer)
        assembly.add(parts[0])
        assembly.add_stretch(Stretch(ids=stretch, first=parts[1], last=parts[2], stable=True))
        assembly.add(parts[3], needle=True)
        assembly.add(parts[4])
        assert assembly.is_stable() == stable


def test_an_unstable_stretch_makes_an_unstable_prompt(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    [one] = pieces_of(tokenizer, " The sky is blue.")
    for ids, stable in ((one, True), (np.concatenate([one, one]), False)):
        assembly = Assembly(tokenizer)
        assembly.add_stretch(Stretch(ids=ids, first=one, last=one, stable=False))
        assert assembly.is_stable() == stable  # one sentence alone is looked at


def test_what_is_added_later_is_looked_at_too(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    assembly = Assembly(tokenizer)
    assembly.add(tokenizer.opening("The sky"))
    assert assembly.is_stable()
    assembly.add(np.array(tokenizer.tokenizer.convert_tokens_to_ids(["Ġ", *"is"]), dtype=np.int32))
    assert not assembly.is_stable()
