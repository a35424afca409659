"""Heatmaps of depth against length, drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh

from bamctl.report.depth_figure import COLOUR_MAP, depth_figure
from bamctl.report.depths import build_depth_panels
from bamctl.report.style import figure_style


def draw(*samples):
    return depth_figure(build_depth_panels(pd.concat(samples, ignore_index=True)))


def mesh(axes):
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    return mesh


def heatmaps(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def scale(figure):
    (axes,) = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    return axes


def entries(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def remark(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


@pytest.fixture(scope="module")
def grid(make_answers):
    return make_answers({(512, 0): [1, 1], (512, 100): [0, 1], (1024, 0): [0], (2048, 100): [None]})


def test_the_mesh_holds_the_scores_and_masks_what_has_no_sample(grid):
    figure = draw(grid)
    (axes,) = heatmaps(figure)
    scores = mesh(axes).get_array()
    np.testing.assert_array_equal(scores.mask, [[False, False, True], [False, True, True]])
    assert scores[~scores.mask].tolist() == [100, 0, 50]
    assert axes.patch.get_hatch()
    assert axes.get_ylim() == (2, 0)  # the start of the prompt is at the top
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "100"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "1k", "2k"]
    assert axes.get_xticks().tolist() == [0.5, 1.5, 2.5]
    assert entries(figure) == ["train length 512", "no sample"]


def test_where_every_cell_has_a_sample_no_entry_says_otherwise(make_answers):
    assert entries(draw(make_answers({(512, 0): [1]}))) == ["train length 512"]
    unknown = draw(make_answers({(512, 0): [1]}, train_length=None))
    assert entries(unknown) == []
    assert len(heatmaps(unknown)[0].lines) == 0


def test_all_share_one_scale_whatever_they_hold(make_answers):
    figure = draw(
        make_answers({(512, 0): [0, 0]}, model="a"),
        make_answers({(512, 0): [1, 0]}, model="b"),
        make_answers({(512, 0): [1, 1]}, model="c"),
    )
    maps = heatmaps(figure)
    assert [axes.get_title(loc="left") for axes in maps] == ["a *", "b *", "c"]
    assert [mesh(axes).get_clim() for axes in maps] == [(0, 100)] * 3
    assert {mesh(axes).get_cmap().name for axes in maps} == {COLOUR_MAP}
    assert (scale(figure).get_ylabel(), scale(figure).get_ylim()) == ("accuracy (%)", (0, 100))
    assert "has not learned" in remark(figure)


def test_the_scale_rises_in_lightness_alone():
    """So that no kind of colour vision, and no printer, turns its order round."""
    from matplotlib import colormaps

    light = colormaps[COLOUR_MAP](np.linspace(0, 1, 64))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light) > 0).all()


@pytest.mark.parametrize(
    ("train_length", "at"), [(256, 0), (512, 1), (700, 1), (1024, 2), (2048, 3), (2**20, 3)]
)
def test_the_train_length_parts_what_was_seen_from_what_was_not(make_answers, train_length, at):
    figure = draw(make_answers({(n, 0): [1] for n in (512, 1024, 2048)}, train_length=train_length))
    (axes,) = heatmaps(figure)
    assert {place for line in axes.lines for place in line.get_xdata()} == {at}


def test_different_train_lengths_are_told_with_each_model(make_answers):
    figure = draw(
        make_answers({(512, 0): [1]}, model="a"),
        make_answers({(512, 0): [1]}, model="b", train_length=2048),
        make_answers({(512, 0): [1]}, model="c", train_length=None),
    )
    said = [axes.texts[0].get_text() for axes in heatmaps(figure)]
    assert said == ["train length 512", "train length 2k", "train length unknown"]
    assert entries(figure) == ["train length 512, 2k"]


@pytest.mark.parametrize(
    ("right", "words"), [([1], "Cells are one answer each"), ([1, 0], "Cells: n = 1 to 2.")]
)
def test_the_remark_tells_how_many_answers_a_cell_is(make_answers, right, words):
    text = remark(draw(make_answers({(512, 0): right, (512, 50): [1]})))
    assert text.startswith("passkey, depths 0,50,100, native, float32, seed 0. Cells")
    assert words in text


def test_tasks_with_other_numbers_of_answers_are_told_apart(make_answers):
    def text(**right):
        return remark(draw(*(make_answers({(512, 0): of}, task=task) for task, of in right.items())))

    assert "Cells: n = 2 (a, c); n = 1 (b)." in text(a=[1, 1], b=[1], c=[1, 0])
    assert "Cells: n = 2." in text(a=[1, 1], b=[1, 0])
    assert "Cells are one answer each" in text(a=[1], b=[0])


def test_a_task_has_a_row_unless_each_has_one_heatmap(make_answers):
    def of(task, *models):
        return [make_answers({(512, 0): [1]}, task=task, model=model) for model in models]

    def shape(figure):
        grid = heatmaps(figure)[0].get_gridspec()
        return grid.nrows, grid.ncols

    def titles(figure):
        return [axes.get_title(loc="left") for axes in heatmaps(figure)]

    alone = draw(*of("passkey", "a"), *of("mine", "a"))
    assert (shape(alone), titles(alone)) == ((1, 2), ["mine", "passkey"])
    assert remark(alone).startswith("a, depths 0,50,100")
    pairs = draw(*of("passkey", "a", "b"), *of("mine", "a"))
    assert (shape(pairs), titles(pairs)) == ((2, 2), ["mine", "passkey", "passkey"])
    assert [axes.texts[0].get_text() for axes in heatmaps(pairs)] == ["a", "a", "b"]
    assert shape(draw(*of("passkey", *"abcde"))) == (2, 3)
    assert shape(draw(*of("passkey", *"abcdefg"))) == (2, 4)


def test_what_is_left_out_is_said(make_answers):
    text = remark(draw(make_answers({(512, 0): [1]}), make_answers({(512, (1.0, 2.0)): [1]}, task="vt")))
    assert text.endswith("Left out, as no answer is about one needle alone: vt.")


@pytest.mark.parametrize("models", [["m"], [f"organisation/a-model-of-a-long-name-{n}" for n in range(5)]])
def test_nothing_overlaps_or_is_cut_off(make_answers, models):
    lengths = [512 * 2**power for power in range(13)]
    depths = [100 * number / 19 for number in range(20)]
    answers = {(length, depth): [1] for length in lengths for depth in depths}
    figure = draw(*(make_answers(answers, model=model, depth_policy="equidistant:20") for model in models))
    with figure_style():
        figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    for box in boxes:
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1
    assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[number + 1 :])
    first, *_ = heatmaps(figure)
    assert [label.get_text() for label in first.get_yticklabels()][:: len(first.get_yticks()) - 1] == [
        "0",
        "100",
    ]
    for axes in heatmaps(figure):
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            extents = [label.get_window_extent() for label in labels]
            assert not any(a.overlaps(b) for number, a in enumerate(extents) for b in extents[number + 1 :])
        assert all(label.get_fontsize() >= 6 for label in axes.get_xticklabels())
