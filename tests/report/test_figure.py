import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex

from bamctl.report.figure import accuracy_figure
from bamctl.report.style import ENCODING_COLOURS, OTHER_COLOURS, figure_style


def lines(axes):
    """A panel's lines of data: label → line."""
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def bars(axes, colour):
    """The intervals in one colour: (length, low, high)."""
    return [
        (*segment[0], segment[1][1])
        for collection in axes.collections
        if isinstance(collection, LineCollection) and to_hex(collection.get_color()[0]) == colour.lower()
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


def bands(axes):
    """Each band as length → its lower and upper end."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection):
            ends = {}
            for length, share in collection.get_paths()[0].vertices:
                low, high = ends.get(length, (math.inf, -math.inf))
                ends[length] = min(low, share), max(high, share)
            found.append(ends)
    return found


def rings(axes):
    """The points that are marked as effective lengths, and their colours."""
    return [
        (*line.get_xydata()[0].tolist(), line.get_color())
        for line in axes.get_lines()
        if line.get_markerfacecolor() == "none" and line.get_marker() == "o"
    ]


def test_a_line_is_the_scores_in_percent_and_the_band_of_their_intervals(make_run):
    (axes,) = accuracy_figure(make_run({512: (20, 20), 1024: (19, 20)})).axes
    line = lines(axes)["tiny"]
    assert line.get_xydata().tolist() == [[512, 100], [1024, 95]]
    (band,) = bands(axes)
    assert band == {
        512: (pytest.approx(83.89, abs=0.01), pytest.approx(100)),
        1024: (pytest.approx(76.39, abs=0.01), pytest.approx(99.11, abs=0.01)),
    }
    (polygon,) = axes.collections
    assert to_hex(polygon.get_facecolor()[0]) == line.get_color().lower()


@pytest.mark.parametrize(("models", "banded"), [(3, True), (4, False)])
def test_intervals_of_few_lines_are_bands_and_of_many_bars(make_run, models, banded):
    runs = [make_run({512: (20, 20), 1024: (19, 20)}, name, model=name) for name in "abcd"[:models]]
    figure = accuracy_figure(pd.concat(runs))
    (axes,) = figure.axes
    assert len(bands(axes)) == (models if banded else 0)
    for line in lines(axes).values():
        assert len(bars(axes, line.get_color())) == (0 if banded else 2)
    assert ("Bands: 95% Wilson" if banded else "Bars: 95% Wilson") in remark(figure)


def test_a_band_goes_with_its_line_and_ends_at_a_gap(make_run):
    lengths = {512: (20, 20), 1024: (9, 20), 2048: "skipped", 4096: (8, 20), 8192: "skipped", 16384: (1, 20)}
    runs = [make_run(lengths, "a", model="a"), make_run({512: (1, 1)}, "b", model="b")]
    (axes,) = accuracy_figure(pd.concat(runs)).axes
    line = lines(axes)["a"]
    (band,) = bands(axes)
    assert list(band) == [512, 1024]
    assert [length for length, _, _ in bars(axes, line.get_color())] == [4096, 16384]
    (polygon,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
    assert polygon.get_transform().transform((512, 50)) == pytest.approx(
        line.get_transform().transform((512, 50))
    )


def test_one_length_has_a_bar(make_run):
    figure = accuracy_figure(make_run({512: (20, 20)}))
    assert bands(figure.axes[0]) == []
    assert "Bars: 95%" in remark(figure)


@pytest.mark.parametrize(
    ("threshold", "effective"), [(0.94, 1024), (0.95, 1024), (0.951, 512), (1.0, 512), (0.4, 4096)]
)
def test_the_effective_length_is_a_ring_around_its_point(make_run, threshold, effective):
    scores = {512: (20, 20), 1024: (19, 20), 2048: (10, 20), 4096: (20, 20)}
    figure = accuracy_figure(make_run(scores), threshold=threshold)
    (axes,) = figure.axes
    line = lines(axes)["tiny"]
    assert rings(axes) == [(effective, 100 * scores[effective][0] / 20, line.get_color())]
    (ring,) = [each for each in axes.get_lines() if each.get_markerfacecolor() == "none"]
    assert ring.get_transform() == line.get_transform()
    assert ring.get_markersize() > line.get_markersize()
    assert legend(figure)["effective length"].get_markerfacecolor() == "none"
    assert "Effective: the longest length up to which every tested one reaches the threshold" in remark(
        figure
    )


def test_without_an_effective_length_nothing_is_said_of_it(make_run):
    figure = accuracy_figure(make_run({512: (10, 20), 1024: (20, 20), 2048: "skipped"}))
    assert rings(figure.axes[0]) == []
    assert "effective length" not in legend(figure)
    assert "ffective" not in remark(figure)


def test_a_length_that_was_skipped_does_not_end_the_effective_length(make_run):
    (axes,) = accuracy_figure(make_run({512: (20, 20), 1024: "skipped", 2048: (20, 20)})).axes
    assert [length for length, _, _ in rings(axes)] == [2048]


@pytest.mark.parametrize("what", ["skipped", "failed"])
def test_a_length_without_a_sample_is_a_gap_and_no_zero(make_run, what):
    (axes,) = accuracy_figure(make_run({512: (20, 20), 1024: what, 2048: (0, 20)})).axes
    (line,) = lines(axes).values()
    np.testing.assert_equal(line.get_ydata(), [100, math.nan, 0])
    assert [length for length, _, _ in bars(axes, line.get_color())] == [512, 2048]
    assert bands(axes) == []


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
        if line.get_label().startswith("_") and list(line.get_xdata()) == [line.get_xdata()[0]] * 2
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
        assert legend(figure).keys() == {"tiny", entry, "effective length"}


def test_the_legend_names_each_model_once(ten_models):
    figure = accuracy_figure(ten_models)
    entries = legend(figure)
    drawn = {label: line for axes in figure.axes for label, line in lines(axes).items()}
    assert {entry.removesuffix(" *") for entry in entries} == {
        *(*drawn, "threshold 85.6% (RULER's)", "effective length")
    }
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
    assert legend(figure).keys() == {
        "m (thin: other trainings, -2, -3)",
        "threshold 85.6% (RULER's)",
        "effective length",
    }


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
        "Depths equidistant:20, native, float32, seed 0. Bands: 95% Wilson intervals, n = 10 to 20."
        " Effective: the longest length up to which every tested one reaches the threshold."
    )


@pytest.mark.parametrize(("models", "told"), [(1, False), (3, False), (4, True)])
def test_bars_alone_are_told_to_be_side_by_side(make_run, models, told):
    runs = [make_run({512: (20, 20), 1024: (19, 20)}, name, model=name) for name in "abcd"[:models]]
    assert ("side by side" in remark(accuracy_figure(pd.concat(runs)))) == told


def test_titles_of_a_row_are_aligned_whatever_is_below_them(make_run):
    runs = [
        make_run({512: (20, 20)}, "a", task="a"),
        make_run({512: (20, 20)}, "b", task="b", variant="a variant of which there is much to be said " * 2),
    ]
    figure = accuracy_figure(pd.concat(runs))
    with figure_style():
        figure.draw_without_rendering()
    titles = [axes._left_title for axes in figure.axes]
    assert titles[0].get_window_extent().y0 == pytest.approx(titles[1].get_window_extent().y0)


def test_tasks_and_their_average_have_panels(three_tasks):
    figure = accuracy_figure(three_tasks)
    assert " a task" in remark(figure)
    assert " a task" not in remark(accuracy_figure(three_tasks[three_tasks["task"] == "vt"]))
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
