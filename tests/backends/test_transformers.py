"""Architectures and their caches: answers are those of the model when it reads everything at once."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

import bamctl.backends.transformers as backend_module
from bamctl.backends.opening import open_model
from bamctl.backends.reading import Carrying
from bamctl.errors import BadInput, RunFailed

WINDOW = 32
CLOSE = 2e-4
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    **NO_ENDS,
}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
GATED_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.4, **NO_ENDS}
MPT = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512, "initializer_range": 0.4}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.4, **NO_ENDS}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "initializer_range": 0.4, **NO_ENDS}

MODELS = {
    "llama": ("Llama", SIZES, "rotary", 512, Carrying.CHUNKS),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8}, "rotary", 512, Carrying.CHUNKS),
    "mistral": ("Mistral", SIZES | {"sliding_window": WINDOW}, "rotary", 512, Carrying.CHUNKS),
    "gpt-neox": ("GPTNeoX", SIZES, "rotary", 512, Carrying.CHUNKS),
    "bloom": ("Bloom", BLOOM, "laplace", None, Carrying.CHUNKS),
    "mpt": ("Mpt", MPT, "laplace", 512, Carrying.CHUNKS),
    "gpt2": ("GPT2", GPT2, "learned", 512, Carrying.CHUNKS),
    "gemma": ("Gemma", SIZES | {"head_dim": 8}, "rotary", 512, Carrying.CHUNKS),
    "gemma3": (
        "Gemma3Text",
        SIZES | {"head_dim": 8, "sliding_window": WINDOW, "sliding_window_pattern": 2},
        "rotary",
        512,
        Carrying.CHUNKS,
    ),
    "phi3-longrope": (
        "Phi3",
        SIZES | {"original_max_position_embeddings": 64, "rope_scaling": LONGROPE},
        "rotary",
        512,
        Carrying.CHUNKS,
    ),
    "mamba": ("Mamba", MAMBA, "state-space", None, Carrying.STEPS),
    "jamba": (
        "Jamba",
        SIZES
        | {
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
        "state-space",
        512,
        Carrying.STEPS,
    ),
    "bamba": ("Bamba", SIZES | MAMBA2 | {"attn_layer_indices": [1]}, "rotary", 512, Carrying.CHUNKS),
    "qwen3-next": ("Qwen3Next", SIZES | GATED_DELTA | {"head_dim": 8}, "rotary", 512, Carrying.CHUNKS),
    "lfm2": ("Lfm2", SIZES | {"layer_types": ["conv", "full_attention"]}, "rotary", 512, Carrying.CHUNKS),
}


@pytest.fixture(scope="session")
def started(save_foreign):
    """Each model once: the backend and, beside it, the model alone."""
    held = {}

    def start(name):
        if name not in held:
            kind, fields, *_ = MODELS[name]
            folder = save_foreign(name, getattr(transformers, f"{kind}Config")(**fields))
            backend = open_model(str(folder)).start(
                device="cpu", dtype="auto", share_prefixes=True, longest=512
            )
            held[name] = backend, AutoModelForCausalLM.from_pretrained(folder).eval()
        return held[name]

    return start


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Prompts of these tests take several."""
    monkeypatch.setattr(backend_module, "PREFILL_CHUNK", 19)


@torch.inference_mode()
def read_at_once(model, prompt):
    """Greedy tokens of `generate`, and ln p of the answer."""
    ids = torch.from_numpy(prompt.token_ids).long()[None]
    limit = prompt.tokens_to_generate
    tokens = model.generate(ids, do_sample=False, max_new_tokens=limit, min_new_tokens=limit)
    answer = torch.tensor([prompt.answer_ids[0]])
    logprobs = model(torch.cat((ids, answer), dim=1), use_cache=False).logits[0].double().log_softmax(dim=-1)
    first = ids.shape[1] - 1
    score = sum(float(logprobs[first + i, token]) for i, token in enumerate(prompt.answer_ids[0]))
    return tokens[0, ids.shape[1] :].tolist(), score


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_generate(started, make_prompt, name):
    backend, model = started(name)
    _, _, encoding, limit, carrying = MODELS[name]
    assert (backend.name, backend.device, backend.dtype) == ("transformers", "cpu", "float32")
    assert (backend.model.name, backend.model.position_encoding, backend.model.ssmax) == (
        name,
        encoding,
        False,
    )
    assert backend.model.longest_prompt == limit
    assert backend._reader.carrying is carrying
    backend._ends = frozenset()
    prompts = [make_prompt(seed=seed, answer=answer) for seed, answer in enumerate((5, 1, 9))]
    together = backend.complete(prompts)
    assert len({completion.token_ids for completion in together}) == 3
    for prompt, completion in zip(prompts, together, strict=True):
        tokens, score = read_at_once(model, prompt)
        (alone,) = backend.complete([prompt])
        assert list(completion.token_ids) == list(alone.token_ids) == tokens
        assert completion.finish_reason == "length"
        assert completion.text == backend.tokenizer.decode(tokens, skip_special_tokens=True)
        assert completion.answer_logprob == pytest.approx(score, abs=CLOSE)
        assert alone.answer_logprob == pytest.approx(score, abs=CLOSE)


def test_a_cache_without_chunks_is_told_once(started, make_prompt, capsys):
    _, model = started("mamba")
    capsys.readouterr()
    backend = open_model(model.config._name_or_path).start(
        device="cpu", dtype="auto", share_prefixes=True, longest=512
    )
    backend.complete([make_prompt()])
    assert capsys.readouterr().err == (
        "mamba: its cache does not carry over between chunks, so prompts are read whole\n"
    )


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "bloom", "phi3-longrope", "mamba"])
@pytest.mark.parametrize("first", [1, 40, 89])
def test_log_probabilities_of_a_text_are_those_of_one_reading(started, make_prompt, name, first):
    backend, model = started(name)
    ids = make_prompt().token_ids
    with torch.inference_mode():
        whole = model(torch.from_numpy(ids).long()[None], use_cache=False).logits[0].double().log_softmax(-1)
    expected = [float(whole[i - 1, ids[i]]) for i in range(first, len(ids))]
    told = backend.token_logprobs(ids, first=first)
    assert told.dtype == np.float64
    assert told == pytest.approx(expected, abs=CLOSE)


def test_a_text_of_nothing_to_ask_about(started, make_prompt):
    backend, _ = started("llama")
    assert len(backend.token_logprobs(make_prompt(8).token_ids, first=8)) == 0
    with pytest.raises(ValueError, match="first is 0"):
        backend.token_logprobs(make_prompt(8).token_ids, first=0)


@pytest.mark.parametrize(("length", "reads_anew"), [(57, False), (58, True), (64, True), (65, False)])
def test_longrope_forgets_keys_of_other_frequencies(started, make_prompt, length, reads_anew, monkeypatch):
    """Trained at 64: 57 tokens and 7 more end there, 58 go beyond on the way, 65 are beyond at once."""
    backend, model = started("phi3-longrope")
    monkeypatch.setattr(backend, "_ends", frozenset())
    assert (backend._reader.carrying_of(length, 7) is Carrying.NOTHING) is reads_anew
    prompt = make_prompt(length, answer=8, limit=8)
    (completion,) = backend.complete([prompt])
    text, score = prompt.token_ids.tolist(), 0.0
    for token in prompt.answer_ids[0]:
        with torch.inference_mode():
            logits = model(torch.tensor([text]), use_cache=False).logits[0, -1]
        score += float(logits.double().log_softmax(-1)[token])
        text.append(token)
    assert completion.answer_logprob == pytest.approx(score, abs=CLOSE)


def test_an_end_token_stops(started, make_prompt, monkeypatch):
    backend, model = started("llama")
    prompt = make_prompt(limit=12)
    tokens, _ = read_at_once(model, prompt)
    at, end = next((i, token) for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])
    monkeypatch.setattr(backend, "_ends", frozenset({end}))
    for limit, reason in ((at, "length"), (at + 1, "stop"), (12, "stop")):
        (completion,) = backend.complete([dataclasses.replace(prompt, tokens_to_generate=limit)])
        assert (list(completion.token_ids), completion.finish_reason) == (tokens[:at], reason)


def test_prompts_beyond_the_positions_are_refused(started, make_prompt):
    backend, _ = started("gpt2")
    assert len(backend.complete([make_prompt(506, answer=5, limit=7)])) == 1
    with pytest.raises(RunFailed, match=r"^gpt2: 507 tokens and 6 behind them are beyond its 512 positions$"):
        backend.complete([make_prompt(507, answer=5, limit=7)])
    with pytest.raises(RunFailed, match="are beyond its 512 positions"):
        backend.token_logprobs(make_prompt(514).token_ids)


def test_tokens_that_the_model_does_not_know_are_refused(started, make_prompt):
    backend, _ = started("llama")
    prompt = make_prompt()
    prompt.token_ids[3] = 10**6
    with pytest.raises(RunFailed, match="the tokenizer made token 1000000, the model knows"):
        backend.complete([prompt])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_run_and_come_near(started, save_foreign, make_prompt, dtype):
    exact, _ = started("llama")
    folder = save_foreign("halves", transformers.LlamaConfig(**SIZES))
    backend = open_model(str(folder)).start(device="cpu", dtype=dtype, share_prefixes=True, longest=512)
    assert backend.dtype == dtype
    assert backend._reader.carrying is Carrying.CHUNKS
    prompt = make_prompt()
    (near,), (right,) = backend.complete([prompt]), exact.complete([prompt])
    assert near.answer_logprob != right.answer_logprob
    assert near.answer_logprob == pytest.approx(right.answer_logprob, rel=0.05)


def test_auto_is_the_dtype_of_the_weights(save_foreign, make_prompt):
    folder = save_foreign("stored", transformers.LlamaConfig(**SIZES))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    assert (
        open_model(str(folder)).start(device="cpu", dtype="auto", share_prefixes=True, longest=512).dtype
        == "bfloat16"
    )


class Forgetful(PreTrainedModel):
    """A model as old remote code has them: no cache, no choice of logits, no positions."""

    config_class = transformers.LlamaConfig
    _supports_sdpa = True

    def __init__(self, config, inner):
        super().__init__(config)
        self.inner = inner

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, input_ids):
        return CausalLMOutputWithPast(logits=self.inner(input_ids, use_cache=False).logits)


def test_a_model_without_a_cache_works_and_says_so(started, make_prompt, monkeypatch, capsys):
    _, model = started("llama")
    opened = open_model(model.config._name_or_path)
    capsys.readouterr()
    monkeypatch.setattr(type(opened), "load", lambda self, **options: Forgetful(model.config, model).eval())
    backend = opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    backend._ends = frozenset()
    assert capsys.readouterr().err == (
        "llama: no usable cache, so the whole prompt is read again for every token\n"
    )
    prompt = make_prompt()
    tokens, score = read_at_once(model, prompt)
    (completion,) = backend.complete([prompt])
    assert list(completion.token_ids) == tokens
    assert completion.answer_logprob == pytest.approx(score, abs=CLOSE)
    expected = started("llama")[0].token_logprobs(prompt.token_ids, first=30)
    assert backend.token_logprobs(prompt.token_ids, first=30) == pytest.approx(expected, abs=CLOSE)
    assert capsys.readouterr().err == ""


class Amnesiac(Forgetful):
    """Returns a cache, and says what it would say without."""

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        return CausalLMOutputWithPast(
            logits=self.inner(input_ids, use_cache=False).logits, past_key_values=transformers.DynamicCache()
        )


def test_a_cache_that_says_something_else_is_not_used(started, make_prompt, monkeypatch, capsys):
    _, model = started("llama")
    opened = open_model(model.config._name_or_path)
    monkeypatch.setattr(type(opened), "load", lambda self, **options: Amnesiac(model.config, model).eval())
    backend = opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    assert "llama: no usable cache" in capsys.readouterr().err
    prompt = make_prompt()
    (completion,) = backend.complete([prompt])
    assert completion.answer_logprob == pytest.approx(read_at_once(model, prompt)[1], abs=CLOSE)


def test_our_own_model_says_the_same_as_with_the_native_backend(tiny_checkpoint, make_prompt):
    native = open_model(str(tiny_checkpoint)).start(
        device="cpu", dtype="auto", share_prefixes=True, longest=512
    )
    other = open_model(str(tiny_checkpoint), backend="transformers").start(
        device="cpu", dtype="auto", share_prefixes=True, longest=512
    )
    assert (native.name, other.name) == ("native", "transformers")
    assert other.model == native.model
    prompts = [make_prompt(seed=seed) for seed in range(3)]
    for left, right in zip(native.complete(prompts), other.complete(prompts), strict=True):
        assert (left.token_ids, left.finish_reason) == (right.token_ids, right.finish_reason)
        assert left.answer_logprob == pytest.approx(right.answer_logprob, abs=CLOSE)
    ids = prompts[0].token_ids
    assert other.token_logprobs(ids) == pytest.approx(native.token_logprobs(ids), abs=CLOSE)


def test_out_of_memory_is_a_failed_run(started, make_prompt, monkeypatch):
    backend, _ = started("llama")

    def forward(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(type(backend._model), "forward", forward)
    with pytest.raises(RunFailed) as caught:
        backend.complete([make_prompt(), make_prompt(seed=1)])
    assert str(caught.value) == (
        "llama: out of memory on cpu with 2 prompts of 90 tokens; lower --batch-size or the lengths"
    )


def test_logits_that_are_not_finite_are_told_before_anything_runs(save_foreign):
    folder = save_foreign("broken", transformers.LlamaConfig(**SIZES))
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data[3, 3] = torch.nan
    model.save_pretrained(folder)
    with pytest.raises(BadInput, match=r"^broken: its logits are not finite in float32$"):
        open_model(str(folder)).start(device="cpu", dtype="auto", share_prefixes=True, longest=512)


def test_nothing_is_told_of_the_work(started, make_prompt):
    backend, _ = started("llama")
    assert backend.workload(make_prompt(), longest=512) is None
