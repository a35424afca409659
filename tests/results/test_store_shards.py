"""Several processes share one run: each writes to a part of its own, and all read everything."""

import errno
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

import bamctl
from bamctl.errors import RunFailed
from bamctl.results.shard import Shard
from bamctl.results.store import RunStore, load_samples


@pytest.fixture
def open_store(tmp_path, identity, facts):
    return lambda: RunStore.open(tmp_path / "out", identity, facts)


@pytest.fixture
def open_shard(tmp_path, identity, facts):
    return lambda k, n: RunStore.open(tmp_path / "out", identity, facts, shard=Shard(k=k, n=n))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_shards_have_files_of_their_own_and_one_accuracy(open_store, open_shard, make_row):
    with open_shard(1, 2) as first, open_shard(2, 2) as second:
        first.append(make_row(0))
        second.append(make_row(1))
        assert first.done() == {"512-0"}
        assert first.rows()["row_id"].tolist() == ["512-0", "512-1"]
        assert first.rows(["sample"]).values.tolist() == [[0], [1]]
        first.fold()
        accuracy = first.folder / "accuracy.parquet"
        assert pd.read_parquet(accuracy)["n"].tolist() == [2]  # what waits in another's journal counts
        second.append(make_row(3))
    assert pd.read_parquet(accuracy)["n"].tolist() == [3]
    assert entries(first.folder) == [
        "accuracy.parquet",
        "journal.1-of-2.jsonl",
        "journal.2-of-2.jsonl",
        "run.json",
        "run.lock",
        "samples.1-of-2.parquet",
        "samples.2-of-2.parquet",
    ]
    assert len(pd.read_parquet(first.folder / "samples.2-of-2.parquet")) == 2
    with open_store() as whole:
        assert whole.done() == {"512-0", "512-1", "512-3"}
        whole.append(make_row(2))
    with open_shard(1, 3) as other:
        assert other.done() == {f"512-{sample}" for sample in range(4)}
    assert load_samples([whole.folder])["sample"].tolist() == [0, 1, 2, 3]
    assert pd.read_parquet(accuracy)["n"].tolist() == [4]


def test_a_sample_that_two_parts_have_counts_once(open_store, open_shard, make_row):
    with open_store() as whole, open_shard(1, 1) as shard:
        whole.append(make_row(0, status="failed"))
        shard.append(make_row(0))
        whole.append(make_row(1, exact=False, started_at=make_row(9).started_at))
        shard.append(make_row(1))
    assert load_samples([whole.folder])["exact"].tolist() == [True, False]
    accuracy = pd.read_parquet(whole.folder / "accuracy.parquet")
    assert accuracy[["n", "exact_count", "failed"]].values.tolist() == [[2, 1, 0]]


def test_a_shard_that_is_open_is_refused_alone(open_shard):
    with open_shard(2, 8):
        with pytest.raises(
            RunFailed, match=r"^[^\n]*: shard 2/8 of this run is open in another process; wait"
        ):
            open_shard(2, 8)
        with open_shard(3, 8), open_shard(2, 4):
            pass


def test_a_shard_moves_no_other_part_aside(open_store, open_shard, make_row, caplog):
    with open_store() as whole:
        whole.append(make_row(0))
    (whole.folder / "samples.parquet").write_bytes(b"PAR1")
    with caplog.at_level(logging.WARNING), open_shard(1, 2) as shard:
        assert shard.done() == set()
        shard.append(make_row(0))
    (message,) = caplog.messages
    assert message.startswith(f"left out: {whole.folder}/samples.parquet: cannot be read")
    assert (whole.folder / "samples.parquet").read_bytes() == b"PAR1"
    assert pd.read_parquet(whole.folder / "accuracy.parquet")["n"].tolist() == [1]


def test_a_line_that_is_no_row_is_kept_aside_by_its_own_shard(open_shard, make_row, caplog):
    with open_shard(1, 2) as first:
        pass
    (first.folder / "journal.1-of-2.jsonl").write_bytes(b"noise\n" + make_row(0).to_json().encode() + b"\n")
    with caplog.at_level(logging.WARNING), open_shard(2, 2) as second:
        assert second.done() == {"512-0"}
    assert not list(first.folder.glob("*.rejected"))
    with open_shard(1, 2):
        pass
    assert (first.folder / "journal.1-of-2.rejected").read_bytes() == b"noise\n"
    assert len(caplog.messages) == 2


def test_a_shard_that_cannot_start_takes_nothing_of_the_others_away(open_shard, make_row, monkeypatch):
    with open_shard(1, 2) as first:
        first.append(make_row(0))
        before = entries(first.folder)
        with monkeypatch.context() as patch:
            patch.setattr("bamctl.results.store.lock_part", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                open_shard(2, 2)
        assert entries(first.folder) == before
    assert load_samples([first.folder])["row_id"].tolist() == ["512-0"]


STARTER = """
import json, sys
from pathlib import Path
from bamctl.results.schema import ModelFacts, RunIdentity
from bamctl.results.shard import Shard
from bamctl.results.store import RunStore

identity, facts = RunIdentity(**json.loads(sys.argv[2])), ModelFacts(**json.loads(sys.argv[3]))
print("ready", flush=True)
sys.stdin.readline()
with RunStore.open(Path(sys.argv[1]), identity, facts, shard=Shard(k=int(sys.argv[4]), n=2)) as store:
    print(store.folder.name, flush=True)
"""


def test_shards_that_start_at_once_share_a_folder(tmp_path, identity, facts):
    environment = os.environ | {"PYTHONPATH": str(Path(bamctl.__file__).parents[1])}
    texts = [json.dumps(asdict(identity)), json.dumps(asdict(facts))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, tmp_path / "out", *texts, str(k)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in (1, 2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert {process.communicate()[0] for process in processes} == {f"models-tiny-{identity.run_id}\n"}
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_without_locks_there_is_a_warning_and_all_else_works(open_shard, make_row, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with caplog.at_level(logging.WARNING), open_shard(1, 2) as first, open_shard(2, 2) as second:
        first.append(make_row(0))
        second.append(make_row(1))
    assert ["cannot be locked (No locks available)" in message for message in caplog.messages] == [True, True]
    assert pd.read_parquet(first.folder / "accuracy.parquet")["n"].tolist() == [2]
