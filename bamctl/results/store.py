"""The store of one run: rows go to a journal as samples finish, and are folded into Parquet.

A run's folder is `<out>/<task>/<model>-<run_id>/` and holds

    run.json           the run's identity, the facts of its model, the version that began it
    run.lock           locked for a moment by a process that writes what is common to all
    journal.jsonl      rows not folded yet, one JSON line each; locked by the process that writes
    samples.parquet    rows, SAMPLE_SCHEMA
    accuracy.parquet   the accuracy of all rows at each length, ACCURACY_SCHEMA
    journal.rejected   lines that were found in the journal and are no rows; absent as a rule

and for each shard a journal, samples and rejected lines of its own: `journal.2-of-8.jsonl` and so on. A
process writes to its own part alone, and reads all of them.

Samples and accuracy are replaced atomically before the journal is emptied, and rows are told apart by
their row_id. So a kill at any moment loses at most the row being written, and doubles none.
"""

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import bamctl
from bamctl.errors import BadInput, RunFailed
from bamctl.results.files import move_aside, path_safe, reason, replace_file, write_all
from bamctl.results.frames import decoded, to_frame, to_table, with_pandas_types
from bamctl.results.journal import read_journal, rows_table
from bamctl.results.loading import (
    DamagedTable,
    journal_name,
    load_samples,
    read_parts,
    read_samples,
    samples_name,
)
from bamctl.results.locking import lock_folder, lock_part
from bamctl.results.merging import KEYS, merge
from bamctl.results.schema import ACCURACY_SCHEMA, SAMPLE_SCHEMA, ModelFacts, RunIdentity, SampleRow
from bamctl.results.shard import Shard
from bamctl.results.statistics import ACCURACY_COLUMNS, accuracy_table

__all__ = ["RunStore", "accuracy_table", "load_samples"]

ACCURACY = "accuracy.parquet"
DAMAGED = "damaged"
DESCRIPTION = "run.json"
_log = logging.getLogger(__name__)


class RunStore:
    """One run's folder, of which this process alone may write to one part. Made by `RunStore.open`."""

    folder: Path

    def __init__(self, folder: Path, run_id: str, shard: Shard | None, journal: int) -> None:
        self.folder = folder
        self.shard = shard
        self._run_id = run_id
        self._journal: int | None = journal  # its descriptor, which holds the lock; None once closed
        self._done: set[str] = set()

    @classmethod
    def open(
        cls, out: Path, identity: RunIdentity, facts: ModelFacts, *, shard: Shard | None = None
    ) -> "RunStore":
        """Opens the run's folder below `out`, makes it where there is none, and locks a part of it.

        Reads the ids of what is there, not the rows; a run that is complete opens as fast as that. A table of
        its own that is damaged is moved aside with a warning; what was in it counts as not done.

        Args:
            out: folder of results.
            identity: what defines the run.
            facts: what is known of its model.
            shard: the part to write to; None for that of the whole run.

        Raises:
            BadInput: the folder cannot be made or written to, or holds something that is not this run or
                cannot be read. What this call had made is removed again.
            RunFailed: another process has the part open.
        """
        folder = out / path_safe(identity.task) / f"{path_safe(identity.model)}-{identity.run_id}"
        path = folder / journal_name(shard)
        part = f"{folder}: {'this run' if shard is None else f'shard {shard} of this run'}"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            with lock_folder(folder) as undo:
                if not path.exists():
                    undo.callback(path.unlink, missing_ok=True)
                journal = os.open(path, flags, 0o666)
                undo.callback(os.close, journal)
                lock_part(journal, part)
                _describe(folder, identity, facts, undo)
                waiting = read_journal(path)
                if os.fstat(journal).st_size > waiting.whole_bytes:
                    os.ftruncate(journal, waiting.whole_bytes)  # a line that a kill cut off
                store = cls(folder, identity.run_id, shard, journal)
                for complaint in store._find_done():
                    _log.warning(complaint)
        except OSError as error:
            raise BadInput(
                f"{folder}: results cannot be written there ({reason(error)}); name another folder with --out"
            ) from error
        return store

    def done(self) -> set[str]:
        """The row_ids of the samples that are done, by whatever part when this one was opened."""
        return set(self._done)

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """What is stored, of all parts, Parquet and journals together: one row a sample.

        Args:
            columns: of SAMPLE_SCHEMA; all by default.

        Raises:
            BadInput: a file of its own part's cannot be read.
        """
        names = SAMPLE_SCHEMA.names if columns is None else list(columns)
        tables, _ = self._tables(list(dict.fromkeys((*names, *KEYS))))
        return to_frame(merge(tables).select(names))

    def append(self, row: SampleRow) -> None:
        """Stores a row; when this returns it is on the disk.

        Raises:
            RunFailed: it cannot be written; the journal is as it was.
            ValueError: the row is another run's, or has a value that is not of its column's type.
        """
        if row.run_id != self._run_id:
            raise ValueError(f"row {row.row_id} is of run {row.run_id}, the store of {self._run_id}")
        # A model's output may hold surrogates, which have no UTF-8.
        line = row.to_json().encode("utf-8", "replace") + b"\n"
        rows_table([SampleRow.from_json(line)])  # what could not be folded must not get in
        journal = self._descriptor()
        end = os.fstat(journal).st_size
        try:
            write_all(journal, line)
            os.fsync(journal)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(journal, end)
            if isinstance(error, OSError):
                raise RunFailed(
                    f"{self.folder}: cannot write ({reason(error)}); what was finished is kept"
                ) from error
            raise
        if row.status == "done":
            self._done.add(row.row_id)

    def fold(self) -> None:
        """Moves the journal's rows into the part's Parquet file and renews accuracy.parquet.

        Does nothing where nothing waits. May be interrupted anywhere and done again.

        Raises:
            RunFailed: a file cannot be written; every row is kept, in the journal or in Parquet.
            BadInput: a file of the run's cannot be read.
        """
        journal = self._descriptor()
        waiting = read_journal(self._journal_path)
        if not waiting.whole_bytes and (
            _is_parquet(self.folder / ACCURACY) or not any(self.folder.glob("samples*.parquet"))
        ):
            return
        own = merge([decoded(self._samples()), waiting.rows]).combine_chunks()
        try:
            _write_table(with_pandas_types(own), self.folder / samples_name(self.shard))
            with lock_folder(self.folder):  # whoever comes last has read what all the others wrote
                tables, _ = self._tables(list(dict.fromkeys((*KEYS, *ACCURACY_COLUMNS))))
                accuracy = accuracy_table(to_frame(merge(tables)))
                table = to_table(accuracy, ACCURACY_SCHEMA)
                _write_table(table, self.folder / ACCURACY, by="" if self.shard is None else self.shard.tag)
            if waiting.rejected:
                with self._journal_path.with_suffix(".rejected").open("ab") as file:
                    file.writelines(line + b"\n" for line in waiting.rejected)
            os.ftruncate(journal, 0)
            os.fsync(journal)
        except OSError as error:
            raise RunFailed(
                f"{self.folder}: cannot write the tables ({reason(error)}); what was finished is kept"
            ) from error

    def close(self) -> None:
        """Folds what waits and lets go of the run; closing again does nothing.

        Raises:
            RunFailed, BadInput: as `fold`; the run is let go of nevertheless.
        """
        if self._journal is None:
            return
        try:
            self.fold()
        finally:
            os.close(self._journal)
            self._journal = None

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Where something went wrong already, a fold that fails too must not hide it: the journal keeps all.
        with contextlib.suppress(*[RunFailed, BadInput] if error is not None else []):
            self.close()

    @property
    def _journal_path(self) -> Path:
        return self.folder / journal_name(self.shard)

    def _descriptor(self) -> int:
        if self._journal is None:
            raise ValueError(f"the store of {self.folder} is closed")
        return self._journal

    def _find_done(self) -> tuple[str, ...]:
        """Finds out what is done; returns complaints about what cannot be read of it."""
        tables, complaints = self._tables(["row_id", "status"])
        self._done = {
            row_id
            for table in tables
            for row_id, status in zip(*(table[c].to_pylist() for c in ("row_id", "status")), strict=True)
            if status == "done"
        }
        return complaints

    def _tables(self, columns: Sequence[str]) -> tuple[list[pa.Table], tuple[str, ...]]:
        """What all parts hold, its own last, and complaints about what cannot be read."""
        own = self._samples(columns)
        files = [path.name for path in self.folder.iterdir()]
        others, complaints = read_parts(self.folder, files, columns, without=samples_name(self.shard))
        return [own, *others], complaints

    def _samples(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Its own table; one that is damaged is moved aside, with what was in it."""
        path = self.folder / samples_name(self.shard)
        try:
            return read_samples(path, columns)
        except DamagedTable:
            aside = move_aside(path, DAMAGED)
            _log.warning("%s: damaged; moved to %s, what was in it is to be run again", path, aside.name)
            self._find_done()
            return read_samples(path, columns)


def _is_parquet(path: Path) -> bool:
    """Whether a Parquet file is there and not damaged."""
    try:
        pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def _describe(folder: Path, identity: RunIdentity, facts: ModelFacts, undo: contextlib.ExitStack) -> None:
    """Writes run.json, or checks that the one that is there is this run's."""
    path = folder / DESCRIPTION
    try:
        known = json.loads(path.read_bytes())["identity"]
    except FileNotFoundError:
        undo.callback(path.unlink, missing_ok=True)
        content = {
            "run_id": identity.run_id,
            "identity": asdict(identity),
            "model": asdict(facts),
            "bamctl_version": bamctl.__version__,
        }
        replace_file(path, lambda aside: _write_text(aside, json.dumps(content, indent=2) + "\n"))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not the description of a run; move the folder aside") from error
    else:
        if known != asdict(identity):
            raise BadInput(f"{path}: describes another run; move the folder aside")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_table(table: pa.Table, path: Path, *, by: str = "") -> None:
    replace_file(path, lambda aside: pq.write_table(table, aside, compression="zstd"), by=by)
