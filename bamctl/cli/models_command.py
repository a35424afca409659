"""`bamctl models`: which checkpoints there are."""


def models() -> None:
    """List the checkpoints that have a name. What they are, what they were trained at, where they lie."""
    import sys
    from pathlib import Path

    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.errors import BadInput
    from bamctl.locations import RULER_MODEL
    from bamctl.models.loading import (
        DEFAULT_MODEL,
        ForeignModel,
        has_tokenizer,
        open_bare_checkpoint,
        open_checkpoint,
    )
    from bamctl.models.naming import model_folders

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "positions", "trained at", "parameters", "folder"):
        table.add_column(
            column, justify="right" if column in ("trained at", "parameters") else "left", overflow="fold"
        )
    folders = model_folders()
    if not folders:
        print(
            "no checkpoint has a name here: bamctl train and bamctl import put one below models/",
            file=sys.stderr,
        )
        return
    for name, folder in folders.items():
        note = {DEFAULT_MODEL: " (default)", RULER_MODEL: " (default of ruler)"}.get(name, "")
        note += "" if has_tokenizer(folder) else " (no tokenizer)"
        note += " (not imported)" if not (folder / "config.json").is_file() else ""
        shown = Text(name + note)
        where = Text(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))
        try:
            checkpoint = (open_checkpoint if has_tokenizer(folder) else open_bare_checkpoint)(str(folder))
        except ForeignModel as foreign:
            table.add_row(shown, Text(f"of {foreign.model_type}"), "?", "?", where)
            continue
        except BadInput as error:
            table.add_row(shown, Text(str(error), style="red"), "", "", where)
            continue
        config = checkpoint.config
        positions = config.position_encoding + (" + SSMax" if config.ssmax else "")
        trained = "?" if config.train_length is None else str(config.train_length)
        table.add_row(shown, positions, trained, f"{checkpoint.parameters:,}", where)
    print_listing(table)
