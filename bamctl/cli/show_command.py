"""`bamctl show`: one sample, with what was asked, what was answered, and how to run it again."""

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bamctl.cli.result_paths import ModelFilter, ResultPaths, named, own_results, published_beside
from bamctl.errors import BadInput

if TYPE_CHECKING:
    from rich.text import Text

    from bamctl.evaluation.excerpts import PromptText
    from bamctl.results.schema import SampleRow

RERUN = "rerun"
"""The folder that the command for running a sample again names."""

_MOST = 20
"""Rows that are listed where several fit."""


def show(
    row_id: Annotated[
        str,
        typer.Argument(
            metavar="ROW_ID", help="The sample's row_id, or the first four characters of it or more."
        ),
    ],
    paths: ResultPaths = None,
    model: ModelFilter = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_ID", help="This run alone, by its run_id or the beginning of it."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a line, for each sample that fits: its columns, and rerun, the command that"
            " runs it again.",
        ),
    ] = False,
) -> None:
    """Show one sample: what was asked, and what was answered.

    The prompt around each needle, the question, the right answer and the prediction, its scores, and the
    command that runs this one sample again. Where several fit, as several models were asked the same, they
    are listed.
    """
    from bamctl.evaluation.rerun import find_rows

    rows = [row for row in find_rows(own_results() if paths is None else paths, row_id) if _fits(row, run)]
    rows = _of_models(rows, model or [])
    if not rows:
        published = published_beside(paths)
        hint = f"; the published ones are in {published}" if published else ""
        of_run = "" if run is None else f" in a run {run}"
        raise BadInput(f"no sample {row_id}{of_run} in {named(paths)}{hint}")
    if as_json:
        for row in rows:
            print(_as_json(row))
    elif len(rows) > 1:
        _list(rows)
    else:
        _show(rows[0])


def _fits(row: "SampleRow", run: str | None) -> bool:
    return run is None or row.run_id.startswith(run)


def _of_models(rows: "list[SampleRow]", patterns: list[str]) -> "list[SampleRow]":
    """The rows of models that a pattern fits.

    Raises:
        BadInput: a pattern fits none of them.
    """
    if not rows or not patterns:
        return rows
    import pandas as pd

    from bamctl.report.runs import select_runs

    models = pd.DataFrame({"task": [row.task for row in rows], "model": [row.model for row in rows]})
    return [rows[number] for number in select_runs(models, tasks=[], models=patterns).index]


def _as_json(row: "SampleRow") -> str:
    import json

    columns = json.loads(row.to_json(), parse_constant=lambda _: None)  # what is not finite is no JSON
    return json.dumps({**columns, "rerun": _rerun(row)})


def _rerun(row: "SampleRow") -> str | None:
    from bamctl.evaluation.rerun import rerun_command

    words = rerun_command(row, out=RERUN)
    return None if words is None else shlex.join(words)


def _list(rows: "list[SampleRow]") -> None:
    from rich.table import Table
    from rich.text import Text

    from bamctl.cli.listing import print_listing
    from bamctl.lengths import format_length

    table = Table(box=None, pad_edge=False, header_style="bold")
    several = len({row.row_id for row in rows}) > 1
    for column in (*["row"] * several, "run", "model", "task", "length", "sample", "outcome"):
        justify = "right" if column in ("length", "sample") else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows[:_MOST]:
        task = " ".join(part for part in (row.task, row.variant) if part)
        cells = (row.run_id, row.model, task, format_length(row.length), row.sample, _outcome(row))
        table.add_row(*(Text(escaped(str(cell))) for cell in (*[row.row_id] * several, *cells)))
    print_listing(table)
    more = f" {len(rows) - _MOST} more fit." if len(rows) > _MOST else ""
    which = "more of its row_id" if several else "--model or --run"
    print(f"{len(rows)} samples fit;{more} choose one with {which}", file=sys.stderr)


def _outcome(row: "SampleRow") -> str:
    if row.exact is None or row.recall is None:
        return row.status if row.loss is None else f"loss {row.loss:.4g}"
    if row.exact:
        return "exact"
    return "wrong" if row.metric == "exact" else f"recall {row.recall:.4g}"


def _show(row: "SampleRow") -> None:
    """A line a fact, folded on a terminal only; below them the command, which is never folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    facts = [(label, text) for label, text in _facts(row, *_text_of(row)) if text]
    command = _rerun(row)
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for label, text in facts:
            grid.add_row(label, text)
        console.print(grid)
    else:
        for label, text in facts:
            print(f"{label:<12} {text.plain}")
    if command is None:
        print("\nHow to run it again is not known: the row does not hold the command of its run.")
    else:
        print("\nTo run it again, in the folder in which it was run:")
        console.print(Text(command), soft_wrap=True)


def _text_of(row: "SampleRow") -> "tuple[PromptText | None, str]":
    """What is known of the prompt, and what has to be said of that."""
    from bamctl.evaluation.excerpts import PromptText
    from bamctl.evaluation.rerun import rebuild_text
    from bamctl.results.schema import LOSS

    if row.question is not None:
        text = PromptText(needles=row.needles or (), excerpts=row.excerpts or (), question=row.question)
        return text, ""
    if row.metric == LOSS or row.prompt_digest is None:
        return None, ""
    try:
        return rebuild_text(row), "made anew, its digest is the row's: the row is older than its text"
    except BadInput as error:
        return None, f"the row is older than its text, and it cannot be made anew: {error}"


def _facts(row: "SampleRow", asked: "PromptText | None", note: str) -> "Iterator[tuple[str, Text]]":
    """What there is to say, each with its label; an empty text where it does not apply."""
    from rich.text import Text

    from bamctl.lengths import format_length

    answers = row.references or ()
    yield "row", Text(f"{row.row_id}, of run {row.run_id}")
    yield "model", Text(escaped(f"{row.model} ({row.backend} on {row.device}, {row.dtype})"))
    yield "task", Text(escaped(" ".join(part for part in (row.task, row.variant) if part)))
    length = format_length(row.length)
    tokens = f"{length} tokens" if length.isdigit() else f"{length} ({row.length} tokens)"
    built = "" if row.prompt_tokens in (None, row.length) else f", the prompt has {row.prompt_tokens}"
    yield "length", Text(f"{tokens}{built}; sample {row.sample}, seed {row.seed}")
    yield "prompt", Text(note)
    if not row.needle_start:
        yield "depth", Text(", ".join(f"{depth:.4g}%" for depth in row.depth or ()))
    for number, (depth, start) in enumerate(zip(row.depth or (), row.needle_start or (), strict=False)):
        label = "needle" if len(row.needle_start or ()) == 1 else f"needle {number + 1}"
        excerpt = Text()
        if asked is not None and number < len(asked.excerpts):
            excerpt = Text(": ") + _excerpt(asked, number, start, answers)
        yield label, Text(f"at depth {depth:.4g}%, token {start}") + excerpt
    if asked is not None:
        yield "question", Text(f"… {escaped(asked.question)}")
    yield "answer", Text("; ").join(Text(escaped(answer), style="bold green") for answer in answers)
    if row.prediction is not None:
        prediction = Text(escaped(row.prediction) or "(nothing)")
        _emphasise(prediction, answers, "bold green")
        yield "prediction", prediction
    yield "score", Text(_scores(row))
    yield "time", Text(_times(row))
    yield row.status if row.status != "done" else "", Text(escaped(row.error or ""))
    yield "started", Text(f"{row.started_at:%Y-%m-%d %H:%M:%S} UTC, bamctl {row.bamctl_version}")


def _excerpt(asked: "PromptText", number: int, start: int, answers: tuple[str, ...]) -> "Text":
    """The text around a needle, which begins at token `start`."""
    from rich.text import Text

    from bamctl.evaluation.excerpts import AROUND

    excerpt, needle = asked.excerpts[number], escaped(asked.needles[number])
    ends_the_prompt = asked.question.endswith(excerpt) or excerpt.endswith(asked.question)
    before, behind = "… " if start > AROUND else "", "" if ends_the_prompt else " …"
    text = Text(before + escaped(excerpt) + behind)
    found = text.plain.find(needle)
    if needle and found >= 0:
        text.stylize("bold", found, found + len(needle))
    _emphasise(text, answers, "bold green")
    return text


def _emphasise(text: "Text", words: tuple[str, ...], style: str) -> None:
    if words:
        text.highlight_words([escaped(word) for word in words if word], style)


def _scores(row: "SampleRow") -> str:
    parts = []
    if row.exact is not None:
        parts += ["exact" if row.exact else "not exact", f"recall {row.recall:.4g}"]
    if row.answer_logprob is not None:
        parts.append(f"log-probability of the answer {row.answer_logprob:.4g} nats")
    if row.loss is not None:
        parts.append(f"loss {row.loss:.4f} nats a token, of {row.tokens_scored} tokens")
    return ", ".join(parts)


def _times(row: "SampleRow") -> str:
    parts = []
    if row.prefill_seconds is not None:
        reused = f" ({row.reused_tokens} tokens had been read before)" if row.reused_tokens else ""
        parts.append(f"{row.prefill_seconds:.3g} s to read{reused}")
    if row.decode_seconds is not None:
        parts.append(f"{row.decode_seconds:.3g} s to write {row.completion_tokens} tokens")
    if row.finish_reason is not None:
        parts.append(f"ended by {row.finish_reason}")
    return ", ".join(parts)


def escaped(text: str) -> str:
    """The text on one line: whatever moves a cursor or has no picture as Python writes it, ``\\n``."""
    return "".join(
        character
        if character.isprintable() or character in _JOINERS
        else character.encode("unicode_escape").decode()
        for character in text
    )


_JOINERS = "\u200c\u200d"
"""Without a picture, but parts of words, and of emoji."""
