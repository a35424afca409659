import pandas as pd
import pytest

from bamctl.report.panels import build_panels


def of(content):
    """Panels as title → labels."""
    return {panel.title: [line.label for line in panel.lines] for panel in content.panels}


def test_a_panel_is_a_task_and_a_line_is_a_run(make_run):
    first = make_run({1024: (19, 20), 512: (20, 20), 2048: "skipped"}, "a", ssmax=None, train_length=None)
    second = make_run({512: (1, 20)}, "b", model="other", task="mine", depth_policy="random")
    content = build_panels(pd.concat([second, first]))
    assert of(content) == {"mine": ["other"], "passkey": ["tiny"]}
    assert [panel.conditions for panel in content.panels] == [("depths random",), ("depths equidistant:20",)]
    assert content.common == ("native", "float32", "seed 0")
    (line,) = content.panels[1].lines
    assert (line.lengths, line.scores) == ((512, 1024, 2048), (1.0, 0.95, None))
    assert line.lows == (pytest.approx(0.8389, abs=1e-4), pytest.approx(0.7639, abs=1e-4), None)
    assert line.highs == (pytest.approx(1), pytest.approx(0.9911, abs=1e-4), None)
    assert (line.counts, line.ssmax, line.train_length) == ((20, 20), False, None)


def test_what_all_share_is_told_once(make_run):
    assert build_panels(make_run({512: (1, 1)})).common == (
        *("depths equidistant:20", "native", "float32", "seed 0"),
    )


@pytest.mark.parametrize(
    ("columns", "conditions"),
    [
        ({"variant": "haystack=x"}, [(), ("haystack=x",)]),
        ({"depth_policy": "random"}, [("depths equidistant:20",), ("depths random",)]),
    ],
)
def test_other_prompts_of_one_task_are_another_panel(make_run, columns, conditions):
    runs = [make_run({512: (1, 1)}, "a"), make_run({512: (1, 1)}, "b", **columns)]
    content = build_panels(pd.concat(runs))
    assert [panel.title for panel in content.panels] == ["passkey", "passkey"]
    assert [panel.conditions for panel in content.panels] == conditions
    assert [line.label for panel in content.panels for line in panel.lines] == ["tiny", "tiny"]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ({"model": "m"}, ["m", "tiny"]),
        ({"model_digest": "fedcba9876"}, ["tiny @0123456", "tiny @fedcba9"]),
        ({"seed": 1}, ["tiny, seed 0", "tiny, seed 1"]),
        ({"dtype": "bfloat16", "backend": "vllm"}, ["tiny, native, float32", "tiny, vllm, bfloat16"]),
        ({}, ["tiny, run a", "tiny, run b"]),
    ],
)
def test_no_two_runs_are_ever_one_line(make_run, columns, labels):
    runs = [make_run({512: (1, 1)}, "a"), make_run({512: (1, 1)}, "b", **columns)]
    (panel,) = build_panels(pd.concat(runs)).panels
    assert [line.label for line in panel.lines] == labels
    assert len({line.kin for line in panel.lines}) == 2


def kin_of(make_run, *models):
    runs = [make_run({512: (1, 1)}, name, model=name, **columns) for name, columns in models]
    (panel,) = build_panels(pd.concat(runs)).panels
    return {line.label: (line.kin, line.repeat_of) for line in panel.lines}


def test_with_and_without_ssmax_and_other_trainings_are_kin(make_run):
    kin = kin_of(
        make_run,
        *((name, {"ssmax": True}) for name in ("m-ssmax", "m-ssmax-2", "m-ssmax-13")),
        *((name, {"ssmax": False}) for name in ("m", "m-3")),
    )
    assert {label: name for label, (name, _) in kin.items()} == dict.fromkeys(kin, "m")
    assert {label: repeat_of for label, (_, repeat_of) in kin.items()} == {
        "m-ssmax": "m-ssmax",
        "m-ssmax-2": "m-ssmax",
        "m-ssmax-13": "m-ssmax",
        "m": "m",
        "m-3": "m",
    }


@pytest.mark.parametrize(
    "models",
    [
        [("m-2", {}), ("m-3", {})],  # the first is not there
        [("m", {}), ("m-1", {})],
        [("m", {}), ("m-2", {"position_encoding": "rotary"})],
        [("m", {}), ("m-2", {"ssmax": False})],
        [("gpt", {}), ("gpt-2b", {})],
        [("m", {}), ("n", {})],
    ],
)
def test_what_only_looks_like_another_training_is_a_model_of_its_own(make_run, models):
    kin = kin_of(make_run, *models)
    assert all(repeat_of == label for label, (_, repeat_of) in kin.items())
    assert len({name for name, _ in kin.values()}) == 2


def test_averages_come_last_and_have_no_intervals(three_tasks):
    content = build_panels(three_tasks)
    assert list(of(content)) == ["niah_single_1", "niah_multiquery", "vt", "average of 3 tasks"]
    assert {label for labels in of(content).values() for label in labels} == {"tiny"}
    (line,) = content.panels[-1].lines
    assert line.scores == (pytest.approx(0.9), pytest.approx(0.7), pytest.approx(0.41))
    assert (line.lows, line.highs, line.counts) == ((None,) * 3, (None,) * 3, ())
    assert build_panels(three_tasks, averages_only=True).panels == content.panels[-1:]


def test_where_a_task_lacks_a_length_the_average_has_a_gap(three_tasks):
    lacking = three_tasks[~((three_tasks["task"] == "vt") & (three_tasks["length"] == 8192))]
    (line,) = build_panels(lacking).panels[-1].lines
    assert line.lengths == (4096, 8192, 16384)
    assert line.scores == (pytest.approx(0.9), None, pytest.approx(0.41))


def test_averages_over_other_tasks_are_not_in_one_panel(make_ruler):
    runs = [
        make_ruler({"vt": (1.0,), "cwe": (2.0,)}),
        make_ruler({"vt": (1.0,), "fwe": (2.0,)}, model="m"),
    ]
    panels = build_panels(pd.concat(runs), averages_only=True).panels
    assert [[line.label for line in panel.lines] for panel in panels] == [["m"], ["tiny"]]


def test_whether_all_are_exact_answers(make_run, three_tasks):
    assert build_panels(make_run({512: (1, 1)})).exact
    assert not build_panels(three_tasks, averages_only=True).exact
    assert not build_panels(pd.concat([three_tasks, make_run({512: (1, 1)})])).exact
