import psutil
import pytest
import torch

from bamctl.backends.memory import watch_peak_memory

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
