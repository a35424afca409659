"""What prompts cost, gathered and drawn."""

import math

import numpy as np
import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.cost_figure import cost_figure
from bamctl.report.costs import COST_COLUMNS, build_costs
from bamctl.report.style import ENCODING_COLOURS, figure_style

THREE = {(512, 0): [1, 0, 1], (1024, 0): [1]}


def remark(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


def entries(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(axes):
    """Label → points of a panel's lines of data."""
    return {
        line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")
    }


def test_a_point_is_a_median_or_the_most(make_answers):
    samples = make_answers(
        THREE,
        prefill_seconds=lambda sample: (1.0, 5.0, 2.0)[sample],
        decode_seconds=lambda sample: (1.0, 20.0, 2.0)[sample],
        completion_tokens=lambda sample: (10, 10, 5)[sample],
        peak_memory_bytes=lambda sample: (1, 3, 2)[sample] * 2**20,
    )
    costs = build_costs(samples)
    (line,) = costs.lines
    assert (line.label, line.lengths) == ("tiny", (512, 1024))
    assert line.prefill == (2.0, 1.0)
    assert line.decode == (0.4, 0.1)
    assert line.memory == (3 * 2**20, 2**20)
    assert (costs.tasks, costs.common) == (("passkey",), ("native on cpu", "float32"))
    assert build_costs(samples[list(COST_COLUMNS)]) == costs


def test_a_prompt_that_was_not_read_whole_says_nothing_of_reading(make_answers):
    seconds = lambda sample: (4.0, 1.0, 1.0)[sample]  # noqa: E731
    shared = make_answers(THREE, prefill_seconds=seconds, reused_tokens=lambda sample: (0, 256, 256)[sample])
    costs = build_costs(shared)
    assert (costs.lines[0].prefill, costs.read, costs.shared, costs.unknown) == ((4.0, 4.0), (1,), 2, 0)
    unknown = build_costs(make_answers(THREE, prefill_seconds=seconds, reused_tokens=None))
    assert (unknown.lines[0].prefill, unknown.read) == ((1.0, 4.0), (1, 3))
    assert (unknown.shared, unknown.unknown) == (0, 4)
    text = remark(cost_figure(costs))
    assert (
        "Reading: median of prompts read whole, n = 1; 2 others began as an earlier one and are left out."
        in text
    )
    assert "n = 1 to 3; of 4 it is unknown whether they were read whole." in remark(cost_figure(unknown))


def test_zero_and_unknown_are_gaps(make_answers):
    gone = {"prefill_seconds": None, "decode_seconds": 0.0, "peak_memory_bytes": 0}
    samples = [make_answers({(512, 0): [1], (2048, 0): [1, None]}), make_answers({(1024, 0): [1]}, **gone)]
    (line,) = build_costs(pd.concat(samples, ignore_index=True)).lines
    assert (line.lengths, line.prefill) == ((512, 1024, 2048), (0.512, None, 2.048))
    assert (line.decode, line.memory) == ((0.1, None, 0.1), (2**30, None, 2**30))
    figure = cost_figure(build_costs(pd.concat(samples, ignore_index=True)))
    np.testing.assert_equal(drawn(figure.axes[0])["tiny"], [[512, 0.512], [1024, math.nan], [2048, 2.048]])
    no_tokens = build_costs(make_answers(THREE, completion_tokens=0))
    assert no_tokens.lines[0].decode == (None, None)


def test_nothing_measured_is_told(make_answers, make_losses):
    nothing = make_answers(THREE, prefill_seconds=None, decode_seconds=None, peak_memory_bytes=None)
    for samples in (nothing, make_losses({512: [1.0]}), make_answers({(512, 0): [None]})):
        with pytest.raises(BadInput, match=r"^no figure of cost: no answer has its seconds or its memory"):
            build_costs(samples)


def test_tasks_and_seeds_are_one_line_and_what_it_ran_on_another(make_answers):
    gpu = "cuda:0 (NVIDIA H200)"
    samples = [
        make_answers({(512, 0): [1]}),
        make_answers({(512, 0): [1]}, task="vt", seed=1, prefill_seconds=1.0),
        *(make_answers({(512, 0): [1]}, task=task, device=gpu) for task in ("passkey", "vt")),
        *(
            make_answers({(512, 0): [1]}, task=task, device=gpu, dtype="bfloat16")
            for task in ("passkey", "vt")
        ),
    ]
    costs = build_costs(pd.concat(samples, ignore_index=True))
    assert [line.label for line in costs.lines] == [
        "tiny, native on cpu, float32",
        "tiny, native on cuda:0 (NVIDIA H200), bfloat16",
        "tiny, native on cuda:0 (NVIDIA H200), float32",
    ]
    assert costs.lines[0].prefill == (pytest.approx((0.512 + 1) / 2),)
    assert (costs.tasks, costs.left_out) == (("passkey", "vt"), ())
    text = remark(cost_figure(costs))
    assert "of the process (CPU) or that torch held (GPU)" in text
    assert "Left out" not in text


def test_tasks_that_not_all_have_are_left_out(make_answers):
    """They would make a model look dear that is merely asked more."""
    samples = [
        make_answers({(512, 0): [1]}, model="a"),
        make_answers({(512, 0): [1, 1, 1]}, model="a", task="vt", prefill_seconds=9.0, reused_tokens=1),
        make_answers({(512, 0): [None]}, model="b", task="vt"),
        make_answers({(512, 0): [1]}, model="b"),
    ]
    costs = build_costs(pd.concat(samples, ignore_index=True))
    assert (costs.tasks, costs.left_out, costs.shared) == (("passkey",), ("vt",), 0)
    assert [line.prefill for line in costs.lines] == [(0.512,), (0.512,)]
    text = remark(cost_figure(costs))
    assert text.startswith("passkey, native on cpu")
    assert text.endswith("Left out, as not all lines have them: vt.")


def test_lines_without_a_task_in_common_are_not_compared(make_answers):
    samples = [make_answers(THREE, model="a"), make_answers(THREE, model="b", task="vt")]
    with pytest.raises(
        BadInput,
        match=r"^no figure of cost: there is no task that all models have \(a on cpu, float32: passkey; b on"
        r" cpu, float32: vt\); choose some with --model or --task$",
    ):
        build_costs(pd.concat(samples, ignore_index=True))


def test_losses_are_no_answers(make_answers, make_losses):
    both = pd.concat([make_answers(THREE), make_losses({4096: [1.0]})], ignore_index=True)
    assert build_costs(both) == build_costs(make_answers(THREE))


def test_the_figure(make_answers):
    samples = [
        make_answers(THREE, model="small-bam", ssmax=False),
        make_answers(THREE, model="small-bam-ssmax", peak_memory_bytes=5 * 2**30),
        make_answers(THREE, model="small-rope", position_encoding="rotary", ssmax=False, train_length=2048),
    ]
    figure = cost_figure(build_costs(pd.concat(samples, ignore_index=True)))
    reading, answering, memory = figure.axes
    assert drawn(reading)["small-bam"].tolist() == [[512, 0.512], [1024, 1.024]]
    assert drawn(answering)["small-bam"].tolist() == [[512, 0.1], [1024, 0.1]]
    assert drawn(memory)["small-bam-ssmax"].tolist() == [[512, 5], [1024, 5]]
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert [patch.get_x() for patch in axes.patches] == [512, 2048]
        low, high = axes.get_ylim()
        assert all(low < value < high for points in drawn(axes).values() for value in points[:, 1])
        assert 3 <= len([tick for tick in axes.get_yticks() if low <= tick <= high]) <= 10
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in reading.lines[2:]}
    assert looks["small-bam"] == (ENCODING_COLOURS["ggd"], "--")
    assert looks["small-bam-ssmax"] == (ENCODING_COLOURS["ggd"], "-")
    assert looks["small-rope"] == (ENCODING_COLOURS["rotary"], "--")
    assert set(entries(figure)) == {*looks, "train length 512, 2k"}


def test_what_was_not_measured_has_no_panel(make_answers):
    figure = cost_figure(build_costs(make_answers(THREE, decode_seconds=None, peak_memory_bytes=None)))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["reading a prompt (s)"]
    assert "Memory" not in remark(figure)
    assert "Answering" not in remark(figure)


@pytest.mark.parametrize("spread", [1.0, 1.02, 3.0, 1e12])
def test_the_axis_of_seconds_has_some_labels_whatever_its_range(make_answers, spread):
    samples = make_answers({(512, 0): [1], (1024, 0): [1, 1]}, prefill_seconds=0.0137)
    samples.loc[1:, "prefill_seconds"] *= spread
    axes = cost_figure(build_costs(samples)).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert 2 <= len(labels) <= 12
    assert len(set(labels)) == len(labels)
    assert [float(label) for label in labels] == pytest.approx(axes.get_yticks().tolist(), rel=1e-5)


@pytest.mark.parametrize("model", ["m", "organisation/a-very-long-name-of-a-model-" * 4])
def test_nothing_of_the_figure_is_cut_off(make_answers, model):
    runs = [make_answers({(n, 0): [1] for n in (16, 512, 2**20)}, model=f"{model}{n}") for n in range(6)]
    figure = cost_figure(build_costs(pd.concat(runs, ignore_index=True)))
    with figure_style():
        figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    for box in boxes:
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1
    assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[number + 1 :])
