from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest

from bamctl.results.frames import empty_frame
from bamctl.results.schema import ACCURACY_SCHEMA
from bamctl.results.statistics import wilson_interval


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
                    "run_id": run_id,
                    "model": "tiny",
                    "model_digest": "0123456789abcdef",
                    "position_encoding": "ggd",
                    "ssmax": True,
                    "train_length": 512,
                    "task": "passkey",
                    "variant": "",
                    "depth_policy": "equidistant:20",
                    "backend": "native",
                    "dtype": "float32",
                    "seed": 0,
                    "length": length,
                    "n": n,
                    "exact_count": exact,
                    "accuracy": exact / n if n else None,
                    "ci_low": low,
                    "ci_high": high,
                    "mean_recall": exact / n if n else None,
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
