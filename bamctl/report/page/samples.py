"""A page's samples: a short index of all, and their texts and numbers, packed so that thousands are small.

The page unpacks a block when a sample of it is looked at. The prompt, which samples of several models share,
is there once.
"""

import base64
import gzip
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bamctl.report.page.texts import visible
from bamctl.results.schema import SAMPLE_SCHEMA, STATUSES

MOST_SAMPLES = 10_000
"""So many are in a page at most; of more, those with the lowest numbers at each length of each run."""

MOST_BYTES = 5_200_000
"""What all blocks together may take, as base64."""

LIMITS = (4000, 2000, 1200, 800, 640, 500, 400, 320, 250, 180, 120, 80, 40, 0)
"""Characters a text may have; the first with which the blocks are small enough is taken."""

_BLOCK = 500
"""Samples, or prompts, a block."""

_PROBED = 8
"""Of every so many blocks one is packed to see how large all would be."""

_SHORTEST = 40
"""Characters that each of a prompt's excerpts has at least."""

_OF_PROMPT = ("prompt_tokens", "needle_start", "haystack_repeats", "roundtrip_stable", "prompt_digest")
_OF_ROW = (
    "status",
    "error",
    "exact",
    "recall",
    "answer_logprob",
    "completion_tokens",
    "finish_reason",
    "reused_tokens",
    "prefill_seconds",
    "decode_seconds",
    "peak_memory_bytes",
    "loss",
    "tokens_scored",
    "device",
    "started_at",
    "bamctl_version",
)
"""Columns of SAMPLE_SCHEMA that are shown as they are: of a prompt, and of the row."""


@dataclass(frozen=True, kw_only=True)
class PackedSamples:
    """All samples of a page, a run's together, by length and number."""

    index: Mapping[str, list[Any]]
    """Column → a value a sample: run, length, sample, status, score, depth, row of the heatmap, prompt."""
    fields: tuple[Mapping[str, str], ...]
    """Name, meaning and unit of each number of a sample that is shown, as the schema has them."""
    commands: tuple[str, ...]
    """The different commands that run a sample's model and task again, as one types them."""
    prompts: tuple[str, ...]
    rows: tuple[str, ...]
    """Blocks: base64 of gzip of JSON, column → a value a prompt, or a value a row."""
    block: int
    """Prompts or rows a block."""
    left_out: int
    """Samples that are not in the page."""
    limit: int | None
    """Characters that a text has at most; None where none had to be shortened."""


def pack_samples(
    samples: pd.DataFrame, depths: pd.Series, run_ids: Sequence[str], *, most_bytes: int = MOST_BYTES
) -> PackedSamples:
    """Packs samples; texts are shortened as far as they have to be.

    Args:
        samples: rows of SAMPLE_SCHEMA, each sample once, with an index in which each label is once.
        depths: the row of each sample in its run's heatmap; -1 for none.
        run_ids: the page's runs, in order.
        most_bytes: what all blocks together may take.
    """
    place = {run_id: number for number, run_id in enumerate(run_ids)}
    order = samples[["length", "sample", "row_id"]].assign(run=samples["run_id"].map(place))
    chosen = _chosen(order.sort_values(["run", "length", "sample", "row_id"]))
    kept = samples.loc[chosen.index].assign(run=chosen["run"], depth_row=depths)
    records: list[dict[str, Any]] = [
        {str(name): value for name, value in record.items()}
        for record in kept.astype(object).where(kept.notna(), None).to_dict("records")
    ]
    commands = {tuple(record["command"]): None for record in records if record["command"] is not None}
    numbers = {command: number for number, command in enumerate(commands)}
    probe = [
        record
        for start in range(0, len(records), _PROBED * _BLOCK)
        for record in records[start : start + _BLOCK]
    ]
    for limit in LIMITS:
        packed = _pack(probe, limit, numbers)
        if len(probe) < len(records) and packed.size * len(records) <= most_bytes * len(probe):
            packed = _pack(records, limit, numbers)
        if len(packed.prompt_of) == len(records) and packed.size <= most_bytes:
            break
    else:
        packed = _pack(records, LIMITS[-1], numbers)
    return PackedSamples(
        index=_index(records, packed.prompt_of),
        fields=tuple(map(_field, (*_OF_PROMPT, *_OF_ROW))),
        commands=tuple(visible(shlex.join(command)) for command in commands),
        prompts=packed.prompts,
        rows=packed.rows,
        block=_BLOCK,
        left_out=len(samples) - len(kept),
        limit=packed.limit,
    )


@dataclass(frozen=True, kw_only=True)
class _Packed:
    prompt_of: tuple[int, ...]
    """The number of each sample's prompt."""
    prompts: tuple[str, ...]
    rows: tuple[str, ...]
    limit: int | None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, (*self.prompts, *self.rows)))


def _pack(
    records: Sequence[Mapping[str, Any]], limit: int, commands: Mapping[tuple[str, ...], int]
) -> _Packed:
    texts = _Texts(limit)
    prompts = _Prompts(texts)
    return _Packed(
        prompt_of=tuple(prompts.number(record) for record in records),
        prompts=_blocks(prompts.known),
        rows=_blocks([_row(record, texts, commands) for record in records]),
        limit=limit if texts.shortened else None,
    )


def _chosen(order: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_SAMPLES`: the first few of each run and length, as many of each as there is room for."""
    if len(order) <= MOST_SAMPLES:
        return order
    rank = order.groupby(["run", "length"]).cumcount()
    # Of the last rank that fits in part there are the first runs' alone.
    first = rank.sort_values(kind="stable").index[:MOST_SAMPLES]
    return order[order.index.isin(first)]


def _index(records: Sequence[Mapping[str, Any]], prompts: Sequence[int]) -> dict[str, list[Any]]:
    return {
        "run": [record["run"] for record in records],
        "length": [record["length"] for record in records],
        "sample": [record["sample"] for record in records],
        "status": [STATUSES.index(record["status"]) for record in records],
        "score": [_score(record) for record in records],
        "depth": [_depth(record["depth"]) for record in records],
        "row": [record["depth_row"] for record in records],
        "prompt": list(prompts),
    }


def _score(record: Mapping[str, Any]) -> float | None:
    if record["status"] != "done":
        return None
    score = record["exact"] if record["metric"] == "exact" else record["recall"]
    return _rounded(record["loss"] if score is None else float(score))


def _depth(depth: Iterable[float] | None) -> str:
    return "" if depth is None else ", ".join(f"{value:.3g}" for value in depth)


class _Texts:
    """Shortens texts, and knows whether it had to."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shortened = False

    def fit(
        self, text: str | None, limit: int | None = None, *, around: Sequence[str] = (), end: bool = False
    ) -> str | list[Any] | None:
        """The text; or where it is too long, what it may have of it and how many characters are left out.

        What is kept is its beginning, or its end, or what lies around the first of the texts `around` in it.
        """
        most = self.limit if limit is None else limit
        if text is None or len(text) <= most:
            return None if text is None else visible(text)
        self.shortened = True
        start = len(text) - most if end else 0
        if around:
            found = [at + len(part) // 2 for part in around if (at := text.find(part)) >= 0]
            middle = found[0] if found else len(text) // 2
            start = min(max(middle - most // 2, 0), len(text) - most)
        return [visible(text[start : start + most]), len(text) - most]


def _row(record: Mapping[str, Any], texts: _Texts, commands: Mapping[tuple[str, ...], int]) -> dict[str, Any]:
    command = record["command"]
    return {
        "row_id": visible(record["row_id"]),
        "prediction": texts.fit(record["prediction"]),
        "command": None if command is None else commands[tuple(command)],
        **{name: _value(record[name]) for name in _OF_ROW},
        "error": texts.fit(record["error"]),
    }


class _Prompts:
    """The different prompts, numbered as they come."""

    def __init__(self, texts: _Texts) -> None:
        self._texts = texts
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.known: list[dict[str, Any]] = []

    def number(self, record: Mapping[str, Any]) -> int:
        """The number of a sample's prompt."""
        lists = [_list(record[name]) for name in ("references", "needles", "excerpts")]
        others = [record[name] for name in ("question", "chat_prefix", *_OF_PROMPT)]
        key = (
            *lists,
            *(value if isinstance(value, (str, int, type(None))) else (*value,) for value in others),
        )
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self.known.append(self._prompt(record, *lists))
        return self._numbers[key]

    def _prompt(
        self,
        record: Mapping[str, Any],
        references: Sequence[str],
        needles: Sequence[str],
        excerpts: Sequence[str],
    ) -> dict[str, Any]:
        fit, limit = self._texts.fit, self._texts.limit
        each = max(limit // max(len(excerpts), 1), min(_SHORTEST, limit))
        return {
            "references": [fit(text) for text in references],
            "needles": [fit(text, each) for text in needles],
            "excerpts": [fit(text, each, around=(*references, *needles)) for text in excerpts],
            "question": fit(record["question"], end=True),
            "chat_prefix": fit(record["chat_prefix"]),
            **{name: _value(record[name]) for name in _OF_PROMPT},
        }


def _list(values: Iterable[str] | None) -> tuple[str, ...]:
    return () if values is None else tuple(values)


def _value(value: Any) -> Any:
    """As JSON has it, numbers with six digits."""
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return _rounded(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    return ", ".join(str(entry) for entry in value)


def _rounded(value: float | None) -> float | int | None:
    if value is None:
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _field(name: str) -> Mapping[str, str]:
    metadata = {key.decode(): value.decode() for key, value in SAMPLE_SCHEMA.field(name).metadata.items()}
    return {"name": name, **metadata}


def _blocks(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(_packed(records[start : start + _BLOCK]) for start in range(0, len(records), _BLOCK))


def _packed(records: Sequence[Mapping[str, Any]]) -> str:
    """Values of one column beside each other are smaller when packed."""
    columns = {name: [record[name] for record in records] for name in records[0]}
    text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
