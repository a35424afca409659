"""`bamctl ruler`: RULER's tasks, at every length."""

from bamctl.cli import options
from bamctl.cli.options import MeasureOptions, measuring
from bamctl.locations import RULER_MODEL


@measuring(default_model=RULER_MODEL, depths="ruler")
def ruler(
    tasks: options.Tasks = "niah_*",
    essays: options.Essays = None,
    tokens_to_generate: options.TokensToGenerate = None,
    length_includes_generation: options.LengthIncludesGeneration = None,
    apply_chat_template: options.ApplyChatTemplate = None,
    *,
    chosen: MeasureOptions,
) -> None:
    """Ask RULER's questions, at every length.

    By default the eight about needles. A length counts the prompt and the tokens to generate, as in RULER.
    Prints RULER's score against length. Every sample is stored under --out as it finishes; the same command
    again goes on where it stopped.
    """
    from bamctl.cli.measure import measure
    from bamctl.tasks.catalog import ruler_tasks

    overrides = {
        "essays": essays,
        "tokens_to_generate": tokens_to_generate,
        "length_includes_generation": length_includes_generation,
        "apply_chat_template": apply_chat_template,
    }
    measure({name: ["ruler", "--tasks", name] for name in ruler_tasks(tasks)}, overrides, chosen)
