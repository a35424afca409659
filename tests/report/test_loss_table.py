import pandas as pd
import pytest
from rich.console import Console

from bamctl.report.export import to_latex, to_markdown
from bamctl.report.loss_table import build_loss_table
from bamctl.report.terminal import print_table
from bamctl.results.means import mean_interval

READING = "text=essays.txt max_len=1k samples=2"


def test_a_row_is_a_model_and_a_context(full_and_sliding):
    table = build_loss_table(full_and_sliding)
    assert table.header() == ["model", "train", "256", "512", "1k"]
    assert [row.label for row in table.rows] == ["tiny, full", "tiny, W512"]
    full, sliding, difference = table.body(intervals=False)
    assert full == ["tiny, full", "512", "3.250 (25.79)", "2.750 (15.64)", "2.375 (10.75)"]
    assert sliding[2:] == ["3.250 (25.79)", "2.750 (15.64)", "2.750 (15.64)"]
    low, high = mean_interval([-0.25, -0.5])
    assert difference == [
        "tiny, full-W512",
        "512",
        "0.000",
        "0.000",
        f"-0.375 ±{(high - low) / 2:.3f}",
    ]
    assert table.common == ("perplexity", READING, "native", "float32", "seed 0")


def test_differences_are_of_pairs_and_not_of_means(make_losses):
    full = make_losses({256: [1.0, None, 9.0]})
    sliding = make_losses({256: [2.0, 5.0, None]}, 128)
    (difference,) = build_loss_table(pd.concat([full, sliding])).differences
    (cell,) = difference.cells
    assert (cell.n, cell.loss, cell.low) == (1, -1.0, None)
    assert build_loss_table(pd.concat([full, sliding])).body(intervals=False)[2][2] == "-1.000"


def test_what_has_no_pair_has_no_difference(make_losses, full_and_sliding):
    sliding = full_and_sliding[full_and_sliding["window"].notna()]
    assert build_loss_table(sliding).differences == ()
    other_text = make_losses({256: [1.0]}, reading="text=other.txt max_len=1k samples=2")
    other_model = make_losses({256: [1.0, 1.0]}, model="other")
    table = build_loss_table(pd.concat([sliding, other_text, other_model]))
    assert table.differences == ()


def test_intervals_and_n_are_told_where_they_are_asked_for(full_and_sliding):
    table = build_loss_table(full_and_sliding)
    low, high = mean_interval([3.0, 3.5])
    assert table.body(intervals=True, separator="|")[0][2] == f"3.250 (25.79) n=2|[{low:.3f}, {high:.3f}]"


def test_one_stretch_has_no_interval(make_losses):
    table = build_loss_table(make_losses({256: [3.0]}))
    assert table.body(intervals=True)[0][2] == "3.000 (20.09) n=1"
    assert table.rows[0].cells[0].low is None


def test_what_failed_and_what_is_not_there_is_told_apart(make_losses):
    short = make_losses({256: [1.0], 300: [None]}, reading="text=a max_len=300 samples=1")
    long = make_losses({256: [1.0], 512: [1.0]}, reading="text=a max_len=512 samples=1")
    table = build_loss_table(pd.concat([short, long]))
    assert table.ends == (256, 300, 512)
    cells = {row[0]: row[2:] for row in table.body(intervals=False)}
    assert list(cells.values()) == [["1.000 (2.72)", "fail", "-"], ["1.000 (2.72)", "-", "1.000 (2.72)"]]
    assert any("failed" in sentence for sentence in table.caption(intervals=False))


def test_models_come_one_after_the_other_each_with_its_widest_window_first(make_losses):
    runs = [
        make_losses({256: [1.0]}, window, model=model) for model in ("b", "a") for window in (128, None, 1024)
    ]
    table = build_loss_table(pd.concat(runs))
    assert [row.label for row in table.rows] == [
        f"{model}, {context}" for model in ("a", "b") for context in ("full", "W1k", "W128")
    ]
    assert [row.label for row in table.differences] == [
        f"{model}, full-W{window}" for model in ("a", "b") for window in ("1k", "128")
    ]


def test_runs_are_told_apart_by_what_differs(make_losses):
    halves = make_losses({256: [1.0]}, dtype="bfloat16")
    table = build_loss_table(pd.concat([make_losses({256: [1.0]}), halves]))
    assert [row.label for row in table.rows] == [
        "tiny, bfloat16, full",
        "tiny, float32, full",
    ]
    again = make_losses({256: [2.0]}, run_id="z")
    labels = [row.label for row in build_loss_table(pd.concat([make_losses({256: [1.0]}), again])).rows]
    assert "tiny, run z, full" in labels
    assert len(set(labels)) == 2


def test_other_samples_are_left_out(full_and_sliding):
    answers = full_and_sliding.assign(metric="exact", task="passkey")
    assert build_loss_table(pd.concat([answers, full_and_sliding])) == build_loss_table(full_and_sliding)
    with pytest.raises(ValueError, match="no row holds a loss"):
        build_loss_table(answers)


@pytest.mark.parametrize(
    ("full", "text"),
    [
        ([2.0], "0.000"),
        ([1.9996], "0.000"),
        ([2.0004], "0.000"),
        ([1.9994], "-0.001"),
        ([2.0006], "+0.001"),
        ([1.9, 2.1], "0.000 ±1.271"),  # nothing on average is not nothing: its interval stays
    ],
)
def test_a_difference_that_rounds_to_nothing_has_no_sign(make_losses, full, text):
    sliding = make_losses({256: [2.0] * len(full)}, 128)
    table = build_loss_table(pd.concat([make_losses({256: full}), sliding]))
    assert table.body(intervals=False)[2][2] == text


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (0.0, "0.000 (1.00)"),
        (4.605, "4.605 (99.98)"),
        (13.8, "13.800 (984609.11)"),
        (14.0, "14.000 (1.20e+06)"),
    ],
)
def test_a_perplexity_has_two_decimals(make_losses, loss, text):
    assert build_loss_table(make_losses({256: [loss]})).body(intervals=False)[0][2] == text


def test_settings_of_one_model_are_told_apart_by_what_differs_in_them(make_losses):
    short = make_losses({256: [1.0]}, reading="text=a b.txt max_len=256 samples=1")
    long = make_losses({256: [1.0], 512: [1.0]}, reading="text=a b.txt max_len=512 samples=1")
    table = build_loss_table(pd.concat([short, long]))
    assert [row.label for row in table.rows] == ["tiny, max_len=256, full", "tiny, max_len=512, full"]
    assert {"text=a b.txt", "samples=1"} < set(table.common)
    other = make_losses({256: [1.0]}, reading="text=c.txt max_len=256 samples=1")
    labels = [row.label for row in build_loss_table(pd.concat([short, other])).rows]
    assert labels == ["tiny, text=a b.txt, full", "tiny, text=c.txt, full"]


def test_a_label_does_not_wrap_on_a_narrow_console(make_losses, capsys):
    full = make_losses({256: [3.0]}, model="small-bam-ssmax")
    sliding = make_losses({256: [3.5]}, 512, model="small-bam-ssmax")
    print_table(build_loss_table(pd.concat([full, sliding])), Console(width=80))
    assert "small-bam-ssmax, full-W512 " in capsys.readouterr().out


def test_a_loss_beyond_all_numbers_has_an_infinite_perplexity(make_losses):
    assert build_loss_table(make_losses({256: [800.0]})).body(intervals=False)[0][2] == "800.000 (inf)"


def test_the_caption_says_what_is_shown(full_and_sliding, make_losses):
    text = " ".join(build_loss_table(full_and_sliding).caption(intervals=False))
    for part in (
        READING,
        "nats a token",
        "over 2 stretches",
        "1k is of the tokens at 512 to 1023",
        "W512: a sliding window of W, the first W as in full",
        "Full-W",
    ):
        assert part in text
    alone = " ".join(build_loss_table(make_losses({256: [1.0]})).caption(intervals=False))
    assert "over 1 stretch of text" in alone
    assert "window" not in alone
    assert "Full" not in alone


@pytest.mark.parametrize("width", [30, 80, 300])
def test_it_is_printed_at_any_width(full_and_sliding, width, capsys):
    print_table(build_loss_table(full_and_sliding), Console(width=width))
    out = capsys.readouterr().out
    assert all(figure in out for figure in ("3.250 (25.79)", "2.375 (10.75)", "-0.375"))


def test_it_is_written_for_other_programs(full_and_sliding):
    table = build_loss_table(full_and_sliding)
    assert "| tiny, full | 512 | 3.250 (25.79) |" in to_markdown(table)
    latex = to_latex(table)
    assert latex.count("\\midrule") == 2
    assert latex.index("\\midrule\ntiny, full-W512") > latex.index("tiny, W512")
