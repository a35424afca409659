"""Memory for keys and values. Nothing here needs vLLM."""

from types import SimpleNamespace

import pytest

from bamctl.backends.vllm.memory import (
    BLOCK,
    PROMPTS,
    choose_cache_bytes,
    position_bytes,
    told_by_environment,
    too_little,
)


def test_a_position_takes_its_keys_and_values_of_all_layers():
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 64}
    assert position_bytes(SimpleNamespace(**sizes), 4) == 2 * 3 * 8 * 8 * 4
    grouped = SimpleNamespace(**sizes, num_key_value_heads=2, head_dim=16)
    assert position_bytes(grouped, 2) == 2 * 3 * 2 * 16 * 2
    assert position_bytes(SimpleNamespace(num_hidden_layers=3), 2) is None


def test_several_prompts_have_room_as_long_as_half_of_the_memory_lasts():
    one = choose_cache_bytes(BLOCK, 10, free=10**9) // PROMPTS
    assert one >= BLOCK * 10
    assert choose_cache_bytes(BLOCK, 10, free=2 * 3 * one) == 3 * one
    assert choose_cache_bytes(BLOCK, 10, free=2 * one) == one
    # One that needs more than half has what it needs, as far as there is that much.
    assert choose_cache_bytes(BLOCK, 10, free=2 * one - 2) == one
    assert choose_cache_bytes(BLOCK, 10, free=one) == int(0.8 * one)
    assert choose_cache_bytes(BLOCK, 10, free=-5) == 0


def test_where_nothing_is_known_of_the_model_half_of_the_memory_is_taken():
    assert choose_cache_bytes(BLOCK, None, free=1000) == 500


def test_an_empty_variable_names_no_memory(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert not told_by_environment()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "")
    assert not told_by_environment()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert told_by_environment()


@pytest.mark.parametrize("estimate", ["the estimated maximum model length is 4096. ", ""])
def test_too_little_memory_is_told_with_what_is_needed_and_what_would_fit(estimate):
    told = (
        "To serve at least one request with the model's max seq len (8192), (2.0 GiB KV cache is needed,"
        f" which is larger than the available KV cache memory (1.0 GiB). {estimate}Try increasing"
    )
    error = too_little("tiny", told)
    assert "tiny: the keys and values of 8192 tokens take 2.0 GiB, and vLLM has 1.0 GiB" in str(error)
    assert ("enough for 4096 tokens" in str(error)) == bool(estimate)
    assert too_little("tiny", "something else") is None


def test_no_memory_at_all_is_told_with_what_to_raise():
    told = str(too_little("tiny", "No available memory for the cache blocks. Try increasing something."))
    assert told.startswith(
        "tiny: vLLM has no memory for keys and values at all; raise --kv-cache-memory-bytes"
    )
