import pytest

from bamctl.errors import BadInput
from bamctl.evaluation.depths import parse_depths


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(1, (50.0,)), (2, (0.0, 100.0)), (3, (0.0, 50.0, 100.0)), (5, (0.0, 25.0, 50.0, 75.0, 100.0))],
)
def test_equidistant_takes_a_depth_a_sample(samples, expected):
    depths = parse_depths("equidistant", samples)
    assert tuple(depths.depth(sample) for sample in range(samples)) == expected
    assert depths.text == f"equidistant:{samples}"


def test_twenty_equidistant_depths():
    depths = parse_depths("equidistant", 20)
    values = [depths.depth(sample) for sample in range(20)]
    assert (values[0], values[-1]) == (0.0, 100.0)
    assert values == pytest.approx([index * 100 / 19 for index in range(20)])


def test_a_number_is_so_many_equidistant_depths_in_turn():
    depths = parse_depths("5", 20)
    assert [depths.depth(sample) for sample in range(7)] == [0.0, 25.0, 50.0, 75.0, 100.0, 0.0, 25.0]
    assert depths == parse_depths(" 5 ", 5)
    assert parse_depths("20", 70) == parse_depths("equidistant", 20)
    assert parse_depths("1", 20).values == (50.0,)
    assert parse_depths("10000", 10000).depth(9999) == 100.0


def test_depths_that_no_sample_would_reach_are_refused():
    """Taken in turn, the last of 50 depths need 50 samples: with 20 the far end would never be asked for."""
    with pytest.raises(BadInput, match=r"50 equidistant depths need as many samples, not 20; .* 50%"):
        parse_depths("50", 20)
    assert parse_depths("20", 20).values[-1] == 100.0


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ("0,25,50", (0.0, 25.0, 50.0), "0,25,50"),
        ("50%", (50.0,), "50"),
        (" 10% , 20 ,", (10.0, 20.0), "10,20"),
        ("100,0", (100.0, 0.0), "100,0"),
        ("12.5,99.99999999", (12.5, 99.99999999), "12.5,99.99999999"),
        ("beginning", (0.0,), "0"),
        ("end", (100.0,), "100"),
    ],
)
def test_a_list_is_taken_in_turn(text, values, written):
    depths = parse_depths(text, 3)
    assert depths.values == values
    assert depths.text == written
    assert [depths.depth(sample) for sample in range(4)] == [values[i % len(values)] for i in range(4)]


def test_two_lists_that_differ_are_written_differently():
    assert parse_depths("33.33333", 1).text != parse_depths("33.333333", 1).text


def test_random_leaves_the_depth_to_the_sample():
    depths = parse_depths("random", 3)
    assert depths.text == "random"
    assert [depths.depth(sample) for sample in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name no depth"),
        (" , ", "name no depth"),
        ("0", "a number of depths lies between 1 and 10000"),
        ("10001", "a number of depths lies between 1 and 10000"),
        ("9" * 5000, "a number of depths lies between 1 and 10000"),
        ("-1", "-1 lies outside 0"),
        ("0,101", "101 lies outside 0"),
        ("100.0001%", "100.0001% lies outside 0"),
        ("nan,1", "nan lies outside 0"),
        ("inf%", "inf% lies outside 0"),
        ("half", "'half' is no depth; write equidistant, random"),
        ("0;50", "'0;50' is no depth"),
        ("equidistnat", "'equidistnat' is no depth"),
    ],
)
def test_bad_depths_are_one_line(text, message):
    with pytest.raises(BadInput) as caught:
        parse_depths(text, 3)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
