"""`bamctl tasks`: which tasks there are."""


def tasks() -> None:
    """List the tasks. What they ask, in what haystack, and where their files are."""
    from pathlib import Path

    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.errors import BadInput
    from bamctl.tasks.catalog import load_spec, task_files

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "asks for", "haystack", "digits", "file"):
        table.add_column(column, justify="right" if column == "digits" else "left", overflow="fold")
    for name, file in task_files().items():
        here = Path.cwd()
        shown = Text(str(file.relative_to(here) if file.is_relative_to(here) else file))
        try:
            spec = load_spec(name)
        except BadInput as error:
            table.add_row(Text(name), Text(str(error), style="red"), "", "", shown)
            continue
        haystack, digits = (
            Text(spec.written(field) if field in type(spec).model_fields else "")
            for field in ("haystack", "digits")
        )
        table.add_row(Text(name), Text(spec.summary), haystack, digits, shown)
    print_listing(table)
