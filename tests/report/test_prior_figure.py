"""The data in the figures of a model's heads."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from bamctl.attention.kinds import MEANINGS
from bamctl.attention.mass import HeadPrior
from bamctl.models.inspection import InspectedHead
from bamctl.models.needle_attention import REGIONS, NeedleAttention
from bamctl.report.prior_figure import (
    KIND_COLOURS,
    MOST_BARS,
    MOST_LABELLED,
    REGION_COLOURS,
    draw_attention,
    draw_priors,
)
from bamctl.report.style import save_figure

MakeHeads = Callable[..., list[InspectedHead]]


@pytest.fixture
def make_heads() -> MakeHeads:
    """Layers of heads with these shapes, scale 8."""

    def make(*betas: Sequence[float], mu: float = 0.0, ssmax: float | None = None) -> list[InspectedHead]:
        return [
            InspectedHead(
                layer=layer,
                head=head,
                prior=HeadPrior(rate=8.0**-beta if beta else 0.0, beta=beta, mu=mu, epsilon=1e-5),
                ssmax=ssmax,
                ssmax_scales_prior=True,
            )
            for layer, of_layer in enumerate(betas)
            for head, beta in enumerate(of_layer)
        ]

    return make


def panels_with_data(figure: Figure) -> list:
    return [panel for panel in figure.axes if panel.axison]


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_line_is_the_weight_relative_to_a_uniform_prior(make_heads: MakeHeads) -> None:
    heads = make_heads([1.0, -0.5], [0.0, 0.5], ssmax=0.3)
    panels = panels_with_data(draw_priors(heads, length=4096, title="Priors"))
    assert [panel.get_title() for panel in panels] == ["layer 0", "layer 1"]
    for layer, panel in enumerate(panels):
        even, *drawn = panel.get_lines()
        assert set(even.get_ydata()) == {1}
        curves, dots = drawn[::2], drawn[1::2]
        for head, curve, dot in zip(heads[2 * layer :], curves, dots, strict=False):
            distances, weights = np.array(curve.get_xdata()), np.array(curve.get_ydata())
            assert distances[0] == 0
            assert distances[-1] == 4095
            assert (np.diff(distances) >= 1).all()
            mass = head.mass(4096)
            assert weights == pytest.approx(mass.at(distances) * 4096)
            assert curve.get_color() == dot.get_color() == KIND_COLOURS[head.kind(4096)]
            assert dot.get_xdata() == [mass.reach()]
            assert dot.get_ydata() == pytest.approx(mass.at(np.array([float(mass.reach())])) * 4096)
    assert np.array(panels[1].get_lines()[1].get_ydata()) == pytest.approx(1)
    low, high = panels[0].get_ylim()
    assert low == 1e-3
    assert high > 4096 / np.e


def test_the_neighbourhood_of_a_location_is_drawn_in_full(make_heads: MakeHeads) -> None:
    (panel,) = panels_with_data(draw_priors(make_heads([2.0], mu=-30000.0), length=32768, title=""))
    curve = panel.get_lines()[1]
    assert set(range(29960, 30040)) <= {int(x) for x in curve.get_xdata()}
    assert curve.get_xdata()[np.argmax(curve.get_ydata())] == 30000


def test_heads_are_named_with_their_shape_and_told_apart_within_a_kind(make_heads: MakeHeads) -> None:
    figure = draw_priors(make_heads([1.0, -0.5, 1.1, 0.0]), length=512, title="Priors of mine")
    (panel,) = panels_with_data(figure)
    legend = panel.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "0: β = 1.00",
        "1: β = −0.50",
        "2: β = 1.10",
        "3",
    ]
    laplace, other = panel.get_lines()[1], panel.get_lines()[5]
    assert laplace.get_color() == other.get_color()
    assert laplace.get_linestyle() != other.get_linestyle()
    assert figure.get_suptitle() == "Priors of mine"
    assert legend_of(figure) == ["uniform", "far-looking", "Laplace-like", "99% of the mass lies within"]


@pytest.mark.parametrize(("heads", "named"), [(MOST_LABELLED, True), (MOST_LABELLED + 1, False)])
def test_many_heads_have_no_names(heads: int, named: bool, make_heads: MakeHeads) -> None:
    (panel,) = panels_with_data(draw_priors(make_heads([1.0] * heads), length=64, title=""))
    assert (panel.get_legend() is not None) is named


@pytest.mark.parametrize("layers", [1, 2, 4, 10])
def test_every_layer_has_a_panel_and_the_lowest_of_a_column_its_label(
    layers: int, make_heads: MakeHeads
) -> None:
    figure = draw_priors(make_heads(*[[1.0]] * layers), length=64, title="")
    panels = panels_with_data(figure)
    assert len(panels) == layers
    columns = min(layers, 3 if layers <= 9 else 4)
    labelled = [bool(panel.get_xlabel()) for panel in panels]
    assert labelled == [False] * (layers - columns) + [True] * columns


@pytest.mark.parametrize("length", [1, 2, 2**40])
def test_the_shortest_and_the_greatest_length_are_drawn(
    length: int, make_heads: MakeHeads, tmp_path: Path
) -> None:
    path = tmp_path / "priors.png"
    save_figure(draw_priors(make_heads([1.0, -1.5, 0.0]), length=length, title=""), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_two_kinds_and_no_two_regions_share_a_colour() -> None:
    assert set(KIND_COLOURS) == set(MEANINGS)
    assert len(set(KIND_COLOURS.values())) == len(MEANINGS)
    assert set(REGION_COLOURS) == set(REGIONS)
    assert len(set(REGION_COLOURS.values())) == len(REGIONS)


def measured(length: int, layers: int, heads: int) -> NeedleAttention:
    random = np.random.default_rng(length)
    return NeedleAttention(
        length=length,
        shares_LHR=random.dirichlet(np.ones(len(REGIONS)), size=(layers, heads)),
        tokens_R=np.array([0.05, 0.1, 0.2, 0.01, 0.64]),
    )


def bars(panel: object) -> np.ndarray:
    """Widths ``[regions, bars]``."""
    return np.array([[bar.get_width() for bar in group] for group in panel.containers])


def test_a_bar_is_a_head_and_the_lowest_the_tokens(make_heads: MakeHeads) -> None:
    heads = make_heads([1.0, -0.5], [0.0, 0.5])
    at = [measured(512, 2, 2), measured(32768, 2, 2)]
    figure = draw_attention(heads, at, title="Attention of mine")
    panels = panels_with_data(figure)
    assert [panel.get_title() for panel in panels] == ["512 tokens", "32k tokens"]
    for panel, of_length in zip(panels, at, strict=True):
        assert bars(panel)[:, :4] == pytest.approx(of_length.shares_LHR.reshape(4, -1).T)
        assert bars(panel)[:, 4] == pytest.approx(of_length.tokens_R)
        last = panel.containers[-1]
        assert [bar.get_x() + bar.get_width() for bar in last] == pytest.approx([1] * 5)
        assert [group[0].get_facecolor()[:3] for group in panel.containers] == [
            pytest.approx(tuple(int(REGION_COLOURS[name][i : i + 2], 16) / 255 for i in (1, 3, 5)))
            for name in REGIONS
        ]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names == ["0.0: β = 1.00", "0.1: β = −0.50", "1.0", "1.1: β = 0.50", "every token alike"]
    low, high = panels[0].get_ylim()
    assert low > high  # the first head stands at the top
    assert figure.get_suptitle() == "Attention of mine"
    assert legend_of(figure)[0] == "needle"


def test_of_many_heads_those_are_drawn_that_give_the_needle_most(make_heads: MakeHeads) -> None:
    heads = make_heads(*[[1.0] * 8] * 5)
    at = [measured(512, 5, 8), measured(1024, 5, 8)]
    figure = draw_attention(heads, at, title="Attention")
    most = np.max([of_length.shares_LHR[..., 0].ravel() for of_length in at], axis=0)
    chosen = sorted(np.argsort(-most)[:MOST_BARS])
    panel = panels_with_data(figure)[0]
    names = [label.get_text() for label in panel.get_yticklabels()][:-1]
    assert names == [f"{i // 8}.{i % 8}: β = 1.00" for i in chosen]
    assert bars(panel)[0, :-1] == pytest.approx(at[0].shares_LHR.reshape(40, -1)[chosen, 0])
    assert figure.get_suptitle() == "Attention; the 32 of 40 heads that give the needle most"


def test_lengths_wrap_and_the_same_figure_is_the_same_file(make_heads: MakeHeads, tmp_path: Path) -> None:
    at = [measured(512 * 2**i, 1, 2) for i in range(6)]
    figures = [draw_attention(make_heads([1.0, -1.0]), at, title="") for _ in range(2)]
    assert len(panels_with_data(figures[0])) == 6
    for name, figure in zip("ab", figures, strict=True):
        save_figure(figure, tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
