"""How well a model predicts a text, by position: with all that comes before, and with a window of it alone.

A run is one model, one text and one context. Each token of a stretch is scored once, and a row is the mean
over a range of positions (`bamctl.results.positions.position_buckets`). Runs of one text with different
contexts score the same tokens, so their rows are pairs.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bamctl
from bamctl.backends.base import Backend
from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.stretches import Stretches
from bamctl.lengths import format_length
from bamctl.results.positions import context_name, position_buckets
from bamctl.results.schema import LOSS, ModelFacts, RunIdentity, SampleRow
from bamctl.results.store import RunStore

TASK = "perplexity"

VERSION = 1
"""Rises whenever the same text would give other losses."""


@dataclass(frozen=True, kw_only=True)
class LossProgress:
    """Told when a run begins and after every stretch."""

    model: str
    window: int | None
    done: int
    """Stretches that are done, those of earlier runs included."""
    samples: int
    loss: float | None
    """Mean over all tokens of the stretch just read, in nats; None where none was read."""
    tokens: int
    """Length of that stretch; 0 where none was read."""
    seconds: float
    rows: tuple[SampleRow, ...] = ()
    """Its rows, as they are stored."""


@dataclass(frozen=True, kw_only=True)
class LossSummary:
    """What a run left behind."""

    run_id: str
    folder: Path
    row_ids: frozenset[str]
    """The rows of these stretches."""
    ran: int
    """Stretches that this call read."""
    found: int
    """Stretches that were there already."""


def check_context(
    stretches: Stretches,
    window: int | None,
    *,
    longest: int | None,
    model: str,
    limit_note: Callable[[int], str] = lambda wanted: "",
) -> None:
    """Checks what can be checked before anything is written.

    Args:
        stretches: what is to be read.
        window: the sliding window in tokens; None for the full context.
        longest: the most tokens that the model reads; None where it has no limit of its own.
        model: its name.
        limit_note: where that limit is from and what moves it to so many tokens.

    Raises:
        BadInput: the model does not read so much at once, or the window is too short or no window at all.
    """
    option, read = ("--max-len", stretches.length) if window is None else ("--windows", window)
    if longest is not None and read > longest:
        raise BadInput(
            f"{option} {format_length(read)} is beyond what {model} reads:"
            f" {limit_note(read) or f'{longest} tokens; lower it'}"
        )
    if window is None:
        return
    shortest = 2 * (stretches.prefix + 1)
    if window < shortest:
        raise BadInput(f"--windows {window}: too short for {model}, the shortest is {shortest} tokens")
    if window >= stretches.length:
        raise BadInput(
            f"--windows {format_length(window)}: holds all of a stretch of"
            f" {format_length(stretches.length)}, which is the full context; name shorter ones"
        )


def token_losses(
    backend: Backend, token_ids: NDArray[np.int32], *, prefix: int, window: int | None
) -> NDArray[np.float64]:
    """-ln p of each token of one stretch, in nats.

    Full context: token i is predicted from all tokens before it. Sliding, with W = `window`: the first W
    tokens are predicted so too. Then every ⌊W/2⌋ tokens another window of W tokens is read by itself, which
    begins with the prefix, and its last ⌊W/2⌋ tokens are scored. So each of these has at least ⌈W/2⌉ and at
    most W - 1 tokens before it, the prefix included.

    Args:
        backend: the model.
        token_ids: ``[N]``, the stretch.
        prefix: its leading tokens that are no text; they begin every window and are not scored.
        window: W; None for the full context.

    Returns:
        ``[N - F]``, for the tokens F … N - 1 with F = max(1, `prefix`).
    """
    first = max(1, prefix)
    if window is None:
        return -backend.token_logprobs(token_ids, first=first)
    stride = window // 2
    parts = [backend.token_logprobs(token_ids[:window], first=first)]
    for scored in range(window, len(token_ids), stride):
        start, end = scored + stride - window, min(scored + stride, len(token_ids))
        read = np.concatenate([token_ids[:prefix], token_ids[start + prefix : end]])
        parts.append(backend.token_logprobs(read, first=scored - start))
    return -np.concatenate(parts)


def loss_identity(backend: Backend, stretches: Stretches, window: int | None) -> RunIdentity:
    """What defines the run that `measure_losses` would make."""
    return RunIdentity(
        model=backend.model.name,
        model_digest=backend.model.digest,
        tokenizer_digest=stretches.tokenizer_digest,
        task=TASK,
        task_digest=_digest(stretches.digest, window),
        variant=(
            f"text={stretches.text} max_len={format_length(stretches.length)} samples={stretches.samples}"
            f" {context_name(window)}"
        ),
        depths="",
        backend=backend.name,
        dtype=backend.dtype,
        seed=0,
        prompt_version=VERSION,
    )


def measure_losses(
    backend: Backend,
    stretches: Stretches,
    *,
    window: int | None,
    out: Path = Path("results"),
    on_progress: Callable[[LossProgress], None] = lambda progress: None,
) -> LossSummary:
    """Reads every stretch whose losses are not stored yet.

    The rows of a stretch are on the disk when it is read. Whatever ends this early, what was finished stays,
    and the same call goes on from there.

    Args:
        backend: the model.
        stretches: what it is to predict.
        window: the sliding window in tokens; None for the full context.
        out: folder of results.
        on_progress: told when the run begins and after every stretch.

    Raises:
        BadInput: a context that does not fit the model or the text, or a folder that cannot be written to;
            nothing was written.
        RunFailed: the backend or the disk failed on the way, or a loss is not finite.
    """
    check_context(stretches, window, longest=backend.model.longest_prompt, model=backend.model.name)
    identity = loss_identity(backend, stretches, window)
    facts = ModelFacts(
        position_encoding=backend.model.position_encoding,
        ssmax=backend.model.ssmax,
        train_length=backend.model.train_length,
        parameters=backend.model.parameters,
    )
    plan = [_planned(stretches, number, window) for number in range(stretches.samples)]
    with RunStore.open(out, identity, facts) as store:
        columns = {
            **identity.columns(),
            **facts.columns(),
            "metric": LOSS,
            "window": window,
            "device": backend.device,
            "bamctl_version": bamctl.__version__,
        }
        missing = [number for number, rows in enumerate(plan) if not store.done().issuperset(_row_ids(rows))]
        done = stretches.samples - len(missing)

        def tell(
            loss: float | None, *, tokens: int, seconds: float, rows: tuple[SampleRow, ...] = ()
        ) -> None:
            on_progress(
                LossProgress(
                    model=backend.model.name,
                    window=window,
                    done=done,
                    samples=stretches.samples,
                    loss=loss,
                    tokens=tokens,
                    seconds=seconds,
                    rows=rows,
                )
            )

        tell(None, tokens=0, seconds=0.0)
        for number in missing:
            loss, seconds, rows = _measure(backend, stretches, number, plan[number], window, store, columns)
            done += 1
            tell(loss, tokens=stretches.length, seconds=seconds, rows=rows)
        return LossSummary(
            run_id=identity.run_id,
            folder=store.folder,
            row_ids=frozenset(row_id for rows in plan for row_id in _row_ids(rows)),
            ran=len(missing),
            found=stretches.samples - len(missing),
        )


@dataclass(frozen=True, kw_only=True)
class _PlannedRow:
    """One stretch's tokens at the positions start … end - 1, of which the first ones may be no text."""

    row_id: str
    start: int
    end: int


def _planned(stretches: Stretches, number: int, window: int | None) -> list[_PlannedRow]:
    """The rows of one stretch: every position that is scored lies in one of them."""
    return [
        _PlannedRow(
            row_id=_digest(stretches.digest, window, number, start, end)[:24],
            start=max(start, stretches.first_scored),
            end=end,
        )
        for start, end in position_buckets(stretches.length)
        if end > stretches.first_scored
    ]


def _row_ids(rows: Sequence[_PlannedRow]) -> list[str]:
    return [row.row_id for row in rows]


def _digest(*parts: object) -> str:
    """SHA-256, in hex, of what defines a run or a row, beside the model and the tokenizer."""
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()


def _measure(
    backend: Backend,
    stretches: Stretches,
    number: int,
    rows: Sequence[_PlannedRow],
    window: int | None,
    store: RunStore,
    run_columns: dict[str, Any],
) -> tuple[float, float, tuple[SampleRow, ...]]:
    """Reads one stretch and stores its rows.

    Returns:
        Its loss over all tokens in nats, the seconds it took, and the rows.
    """
    token_ids = stretches.token_ids[number]
    columns = {
        **run_columns,
        "sample": number,
        "started_at": datetime.now(UTC),
        "prompt_tokens": len(token_ids),
        "prompt_digest": hashlib.sha256(token_ids.astype("<i4").tobytes()).hexdigest(),
    }
    began = time.perf_counter()
    try:
        losses = token_losses(backend, token_ids, prefix=stretches.prefix, window=window)
        _check_finite(losses, stretches, number, backend)
    except RunFailed as error:
        for row in rows:
            store.append(
                SampleRow(**columns, row_id=row.row_id, length=row.end, status="failed", error=str(error))
            )
        raise
    seconds = time.perf_counter() - began
    stored = []
    for row in rows:
        scored = losses[row.start - stretches.first_scored : row.end - stretches.first_scored]
        stored.append(
            SampleRow(
                **columns,
                row_id=row.row_id,
                length=row.end,
                status="done",
                loss=float(scored.mean()),
                tokens_scored=len(scored),
                prefill_seconds=seconds,
            )
        )
        store.append(stored[-1])
    return float(losses.mean()), seconds, tuple(stored)


def _check_finite(losses: NDArray[np.float64], stretches: Stretches, number: int, backend: Backend) -> None:
    wrong = np.flatnonzero(~np.isfinite(losses))
    if len(wrong):
        hint = "" if backend.dtype == "float32" else "; try --dtype float32"
        raise RunFailed(
            f"{backend.model.name}: the loss is {losses[wrong[0]]} in {backend.dtype} at position"
            f" {int(wrong[0]) + stretches.first_scored} of stretch {number}{hint}"
        )
