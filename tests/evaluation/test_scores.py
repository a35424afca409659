import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_context_eval.eval.synthetic import constants

from bamctl.evaluation.scores import exact_match, postprocess, recall


@pytest.mark.parametrize(
    "prediction",
    [
        "12345",
        " 12345",
        "\n\t 12345",
        "12345.",
        "12345. Remember it. 12345 is the pass key.",
        "12345, and",
        "12345 is the key",
        "12345\n678",
        "12345</s>",
        "12345!6",
    ],
)
def test_the_answer_at_the_start_is_exact(prediction):
    assert exact_match(prediction, ["12345"])


@pytest.mark.parametrize(
    "prediction",
    [
        "",
        "1234",
        "12346",
        "912345",
        "123456",
        "12345a",
        "12345_",
        "12345é",
        "12345.6",
        "12345,678",
        "12,345",
        "12 345",
        "-12345",
        ".12345",
        '"12345"',
        "It is 12345",
        "67890 12345",
    ],
)
def test_anything_else_is_not(prediction):
    assert not exact_match(prediction, ["12345"])


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("12345 67890", True),
        ("12345, 67890.", True),
        ("12345 and 67890", True),
        ("12345, and 67890 are", True),
        (" 12345\n67890", True),
        ("67890, 12345", False),
        ("1234567890", False),
        ("12345and67890", False),
        ("12345 or 67890", False),
        ("12345", False),
        ("12345, 678901", False),
        ("912345, 67890", False),
    ],
)
def test_of_two_references_both_are_wanted_in_order(prediction, right):
    assert exact_match(prediction, ["12345", "67890"]) is right


def test_a_reference_is_text_and_no_pattern():
    assert exact_match("A.c", ["a.C"])
    assert not exact_match("abc", ["a.c"])
    assert exact_match("(x)", ["(x)"])


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("It is 12345.", ["12345"], 1.0),
        ("912345", ["12345"], 1.0),  # RULER's score is that of a substring
        ("1234", ["12345"], 0.0),
        ("", ["12345"], 0.0),
        ("67890, 12345", ["12345", "67890"], 1.0),
        ("67890", ["12345", "67890"], 0.5),
        ("RED Panda", ["red panda", "Panda", "blue"], 2 / 3),
    ],
)
def test_recall_is_the_share_of_references_found(prediction, references, expected):
    assert recall(prediction, references) == expected


# RULER's scores, by RULER's own functions.

ruler_text = st.text(st.sampled_from("aAbBiİßΣσς12 .,-\n\t\x00\x1f\x7f\u2028é"), max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.data(), ruler_text, st.lists(ruler_text, min_size=1, max_size=5))
def test_recall_is_ruler_s(ruler_evaluate, data, prediction, references):
    """References that are part of the prediction, and others."""
    for _ in range(data.draw(st.integers(0, 2))):
        start = data.draw(st.integers(0, len(prediction)))
        references.append(prediction[start : data.draw(st.integers(start, len(prediction)))])
    cleaned = ruler_evaluate.postprocess_pred(prediction, {})
    assert postprocess(prediction) == cleaned
    expected = {
        "string_match_all": constants.string_match_all_per_sample,
        "string_match_part": constants.string_match_part_per_sample,
    }
    for metric, function in expected.items():
        assert [100 * recall(prediction, references, metric)] == function([cleaned], [references])
    assert recall(prediction, references, "exact") == recall(prediction, references, "string_match_all")


@pytest.mark.parametrize(
    ("prediction", "references", "metric", "expected"),
    [
        ("1234567, 7654321", ["7654321", "1234567"], "string_match_all", 1.0),
        ("1234567", ["7654321", "1234567", "1234567", "1"], "string_match_all", 0.75),  # twice counts twice
        ("a\x00b\x1fc", ["a\nb\nc"], "string_match_all", 1.0),
        ("a\x00b", ["a\x00b"], "string_match_all", 0.0),
        ("a\tb", ["a b"], "string_match_all", 0.0),
        (" \x00 yes \x01\n", [" yes"], "string_match_all", 0.0),
        ("a\x7fb", ["a\x7fb"], "string_match_all", 1.0),  # DEL is none of them
        ("ÉCOLE", ["école"], "string_match_all", 1.0),
        ("STRASSE", ["straße"], "string_match_all", 0.0),  # lower case is not case folding
        ("İstanbul", ["i"], "string_match_all", 1.0),
        ("the Denver Broncos", ["New York", "denver broncos"], "string_match_part", 1.0),
        ("Boston", ["New York", "Denver"], "string_match_part", 0.0),
        ("", ["New York"], "string_match_part", 0.0),
    ],
)
def test_recall_by_hand(prediction, references, metric, expected):
    assert recall(prediction, references, metric) == expected


# Exact answers to RULER's tasks.


def exactly(prediction, *references, metric="string_match_all"):
    return exact_match(prediction, references, metric)


@pytest.mark.parametrize("metric", ["string_match_all", "string_match_part"])
@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("12345", True),
        (" \n\x0012345", True),
        ("12345.", True),
        ("12345 is the number", True),
        ("12345, or 67890", True),
        ("12345 - 67890", True),
        ("12345-", True),
        ("'12345'", False),
        ("912345", False),
        ("123456", False),
        ("12345.6", False),
        ("12345,678", False),
        ("12345-6", False),
        ("12345-a", False),
        ("-12345", False),
        (".12345", False),
        ("1234", False),
        ("", False),
        ("It is 12345", False),
        ("12345_", False),
        ("12345é", False),
    ],
)
def test_one_answer_to_a_ruler_task(prediction, right, metric):
    assert exactly(prediction, "12345", metric=metric) is right


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("sad-panda", True),
        ("Sad-Panda.", True),
        ("sad-panda's", False),
        ("sad-panda’s", False),
        ("sad-panda-bear", False),
        ("sad-pandas", False),
        ("not-sad-panda", False),
        ("sad panda", False),
        ("sad-panda - bear", True),
        ("sad-panda -bear", True),
        ("sad-panda.Next", True),
    ],
)
def test_words_with_hyphens(prediction, right):
    assert exactly(prediction, "sad-panda") is right
    assert exactly(prediction, "happy-cat", "sad-panda", metric="string_match_part") is right


UUID = "0c3f6c55-2b5f-4e5f-9d7e-8f1c2b3a4d5e"


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        (UUID, True),
        (f" {UUID.upper()}. One of", True),
        (f"{UUID}-1", False),
        (f"{UUID}1", False),
        (f"9{UUID}", False),
        (f"9-{UUID}", False),
        (UUID[:-1], False),
    ],
)
def test_uuids(prediction, right):
    assert exactly(prediction, UUID) is right


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("12345 67890", True),
        ("67890, 12345.", True),
        ("67890,12345", True),
        ("67890 and 12345", True),
        ("67890, and 12345 are", True),
        ("67890 / 12345; so it is", True),
        ("1. 67890\n2. 12345\n", True),
        ("1) 67890 2) 12345", True),
        ("(1) 67890 (2) 12345", True),
        ("67890\n- 12345", True),
        ("2. 12345 and 1. 67890", True),
        ("1.67890 2.12345", False),
        ("1234. 67890 2. 12345", False),
        ("- 67890\n- 12345", False),
        ("67890, -12345", False),
        ("67890, .12345", False),
        ("67890.12345", False),
        ("67890-12345", False),
        ("6789012345", False),
        ("67890and12345", False),
        ("67890 sand 12345", False),
        ("67890 or 12345", False),
        ("67890", False),
        ("67890, 67890", False),
        ("67890, 67890, 12345", False),
        ("67890, 12345, 55555", True),  # what goes on behind the answer is no part of it
        ("67890, 12345,555", False),
        ("67890, 12345-5", False),
        ("67890, 123456", False),
        ("67890, 11111, 12345", False),
        ("x67890, 12345", False),
        ("67890, x12345", False),
    ],
)
def test_two_answers_in_any_order(prediction, right):
    assert exactly(prediction, "12345", "67890") is right


def test_of_several_references_qa_wants_one():
    references = ["Denver", "Denver Broncos", "The Broncos"]
    for answer in ("Denver Broncos", "the broncos", "Denver"):
        assert exactly(f"{answer}, who won", *references, metric="string_match_part")
    assert not exactly("Denvers", "Denver", "Denver Broncos", metric="string_match_part")
    assert not exactly("1. Denver", "Denver", metric="string_match_part")
    assert exactly("Denver BroncosX", "Denver", "Denver Broncos", metric="string_match_part")


def test_one_reference_may_begin_another():
    for prediction in ("a, a b", "a b, a", "a b a", "a a b", "A, A B."):
        assert exactly(prediction, "a", "a b")
    for prediction in ("a b", "a, b", "a b, ab", "ab, a"):
        assert not exactly(prediction, "a", "a b")
    assert exactly("a b c a b", "a", "a b", "b c")  # where the longest first would end in nothing


def test_a_reference_that_comes_twice_is_wanted_twice():
    assert exactly("7, 8, 7", "7", "7", "8")
    assert not exactly("7, 8", "7", "7", "8")
    assert not exactly("7, 8, 8", "7", "7", "8")


def test_numbers_may_be_answers_and_numbers_of_a_list():
    assert exactly("1. 2", "1", "2")
    assert exactly("1. 2\n2. 1", "1", "2")
    assert exactly("1. 40\n2. 41", "40", "41")


def test_references_are_text_and_no_patterns():
    assert exactly("(x), a.c, $5, [b]*", "$5", "(X)", "[b]*", "A.c")
    assert not exactly("(x), abc", "(x)", "a.c")
    assert exactly("\\d+ (?i)", "(?I)", "\\D+")


def test_lower_case_may_be_longer():
    assert exactly("İSTANBUL, STRASSE", "strasse", "İstanbul")
    assert exactly("ΟΔΟΣ, ÉCOLE", "école", "οδος")


words = st.sampled_from(["a", "b", "a b", "b a", "a-b", "1", "12", "a, b"])
separators = st.sampled_from([" ", ", ", ",", " and ", "\n1. ", "-", " - ", ""])


def lists_all(prediction: str, references: list[str]) -> bool:
    """The definition, spelled out: some order of the references, and between them a separator that is one."""
    between = r"(?:\W|\band\b|(?<!\S)\(?\d{1,3}[.)]\s+)+(?<![-.](?=\d))"
    joined = rf"(?:,(?=\d)|(?!\w|[.,]\d|[-'’]\w){between})"
    return any(
        re.match(
            rf"(?:\(?\d{{1,3}}[.)]\s+)?{joined.join(map(re.escape, order))}(?!\w|[.,]\d|[-'’]\w)", prediction
        )
        for order in itertools.permutations(references)
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(words, min_size=1, max_size=4), st.lists(st.tuples(words, separators), max_size=5))
def test_all_orders_and_readings_are_tried(references, parts):
    prediction = "".join(word + separator for word, separator in parts).strip()
    assert exactly(prediction, *references) == lists_all(prediction, references)


@settings(max_examples=200, deadline=None)
@given(
    st.permutations(["red-cat", "7654321", "12", "1", "red", UUID, "straße", "x.y"]),
    st.lists(st.sampled_from([", ", " ", " and ", "\n", ";\t", ", and "]), min_size=8, max_size=8),
)
def test_every_order_is_right_and_what_is_exact_is_found(order, joins):
    prediction = "".join(word + join for word, join in zip(order, joins, strict=True))
    assert exactly(prediction, *sorted(order))
    assert recall(prediction, order) == 1.0
    assert not exactly(prediction, *order, "missing")


MANY = [f"word{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("references", "prediction", "right"),
    [
        (MANY, ", ".join(reversed(MANY)), True),
        (MANY, "\n".join(f"{number}. {word}" for number, word in enumerate(MANY, start=1)), True),
        (MANY, ", ".join(MANY[:-1]) + " " * 100_000, False),
        (MANY, "word0" + " and" * 100_000, False),
        (MANY, "word0" + " 1. " * 100_000, False),
        (MANY, ", ".join(MANY[:-1] * 1000), False),
        (["a"] * 40, "a " * 39 + "b", False),
        (["a"] * 40, "a " * 40, True),
        ([" ".join("a" * length) for length in range(1, 41)], "a " * 819 + "b", False),  # 820 are wanted
        ([" ".join("a" * length) for length in range(1, 41)], "a " * 820, True),
        (["."] * 40, ". " * 40 + "x", True),
        (["."] * 40, "." * 100_000, False),
        ([".", ".."] * 20, ". " * 100_000, False),
        (["(x)"] * 40, "(" * 100_000, False),
        ([f"{number}." for number in range(40)], "1. " * 100_000, False),
        ([f"{'é' * number}x" for number in range(40)], "é" * 100_000, False),
    ],
)
def test_forty_references_and_a_prediction_made_to_mislead(references, prediction, right):
    """Each ends: every way is gone at most once, and their number is limited."""
    assert exactly(prediction, *references) is right


def test_a_list_of_thousands_is_read():
    names = [f"n{number}" for number in range(3000)]
    assert exactly(" ".join(names), *names)
    assert exact_match(" ".join(names), names)
    assert not exact_match(" ".join(reversed(names)), names)
