"""`bamctl perplexity`: how well models predict a text, by position, with all before it and with a window."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.cli import options
from bamctl.cli.completion import model_names
from bamctl.cli.opening import open_models
from bamctl.cli.options import DEFAULT_LONGEST, check_number, with_engine
from bamctl.errors import BadInput
from bamctl.lengths import format_length, parse_length, parse_lengths
from bamctl.results.files import check_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from bamctl.backends.base import Backend
    from bamctl.backends.opening import OpenedModel
    from bamctl.backends.vllm.options import EngineOptions
    from bamctl.evaluation.perplexity import LossProgress, LossSummary
    from bamctl.evaluation.stretches import Stretches


_SHORTEST = 2
"""Tokens of a stretch: the first one is not predicted."""


@with_engine
def perplexity(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Names, folders or patterns of checkpoints, or names on the Hugging Face hub.",
            show_default=False,
            autocompletion=model_names,
        ),
    ],
    text: Annotated[
        list[str],
        typer.Option(
            "--text",
            metavar="PATH",
            help="What is to be predicted: a UTF-8 text file, a folder of *.txt and *.md files, a JSON file"
            " with the field text, or ruler for RULER's essays; repeat it for several.",
            show_default=False,
        ),
    ],
    max_len: Annotated[
        str,
        typer.Option(
            "--max-len", metavar="LENGTH", help="Tokens of each stretch of text (k = 1024, M = 1024²)."
        ),
    ] = DEFAULT_LONGEST,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            "-n",
            metavar="N",
            help="Stretches of the text, evenly spread; none overlap.",
            show_default="as many as there are, at most 10",
        ),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(
            "--windows",
            metavar="LENGTHS",
            help="Beside the full context, sliding windows of so many tokens: 256,512.",
            show_default="each model's train length",
        ),
    ] = None,
    backend: options.BackendName = "auto",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    tokenizer: options.Tokenizer = None,
    model_args: options.ModelArgs = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: options.Out = Path("results"),
    quiet: options.Quiet = False,
    json: options.Json = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE", help="Draw loss against position: a .png, .pdf or .svg file."
        ),
    ] = None,
    *,
    engine: "EngineOptions",
) -> None:
    """Measure how well models predict a text, by position.

    Prints the loss in nats a token and the perplexity of the tokens at the positions 0 to 255, 256 to 511,
    512 to 1023 and so on: with all that comes before, and with a sliding window of it. Every stretch is
    stored under --out as it is read; the same command again goes on where it stopped.
    """
    check_number("samples", samples, least=1)
    length = parse_length(max_len)
    if length < _SHORTEST:
        raise BadInput(
            f"--max-len {length}: a stretch of 1 token has nothing to predict; the shortest has {_SHORTEST}"
        )
    check_out(out)
    wanted = None if windows is None else _parse_windows(windows)
    if figure is not None:
        from bamctl.report.style import check_figure_path

        check_figure_path(figure)

    from bamctl.cli.machine_output import tell_lengths
    from bamctl.evaluation.perplexity import measure_losses
    from bamctl.results.store import accuracy_table

    opened = list(
        open_models(
            models,
            backend=backend,
            tokenizer=tokenizer,
            model_args=model_args,
            trust_remote_code=trust_remote_code,
            device=device,
            dtype=dtype,
            engine=engine,
        )
    )
    jobs = _prepare(opened, text, length=length, samples=samples, windows=wanted)
    summaries = []
    for model, stretches, contexts in jobs:
        running = model.start(device=device, dtype=dtype, share_prefixes=False, longest=length)
        for window in contexts:
            progress = _Progress(running, stretches, quiet=quiet, json=json)
            summary = measure_losses(running, stretches, window=window, out=out, on_progress=progress.update)
            progress.finish(summary)
            if json:
                tell_lengths(accuracy_table(_stored([summary])))
            summaries.append(summary)
        del running, progress  # with the weights, before the next ones take memory
    _print_results(summaries, figure, quiet=quiet, json=json)


def _parse_windows(text: str) -> tuple[int, ...]:
    try:
        return parse_lengths(text)
    except BadInput as error:
        raise BadInput(f"--windows: {error}") from error


def _prepare(
    opened: "Sequence[OpenedModel]",
    sources: "Sequence[str]",
    *,
    length: int,
    samples: int | None,
    windows: tuple[int, ...] | None,
) -> "list[tuple[OpenedModel, Stretches, tuple[int | None, ...]]]":
    """Each model with what it is to predict and the contexts, None for the full one; all of it checked."""
    from bamctl.evaluation.perplexity import check_context
    from bamctl.evaluation.stretches import cut_stretches, read_texts
    from bamctl.tasks.tokenization import PromptTokenizer

    content = read_texts(sources)
    cut: dict[str, Stretches] = {}
    jobs, remarks = [], []
    for model in opened:
        tokenizer = PromptTokenizer(model.tokenizer)
        if tokenizer.digest not in cut:
            cut[tokenizer.digest] = cut_stretches(content, tokenizer, length=length, samples=samples)
        stretches = cut[tokenizer.digest]
        sliding, remark = _windows(model, windows, length)
        remarks += [remark] if remark else []
        contexts = (None, *sorted(sliding, reverse=True))
        for window in contexts:
            check_context(
                stretches,
                window,
                longest=model.longest_prompt,
                model=model.name,
                limit_note=model.limit_note,
            )
        jobs.append((model, stretches, contexts))
    for remark in remarks:
        print(remark, file=sys.stderr)
    return jobs


def _windows(
    model: "OpenedModel", wanted: tuple[int, ...] | None, length: int
) -> tuple[tuple[int, ...], str]:
    """The sliding windows for a model, and why there is none where there is none."""
    if wanted is not None:
        return wanted, ""
    if model.train_length is None:
        return (), f"{model.name}: no sliding window, its train length is not known; --windows names some"
    if model.train_length >= length:
        return (), (
            f"{model.name}: no sliding window, its train length {format_length(model.train_length)} holds all"
            f" of --max-len {format_length(length)}; --windows names shorter ones"
        )
    return (model.train_length,), ""


class _Progress:
    """Tells on stderr where a run stands, a line a stretch, and on stdout what it found, if that is asked."""

    def __init__(self, backend: "Backend", stretches: "Stretches", *, quiet: bool, json: bool) -> None:
        self._quiet = quiet
        self._json = json
        self._backend = backend
        self._stretches = stretches
        self._begun = False
        self._read = 0
        self._seconds = 0.0

    def update(self, progress: "LossProgress") -> None:
        """Takes what `measure_losses` tells."""
        from bamctl.cli.machine_output import tell_samples
        from bamctl.cli.time_left import words_for_seconds

        if self._json:
            tell_samples(progress.rows)
        if not self._begun:
            self._begun = True
            self._say(self._title(progress.window))
        if progress.loss is None:
            return
        self._read += 1
        self._seconds += progress.seconds
        left = self._seconds / self._read * (progress.samples - progress.done)
        self._say(
            f"  stretch {progress.done}/{progress.samples}: loss {progress.loss:.3f},"
            f" {progress.tokens / progress.seconds:,.0f} tokens/s"
            + (f", {words_for_seconds(left)} left" if left else "")
        )

    def finish(self, summary: "LossSummary") -> None:
        """Says what this call added."""
        if not summary.ran:
            self._say("  all stretches were there already; nothing was read")
        elif summary.found:
            self._say(f"  stretches read: {summary.ran}; {summary.found} were there already")

    def _title(self, window: int | None) -> str:
        model, text = self._backend.model, self._stretches
        trained = "" if model.train_length is None else f", trained at {model.train_length}"
        short = format_length(text.length)
        exact = "" if short == str(text.length) else f" ({text.length})"
        context = "full context" if window is None else f"sliding window of {format_length(window)}"
        return (
            f"{model.name}: {model.position_encoding}{' with SSMax' if model.ssmax else ''}{trained};"
            f" {self._backend.name} on {self._backend.device}, {self._backend.dtype}\n"
            f"{text.text}: {text.samples} {'stretch' if text.samples == 1 else 'stretches'} of"
            f" {short}{exact} tokens; {context}"
        )

    def _say(self, line: str) -> None:
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)


def _print_results(
    summaries: "Sequence[LossSummary]", figure: Path | None, *, quiet: bool, json: bool
) -> None:
    """The table of what was asked for, unless a program has read it already, and the figure."""
    from rich.console import Console

    from bamctl.report.loss_table import build_loss_table
    from bamctl.report.terminal import print_table

    table = build_loss_table(_stored(summaries))
    if not json:
        print_table(table, Console())
    if not quiet:
        for summary in summaries:
            print(f"Results in {summary.folder}: accuracy.parquet, samples.parquet", file=sys.stderr)
    if figure is not None:
        from bamctl.report.loss_figure import loss_figure
        from bamctl.report.style import save_figure

        save_figure(loss_figure(table), figure)
        if not quiet:
            print(f"Figure in {figure}", file=sys.stderr)


def _stored(summaries: "Sequence[LossSummary]") -> "pd.DataFrame":
    """The rows of what was asked for; a run's folder may hold more."""
    from bamctl.results.store import load_samples

    stored = load_samples([summary.folder for summary in summaries])
    asked_for = frozenset().union(*(summary.row_ids for summary in summaries))
    return stored[stored["row_id"].isin(asked_for)]
