import pytest

from bamctl.evaluation.scores import exact_match, recall


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
