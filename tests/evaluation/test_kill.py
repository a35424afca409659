"""A run that ends at any moment loses nothing: killed, or with a disk that is full, and started again."""

import errno
import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import bamctl.evaluation.run
from bamctl.errors import BamctlError
from bamctl.evaluation.run import evaluate
from bamctl.results.shard import Shard
from bamctl.results.store import load_samples

STEPS = ((os, "write"), (os, "fsync"), (os, "ftruncate"), (os, "replace"), (pq, "write_table"))
"""What brings a run to the disk; a run may end before, after, and in the middle of each call of these."""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork, no SIGKILL")


class Clock(datetime):
    """Stands still: what is left of a run is the same to the byte then."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2025, 5, 28, 12, tzinfo=tz)


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(bamctl.evaluation.run, "datetime", Clock)


@pytest.fixture
def request_for(request_for):
    """Five samples of one length."""
    return lambda **fields: request_for(**({"lengths": (128,), "samples": 5} | fields))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def do_half(function: Callable[..., Any], *arguments: Any) -> None:
    """A write of which half arrives."""
    if function.__name__ == "write":
        descriptor, data = arguments
        function(descriptor, data[: len(data) // 2])
    elif function.__name__ == "write_table":
        _, path = arguments
        path.write_bytes(b"PAR1 half a table")


def break_at(moment: int, end: Callable[[], None], patch: Callable[[Any, str, Any], None]) -> None:
    """Has `end` called at a moment: of step `moment` // 2 in its middle, or behind it if that is odd."""
    steps = itertools.count()

    def breaking(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            step = next(steps)
            if step == moment // 2 and moment % 2 == 0:
                do_half(function, *arguments)
                end()
            result = function(*arguments, **options)
            if step == moment // 2:
                end()
            return result

        return call

    for module, name in STEPS:
        patch(module, name, breaking(getattr(module, name)))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def start(work: Callable[[], object]) -> int:
    """Does the work in a process of its own, whose id it returns."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(120)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def was_killed(pid: int) -> bool:
    """Waits for the process; whether it was killed or has ended."""
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True


def count_on_pipe(write_end: int) -> Callable[[Any], None]:
    """Tells another process of every sample that is stored."""
    write = os.write  # of before it is patched

    def tell(progress: Any) -> None:
        write(write_end, b"." * progress.ran)

    return tell


@needs_fork
@pytest.mark.parametrize(("begun", "least"), [(0, 40), (4, 20)], ids=["new", "resumed"])
def test_a_run_that_is_killed_at_every_moment(
    backend, task, request_for, tmp_path, caplog, record_property, begun, least
):
    whole = contents(evaluate(backend, task, request_for(out=tmp_path / "whole")).folder)
    if begun:
        evaluate(backend, task, request_for(samples=begun, out=tmp_path / "begun"))
    for moment in itertools.count():
        request = request_for(out=tmp_path / str(moment))
        if begun:
            shutil.copytree(tmp_path / "begun", request.out)
        read_end, write_end = os.pipe()

        def work(moment=moment, request=request, told=write_end):
            tell = count_on_pipe(told)
            break_at(moment, kill, setattr)
            evaluate(backend, task, request, on_progress=tell)

        killed = was_killed(start(work))
        os.close(write_end)
        finished = len(os.read(read_end, 100))
        os.close(read_end)
        left = load_samples([request.out]) if request.out.exists() else ()
        assert begun + finished <= len(left) <= begun + finished + 1
        backend.batches.clear()
        folder = evaluate(backend, task, request).folder
        assert backend.answered == 5 - len(left)
        assert contents(folder) == whole
        if not killed:
            break
    assert caplog.messages == []
    print(f"killed at {moment} moments")
    record_property("kills", moment)
    assert moment >= least


@needs_fork
def test_two_shards_that_are_killed_again_and_again(backend, task, request_for, tmp_path, record_property):
    whole = evaluate(backend, task, request_for(samples=9, out=tmp_path / "whole")).folder
    moments = random.Random(0)
    kills, seen = 0, 0

    def work(shard, moment):
        if moment is not None:
            break_at(moment, kill, setattr)
        evaluate(backend, task, request_for(samples=9, shard=shard, out=tmp_path / "out"))

    shards = [Shard(k=1, n=2), Shard(k=2, n=2)]
    for number in range(6):
        last = number == 5
        chosen = [None if last else moments.randrange(18) for _ in shards]
        pids = [start(lambda s=s, m=m: work(s, m)) for s, m in zip(shards, chosen, strict=True)]
        kills += sum([was_killed(pid) for pid in pids])
        samples = load_samples([tmp_path / "out"])
        assert samples["row_id"].is_unique
        assert len(samples) >= seen
        seen = len(samples)
    print(f"killed {kills} times")
    record_property("kills", kills)
    assert kills >= 5
    pd.testing.assert_frame_equal(samples, load_samples([whole]))
    (folder,) = (tmp_path / "out" / "passkey").iterdir()
    left = contents(folder)
    assert left.pop("accuracy.parquet") == contents(whole)["accuracy.parquet"]
    assert sorted(left) == [
        "journal.1-of-2.jsonl",
        "journal.2-of-2.jsonl",
        "run.json",
        "run.lock",
        "samples.1-of-2.parquet",
        "samples.2-of-2.parquet",
    ]


def test_a_disk_that_is_full_from_any_moment_on(backend, task, request_for, tmp_path, caplog):
    whole = contents(evaluate(backend, task, request_for(out=tmp_path / "whole")).folder)
    for moment in itertools.count(step=2):
        request = request_for(out=tmp_path / "out")

        told, stored = "", []
        with pytest.MonkeyPatch.context() as patch:

            def fail(*_: object, patch=patch, **__: object) -> None:
                for module, name in STEPS:
                    if name != "ftruncate":  # takes no room
                        patch.setattr(module, name, fail)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            break_at(moment, fail, patch.setattr)
            try:
                evaluate(backend, task, request, on_progress=lambda p, to=stored: to.extend(p.rows))
            except BamctlError as error:
                told = str(error)
        left = load_samples([request.out])["row_id"] if request.out.exists() else []
        assert sorted(left) == sorted(row.row_id for row in stored)
        backend.batches.clear()
        assert contents(evaluate(backend, task, request).folder) == whole
        assert backend.answered == 5 - len(left)
        shutil.rmtree(request.out)
        if not told:
            break
        assert "No space left on device" in told
        assert "\n" not in told
    assert moment >= 40
    assert caplog.messages == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, with a function that makes it so many bytes large."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", place], check=True, capture_output=True
        )

    try:
        mount("size=64k")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount")
    yield place, lambda size: mount(f"remount,size={size}")
    subprocess.run(["umount", place], check=True)


def test_a_real_disk_that_is_full(backend, task, request_for, tmp_path, small_disk):
    place, resize = small_disk
    request = request_for(samples=60, out=place / "results")
    with pytest.raises(BamctlError, match=r"^[^\n]*No space left on device[^\n]*$"):
        evaluate(backend, task, request)
    left = load_samples([request.out])
    assert 0 < len(left) < 60
    resize("4m")
    answered = backend.answered
    summary = evaluate(backend, task, request)
    assert summary.found == len(left)
    assert backend.answered - answered == 60 - len(left)
    whole = evaluate(backend, task, request_for(samples=60, out=tmp_path / "whole")).folder
    assert contents(summary.folder) == contents(whole)


def test_a_table_that_is_cut_short_is_moved_aside_and_run_again(backend, task, request_for, tmp_path, caplog):
    request = request_for()
    folder = evaluate(backend, task, request).folder
    whole = contents(folder)
    for number, mark in enumerate(["damaged", "damaged-2"]):
        cut = whole["samples.parquet"][: -8 - number]
        (folder / "samples.parquet").write_bytes(cut)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert evaluate(backend, task, request).ran == 5
        (message,) = caplog.messages
        assert message.startswith(f"{folder}/samples.parquet: damaged; moved to samples.parquet.{mark},")
        assert (folder / f"samples.parquet.{mark}").read_bytes() == cut
        left = contents(folder)
        assert {name: left[name] for name in whole} == whole


def test_a_journal_that_is_cut_anywhere_loses_its_last_line_alone(backend, task, request_for, tmp_path):
    def interrupt(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    whole = contents(evaluate(backend, task, request_for(out=tmp_path / "whole")).folder)
    backend.batches.clear()
    backend.before = interrupt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bamctl.results.store.RunStore.fold", lambda store: None)
        with pytest.raises(KeyboardInterrupt):
            evaluate(backend, task, request_for())
    (journal,) = (tmp_path / "out").rglob("journal.jsonl")
    lines = journal.read_bytes()
    last = lines.rindex(b"\n", 0, -1) + 1
    backend.before = lambda number: None
    for cut in (last + 1, (last + len(lines)) // 2, len(lines) - 1):
        copy = tmp_path / str(cut)
        shutil.copytree(tmp_path / "out", copy)
        (path,) = copy.rglob("journal.jsonl")
        path.write_bytes(lines[:cut])
        assert len(load_samples([copy])) == 2
        summary = evaluate(backend, task, request_for(out=copy))
        assert (summary.ran, summary.found) == (3, 2)
        assert contents(summary.folder) == whole


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_only_be_read_is_one_line(backend, task, request_for):
    request = request_for()
    folder = evaluate(backend, task, request).folder
    before = contents(folder)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with pytest.raises(BamctlError, match=r"^[^\n]*cannot be written there \(Permission denied\)[^\n]*$"):
            evaluate(backend, task, request)
        assert len(load_samples([request.out])) == 5
        assert contents(folder) == before
    finally:
        folder.chmod(0o755)


def test_the_clock_of_these_tests_stands_still(backend, task, request_for):
    folder = evaluate(backend, task, request_for()).folder
    started = load_samples([folder])["started_at"]
    assert set(started) == {pd.Timestamp(datetime(2025, 5, 28, 12, tzinfo=UTC))}
