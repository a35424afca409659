import pandas as pd
import pytest

from bamctl.report.averages import task_averages
from bamctl.report.table import build_table
from bamctl.results.means import average_interval, count_scores
from bamctl.tasks.catalog import RULER_TASKS


def scores_of(average):
    return {length: pytest.approx(score) for length, score in average.scores.items()}


def test_the_mean_over_tasks_at_each_length(three_tasks):
    (average,) = task_averages(three_tasks)
    assert average.tasks == ("niah_single_1", "niah_multiquery", "vt")
    assert average.missing == ""
    assert scores_of(average) == {4096: 0.9, 8192: 0.7, 16384: 0.41}
    assert (average.run["model"], average.run["seed"]) == ("tiny", 0)


def test_the_order_of_the_rows_does_not_matter(three_tasks):
    shuffled = three_tasks.sample(frac=1, random_state=3)
    assert scores_of(*task_averages(shuffled)) == scores_of(*task_averages(three_tasks))


def test_one_task_is_no_average(make_ruler, make_run):
    other = make_run({4096: (20, 20)}, "passkey")
    assert task_averages(other) == []
    assert task_averages(pd.concat([make_ruler({"vt": (80.0,)}), other])) == []


def test_only_ruler_s_tasks_are_averaged(make_ruler, make_run):
    runs = [
        make_ruler({"vt": (80.0,), "cwe": (40.0,), "my_own": (0.0,)}),
        make_run({4096: (20, 20)}, "passkey"),
    ]
    (average,) = task_averages(pd.concat(runs))
    assert (average.tasks, scores_of(average)) == (("vt", "cwe"), {4096: 0.6})


@pytest.mark.parametrize(
    "columns",
    [
        {"model": "other"},
        {"model_digest": "f" * 16},
        {"depth_policy": "random"},
        {"backend": "vllm"},
        {"dtype": "bfloat16"},
        {"seed": 1},
    ],
)
def test_runs_of_other_settings_are_averaged_by_themselves(make_ruler, columns):
    runs = [
        make_ruler({"vt": (80.0,), "cwe": (40.0,)}),
        make_ruler({"vt": (10.0,), "cwe": (20.0,)}, **columns),
    ]
    averages = task_averages(pd.concat(runs))
    assert sorted(average.scores[4096] for average in averages) == pytest.approx([0.15, 0.6])
    (column,) = columns
    assert {average.run[column] for average in averages} == {columns[column], runs[0][column][0]}


def test_an_option_that_one_task_alone_has_parts_nothing(make_ruler):
    runs = [
        make_ruler({"niah_single_1": (80.0,)}),
        make_ruler({"niah_single_2": (40.0,)}, variant="essays=x"),
    ]
    (average,) = task_averages(pd.concat(runs))
    assert (average.tasks, scores_of(average)) == (("niah_single_1", "niah_single_2"), {4096: 0.6})
    assert average.run["variant"] == ""


def test_tasks_with_and_without_an_option_are_two_averages(make_ruler):
    runs = [
        make_ruler({"vt": (10.0,), "cwe": (20.0,), "fwe": (30.0,)}),
        make_ruler({"vt": (50.0,), "cwe": (60.0,)}, variant="tokens_to_generate=8"),
    ]
    averages = task_averages(pd.concat(runs))
    assert [(average.tasks, average.run["variant"], scores_of(average)) for average in averages] == [
        (("vt", "cwe", "fwe"), "", {4096: 0.2}),
        (("vt", "cwe"), "tokens_to_generate=8", {4096: 0.55}),
    ]


def test_two_runs_of_one_task_have_no_average(make_ruler):
    runs = [make_ruler({"vt": (10.0,), "cwe": (20.0,)}), make_ruler({"vt": (50.0,)}).assign(run_id="again")]
    (average,) = task_averages(pd.concat(runs))
    assert (average.scores, average.missing) == ({}, "vt has 2 runs")


@pytest.mark.parametrize(
    ("scores", "missing"),
    [
        ((80.0, 60.0), "niah_multiquery lacks 16k"),
        ((80.0, None, None), "niah_multiquery lacks 8k, 16k"),
        ((), None),
    ],
)
def test_a_length_that_a_task_lacks_has_no_average(make_ruler, three_tasks, scores, missing):
    others = three_tasks[three_tasks["task"] != "niah_multiquery"]
    runs = pd.concat([others, make_ruler({"niah_multiquery": scores})]) if scores else others
    (average,) = task_averages(runs)
    if missing is None:
        assert (average.tasks, average.missing) == (("niah_single_1", "vt"), "")
    else:
        assert (len(average.tasks), average.missing) == (3, missing)
        assert average.lengths == (4096, 8192, 16384)
        assert list(average.scores) == [4096, 8192, 16384][: sum(score is not None for score in scores)]


def test_every_task_that_lacks_something_is_named(make_ruler):
    runs = make_ruler({"qa_1": (1.0,), "vt": (1.0, 2.0), "fwe": (None, 2.0)})
    (average,) = task_averages(runs)
    assert average.missing == "fwe lacks 4k; qa_1 lacks 8k"
    assert build_table(runs).missing == ("No average over 3 tasks: fwe lacks 4k; qa_1 lacks 8k.",)


def test_the_thirteen_tasks_are_ruler_s():
    from importlib.resources import files

    import yaml

    theirs = yaml.safe_load(files("long_context_eval").joinpath("synthetic.yaml").read_text())
    assert set(RULER_TASKS) == set(theirs)
    assert len(RULER_TASKS) == 13


def test_tasks_are_the_strata_of_an_average_s_interval(make_ruler):
    runs = make_ruler({"vt": (80.0, 60.0), "cwe": (40.0, 20.0)})
    cells = [count_scores(scores) for scores in ([1.0, 0.5], [0.25, 0.5], [0.75, 0.5], [0.0, 0.5])]
    runs["recall_values"] = [list(cell.values) for cell in cells]
    runs["recall_counts"] = [list(cell.counts) for cell in cells]
    (average,) = task_averages(runs.sample(frac=1, random_state=1))
    # In RULER's order: vt, cwe.
    assert average.intervals == {
        4096: average_interval((cells[0], cells[2])),
        8192: average_interval((cells[1], cells[3])),
    }
    strata = (cells[0], cells[2], cells[1], cells[3])
    assert average.over_lengths == (
        average_interval(strata, (0.25,) * 4),
        average_interval(strata, (1 / 6, 1 / 6, 1 / 3, 1 / 3)),
        average_interval(strata, (1 / 3, 1 / 3, 1 / 6, 1 / 6)),
    )


def test_a_length_of_which_a_task_s_samples_are_unknown_has_no_interval(make_ruler):
    runs = make_ruler({"vt": (80.0, 60.0), "cwe": (40.0, 20.0)})
    cell = count_scores([1.0, 0.5])
    runs["recall_values"] = [list(cell.values)] * 3 + [None]
    runs["recall_counts"] = [list(cell.counts)] * 3 + [None]
    (average,) = task_averages(runs)
    assert list(average.intervals) == [4096]
    assert list(average.scores) == [4096, 8192]
    assert average.over_lengths == ()


def test_no_average_no_interval(make_ruler):
    (average,) = task_averages(make_ruler({"vt": (80.0,), "cwe": (None, 40.0)}))
    assert (average.scores, average.intervals, average.over_lengths) == ({}, {}, ())
