"""What a model's heads attend to while it answers the prompts of a task."""

from collections.abc import Iterator, Sequence
from typing import cast

from bamctl.backends.devices import describe_device, telling_of_memory
from bamctl.backends.memory import (
    activation_bytes_a_token,
    cache_bytes_a_token,
    chunk_that_fits,
    memory_of,
)
from bamctl.errors import RunFailed
from bamctl.evaluation.depths import DepthPolicy
from bamctl.evaluation.plan import plan_samples
from bamctl.lengths import format_length
from bamctl.models.config import BamConfig
from bamctl.models.modeling import BamForCausalLM
from bamctl.models.needle_attention import NeedleAttention, needle_attention
from bamctl.tasks.base import Task

LARGEST_CHUNK = 4096
"""The most tokens that go through the model at once; fewer where memory is short."""


def measure_attention(
    model: BamForCausalLM, task: Task, *, lengths: Sequence[int], samples: int, depths: DepthPolicy, seed: int
) -> Iterator[NeedleAttention]:
    """Reads the samples that a run of the task would have, one prompt at a time, the shortest first.

    Args:
        model: what answers.
        task: bound to the model's tokenizer.
        lengths: of the prompts, in tokens.
        samples: prompts of each length.
        depths: where their needles go.
        seed: of the plan.

    Yields:
        For each length the means over its samples.

    Raises:
        BadInput: the task has no prompt of a length.
        RunFailed: out of memory; before anything is read where keys and values alone are beyond all of it.
    """
    device, config = model.device, cast(BamConfig, model.config)
    memory = memory_of(device)
    cache_bytes = max(lengths) * cache_bytes_a_token(config, model.dtype)
    if cache_bytes > memory.total:
        raise RunFailed(
            f"the keys and values of {format_length(max(lengths))} tokens take {cache_bytes / 1e9:.1f} GB,"
            f" and {describe_device(device)} has {memory.total / 1e9:.1f} GB; lower --lengths"
        )
    chunk_size = chunk_that_fits(
        memory.available - cache_bytes,
        activation_bytes_a_token(config, model.dtype),
        largest=LARGEST_CHUNK,
    )
    plan = plan_samples(task.spec, lengths=lengths, samples=samples, depths=depths, seed=seed)
    for length, planned in plan.items():
        prompts = [task.build(length=length, depth=sample.depth, rng=sample.rng()) for sample in planned]
        where = (
            f"out of memory on {describe_device(device)} at {format_length(length)} tokens; lower --lengths"
        )
        with telling_of_memory(where):
            measured = needle_attention(model, task.tokenizer.tokenizer, prompts, chunk_size=chunk_size)
        yield measured
