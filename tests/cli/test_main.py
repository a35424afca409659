import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

import bamctl.cli.main as main_module
from bamctl import __version__
from bamctl.errors import BadInput, RunFailed

COMMANDS = (
    *("passkey", "ruler", "run", "perplexity", "prior", "train", "report", "show", "score"),
    *("models", "import", "doctor", "tasks"),
)
FULL = Path("/dev/full")
"""Whatever is written to it finds the disk full."""
HEAVY = ("torch", "transformers", "tokenizers", "pandas", "pyarrow", "scipy", "numpy", "yaml", "rich")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_fits_80_columns_and_names_every_command(folder, call, option):
    outcome = call(option)
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Usage: bamctl [OPTIONS] COMMAND [ARGS]..."
    told = [line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :]]
    assert [name for name, _ in told] == list(COMMANDS)
    assert all(text.endswith(".") and not text.endswith("...") for _, text in told)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(folder, call, command):
    outcome = call(command, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert outcome.out.startswith(f"Usage: bamctl {command} ")


def test_version(folder, call):
    outcome = call("--version")
    assert (outcome.status, outcome.out, outcome.err) == (0, f"{__version__}\n", "")


def test_no_command_is_told_with_the_help(folder, call):
    outcome = call()
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == call("--help").out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["passkey", "--help"], ["passkey", "--lengths", "0"], ["pass"]]
)
def test_what_needs_no_model_imports_nothing_heavy(environment, tmp_path, arguments):
    program = (
        f"import sys; sys.argv = ['bamctl', *{arguments!r}]\n"
        "from bamctl.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('heavy:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.endswith("heavy:\n"), done


@pytest.fixture
def failing(monkeypatch):
    """A command line with one command, `fail`, which raises what it is given."""

    def make(error):
        app = typer.Typer()

        @app.callback()
        def options() -> None: ...

        def fail() -> None:
            raise error

        app.command()(main_module._interruptible(fail))
        monkeypatch.setattr(main_module, "app", app)

    return make


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (BadInput("no\n  such thing"), 2, "no such thing"),
        (RunFailed("it died"), 1, "it died"),
        (
            KeyboardInterrupt(),
            130,
            "interrupted; whatever was finished is kept: the same command goes on from there",
        ),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(failing, call, error, status, line):
    failing(error)
    outcome = call("fail")
    assert (outcome.status, outcome.out, outcome.err) == (status, "", f"bamctl: {line}\n")


def test_sigterm_is_one_line_too_and_back_as_it_was_behind_a_command(monkeypatch, call):
    before = signal.getsignal(signal.SIGTERM)
    app = typer.Typer()
    app.command()(main_module._interruptible(lambda: os.kill(os.getpid(), signal.SIGTERM)))
    monkeypatch.setattr(main_module, "app", app)
    outcome = call()
    line = "bamctl: terminated; whatever was finished is kept: the same command goes on from there\n"
    assert (outcome.status, outcome.out, outcome.err) == (143, "", line)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_sigterm_ends_a_process_that_a_command_forked_as_any_other():
    ready, tell = os.pipe()
    statuses = []

    @main_module._interruptible
    def fork():
        child = os.fork()
        if child == 0:
            try:
                os.write(tell, b"\n")
                time.sleep(60)
            finally:
                os._exit(9)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        statuses.append(os.waitpid(child, 0)[1])

    fork()
    assert [os.waitstatus_to_exitcode(status) for status in statuses] == [-signal.SIGTERM]


def test_a_bug_of_ours_keeps_its_traceback(failing, monkeypatch):
    failing(ZeroDivisionError("a bug"))
    monkeypatch.setattr(sys, "argv", ["bamctl", "fail"])
    with pytest.raises(ZeroDivisionError):
        main_module.main()


def start(environment, folder, *arguments, **streams):
    command = [sys.executable, "-m", "bamctl.cli.main", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stderr=subprocess.PIPE, **streams
    )


@pytest.mark.parametrize("arguments", [["tasks"], ["--help"], ["--version"]])
def test_a_reader_that_has_seen_enough_ends_it_silently(environment, tmp_path, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with start(environment, tmp_path, *arguments, stdout=writer) as process:
        os.close(writer)
        assert process.communicate()[1] == ""
    assert process.returncode == 0


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["tasks"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_line(environment, tmp_path, arguments):
    with FULL.open("w") as full, start(environment, tmp_path, *arguments, stdout=full) as process:
        assert process.communicate()[1] == f"bamctl: output: {os.strerror(errno.ENOSPC)}\n"
    assert process.returncode == 1


@pytest.mark.parametrize("through", ["cause", "context", "itself"])
def test_a_torchvision_of_another_torch_is_told_with_what_mends_it(monkeypatch, capsys, through):
    def app(**_):
        broken = RuntimeError("operator torchvision::nms does not exist")
        if through == "itself":
            raise broken
        try:
            raise broken
        except RuntimeError as error:
            if through == "cause":
                raise ModuleNotFoundError("Could not import module 'PreTrainedModel'") from error
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'")  # noqa: B904

    monkeypatch.setattr(main_module, "app", app)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("bamctl: torchvision is built for another torch")
    assert line.endswith("pip uninstall -y torchvision torchaudio torchcodec mends it")
