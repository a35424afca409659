"""Losses against position, drawn."""

import math

import pandas as pd
import pytest

from bamctl.report.loss_figure import loss_figure, loss_lines
from bamctl.report.loss_table import build_loss_table
from bamctl.report.style import figure_style, save_figure
from bamctl.results.means import mean_interval

READING = "text=essays.txt max_len=1k samples=2"


def test_lines_have_the_table_s_figures(full_and_sliding, make_losses):
    full, sliding = loss_lines(build_loss_table(full_and_sliding))
    assert (full.ends, full.losses) == ((256, 512, 1024), (3.25, 2.75, 2.375))
    low, high = mean_interval([2.0, 2.75])
    assert (full.low[2], full.high[2]) == (low, high)
    assert (full.row.window, sliding.row.window) == (None, 512)
    (single,) = loss_lines(build_loss_table(make_losses({256: [1.0], 512: [None], 1024: [2.0]})))
    assert (single.ends, single.losses) == ((256, 1024), (1.0, 2.0))
    assert single.low == single.high == single.losses


def test_the_figure_has_a_line_a_run_and_marks_the_train_length(full_and_sliding):
    figure = loss_figure(build_loss_table(full_and_sliding))
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    full, sliding, train = axes.lines
    assert full.get_xydata().tolist() == [[256, 3.25], [512, 2.75], [1024, 2.375]]
    assert full.get_linestyle() == "-"
    assert sliding.get_linewidth() > full.get_linewidth()  # both are seen where they agree
    assert sliding.get_zorder() < full.get_zorder()
    assert sliding.get_linestyle() == "--"
    assert full.get_color() == sliding.get_color()
    assert set(train.get_xdata()) == {512}
    assert len(axes.collections) == 2  # a band each
    assert {label.get_text() for label in axes.get_xticklabels()} == {"1k", "512", "256"}
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(entries) == {"tiny", "full context", "window 512", "train length 512"}
    assert len(entries) == 4


def test_many_models_with_and_without_ssmax_get_a_panel_each(make_losses):
    encodings = ("ggd", "rotary", "laplace")
    runs = [
        make_losses({256: [3.0], 512: [2.0]}, window, model=f"{e}-{s}", position_encoding=e, ssmax=s)
        for e in encodings
        for s in (False, True)
        for window in (None, 128)
    ]
    figure = loss_figure(build_loss_table(pd.concat(runs)))
    assert [axes.get_title() for axes in figure.axes] == ["without SSMax", "with SSMax"]
    assert [len(axes.lines) for axes in figure.axes] == [7, 7]  # 3 models, 2 contexts, the train length
    colours = {line.get_label(): line.get_color() for axes in figure.axes for line in axes.lines[:6]}
    assert len(set(colours.values())) == 6


def test_a_figure_without_intervals_or_train_length_is_drawn_too(make_losses, tmp_path):
    table = build_loss_table(make_losses({256: [1.0]}, train_length=None))
    assert table.header() == ["model", "256"]
    save_figure(loss_figure(table), tmp_path / "f.svg")
    assert (tmp_path / "f.svg").stat().st_size > 1000
    assert math.isfinite(table.rows[0].cells[0].loss)


def remark(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


@pytest.mark.parametrize(
    ("train_length", "drawn", "said"),
    [
        (200, False, "train length 200: left of all points"),
        (256, True, None),
        (300, True, None),
        (1024, True, None),
        (2048, False, "train length 2k: right of all points"),
    ],
)
def test_a_train_length_does_not_stretch_the_axis(make_losses, train_length, drawn, said):
    losses = make_losses({256: [3.0], 512: [2.5], 1024: [2.0]}, train_length=train_length)
    figure = loss_figure(build_loss_table(losses))
    (axes,) = figure.axes
    assert 200 < axes.get_xlim()[0] < 256
    assert 1024 < axes.get_xlim()[1] < 1280
    assert len(axes.lines) == 1 + drawn
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("train length" in entry for entry in entries) == drawn
    assert (said in remark(figure)) if said else "train length" not in remark(figure)


@pytest.mark.parametrize(("samples", "words"), [(1, "mean of 1 stretch"), (2, "mean of 2 stretches; bands")])
def test_the_remark_counts_stretches(make_losses, samples, words):
    text = remark(loss_figure(build_loss_table(make_losses({256: [3.0] * samples}))))
    assert words in text
    assert "1 stretches" not in text


def test_the_lines_set_the_axis_and_wide_bands_are_cut_off(make_losses):
    narrow = make_losses({256: [3.0, 3.01], 512: [2.5, 2.51]})
    figure = loss_figure(build_loss_table(narrow))
    assert "cut off" not in remark(figure)
    _, high = mean_interval([3.0, 3.01])
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 2.5 - 0.005
    assert high < top < high + 0.1

    wide = make_losses({256: [2.0, 4.0], 512: [1.5, 3.5]})
    figure = loss_figure(build_loss_table(wide))
    assert "some cut off by the axis" in remark(figure)
    bottom, top = figure.axes[0].get_ylim()
    assert 2.0 < bottom < 2.5
    assert 3.0 < top < 3.5


def test_the_settings_of_a_model_have_one_colour_and_a_marker_each(make_losses):
    settings = [
        make_losses({256: [3.0 + number], 512: [2.0]}, window, reading=f"text=a max_len={number}k samples=1")
        for number in (1, 2)
        for window in (None, 128)
    ]
    other = make_losses({256: [1.0]}, model="other", reading="text=a max_len=1k samples=1")
    lines = loss_figure(build_loss_table(pd.concat([*settings, other]))).axes[0].lines
    looks = {line.get_label(): (line.get_color(), line.get_marker()) for line in lines if line.get_marker()}
    first, second = looks["tiny, max_len=1k, full"], looks["tiny, max_len=2k, full"]
    assert first[0] == second[0] != looks["other, max_len=1k, full"][0]
    assert first[1] != second[1]
    assert looks["tiny, max_len=1k, W128"] == first


@pytest.mark.parametrize(
    "model", ["m", "a-model-of-a-long-name-" * 2, "org/a-very-long-name-of-a-model-" * 6]
)
def test_nothing_of_a_figure_is_cut_off(make_losses, model):
    runs = [
        make_losses({256: [3.0, 3.1], 512: [2.0, 2.1], 600: [2.0, 2.1]}, window, model=f"{model}-{number}")
        for number in range(3)
        for window in (None, 256, 128)
    ]
    figure = loss_figure(build_loss_table(pd.concat(runs)))
    with figure_style():
        figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height
    labels = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert not any(a.overlaps(b) for number, a in enumerate(labels) for b in labels[number + 1 :])
