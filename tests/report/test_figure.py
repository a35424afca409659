import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from bamctl.report.figure import accuracy_figure
from bamctl.report.style import ENCODING_COLOURS, OTHER_COLOURS


def lines(axes):
    """A panel's lines of data: label → line."""
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def bars(axes, colour):
    """The intervals in one colour: (length, low, high)."""
    return [
        (*segment[0], segment[1][1])
        for collection in axes.collections
        if to_hex(collection.get_color()[0]) == colour.lower()
        for segment in collection.get_segments()
    ]


def legend(figure):
    (legend,) = figure.legends
    return {
        text.get_text(): handle
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }


def remark(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


def test_a_line_is_the_scores_in_percent_and_their_intervals(make_run):
    (axes,) = accuracy_figure(make_run({512: (20, 20), 1024: (19, 20)})).axes
    line = lines(axes)["tiny"]
    assert line.get_xydata().tolist() == [[512, 100], [1024, 95]]
    assert bars(axes, line.get_color()) == [
        (512, pytest.approx(83.89, abs=0.01), pytest.approx(100)),
        (1024, pytest.approx(76.39, abs=0.01), pytest.approx(99.11, abs=0.01)),
    ]


@pytest.mark.parametrize("what", ["skipped", "failed"])
def test_a_length_without_a_sample_is_a_gap_and_no_zero(make_run, what):
    (axes,) = accuracy_figure(make_run({512: (20, 20), 1024: what, 2048: (0, 20)})).axes
    (line,) = lines(axes).values()
    np.testing.assert_equal(line.get_ydata(), [100, math.nan, 0])
    assert [length for length, _, _ in bars(axes, line.get_color())] == [512, 2048]


def test_the_axes(ten_models):
    for axes in accuracy_figure(ten_models).axes:
        assert (axes.get_xscale(), axes.xaxis.get_transform().base) == ("log", 2)
        assert axes.get_xticks().tolist() == [512 * 2**power for power in range(7)]
        low, high = axes.get_ylim()
        assert -5 <= low < 0
        assert 100 < high <= 105
        assert axes.get_xlim()[0] < 512 / 1.3
        assert axes.get_xlabel() == "prompt length (tokens)"
    left, right = accuracy_figure(ten_models).axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("accuracy (%)", "")
    ticks = [label.get_text() for label in left.get_xticklabels()]
    assert ticks == ["512", "1k", "2k", "4k", "8k", "16k", "32k"]


def test_few_of_many_lengths_have_labels(two_models):
    (axes,) = accuracy_figure(two_models).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *("512", "2k", "8k", "32k", "128k", "512k", "2M")
    ]


@pytest.mark.parametrize(("models", "panels"), [(5, 1), (6, 2)])
def test_more_than_five_lines_are_parted_by_ssmax(ten_models, models, panels):
    names = sorted(ten_models["model"].unique())[:models]
    figure = accuracy_figure(ten_models[ten_models["model"].isin(names)])
    assert len(figure.axes) == panels
    assert sorted(label for axes in figure.axes for label in lines(axes)) == names
    if panels == 2:
        assert all(label.endswith("-ssmax") for label in lines(figure.axes[1]))
        assert not any(label.endswith("-ssmax") for label in lines(figure.axes[0]))


def test_many_lines_of_one_kind_stay_in_one_panel(ten_models, make_run):
    plain = ten_models[~ten_models["ssmax"]]
    figure = accuracy_figure(pd.concat([plain, make_run({512: (1, 1)}, model="more", ssmax=False)]))
    assert [len(lines(axes)) for axes in figure.axes] == [6]


def test_an_encoding_has_one_colour_and_marker_and_ssmax_is_solid(ten_models):
    without, with_ssmax = map(lines, accuracy_figure(ten_models).axes)
    for name, encoding in [
        *(("bam", "ggd"), ("rope", "rotary"), ("alibi", "laplace"), ("nope", "uniform")),
        ("sinusoidal", "sinusoidal"),
    ]:
        one, other = without[f"small-{name}"], with_ssmax[f"small-{name}-ssmax"]
        assert one.get_color() == other.get_color() == ENCODING_COLOURS[encoding]
        assert one.get_marker() == other.get_marker()
        assert (one.get_linestyle(), other.get_linestyle()) == ("--", "-")
    assert len({line.get_marker() for line in without.values()}) == 5


def test_without_ssmax_anywhere_all_is_solid(ten_models):
    (axes,) = accuracy_figure(ten_models[~ten_models["ssmax"]]).axes
    assert {line.get_linestyle() for line in lines(axes).values()} == {"-"}


def test_models_beyond_one_an_encoding_are_told_apart(make_run):
    runs = [make_run({512: (1, 1)}, name, model=name) for name in "abcdefg"]
    runs.append(make_run({512: (1, 1)}, "hub", model="hub", position_encoding="learned"))
    (axes,) = accuracy_figure(pd.concat(runs)).axes
    looks = {label: (line.get_color(), line.get_marker()) for label, line in lines(axes).items()}
    assert looks["a"][0] == ENCODING_COLOURS["ggd"]
    assert {colour for label, (colour, _) in looks.items() if label != "a"} == set(OTHER_COLOURS)
    assert len(set(looks.values())) == 8


def test_lines_stand_side_by_side_where_they_meet(ten_models):
    """Drawn apart by less than half an octave, while their data stay what they are."""
    axes = accuracy_figure(ten_models).axes[0]
    at = []
    for line in lines(axes).values():
        assert line.get_xdata()[0] == 512
        (pixel, _) = line.get_transform().transform((512, 50))
        at.append(math.log2(axes.transData.inverted().transform((pixel, 0))[0] / 512))
    assert np.diff(at) == pytest.approx([0.09] * 4)
    assert sum(at) == pytest.approx(0, abs=1e-9)


def test_the_train_length_is_marked_and_what_lies_beyond_it(make_run):
    runs = [make_run({512: (1, 1), 8192: (1, 1)}, "a"), make_run({512: (1, 1)}, "b", train_length=2048)]
    (axes,) = accuracy_figure(pd.concat(runs)).axes
    marks = [
        line.get_xdata()[0]
        for line in axes.get_lines()
        if line.get_linestyle() == ":"
        or (line.get_label().startswith("_") and line.get_xdata()[0] == line.get_xdata()[1])
    ]
    assert marks == [512, 2048]
    assert [text.get_text() for text in axes.texts][:2] == ["train length 512", "train length 2k"]
    assert [patch.get_x() for patch in axes.patches] == [512, 2048]
    assert all(patch.get_x() + patch.get_width() > axes.get_xlim()[1] for patch in axes.patches)


def test_an_unknown_train_length_is_no_mark(make_run):
    (axes,) = accuracy_figure(make_run({512: (1, 1)}, train_length=None)).axes
    assert len(axes.patches) == 0
    assert not any("train" in text.get_text() for text in axes.texts)


def test_the_threshold_is_a_thin_line(make_run):
    for threshold, entry in ((0.856, "threshold 85.6% (RULER's)"), (0.7, "threshold 70%")):
        figure = accuracy_figure(make_run({512: (1, 1)}), threshold=threshold)
        (axes,) = figure.axes
        level = [line for line in axes.get_lines() if list(line.get_ydata()) == [100 * threshold] * 2]
        assert [line.get_linewidth() for line in level] == [0.5]
        assert list(legend(figure)) == ["tiny", entry]


def test_the_legend_names_each_model_once(ten_models):
    figure = accuracy_figure(ten_models)
    entries = legend(figure)
    drawn = {label: line for axes in figure.axes for label, line in lines(axes).items()}
    assert {entry.removesuffix(" *") for entry in entries} == {*drawn, "threshold 85.6% (RULER's)"}
    for entry, handle in entries.items():
        if entry.removesuffix(" *") in drawn:
            line = drawn[entry.removesuffix(" *")]
            assert (handle.get_color(), handle.get_marker()) == (line.get_color(), line.get_marker())
            assert handle.get_linestyle() == line.get_linestyle()


def test_other_trainings_are_thin_in_the_same_colour_and_entry(make_run):
    names = ("m", "m-2", "m-3")
    figure = accuracy_figure(pd.concat([make_run({512: (1, 1)}, name, model=name) for name in names]))
    drawn = lines(figure.axes[0])
    assert sorted(drawn) == list(names)
    assert len({line.get_color() for line in drawn.values()}) == 1
    assert drawn["m-2"].get_linewidth() == drawn["m-3"].get_linewidth() < drawn["m"].get_linewidth()
    assert list(legend(figure)) == ["m, -2, -3", "threshold 85.6% (RULER's)"]


@pytest.mark.parametrize(("exact", "marked"), [(18, True), (19, False)])
def test_who_has_not_learned_its_train_length_is_hollow_and_told(make_run, exact, marked):
    figure = accuracy_figure(make_run({512: (exact, 20), 1024: (0, 20)}))
    (line,) = lines(figure.axes[0]).values()
    assert (line.get_markerfacecolor() == "white") == marked
    assert ("tiny *" in legend(figure)) == marked
    assert ("below 95% at its train length" in remark(figure)) == marked


def test_the_remark_tells_what_all_share(make_run):
    text = remark(accuracy_figure(make_run({512: (20, 20), 1024: (10, 10)})))
    assert text == (
        "Depths equidistant:20, native, float32, seed 0. Bars: 95% Wilson intervals, n = 10 to 20."
    )


def test_tasks_and_their_average_have_panels(three_tasks):
    figure = accuracy_figure(three_tasks)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["niah_single_1", "niah_multiquery", "vt", "average of 3 tasks"]
    assert bars(figure.axes[3], lines(figure.axes[3])["tiny"].get_color()) == []
    assert figure.axes[0].get_ylabel() == "score (%)"
    (alone,) = accuracy_figure(three_tasks, averages_only=True).axes
    np.testing.assert_allclose(lines(alone)["tiny"].get_ydata(), [90, 70, 41])


def test_nothing_overlaps_or_is_cut_at_a_paper_s_width(ten_models):
    figure = accuracy_figure(ten_models)
    assert figure.get_size_inches()[0] == 7
    figure.draw_without_rendering()
    box = figure.bbox
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    for inner in boxes:
        assert inner.x0 >= box.x0 - 1
        assert inner.x1 <= box.x1 + 1
        assert inner.y0 >= box.y0 - 1
        assert inner.y1 <= box.y1 + 1
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    (left, _) = figure.axes
    labels = [label.get_window_extent() for label in left.get_xticklabels()]
    assert not any(one.overlaps(other) for place, one in enumerate(labels) for other in labels[:place])
