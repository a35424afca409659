"""Reading results: what Parquet files and journals hold together, one row a sample."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bamctl.errors import BadInput
from bamctl.results.files import reason
from bamctl.results.frames import to_frame
from bamctl.results.journal import read_journal
from bamctl.results.schema import EARLIER, SAMPLE_SCHEMA, SCHEMA_VERSION, STATUSES, VERSION_KEY

JOURNAL = "journal.jsonl"
SAMPLES = "samples.parquet"
_log = logging.getLogger(__name__)


def read_samples(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet file of samples; one that does not exist is empty.

    Args:
        path: the file.
        columns: the columns to read; all by default.

    Returns:
        A table of SAMPLE_SCHEMA, or of its part that `columns` names. Columns that a file of an earlier
        version lacks are null, or what EARLIER says.

    Raises:
        BadInput: the file cannot be read, is no table of samples, or was written by a later version.
    """
    names = list(SAMPLE_SCHEMA.names if columns is None else columns)
    schema = pa.schema([SAMPLE_SCHEMA.field(name) for name in names], metadata=SAMPLE_SCHEMA.metadata)
    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow
            version = int((found.metadata or {}).get(VERSION_KEY, b"1"))
            if version > SCHEMA_VERSION:
                raise BadInput(
                    f"{path}: written by a later bamctl (schema {version}, this one reads up to"
                    f" {SCHEMA_VERSION}); upgrade bamctl"
                )
            needed = [field.name for field in SAMPLE_SCHEMA if not field.nullable]
            lacking = [name for name in needed if name not in found.names and name not in EARLIER]
            if lacking:
                raise BadInput(f"{path}: not a table of samples, it has no column {lacking[0]}")
            table = file.read(columns=[name for name in names if name in found.names])
        for name in names:
            if name not in table.column_names:
                value = pa.scalar(EARLIER.get(name), schema.field(name).type)
                table = table.append_column(name, pa.repeat(value, len(table)))
        return table.select(names).cast(schema)
    except FileNotFoundError:
        return schema.empty_table()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(
            f"{path}: cannot be read as a table of samples ({reason(error)}); move it aside"
        ) from error


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables of SAMPLE_SCHEMA as one with each sample once, sorted by run, length and sample.

    Of several rows of one sample done counts before failed and failed before skipped; of equals, the one
    that was started last, and then the later one in the order given.
    """
    table = pa.concat_tables(tables)
    keys = table.select(["run_id", "row_id", "status", "started_at", "length", "sample"]).to_pandas()
    keys["rank"] = keys["status"].map({status: rank for rank, status in enumerate(STATUSES)})
    keys = keys.sort_values(["rank", "started_at"], na_position="first", kind="stable")
    keys = keys.drop_duplicates(["run_id", "row_id"], keep="last")
    keys = keys.sort_values(["run_id", "length", "sample", "row_id"])
    return table.take(pa.array(keys.index, type=pa.int64())).combine_chunks()


def load_samples(paths: Sequence[Path]) -> pd.DataFrame:
    """Every sample of every run at or below the paths, those still in journals included.

    Args:
        paths: folders that hold runs at any depth, a run's own folder, or Parquet files of samples.

    Returns:
        A frame of SAMPLE_SCHEMA, each (run_id, row_id) once; without rows where nothing was found.

    Raises:
        BadInput: a path does not exist, or is a file that cannot be read. About a damaged file in a
            folder, or a line of a journal that is no row, there is a warning, and the rest is kept.
    """
    tables = [SAMPLE_SCHEMA.empty_table()]
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder")
        if path.is_file():
            tables.append(read_samples(path))
        else:
            for folder, names in _run_folders(path):
                # The journal first: a fold that comes between then shows its rows twice, never not at all.
                journal = read_journal(folder / JOURNAL)
                for complaint in journal.complaints:
                    _log.warning(complaint)
                tables.append(journal.rows)
                for name in names:
                    try:
                        tables.append(read_samples(folder / name))
                    except BadInput as error:  # one damaged run must not hide all others
                        _log.warning("left out: %s", error)
    return to_frame(merge(tables))


def _run_folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """The folders below `top` that hold a journal or samples, and the names of their Parquet files."""

    def stop(error: OSError) -> NoReturn:
        raise BadInput(f"{error.filename}: cannot be read ({reason(error)})") from error

    for folder, _, names in os.walk(top, onerror=stop):
        samples = sorted(n for n in names if n.startswith("samples") and n.endswith(".parquet"))
        if samples or JOURNAL in names:
            # The first fold may put its file in place after this listing was made.
            yield Path(folder), samples or [SAMPLES]
