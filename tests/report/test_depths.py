"""Which cells the heatmaps of depth against length have."""

import numpy as np
import pandas as pd
import pytest

from bamctl.errors import BadInput
from bamctl.report.depths import DEPTH_COLUMNS, MOST_DEPTHS, build_depth_panels, depth_rows


@pytest.fixture
def grid(make_answers):
    return make_answers(
        {
            (512, 0): [1, 1],
            (512, 50): [1, 0],
            (512, 100): [0],
            (1024, 0): [0, 0, 0, 1],
            (1024, 100): [None, 1],
            (2048, 0): [None],
        }
    )


def test_a_cell_is_the_score_of_its_samples_and_none_where_none_is_done(grid):
    (panel,) = build_depth_panels(grid).panels
    (each,) = panel.maps
    assert (panel.title, panel.depths, panel.lengths) == ("passkey", ("0", "50", "100"), (512, 1024, 2048))
    assert each.scores == ((1.0, 0.25, None), (0.5, None, None), (0.0, 1.0, None))
    assert each.counts == ((2, 4, 0), (2, 0, 0), (1, 1, 0))
    assert (each.line.label, each.line.train_length) == ("tiny", 512)


def test_the_columns_it_says_it_reads_are_enough(grid):
    assert build_depth_panels(grid[list(DEPTH_COLUMNS)]) == build_depth_panels(grid)


def test_another_metric_is_its_recall(make_answers):
    samples = make_answers({(512, 0): [1, 0.25]}, metric="string_match_all", task="niah_single_1")
    content = build_depth_panels(samples)
    assert content.panels[0].maps[0].scores == ((0.625,),)
    assert not content.exact
    assert build_depth_panels(make_answers({(512, 0): [1]})).exact


def test_models_share_lengths_and_depths_and_tasks_do_not(make_answers):
    one = make_answers({(512, 0): [1], (1024, 50): [0]})
    other = make_answers({(2048, 50): [1]}, model="other")
    listed = make_answers({(512, 10): [1]}, depth_policy="10")
    content = build_depth_panels(pd.concat([one, other, listed], ignore_index=True))
    shared, alone = sorted(content.panels, key=lambda panel: -len(panel.maps))
    assert (shared.depths, shared.lengths) == (("0", "50"), (512, 1024, 2048))
    assert [each.line.label for each in shared.maps] == ["other", "tiny"]
    assert [each.counts for each in shared.maps] == [((0, 0, 0), (0, 0, 1)), ((1, 0, 0), (0, 1, 0))]
    assert (alone.depths, alone.lengths) == (("10",), (512,))
    assert {panel.conditions for panel in (shared, alone)} == {("depths 0,50,100",), ("depths 10",)}


@pytest.mark.parametrize(
    ("depths", "names"),
    [
        ((0, 5.2631578, 100), ("0", "5", "100")),
        ((50, 50.4), ("50", "50.4")),
        ((1.001, 1.002), ("1.001", "1.002")),
        ((0.00001, 0.00002), ("1e-05", "2e-05")),
    ],
)
def test_rows_are_named_as_shortly_as_tells_them_apart(make_answers, depths, names):
    samples = make_answers({(512, depth): [1] for depth in depths})
    (called,) = depth_rows(samples).names.values()
    assert called == names


@pytest.mark.parametrize("policy", ["random", "ruler"])
@pytest.mark.parametrize(("n", "ranges"), [(49, 5), (50, 10)])
def test_drawn_depths_are_put_into_ranges(make_answers, policy, n, ranges):
    depths = np.linspace(0, 100, n).tolist()
    samples = make_answers({(512, depth): [1] for depth in depths}, depth_policy=policy)
    placed = depth_rows(samples)
    (names,) = placed.names.values()
    width = 100 // ranges
    assert names == tuple(f"{start}–{start + width}" for start in range(0, 100, width))
    assert placed.rows.tolist() == [min(int(depth // width), ranges - 1) for depth in depths]
    assert placed.rows.iloc[-1] == ranges - 1  # the very end has no range of its own


@pytest.mark.parametrize(("policy", "rows"), [("random", 5), ("ruler", 5), ("3,33", 2)])
def test_few_depths_are_put_into_ranges_too_where_they_were_drawn(make_answers, policy, rows):
    (names,) = depth_rows(make_answers({(512, 3): [1], (512, 33): [1]}, depth_policy=policy)).names.values()
    assert len(names) == rows


@pytest.mark.parametrize(("count", "rows"), [(MOST_DEPTHS, MOST_DEPTHS), (MOST_DEPTHS + 1, 5)])
def test_many_depths_are_put_into_ranges(make_answers, count, rows):
    samples = make_answers({(512, 100 * depth / count): [1] for depth in range(count)})
    (names,) = depth_rows(samples).names.values()
    assert len(names) == rows


@pytest.mark.parametrize("several", [(10.0, 90.0), ()])
def test_without_one_needle_alone_there_is_no_heatmap(make_answers, several):
    many = make_answers({(512, several): [1], (1024, 50): [None]}, task="vt")
    assert depth_rows(many).names == {}
    assert set(depth_rows(many).rows) == {-1}
    with pytest.raises(BadInput, match=r"no figure of depths: no answer in vt is about one needle alone; "):
        build_depth_panels(many)
    both = pd.concat([make_answers({(512, 0): [1]}), many], ignore_index=True)
    content = build_depth_panels(both)
    assert ([panel.title for panel in content.panels], content.left_out) == (["passkey"], ("vt",))


def test_what_is_not_done_or_is_a_loss_has_no_heatmap(make_answers, make_losses):
    nothing = make_answers({(512, 0): [None]}, task="niah_single_1")
    losses = make_losses({512: [1.0, 2.0]})
    both = pd.concat([nothing, losses], ignore_index=True)
    with pytest.raises(BadInput, match="no answer in niah_single_1, perplexity is about one needle alone"):
        build_depth_panels(both)
    content = build_depth_panels(pd.concat([both, make_answers({(512, 0): [1]})], ignore_index=True))
    assert content.left_out == ("niah_single_1", "perplexity")


def test_averages_have_no_heatmap(make_answers):
    tasks = [make_answers({(512, 0): [1]}, task=task) for task in ("niah_single_1", "niah_single_2")]
    content = build_depth_panels(pd.concat(tasks, ignore_index=True))
    assert [panel.title for panel in content.panels] == ["niah_single_1", "niah_single_2"]
