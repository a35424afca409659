import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.precision import what_n_tells
from bamctl.report.table import build_table
from bamctl.results.means import average_interval, count_scores, recall_interval


def with_recalls(accuracy, recalls):
    """The rows with what their samples scored, task and length → recalls, from which the score follows."""
    accuracy = accuracy.copy()
    for row, (task, length) in enumerate(zip(accuracy["task"], accuracy["length"], strict=True)):
        scores = count_scores(recalls[task, length])
        accuracy.at[row, "recall_values"] = list(scores.values)
        accuracy.at[row, "recall_counts"] = list(scores.counts)
        low, high = recall_interval(scores)
        accuracy.loc[row, ["n", "score", "score_low", "score_high"]] = scores.n, scores.mean, low, high
    return accuracy


def said(accuracy, **options):
    """The caption without what the number of samples tells, which stands behind all else."""
    caption = build_table(accuracy).caption(**options)
    return [
        sentence for sentence in caption if " right have an" not in sentence and " apart; " not in sentence
    ]


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
    assert table.body(intervals=True)[0] == [
        *("other", "-", "5 n=20 [1, 24]", "-", "skip", "fail", "<512 [<512, <512]")
    ]
    assert table.body(intervals=True, separator="\n")[1][3] == "95 n=20\n[76, 99]"


def test_no_train_length_no_column(make_run):
    table = build_table(make_run({512: (1, 2)}, train_length=None, depth_policy="random"))
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
    run = make_run({512: (10, 10), 1024: (9, 10)}, depth_policy="random")
    table = build_table(run, threshold=threshold)
    assert table.body(intervals=False)[0][-1] == effective
    assert f"at least {100 * threshold:.0f}" in table.caption(intervals=False)[1]
    assert "RULER" not in " ".join(table.caption(intervals=False))


def test_ruler_s_threshold_is_named(make_run):
    caption = said(make_run({512: (1, 1)}, depth_policy="equidistant:1"), intervals=False)
    assert caption[0] == "passkey, depths equidistant:1, native, float32, seed 0."
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
    run = make_run(lengths, train_length=None, depth_policy="random")
    assert build_table(run).body(intervals=False)[0][1:-1] == texts


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
    assert len(said(make_run({512: (2, 2)}, depth_policy="random"), intervals=False)) == 2
    runs = [make_run({512: "skipped", 1024: "failed"}, "a"), make_run({512: (1, 20)}, "b", seed=1)]
    caption = said(pd.concat(runs), intervals=False)
    assert caption[-1] == "skip: skipped, fail: failed, -: not part of the run."


def test_samples_that_are_missing_beside_others_are_told(make_run):
    caption = said(make_run({512: (1, 17)}, failed=3), intervals=False)
    assert caption[-1] == "Not counted, at lengths where others are done: 0 skipped, 3 failed."


def test_one_run_is_called_by_its_model(make_run):
    assert labels(make_run({512: (1, 1)}, variant="haystack essays")) == ["tiny"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"model": "other"}, ["other", "tiny"]),
        ({"task": "niah_single_1"}, ["passkey", "niah_single_1"]),
        ({"task": "niah_single_1", "model": "m"}, ["tiny, passkey", "m, niah_single_1"]),
        ({"task": "niah_single_1", "seed": 1}, ["passkey, seed 0", "niah_single_1, seed 1"]),
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


def test_ruler_s_averages_stand_below_the_tasks_in_ruler_s_order(three_tasks):
    table = build_table(three_tasks)
    assert table.header() == [
        *("task", "train", "4k", "8k", "16k", "effective", "Avg.", "wAvg (inc)", "wAvg (dec)")
    ]
    assert table.body(intervals=False) == [
        ["niah_single_1", "512", "100", "90", "80", "8k", "", "", ""],
        ["niah_multiquery", "512", "90", "60", "3", "4k", "", "", ""],
        ["vt", "512", "80", "60", "40", "<4k", "", "", ""],
        # (90 + 70 + 41) / 3, (1·90 + 2·70 + 3·41) / 6, (3·90 + 2·70 + 1·41) / 6
        ["average of 3 tasks", "512", "90.0", "70.0", "41.0", "4k", "67.0", "58.8", "75.2"],
    ]
    assert table.body(intervals=True)[3] == table.body(intervals=False)[3]
    assert table.body(intervals=True)[0][2] == "100 n=20 [84, 100]"
    assert len(table.scores()) == 4
    assert table.scores()[3] == (pytest.approx(0.9), pytest.approx(0.7), pytest.approx(0.41))


def test_the_caption_of_ruler_s_tasks(three_tasks):
    caption = said(three_tasks, intervals=False)
    assert caption[0] == "tiny, depths equidistant:20, native, float32, seed 0."
    assert caption[1].startswith("RULER's score (recall) in %, n = 20 at every length. Effective: ")
    assert caption[2].startswith(
        "Averages are RULER's: over tasks at each length, and of these over lengths, "
    )
    assert caption[3] == "Cut off by the limit of tokens to generate: 63 of 180 answers."
    assert len(caption) == 4


def test_a_length_lies_on_the_threshold_by_its_average(make_ruler):
    table = build_table(make_ruler({"vt": (85.6, 85.5), "cwe": (85.6, 85.7), "fwe": (85.6, 85.6)}))
    assert [texts[-4] for texts in table.body(intervals=False)] == ["4k", ">=8k", ">=8k", ">=8k"]


def test_exact_answers_and_ruler_s_score_in_one_table(three_tasks, make_run):
    runs = pd.concat([three_tasks, make_run({4096: (19, 20)}, "passkey")])
    table = build_table(runs)
    assert [row.label for row in table.rows] == ["passkey", "niah_single_1", "niah_multiquery", "vt"]
    caption = said(runs, intervals=True)
    assert caption[1].startswith(
        "Exact answers in % (passkey), RULER's score (recall) in % (the other tasks), with the number of"
        " samples n and the 95% interval (Wilson's where each sample is right or wrong, else a bootstrap's"
        " over samples)."
    )
    assert caption[-1] == "Cut off by the limit of tokens to generate: 63 of 180 answers to RULER's tasks."
    assert "Averages are RULER's" in caption[2]


def test_an_answer_to_passkey_is_never_said_to_be_cut_off(make_run):
    assert "ut off" not in " ".join(
        build_table(make_run({512: (1, 20)}, cut_off=20)).caption(intervals=False)
    )


def test_nothing_is_said_where_no_answer_was_cut_off(three_tasks):
    three_tasks["cut_off"] = 0
    assert "ut off" not in " ".join(build_table(three_tasks).caption(intervals=False))


def test_an_average_that_is_not_at_every_length_is_told(three_tasks):
    table = build_table(three_tasks.iloc[:-1])
    (average,) = table.averages
    assert average.scores[-1] is None
    assert table.body(intervals=False)[-1][table.first_length + 2] == "-"
    assert (
        "The average over 3 tasks is of lengths that all of them have: niah_multiquery lacks 16k."
        in table.caption(intervals=False)
    )


def test_a_missing_average_is_told_in_one_line(make_ruler):
    table = build_table(make_ruler({"vt": (80.0,), "cwe": (None, 40.0)}))
    assert table.averages == ()
    assert table.header()[-1] == "effective"
    caption = table.caption(intervals=False)
    assert "No average over 2 tasks: vt lacks 8k; cwe lacks 4k." in caption
    assert not any("Averages are" in sentence for sentence in caption)


def test_averages_of_several_models_say_whose_they_are(three_tasks, make_ruler):
    other = make_ruler({"vt": (50.0,), "cwe": (60.0,)}, model="m", seed=1)
    table = build_table(pd.concat([three_tasks, other]))
    assert table.subject == "model"
    assert [(row.label, row.scores[1:]) for row in table.averages] == [
        ("tiny, average of 3 tasks, seed 0", (pytest.approx(0.7), pytest.approx(0.41))),
        ("m, average of 2 tasks, seed 1", (None, None)),
    ]
    (_, texts) = table.body(intervals=False)[-2:]
    assert texts == [
        "m, average of 2 tasks, seed 1",
        "512",
        "55.0",
        "-",
        "-",
        "<4k",
        "55.0#",
        "55.0#",
        "55.0#",
    ]
    assert "Averages with # are over 4k only: m, average of 2 tasks, seed 1." in table.caption(
        intervals=False
    )


def test_with_the_threshold_the_averages_effective_length_changes(three_tasks):
    assert build_table(three_tasks, threshold=0.7).body(intervals=False)[-1][5] == "8k"
    assert build_table(three_tasks, threshold=0.4).body(intervals=False)[-1][5] == ">=16k"


@pytest.mark.parametrize(
    ("exact", "columns", "marked"),
    [
        (94, {}, True),
        (95, {}, False),
        (94, {"metric": "string_match_all", "task": "vt"}, False),
        (94, {"train_length": 1024}, False),
        (94, {"train_length": None}, False),
    ],
)
def test_who_has_not_learned_its_train_length_is_marked(make_run, exact, columns, marked):
    table = build_table(make_run({512: (exact, 100), 2048: (0, 100)}, **columns))
    assert [row.learned for row in table.rows] == [not marked]
    assert table.body(intervals=False)[0][0] == ("tiny *" if marked else "tiny")
    said = [sentence for sentence in table.caption(intervals=False) if sentence.startswith("* below 95%")]
    assert len(said) == marked


def test_a_train_length_that_was_skipped_says_nothing(make_run):
    assert build_table(make_run({512: "skipped", 1024: (0, 20)})).rows[0].learned


def test_depths_that_go_with_the_task_are_told_once(make_run, three_tasks):
    ruler = three_tasks.assign(depth_policy="ruler")
    runs = [ruler, make_run({4096: (1, 1)}, "a"), make_run({4096: (1, 1)}, "b", model="m")]
    table = build_table(pd.concat(runs))
    assert [row.label for row in table.rows][:3] == ["m, passkey", "tiny, passkey", "tiny, niah_single_1"]
    assert table.common == ("depths equidistant:20 (passkey), ruler (the other tasks)", *table.common[1:])
    other = make_run({4096: (1, 1)}, "c", depth_policy="random")
    assert build_table(pd.concat([*runs, other])).rows[0].label == "m, passkey, depths equidistant:20"


def test_averages_alone_are_a_row_a_model(three_tasks, make_ruler, make_run):
    models = [
        three_tasks.assign(model=name, model_digest=name, run_id=three_tasks["run_id"] + name)
        for name in "ba"
    ]
    passkey = make_run({512: (1, 20)}, "passkey")
    table = build_table(pd.concat([*models, passkey]), averages_only=True)
    assert table.header()[:5] == ["model", "train", "4k", "8k", "16k"]
    assert [texts[:3] for texts in table.body(intervals=False)] == [
        ["a", "512", "90.0"],
        ["b", "512", "90.0"],
    ]
    assert len(table.scores()) == 2
    caption = [sentence for sentence in table.caption(intervals=False) if " apart; " not in sentence]
    assert caption[0] == "average of 3 tasks, depths equidistant:20, native, float32, seed 0."
    assert caption[1].startswith("RULER's score (recall) in %, n = 20 at every length.")
    assert "Tasks: niah_single_1, niah_multiquery, vt." in caption
    assert caption[-1] == "Cut off by the limit of tokens to generate: 126 of 360 answers."


def test_averages_alone_over_other_tasks_say_over_which(three_tasks, make_ruler):
    other = make_ruler({"vt": (50.0,), "cwe": (60.0,)}, model="m")
    table = build_table(pd.concat([three_tasks, other]), averages_only=True)
    labels = [row.label for row in table.averages]
    assert labels == ["m, average of 2 tasks", "tiny, average of 3 tasks"]
    assert "Tasks of m, average of 2 tasks: vt, cwe." in table.caption(intervals=False)


def test_without_averages_there_is_no_table_of_them(make_ruler):
    with pytest.raises(BadInput, match=r"^there are no averages: vt lacks 8k; cwe lacks 4k$"):
        build_table(make_ruler({"vt": (80.0,), "cwe": (None, 40.0)}), averages_only=True)


@pytest.mark.parametrize(
    ("lengths", "effective"),
    [
        # Wilson's lower end is above 85.6% from 23 of 23, its upper end below it up to 14 of 20.
        ({512: (23, 23), 1024: (23, 23)}, ">=1k [1k, >=1k]"),
        ({512: (23, 23), 1024: (22, 22)}, ">=1k [512, >=1k]"),
        ({512: (22, 22), 1024: (23, 23)}, ">=1k [<512, >=1k]"),
        ({512: (100, 100), 1024: (15, 20), 2048: (14, 20)}, "512 [512, 1k]"),
        ({512: (14, 20), 1024: (20, 20)}, "<512 [<512, <512]"),
        ({512: (100, 100), 1024: "skipped", 2048: (0, 20)}, "512 [512, 512]"),
        ({512: "skipped"}, "-"),
    ],
)
def test_the_effective_length_has_an_interval(make_run, lengths, effective):
    run = make_run(lengths)
    table = build_table(run.assign(failed=100 - run["n"] - run["skipped"]))  # each length is finished
    assert table.body(intervals=True)[0][-1] == effective
    assert table.body(intervals=True, separator="\n")[0][-1] == effective.replace(" ", "\n", 1)
    assert table.body(intervals=False)[0][-1] == effective.split(" ")[0]
    assert "In brackets: " in " ".join(table.caption(intervals=True))
    assert "In brackets: " not in " ".join(table.caption(intervals=False))


RECALLS = {
    **{("vt", length): [1.0, 0.75, 0.75, 1.0] * 10 for length in (4096, 8192)},
    **{("cwe", length): [0.5, 1.0, 1.0, 1.0] * 10 for length in (4096, 8192)},
}


def test_averages_have_intervals(make_ruler):
    runs = with_recalls(make_ruler({"vt": (90.0, 90.0), "cwe": (90.0, 90.0)}), RECALLS)
    cells = [count_scores(RECALLS[task, 4096]) for task in ("vt", "cwe")]
    low, high = average_interval(tuple(cells))
    between = f"[{100 * low:.0f}, {100 * high:.0f}]"
    *_, average = build_table(runs, threshold=0.84).body(intervals=True)
    assert average[2:4] == [f"87.5 {between}"] * 2
    assert average[4] == f">=8k [{'<4k' if low < 0.84 else '8k'}, >=8k]"
    assert [text.split(" ")[0] for text in average[5:]] == ["87.5"] * 3
    rising, falling = (
        average_interval((*cells, *cells), weights)
        for weights in ((1 / 6, 1 / 6, 1 / 3, 1 / 3), (1 / 3, 1 / 3, 1 / 6, 1 / 6))
    )
    for text, (from_, to) in ((average[6], rising), (average[7], falling)):
        assert text == f"87.5 [{100 * from_:.0f}, {100 * to:.0f}]"
    plain = build_table(runs).body(intervals=False)[-1]
    assert not any("[" in text for text in plain)


def test_averages_alone_have_intervals_and_say_which(make_ruler):
    runs = with_recalls(make_ruler({"vt": (90.0, 90.0), "cwe": (90.0, 90.0)}), RECALLS)
    table = build_table(runs, averages_only=True)
    assert all("[" in text for text in table.body(intervals=True)[0][2:])
    caption = table.caption(intervals=True)
    assert ", with the 95% interval of a bootstrap over the samples of each task. Effective" in caption[1]
    assert not any(" apart; " in text for text in caption)  # n says little of a mean over tasks
    assert not any("--intervals" in text for text in caption)
    assert table.caption(intervals=False)[-1] == "--intervals says how precise the averages are."


def test_an_average_of_unknown_samples_has_no_interval(three_tasks):
    *_, average = build_table(three_tasks).body(intervals=True)
    assert average == build_table(three_tasks).body(intervals=False)[-1]


def test_what_few_samples_tell():
    assert what_n_tells(20, 0.856) == [
        (
            "n = 20 tells lengths that differ by 43 points apart; 10 points take n = 392 (two-sided 5%, power"
            " 80%, scores near 50; else fewer)."
        ),
        "Even 20 of 20 right have an interval from 83.9%, below 85.6%; that takes n = 23.",
    ]
    assert what_n_tells(1, 0.5)[0].startswith("n = 1 tells no lengths apart; 10 points take n = 392")
    assert [len(what_n_tells(n, 0.856)) for n in (22, 23, 391, 392)] == [2, 1, 1, 0]
    assert what_n_tells(392, 1.0) == ["No number of samples puts an interval wholly at 100%."]


def test_what_the_fewest_samples_tell_is_said_once(make_run):
    runs = [
        make_run({512: (1, 20), 1024: (1, 21)}, "a"),
        make_run({512: (1, 21), 1024: "skipped"}, "b", seed=1),
        make_run({512: (1, 21), 1024: (1, 4)}, "c", seed=2),  # not finished
    ]
    runs[0].loc[0, "failed"] = 1
    caption = build_table(pd.concat(runs)).caption(intervals=False)
    (sentence,) = [sentence for sentence in caption if " apart; " in sentence]
    assert sentence.startswith("The smallest n, 20, tells lengths that differ by 43 points apart; ")
    caption = build_table(runs[2].iloc[1:]).caption(intervals=False)
    assert caption[-2].startswith("n = 4 tells lengths that")
    assert not any(
        " apart; " in text for text in build_table(make_run({512: "skipped"})).caption(intervals=False)
    )
    assert not any(
        " n = " in text for text in build_table(make_run({512: (400, 400)})).caption(intervals=False)[2:]
    )


def test_counts_that_are_null_are_nothing_and_not_zero(make_run):
    run = make_run({512: "skipped", 1024: (5, 20)}).astype({"cut_off": "Int64", "exact_count": "Int64"})
    run.loc[0, ["cut_off", "exact_count"]] = pd.NA
    (row,) = build_table(run).rows
    assert (row.cells[0].score, row.cells[0].interval, row.scores[1]) == (None, None, 0.25)
    assert build_table(run).body(intervals=True)[0][2] == "skip"


UNFINISHED = (
    "The deepest needles are asked first, so these need not be a fair sample, and the effective length ends"
)


@pytest.mark.parametrize(
    ("lengths", "policy", "texts", "of"),
    [
        ({512: (4, 4)}, "equidistant:20", ["~100", "-"], "4 of 20"),
        ({512: (19, 19)}, "equidistant:20", ["~100", "-"], "19 of 20"),
        ({512: (20, 20)}, "equidistant:20", ["100", ">=512"], None),
        ({512: (4, 4)}, "random", ["100", ">=512"], None),
        ({512: (20, 20), 1024: (4, 4)}, "0,50,100", ["100", "~100", ">=512"], "4 of 20"),
        ({512: (0, 20), 1024: (4, 4)}, "0,50,100", ["0", "~100", "<512"], "4 of 20"),
        ({512: (4, 4), 1024: (20, 20)}, "random", ["~100", "100", "-"], "4 of 20"),
        (
            {512: (20, 20), 1024: (4, 4), 2048: (3, 3)},
            "random",
            ["100", "~100", "~100", ">=512"],
            "3-4 of 20",
        ),
        # More samples than depths: each depth has several.
        ({512: (40, 40), 1024: (20, 20)}, "equidistant:20", ["100", "~100", ">=512"], "20 of 40"),
        ({512: (20, 20), 1024: "skipped"}, "equidistant:20", ["100", "skip", ">=512"], None),
        ({512: (40, 40), 1024: "skipped"}, "equidistant:20", ["100", "skip", ">=512"], None),
        ({512: (40, 40), 1024: "failed"}, "random", ["100", "~fail", ">=512"], "20 of 40"),
    ],
)
def test_a_length_that_is_not_finished_is_marked_and_not_effective(make_run, lengths, policy, texts, of):
    table = build_table(make_run(lengths, train_length=None, depth_policy=policy))
    assert table.body(intervals=False)[0][1:] == texts
    with_intervals = table.body(intervals=True)[0][1:]
    assert [text.split(" ")[0] for text in with_intervals] == texts
    told = [text for text in table.caption(intervals=False) if text.startswith("~: ")]
    assert told == ([] if of is None else [f"~: not finished, {of} samples. {UNFINISHED} before them."])


def test_the_effective_length_s_interval_ends_before_what_is_not_finished(make_run):
    table = build_table(make_run({512: (100, 100), 1024: (30, 30)}, depth_policy="random"))
    assert table.body(intervals=True)[0][-1] == ">=512 [512, >=512]"


def test_failed_and_skipped_samples_need_no_more_work(make_run):
    run = make_run({512: (17, 17)}, failed=2)
    assert build_table(run).body(intervals=False)[0][2] == "~100"
    for column in ("failed", "skipped"):
        assert build_table(run.assign(**{column: 3})).body(intervals=False)[0][2] == "100"


def test_fail_is_explained_where_it_is_not_finished_too(make_run):
    table = build_table(make_run({512: "failed"}, depth_policy="equidistant:40"))
    assert "fail: failed." in table.caption(intervals=False)


def test_an_average_over_a_task_that_is_not_finished_is_marked(make_ruler):
    runs = make_ruler({"vt": (100.0, 100.0), "cwe": (100.0, 100.0)})
    whole = build_table(runs).body(intervals=False)[-1]
    assert whole[2:] == ["100", "100", ">=8k", "100", "100", "100"]
    runs.loc[runs["task"].eq("cwe") & runs["length"].eq(8192), "n"] = 4
    for table in (build_table(runs), build_table(runs, averages_only=True)):
        assert table.averages[0].unfinished == (False, True)
        average = [texts for texts in table.body(intervals=False) if texts[0] != "n"][-1]
        assert average[2:] == ["100", "~100", ">=4k", "~100", "~100", "~100"]
        assert any(text.startswith("~: not finished, 4 of 20") for text in table.caption(intervals=False))


def test_averages_over_fewer_lengths_than_others_are_marked_and_told_once_a_case(make_ruler):
    models = {"a": (90.0, 80.0, 70.0), "b": (90.0, 80.0), "c": (90.0, None), "d": (90.0, 80.0, None)}
    runs = [make_ruler({"vt": scores, "cwe": scores}, model=model) for model, scores in models.items()]
    table = build_table(pd.concat(runs), averages_only=True)
    assert [texts[-3] for texts in table.body(intervals=False)] == ["80.0", "85.0#", "90.0#", "85.0#"]
    caption = table.caption(intervals=False)
    assert [text for text in caption if "#" in text] == [
        "Averages with # are over 4k, 8k only: b; d.",
        "Averages with # are over 4k only: c.",
    ]
    assert not any("lacks" in text for text in caption)
    alike = build_table(pd.concat([runs[1], runs[3]]), averages_only=True)
    assert not any("#" in text for texts in alike.body(intervals=False) for text in texts)
    assert any("lacks 16k" in text for text in alike.caption(intervals=False))


def test_the_mark_of_fewer_lengths_stands_before_the_interval(make_ruler):
    runs = with_recalls(make_ruler({"vt": (90.0, 90.0), "cwe": (90.0, 90.0)}), RECALLS)
    more = make_ruler({"vt": (90.0, 90.0, 90.0), "cwe": (90.0, 90.0, 90.0)}, model="z")
    row = build_table(pd.concat([runs, more]), averages_only=True).body(intervals=True)[0]
    assert all(text.startswith("87.5# [") for text in row[-3:])


def test_a_length_that_has_not_begun_is_not_said_to_be_no_part_of_the_run(make_run):
    other = make_run({512: (20, 20), 1024: (20, 20)}, "b", seed=1)
    for n, meaning in ((4, "not part of the run or not begun"), (20, "not part of the run")):
        caption = build_table(pd.concat([make_run({512: (n, n)}, "a"), other])).caption(intervals=False)
        assert f"-: {meaning}." in caption
