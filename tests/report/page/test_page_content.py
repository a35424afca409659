import pandas as pd
import pytest

from bamctl.report.depths import depth_rows
from bamctl.report.loss_table import build_loss_table
from bamctl.report.page.content import collect
from bamctl.report.page.looks import ON_DARK
from bamctl.report.page.texts import score_step, visible, whole_percent
from bamctl.report.style import COLOURS, ENCODING_COLOURS, OTHER_COLOURS
from bamctl.report.table import build_table
from bamctl.report.terminal import SCALE, score_style
from bamctl.results.statistics import accuracy_table


def content_of(samples, threshold=0.856):
    return collect(samples, depth_rows(samples), threshold=threshold)


@pytest.fixture(scope="module")
def some_content(some_samples):
    return content_of(some_samples)


def lines_of(chapter):
    return [line for group in chapter.groups for line in group.lines]


def test_texts_are_the_tables(some_samples, some_content):
    """Each cell, with intervals and without, and what stands before the lengths and behind them."""
    (chapter,) = some_content.chapters
    table = build_table(accuracy_table(some_samples), threshold=0.856)
    first, last = table.first_length, table.first_length + len(table.lengths)
    for intervals in (False, True):
        rows = []
        for line in lines_of(chapter):
            points = [
                "-" if point is None else point.interval if intervals else point.text for point in line.points
            ]
            rows.append([*line.before, *points, *(line.interval_after if intervals else line.after)])
        body = [[text.replace(">=", "≥") for text in texts[1:]] for texts in table.body(intervals=intervals)]
        assert rows == body[: len(rows)]
        assert len(rows) == len(table.rows) + len(table.averages)
    assert list(chapter.names) == table.header()[first:last]
    assert chapter.caption == tuple(text.replace(">=", "≥") for text in table.caption(intervals=False))
    assert chapter.interval_caption != chapter.caption


def test_the_caption_tells_where_n_is(make_answers):
    """The table of the terminal has it in its last row, which the page has not."""
    even = make_answers({512: [1.0, 1.0], 1024: [1.0, 0.0]})
    uneven = make_answers({512: [1.0, 1.0], 1024: [1.0]})
    captions = [content_of(samples).chapters[0].caption[1] for samples in (even, uneven)]
    assert captions[0].startswith("Exact answers in %, n = 2 at every length. Effective")
    assert captions[1].startswith('Exact answers in %, n with "n and 95% intervals". Effective')


def test_values_are_the_accuracy_tables(some_samples, some_content):
    content = some_content
    expected = accuracy_table(some_samples).set_index(["run_id", "length"])
    (chapter,) = content.chapters
    compared = 0
    for line in lines_of(chapter):
        if len(line.runs) > 1:
            continue
        for length, point in zip(chapter.lengths, line.points, strict=True):
            if point is None:
                continue
            row = expected.loc[(content.run_ids[line.runs[0]], length)]
            if row["n"] == 0:
                assert (point.value, point.low, point.step) == (None, None, None)
                assert point.detail == "4 skipped"
                continue
            assert (point.value, point.low, point.high) == (row["score"], row["score_low"], row["score_high"])
            assert f"n = {row['n']}" in point.detail
            compared += 1
    assert compared == 3 + 4 + 2 + 2


def test_groups_are_what_can_be_compared(some_content):
    content = some_content
    (chapter,) = content.chapters
    assert [group.title for group in chapter.groups] == [
        "passkey",
        "niah_single_1",
        "niah_multivalue",
        "average of 2 tasks",
    ]
    average = chapter.groups[-1]
    assert {content.tasks[task] for task in average.tasks} == {"niah_single_1", "niah_multivalue"}
    assert {content.run_ids[run] for run in average.lines[0].runs} == {
        "small-bam-niah_single_1",
        "small-bam-niah_multivalue",
    }
    assert {content.models[line.model] for line in chapter.groups[0].lines} == {"small-bam", "small-rope"}
    assert content.models == ("small-bam", "small-rope")
    assert content.names == ("512", "1k", "2k", "4k")


def test_a_run_is_told_from_its_like(make_answers):
    """Two runs of one model at other seeds: two lines, of one model."""
    samples = pd.concat(
        [make_answers({512: [1.0]}), make_answers({512: [0.0]}, seed=1, run_id="other")], ignore_index=True
    )
    content = content_of(samples)
    assert [line.label for line in lines_of(content.chapters[0])] == [
        "small-bam, seed 0",
        "small-bam, seed 1 *",
    ]
    assert content.models == ("small-bam",)


def test_what_is_not_learned_is_marked(make_answers):
    (chapter,) = content_of(make_answers({512: [1.0, 0.0]})).chapters
    (line,) = lines_of(chapter)
    assert line.label == "small-bam *"
    assert line.look.hollow


def test_losses_have_a_chapter(full_and_sliding):
    (chapter,) = content_of(full_and_sliding).chapters
    table = build_loss_table(full_and_sliding)
    assert chapter.kind == "losses"
    lines = lines_of(chapter)
    assert [line.label for line in lines] == ["tiny, full", "tiny, W512", "tiny, full-W512"]
    assert [[point.text for point in line.points] for line in lines] == [
        texts[table.first_length :] for texts in table.body(intervals=False)
    ]
    assert [line.look is None for line in lines] == [False, False, True]
    assert [line.look.dashed for line in lines[:2]] == [False, True]
    assert lines[0].points[0].value == table.rows[0].cells[0].loss


def test_scores_and_losses_beside_each_other(make_answers, full_and_sliding):
    content = content_of(
        pd.concat([make_answers({512: [1.0], 1024: ["failed"]}), full_and_sliding], ignore_index=True)
    )
    assert [chapter.kind for chapter in content.chapters] == ["scores", "losses"]
    assert content.names == ("256", "512", "1k")
    assert len(content.run_ids) == 3
    assert [content.tasks[task] for task in content.chapters[1].groups[0].tasks] == ["perplexity"]


def test_heatmaps(some_content):
    heatmaps = some_content.heatmaps
    first = heatmaps.maps[0]
    assert first.depths == ("0", "33", "67", "100")
    assert first.lengths == (512, 1024, 2048, 4096)
    assert [[cell and cell.text for cell in row] for row in first.cells] == [
        ["100", "100", "100", None],
        ["100", "100", "0", None],
        ["100", "100", "0", None],
        ["100", "0", "0", None],
    ]
    assert first.cells[0][0].detail == "100%, n = 1"
    assert heatmaps.left_out == ("niah_multivalue",)


def test_no_heatmap_at_all(make_answers):
    heatmaps = content_of(make_answers({512: [1.0]}, task="vt", needle_count=5)).heatmaps
    assert (heatmaps.maps, heatmaps.left_out) == ((), ("vt",))


def test_runs_say_once_what_they_share(some_content):
    runs = some_content.runs
    common = dict(runs.common)
    assert (common["backend"], common["train length"]) == ("native", "512")
    assert "task" not in common
    table = pd.DataFrame(runs.rows, columns=runs.header)
    assert list(table["run"]) == list(some_content.run_ids)
    row = table.iloc[0]
    assert (row["task"], row["position encoding"]) == ("passkey", "ggd")
    assert (row["done"], row["skipped"], row["failed"]) == ("12", "4", "0")
    assert row["mean prefill (s)"] == "0.25"
    assert row["peak memory (MB)"] == ""
    assert (row["first sample (UTC)"], row["last sample (UTC)"]) == ("2025-05-28 12:00", "2025-05-28 12:03")


def test_every_colour_of_a_figure_has_its_like_on_dark_ground():
    assert set(ON_DARK) == {*COLOURS, *ENCODING_COLOURS.values(), *OTHER_COLOURS}
    assert len(set(ON_DARK.values())) == len(ON_DARK)


@pytest.mark.parametrize("score", [0.0, 0.19, 0.2, 0.5, 0.79, 0.8, 0.999, 1.0])
def test_steps_of_the_scale_are_the_terminals(score):
    assert score_style(score).endswith(SCALE[score_step(score)])


@pytest.mark.parametrize(
    ("score", "text"),
    [(0.0, "0"), (0.001, "1"), (0.5, "50"), (0.994, "99"), (0.999, "99"), (1.0, "100")],
)
def test_zero_and_hundred_are_kept_for_what_is_exactly_that(score, text):
    assert whole_percent(score) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x00\x1b[31m\r", "␀␛[31m␍"),
        ("\x7f\x85", "␡⟨U+0085⟩"),
        ("a\u202eb\u2066c", "a⟨U+202E⟩b⟨U+2066⟩c"),
        ("\ud800x\udfff", "\ufffdx\ufffd"),
        ("שלום 😀 e\u0301", "שלום 😀 e\u0301"),
    ],
)
def test_what_cannot_be_seen_has_a_sign(text, seen):
    assert visible(text) == seen
