"""The command line: one file a command, each of them parses, calls and prints.

Heavy imports happen inside the commands, so that ``bamctl --help`` answers at once.
"""

import sys

import typer

from bamctl.cli.doctor_command import doctor
from bamctl.cli.models_command import models
from bamctl.cli.passkey_command import passkey
from bamctl.cli.report_command import report
from bamctl.cli.run_command import run
from bamctl.cli.tasks_command import tasks
from bamctl.cli.train_command import train
from bamctl.errors import BamctlError

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended: 128 and SIGINT's number."""

app = typer.Typer(
    name="bamctl",
    help="How far does a language model really read? Hides needles in haystacks of any length and reports"
    " accuracy against length.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # --max_len is --max-len; only options pass through here, and commands.
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)
for command in (passkey, run, train, report, models, tasks, doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, help="Show the version and exit."),
) -> None:
    if version:
        from bamctl import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Runs a command; an error is one line on stderr and an exit status (2: bad input, 1: a failed run)."""
    try:
        status = app(standalone_mode=False)
    except BamctlError as error:
        status = _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        status = _fail(
            "interrupted; what was finished is kept: the same command goes on from there", INTERRUPTED
        )
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stderr.close()
        status = 0
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        status = _fail(" ".join(message().split()) or "no command given; see bamctl --help", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    print(f"bamctl: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
