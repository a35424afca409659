"""What is stored of a run: its identity, one row a sample, and the accuracy at each length.

The Arrow schemas are the definition of the Parquet files. Each field's metadata holds its meaning
(`description`) and, where it has one, its `unit`; the schema's metadata holds the version. What is
not known of a sample that was skipped or failed is null, never zero.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 4
"""Rises whenever a column changes its meaning, its type or its name, or older readers cannot do without it.

2: `metric`, without which one kind of score would be taken for another, and `depth` is of every needle, no
longer of the first one alone.
3: rows may hold a loss instead of an answer, and `window` says how much context it had.
4: `needles`, `excerpts` and `question`, what was asked in words, and `command`, which runs it again.
"""

VERSION_KEY = b"bamctl_schema_version"
STATUSES = ("skipped", "failed", "done")
"""What may have become of a sample, weakest first: a later entry replaces an earlier one."""
LOSS = "loss"
"""The metric of rows that hold a loss: how well a stretch of text is predicted, instead of an answer."""
EARLIER: dict[str, str] = {"metric": "exact"}
"""Columns that are never null and that files of earlier versions lack: what these files mean."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What defines a run: change one field and it is another run."""

    model: str
    model_digest: str
    tokenizer_digest: str
    task: str
    task_digest: str
    variant: str  # deviations from the task file, for people to read; "" for none
    depths: str  # "equidistant:20", "0,50,100", "random"
    backend: str
    dtype: str
    seed: int
    prompt_version: int

    @cached_property
    def run_id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the identity's canonical JSON."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def columns(self) -> dict[str, Any]:
        """The identity as the columns of a row: `run_id` added, `depths` under the name `depth_policy`."""
        values = asdict(self)
        values["depth_policy"] = values.pop("depths")
        return {"run_id": self.run_id, **values}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a reader of the results wants to know of the model."""

    position_encoding: str
    ssmax: bool
    train_length: int | None  # tokens
    parameters: int | None

    def columns(self) -> dict[str, Any]:
        """The facts that are columns of a row; `parameters` stays in run.json."""
        return {
            "position_encoding": self.position_encoding,
            "ssmax": self.ssmax,
            "train_length": self.train_length,
        }


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One sample and what became of it.

    A run's own columns come from the identity and the facts:
    ``SampleRow(**identity.columns(), **facts.columns(), row_id=…, …)``.

    Raises:
        ValueError: `status` is unknown; a done row lacks its prediction or its scores, or its loss where
            that is the metric; another row has them; a failed row does not say why; `started_at` has no time
            zone.
    """

    run_id: str
    row_id: str
    model: str
    model_digest: str
    tokenizer_digest: str
    position_encoding: str
    ssmax: bool
    train_length: int | None
    backend: str
    device: str
    dtype: str
    task: str
    task_digest: str
    variant: str
    depth_policy: str
    seed: int
    prompt_version: int
    length: int
    sample: int
    status: str
    started_at: datetime
    bamctl_version: str
    metric: str = EARLIER["metric"]
    window: int | None = None
    error: str | None = None
    depth: tuple[float, ...] | None = None
    prompt_tokens: int | None = None
    needle_start: tuple[int, ...] | None = None
    haystack_repeats: int | None = None
    roundtrip_stable: bool | None = None
    prompt_digest: str | None = None
    chat_prefix: str | None = None
    references: tuple[str, ...] | None = None
    prediction: str | None = None
    exact: bool | None = None
    recall: float | None = None
    answer_logprob: float | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    reused_tokens: int | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None
    tokens_scored: int | None = None
    needles: tuple[str, ...] | None = None
    excerpts: tuple[str, ...] | None = None
    question: str | None = None
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        answered = [self.prediction is not None, self.exact is not None, self.recall is not None]
        predicted = [self.loss is not None, self.tokens_scored is not None]
        wanted, other = (predicted, answered) if self.metric == LOSS else (answered, predicted)
        if self.status == "done" and not all(wanted):
            lacking = "loss or tokens_scored" if self.metric == LOSS else "prediction, exact or recall"
            raise ValueError(f"row {self.row_id} is done but lacks its {lacking}")
        if (self.status != "done" and any(wanted)) or any(other):
            raise ValueError(
                f"row {self.row_id} is {self.status}, by {self.metric}, but has a prediction or a score"
            )
        if self.status == "failed" and not self.error:
            raise ValueError(f"row {self.row_id} failed but does not say why")
        if self.started_at.utcoffset() is None:
            raise ValueError(f"row {self.row_id}: started_at has no time zone")

    def to_json(self) -> str:
        """The row as one line of JSON, without the line's end."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["started_at"] = self.started_at.astimezone(UTC).isoformat()
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "SampleRow":
        """The inverse of `to_json`.

        Raises:
            ValueError: the line is no JSON, or not the JSON of a row.
        """
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        try:
            values["started_at"] = datetime.fromisoformat(values["started_at"])
            for name in ("depth", "needle_start", "references", "needles", "excerpts", "command"):
                if values.get(name) is not None:
                    values[name] = tuple(values[name])
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


def _column(
    name: str, kind: pa.DataType, description: str, *, unit: str = "", null: bool = False
) -> pa.Field:
    metadata = {"description": description, **({"unit": unit} if unit else {})}
    return pa.field(name, kind, nullable=null, metadata=metadata)


_text, _integer, _real, _flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_RUN = [
    _column("run_id", _text, "the run: a digest of everything that defines it"),
    _column("model", _text, "the model's name as it was given"),
    _column("model_digest", _text, "digest of the weights and the configuration"),
    _column("position_encoding", _text, "ggd, laplace, uniform, rotary, sinusoidal, or what the model says"),
    _column("ssmax", _flag, "whether attention is scaled by ln n (Scalable Softmax)"),
    _column("train_length", _integer, "context length in training, where known", unit="tokens", null=True),
    _column("task", _text, "the task's name"),
    _column("metric", _text, "what counts: exact, string_match_all, string_match_part or loss"),
    _column("variant", _text, "deviations from the task's file, empty for none; of a loss, how it is read"),
    _column("depth_policy", _text, "how depths were chosen: equidistant:N, a list in %, random, or ruler"),
    _column("backend", _text, "what ran the model: native, transformers or vllm"),
    _column("dtype", _text, "number format of weights and activations"),
    _column("seed", _integer, "the run's seed"),
    _column(
        "window",
        _integer,
        "of a loss: the most tokens read at once; null: all before",
        unit="tokens",
        null=True,
    ),
]
RUN_COLUMNS = tuple(field.name for field in _RUN)
"""The columns that are the same in every row of a run, in both schemas."""

SAMPLE_SCHEMA: pa.Schema = pa.schema(
    [
        _column("row_id", _text, "the sample: a digest of what defines it, stable over runs of one plan"),
        *_RUN,
        _column("tokenizer_digest", _text, "digest of the tokenizer"),
        _column("task_digest", _text, "digest of the task's file; of a loss, of the text and how it is read"),
        _column("prompt_version", _integer, "version of the code that builds prompts"),
        _column("device", _text, "where it ran, such as cpu or cuda:0"),
        _column(
            "length",
            _integer,
            "target length of the prompt; of a loss, where its stretch of positions ends",
            unit="tokens",
        ),
        _column("sample", _integer, "the sample's number within its length, from 0"),
        _column("depth", pa.list_(_real), "each needle's depth: 0 start, 100 end", unit="percent", null=True),
        _column("prompt_tokens", _integer, "length of the prompt as built", unit="tokens", null=True),
        _column("needle_start", pa.list_(_integer), "each needle's first position", unit="tokens", null=True),
        _column("haystack_repeats", _integer, "times the haystack's text had to be started again", null=True),
        _column("roundtrip_stable", _flag, "the prompt decoded and encoded is the same tokens", null=True),
        _column("prompt_digest", _text, "digest of the prompt's token ids", null=True),
        _column("chat_prefix", _text, "what a chat template put before the question", null=True),
        _column("needles", pa.list_(_text), "each needle's text; … for the middle of a long one", null=True),
        _column(
            "excerpts", pa.list_(_text), "the prompt's text around each needle, and the needle", null=True
        ),
        _column("question", _text, "the prompt's last words: what is asked", null=True),
        _column("references", pa.list_(_text), "the right answers", null=True),
        _column("prediction", _text, "what the model wrote", null=True),
        _column("exact", _flag, "the answer, and nothing but the answer, at the start", null=True),
        _column("recall", _real, "RULER's score: references found in the prediction", unit="0…1", null=True),
        _column("answer_logprob", _real, "log-probability of the reference answer", unit="nats", null=True),
        _column("completion_tokens", _integer, "tokens that were generated", unit="tokens", null=True),
        _column("finish_reason", _text, "why generation ended: stop or length", null=True),
        _column(
            "reused_tokens",
            _integer,
            "leading tokens that an earlier sample had read",
            unit="tokens",
            null=True,
        ),
        _column("prefill_seconds", _real, "time to read the prompt", unit="seconds", null=True),
        _column("decode_seconds", _real, "time to write the answer", unit="seconds", null=True),
        _column("peak_memory_bytes", _integer, "most memory in use", unit="bytes", null=True),
        _column("loss", _real, "mean -ln p of the tokens scored", unit="nats a token", null=True),
        _column("tokens_scored", _integer, "tokens that the loss is a mean of", unit="tokens", null=True),
        _column("status", _text, "done, skipped or failed"),
        _column("error", _text, "why it was skipped or failed", null=True),
        _column("started_at", pa.timestamp("us", tz="UTC"), "when the sample was started", unit="UTC"),
        _column("bamctl_version", _text, "version of bamctl that ran it"),
        _column(
            "command", pa.list_(_text), "words of the command that runs the model and the task", null=True
        ),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)

REPETITIVE = (
    *(field.name for field in _RUN if field.type == _text),
    *("tokenizer_digest", "task_digest", "device", "chat_prefix", "finish_reason", "status", "error"),
    "bamctl_version",
)
"""Columns of texts of which there are few different ones among many rows."""

ACCURACY_SCHEMA: pa.Schema = pa.schema(
    [
        *_RUN,
        _column(
            "length",
            _integer,
            "target length of the prompts; of a loss, where its stretch of positions ends",
            unit="tokens",
        ),
        _column("n", _integer, "samples that are done; the figures below are of these", unit="samples"),
        _column("exact_count", _integer, "samples answered exactly", unit="samples", null=True),
        _column("accuracy", _real, "exact_count / n; null where n is 0", unit="0…1", null=True),
        _column("ci_low", _real, "lower end of accuracy's 95% Wilson interval", unit="0…1", null=True),
        _column("ci_high", _real, "upper end of accuracy's 95% Wilson interval", unit="0…1", null=True),
        _column("mean_recall", _real, "mean recall", unit="0…1", null=True),
        _column("recall_values", pa.list_(_real), "each recall that a sample has", unit="0…1", null=True),
        _column("recall_counts", pa.list_(_integer), "how many have it", unit="samples", null=True),
        _column("score", _real, "accuracy if the metric is exact, else mean_recall", unit="0…1", null=True),
        _column(
            "score_low",
            _real,
            "lower end of score's 95% interval: Wilson's where all are 0 or 1, else a bootstrap's",
            unit="0…1",
            null=True,
        ),
        _column("score_high", _real, "upper end of score's 95% interval", unit="0…1", null=True),
        _column(
            "cut_off", _integer, "answers that ended because their tokens did", unit="samples", null=True
        ),
        _column("mean_answer_logprob", _real, "mean answer_logprob where known", unit="nats", null=True),
        _column("prefill_seconds", _real, "mean time to read a prompt", unit="seconds", null=True),
        _column("decode_seconds", _real, "mean time to write an answer", unit="seconds", null=True),
        _column("peak_memory_bytes", _integer, "most memory any sample used", unit="bytes", null=True),
        _column("loss", _real, "mean of the samples' losses", unit="nats a token", null=True),
        _column("loss_low", _real, "lower end of loss's 95% t interval", unit="nats a token", null=True),
        _column("loss_high", _real, "upper end of loss's 95% t interval", unit="nats a token", null=True),
        _column("tokens_scored", _integer, "tokens that the losses are of", unit="tokens", null=True),
        _column("skipped", _integer, "samples that were skipped", unit="samples"),
        _column("failed", _integer, "samples that failed", unit="samples"),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
