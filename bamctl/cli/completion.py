"""Names that a shell completes: read off the folders, as what opens them would take too long to import."""

from pathlib import Path

from bamctl.locations import search_path


def model_names(incomplete: str) -> list[str]:
    """The checkpoints that have a name beginning so (`bamctl.models.naming.model_folders`)."""
    configs = [
        config
        for place in search_path("models")
        for name in ("config.json", "args.json")
        for config in place.glob(f"*/{name}")
    ]
    return _beginning(incomplete, {config.parent.name for config in configs})


def task_names(incomplete: str) -> list[str]:
    """The tasks whose name begins so (`bamctl.tasks.catalog.task_files`)."""
    return _beginning(incomplete, {name for place in search_path("tasks") for name in _files(place)})


def ruler_task_names(incomplete: str) -> list[str]:
    """Of a list with commas, what its last name may become: RULER's tasks, which are all that are shipped
    but the passkey, or all of them."""
    before, comma, last = incomplete.rpartition(",")
    names = {"all"} | {name for place in search_path("tasks")[-1:] for name in _files(place)} - {"passkey"}
    return [before + comma + name for name in _beginning(last, names - set(before.split(",")))]


def _files(place: Path) -> set[str]:
    return {file.stem for file in place.glob("*.yaml")}


def _beginning(text: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(text))
