"""Reading a journal: one JSON line a row, written as samples finish, perhaps cut off by a kill."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bamctl.errors import BadInput
from bamctl.results.files import reason
from bamctl.results.schema import SAMPLE_SCHEMA, SampleRow


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What a journal holds."""

    rows: pa.Table  # of SAMPLE_SCHEMA, in the order of writing; a row_id may occur again
    whole_bytes: int  # size up to the end of the last whole line; what follows was cut off by a kill
    rejected: tuple[bytes, ...]  # whole lines that are no rows
    complaints: tuple[str, ...]  # one for each of them, naming file and line


def rows_table(rows: Sequence[SampleRow]) -> pa.Table:
    """The rows as a table of SAMPLE_SCHEMA.

    Raises:
        ValueError: a value is not of its column's type, or null where its column has no nulls.
    """
    try:
        table = pa.Table.from_pylist([vars(row) for row in rows], schema=SAMPLE_SCHEMA)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(reason(error)) from error
    for field in SAMPLE_SCHEMA:
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{field.name} is null")
    return table


def read_journal(path: Path) -> Journal:
    """Reads a journal; one that does not exist is empty.

    A last line without an end was cut off by a kill and is left out. Any other line that is no row is
    left out too, and there is a complaint about it.

    Raises:
        BadInput: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({reason(error)})") from error
    whole_bytes = content.rfind(b"\n") + 1
    if not whole_bytes:  # as a run leaves it that has ended
        return Journal(rows=SAMPLE_SCHEMA.empty_table(), whole_bytes=0, rejected=(), complaints=())
    lines = content[:whole_bytes].split(b"\n")[:-1]
    try:
        return _parse(path, lines, whole_bytes, check_types=False)
    except ValueError:  # JSON of the right shape with a value of a wrong type: slower, find the line
        return _parse(path, lines, whole_bytes, check_types=True)


def _parse(path: Path, lines: Sequence[bytes], whole_bytes: int, *, check_types: bool) -> Journal:
    rows: list[SampleRow] = []
    rejected: list[bytes] = []
    complaints: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = SampleRow.from_json(line)
            if check_types:
                rows_table([row])
        except ValueError as error:
            rejected.append(line)
            complaints.append(f"{path}, line {number}: left out, not a sample's row ({reason(error)})")
        else:
            rows.append(row)
    return Journal(
        rows=rows_table(rows),
        whole_bytes=whole_bytes,
        rejected=tuple(rejected),
        complaints=tuple(complaints),
    )
