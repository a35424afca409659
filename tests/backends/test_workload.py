"""What the native backend says of work that is to come."""

import pytest

from bamctl.backends.native import PREFILL_CHUNK, NativeBackend
from bamctl.models.work import PrefillWork


@pytest.fixture
def workload_of(checkpoint, make_prompt):
    def make(**options):
        backend = NativeBackend(checkpoint, device="cpu", **options)
        return backend.workload(make_prompt(700), longest=3 * PREFILL_CHUNK)

    return make


@pytest.mark.parametrize(
    ("alike", "start"),
    [
        (0, 0),
        (PREFILL_CHUNK - 1, 0),
        (PREFILL_CHUNK, PREFILL_CHUNK),
        (2 * PREFILL_CHUNK - 1, PREFILL_CHUNK),
        (3 * PREFILL_CHUNK, 2 * PREFILL_CHUNK),  # the whole prompt: its last chunk is read all the same
    ],
)
def test_whole_chunks_in_common_are_no_work(workload_of, alike, start):
    workload = workload_of()
    length = 3 * PREFILL_CHUNK
    assert workload.flops(length, alike=alike) == workload.prefill.flops(length, start=start)


def test_without_sharing_all_is_read(workload_of):
    workload = workload_of(share_prefixes=False)
    assert workload.flops(9000, alike=8999) == workload.flops(9000) == workload.prefill.flops(9000)


def test_heads_are_those_of_the_model_on_the_sample(workload_of, model, make_prompt):
    import torch

    workload = workload_of()
    assert workload.sample_tokens == 700
    ids = torch.from_numpy(make_prompt(700).token_ids).long()
    assert workload.heads(8192) == PrefillWork(model, ids, longest=8192).heads(8192)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cache_bytes_are_those_of_a_cache(checkpoint, make_prompt, dtype):
    backend = NativeBackend(checkpoint, device="cpu", dtype=dtype)
    backend.complete([make_prompt(500)])
    workload = backend.workload(make_prompt(500), longest=512)
    assert workload.cache_bytes(backend._prefix._held.cache.capacity) == backend._prefix.nbytes()


def test_asking_changes_no_answer_and_lets_go_of_no_cache(checkpoint, make_prompt):
    backend, asked = (NativeBackend(checkpoint, device="cpu") for _ in range(2))
    prompts = [make_prompt(90), make_prompt(90)]
    for one in (backend, asked):
        one.complete(prompts[:1])
    held = asked._prefix._held
    asked.workload(make_prompt(300), longest=2**20)
    assert asked._prefix._held is held
    (left,), (right,) = backend.complete(prompts[1:]), asked.complete(prompts[1:])
    assert (left.token_ids, left.answer_logprob) == (right.token_ids, right.answer_logprob)
