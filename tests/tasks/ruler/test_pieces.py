"""Pieces: tokenised once, laid out in any order, and checked where they join."""

from typing import Any

import numpy as np
import pytest

from bamctl.tasks.ruler.limits import leading_equal
from bamctl.tasks.ruler.pieces import Numbered, Pieces, first_stable, seams_stable, seeded_shuffle
from bamctl.tasks.tokenization import PromptTokenizer

WORDS = [" grass", " sky", "", " Remember", " 77", " lazy"]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of: Any) -> PromptTokenizer:
    return PromptTokenizer(tokenizer_of("byte_bpe"))


@pytest.fixture(scope="module")
def pieces(tokenizer: PromptTokenizer) -> Pieces:
    return Pieces.of(WORDS, tokenizer, between=(" the", " the"))


def test_pieces_are_laid_out_in_any_order(pieces: Pieces, tokenizer: PromptTokenizer) -> None:
    assert len(pieces) == len(WORDS)
    order = np.array([3, 2, 0, 0, 5])
    ids, ends = pieces.laid_out(order)
    assert tokenizer.decode(ids) == " Remember grass grass lazy"
    assert [tokenizer.decode(ids[ends[i] : ends[i + 1]]) for i in range(5)] == [WORDS[i] for i in order]
    assert pieces.lengths[2] == 0
    assert pieces.laid_out(np.array([], dtype=np.int64))[0].tolist() == []


def test_joined_pieces_keep_their_numbers(pieces: Pieces) -> None:
    joined = Pieces.joined([pieces, pieces])
    assert len(joined) == 2 * len(pieces)
    for index in range(len(pieces)):
        for same in (index, index + len(pieces)):
            assert joined.piece(same).tolist() == pieces.piece(index).tolist()


def test_each_piece_is_stable_or_not(tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of("byte_bpe"))
    texts = [" the"] * 30 + ["e"] + [" the"] * 30  # "the" and "e" have other tokens together
    found = Pieces.of(texts, tokenizer, between=(" th", " the"))
    assert found.stable.tolist() == [True] * 30 + [False] + [True] * 30


def test_kept_pieces_are_what_they_were(tokenizer: PromptTokenizer, pieces: Pieces) -> None:
    made = []

    def texts() -> list[str]:
        made.append(1)
        return WORDS

    for _ in range(2):
        kept = Pieces.kept(texts, ("test",), tokenizer, between=(" the", " the"))
        assert kept.token_ids.tolist() == pieces.token_ids.tolist()
        assert kept.stable.tolist() == pieces.stable.tolist()
    assert made == [1]


def test_numbers_go_on_as_far_as_one_asks(tokenizer: PromptTokenizer) -> None:
    numbers = Numbered(" {i}.", tokenizer, between=(" the", " the"))
    for count in (1, 1025, 2049):
        table = numbers.below(count)
        assert len(table) >= count
        for number in (0, 9, count - 1):
            assert tokenizer.decode(table.piece(number)) == f" {number}."
    assert len(numbers.below(1)) == len(numbers.below(4096)) == 4096


@pytest.mark.parametrize("broken", [None, 0, 1, 700, 998])
def test_every_seam_of_few_pieces_is_looked_at(tokenizer: PromptTokenizer, broken: int | None) -> None:
    table = Pieces.of([" th", "e", " sky"], tokenizer, between=(" the", " the"))
    order = np.full(1000, 2)
    if broken is not None:
        order[broken : broken + 2] = [0, 1]
    ids, ends = table.laid_out(order)
    assert seams_stable(ids, ends, tokenizer) == (broken is None)


def test_many_broken_seams_are_found_among_very_many(tokenizer: PromptTokenizer) -> None:
    table = Pieces.of([" th", "e"], tokenizer, between=(" the", " the"))
    ids, ends = table.laid_out(np.tile([0, 1], 50_000))
    assert not seams_stable(ids, ends, tokenizer)


def test_the_first_stable_candidate_is_taken_or_the_first_of_all(tokenizer: PromptTokenizer) -> None:
    good, bad = (
        np.concatenate([piece.ids for piece in tokenizer.continuations(texts)])
        for texts in ([" the", " sky"], [" th", "e"])
    )
    assert first_stable([("a", bad), ("b", good), ("c", good)], tokenizer) == ("b", True)
    assert first_stable([("a", bad), ("b", bad)], tokenizer) == ("a", False)


def test_a_shuffle_is_drawn_once() -> None:
    shuffle = seeded_shuffle(np.random.default_rng(1))
    assert sorted(shuffle(9)) == list(range(9))
    assert shuffle(9).tolist() == shuffle(9).tolist() != seeded_shuffle(np.random.default_rng(2))(9).tolist()


def test_where_two_stretches_differ() -> None:
    one, other = (np.array(ids, dtype=np.int32) for ids in ([1, 2, 3], [1, 2, 4, 5]))
    assert [leading_equal(one, other), leading_equal(one, one), leading_equal(one[:2], other)] == [2, 3, 2]
