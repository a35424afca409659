import contextlib
import errno
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bamctl
from bamctl.errors import BadInput, RunFailed
from bamctl.results.schema import VERSION_KEY
from bamctl.results.store import RunStore, load_samples


@pytest.fixture
def open_store(tmp_path, identity, facts):
    return lambda: RunStore.open(tmp_path / "out", identity, facts)


WHOLE = ["accuracy.parquet", "journal.jsonl", "run.json", "run.lock", "samples.parquet"]
"""What is in the folder of a run that has ended."""


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_new_run_has_its_folder_and_its_description(open_store, tmp_path, identity, facts):
    with open_store() as store:
        assert store.folder == tmp_path / "out" / "passkey" / f"models-tiny-{identity.run_id}"
        assert store.done() == set()
        assert store.rows().empty
    assert entries(store.folder) == ["journal.jsonl", "run.json", "run.lock"]
    assert json.loads((store.folder / "run.json").read_text()) == {
        "run_id": identity.run_id,
        "identity": asdict(identity),
        "model": asdict(facts),
        "bamctl_version": bamctl.__version__,
    }


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../../etc", "etc"),
        ("/home/me/My Model", "home-me-My-Model"),
        ("…", "unnamed"),
        ("m" * 300, "m" * 80),
        ("a\nb\\c:d", "a-b-c-d"),
    ],
)
def test_any_name_makes_a_folder_inside(tmp_path, identity, facts, name, folder):
    named = replace(identity, model=name, task=name)
    with RunStore.open(tmp_path, named, facts) as store:
        assert store.folder == tmp_path / folder / f"{folder}-{named.run_id}"


def test_what_is_appended_is_there_at_once_and_after_folding(open_store, make_row):
    with open_store() as store:
        store.append(make_row(0))
        store.append(make_row(1, status="skipped"))
        assert store.done() == {"512-0"}
        before = store.rows()
        assert before["row_id"].tolist() == ["512-0", "512-1"]
        assert entries(store.folder) == ["journal.jsonl", "run.json", "run.lock"]
        store.fold()
        assert entries(store.folder) == WHOLE
        assert (store.folder / "journal.jsonl").read_bytes() == b""
        pd.testing.assert_frame_equal(store.rows(), before)
        store.append(make_row(2))
        assert store.rows()["row_id"].tolist() == ["512-0", "512-1", "512-2"]
    with open_store() as store:
        assert store.done() == {"512-0", "512-2"}
    accuracy = pd.read_parquet(store.folder / "accuracy.parquet")
    assert accuracy[["n", "skipped"]].values.tolist() == [[2, 1]]
    assert len(pd.read_parquet(store.folder / "samples.parquet")) == 3


def test_the_tables_do_not_depend_on_the_order_of_the_samples(tmp_path, identity, facts, make_row):
    contents = []
    for name, order in (("a", [0, 1, 2, 3]), ("b", [2, 0, 3, 1])):
        with RunStore.open(tmp_path / name, identity, facts) as store:
            for sample in order:
                store.append(make_row(sample, length=512 + sample % 2))
                if name == "b":
                    store.fold()
        contents.append([(store.folder / f).read_bytes() for f in ("samples.parquet", "accuracy.parquet")])
    assert contents[0] == contents[1]


def test_done_replaces_failed_and_skipped_and_is_not_replaced(open_store, make_row):
    with open_store() as store:
        store.append(make_row(0, status="failed"))
        store.append(make_row(0, status="skipped"))
        assert store.rows()["status"].tolist() == ["failed"]
        assert store.done() == set()
        store.fold()
        store.append(make_row(0))
        store.append(make_row(0, status="failed"))
        assert store.rows()["status"].tolist() == ["done"]
        assert store.done() == {"512-0"}
    with open_store() as store:
        assert store.rows()["status"].tolist() == ["done"]


def test_opening_what_is_complete_writes_nothing(open_store, make_row):
    with open_store() as store:
        store.append(make_row())
    before = {path: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    inodes = {path: path.stat().st_ino for path in store.folder.iterdir()}
    with open_store() as store:
        assert store.done() == {"512-0"}
    assert {path: path.stat().st_mtime_ns for path in store.folder.iterdir()} == before
    assert {path: path.stat().st_ino for path in store.folder.iterdir()} == inodes


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"garbage")])
def test_a_missing_or_damaged_table_is_made_again(open_store, make_row, damage):
    with open_store() as store:
        store.append(make_row())
    damage(store.folder / "accuracy.parquet")
    with open_store():
        pass
    assert pd.read_parquet(store.folder / "accuracy.parquet")["n"].tolist() == [1]


def test_text_that_has_no_utf8_does_not_stop_the_store(open_store, make_row):
    with open_store() as store:
        store.append(make_row(prediction="a\udc80b"))
    assert pd.read_parquet(store.folder / "samples.parquet")["prediction"].tolist() == ["a?b"]


@pytest.mark.parametrize("columns", [{"run_id": "another"}, {"length": "512"}, {"seed": 2**63}])
def test_a_row_that_does_not_belong_is_refused_before_it_is_written(open_store, make_row, columns):
    with open_store() as store:
        with pytest.raises(ValueError, match=r".+"):
            store.append(make_row(**columns))
        assert (store.folder / "journal.jsonl").read_bytes() == b""


def test_a_closed_store_takes_no_rows(open_store, make_row):
    store = open_store()
    store.close()
    store.close()
    with pytest.raises(ValueError, match="is closed"):
        store.append(make_row())


def test_an_interruption_folds_what_was_finished(open_store, make_row):
    with contextlib.suppress(KeyboardInterrupt), open_store() as store:
        store.append(make_row())
        raise KeyboardInterrupt
    assert len(pd.read_parquet(store.folder / "samples.parquet")) == 1
    with open_store():
        pass  # and lets go of the run


def test_a_run_that_is_open_in_another_process_is_one_line(open_store, tmp_path, identity, facts, make_row):
    code = (
        "import json, sys; from pathlib import Path\n"
        "from bamctl.errors import RunFailed; from bamctl.results.schema import *\n"
        "from bamctl.results.store import RunStore\n"
        "identity, facts = RunIdentity(**json.loads(sys.argv[2])), ModelFacts(**json.loads(sys.argv[3]))\n"
        "try: RunStore.open(Path(sys.argv[1]), identity, facts)\n"
        "except RunFailed as error: print(error)\n"
        "else: print('opened')\n"
    )
    arguments = [tmp_path / "out", json.dumps(asdict(identity)), json.dumps(asdict(facts))]
    environment = os.environ | {"PYTHONPATH": str(Path(bamctl.__file__).parents[1])}
    command = [sys.executable, "-c", code, *arguments]

    def other() -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with open_store() as store:
        store.append(make_row())
        assert other() == f"{store.folder}: this run is open in another process; wait until that has ended\n"
        assert store.rows()["row_id"].tolist() == ["512-0"]
        with RunStore.open(tmp_path / "out", replace(identity, seed=1), facts):
            pass  # another run is no obstacle
    assert other() == "opened\n"


@pytest.mark.parametrize("in_the_way", ["out", "out/passkey", "out/passkey/{run}"])
def test_a_file_in_the_way_is_one_line_and_nothing_is_written(tmp_path, identity, facts, in_the_way):
    path = tmp_path / in_the_way.format(run=f"models-tiny-{identity.run_id}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = entries(tmp_path)
    with pytest.raises(
        BadInput, match=r"^[^\n]*: results cannot be written there \([^\n]*\); name [^\n]*--out$"
    ):
        RunStore.open(tmp_path / "out", identity, facts)
    assert entries(tmp_path) == before
    assert path.read_text() == "mine"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc")
def test_a_folder_that_cannot_be_made_is_one_line(identity, facts):
    with pytest.raises(BadInput, match=r"^/proc/nowhere/.*cannot be written there"):
        RunStore.open(Path("/proc/nowhere"), identity, facts)


@pytest.mark.parametrize("function", ["mkdir", "open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_whatever_fails_while_opening_leaves_nothing(tmp_path, open_store, monkeypatch, function, code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(BadInput, match=os.strerror(code)):
            open_store()
    assert entries(tmp_path) == []
    with open_store():
        pass


def test_a_description_that_may_not_last_is_not_left(tmp_path, open_store, monkeypatch):
    """The folder's sync, after run.json has been put in place, fails."""
    fsync, calls = os.fsync, []

    def fail_second(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(BadInput, match=os.strerror(errno.EIO)):
        open_store()
    assert entries(tmp_path) == []


def test_a_full_disk_is_one_line_and_leaves_the_journal_as_it_was(open_store, make_row, monkeypatch):
    write = os.write

    def write_half(descriptor, data):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2])

    store = open_store()
    store.append(make_row(0))
    before = (store.folder / "journal.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        with pytest.raises(RunFailed, match=r"cannot write \(No space left on device\)") as caught:
            store.append(make_row(1))
    assert str(caught.value).startswith(f"{store.folder}: ")
    assert (store.folder / "journal.jsonl").read_bytes() == before
    assert store.done() == {"512-0"}
    store.append(make_row(2))
    store.close()
    assert pd.read_parquet(store.folder / "samples.parquet")["row_id"].tolist() == ["512-0", "512-2"]


def test_an_interrupted_append_leaves_the_journal_as_it_was(open_store, make_row, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with open_store() as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.append(make_row())
        assert store.done() == set()
        assert (store.folder / "journal.jsonl").read_bytes() == b""


def test_an_error_is_not_hidden_by_a_fold_that_fails_too(open_store, make_row, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    def run(store):
        with store:
            store.append(make_row())
            monkeypatch.setattr(os, "replace", fail)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(open_store())
    monkeypatch.undo()
    with open_store() as store:
        assert store.done() == {"512-0"}


def test_a_torn_last_line_is_cut_off(open_store, make_row, caplog):
    with open_store() as store:
        pass
    whole, torn = (make_row(sample).to_json().encode() for sample in range(2))
    (store.folder / "journal.jsonl").write_bytes(whole + b"\n" + torn[:200])
    with open_store() as store:
        assert store.done() == {"512-0"}
        assert (store.folder / "journal.jsonl").read_bytes() == whole + b"\n"
        store.append(make_row(1))
        assert store.done() == {"512-0", "512-1"}
    assert load_samples([store.folder])["row_id"].tolist() == ["512-0", "512-1"]
    assert caplog.messages == []


def test_a_foreign_line_is_named_once_and_kept_aside(open_store, make_row, caplog):
    with open_store() as store:
        pass
    lines = [make_row(0).to_json().encode(), b"what is this", make_row(1).to_json().encode()]
    journal = store.folder / "journal.jsonl"
    journal.write_bytes(b"\n".join(lines) + b"\n")
    with caplog.at_level(logging.WARNING), open_store() as store:
        assert store.done() == {"512-0", "512-1"}
    (message,) = caplog.messages
    assert message.startswith(f"{journal}, line 2: ")
    assert (store.folder / "journal.rejected").read_bytes() == b"what is this\n"
    assert load_samples([store.folder])["row_id"].tolist() == ["512-0", "512-1"]


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_table_is_named_and_moved_aside(open_store, make_row, content, caplog):
    with open_store() as store:
        store.append(make_row(0))
    samples = store.folder / "samples.parquet"
    (store.folder / "samples.parquet.damaged").write_text("an earlier one")
    samples.write_bytes(content)
    (store.folder / "journal.jsonl").write_text(make_row(1).to_json() + "\n")
    with caplog.at_level(logging.WARNING), open_store() as store:
        assert store.done() == {"512-1"}
        store.append(make_row(0))
    (message,) = caplog.messages
    assert message == (
        f"{samples}: damaged; moved to samples.parquet.damaged-2, what was in it is to be run again"
    )
    assert (store.folder / "samples.parquet.damaged").read_text() == "an earlier one"
    assert (store.folder / "samples.parquet.damaged-2").read_bytes() == content
    assert load_samples([store.folder])["row_id"].tolist() == ["512-0", "512-1"]


def test_a_table_that_is_damaged_while_it_is_open_is_moved_aside_too(open_store, make_row):
    store = open_store()
    store.append(make_row(0))
    store.fold()
    store.append(make_row(1))
    (store.folder / "samples.parquet").write_bytes(b"PAR1")
    store.close()
    assert store.done() == {"512-1"}
    assert (store.folder / "samples.parquet.damaged").read_bytes() == b"PAR1"
    assert pd.read_parquet(store.folder / "accuracy.parquet")["n"].tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace_schema_metadata({VERSION_KEY: b"5"}), "written by a later bamctl"),
        (lambda _: pa.table({"x": [1]}), "not a table of samples"),
    ],
)
def test_another_table_in_its_place_is_refused_and_left_alone(open_store, make_row, change, message):
    with open_store() as store:
        store.append(make_row())
    samples = store.folder / "samples.parquet"
    pq.write_table(change(pq.read_table(samples)), samples)
    content = samples.read_bytes()
    with pytest.raises(BadInput, match=rf"^[^\n]*samples.parquet: {message}[^\n]*$"):
        open_store()
    assert samples.read_bytes() == content
    assert entries(store.folder) == WHOLE
    samples.unlink()
    with open_store() as store:  # and the lock is gone
        assert store.done() == set()


def test_a_table_that_may_not_be_read_is_not_damaged(open_store, make_row, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with open_store() as store:
        store.append(make_row())
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", refuse)
        with pytest.raises(BadInput, match=r"samples.parquet: cannot be read .*\(Permission denied\)"):
            open_store()
    assert entries(store.folder) == WHOLE


def test_a_folder_that_another_process_removes_meanwhile_is_made_again(open_store, monkeypatch):
    """It had made it, and has failed to start."""
    mkdir, calls = Path.mkdir, []

    def remove_after(path, *arguments, **options):
        mkdir(path, *arguments, **options)
        calls.append(path)
        if len(calls) < 4:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", remove_after)
    with open_store() as store:
        assert store.done() == set()
    assert store.folder in calls


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"identity": {"model": "another"}}'])
def test_a_folder_that_is_another_run_s_is_refused(open_store, content):
    with open_store() as store:
        pass
    (store.folder / "run.json").write_text(content)
    with pytest.raises(BadInput, match=r"^[^\n]*run.json: [^\n]*; move the folder aside$"):
        open_store()
    assert (store.folder / "run.json").read_text() == content
