import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_context_eval.eval.synthetic import constants

from bamctl.errors import BadInput
from bamctl.evaluation.predictions import Prediction, read_predictions, score_predictions, task_of_file
from bamctl.results.proportions import wilson_interval

METRICS = {"string_match_all": "niah", "string_match_part": "qa"}


def line(pred="12345", outputs=("12345",), **fields) -> str:
    return json.dumps(
        {"index": 0, "input": "…", "outputs": list(outputs), "others": {}, "pred": pred} | fields
    )


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="niah_single_1.jsonl", end="\n"):
        path = tmp_path / name
        path.write_bytes(
            b"".join((each if isinstance(each, bytes) else each.encode()) + end.encode() for each in lines)
        )
        return path

    return write


answers = st.text(st.sampled_from("ab1Ié \n\x00"), max_size=5)
lines = st.lists(
    st.tuples(st.none() | answers, st.lists(answers.filter(bool), min_size=1, max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(lines=lines, metric=st.sampled_from(sorted(METRICS)))
def test_a_file_has_the_score_and_the_nulls_that_ruler_gives_it(
    tmp_path_factory, ruler_evaluate, lines, metric
):
    path = tmp_path_factory.mktemp("predictions") / "task.jsonl"
    path.write_text("\n".join(line(pred, outputs) for pred, outputs in lines))
    config = constants.TASKS[METRICS[metric]]
    score, nulls, _, _, each = ruler_evaluate.run_evaluation_per_task(config, str(path))
    ours = score_predictions(read_predictions(path), metric)
    assert ours.percent == score
    assert f"{ours.nulls}/{ours.n}" == nulls
    assert ours.n == len(lines)
    assert ours.score == pytest.approx(sum(each) / len(each) / 100)
    assert (ours.low, ours.high) == wilson_interval(ours.score * ours.n, ours.n)


def test_a_file_by_hand(write):
    path = write(
        line("12345, 67890", ["67890", "12345"]),
        line("They are 12345.", ["67890", "12345"]),
        line("", ["1"]),
        line(None, ["1"]),
        line(" \x00\n", ["1"]),
    )
    result = score_predictions(read_predictions(path), "string_match_all")
    assert (result.n, result.score, result.percent, result.exact, result.nulls) == (5, 0.3, 30.0, 1, 3)
    assert (result.low, result.high) == wilson_interval(1.5, 5)
    part = score_predictions(read_predictions(path), "string_match_part")
    assert (part.score, part.exact) == (0.4, 1)
    exact = score_predictions(read_predictions(path), "exact")
    assert (exact.score, exact.exact) == (0.0, 0)


def test_what_a_line_may_have_and_lack(write):
    path = write(
        b"\xef\xbb\xbf" + line("é").encode(),
        "",
        "  ",
        '{"pred": "a", "output": "x"}\r',
        '{"pred": "b", "outputs": ["y"], "output": "x"}',
        '{"pred": "\\ud800", "outputs": ["z\u2028z"], "length": "long", "others": [7]}',
        end="\n",
    )
    assert read_predictions(path) == [
        Prediction(text="é", references=("12345",)),
        Prediction(text="a", references=("x",)),
        Prediction(text="b", references=("y",)),
        Prediction(text="\ud800", references=("z\u2028z",)),
    ]
    assert score_predictions(read_predictions(path), "string_match_all").score == 0


def test_the_last_line_may_lack_its_end(write):
    assert len(read_predictions(write(line(), line(), end="\n"))) == 2
    assert len(read_predictions(write(line() + "\n" + line(), end=""))) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "is not JSON in UTF-8"),
        ("what is this", "is not JSON in UTF-8"),
        (b'{"pred": "\xff"}', "is not JSON in UTF-8"),
        ("[" * 100_000, "is not JSON in UTF-8"),
        ("9" * 5000, "is not JSON in UTF-8"),
        ("[]", "is no JSON object with pred and outputs"),
        ("null", "is no JSON object with pred and outputs"),
        ('{"outputs": ["a"]}', "has no pred, what the model wrote; null stands for nothing"),
        ('{"pred": 7, "outputs": ["a"]}', "pred must be text or null"),
        ('{"pred": ["a"], "outputs": ["a"]}', "pred must be text or null"),
        ('{"pred": "a"}', "has neither outputs nor output, the right answers"),
        ('{"pred": "a", "outputs": []}', "outputs must be a list of right answers, with at least one"),
        ('{"pred": "a", "outputs": "a"}', "outputs must be a list of right answers, with at least one"),
        ('{"pred": "a", "outputs": null, "output": "a"}', "outputs must be a list of right answers"),
        ('{"pred": "a", "outputs": [7]}', "a right answer must be text, and not empty"),
        ('{"pred": "a", "outputs": ["a", null]}', "a right answer must be text, and not empty"),
        ('{"pred": "a", "outputs": ["a", ""]}', "a right answer must be text, and not empty"),
        ('{"pred": "a", "output": ""}', "a right answer must be text, and not empty"),
    ],
)
def test_a_bad_line_is_named(write, bad, problem):
    path = write(line(), "", bad, line())
    with pytest.raises(BadInput) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}, line 3: {problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t\n", b"\xef\xbb\xbf\n"])
def test_a_file_without_predictions_is_one_line(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=rf"^{re.escape(str(path))}: holds no predictions"):
        read_predictions(path)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.jsonl"):
        with pytest.raises(BadInput, match=rf"^{re.escape(str(path))}: cannot be read \([A-Z][^()]*\)$"):
            read_predictions(path)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("niah_single_1.jsonl", "niah_single_1"),
        ("folder/niah_single_1.json", "niah_single_1"),
        ("niah_single_1-0.jsonl", "niah_single_1"),
        ("niah_single_1-12.jsonl", "niah_single_1"),
        ("my-task-2.jsonl", "my-task-2"),
        ("my-task-2-0.jsonl", "my-task-2"),
        ("niah_single_1-a.jsonl", None),
        ("niah_single_1-.jsonl", None),
        ("niah_single_10.jsonl", None),
        ("predictions.jsonl", None),
        ("-0.jsonl", None),
    ],
)
def test_the_task_is_in_the_file_s_name(tmp_path, name, task):
    assert task_of_file(tmp_path / name, {"niah_single_1", "my-task-2"}) == task
