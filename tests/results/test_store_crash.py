"""Whatever moment a run is stopped at, no finished row is lost and none is there twice."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import bamctl
from bamctl.errors import RunFailed
from bamctl.results.store import RunStore, load_samples

WRITER = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow
from bamctl.results.store import RunStore

out, identity, facts, row = sys.argv[1:]
row = SampleRow.from_json(row)

def write_until_killed():
    print(os.getpid(), flush=True)
    store = RunStore.open(Path(out), RunIdentity(**json.loads(identity)), ModelFacts(**json.loads(facts)))
    sample = len(store.rows())
    while True:
        store.append(replace(row, row_id=f"{row.length}-{sample}", sample=sample))
        print(sample, flush=True)
        sample += 1
        if sample % 3 == 0:
            store.fold()

for _ in sys.stdin:  # a line starts another writer; the imports, which take long, are done once
    pid = os.fork()
    if pid == 0:
        write_until_killed()
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork, no SIGKILL")
def test_a_run_that_is_killed_at_any_moment(tmp_path, identity, facts, make_row):
    environment = os.environ | {"PYTHONPATH": str(Path(bamctl.__file__).parents[1])}
    texts = [json.dumps(asdict(identity)), json.dumps(asdict(facts)), make_row().to_json()]
    command = [sys.executable, "-c", WRITER, str(tmp_path), *texts]
    moments = random.Random(0)
    count = 0  # of rows that must be there
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(20):
            process.stdin.write("\n")
            process.stdin.flush()
            pid = int(process.stdout.readline())
            assert int(process.stdout.readline()) == count
            seen = load_samples([tmp_path])  # a reader while it runs
            assert set(range(count + 1)) <= set(seen["sample"])
            time.sleep(moments.uniform(0, 0.04))
            os.kill(pid, signal.SIGKILL)
            told = list(iter(process.stdout.readline, "ended\n"))
            for path in tmp_path.rglob("*.parquet"):
                pd.read_parquet(path)
            samples = load_samples([tmp_path])
            # One more row than was told may be there: its append had not returned.
            assert samples["sample"].tolist() == list(range(len(samples)))
            assert count + 1 + len(told) <= len(samples) <= count + 2 + len(told)
            count = len(samples)
        process.stdin.close()
    with RunStore.open(tmp_path, identity, facts) as store:
        assert store.done() == {f"512-{sample}" for sample in range(count)}
    assert pd.read_parquet(store.folder / "accuracy.parquet")["n"].tolist() == [count]
    assert count > 40


class Killed(BaseException):
    """Stands for the end of the process: no code of ours handles it."""


STEPS = 10  # of a fold: two tables are each written, synced, put in place and their folder synced; two more


@pytest.mark.parametrize("step", range(STEPS + 1))
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), Killed()], ids=type)
def test_a_fold_that_stops_at_any_step(tmp_path, identity, facts, make_row, monkeypatch, step, failure):
    with RunStore.open(tmp_path, identity, facts) as store:
        store.append(make_row(0))
        store.append(make_row(1, status="failed"))
    store = RunStore.open(tmp_path, identity, facts)
    store.append(make_row(1))
    store.append(make_row(2))
    expected = store.rows()
    taken = 0

    def breaking(function):
        def call(*args, **kwargs):
            nonlocal taken
            if taken == step:
                if function is write_table:
                    Path(args[1]).write_bytes(b"PAR1 half a table")
                raise failure
            taken += 1
            return function(*args, **kwargs)

        return call

    write_table = pq.write_table
    with monkeypatch.context() as patch:
        for module, name in ((os, "fsync"), (os, "replace"), (os, "ftruncate"), (pq, "write_table")):
            patch.setattr(module, name, breaking(getattr(module, name)))
        if step == STEPS:
            store.fold()
        elif isinstance(failure, OSError):
            with pytest.raises(RunFailed, match=r"^[^\n]*cannot write the tables \(No space[^\n]*$"):
                store.close()
        else:
            with pytest.raises(Killed):
                store.close()
        assert taken == step
    store.close()

    pd.testing.assert_frame_equal(load_samples([tmp_path]), expected)
    for path in store.folder.glob("*.parquet"):
        pd.read_parquet(path)
    with RunStore.open(tmp_path, identity, facts) as store:
        pd.testing.assert_frame_equal(store.rows(), expected)
        assert store.done() == {"512-0", "512-1", "512-2"}
    pd.testing.assert_frame_equal(load_samples([tmp_path]), expected)
    assert pd.read_parquet(store.folder / "accuracy.parquet")["n"].tolist() == [3]
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "accuracy.parquet",
        "journal.jsonl",
        "run.json",
        "run.lock",
        "samples.parquet",
    ]


def test_a_reader_never_misses_a_row_that_is_being_folded(tmp_path, identity, facts, make_row, monkeypatch):
    """The fold happens after the reader has read the journal and before it reads the table."""
    import bamctl.results.loading as loading

    store = RunStore.open(tmp_path, identity, facts)
    store.append(make_row(0))
    read = loading.read_journal

    def read_then_fold(path):
        monkeypatch.undo()
        journal = read(path)
        store.fold()
        return journal

    monkeypatch.setattr(loading, "read_journal", read_then_fold)
    assert loading.load_samples([tmp_path])["row_id"].tolist() == ["512-0"]
    store.close()
