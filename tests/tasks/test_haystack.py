"""Sentences of a text, and a haystack of any length made of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.haystack import LONGEST_SENTENCE, Haystack, read_text, split_sentences
from bamctl.tasks.tokenization import PromptTokenizer


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \r\n\t ", []),
        ("No end", ["No end"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("It is 3.5 or e.g. this. Yes", ["It is 3.5 or e.g. this.", "Yes"]),
        ("Wait... what?! Never.", ["Wait... what?!", "Never."]),
        ('He said "no." (She said so.) Then', ['He said "no."', "(She said so.)", "Then"]),
        ("wrapped\nat a  margin\r\nhere. Next\tone.", ["wrapped at a margin here.", "Next one."]),
        ("A title\n\nA text. \n \t\nMore\r\n\r\nyet", ["A title", "A text.", "More", "yet"]),
        ("日本語。次！？終わり", ["日本語。", "次！？", "終わり"]),
        ("「はい。」いいえ。", ["「はい。」", "いいえ。"]),
        ("\ufeffMarked. Twice.", ["Marked.", "Twice."]),
        ("1. 2.", ["1.", "2."]),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(alphabet="aB 1.!?\n\r\t\"'。」é", max_size=60))
def test_no_text_is_lost_and_no_sentence_is_empty(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


@pytest.mark.parametrize("excess", [0, 1])
def test_long_stretches_are_broken(excess: int) -> None:
    size = LONGEST_SENTENCE + excess
    assert list(map(len, split_sentences("x" * size))) == [LONGEST_SENTENCE, 1][: 1 + excess]
    words = split_sentences("word " * (size // 5) + "x" * (size % 5) + "y" * 5)
    assert all(len(part) <= LONGEST_SENTENCE for part in words)
    assert all(word in ("word", "yyyyy", "xyyyyy") for part in words for word in part.split())
    assert len(split_sentences("word " * 10_000)) == 10_000 * 5 // LONGEST_SENTENCE


@pytest.fixture(scope="module")
def haystack(tokenizer_of: Any) -> Haystack:
    return Haystack.of(
        [" Here we go.", " The sky is blue.", " No."], PromptTokenizer(tokenizer_of("byte_bpe"))
    )


def test_sentences_run_on_through_the_repeats(haystack: Haystack) -> None:
    assert haystack.sentences == 3
    endless = np.tile(haystack.token_ids, 5)
    for sentence in range(12):
        start, end = haystack.start_of(sentence), haystack.start_of(sentence + 1)
        assert haystack.sentence(sentence).tolist() == endless[start:end].tolist()
        assert haystack.first(sentence).tolist() == endless[:start].tolist()
        assert [haystack.whole_sentences(tokens) for tokens in (start, end - 1, end - 0.5, end)] == [
            sentence, sentence, sentence, sentence + 1,
        ]  # fmt: skip


def test_stability_reaches_up_to_the_first_bad_pair(haystack: Haystack, tokenizer_of: Any) -> None:
    assert haystack.first_unstable is None
    pieces = PromptTokenizer(tokenizer_of("wordpiece"))
    bad = Haystack.of(
        [" The sky is blue.", " Here we go.", " Here is 日本語.", " The sun is yellow."], pieces
    )
    assert (
        bad.first_unstable == 1
    )  # the second sentence together with the third, which has unknown characters
    assert [bad.is_stable(count) for count in range(5)] == [True, True, True, False, False]


def test_sentences_that_leave_no_token_are_dropped(tokenizer_of: Any) -> None:
    pieces = PromptTokenizer(tokenizer_of("wordpiece"))
    assert Haystack.of(["\x00", " The sky is blue.", "\x00"], pieces).sentences == 1
    with pytest.raises(BadInput, match="leaves no token"):
        Haystack.of(["\x00"], pieces)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"good \xff bad", r"is not UTF-8 text \(byte 5\)"),
        (None, "there is no file"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=rf"text\.txt.*{message}|{message}.*text\.txt") as error:
        read_text(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", [".", "a\0b", "~nobody-of-this-name/text.txt", "x" * 5000])
def test_paths_that_are_no_files(path: str) -> None:
    with pytest.raises(BadInput):
        read_text(Path(path))


def test_a_text_is_read_exactly(wild_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(wild_text)
    assert read_text(path).encode() == path.read_bytes()
    monkeypatch.setenv("HOME", str(path.parent))
    assert read_text(Path("~") / path.name) == read_text(path)


@pytest.mark.parametrize("bad", [0, 15, 16, 17, 39])
def test_the_first_bad_pair_is_found_in_a_long_text(tokenizer_of: Any, bad: int) -> None:
    sentences = ["The sky is blue."] * 40
    sentences[bad] = "Here is 日本語."
    haystack = Haystack.of(sentences, PromptTokenizer(tokenizer_of("wordpiece")))
    assert haystack.first_unstable == max(bad - 1, 0)
