from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.evaluation.excerpts import AROUND, ASKED, CUT, LONGEST_NEEDLE, prompt_text
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.tokenization import PromptTokenizer


def prompt_of(ids, *spans):
    return Prompt(
        token_ids=np.array(ids, dtype=np.int32),
        references=("1",),
        answer_ids=((1,),),
        needle_spans=spans,
        depths=tuple(0.0 for _ in spans),
        shared_prefix=0,
        haystack_repeats=0,
        roundtrip_stable=True,
        tokens_to_generate=1,
    )


@pytest.fixture(scope="module")
def bytewise(tokenizers):
    """A token is a byte, but for a few."""
    return PromptTokenizer(tokenizers[1])


def test_a_needle_is_shown_among_its_neighbours(task):
    prompt = task.build(length=512, depth=50, rng=np.random.default_rng(0))
    text = prompt_text(prompt, task.tokenizer)
    ((start, end),) = prompt.needle_spans
    key = prompt.references[0]
    assert text.needles == (f" The pass key is {key}. Remember it. {key} is the pass key.",)
    (excerpt,) = text.excerpts
    before, behind = excerpt.split(text.needles[0])
    assert before == task.tokenizer.decode(prompt.token_ids[start - AROUND : start])
    assert behind == task.tokenizer.decode(prompt.token_ids[end : end + AROUND])
    assert text.question == task.tokenizer.decode(prompt.token_ids[-ASKED:])
    assert text.question.endswith(" What is the pass key? The pass key is")


@pytest.mark.parametrize("depth", [0, 100])
def test_at_the_prompt_s_ends_there_are_fewer_neighbours(task, depth):
    prompt = task.build(length=task.shortest_length, depth=depth, rng=np.random.default_rng(0))
    text = prompt_text(prompt, task.tokenizer)
    assert text.needles[0] in text.excerpts[0]
    assert text.question == task.tokenizer.decode(prompt.token_ids[-ASKED:])


def test_needles_keep_their_order_and_none_is_none(bytewise):
    ids = bytewise.opening("a first needle, a second needle " * 4).tolist()
    text = prompt_text(prompt_of(ids, (40, 47), (2, 7)), bytewise)
    assert text.needles == (bytewise.decode(np.array(ids[40:47])), "first")
    assert [needle in excerpt for needle, excerpt in zip(text.needles, text.excerpts, strict=True)] == [
        True
    ] * 2
    text = prompt_text(prompt_of(ids), bytewise)
    assert (text.needles, text.excerpts, text.question) == ((), (), bytewise.decode(np.array(ids[-ASKED:])))


@pytest.mark.parametrize("more", [0, 1, 500])
def test_of_a_needle_that_is_too_long_the_middle_is_left_out(bytewise, more):
    needle = "".join(chr(ord("A") + number % 26) for number in range(LONGEST_NEEDLE + more))
    ids = [*bytewise.opening("x" * 100), *bytewise.opening(needle), *bytewise.opening("y" * 100)]
    text = prompt_text(prompt_of(ids, (100, 100 + len(needle))), bytewise)
    shown = needle if not more else needle[: LONGEST_NEEDLE // 2] + CUT + needle[-LONGEST_NEEDLE // 2 :]
    assert text.needles == (shown,)
    assert text.excerpts == ("x" * AROUND + shown + "y" * AROUND,)


@given(st.text(alphabet="aé€😀", min_size=1, max_size=400), st.integers(0, 999), st.integers(1, 999))
def test_no_window_shows_half_a_character(bytewise, text, first, size):
    ids = bytewise.opening(text)
    start = first % len(ids)
    end = min(start + size, len(ids))
    shown = prompt_text(prompt_of(ids, (start, end)), bytewise)
    for part in (*shown.needles, *shown.excerpts, shown.question):
        assert "\ufffd" not in part
        assert all(piece in text for piece in part.split(CUT))
    assert shown.needles[0] in shown.excerpts[0]


def test_a_replacement_character_of_the_text_stays(bytewise):
    ids = bytewise.opening("one \ufffd two")
    assert prompt_text(prompt_of(ids), bytewise).question == "one \ufffd two"


def test_the_cost_does_not_depend_on_the_length(task, monkeypatch):
    prompt = task.build(length=512, depth=50, rng=np.random.default_rng(0))
    decoded = []
    decode = task.tokenizer.decode
    monkeypatch.setattr(task.tokenizer, "decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    prompt_text(replace(prompt, token_ids=np.tile(prompt.token_ids, 100)), task.tokenizer)
    ((start, end),) = prompt.needle_spans
    assert decoded == [end - start, end - start + 2 * AROUND, ASKED]
