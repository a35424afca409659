import itertools
import re

import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.export import to_latex, to_markdown
from bamctl.report.table import build_table
from bamctl.report.training_seeds import spread_over_seeds, spread_text


def spread(*runs, **options):
    return spread_over_seeds(build_table(pd.concat(runs, ignore_index=True), **options))


def trainings(make_run, **lengths_by_model):
    """Runs of models NAME, NAME_2, …, written as identifiers."""
    return [
        make_run(lengths, name, model=name.replace("_", "-"), model_digest=name)
        for name, lengths in lengths_by_model.items()
    ]


def test_a_row_has_the_mean_and_the_range_of_its_trainings(make_run):
    table = spread(
        *trainings(
            make_run,
            m={512: (20, 20), 1024: (20, 20), 2048: (0, 20)},
            m_2={512: (20, 20), 1024: (19, 20), 2048: (13, 20)},
            m_3={512: (20, 20), 1024: (20, 20), 2048: (20, 20)},
            other={512: (10, 20), 1024: (1, 20), 2048: (0, 20)},
        )
    )
    assert table.header() == ["model", "seeds", "train", "512", "1k", "2k", "effective"]
    assert table.body() == [
        ["m", "3", "512", "100", "98.3 (95-100)", "55 (0-100)", "1k to >=2k"],
        ["other *", "1", "512", "50", "5", "0", "<512"],
    ]
    assert table.body(separator="\n")[0][4] == "98.3\n(95-100)"
    assert table.scores() == [(1.0, pytest.approx(59 / 60), pytest.approx(0.55)), (0.5, 0.05, 0.0)]
    assert table.first_length == 3
    caption = table.caption()
    assert "m: m, m-2, m-3." in caption
    assert any("with a chance of at least 50% for 3." in sentence for sentence in caption)
    [unlearned] = [sentence for sentence in caption if sentence.startswith("* ")]
    assert unlearned.startswith("* other: below 95% at its train length, which it has not learned:")


def test_only_the_training_that_has_not_learned_is_named(make_run):
    table = spread(*trainings(make_run, m={512: (20, 20)}, m_2={512: (18, 20)}))
    assert table.body()[0][0] == "m *"
    assert any(sentence.startswith("* m-2: below 95%") for sentence in table.caption())


def test_no_mean_where_a_training_has_no_score(make_run):
    full = {512: (20, 20), 1024: (20, 20), 2048: "skipped", 4096: "failed"}
    table = spread(
        *trainings(make_run, m=full, m_2={512: (20, 20), 1024: "skipped", 2048: "skipped"}),
        *trainings(make_run, alone=full),
    )
    assert table.body() == [
        ["alone", "1", "512", "100", "100", "skip", "fail", ">=1k"],
        ["m", "2", "512", "100", "-", "skip", "-", "-"],
    ]
    assert table.scores()[-1] == (1.0, None, None, None)


def test_no_mean_of_unlike_samples(make_run):
    """Their difference would be one of samples as well."""
    table = spread(*trainings(make_run, m={512: (20, 20), 1024: (3, 3)}, m_2={512: (20, 20), 1024: (1, 2)}))
    assert table.body()[0][3:] == ["100", "~-", ">=512"]
    assert table.scores() == [(1.0, None)]
    assert table.body()[-1] == ["n", "", "", "20", "2-3", ""]


def test_no_effective_length_of_unlike_samples(make_run):
    run = {"depth_policy": "random"}  # of which nothing says how many samples are planned
    first = make_run({512: (20, 20), 1024: (20, 20)}, "a", model="m", model_digest="m", **run)
    second = make_run({512: (20, 20), 1024: (20, 20)}, "b", model="m-2", model_digest="m-2", **run)
    assert spread(first, second).body()[0][-1] == ">=1k"
    other = make_run({512: (10, 10), 1024: (10, 10)}, "b", model="m-2", model_digest="m-2", **run)
    assert spread(first, other).body()[0][3:] == ["-", "-", "-"]


def test_unfinished_means_are_marked(make_run):
    table = spread(*trainings(make_run, m={512: (20, 20), 1024: (9, 9)}, m_2={512: (20, 20), 1024: (9, 9)}))
    assert table.body()[0][3:] == ["100", "~100", ">=512"]


def test_averages_of_unlike_samples_have_no_mean(make_run):
    def averaged(model, n):
        runs = [
            make_run(
                {512: (n, n), 1024: (20, 20)},
                f"{model}{task}",
                model=model,
                model_digest=model,
                task=task,
                depth_policy="ruler",
                metric="exact",
            )
            for task in ("niah_single_1", "vt")
        ]
        return pd.concat(runs, ignore_index=True)

    assert spread(averaged("m", 20), averaged("m-2", 20), averages_only=True).body()[0][3] == "100"
    table = spread(averaged("m", 20), averaged("m-2", 10), averages_only=True)
    assert table.body()[0][3:5] == ["~-", "100"]
    assert table.body()[0][-3:] == ["-", "-", "-"]  # those over lengths are of the first one too


def test_runs_at_other_settings_are_other_rows(make_run):
    models = {"m": {512: (20, 20)}, "m_2": {512: (10, 20)}}
    float32, bfloat16 = (
        [
            make_run(lengths, f"{name}{dtype}", model=name.replace("_", "-"), model_digest=name, dtype=dtype)
            for name, lengths in models.items()
        ]
        for dtype in ("float32", "bfloat16")
    )
    assert [row[:2] for row in spread(*float32, *bfloat16).body()] == [
        ["m, bfloat16 *", "2"],
        ["m, float32 *", "2"],
    ]


def test_averages_over_tasks_have_their_spread(make_ruler):
    first, second = (
        make_ruler({"vt": scores, "niah_single_1": (100.0, 90.0)}, model=model, model_digest=model)
        for model, scores in (("m", (80.0, 60.0)), ("m-2", (60.0, 70.0)))
    )
    table = spread(first, second, averages_only=True)
    assert table.header()[-3:] == ["Avg.", "wAvg (inc)", "wAvg (dec)"]
    assert table.body()[0][:5] == ["m", "2", "512", "85 (80-90)", "77.5 (75-80)"]
    assert table.body()[0][6] == "81.2 (80-82.5)"  # of 82.5 and 80
    assert spread(first, second).body()[-1][:2] == ["m, average of 2 tasks", "2"]


def test_averages_over_other_lengths_are_not_put_together(make_ruler):
    first = make_ruler({"vt": (80.0, 60.0), "niah_single_1": (100.0, 90.0)}, model="m", model_digest="m")
    second = make_ruler({"vt": (80.0,), "niah_single_1": (100.0,)}, model="m-2", model_digest="m-2")
    row = spread(first, second, averages_only=True).body()[0]
    assert row[3:] == ["90", "-", "-", "-", "-", "-"]


def test_models_without_another_training_have_no_spread(make_run):
    with pytest.raises(BadInput, match=r"no model that is shown is another training of one beside it"):
        spread(*trainings(make_run, m_2={512: (1, 1)}, m_3={512: (1, 1)}))


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([1.0], "100"),
        ([0.0, 0.0], "0"),
        ([0.999999, 1.0], "99.9 (99.9-100)"),
        ([0.0, 0.0, 0.05], "1.7 (0-5)"),
        ([0.125, 0.125], "12.5"),
    ],
)
def test_what_is_not_all_or_nothing_is_not_written_so(scores, text):
    assert spread_text(scores, " ") == text


def test_the_chance_of_another_training_holds_for_any_scores(make_run):
    """Of k + 1 trainings in any order the last one lies within the range of the others."""
    runs = trainings(make_run, m={512: (20, 20)}, m_2={512: (20, 20)}, m_3={512: (20, 20)})
    [told] = re.findall(r"a chance of at least (\d+)% for 3", " ".join(spread(*runs).caption()))
    for scores in ([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], [0, 1, 1, 1], [0.5, 0.5, 0.6, 0.7]):
        within = [min(some) <= last <= max(some) for *some, last in itertools.permutations(scores)]
        assert sum(within) / len(within) >= int(told) / 100
    assert sum(min(some) <= last <= max(some) for *some, last in itertools.permutations(range(4))) == 12


def test_it_is_a_table_for_documents(make_run):
    table = spread(*trainings(make_run, m={512: (20, 20)}, m_2={512: (19, 20)}))
    assert to_markdown(table).splitlines()[2] == "| m | 2 | 512 | 97.5 (95-100) | \\>=512 |"
    assert "m & 2 & 512 & 97.5 (95-100) & $\\geq$512 \\\\" in to_latex(table)
