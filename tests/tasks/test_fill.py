"""Exactly so many tokens, of whole sentences and at most one cut one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bamctl.tasks.fill import (
    Closing,
    Cut,
    Filled,
    Opening,
    Sentences,
    Slot,
    Source,
    Whole,
    fill,
    repeated_line,
)
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.tokenization import BEHIND_NEWLINE, PromptTokenizer

TEXTS = ["The sky is blue.", "Here we go.", "The sun is yellow and green."]


def slots(sentences: int, has_cut: bool) -> Sequence[Slot]:
    """An opening, all of the haystack, a needle and a question."""
    run = [Sentences(start=0, stop=sentences)] if sentences else []
    return [
        Opening(text="Remember."),
        *run,
        *[Cut()] * has_cut,
        Whole(text=" The pass key is 17.", needle=True),
        Closing(question=" What is the pass key?", answer_prefix=" The pass key is"),
    ]


def source_of(tokenizer: PromptTokenizer, texts: Sequence[str] = TEXTS, **options: Any) -> Source:
    return Source(Haystack.of([" " + text for text in texts], tokenizer), **options)


def filled(tokenizer: PromptTokenizer, source: Source, tokens: int, slots_of: Any = slots) -> Filled:
    made = fill(slots_of, source, tokenizer, tokens)
    assert isinstance(made, Filled)
    assert len(made.assembly.token_ids()) == len(made.assembly) == tokens
    return made


def least(tokenizer: PromptTokenizer, source: Source) -> int:
    """Tokens of a prompt with no haystack."""
    lacking = fill(slots, source, tokenizer, 0)
    assert isinstance(lacking, int)
    return lacking


def test_every_length_is_hit(kind: str, tokenizer_of: Any, reencoded: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of(kind))
    source = source_of(tokenizer)
    fixed = least(tokenizer, source)
    for tokens in range(fixed, fixed + 70):
        made = filled(tokenizer, source, tokens)
        assert made.haystack_tokens == tokens - fixed
        ids = made.assembly.token_ids()
        [(start, end)] = made.assembly.needles
        assert tokenizer.decode(ids[start:end]).strip().lower() == "the pass key is 17."
        assert made.assembly.is_stable()
        body = ids[len(tokenizer.prefix) :].tolist()
        assert reencoded(kind, body) == body


@pytest.mark.parametrize("short", [1, 2, 10])
def test_too_little_room_is_told_in_tokens(short: int, tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("three_digits"))
    source = source_of(tokenizer)
    assert fill(slots, source, tokenizer, least(tokenizer, source) - short) == short


def test_whole_sentences_come_in_order_and_the_cut_one_is_the_next(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    source = source_of(tokenizer)
    fixed, run = least(tokenizer, source), len(source.haystack.token_ids)
    text = "Remember." + "".join(" " + sentence for sentence in TEXTS)
    exact = filled(tokenizer, source, fixed + run)
    assert tokenizer.decode(exact.assembly.token_ids()).startswith(text + " The pass key is 17.")
    more = filled(tokenizer, source, fixed + run + 2)
    assert tokenizer.decode(more.assembly.token_ids()).startswith(text + " The sky The pass key is 17.")


def test_a_cut_that_does_not_survive_is_taken_elsewhere(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    source = source_of(tokenizer, [TEXTS[0], "😀😀😀 is a face.", *TEXTS[1:]])
    fixed = least(tokenizer, source) + len(source.haystack.sentence(0))
    for cut in (1, 2, 3):
        made = filled(tokenizer, source, fixed + cut)
        assert made.assembly.is_stable()
        assert "�" not in tokenizer.decode(made.assembly.token_ids())
    alone = source_of(tokenizer, ["😀😀😀"])
    flags = [filled(tokenizer, alone, fixed + cut).assembly.is_stable() for cut in range(1, 9)]
    assert False in flags


def test_whole_sentences_that_do_not_survive_give_way_to_a_cut_one(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("multiword"))  # "…go. The pass key" has a token across the stop
    source = source_of(
        tokenizer, ["The sky is blue.", "Here we go.", "The sky is blue and the grass is green."]
    )
    fixed = least(tokenizer, source)
    flags = {tokens: filled(tokenizer, source, fixed + tokens).assembly.is_stable() for tokens in range(60)}
    cut = {t: filled(tokenizer, source, fixed + t, uncut_is_none).assembly.is_stable() for t in range(1, 60)}
    assert all(flags[tokens] for tokens, stable in cut.items() if stable)


def uncut_is_none(sentences: int, has_cut: bool) -> Sequence[Slot] | None:
    return slots(sentences, has_cut) if has_cut or not sentences else None


def test_where_there_is_no_uncut_prompt_all_are_cut(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    source = source_of(tokenizer)
    fixed = least(tokenizer, source)
    ends = {0, *source.haystack.ends.tolist()}
    for tokens in range(60):
        made = filled(tokenizer, source, fixed + tokens, uncut_is_none)
        assert made.haystack_tokens == tokens
        if tokens in ends and tokens:
            text = tokenizer.decode(made.assembly.token_ids())
            assert ". The pass key is 17." in text or " The pass key is 17." in text


def test_the_first_sentence_may_have_other_tokens_at_the_start(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    first = tokenizer.continuations(["The sky is blue."], behind=BEHIND_NEWLINE)[0].ids
    source = source_of(tokenizer, first=first)

    def behind_a_newline(sentences: int, has_cut: bool) -> Sequence[Slot]:
        return [Opening(text="Remember.\n"), *slots(sentences, has_cut)[1:]]

    fixed = least(tokenizer, source) + 1
    for extra in range(len(first), 80):
        made = filled(tokenizer, source, fixed + extra, behind_a_newline)
        text = tokenizer.decode(made.assembly.token_ids())
        assert text.startswith("Remember.\nThe sky is blue. ")
        assert made.haystack_tokens == extra + len(source.haystack.sentence(0)) - len(first)
    assert tokenizer.decode(
        filled(tokenizer, source, fixed + 2, behind_a_newline).assembly.token_ids()
    ).startswith("Remember.\n" + tokenizer.decode(first[:2]))


@pytest.mark.parametrize(
    "line", ["Here we go. There and back again. The sun is yellow.", "one sentence", "word"]
)
def test_a_repeated_line_can_be_cut_anywhere(line: str, tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    first = tokenizer.continuations([line + "\n"], behind=BEHIND_NEWLINE)[0].ids
    source = repeated_line(line, tokenizer, first=first)
    assert source.haystack.sentences == 1
    assert tokenizer.decode(source.haystack.token_ids) == line + "\n"
    for tokens in (1, 2, 5, len(first) - 1, len(first), len(first) + 1, 3 * len(first)):
        cuts = list(source.cuts(1, tokens, at_start=False))
        assert {len(cut) for cut in cuts} == {tokens}
        assert line.startswith(tokenizer.decode(cuts[0])) or tokens >= len(first)
        assert "\n" not in "".join(tokenizer.decode(cut) for cut in cuts)
    turned = {tokenizer.decode(cut).strip() for cut in source.cuts(1, 3, at_start=False)}
    parts = line.replace(". ", ".|").split("|") if "." in line else line.split(" ")
    assert all(any(part.startswith(cut) for cut in turned) for part in parts)


def test_the_slots_of_a_long_prompt_are_found_in_few_steps(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    source = source_of(tokenizer)
    calls = []

    def counting(sentences: int, has_cut: bool) -> Sequence[Slot]:
        calls.append((sentences, has_cut))
        return slots(sentences, has_cut)

    made = filled(tokenizer, source, 2**20, counting)
    assert len(calls) <= 7
    assert np.bincount(made.assembly.token_ids()).sum() == 2**20
