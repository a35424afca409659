"""Memory for keys and values: how much of the machine's, and what to say where it does not suffice."""

import math
import os
import re
from typing import Any

from bamctl.backends.memory import count_in
from bamctl.errors import RunFailed

SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's own variable, in GiB; where it is set, it counts."""

PROMPTS = 8
"""How many of the longest prompts are to have room side by side, where there is memory."""

SHARE = 0.5
"""Of the memory that is free once the weights are read, the most that is taken unasked."""

SHARE_OF_ONE = 0.8
"""The same where not even one prompt would fit into `SHARE`."""

BLOCK = 128
"""Positions that vLLM hands out at once on a CPU."""

_TOO_LITTLE = re.compile(
    r"max seq len \((?P<length>\d+)\).*?\((?P<needed>[\d.]+) GiB.*?memory \((?P<has>[\d.]+) GiB\)"
    r"(?:.*?maximum model length is (?P<fits>\d+))?",
    re.DOTALL,
)


def position_bytes(config: Any, itemsize: int) -> int | None:
    """What one position's keys and values take at most, all layers together; None where it cannot be told.

    Args:
        config: of the text model.
        itemsize: bytes of a number of the cache.
    """
    layers = count_in(config, "num_hidden_layers")
    heads = count_in(config, "num_attention_heads")
    width = count_in(config, "hidden_size")
    if layers is None or heads is None or width is None:
        return None
    groups = count_in(config, "num_key_value_heads") or heads
    head = count_in(config, "head_dim") or math.ceil(width / heads)
    return 2 * layers * groups * head * itemsize


def choose_cache_bytes(longest: int, bytes_a_position: int | None, *, free: int) -> int:
    """Memory for keys and values on a CPU: for `PROMPTS` prompts, or as many of them as there is room for.

    Args:
        longest: tokens of the longest prompt with its answer.
        bytes_a_position: of `position_bytes`.
        free: bytes that are free, without those that the weights will take.
    """
    most = max(int(SHARE * free), 0)
    if bytes_a_position is None:
        return most
    one = (math.ceil(longest / BLOCK) + 2) * BLOCK * bytes_a_position  # vLLM keeps a block for itself
    if one > most:
        return max(min(one, int(SHARE_OF_ONE * free)), 0)
    return min(PROMPTS * one, most)


def told_by_environment() -> bool:
    """Whether vLLM's own variable names the memory; an empty one would keep vLLM from starting."""
    return bool(os.environ.get(SPACE))


def too_little(name: str, told: str) -> RunFailed | None:
    """What to raise where vLLM says that one prompt does not fit; None where it says something else.

    Args:
        name: the model's.
        told: vLLM's error.
    """
    if "No available memory for the cache blocks" in told:
        return RunFailed(
            f"{name}: vLLM has no memory for keys and values at all; raise --kv-cache-memory-bytes or, on a"
            " GPU, --gpu-memory-utilization"
        )
    found = _TOO_LITTLE.search(told)
    if found is None:
        return None
    fits = f", enough for {found['fits']} tokens" if found["fits"] else ""
    return RunFailed(
        f"{name}: the keys and values of {found['length']} tokens take {found['needed']} GiB, and vLLM has"
        f" {found['has']} GiB for them{fits}; lower the lengths or raise --kv-cache-memory-bytes or, on a"
        " GPU, --gpu-memory-utilization"
    )
