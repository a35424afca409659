"""`bamctl run`: a task file of one's own."""

from typing import Annotated

import typer

from bamctl.cli import options
from bamctl.cli.completion import task_names
from bamctl.cli.options import MeasureOptions, measuring
from bamctl.locations import DEFAULT_MODEL


@measuring(default_model=DEFAULT_MODEL)
def run(
    task: Annotated[
        str, typer.Argument(help="A task file, or the name of a task.", autocompletion=task_names)
    ],
    apply_chat_template: options.ApplyChatTemplate = None,
    *,
    chosen: MeasureOptions,
) -> None:
    """Measure models on a task file of your own. The files in tasks/ show what one looks like."""
    from bamctl.cli.measure import measure

    measure({task: ["run", task]}, {"apply_chat_template": apply_chat_template}, chosen)
