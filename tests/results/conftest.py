from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow


@pytest.fixture(scope="session")
def identity() -> RunIdentity:
    return RunIdentity(
        model="models/tiny",
        model_digest="aa" * 32,
        tokenizer_digest="bb" * 32,
        task="passkey",
        task_digest="cc" * 32,
        variant="",
        depths="equidistant:20",
        backend="native",
        dtype="float32",
        seed=0,
        prompt_version=1,
    )


@pytest.fixture(scope="session")
def facts() -> ModelFacts:
    return ModelFacts(position_encoding="ggd", ssmax=True, train_length=512, parameters=590_000)


@pytest.fixture(scope="session")
def make_row(identity: RunIdentity, facts: ModelFacts) -> Callable[..., SampleRow]:
    """A done row of the run, number `sample` of its length; any column may be given another value."""

    def make(sample: int = 0, length: int = 512, status: str = "done", **columns: Any) -> SampleRow:
        values: dict[str, Any] = {
            **identity.columns(),
            **facts.columns(),
            "row_id": f"{length}-{sample}",
            "device": "cpu",
            "length": length,
            "sample": sample,
            "status": status,
            "started_at": datetime(2025, 5, 28, 12, tzinfo=UTC) + timedelta(seconds=sample),
            "bamctl_version": "0.1.0",
            "depth": (5.0 * sample,),
        }
        if status == "done":
            values |= {
                "prompt_tokens": length,
                "needle_start": (17,),
                "haystack_repeats": 0,
                "roundtrip_stable": True,
                "prompt_digest": f"{sample:064x}",
                "chat_prefix": "<user> ",
                "references": ("12345",),
                "prediction": "12345",
                "exact": True,
                "recall": 1.0,
                "answer_logprob": -0.25,
                "completion_tokens": 5,
                "finish_reason": "length",
                "reused_tokens": 256,
                "prefill_seconds": 0.5,
                "decode_seconds": 0.125,
                "peak_memory_bytes": 2**33 + 1,
            }
        else:
            values |= {"error": "does not fit"}
        return SampleRow(**(values | columns))

    return make


@pytest.fixture(scope="session")
def make_loss_row(make_row) -> Callable[..., SampleRow]:
    """A row of a run that measures losses: stretch `sample`, the positions that end at `length`."""

    def make(sample: int = 0, length: int = 512, status: str = "done", **columns: Any) -> SampleRow:
        values: dict[str, Any] = {"metric": "loss", "depth": None, "window": 512}
        if status == "done":
            answer = ("needle_start", "haystack_repeats", "roundtrip_stable", "chat_prefix", "references")
            written = ("prediction", "exact", "recall", "answer_logprob", "completion_tokens")
            rest = ("finish_reason", "reused_tokens", "decode_seconds", "peak_memory_bytes")
            values |= dict.fromkeys((*answer, *written, *rest))
            values |= {"loss": 2.0, "tokens_scored": length // 2, "prompt_tokens": 4096}
        return make_row(sample, length, status, **(values | columns))

    return make
