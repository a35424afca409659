import math
from datetime import UTC, datetime

import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.comparison import compare
from bamctl.report.comparison_table import ComparisonTable, DifferingTable, to_frame
from bamctl.results.comparison import holm, mcnemar_p, paired_interval, sign_flip_p
from bamctl.results.frames import to_frame as frame_of
from bamctl.results.journal import rows_table
from bamctl.results.means import count_scores, difference_interval
from bamctl.results.schema import SampleRow

NAMES = ("one", "two")


def make_samples(predictions, run_id="native", *, length=512, **columns) -> pd.DataFrame:
    """A run, from the predictions of its samples, whose answer is 1; "skipped" and "failed" are none."""
    rows = []
    for sample, prediction in enumerate(predictions):
        status = prediction if prediction in ("skipped", "failed") else "done"
        values = {
            "run_id": run_id,
            "row_id": f"{length}-{sample}",
            "model": "tiny",
            "model_digest": "aaaaaaaa11",
            "tokenizer_digest": "t",
            "position_encoding": "ggd",
            "ssmax": True,
            "train_length": 512,
            "backend": "native",
            "device": "cpu",
            "dtype": "float32",
            "task": "passkey",
            "task_digest": "k",
            "variant": "",
            "depth_policy": "equidistant:3",
            "seed": 0,
            "prompt_version": 1,
            "length": length,
            "sample": sample,
            "depth": (50.0,),
            "prompt_digest": f"prompt {length} {sample}",
            "references": ("1",),
            "status": status,
            "error": None if status == "done" else "why",
            "started_at": datetime(2025, 1, 1, tzinfo=UTC),
            "bamctl_version": "0.1.0",
        }
        if status == "done":
            values |= {"prediction": prediction, "exact": prediction == "1", "recall": 1.0}
        rows.append(SampleRow(**(values | columns)))
    return frame_of(rows_table(rows))


def counts(row) -> tuple[int, ...]:
    return row.samples, row.identical, row.only_a_right, row.only_b_right


def left_out(row) -> tuple[int, ...]:
    return row.other_prompt, row.not_done, row.only_in_a, row.only_in_b


def test_samples_are_compared_row_by_row():
    native = make_samples(["1", "1", "2", "3", "4"])
    vllm = make_samples(["1", "2", "1", "3", "5"], "vllm", backend="vllm")
    comparison = compare(native, vllm.sample(frac=1, random_state=0), names=NAMES)
    [row] = comparison.lengths
    assert counts(row) == (5, 2, 1, 1)
    assert left_out(row) == (0, 0, 0, 0)
    assert row.difference.p == row.difference.p_holm == 1.0
    assert not row.alike
    assert not comparison.alike
    assert [sample.row_id for sample in comparison.differing] == ["512-1", "512-2", "512-4"]
    assert comparison.differing[0].predictions == ("1", "2")
    assert comparison.common[0] == "tiny"
    assert "native vs vllm" in comparison.common


def test_equal_results_are_alike():
    comparison = compare(make_samples(["1", "2"]), make_samples(["1", "2"]), names=NAMES)
    assert comparison.alike
    assert comparison.differing == ()
    assert comparison.remarks == ()


def test_lengths_and_all_of_them_together():
    a = pd.concat([make_samples(["1"] * 3), make_samples(["1"] * 2, length=1024)])
    b = pd.concat([make_samples(["1"] * 3), make_samples(["2"] * 2, length=1024)])
    comparison = compare(a, b, names=NAMES)
    assert [(row.length, *counts(row)) for row in comparison.lengths] == [
        (512, 3, 3, 0, 0),
        (1024, 2, 0, 2, 0),
        (None, 5, 3, 2, 0),
    ]
    assert [row[1] for row in ComparisonTable(comparison=comparison, names=NAMES).body()] == [
        "512",
        "1k",
        "all",
    ]
    assert to_frame(comparison)["length"].tolist() == [512, 1024]
    assert to_frame(comparison)["alike"].tolist() == [True, False]


def test_what_is_not_done_in_both_is_never_equal():
    a = make_samples(["1", "skipped", "failed", "1", "skipped", "1"])
    b = make_samples(["1", "skipped", "failed", "skipped", "1"])
    comparison = compare(a, b, names=NAMES)
    [row] = comparison.lengths
    assert counts(row) == (1, 1, 0, 0)
    assert left_out(row) == (0, 4, 1, 0)
    assert comparison.alike  # of what is there
    assert comparison.remarks == (
        "Samples that are not compared: 4 skipped or failed in A or B, 1 only in A.",
    )


@pytest.mark.parametrize("digest", ["another", None])
def test_another_prompt_is_not_compared_and_not_alike(digest):
    a = make_samples(["1", "1"])
    b = make_samples(["1", "1"], tokenizer_digest="u")
    b.loc[1, "prompt_digest"] = digest
    comparison = compare(a, b, names=NAMES)
    [row] = comparison.lengths
    assert counts(row) == (1, 1, 0, 0)
    assert left_out(row) == (1, 0, 0, 0)
    assert not comparison.alike
    text = " ".join(comparison.remarks)
    assert "Their tokenizers differ." in text
    assert "1 whose prompts are not, or not known to be, the same" in text


def test_prompts_that_neither_side_knows_are_not_the_same():
    a, b = (make_samples(["1"], prompt_digest=None) for _ in NAMES)
    with pytest.raises(
        BadInput, match=r"no sample is done in one \(A\) and in two \(B\) from the same prompt; 1 whose"
    ):
        compare(a, b, names=NAMES)


def test_the_largest_difference_of_log_probabilities():
    def difference(of_a, of_b):
        sides = [make_samples(["1"] * len(of_a)).assign(answer_logprob=values) for values in (of_a, of_b)]
        [row] = compare(*sides, names=NAMES).lengths
        return row.logprob_difference

    assert difference([-1.0, -2.0], [-1.25, -1.5]) == 0.5
    assert difference([-1.0, math.nan], [-1.25, -1.5]) == 0.25
    assert difference([-math.inf, -1.0], [-math.inf, -1.0]) == 0.0
    assert difference([-math.inf, -1.0], [-2.0, -1.0]) == math.inf
    assert difference([math.nan, -1.0], [-1.0, math.nan]) is None


def test_ruler_s_tasks_are_right_with_all_references():
    a = make_samples(["x", "x", "x"], metric="string_match_all").assign(recall=[1.0, 0.5, 0.75])
    b = make_samples(["x", "x", "x"], metric="string_match_all").assign(recall=[0.75, 0.75, 1.0])
    [row] = compare(a, b, names=NAMES).lengths
    assert counts(row) == (3, 3, 1, 1)


def test_losses_are_left_out(make_losses):
    losses = make_losses({512: [3.0, 3.5]})
    answers = make_samples(["1"])
    comparison = compare(pd.concat([answers, losses]), answers, names=NAMES)
    assert comparison.alike
    assert "Losses are not compared." in comparison.remarks
    with pytest.raises(BadInput, match=r"^two: has losses alone"):
        compare(answers, losses, names=NAMES)


def test_two_models_on_the_same_samples():
    rope = make_samples(["2", "1"], "rope", model="rope", model_digest="b")
    comparison = compare(make_samples(["1", "1"]), rope, names=NAMES)
    assert counts(comparison.lengths[0]) == (2, 1, 1, 0)
    assert comparison.common[0] == "tiny vs rope"
    assert "Models with different weights are compared." in comparison.remarks


def test_devices_and_versions_that_differ_are_told():
    other = make_samples(["1"], device="cuda:0", bamctl_version="0.2.0")
    comparison = compare(make_samples(["1"]), other, names=NAMES)
    assert comparison.remarks == ("Device: cpu vs cuda:0.", "Version of bamctl: 0.1.0 vs 0.2.0.")


def test_runs_without_a_partner_are_told():
    a = pd.concat([make_samples(["1"]), make_samples(["1", "1"], "other", task="vt", task_digest="v")])
    comparison = compare(a, make_samples(["1"]), names=NAMES)
    assert comparison.remarks == (
        "Samples that are not compared: 2 only in A.",
        "Only A has tiny on vt (native, float32, run other).",
    )


def test_the_table_and_its_caption():
    a = pd.concat([make_samples(["1", "1"]), make_samples(["1"], length=1024)])
    table = ComparisonTable(
        comparison=compare(a, make_samples(["1", "2"], "v", backend="vllm"), names=NAMES), names=NAMES
    )
    header = ["task", "length", "samples", "identical", "only A", "only B", "A-B", "p", "dlogprob"]
    assert table.header() == header
    assert table.body() == [
        ["passkey", "512", "2", "1", "1", "0", "+50.0 [-48.6, 90.5]", "1", "-"],
        ["passkey", "all", "2", "1", "1", "0", "+50.0 [-48.6, 90.5]", "1", "-"],
    ]
    assert table.body(separator="\n")[0][6] == "+50.0\n[-48.6, 90.5]"
    assert table.caption()[:2] == [
        "A: one, B: two.",
        "tiny, depths equidistant:3, native vs vllm, float32, seed 0.",
    ]


def test_tasks_are_told_apart():
    sides = [
        pd.concat(
            [make_samples(["1"], backend=backend), make_samples(["1"], "v", task="vt", backend=backend)]
        )
        for backend in ("native", "vllm")
    ]
    comparison = compare(*sides, names=NAMES)
    assert comparison.subject == "task"
    assert [row.label for row in comparison.lengths] == ["passkey", "vt"]


def differing_body(a: list[str], b: list[str], **columns) -> list[list[str]]:
    comparison = compare(make_samples(a, **columns), make_samples(b, **columns), names=NAMES)
    return DifferingTable(comparison=comparison).body()


def test_differing_samples_are_shown_so_that_the_difference_is_seen():
    assert differing_body(["1"], ["1\n"]) == [["512-0", "512", "50", "1", "'1'", "'1\\n'"]]
    [[*_, a, b]] = differing_body(["x" * 40 + "1"], ["x" * 40 + "2" + "y" * 50])
    assert (a, b) == ("…'xxxxxxxx1'", "…'xxxxxxxx2" + "y" * 23 + "'…")
    [[*_, a, b]] = differing_body(["x" * 32], ["x" * 32 + "1"])
    assert (a, b) == ("…'xxxxxxxx'", "…'xxxxxxxx1'")
    [[*_, reference, _, _]] = differing_body(["1"], ["2"], references=("a" * 20, "b" * 20))
    assert reference == "a" * 20 + ", " + "b" * 10 + "…"


def test_no_more_than_ten_differing_samples_are_shown():
    for count, shown in ((10, 10), (11, 10)):
        comparison = compare(make_samples(["1"] * count), make_samples(["2"] * count), names=NAMES)
        table = DifferingTable(comparison=comparison)
        assert len(table.body()) == shown
        assert str(count) in table.caption()[0]
        assert ("first 10" in table.caption()[0]) == (count > 10)


def test_a_difference_of_right_answers_is_tango_s_and_mcnemar_s():
    a, b = make_samples(["1"] * 9 + ["2"] * 3), make_samples(["1"] * 2 + ["2"] * 8 + ["1"] * 2)
    [row] = compare(a, b, names=NAMES).lengths
    difference = row.difference
    assert counts(row)[2:] == (7, 2)
    assert difference.mean == pytest.approx(5 / 12)
    assert (difference.low, difference.high) == paired_interval(7, 2, 12)
    assert difference.p == mcnemar_p(7, 2)


def test_a_difference_of_recall_is_tested_by_its_mean():
    recalls = [1.0, 0.5, 0.75, 0.5, 1.0, 1.0], [0.75, 0.5, 0.5, 0.25, 0.5, 1.0]
    a, b = (
        make_samples(["x"] * 6, metric="string_match_all").assign(recall=recall, exact=True)
        for recall in recalls
    )
    [row] = compare(a, b, names=NAMES).lengths
    differences = count_scores(first - second for first, second in zip(*recalls, strict=True))
    assert row.difference.mean == pytest.approx(1.25 / 6)
    assert (row.difference.low, row.difference.high) == difference_interval(differences)
    assert row.difference.p == sign_flip_p(differences) == pytest.approx(0.125)  # four of one sign
    assert counts(row)[2:] == (2, 0)


def test_recall_of_nothing_but_right_and_wrong_is_as_right_and_wrong():
    a, b = (
        make_samples(["x"] * 3, metric="string_match_all").assign(recall=recall)
        for recall in ([1.0, 1.0, 0.0], [0.0, 1.0, 0.0])
    )
    [row] = compare(a, b, names=NAMES).lengths
    assert (row.difference.low, row.difference.high) == paired_interval(1, 0, 3)


def test_p_is_adjusted_for_the_lengths_that_are_tested():
    right = {512: 8, 1024: 6, 2048: 7}
    a = pd.concat([make_samples(["1"] * 8, length=length) for length in (*right, 4096)])
    b = pd.concat(
        [
            *(make_samples(["2"] * n + ["1"] * (8 - n), length=length) for length, n in right.items()),
            make_samples(["skipped"] * 8, length=4096),
        ]
    )
    comparison = compare(a, b, names=NAMES)
    *each, nothing, together = comparison.lengths
    ps = [mcnemar_p(n, 0) for n in right.values()]
    assert [row.difference.p for row in each] == ps
    assert [row.difference.p_holm for row in each] == holm(ps) != ps
    assert nothing.difference is None
    assert together.difference.p_holm == together.difference.p == mcnemar_p(21, 0)
    table = ComparisonTable(comparison=comparison, names=NAMES)
    assert table.header()[6:] == ["A-B", "p", "p Holm", "dlogprob"]
    assert [texts[7:9] for texts in table.body()] == [
        ["0.0078", "0.023"],
        ["0.031", "0.031"],
        ["0.016", "0.031"],
        ["9.5e-07", "9.5e-07"],
    ]
    assert "P Holm: adjusted" in table.caption()[-1]
    frame = to_frame(comparison)
    assert frame["p_holm"].tolist()[:3] == holm(ps)
    assert frame.iloc[3][["difference", "difference_low", "difference_high", "p", "p_holm"]].isna().all()
    assert frame["difference"].tolist()[:3] == [1.0, 0.75, 0.875]


def test_no_difference_has_no_sign():
    comparison = compare(make_samples(["1", "2"]), make_samples(["2", "1"]), names=NAMES)
    assert ComparisonTable(comparison=comparison, names=NAMES).body()[0][6].startswith("0.0 [-")
