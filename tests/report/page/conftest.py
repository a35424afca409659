import base64
import gzip
import json
import re
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from bamctl.report.page.document import write_page
from bamctl.results.frames import to_frame
from bamctl.results.journal import rows_table
from bamctl.results.schema import SampleRow

SCORES = {
    512: [1.0, 1.0, 1.0, 1.0],
    1024: [1.0, 1.0, 1.0, 0.0],
    2048: [1.0, 0.0, 0.0, 0.0],
    4096: ["skipped"] * 4,
}


@pytest.fixture(scope="session")
def make_answers():
    """Rows of SAMPLE_SCHEMA of one run, from length → a score a sample, "skipped" or "failed"."""

    def make(
        scores,
        *,
        model="small-bam",
        task="passkey",
        metric="exact",
        depths="equidistant:4",
        needle_count=1,
        **columns,
    ):
        rows = []
        for length, of_length in scores.items():
            for sample, score in enumerate(of_length):
                done = not isinstance(score, str)
                key = f"{10000 + 7 * sample + length}"
                depth = 100.0 * sample / max(len(of_length) - 1, 1)
                values = {
                    "run_id": f"{model}-{task}",
                    "row_id": f"{task}-{length}-{sample}",
                    "model": model,
                    "model_digest": f"{model}-digest",
                    "tokenizer_digest": "tokens",
                    "position_encoding": "ggd",
                    "ssmax": False,
                    "train_length": 512,
                    "backend": "native",
                    "device": "cpu",
                    "dtype": "float32",
                    "task": task,
                    "task_digest": f"{task}-digest",
                    "metric": metric,
                    "variant": "",
                    "depth_policy": depths,
                    "seed": 0,
                    "prompt_version": 1,
                    "length": length,
                    "sample": sample,
                    "status": "done" if done else score,
                    "error": None if done else "no memory for so long a prompt",
                    "started_at": datetime(2025, 5, 28, 12, tzinfo=UTC) + timedelta(minutes=sample),
                    "bamctl_version": "0.1.0",
                    "command": ("bamctl", task, "--model", model, "--lengths", "512,1k"),
                }
                if done:
                    values |= {
                        "depth": (depth,) * needle_count,
                        "prompt_tokens": length,
                        "needle_start": tuple(range(needle_count)),
                        "roundtrip_stable": True,
                        "prompt_digest": f"{task}-{length}-{sample}-prompt",
                        "needles": (f"The pass key is {key}.",) * needle_count,
                        "excerpts": (f"The grass is green. The pass key is {key}. The sky is blue.",)
                        * needle_count,
                        "question": "What is the pass key? The pass key is",
                        "references": (key,),
                        "prediction": f" {key}" if score == 1 else " 00000",
                        "exact": score == 1,
                        "recall": float(score),
                        "answer_logprob": -0.125,
                        "prefill_seconds": 0.25,
                    }
                rows.append(SampleRow(**(values | columns)))
        return to_frame(rows_table(rows))

    return make


@pytest.fixture(scope="session")
def some_samples(make_answers):
    """Two models with a passkey, one of them with two of RULER's tasks as well."""
    parts = {512: [1.0, 1.0, 0.5, 1.0], 1024: [0.5, 0.25, 1.0, 0.0]}
    ruler = {"metric": "string_match_all", "depths": "ruler"}
    return pd.concat(
        [
            make_answers(SCORES),
            make_answers(
                SCORES | {4096: [1.0, 1.0, 0.0, 0.0]}, model="small-rope", position_encoding="rotary"
            ),
            make_answers(parts, task="niah_single_1", **ruler),
            make_answers(parts, task="niah_multivalue", needle_count=4, **ruler),
        ],
        ignore_index=True,
    )


@pytest.fixture(scope="session")
def write(tmp_path_factory):
    """Writes a page and returns its path."""

    def written(samples, name="page.html", **options):
        path = tmp_path_factory.mktemp("page") / name
        write_page(samples, path, threshold=0.856, **options)
        return path

    return written


@pytest.fixture(scope="session")
def some_page(some_samples, write):
    """The page of `some_samples`."""
    return write(some_samples)


@pytest.fixture(scope="session")
def read_page():
    """A page's content, its index of samples, and the columns of its prompts and of its rows."""

    def element(text, name):
        return re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', text)[1]

    def read(path):
        text = path.read_text(encoding="utf-8")
        blocks = {"prompts": {}, "rows": {}}
        for kind, number in re.findall(r'id="(prompts|rows)-(\d+)"', text):
            packed = base64.b64decode(element(text, f"{kind}-{number}"))
            for name, values in json.loads(gzip.decompress(packed)).items():
                blocks[kind].setdefault(name, []).extend(values)
        return json.loads(element(text, "content-data")), json.loads(element(text, "samples-data")), blocks

    return read
