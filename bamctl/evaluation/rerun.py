"""A sample that is stored: found by its row_id, the command that runs it again, its prompt made anew."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bamctl.errors import BadInput
from bamctl.evaluation.excerpts import PromptText, prompt_text
from bamctl.evaluation.plan import PlannedSample
from bamctl.lengths import format_length
from bamctl.results.frames import decoded
from bamctl.results.loading import read_parts, read_samples, walk_folders
from bamctl.results.merging import merge
from bamctl.results.schema import LOSS, SAMPLE_SCHEMA, SampleRow
from bamctl.tasks.catalog import RULER_TASKS, build_task, load_spec
from bamctl.tasks.tokenization import PromptTokenizer

SHORTEST_ID = 4
"""Characters of a row_id's beginning that are looked for."""
_log = logging.getLogger(__name__)


def find_rows(paths: Sequence[Path], row_id: str) -> list[SampleRow]:
    """The rows whose row_id is this one or begins so, one of each run, sorted by run, length and sample.

    Only where there is one a run's texts are read.

    Args:
        paths: as for `bamctl.results.loading.load_samples`.
        row_id: at least `SHORTEST_ID` characters of it.

    Raises:
        BadInput: `row_id` is shorter; a path does not exist or cannot be read, or a row contradicts itself.
    """
    if len(row_id) < SHORTEST_ID:
        raise BadInput(f"row {row_id!r}: at least {SHORTEST_ID} characters of a row_id are needed")
    tables = [table for path in paths for table in _tables_with(path, row_id)]
    if not tables:
        return []
    rows = decoded(merge(tables)).to_pylist()
    try:
        return [SampleRow(**{name: _frozen(value) for name, value in row.items()}) for row in rows]
    except ValueError as error:
        raise BadInput(f"{', '.join(map(str, paths))}: {error}") from error


def _tables_with(path: Path, row_id: str) -> Iterator[pa.Table]:
    """Of each table with such rows these rows, every column."""
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder")
    tables = [read_samples(path)] if path.is_file() else []
    for folder, files in walk_folders(path) if path.is_dir() else ():
        ids, complaints = read_parts(folder, files, ["row_id"])
        for complaint in complaints:
            _log.warning(complaint)
        if any(pc.any(_begins(table, row_id)).as_py() for table in ids):
            tables += read_parts(folder, files, SAMPLE_SCHEMA.names)[0]
    for table in tables:
        found = table.filter(_begins(table, row_id))
        if len(found):
            yield found


def _begins(table: pa.Table, row_id: str) -> pa.ChunkedArray:
    return pc.starts_with(table["row_id"], row_id)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def rerun_command(row: SampleRow, *, out: str) -> tuple[str, ...] | None:
    """The words of the command that runs this one sample again, with its results in the folder `out`.

    A row that does not hold the command of its run, as those of earlier versions, gives all of it but which
    device and how many prompts at once. None where it does not: a variant of a task, a loss.
    """
    words = row.command or _command_of(row)
    return None if words is None else (*words, "--only", row.row_id, "--out", out)


def _command_of(row: SampleRow) -> tuple[str, ...] | None:
    if row.variant or row.metric == LOSS:
        return None
    match row.task:
        case "passkey":
            asking = ["passkey"]
        case task if task in RULER_TASKS:
            asking = ["ruler", "--tasks", task]
        case task:
            asking = ["run", task]
    kind, _, count = row.depth_policy.partition(":")
    samples, depths = max(row.sample + 1, int(count or 1)), count or kind
    numbers = ["--lengths", format_length(row.length), "--samples", str(samples), "--seed", str(row.seed)]
    how = ["--depths", depths, "--backend", row.backend, "--dtype", row.dtype]
    return ("bamctl", *asking, "--model", row.model, *numbers, *how)


def rebuild_text(row: SampleRow) -> PromptText:
    """What the prompt of a row said, of which the row has no more than the digest.

    The prompt is made anew from the task's file and the tokenizer of the model that has the row's name here.

    Raises:
        BadInput: they are not at hand, or not what they were.
    """
    from bamctl.models.loading import open_tokenizer

    if row.prompt_digest is None or row.depth is None:
        raise BadInput("no prompt was made")
    spec = load_spec(row.task)
    if spec.digest != row.task_digest:
        varied = f", and the run had {row.variant}" if row.variant else ""
        raise BadInput(f"the task {row.task} is another one here{varied}")
    tokenizer = PromptTokenizer(open_tokenizer(row.model), chat=spec.apply_chat_template)
    if tokenizer.digest != row.tokenizer_digest:
        raise BadInput(f"the tokenizer of {row.model} is another one here")
    sample = PlannedSample(row_id=row.row_id, length=row.length, sample=row.sample, depth=row.depth[0])
    task = build_task(spec, tokenizer)
    prompt = task.build(length=sample.length, depth=sample.depth, rng=sample.rng())
    if prompt.digest != row.prompt_digest:
        raise BadInput("the prompt as it is made here is another one")
    return prompt_text(prompt, tokenizer)
