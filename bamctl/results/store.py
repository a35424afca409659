"""The store of one run: rows go to a journal as samples finish, and are folded into Parquet.

A run's folder is `<out>/<task>/<model>-<run_id>/` and holds

    run.json           the run's identity, the facts of its model, the version that began it
    journal.jsonl      rows not folded yet, one JSON line each; locked by the process that writes
    samples.parquet    rows, SAMPLE_SCHEMA
    accuracy.parquet   their accuracy at each length, ACCURACY_SCHEMA
    journal.rejected   lines that were found in the journal and are no rows; absent as a rule

Samples and accuracy are replaced atomically before the journal is emptied, and rows are told apart by
their row_id. So a kill at any moment loses at most the row being written, and doubles none.
"""

import contextlib
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import bamctl
from bamctl.errors import BadInput, RunFailed
from bamctl.results.files import missing_folders, path_safe, reason, remove_empty, replace_file, write_all
from bamctl.results.frames import to_frame, to_table, with_pandas_types
from bamctl.results.journal import read_journal, rows_table
from bamctl.results.loading import JOURNAL, SAMPLES, load_samples, merge, read_samples
from bamctl.results.schema import ACCURACY_SCHEMA, ModelFacts, RunIdentity, SampleRow
from bamctl.results.statistics import accuracy_table

if sys.platform != "win32":
    import fcntl

__all__ = ["RunStore", "accuracy_table", "load_samples"]

ACCURACY = "accuracy.parquet"
REJECTED = "journal.rejected"
DESCRIPTION = "run.json"
_log = logging.getLogger(__name__)


class RunStore:
    """One run's folder, open for writing by this process alone. Made by `RunStore.open`."""

    folder: Path

    def __init__(self, folder: Path, run_id: str, journal: int, done: set[str]) -> None:
        self.folder = folder
        self._run_id = run_id
        self._journal: int | None = journal  # its descriptor, which holds the lock; None once closed
        self._done = done

    @classmethod
    def open(cls, out: Path, identity: RunIdentity, facts: ModelFacts) -> "RunStore":
        """Opens the run's folder below `out`, makes it where there is none, and locks it.

        Reads the ids of what is there, not the rows; a run that is complete opens as fast as that.

        Raises:
            BadInput: the folder cannot be made or written to, or holds something that is not this run or
                cannot be read. What this call had made is removed again.
            RunFailed: another process has the run open.
        """
        folder = out / path_safe(identity.task) / f"{path_safe(identity.model)}-{identity.run_id}"
        with contextlib.ExitStack() as undo:
            undo.callback(remove_empty, missing_folders(folder))
            try:
                folder.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                journal = os.open(folder / JOURNAL, flags, 0o666)
                undo.callback(os.close, journal)
                _lock(journal, folder)
                _describe(folder, identity, facts, undo)
            except OSError as error:
                raise BadInput(
                    f"{folder}: results cannot be written there ({reason(error)});"
                    " name another folder with --out"
                ) from error
            samples = read_samples(folder / SAMPLES, ["row_id", "status"])
            waiting = read_journal(folder / JOURNAL)
            for complaint in waiting.complaints:
                _log.warning(complaint)
            if os.fstat(journal).st_size > waiting.whole_bytes:
                os.ftruncate(journal, waiting.whole_bytes)  # a line that a kill cut off
            done = {
                row_id
                for table in (samples, waiting.rows)
                for row_id, status in zip(*(table[c].to_pylist() for c in ("row_id", "status")), strict=True)
                if status == "done"
            }
            undo.pop_all()
        return cls(folder, identity.run_id, journal, done)

    def done(self) -> set[str]:
        """The row_ids of the samples that are done."""
        return set(self._done)

    def rows(self) -> pd.DataFrame:
        """What is stored, Parquet and journal together: a frame of SAMPLE_SCHEMA, one row a sample.

        Raises:
            BadInput: a file of the run's cannot be read.
        """
        waiting = read_journal(self.folder / JOURNAL).rows
        return to_frame(merge([read_samples(self.folder / SAMPLES), waiting]))

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
        """Moves the journal's rows into samples.parquet and renews accuracy.parquet.

        Does nothing where nothing waits. May be interrupted anywhere and done again.

        Raises:
            RunFailed: a file cannot be written; every row is kept, in the journal or in Parquet.
            BadInput: a file of the run's cannot be read.
        """
        journal = self._descriptor()
        waiting = read_journal(self.folder / JOURNAL)
        folded = (self.folder / SAMPLES).exists(), _is_parquet(self.folder / ACCURACY)
        if not waiting.whole_bytes and folded in [(True, True), (False, False)]:
            return
        table = merge([read_samples(self.folder / SAMPLES), waiting.rows])
        accuracy = to_table(accuracy_table(to_frame(table)), ACCURACY_SCHEMA)
        try:
            _write_table(with_pandas_types(table), self.folder / SAMPLES)
            _write_table(accuracy, self.folder / ACCURACY)
            if waiting.rejected:
                with (self.folder / REJECTED).open("ab") as file:
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

    def _descriptor(self) -> int:
        if self._journal is None:
            raise ValueError(f"the store of {self.folder} is closed")
        return self._journal


def _is_parquet(path: Path) -> bool:
    """Whether a Parquet file is there and not damaged."""
    try:
        pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def _lock(journal: int, folder: Path) -> None:
    """Locks the run for this process, as long as the descriptor is open."""
    if sys.platform == "win32":
        return
    elsewhere = RunFailed(f"{folder}: this run is open in another process; wait until that has ended")
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise elsewhere from None
    except OSError as error:  # some network file systems
        _log.warning("%s: cannot be locked (%s); do not start this run twice at once", folder, reason(error))
    if os.fstat(journal).st_nlink == 0:  # the other process has failed to start, and removed it meanwhile
        raise elsewhere


def _describe(folder: Path, identity: RunIdentity, facts: ModelFacts, undo: contextlib.ExitStack) -> None:
    """Writes run.json, or checks that the one that is there is this run's."""
    path = folder / DESCRIPTION
    try:
        known = json.loads(path.read_bytes())["identity"]
    except FileNotFoundError:
        if (folder / JOURNAL).stat().st_size == 0:
            undo.callback((folder / JOURNAL).unlink, missing_ok=True)
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


def _write_table(table: pa.Table, path: Path) -> None:
    replace_file(path, lambda aside: pq.write_table(table, aside, compression="zstd"))
