import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.table import build_table, select_runs


def labels(*runs):
    return [row.label for row in build_table(pd.concat(runs, ignore_index=True)).rows]


def test_runs_are_rows_and_lengths_are_columns(make_run):
    first = make_run({1024: (19, 20), 512: (20, 20)}, "a")
    second = make_run({512: (1, 20), 2048: "skipped", 4096: "failed"}, "b", model="other", train_length=None)
    table = build_table(pd.concat([second, first]))
    assert table.header() == ["model", "train", "512", "1k", "2k", "4k", "effective"]
    assert table.body(intervals=False) == [
        ["other", "-", "5", "-", "skip", "fail", "<512"],
        ["tiny", "512", "100", "95", "-", "-", ">=1k"],
    ]
    assert table.body(intervals=True)[0] == ["other", "-", "5 n=20 [1, 24]", "-", "skip", "fail", "<512"]
    assert table.body(intervals=True, separator="\n")[1][3] == "95 n=20\n[76, 99]"


def test_no_train_length_no_column(make_run):
    table = build_table(make_run({512: (1, 2)}, train_length=None))
    assert table.header() == ["model", "512", "effective"]
    assert table.body(intervals=False) == [["tiny", "50", "<512"]]


@pytest.mark.parametrize(
    ("lengths", "effective"),
    [
        ({512: (20, 20)}, ">=512"),
        ({512: (17, 20), 1024: (20, 20)}, "<512"),
        ({512: (18, 20), 1024: (17, 20), 2048: (20, 20)}, "512"),
        ({512: (20, 20), 1024: (0, 20), 2048: "skipped"}, "512"),
        ({512: (20, 20), 1024: "skipped"}, ">=512"),
        ({512: "skipped"}, "-"),
        ({512: "failed", 1024: (20, 20)}, ">=1k"),
    ],
)
def test_effective_length(make_run, lengths, effective):
    assert build_table(make_run(lengths)).body(intervals=False)[0][-1] == effective


@pytest.mark.parametrize(("threshold", "effective"), [(0.9, ">=1k"), (0.91, "512"), (1.0, "512")])
def test_the_threshold_can_be_another(make_run, threshold, effective):
    table = build_table(make_run({512: (10, 10), 1024: (9, 10)}), threshold=threshold)
    assert table.body(intervals=False)[0][-1] == effective
    assert f"at least {100 * threshold:.0f}" in table.caption(intervals=False)[1]
    assert "RULER" not in " ".join(table.caption(intervals=False))


def test_ruler_s_threshold_is_named(make_run):
    caption = build_table(make_run({512: (1, 1)})).caption(intervals=False)
    assert caption[0] == "passkey, depths equidistant:20, native, float32, seed 0."
    assert "n = 1 at every length" in caption[1]
    assert "at least 85.6% (RULER)" in caption[1]
    assert len(caption) == 2


@pytest.mark.parametrize(
    ("lengths", "texts"),
    [
        ({512: (29, 100), 1024: (7, 100)}, ["29", "7"]),
        ({512: (1, 3), 1024: (3, 3), 2048: (0, 3)}, ["33.3", "100", "0"]),
        ({512: (9999, 10000), 1024: (1, 10000), 2048: (5000, 10000)}, ["99.9", "0.1", "50.0"]),
    ],
)
def test_a_hundred_is_a_hundred_and_zero_is_zero(make_run, lengths, texts):
    assert build_table(make_run(lengths, train_length=None)).body(intervals=False)[0][1:-1] == texts


def test_n_is_told_once_where_it_is_the_same(make_run):
    table = build_table(make_run({512: (1, 20), 1024: (1, 20), 2048: "skipped"}))
    assert "n = 20 at every length" in table.caption(intervals=False)[1]
    assert len(table.body(intervals=False)) == 1


def test_n_has_a_row_where_it_differs(make_run):
    runs = [
        make_run({512: (1, 20), 1024: (1, 10), 2048: "skipped"}, "a"),
        make_run({512: (1, 20), 1024: (1, 20)}, "b", seed=1),
    ]
    table = build_table(pd.concat(runs))
    assert table.body(intervals=False)[-1] == ["n", "", "20", "10-20", "-", ""]
    assert "n in the last row" in table.caption(intervals=False)[1]
    assert len(table.body(intervals=True)) == 2


def test_marks_are_explained_where_they_occur(make_run):
    assert len(build_table(make_run({512: (1, 2)})).caption(intervals=False)) == 2
    runs = [make_run({512: "skipped", 1024: "failed"}, "a"), make_run({512: (1, 2)}, "b", seed=1)]
    caption = build_table(pd.concat(runs)).caption(intervals=False)
    assert caption[-1] == "skip: skipped, fail: failed, -: not part of the run."


def test_samples_that_are_missing_beside_others_are_told(make_run):
    caption = build_table(make_run({512: (1, 2)}, failed=3)).caption(intervals=False)
    assert caption[-1] == "Not counted, at lengths where others are done: 0 skipped, 3 failed."


def test_one_run_is_called_by_its_model(make_run):
    assert labels(make_run({512: (1, 1)}, variant="haystack essays")) == ["tiny"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"model": "other"}, ["other", "tiny"]),
        ({"task": "niah_single_1"}, ["tiny, niah_single_1", "tiny, passkey"]),
        ({"variant": "haystack essays"}, ["tiny", "tiny, haystack essays"]),
        ({"depth_policy": "random"}, ["tiny, depths equidistant:20", "tiny, depths random"]),
        ({"backend": "vllm"}, ["tiny, native", "tiny, vllm"]),
        ({"dtype": "bfloat16"}, ["tiny, bfloat16", "tiny, float32"]),
        ({"seed": 1}, ["tiny, seed 0", "tiny, seed 1"]),
        ({"model_digest": "sha256:fedcba9876"}, ["tiny @0123456", "tiny @fedcba9"]),
        ({}, ["tiny, run a", "tiny, run b"]),
        ({"seed": 1, "dtype": "bfloat16"}, ["tiny, bfloat16, seed 1", "tiny, float32, seed 0"]),
    ],
)
def test_a_label_says_in_what_runs_differ_and_nothing_else(make_run, columns, expected):
    first, second = make_run({512: (1, 1)}, "a"), make_run({512: (0, 1)}, "b", **columns)
    assert labels(first, second) == labels(second, first) == expected


def test_no_two_runs_are_ever_one_row(make_run):
    runs = [
        make_run({512: (1, 1)}, f"{model}{digest}{seed}", model=model, model_digest=digest, seed=seed)
        for model in ("m", "n")
        for digest in ("d" * 16, "d" * 15 + "e")  # alike in the part that is shown
        for seed in (0, 1)
    ]
    assert len(set(labels(*runs))) == len(runs)


def test_what_differs_is_not_in_the_caption(make_run):
    runs = pd.concat([make_run({512: (1, 1)}, "a"), make_run({512: (1, 1)}, "b", seed=1)])
    assert build_table(runs).caption(intervals=False)[0] == "passkey, depths equidistant:20, native, float32."


@pytest.mark.parametrize(
    ("tasks", "models", "runs"),
    [
        ([], [], "abc"),
        (["passkey"], [], "ab"),
        (["niah_*"], [], "c"),
        (["passkey", "niah_single_1"], ["tiny"], "ac"),
        ([], ["x[1]"], "b"),
        (["niah_*"], ["x[1]"], ""),
    ],
)
def test_runs_are_chosen_by_name_or_pattern(make_run, tasks, models, runs):
    accuracy = pd.concat(
        [
            make_run({512: (1, 1)}, "a"),
            make_run({512: (1, 1)}, "b", model="x[1]"),
            make_run({512: (1, 1)}, "c", task="niah_single_1"),
        ]
    )
    assert "".join(select_runs(accuracy, tasks=tasks, models=models)["run_id"]) == runs


def test_an_unknown_name_is_one_line(make_run):
    accuracy = make_run({512: (1, 1)})
    with pytest.raises(BadInput, match=r"^no results of task 'paskey' \(did you mean passkey\?\)$"):
        select_runs(accuracy, tasks=["paskey"], models=[])
    with pytest.raises(BadInput, match=r"^no results of model 'llama' \(known: tiny\)$"):
        select_runs(accuracy, tasks=[], models=["llama"])
