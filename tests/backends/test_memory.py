import psutil
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bamctl.backends.memory import (
    activation_bytes_a_token,
    cache_bytes_a_token,
    chunk_that_fits,
    memory_of,
    watch_peak_memory,
)
from bamctl.models import BamConfig, BamForCausalLM
from bamctl.models.cache import PreallocatedCache

SIZE = 200 * 2**20
NOISE = 20 * 2**20
CPU = torch.device("cpu")


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere it is the peak since the process began")
def test_the_peak_counts_what_was_freed_meanwhile_and_forgets_what_was_before():
    before = watch_peak_memory(CPU)()
    peak = watch_peak_memory(CPU)
    torch.ones(SIZE, dtype=torch.uint8)  # held for a moment alone
    held = peak()
    assert held > before + SIZE - NOISE
    if watch_peak_memory(CPU)() > held - NOISE:
        pytest.skip("this kernel does not let a process forget its peak")
    assert watch_peak_memory(CPU)() < held - SIZE + 2 * NOISE


def test_the_peak_is_told_in_bytes():
    resident = psutil.Process().memory_info().rss
    peak = watch_peak_memory(CPU)()
    assert peak is None or 0.5 * resident < peak < psutil.virtual_memory().total


def test_the_memory_of_the_machine():
    memory = memory_of(CPU)
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.available < memory.total


SHAPES = [
    {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4},
    {"hidden_size": 64, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2},
    {"hidden_size": 64, "intermediate_size": 16, "num_attention_heads": 8, "head_dim": 32},
]


def make_model(shape, dtype):
    return BamForCausalLM(BamConfig(vocab_size=50, num_hidden_layers=3, **shape)).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_cache_takes(shape, dtype):
    model = make_model(shape, dtype)
    cache = PreallocatedCache(3, 70)
    model.prefill(torch.zeros(2, 9, dtype=torch.long), cache, chunk_size=9)
    assert cache.nbytes() == 2 * 70 * cache_bytes_a_token(model.config, dtype)


def test_half_a_million_tokens_of_the_shipped_shape_take_a_gigabyte():
    config = BamConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=4)
    assert 524288 * cache_bytes_a_token(config, torch.float32) == 2**30


def most_allocated(work):
    """The most that tensors took at one moment beyond what there was, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_token_takes_on_its_way_is_estimated_from_above_but_not_far(monkeypatch, shape, dtype):
    model = make_model(shape, dtype)
    cache = PreallocatedCache(3, 1024)
    # Attention's own buffers depend on the prompt, not on the chunk, and are not what is estimated.
    monkeypatch.setattr("bamctl.models.modeling.attention", lambda q, *_, **__: q.clone())

    @torch.inference_mode()
    def read():
        model.model(torch.zeros(1, 1024, dtype=torch.long), cache=cache)

    estimate = 1024 * activation_bytes_a_token(model.config, dtype)
    taken = most_allocated(read) - cache.nbytes()
    assert 0.3 * estimate < taken < estimate


@pytest.mark.parametrize(
    ("available", "chunk"),
    [
        (10**12, 4096),
        (2 * 4096 * 100, 4096),
        (2 * 4096 * 100 - 1, 2048),
        (2 * 2048 * 100, 2048),
        (2 * 128 * 100, 128),
        (2 * 128 * 100 - 1, 128),
        (0, 128),
        (-(10**9), 128),
    ],
)
def test_the_chunk_is_halved_until_it_fits(available, chunk):
    assert chunk_that_fits(available, 100, largest=4096) == chunk


def test_a_chunk_that_is_small_already_stays():
    assert chunk_that_fits(0, 100, largest=64) == 64
