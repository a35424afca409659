"""The command line: one file a command, each of them parses, calls and prints.

Heavy imports happen inside the commands, so that ``bamctl --help`` answers at once.
"""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer

from bamctl.cli.doctor_command import doctor
from bamctl.cli.import_command import import_checkpoint
from bamctl.cli.models_command import models
from bamctl.cli.passkey_command import passkey
from bamctl.cli.perplexity_command import perplexity
from bamctl.cli.prior_command import prior
from bamctl.cli.report_command import report
from bamctl.cli.ruler_command import ruler
from bamctl.cli.run_command import run
from bamctl.cli.score_command import score
from bamctl.cli.show_command import show
from bamctl.cli.tasks_command import export, tasks_or_command
from bamctl.cli.train_command import train
from bamctl.errors import BamctlError, torchvision_in_the_way

_KEPT = "whatever was finished is kept: the same command goes on from there"


class Interrupted(BamctlError):
    """Ctrl-C."""

    exit_code = 130  # of a program that a signal ended: 128 and SIGINT's number


class Terminated(BamctlError):
    """SIGTERM: a scheduler's time limit, or kill."""

    exit_code = 143


class _TerminationSignal(KeyboardInterrupt):
    """Raised where SIGTERM arrives, so that whatever is careful about Ctrl-C is so about it too."""


app = typer.Typer(
    name="bamctl",
    help="How far does a language model really read? Hides needles in haystacks of any length and reports"
    " accuracy against length.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's panels alone take longer to import than everything else
    context_settings={
        "help_option_names": ["-h", "--help"],
        # --max_len is --max-len; only options pass through here, and commands.
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    if version:
        from bamctl import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with Ctrl-C and SIGTERM told as errors of ours before typer makes a silent exit of it."""

    @functools.wraps(command)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            with _termination_raised():
                command(*arguments, **options)
        except _TerminationSignal:
            raise Terminated(f"terminated; {_KEPT}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {_KEPT}") from None

    return call


@contextlib.contextmanager
def _termination_raised() -> Iterator[None]:
    """SIGTERM raises in this process; one that it forked is ended by it as any other."""
    here = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() != here:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise _TerminationSignal

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


for command in (passkey, ruler, run, perplexity, prior, train, report, show, score, models):
    app.command()(_interruptible(command))
app.command("import")(_interruptible(import_checkpoint))
tasks = typer.Typer(context_settings=app.info.context_settings, rich_markup_mode=None)
tasks.callback(invoke_without_command=True)(_interruptible(tasks_or_command))
tasks.command()(_interruptible(export))
app.add_typer(tasks, name="tasks")
app.command()(_interruptible(doctor))


def main() -> None:
    """Runs a command; an error is one line on stderr and an exit status (2: bad input, 1: a failed run)."""
    status = 0
    try:
        status = app(prog_name="bamctl", standalone_mode=False)
        sys.stdout.flush()
    except BamctlError as error:
        status = _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        _discard_output()
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # what rich makes of it
            raise
    except OSError as error:  # a full disk behind stdout, say
        _discard_output()
        status = _fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
    except Exception as error:
        message = getattr(error, "format_message", None)  # what is wrong with the command line
        told = torchvision_in_the_way(error) if message is None else message()
        if told is None:
            raise
        status = _fail(told, 1 if message is None else 2)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    print(f"bamctl: {' '.join(message.split())}", file=sys.stderr)
    return status


def _discard_output() -> None:
    """Sends what stdout still holds nowhere: failing again at exit, Python would tell of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
