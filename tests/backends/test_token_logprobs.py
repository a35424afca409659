import numpy as np
import psutil
import pytest
import torch

import bamctl.backends.native as native
from bamctl.backends.memory import Memory
from bamctl.backends.native import NativeBackend
from bamctl.errors import RunFailed
from bamctl.models.loading import open_checkpoint

CLOSE = 1e-4


@pytest.fixture
def backend(checkpoint, monkeypatch):
    """Reads in chunks of 64, so that most texts take several."""
    monkeypatch.setattr(native, "PREFILL_CHUNK", 64)
    return NativeBackend(checkpoint, device="cpu")


@pytest.fixture
def make_ids(checkpoint):
    def make(length, seed=0):
        return np.random.default_rng(seed).integers(2, len(checkpoint.tokenizer), length).astype(np.int32)

    return make


def whole_forward(checkpoint, ids):
    """ln p of every token but the first, from one forward in float64."""
    model = checkpoint.load(device="cpu", dtype="float32").double()
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids[None]).long(), use_cache=False).logits[0]
    assert logits.dtype == torch.float64
    return logits.log_softmax(-1)[np.arange(len(ids) - 1), ids[1:]].numpy()


@pytest.mark.parametrize("length", [2, 63, 64, 65, 66, 128, 129, 200])
def test_chunks_score_as_one_forward_in_float64_does(backend, checkpoint, make_ids, length):
    ids = make_ids(length)
    logprobs = backend.token_logprobs(ids)
    assert (logprobs.shape, logprobs.dtype) == ((length - 1,), np.float64)
    assert logprobs == pytest.approx(whole_forward(checkpoint, ids), abs=CLOSE)


@pytest.mark.parametrize("encoding", ["laplace", "uniform", "rotary", "sinusoidal"])
@pytest.mark.parametrize("ssmax", [False, True])
def test_so_they_do_with_every_position_encoding(make_checkpoint, make_ids, monkeypatch, encoding, ssmax):
    monkeypatch.setattr(native, "PREFILL_CHUNK", 64)
    fields = {"prior_beta": 1.0} | ({} if ssmax else {"ssmax_initial": 1.0})
    folder = make_checkpoint(f"tiny-{encoding}-{ssmax}", position_encoding=encoding, ssmax=ssmax, **fields)
    checkpoint, ids = open_checkpoint(str(folder)), make_ids(200)
    logprobs = NativeBackend(checkpoint, device="cpu").token_logprobs(ids)
    assert logprobs == pytest.approx(whole_forward(checkpoint, ids), abs=CLOSE)


@pytest.mark.parametrize("first", [1, 2, 63, 64, 65, 66, 128, 129, 130, 198, 199])
def test_what_comes_before_the_first_is_read_and_not_scored(backend, make_ids, monkeypatch, first):
    ids = make_ids(200)
    expected = backend.token_logprobs(ids)
    asked = 0
    forward = backend._model.forward

    def counting(*arguments, **options):
        nonlocal asked
        output = forward(*arguments, **options)
        asked += output.logits.shape[1]
        return output

    monkeypatch.setattr(backend._model, "forward", counting)
    assert backend.token_logprobs(ids, first=first) == pytest.approx(expected[first - 1 :], abs=CLOSE)
    assert asked == 200 - first


def test_where_nothing_is_asked_nothing_is_read(backend, make_ids, monkeypatch):
    monkeypatch.setattr(backend._model, "forward", None)
    for ids, first in ((make_ids(5), 5), (make_ids(5), 9), (make_ids(1), 1), (make_ids(0), 1)):
        assert backend.token_logprobs(ids, first=first).shape == (0,)


@pytest.mark.parametrize("first", [0, -1])
def test_the_first_token_has_nothing_before_it(backend, make_ids, first):
    with pytest.raises(ValueError, match="nothing before token 0"):
        backend.token_logprobs(make_ids(5), first=first)


def test_nothing_is_left_behind_for_the_next_call(backend, make_ids, make_prompt):
    ids, prompt = make_ids(150), make_prompt(150)
    alone, (answer,) = backend.token_logprobs(ids), backend.complete([prompt])
    assert (backend.token_logprobs(ids) == alone).all()
    (again,) = backend.complete([prompt])
    assert (again.token_ids, again.answer_logprob) == (answer.token_ids, answer.answer_logprob)
    assert again.reused_tokens == 0  # the caches of prompts gave way


def test_a_chunk_is_smaller_where_a_vocabulary_s_logits_take_the_memory(checkpoint, make_ids, monkeypatch):
    calls = []
    wide = NativeBackend(checkpoint, device="cpu")
    forward = wide._model.forward
    monkeypatch.setattr(
        wide._model,
        "forward",
        lambda ids, **options: calls.append(ids.shape[1]) or forward(ids, **options),
    )
    a_token = native.activation_bytes_a_token(wide._config, torch.float32)
    logits = wide._config.vocab_size * 12
    cache = 640 * native.cache_bytes_a_token(wide._config, torch.float32)
    ids = make_ids(600)

    def offered(available):
        monkeypatch.setattr(
            native, "memory_of", lambda device: Memory(total=10**12, available=cache + available)
        )
        calls.clear()
        wide.token_logprobs(ids)
        return max(calls)

    enough = 2 * 4096 * (a_token + logits)
    assert offered(enough) == 599
    assert offered(enough // 16) == 256
    assert offered(enough // 16 - 1) == 128
    assert offered(0) == 128


def test_out_of_memory_is_one_line_that_says_what_to_lower(backend, make_ids, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(backend._model, "forward", fail)
    with pytest.raises(RunFailed) as caught:
        backend.token_logprobs(make_ids(90))
    assert str(caught.value) == "tiny: out of memory on cpu with 89 tokens and their logits; lower --max-len"


def test_a_cache_beyond_all_memory_is_told_before_anything_is_read(backend, make_ids, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"total": 10**5, "available": 10**5}))
    monkeypatch.setattr(backend._model, "forward", None)
    with pytest.raises(RunFailed, match=r"^tiny: the keys and values of 1 prompts .*; lower --max-len$"):
        backend.token_logprobs(make_ids(3000))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_come_near(checkpoint, make_ids, dtype):
    ids = make_ids(100)
    logprobs = NativeBackend(checkpoint, device="cpu", dtype=dtype).token_logprobs(ids)
    exact = whole_forward(checkpoint, ids)
    assert np.isfinite(logprobs).all()
    assert (logprobs != exact).any()
    assert logprobs.mean() == pytest.approx(exact.mean(), rel=0.02)
