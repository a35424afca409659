import dataclasses
import math

import psutil
import pytest
import torch

import bamctl.backends.native as native
from bamctl.backends.devices import choose_device
from bamctl.backends.memory import Memory
from bamctl.backends.native import NativeBackend
from bamctl.errors import BadInput, RunFailed
from bamctl.models import BamForCausalLM
from bamctl.models.loading import open_checkpoint

CLOSE = 1e-4


@pytest.fixture
def backend(checkpoint, monkeypatch):
    """Reads prompts in chunks of 64, so that most of them take several."""
    monkeypatch.setattr(native, "PREFILL_CHUNK", 64)
    return NativeBackend(checkpoint, device="cpu")


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_it_answers_as_if_everything_were_computed_anew(backend, make_prompt, greedy, answer_logprob, length):
    prompt = make_prompt(length)
    (completion,) = backend.complete([prompt])
    tokens, reason = greedy(prompt, {backend.tokenizer.eos_token_id})
    assert list(completion.token_ids) == tokens
    assert completion.finish_reason == reason
    assert completion.text == backend.tokenizer.decode(tokens, skip_special_tokens=True)
    assert completion.answer_logprob == pytest.approx(answer_logprob(prompt), abs=CLOSE)
    assert completion.prefill_seconds > 0
    assert completion.decode_seconds > 0


@pytest.mark.parametrize(("answer", "limit"), [(1, 1), (1, 9), (12, 1), (12, 3), (3, 12)])
def test_scoring_an_answer_leaves_nothing_behind_for_generating(
    backend, make_prompt, greedy, answer_logprob, answer, limit
):
    prompt = make_prompt(answer=answer, limit=limit)
    (completion,) = backend.complete([prompt])
    assert list(completion.token_ids) == greedy(prompt, {backend.tokenizer.eos_token_id})[0]
    assert completion.answer_logprob == pytest.approx(answer_logprob(prompt), abs=CLOSE)


def test_a_batch_answers_as_its_prompts_do_one_by_one(backend, make_prompt):
    shapes = [(5, 7), (1, 1), (9, 3), (3, 12)]
    prompts = [
        make_prompt(seed=seed, answer=answer, limit=limit) for seed, (answer, limit) in enumerate(shapes)
    ]
    together = backend.complete(prompts)
    alone = [backend.complete([prompt])[0] for prompt in prompts]
    assert len({completion.token_ids for completion in together}) == 4
    assert [len(completion.token_ids) for completion in together] == [limit for _, limit in shapes]
    for left, right in zip(together, alone, strict=True):
        assert (left.token_ids, left.text, left.finish_reason) == (
            right.token_ids,
            right.text,
            right.finish_reason,
        )
        assert left.answer_logprob == pytest.approx(right.answer_logprob, abs=CLOSE)
    assert len({completion.prefill_seconds for completion in together}) == 1


def first_appearing_late(tokens):
    """A token that comes up after at least two others, and where it does."""
    return next((i, token) for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])


@pytest.mark.parametrize("named_by", ["generation_config", "tokenizer"])
def test_an_end_token_stops_and_the_budget_stops(make_checkpoint, make_prompt, greedy, named_by):
    prompt = make_prompt(limit=12)
    tokens, _ = greedy(prompt, ())
    at, end = first_appearing_late(tokens)
    if named_by == "generation_config":
        checkpoint = open_checkpoint(str(make_checkpoint(end_tokens=[0, end])))
    else:
        checkpoint = open_checkpoint(str(make_checkpoint()))
        checkpoint.tokenizer.eos_token = checkpoint.tokenizer.convert_ids_to_tokens(end)
    backend = NativeBackend(checkpoint, device="cpu")

    for limit, reason in ((at, "length"), (at + 1, "stop"), (12, "stop")):
        (completion,) = backend.complete([dataclasses.replace(prompt, tokens_to_generate=limit)])
        assert list(completion.token_ids) == tokens[:at]
        assert completion.finish_reason == reason


def test_an_answer_that_ends_at_once_is_empty(make_checkpoint, make_prompt, greedy):
    prompt = make_prompt()
    first = greedy(prompt, ())[0][0]
    backend = NativeBackend(open_checkpoint(str(make_checkpoint(end_tokens=[first]))), device="cpu")
    (completion,) = backend.complete([prompt])
    assert (completion.token_ids, completion.text, completion.finish_reason) == ((), "", "stop")


def test_one_of_a_batch_may_end_before_the_others(make_checkpoint, make_prompt, greedy):
    prompts = [make_prompt(seed=seed, limit=10) for seed in range(4)]
    free = [greedy(prompt, ())[0] for prompt in prompts]
    at, end = first_appearing_late(free[1])
    backend = NativeBackend(open_checkpoint(str(make_checkpoint(end_tokens=[end]))), device="cpu")
    completions = backend.complete(prompts)
    ends = {end, backend.tokenizer.eos_token_id}
    assert [(list(c.token_ids), c.finish_reason) for c in completions] == [
        greedy(prompt, ends) for prompt in prompts
    ]
    assert list(completions[1].token_ids) == free[1][:at]
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_run_and_come_near(checkpoint, make_prompt, answer_logprob, dtype):
    prompts = [make_prompt(seed=seed) for seed in range(3)]
    backend = NativeBackend(checkpoint, device="cpu", dtype=dtype)
    assert backend.dtype == dtype
    for prompt, completion in zip(prompts, backend.complete(prompts), strict=True):
        assert len(completion.token_ids) == 7
        assert math.isfinite(completion.answer_logprob)
        exact = answer_logprob(prompt)
        assert completion.answer_logprob != exact
        assert completion.answer_logprob == pytest.approx(exact, rel=0.05)


def test_it_says_what_runs(checkpoint, model):
    backend = NativeBackend(checkpoint, device="cpu")
    assert (backend.name, backend.device, backend.dtype) == ("native", "cpu", "float32")
    told = backend.model
    assert (told.name, told.position_encoding, told.ssmax) == ("tiny", "ggd", True)
    assert (told.train_length, told.longest_prompt) == (128, None)
    assert told.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert told.digest == checkpoint.digest
    assert backend.tokenizer is checkpoint.tokenizer


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere it is the peak since the process began")
def test_peak_memory_is_that_of_the_process(backend, make_prompt):
    (completion,) = backend.complete([make_prompt()])
    resident = psutil.Process().memory_info().rss
    assert 0.5 * resident < completion.peak_memory_bytes < 2 * resident + 2**30


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_is_a_failed_run(backend, make_prompt, monkeypatch, error):
    def prefill(*arguments, **options):
        raise error

    monkeypatch.setattr(BamForCausalLM, "prefill", prefill)
    with pytest.raises(RunFailed) as caught:
        backend.complete([make_prompt(), make_prompt(seed=1)])
    assert str(caught.value) == (
        "tiny: out of memory on cpu with 2 prompts of 90 tokens; lower --batch-size or the lengths"
    )


def test_memory_that_there_is_not_at_all(backend, make_prompt, monkeypatch):
    """The allocator's own refusal, whatever this version of torch says."""
    monkeypatch.setattr("bamctl.backends.prefix.PreallocatedCache", lambda *_, **__: torch.empty(2**46))
    with pytest.raises(RunFailed, match="out of memory"):
        backend.complete([make_prompt()])


@pytest.fixture
def machine(monkeypatch):
    """Gives the machine another memory."""

    def set_memory(total, available):
        monkeypatch.setattr(native, "memory_of", lambda device: Memory(total=total, available=available))

    return set_memory


def test_a_cache_beyond_all_memory_is_told_before_anything_is_computed(
    backend, make_prompt, monkeypatch, machine
):
    """Two layers, two key-value heads of 8, fp32: 256 bytes a token."""
    monkeypatch.setattr(BamForCausalLM, "prefill", lambda *_, **__: pytest.fail("was computed"))
    prompts = [make_prompt(1000, answer=5, limit=7) for _ in range(2)]  # 1012, in units of 64: 1024
    machine(total=2 * 1024 * 256 - 1, available=10**12)
    with pytest.raises(RunFailed) as caught:
        backend.complete(prompts)
    assert str(caught.value) == (
        "tiny: the keys and values of 2 prompts of 1000 tokens take 0.0 GB, and cpu has 0.0 GB, enough for"
        " 948 tokens; lower --batch-size or the lengths"
    )


def test_a_cache_of_all_memory_is_tried(backend, make_prompt, machine):
    """And the longest length that the error above names is one that it does not refuse."""
    machine(total=2 * 1024 * 256 - 1, available=0)
    assert len(backend.complete([make_prompt(948) for _ in range(2)])) == 2
    machine(total=2 * 1024 * 256, available=0)
    assert len(backend.complete([make_prompt(1000) for _ in range(2)])) == 2


A_TOKEN = 4 * (3 * 32 + 4 * 48) + 4 * (2 * 32 + 2 * 4 * 8)
"""What the estimate for the tiny model comes to, in bytes."""


@pytest.mark.parametrize(
    ("spare", "chunk"), [(0, 128), (2 * 512 * A_TOKEN - 1, 256), (2 * 512 * A_TOKEN, 512), (10**12, 4096)]
)
def test_the_chunk_follows_what_the_cache_leaves(checkpoint, make_prompt, monkeypatch, machine, spare, chunk):
    backend = NativeBackend(checkpoint, device="cpu")
    chunks = []
    prefill = BamForCausalLM.prefill

    def recording(model, unread, cache, *, chunk_size):
        chunks.append(chunk_size)
        return prefill(model, unread, cache, chunk_size=chunk_size)

    monkeypatch.setattr(BamForCausalLM, "prefill", recording)
    machine(total=10**13, available=1024 * 256 + spare)
    backend.complete([make_prompt(1000)])
    machine(total=10**13, available=spare)  # the cache that is held counts as room for itself
    assert backend.complete([make_prompt(1000)])[0].reused_tokens == 999 // chunk * chunk
    assert chunks == [chunk, chunk]


@pytest.mark.parametrize(
    "message",
    ["CUDA error: an illegal memory access was encountered", "mat1 and mat2 shapes cannot be multiplied"],
)
def test_other_errors_come_out_as_they_are(backend, make_prompt, monkeypatch, message):
    def prefill(*arguments, **options):
        raise RuntimeError(message)

    monkeypatch.setattr(BamForCausalLM, "prefill", prefill)
    with pytest.raises(RuntimeError, match=message):
        backend.complete([make_prompt()])


@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_devices_that_are_here(name):
    assert choose_device(name).type in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "device '' is not known; write cpu, cuda, cuda:1 or auto"),
        ("gpu", "device 'gpu' is not known; write cpu"),
        ("cuda:x", "device 'cuda:x' is not known; write cpu"),
        ("meta", "device 'meta': models run on cpu and cuda"),
        ("cuda:99", "device 'cuda:99': this machine has"),
    ],
)
def test_devices_that_are_not(checkpoint, name, message):
    with pytest.raises(BadInput) as caught:
        NativeBackend(checkpoint, device=name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "int8", "", "bf16"])
def test_dtypes_that_are_not(checkpoint, dtype):
    with pytest.raises(BadInput, match=f"^dtype '{dtype}' is none of float32, bfloat16, float16$"):
        NativeBackend(checkpoint, device="cpu", dtype=dtype)
