"""Times `bamctl report` over many samples, and measures the memory that it takes.

Two folders of results are made: one run's file of a million samples, and ten thousand runs of 20 samples. The
report runs in a process of its own, imports and all.

    python benchmarks/report_scale.py [--samples 1000000] [--runs 10000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bamctl.results.frames import with_pandas_types
from bamctl.results.journal import rows_table
from bamctl.results.schema import ModelFacts, RunIdentity, SampleRow

LENGTHS = tuple(512 * 2**doubling for doubling in range(10))
MEASURE = """
import os, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
import resource
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command and prints its exit status and the most memory that it had, in KiB."""


def one_sample(seed: int) -> SampleRow:
    """Of the run with this seed."""
    identity = RunIdentity(
        model=f"model-{seed % 100}",
        model_digest=f"{seed % 100:064x}",
        tokenizer_digest="b" * 64,
        task="passkey",
        task_digest="c" * 64,
        variant="",
        depths="random",
        backend="native",
        dtype="float32",
        seed=seed,
        prompt_version=1,
    )
    facts = ModelFacts(position_encoding="ggd", ssmax=True, train_length=LENGTHS[0], parameters=None)
    return SampleRow(
        **identity.columns(),
        **facts.columns(),
        row_id="",
        device="cpu",
        length=0,
        sample=0,
        status="done",
        started_at=datetime(2025, 5, 28, tzinfo=UTC),
        bamctl_version="1",
        command=("bamctl", "passkey", "--model", identity.model, "--lengths", "512,1k,2k", "--samples", "20"),
        depth=(50.0,),
        needle_start=(100,),
        needles=("The pass key is 12345. Remember it.",),
        excerpts=("The sky is blue. The pass key is 12345. Remember it. The grass is green.",),
        question="What is the pass key?",
        references=("12345",),
        prediction="12345.",
        exact=True,
        recall=1.0,
        finish_reason="stop",
    )


def many_samples(seed: int, count: int) -> pa.Table:
    """`count` samples of a run, spread over LENGTHS."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(np.resize(LENGTHS, count))
    numbers = np.arange(count)
    exact = rng.random(count) < 0.7
    drawn = {
        "row_id": [f"{seed:08x}{number:016x}" for number in rng.permutation(count)],
        "length": lengths,
        "sample": numbers - np.searchsorted(lengths, lengths),
        "exact": exact,
        "recall": exact.astype(float),
        "answer_logprob": -rng.random(count),
        "prefill_seconds": rng.random(count),
        "decode_seconds": rng.random(count),
        "peak_memory_bytes": rng.integers(2**30, 2**34, count),
        "prompt_digest": [f"{seed:032x}{number:032x}" for number in range(count)],
        "prediction": [f"{number:05d}." for number in rng.integers(0, 100_000, count)],
        "started_at": [datetime(2025, 5, 28, tzinfo=UTC) + timedelta(seconds=n) for n in range(count)],
    }
    table = rows_table([one_sample(seed)]).take(pa.repeat(0, count))
    for name, values in drawn.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.field(name), pa.array(values, table.field(name).type))
    return table


def write(table: pa.Table, folder: Path) -> None:
    """A run's folder with the samples."""
    folder.mkdir(parents=True)
    pq.write_table(with_pandas_types(table), folder / "samples.parquet", compression="zstd")
    (folder / "journal.jsonl").touch()


def report(folder: Path, *options: str) -> None:
    """Prints how long the report takes, and how much memory."""
    command = [sys.executable, "-m", "bamctl.cli.main", "report", str(folder), *options]
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    status, kibibytes = map(int, ended.stdout.split())
    shown = " ".join(["report", *options])
    print(f"  {shown:16}  {seconds:6.2f} s  {kibibytes / 2**20:5.2f} GiB, exit {status}")


def main() -> None:
    """Makes the folders and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        one, many = Path(place, "one"), Path(place, "many")
        write(many_samples(0, asked.samples), one / "passkey" / "run")
        print(f"one file of {asked.samples} samples:")
        report(one)
        report(one, "--csv")
        small = many_samples(0, 20)
        for seed in range(asked.runs):
            names = ("run_id", "model", "model_digest", "seed")
            sample = vars(one_sample(seed))
            table = small
            for name in names:
                field = table.field(name)
                column = pa.repeat(pa.scalar(sample[name], field.type), len(table))
                table = table.set_column(table.schema.get_field_index(name), field, column)
            write(table, many / "passkey" / f"run-{seed}")
        print(f"{asked.runs} files of 20 samples:")
        report(many)
        report(many, "--csv")


if __name__ == "__main__":
    main()
