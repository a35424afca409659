"""The kinds of figures that `bamctl report` draws, and what each reads. Light to import."""

from typing import TYPE_CHECKING

from bamctl.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LENGTH, DEPTH, COST = "length", "depth", "cost"
PLOTS = (LENGTH, DEPTH, COST)


def check_plot(kind: str) -> None:
    """Whether there is such a kind of figure.

    Raises:
        BadInput: there is not.
    """
    if kind not in PLOTS:
        raise BadInput(f"--plot {kind!r}: no such figure{did_you_mean(kind, PLOTS)}")


def plot_columns(kind: str) -> tuple[str, ...]:
    """The columns of samples that `draw` needs for a kind, beside those of the accuracy and of losses."""
    from bamctl.report.costs import COST_COLUMNS
    from bamctl.report.depths import DEPTH_COLUMNS

    return {LENGTH: (), DEPTH: DEPTH_COLUMNS, COST: COST_COLUMNS}[kind]


def draw(
    kind: str,
    samples: "pd.DataFrame",
    accuracy: "pd.DataFrame",
    *,
    threshold: float,
    averages_only: bool = False,
) -> "Figure":
    """A figure of results.

    Args:
        kind: of PLOTS: scores, or losses where there is nothing else, against ``length``; heatmaps of
            ``depth`` against length; the ``cost`` of each length in seconds and memory.
        samples: rows of SAMPLE_SCHEMA.
        accuracy: rows of ACCURACY_SCHEMA, of these samples.
        threshold: score, 0 … 1, from which a length counts as effective.
        averages_only: whether of scores RULER's averages alone are shown.

    Raises:
        BadInput: there is nothing to draw, or scores and losses together.
    """
    from bamctl.results.schema import LOSS

    if kind == DEPTH:
        from bamctl.report.depth_figure import depth_figure
        from bamctl.report.depths import build_depth_panels

        return depth_figure(build_depth_panels(samples))
    if kind == COST:
        from bamctl.report.cost_figure import cost_figure
        from bamctl.report.costs import build_costs

        return cost_figure(build_costs(samples))
    scores = accuracy[accuracy["metric"] != LOSS]
    if scores.empty:
        from bamctl.report.loss_figure import loss_figure
        from bamctl.report.loss_table import build_loss_table

        return loss_figure(build_loss_table(samples))
    if len(scores) < len(accuracy) and not averages_only:
        raise BadInput("a figure is of scores or of losses; choose tasks of one kind with --task")
    from bamctl.report.figure import accuracy_figure

    return accuracy_figure(scores, threshold=threshold, averages_only=averages_only)
