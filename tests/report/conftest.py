import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

from bamctl.results.frames import empty_frame, to_frame
from bamctl.results.journal import rows_table
from bamctl.results.positions import context_name
from bamctl.results.proportions import wilson_interval
from bamctl.results.schema import ACCURACY_SCHEMA, SampleRow

SETTINGS = {
    "position_encoding": "ggd",
    "ssmax": True,
    "train_length": 512,
    "backend": "native",
    "dtype": "float32",
    "seed": 0,
}
"""What all runs have in common that the makers below make,"""

SAMPLE_SETTINGS = {
    **SETTINGS,
    "tokenizer_digest": "t",
    "device": "cpu",
    "prompt_version": 1,
    "started_at": datetime(2025, 5, 28, tzinfo=UTC),
    "bamctl_version": "0.1.0",
}
"""and what their samples have beside it."""


@pytest.fixture
def make_run() -> Callable[..., pd.DataFrame]:
    """A run's rows of ACCURACY_SCHEMA, from length → (exact, n), "skipped" or "failed"."""

    def make(
        lengths: Mapping[int, tuple[int, int] | str], run_id: str = "run", **columns: Any
    ) -> pd.DataFrame:
        rows = []
        for length, what in lengths.items():
            exact, n = what if isinstance(what, tuple) else (0, 0)
            low, high = wilson_interval(exact, n) if n else (None, None)
            rows.append(
                {
                    **SETTINGS,
                    "run_id": run_id,
                    "model": "tiny",
                    "model_digest": "0123456789abcdef",
                    "task": "passkey",
                    "metric": "exact",
                    "variant": "",
                    "depth_policy": "equidistant:20",
                    "length": length,
                    "n": n,
                    "exact_count": exact,
                    "accuracy": exact / n if n else None,
                    "ci_low": low,
                    "ci_high": high,
                    "mean_recall": exact / n if n else None,
                    "score": exact / n if n else None,
                    "score_low": low,
                    "score_high": high,
                    "cut_off": n,
                    "skipped": 20 if what == "skipped" else 0,
                    "failed": 20 if what == "failed" else 0,
                    **columns,
                }
            )
        return pd.DataFrame(rows, columns=ACCURACY_SCHEMA.names).astype(empty_frame(ACCURACY_SCHEMA).dtypes)

    return make


@pytest.fixture
def two_models(make_run) -> pd.DataFrame:
    """Two models at 14 lengths, 512 to 4M: one right everywhere, one that gives up."""
    lengths = [512 * 2**power for power in range(14)]
    good = make_run(dict.fromkeys(lengths, (20, 20)), "a")
    fading = {length: (20 - power, 20) if power < 8 else "skipped" for power, length in enumerate(lengths)}
    return pd.concat([good, make_run(fading, "b", model="tiny-rope")], ignore_index=True)


@pytest.fixture
def make_ruler(make_run) -> Callable[..., pd.DataFrame]:
    """A model's runs, from task → scores in % at 4k, 8k, …; of 20 samples 7 were cut off."""

    def make(
        tasks: Mapping[str, tuple[float | None, ...]], model: str = "tiny", **columns: Any
    ) -> pd.DataFrame:
        runs = []
        for task, scores in tasks.items():
            lengths = [4096 * 2**power for power in range(len(scores))]
            what = {
                length: "skipped" if score is None else (1, 20)
                for length, score in zip(lengths, scores, strict=True)
            }
            run_id = f"{model}-{task}-{sorted(columns.items())}"
            run = make_run(what, run_id, model=model, task=task, metric="string_match_all", **columns)
            for row, score in enumerate(scores):
                if score is not None:
                    low, high = wilson_interval(score / 100 * 20, 20)
                    run.loc[row, ["score", "score_low", "score_high"]] = score / 100, low, high
                    run.loc[row, "cut_off"] = 7
            runs.append(run)
        return pd.concat(runs, ignore_index=True)

    return make


@pytest.fixture
def three_tasks(make_ruler) -> pd.DataFrame:
    """A model at 4k, 8k and 16k, out of RULER's order."""
    return make_ruler(
        {"vt": (80.0, 60.0, 40.0), "niah_single_1": (100.0, 90.0, 80.0), "niah_multiquery": (90.0, 60.0, 3.0)}
    )


@pytest.fixture
def ten_models(make_run) -> pd.DataFrame:
    """Five encodings with and without SSMax, 512 to 32k; the sinusoidal ones have not learned 512."""
    encodings = {
        "alibi": "laplace",
        "bam": "ggd",
        "nope": "uniform",
        "rope": "rotary",
        "sinusoidal": "sinusoidal",
    }
    runs = []
    for place, (name, encoding) in enumerate(encodings.items()):
        for ssmax in (False, True):
            right = 20 if name != "sinusoidal" else 18
            lengths = {512 * 2**power: (max(right - power * (place + 1), 0), 20) for power in range(7)}
            model = f"small-{name}{'-ssmax' if ssmax else ''}"
            columns = {"model": model, "model_digest": model, "position_encoding": encoding, "ssmax": ssmax}
            runs.append(make_run(lengths, model, **columns))
    return pd.concat(runs, ignore_index=True)


@pytest.fixture(scope="session")
def make_losses():
    """Rows of SAMPLE_SCHEMA of one run, from end of positions → a loss a stretch; None: it failed."""

    def make(losses, window=None, *, model="tiny", reading="text=essays.txt max_len=1k samples=2", **columns):
        rows = []
        for end, values in losses.items():
            for sample, loss in enumerate(values):
                done = loss is not None
                values_of = {
                    **SAMPLE_SETTINGS,
                    "run_id": f"{model}-{reading}-{window}-{columns}",
                    "row_id": f"{reading}-{window}-{sample}-{end}",
                    "model": model,
                    "model_digest": "0123456789abcdef",
                    "task": "perplexity",
                    "task_digest": f"{window}",
                    "metric": "loss",
                    "variant": f"{reading} {context_name(window)}",
                    "window": window,
                    "depth_policy": "",
                    "length": end,
                    "sample": sample,
                    "status": "done" if done else "failed",
                    "error": None if done else "no memory",
                    "loss": loss,
                    "tokens_scored": end // 2 if done else None,
                    "prompt_digest": hashlib.sha256(f"{reading}-{sample}".encode()).hexdigest(),
                }
                rows.append(SampleRow(**(values_of | columns)))
        return to_frame(rows_table(rows))

    return make


@pytest.fixture
def full_and_sliding(make_losses):
    full = make_losses({256: [3.0, 3.5], 512: [2.5, 3.0], 1024: [2.0, 2.75]})
    return pd.concat([make_losses({256: [3.0, 3.5], 512: [2.5, 3.0], 1024: [2.25, 3.25]}, 512), full])


@pytest.fixture(scope="session")
def make_answers():
    """Rows of SAMPLE_SCHEMA of one run, from (length, depth) → whether each sample is right; None: skipped.

    A depth may also be a tuple, of several needles or none. What a column holds may be a function of the
    sample's number within its length.
    """

    def make(answers, *, model="tiny", task="passkey", depth_policy="0,50,100", **columns):
        rows, seen = [], {}
        for (length, depth), results in answers.items():
            for right in results:
                sample = seen[length] = seen.get(length, -1) + 1
                done = right is not None
                values = {
                    **SAMPLE_SETTINGS,
                    "run_id": f"{model}-{task}-{depth_policy}-{sorted(map(str, columns.items()))}",
                    "row_id": f"{length}-{sample}",
                    "model": model,
                    "model_digest": f"{model}-digest",
                    "task": task,
                    "task_digest": task,
                    "variant": "",
                    "depth_policy": depth_policy,
                    "length": length,
                    "sample": sample,
                    "depth": depth if isinstance(depth, tuple) else (float(depth),),
                    "status": "done" if done else "skipped",
                }
                if done:
                    values |= {"prediction": "1", "exact": right == 1, "recall": float(right)}
                    values |= {"completion_tokens": 5, "reused_tokens": 0, "peak_memory_bytes": 2**30}
                    values |= {"prefill_seconds": length / 1000, "decode_seconds": 0.5}
                columns_of = {name: of(sample) if callable(of) else of for name, of in columns.items()}
                rows.append(SampleRow(**(values | columns_of)))
        return to_frame(rows_table(rows))

    return make
