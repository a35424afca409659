"""The main job, ended in the middle by a signal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from bamctl.results.store import load_samples

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork, no such signals")

VOLATILE = ["started_at", "reused_tokens", "prefill_seconds", "decode_seconds", "peak_memory_bytes"]
ASKED = ["passkey", "--model", "tiny", "--lengths", "128,512", "--samples", "12"]
ROWS = 24

FORKING = """
import json, os, signal, sys, time
import bamctl.backends.native, bamctl.cli.progress, bamctl.evaluation.run, bamctl.report.table
from bamctl.cli.main import main
from bamctl.results.store import RunStore
append = RunStore.append
def append_slowly(store, row):  # so that a signal meant for the middle of a run does not come behind its end
    append(store, row)
    time.sleep(0.05)
RunStore.append = append_slowly
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
for line in sys.stdin:  # a line starts the command once more; the imports, which take long, are done once
    pid = os.fork()
    if pid == 0:
        folder, *sys.argv = json.loads(line)
        os.chdir(folder)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
        main()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def started(environment):
    """Starts bamctl in a process of its own; returns its process id and what waits for its exit status."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:

        def start(folder, *arguments):
            process.stdin.write(json.dumps([str(folder), "bamctl", *arguments]) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline()), lambda: int(process.stdout.readline())

        yield start
        process.stdin.close()


@pytest.fixture
def stopped(folder, started):
    """Runs the command and sends it a signal once so many rows are written: status, stdout, stderr."""

    def stop(number, rows, asked=ASKED):
        pid, wait = started(folder, *asked)
        deadline = time.monotonic() + 60
        while lines(folder) < rows and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(pid, number)
        return wait(), (folder / "stdout").read_text(), (folder / "stderr").read_text()

    return stop


def lines(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("results/*/*/journal.jsonl"))


def samples(out):
    return load_samples([Path(out)]).drop(columns=VOLATILE)


def test_killed_and_run_again_it_is_as_if_never_killed(stopped, call):
    status, out, _ = stopped(signal.SIGKILL, 5)
    assert (status, out) == (-signal.SIGKILL, "")
    survived = samples("results")
    assert 5 <= len(survived) < ROWS

    outcome = call(*ASKED)
    assert outcome.status == 0
    assert f"{len(survived)} were there already" in outcome.err
    assert call(*ASKED, "--out", "whole").status == 0
    pd.testing.assert_frame_equal(samples("results"), samples("whole"))
    assert samples("results").groupby("length")["row_id"].nunique().tolist() == [12, 12]


@pytest.mark.parametrize(
    ("number", "ended", "what"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ctrl_c_and_sigterm_keep_what_was_finished_and_say_how_to_go_on(stopped, folder, number, ended, what):
    status, out, err = stopped(number, 4)
    assert (status, out) == (ended, "")
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last == f"bamctl: {what}; whatever was finished is kept: the same command goes on from there"
    (parquet,) = folder.glob("results/*/*/samples.parquet")
    assert 3 <= len(pd.read_parquet(parquet)) < ROWS  # the fourth append may not have returned
    assert lines(folder) == 0


def test_ctrl_c_keeps_the_stretches_that_perplexity_read(stopped, call, folder):
    (folder / "text.txt").write_text(" ".join(f"The sky is blue. Number {number}." for number in range(300)))
    asked = ["perplexity", "tiny", "--text", "text.txt", "--max-len", "300", "--samples", "8"]
    status, out, err = stopped(signal.SIGINT, 4, asked)  # a stretch has two rows
    assert (status, out) == (130, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("bamctl: interrupted; whatever was finished is kept")

    outcome = call(*asked)
    assert outcome.status == 0, outcome.err
    assert "stretches read: " in outcome.err
    assert call(*asked, "--out", "whole").status == 0
    pd.testing.assert_frame_equal(samples("results"), samples("whole"))
