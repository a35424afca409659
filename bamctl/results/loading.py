"""Reading results: what Parquet files and journals hold together, one row a sample.

A part of a run is what one process at a time writes: a journal and a Parquet file, of the whole run or of a
shard.
"""

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bamctl.errors import BadInput
from bamctl.results.files import reason
from bamctl.results.frames import to_frame
from bamctl.results.journal import read_journal
from bamctl.results.merging import KEYS, merge
from bamctl.results.schema import EARLIER, REPETITIVE, SAMPLE_SCHEMA, SCHEMA_VERSION, VERSION_KEY
from bamctl.results.shard import Shard

_FEW_ROWS = 10_000
"""A file of as many is read quicker without threads."""
_log = logging.getLogger(__name__)


class DamagedTable(BadInput):
    """A file that is no Parquet file, or no longer a whole one."""


def journal_name(shard: Shard | None) -> str:
    """``journal.jsonl``, or ``journal.2-of-8.jsonl``."""
    return "journal.jsonl" if shard is None else f"journal.{shard.tag}.jsonl"


def samples_name(shard: Shard | None) -> str:
    """``samples.parquet``, or ``samples.2-of-8.parquet``."""
    return "samples.parquet" if shard is None else f"samples.{shard.tag}.parquet"


def load_samples(paths: Sequence[Path], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Every sample of every run at or below the paths, those still in journals included.

    Args:
        paths: folders that hold runs at any depth, a run's own folder, or Parquet files of samples.
        columns: the columns to read, in this order; all by default. Without texts it is far cheaper.

    Returns:
        A frame of SAMPLE_SCHEMA, or of these columns of it, each (run_id, row_id) once; without rows where
        nothing was found.

    Raises:
        BadInput: a path does not exist, or is a file that cannot be read. About a damaged file in a
            folder, or a line of a journal that is no row, there is a warning, and the rest is kept.
    """
    names = SAMPLE_SCHEMA.names if columns is None else list(columns)
    needed = list(dict.fromkeys((*names, *KEYS)))
    tables = [_schema(needed).empty_table()]
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder")
        if path.is_file():
            tables.append(read_samples(path, needed))
        else:
            for folder, files in walk_folders(path):
                parts, complaints = read_parts(folder, files, needed)
                tables += parts
                for complaint in complaints:
                    _log.warning(complaint)
    table = merge(tables).select(names)
    del tables  # with the columns that were needed for merging alone
    return to_frame(table)


def read_parts(
    folder: Path, files: Collection[str], columns: Sequence[str], *, without: str | None = None
) -> tuple[list[pa.Table], tuple[str, ...]]:
    """What the parts of one run hold.

    Args:
        folder: the run's.
        files: names of files in it; those that are no journals and no tables of samples do not matter.
        columns: the columns to read.
        without: the name of a Parquet file that is not to be read.

    Returns:
        Tables as `read_samples` gives them, in which a sample may occur again, and complaints about what
        cannot be read.
    """
    journals = sorted(name for name in files if name.startswith("journal") and name.endswith(".jsonl"))
    samples = {name for name in files if name.startswith("samples") and name.endswith(".parquet")}
    # The first fold may put its file in place after the folder was listed.
    samples |= {f"samples{name.removeprefix('journal').removesuffix('.jsonl')}.parquet" for name in journals}
    tables: list[pa.Table] = []
    complaints: list[str] = []
    # The journals first: a fold that comes between then shows its rows twice, never not at all.
    for name in journals:
        journal = read_journal(folder / name)
        complaints += journal.complaints
        if len(journal.rows):
            tables.append(_conform(journal.rows, folder / name, columns))
    for name in sorted(samples - {without}):
        try:
            tables.append(read_samples(folder / name, columns))
        except BadInput as error:  # one damaged part must not hide all others
            complaints.append(f"left out: {error}")
    return tables, tuple(complaints)


def read_samples(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet file of samples; one that does not exist is empty.

    Args:
        path: the file.
        columns: the columns to read; all by default.

    Returns:
        A table of SAMPLE_SCHEMA, or of its part that `columns` names, but that the columns REPETITIVE are
        dictionary-encoded. Columns that a file of an earlier version lacks are null, or what EARLIER says.

    Raises:
        DamagedTable: the file is no Parquet file, or no longer a whole one.
        BadInput: it cannot be read, is no table of samples, or was written by a later version.
    """
    names = SAMPLE_SCHEMA.names if columns is None else list(columns)
    try:
        with _open(path) as file:
            found = file.schema_arrow
            _check(path, found)
            present = [name for name in names if name in found.names]
            table = file.read(columns=present, use_threads=file.metadata.num_rows > _FEW_ROWS)
    except FileNotFoundError:
        return _schema(names).empty_table()
    except (pa.ArrowException, OSError) as error:
        kind = BadInput if getattr(error, "errno", None) else DamagedTable
        raise kind(
            f"{path}: cannot be read as a table of samples ({reason(error)}); move it aside"
        ) from error
    return _conform(table, path, names)


def _open(path: Path) -> pq.ParquetFile:
    """A Parquet file whose columns REPETITIVE, as far as it has them, are read dictionary-encoded."""
    try:
        return pq.ParquetFile(path, read_dictionary=REPETITIVE)
    except KeyError:  # it lacks one
        with pq.ParquetFile(path) as file:
            content, names = file.metadata, file.schema_arrow.names
        encoded = [name for name in REPETITIVE if name in names]
        return pq.ParquetFile(path, metadata=content, read_dictionary=encoded)


def _check(path: Path, found: pa.Schema) -> None:
    """Whether a file with this schema is a table of samples that this version can read."""
    noted = (found.metadata or {}).get(VERSION_KEY, b"1")
    if not noted.isdigit():
        raise BadInput(f"{path}: not a table of samples, its schema's version is {noted!r}; move it aside")
    if int(noted) > SCHEMA_VERSION:
        raise BadInput(
            f"{path}: written by a later bamctl (schema {int(noted)}, this one reads up to {SCHEMA_VERSION});"
            " upgrade bamctl"
        )
    for field in SAMPLE_SCHEMA:
        if not field.nullable and field.name not in found.names and field.name not in EARLIER:
            raise BadInput(f"{path}: not a table of samples, it has no column {field.name}; move it aside")


def _conform(table: pa.Table, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """A table of `path` with these columns, of the types that they have today."""
    schema = _schema(SAMPLE_SCHEMA.names if columns is None else columns)
    for field in schema:
        if field.name not in table.column_names:
            value = pa.scalar(EARLIER.get(field.name), SAMPLE_SCHEMA.field(field.name).type)
            table = table.append_column(field.name, pa.repeat(value, len(table)))
    table = table.select(schema.names)
    try:
        if table.schema.types == schema.types:
            table = pa.Table.from_arrays(table.columns, schema=schema)
        else:  # which takes a while
            table = table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise BadInput(f"{path}: not a table of samples ({reason(error)}); move it aside") from error
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            raise BadInput(
                f"{path}: not a table of samples, its column {field.name} has nulls; move it aside"
            )
    return table


def _schema(names: Iterable[str]) -> pa.Schema:
    """The part of SAMPLE_SCHEMA of these columns, with REPETITIVE dictionary-encoded."""
    return _schema_of(tuple(names))


@functools.cache
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    encoded = pa.dictionary(pa.int32(), pa.string())
    fields = [SAMPLE_SCHEMA.field(name) for name in names]
    return pa.schema(
        [field.with_type(encoded) if field.name in REPETITIVE else field for field in fields],
        metadata=SAMPLE_SCHEMA.metadata,
    )


def walk_folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """The folders at and below `top`, and the names of their files.

    Raises:
        BadInput: one of them cannot be read.
    """

    def stop(error: OSError) -> NoReturn:
        raise BadInput(f"{error.filename}: cannot be read ({reason(error)})") from error

    for folder, _, files in os.walk(top, onerror=stop):
        yield Path(folder), files
