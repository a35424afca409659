"""Keys and values have RULER's words, and RULER's shapes."""

import uuid
from typing import Any

import numpy as np
import pytest

from bamctl.tasks.ruler.niah import DEPTHS
from bamctl.tasks.ruler.words import draw, draw_distinct, word_list


class Ends:
    """In the place of a generator: always the first or the last whole number."""

    def __init__(self, *, last: bool) -> None:
        self.last = last

    def integers(self, low: int, high: int | None = None) -> int:
        low, high = (0, low) if high is None else (low, high)
        return high - 1 if self.last else low


@pytest.mark.parametrize("kind", ["adjective", "noun"])
def test_the_words_are_those_that_ruler_reads(kind: str) -> None:
    import wonderwords.random_word

    theirs = wonderwords.random_word._get_words_from_text_file(f"{kind}list.txt")
    assert set(word_list(kind)) == set(theirs)
    assert len(set(word_list(kind))) == len(word_list(kind))


def test_every_adjective_stands_before_every_noun_as_in_rulers_list(ruler_niah: Any) -> None:
    module = ruler_niah("niah_single_1").module
    ours = [f"{adjective}-{noun}" for adjective in module.adjs for noun in module.nouns]
    assert sorted(set(ours)) == module.words
    assert set(module.adjs) <= set(word_list("adjective"))
    assert set(module.nouns) <= set(word_list("noun"))
    ends: Any = Ends(last=False), Ends(last=True)
    assert [draw("words", rng) for rng in ends] == [
        f"{word_list('adjective')[at]}-{word_list('noun')[at]}" for at in (0, -1)
    ]


def test_numbers_have_seven_digits_and_do_not_start_with_0(ruler_niah: Any) -> None:
    ends: Any = Ends(last=False), Ends(last=True)
    assert [draw("numbers", rng) for rng in ends] == ["1000000", "9999999"]
    ruler = ruler_niah("niah_single_1")
    theirs = {ruler.module.generate_random_number() for _ in range(300)}
    ours = {draw("numbers", np.random.default_rng(seed)) for seed in range(300)}
    for numbers in (theirs, ours):
        assert {len(number) for number in numbers} == {7}
        assert {number[0] for number in numbers} == set("123456789")


def test_uuids_are_of_version_4_as_rulers_are(ruler_niah: Any) -> None:
    ruler = ruler_niah("niah_single_3")
    rng = np.random.default_rng(0)
    ours, theirs = (
        {make() for _ in range(100)}
        for make in (lambda: draw("uuids", rng), ruler.module.generate_random_uuid)
    )
    for made in (ours, theirs):
        assert len(made) == 100
        for text in made:
            parsed = uuid.UUID(text)
            assert str(parsed) == text
            assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)
        assert {text[19] for text in made} == set("89ab")


def test_the_depths_are_rulers(ruler_niah: Any) -> None:
    assert DEPTHS.tolist() == [int(depth) for depth in ruler_niah("niah_single_2").module.DEPTHS]
    assert (len(DEPTHS), DEPTHS[0], DEPTHS[-1]) == (40, 0, 100)


@pytest.mark.parametrize("kind", ["words", "numbers", "uuids"])
def test_what_is_drawn_distinct_is(kind: Any) -> None:
    drawn = draw_distinct(kind, 500, np.random.default_rng(1))
    assert len(set(drawn)) == len(drawn) == 500
    assert drawn == draw_distinct(kind, 500, np.random.default_rng(1))
    assert draw_distinct(kind, 0, np.random.default_rng(1)) == []


def test_what_comes_twice_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from bamctl.tasks.ruler import words

    stream = iter(["a", "b", "a", "a", "c"])
    monkeypatch.setattr(words, "draw", lambda kind, rng: next(stream))
    assert draw_distinct("words", 3, np.random.default_rng(0)) == ["a", "b", "c"]
