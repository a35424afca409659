"""The native backend side by side with vLLM: reading a prompt, and a whole passkey run, on a CPU.

    python benchmarks/backends.py                                  # 512 … 32k, two checkpoints
    python benchmarks/backends.py --lengths 512,4k --rounds 5 --model small-bam-ssmax
    python benchmarks/backends.py --against native                 # tries the benchmark itself: ratios of 1

Both backends live in this process and answer the same prompts in turn, timed by the same clock from outside.
A prefill is one prompt of which one token is generated; a run is ten samples, streamed as an evaluation does
it. Each round has prompts of its own, and prefix caches are off.
"""

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

# In this process the engine shares the threads that torch has here.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from compare import append_rows, percentiles, ratios, time_side_by_side

from bamctl.backends.base import Backend
from bamctl.backends.opening import open_model
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples
from bamctl.lengths import format_length, parse_lengths
from bamctl.tasks.base import Task
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.tokenization import PromptTokenizer

SAMPLES = 10
ROOM = 64
"""Tokens for an answer beside the longest prompt."""


def make_prompts(task: Task, length: int, seed: int) -> list[Prompt]:
    """The prompts of one run."""
    plan = plan_samples(
        task.spec, lengths=[length], samples=SAMPLES, depths=parse_depths("equidistant", SAMPLES), seed=seed
    )
    return [task.build(length=length, depth=sample.depth, rng=sample.rng()) for sample in plan[length]]


def one_token_prompts(backend: Backend, prompts: list[Prompt]) -> list[Prompt]:
    """The prompts with the token that follows as their answer: nothing else is then scored, or read again."""
    short = [replace(prompt, tokens_to_generate=1) for prompt in prompts]
    following = [backend.complete([prompt])[0].token_ids for prompt in short]
    return [replace(p, answer_ids=(tuple(ids),)) for p, ids in zip(short, following, strict=True)]


def prefill_call(backend: Backend, prompts: Iterator[Prompt]) -> Callable[[], object]:
    """Reads the next prompt and generates one token."""
    return lambda: backend.complete([next(prompts)])


def run_call(backend: Backend, runs: Iterator[list[Prompt]]) -> Callable[[], object]:
    """Answers the prompts of the next run."""
    return lambda: list(backend.stream(next(runs), together=None))


def main() -> None:
    """Measures, prints, appends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", action="append", help="by default small-bam-ssmax and small-rope")
    parser.add_argument("--lengths", default="512,1k,2k,4k,8k,16k,32k")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", default="vllm", choices=["vllm", "native"])
    arguments = parser.parse_args()
    lengths = parse_lengths(arguments.lengths)
    rows = []
    for name in arguments.model or ["small-bam-ssmax", "small-rope"]:
        backends = []
        for backend in ("native", arguments.against):
            model = open_model(name, backend=backend)
            options = {"device": "cpu", "dtype": "float32", "share_prefixes": False}
            backends.append(model.start(**options, longest=max(lengths) + ROOM))
        task = build_task(load_spec("passkey"), PromptTokenizer(model.tokenizer, chat=False))
        for length in lengths:
            runs = [make_prompts(task, length, seed) for seed in range(arguments.rounds + 1)]
            firsts = one_token_prompts(backends[0], [run[SAMPLES // 2] for run in runs])
            calls: dict[str, dict[str, Callable[[], object]]] = {
                "prefill": {
                    key: prefill_call(backend, itertools.cycle(firsts))
                    for key, backend in zip(("native", "other"), backends, strict=True)
                },
                "passkey": {
                    key: run_call(backend, itertools.cycle(runs))
                    for key, backend in zip(("native", "other"), backends, strict=True)
                },
            }
            for what, both in calls.items():
                seconds = time_side_by_side(both, rounds=arguments.rounds)
                ratio = ratios(seconds["other"], seconds["native"])
                rows.append(
                    {
                        "what": what,
                        "case": name,
                        "length": length,
                        "against": arguments.against,
                        "native_seconds": percentiles(seconds["native"])["p50"],
                        "seconds": percentiles(seconds["other"])["p50"],
                        **ratio,
                    }
                )
                print(
                    f"{name} {format_length(length)} {what}: native {rows[-1]['native_seconds']:.3g} s,"
                    f" {arguments.against} {rows[-1]['seconds']:.3g} s:"
                    f" {ratio['p50']:.2f} times ({ratio['p20']:.2f} to {ratio['p80']:.2f})",
                    flush=True,
                )
    if arguments.against == "vllm":
        append_rows("vllm-cpu", rows)


if __name__ == "__main__":
    main()
