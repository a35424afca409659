"""The model: its parameters, its logits in every way of asking for them, its life as a Hugging Face model."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache

from bamctl.models import BamConfig, BamForCausalLM, BamModel
from bamctl.models.cache import PreallocatedCache
from bamctl.models.config import POSITION_ENCODINGS
from bamctl.models.modeling import _CACHE_FIELD

TEN = list(itertools.product(POSITION_ENCODINGS, [False, True]))
EVERY_KIND = [(*ten, shared) for ten, shared in itertools.product(TEN, [False, True])]

every_kind = pytest.mark.parametrize(
    ("position_encoding", "ssmax", "shared_prior"),
    EVERY_KIND,
    ids=[f"{p}{'-ssmax' * s}-{'shared' if shared else 'own'}" for p, s, shared in EVERY_KIND],
)


@every_kind
def test_save_and_load(
    position_encoding: str,
    ssmax: bool,
    shared_prior: bool,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
    tmp_path: Path,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax, shared_prior=shared_prior)
    # What is learned has moved on from what the configuration says, and must come back all the same.
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "prior" in name or "ssmax" in name:
                value.mul_(1.1)
        expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, BamForCausalLM)
    assert not any(info.values())
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, expected)


@every_kind
def test_generate_is_greedy_by_full_recomputation(
    position_encoding: str,
    ssmax: bool,
    shared_prior: bool,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax, shared_prior=shared_prior)
    generated = model.generate(tokens, max_new_tokens=6, do_sample=False)
    expected = tokens
    with torch.no_grad():
        for _ in range(6):
            following = model(expected, use_cache=False).logits[:, -1:].argmax(-1)
            expected = torch.cat((expected, following), dim=1)
    assert torch.equal(generated, expected)


@every_kind
def test_prefill_in_chunks_is_the_whole(
    position_encoding: str,
    ssmax: bool,
    shared_prior: bool,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax, shared_prior=shared_prior).double()
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
    for chunk_size, capacity in ((1, 0), (7, 33), (32, 40), (33, 33), (100, 5)):
        cache = PreallocatedCache(2, capacity)
        last = model.prefill(tokens, cache, chunk_size=chunk_size)
        assert last.shape == (2, 50)
        assert cache.length == 33
        assert (last - whole[:, -1]).abs().max() < 1e-10
        cache.truncate(20)  # back to a shared beginning, and on from there
        with torch.no_grad():
            again = model(tokens[:, 20:], cache=cache).logits
        assert (again - whole[:, 20:]).abs().max() < 1e-10


@pytest.mark.parametrize(("position_encoding", "ssmax"), TEN)
@pytest.mark.parametrize("keep", [1, 2, 32, 33, 50])
def test_logits_to_keep_is_a_slice(
    position_encoding: str,
    ssmax: bool,
    keep: int,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax).double()
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        kept = model(tokens, logits_to_keep=keep).logits
        cache = PreallocatedCache(2)
        model(tokens[:, :10], cache=cache)
        on_top = model(tokens[:, 10:], cache=cache, logits_to_keep=keep).logits
    assert whole.shape == (2, 33, 50)
    assert kept.shape == (2, min(keep, 33), 50)
    assert (kept - whole[:, -keep:]).abs().max() < 1e-10
    assert on_top.shape == (2, min(keep, 23), 50)
    assert (on_top - whole[:, -min(keep, 23) :]).abs().max() < 1e-10


def test_only_what_is_asked_for_is_computed(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model()
    seen: dict[str, int] = {}
    for name in ("lm_head", "model.layers.0.mlp", "model.layers.1.mlp", "model.layers.1.self_attn.q_proj"):
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: seen.__setitem__(name, inputs[0].shape[1])
        )
    model(tokens, logits_to_keep=2)
    assert seen == {
        "model.layers.0.mlp": 33,
        "model.layers.1.self_attn.q_proj": 2,
        "model.layers.1.mlp": 2,
        "lm_head": 2,
    }


@pytest.mark.parametrize("layers", [1, 2])
def test_where_nothing_is_asked_for_the_last_layer_computes_keys_and_values_alone(
    layers: int, make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model(num_hidden_layers=layers, prior_beta=0.5, ssmax_initial=0.4)
    seen: dict[str, int] = {}
    for name, module in model.named_modules():
        if not list(module.children()) and not isinstance(module, torch.nn.Embedding):
            module.register_forward_pre_hook(
                lambda _, inputs, name=name: seen.__setitem__(name, inputs[0].shape[1])
            )
    cache, whole = PreallocatedCache(layers), PreallocatedCache(layers)
    with torch.no_grad():
        hidden = model.model(tokens, cache=cache, keep=0).last_hidden_state
    assert hidden.shape == (2, 0, 24)
    last = f"model.layers.{layers - 1}."
    busy = {name for name, count in seen.items() if count}
    assert {name for name in busy if name.startswith(last) or not name.startswith("model.layers")} == {
        last + "input_layernorm",
        last + "self_attn.k_proj",
        last + "self_attn.v_proj",
    }
    assert any(name.startswith("model.layers.0.mlp") for name in busy) == (layers > 1)
    with torch.no_grad():
        model.model(tokens, cache=whole)
    for left, right in zip(cache.buffers, whole.buffers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(left._filled(), right._filled(), strict=True))


def test_none_keeps_all_and_nought_of_the_logits_too(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model()
    with torch.no_grad():
        assert model.model(tokens, keep=None).last_hidden_state.shape == (2, 33, 24)
        assert model(tokens, logits_to_keep=0).logits.shape == (2, 33, 50)  # as transformers means it


def test_a_prefill_asks_for_the_last_tokens_logits_alone(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model()
    seen: list[tuple[str, int]] = []
    for name in ("model.layers.0.mlp", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp", "lm_head"):
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: seen.append((name, inputs[0].shape[1]))
        )
    model.prefill(tokens, PreallocatedCache(2), chunk_size=10)
    first = "model.layers.0.mlp"
    last = ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp", "lm_head"]
    assert seen == [(first, 10), (first, 10), (first, 10), (first, 3), *((name, 1) for name in last)]


@pytest.mark.parametrize(("position_encoding", "ssmax"), TEN)
@pytest.mark.parametrize("kept", [0, 8, 24, 32])
def test_a_prefill_on_top_of_whole_chunks_is_the_same_to_the_bit(
    position_encoding: str,
    ssmax: bool,
    kept: int,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax)
    at_once, in_two = PreallocatedCache(2, 40), PreallocatedCache(2, 40)
    expected = model.prefill(tokens, at_once, chunk_size=8)
    other = tokens.clone()
    other[:, kept:] += 1
    other %= 50
    model.prefill(other, in_two, chunk_size=8)
    in_two.truncate(kept)
    assert torch.equal(model.prefill(tokens[:, kept:], in_two, chunk_size=8), expected)
    for left, right in zip(at_once.buffers, in_two.buffers, strict=True):
        for x, y in zip(left._filled(), right._filled(), strict=True):
            assert torch.equal(x[:, :, :33], y[:, :, :33])


@pytest.mark.parametrize("start", [0, 3, 8, 11])
def test_chunks_end_at_multiples_wherever_reading_begins(
    start: int, make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model()
    cache = PreallocatedCache(2)
    with torch.no_grad():
        model(tokens[:, :start], cache=cache) if start else None
    ends: list[int] = []
    model.model.register_forward_hook(lambda *_: ends.append(cache.length))
    model.prefill(tokens[:, start:], cache, chunk_size=8)
    assert ends == [end for end in (8, 16, 24, 32, 33) if end > start]


def _count(**fields: Any) -> int:
    with torch.device("meta"):
        model = BamForCausalLM(BamConfig(**fields))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("layers", "heads", "overhead"), [(12, 16, 384), (2, 4, 16), (24, 64, 3072)])
def test_the_generalized_gaussian_adds_two_parameters_a_head_and_layer(
    layers: int, heads: int, overhead: int
) -> None:
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": 48}
    uniform = _count(position_encoding="uniform", ssmax=False, **sizes)
    assert overhead == 2 * layers * heads
    assert _count(position_encoding="ggd", ssmax=False, **sizes) - uniform == overhead
    assert (
        _count(position_encoding="ggd", ssmax=False, learned_location=True, **sizes) - uniform
        == 3 * layers * heads
    )
    assert _count(position_encoding="ggd", ssmax=False, shared_prior=True, **sizes) - uniform == 2 * heads
    for encoding in ("laplace", "rotary", "sinusoidal"):
        assert _count(position_encoding=encoding, ssmax=False, **sizes) == uniform
    assert _count(position_encoding="uniform", ssmax=True, **sizes) - uniform == layers * heads


def test_what_else_there_is_to_count() -> None:
    """E · V twice, and per layer the four projections, the three of the SwiGLU, two norms; one at last."""
    count = _count(position_encoding="uniform", ssmax=False, num_key_value_heads=4)
    layer = 2 * 768 * 768 + 2 * 768 * 4 * 48 + 3 * 768 * 1536 + 2 * 768
    assert count == 2 * 32768 * 768 + 12 * layer + 768
    tied = _count(position_encoding="uniform", ssmax=False, num_key_value_heads=4, tie_word_embeddings=True)
    assert count - tied == 32768 * 768


@pytest.mark.parametrize(("position_encoding", "ssmax"), TEN)
def test_logits_step_by_step(
    position_encoding: str, ssmax: bool, make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    """The decoder once more, out of PyTorch's own pieces and attention written out as a matrix."""
    model = make_model(position_encoding=position_encoding, ssmax=ssmax, num_key_value_heads=4).double()
    config = model.config
    w = model.state_dict()
    n, heads, size = tokens.shape[1], 4, 6
    rel = (torch.arange(n) - torch.arange(n)[:, None]).double()
    x = w["model.embed_tokens.weight"][tokens]
    dims = torch.arange(24).double()
    if position_encoding == "sinusoidal":
        angles = torch.arange(n).double()[:, None] * 10000.0 ** (-dims / 24)
        x = x + torch.where(dims % 2 == 0, angles.sin(), angles.cos()).float()

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    for layer in range(2):
        at = f"model.layers.{layer}"
        y = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (
            (y @ w[f"{at}.self_attn.{p}_proj.weight"].T).view(2, n, heads, size).transpose(1, 2)
            for p in "qkv"
        )
        if position_encoding == "rotary":
            angle = torch.arange(n).double()[:, None] * config.rope_theta ** (
                -torch.arange(0, size, 2).double() / size
            )
            turn = torch.polar(torch.ones_like(angle), angle)
            q, k = (
                torch.view_as_real(torch.view_as_complex(z.unflatten(-1, (-1, 2))) * turn).flatten(-2)
                for z in (q.contiguous(), k.contiguous())
            )
        logits = q @ k.transpose(-1, -2) / size**0.5
        if position_encoding == "laplace":
            logits = logits + torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * rel
        if position_encoding == "ggd":
            prior = f"{at}.self_attn.prior"
            rate, beta, mu = (w[f"{prior}.{name}"][:, None, None] for name in ("log_rate", "beta", "mu"))
            logits = logits - rate.exp() * ((rel - mu).abs() + 1e-5) ** beta
        if ssmax:
            s = w[f"{at}.self_attn.ssmax.scale"][:, None, None]
            logits = logits * s * torch.arange(1, n + 1).double().log()[:, None]
        weights = logits.masked_fill(rel > 0, float("-inf")).softmax(-1)
        x = x + (weights @ v).transpose(1, 2).flatten(2) @ w[f"{at}.self_attn.o_proj.weight"].T
        y = norm(x, f"{at}.post_attention_layernorm.weight")
        gate, up = (y @ w[f"{at}.mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ w[f"{at}.mlp.down_proj.weight"].T
    expected = norm(x, "model.norm.weight") @ w["lm_head.weight"].T
    with torch.no_grad():
        actual = model(tokens).logits
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("position_encoding", "ssmax"), TEN)
def test_no_token_sees_what_follows(
    position_encoding: str, ssmax: bool, make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax).double()
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 50
    with torch.no_grad():
        difference = (model(tokens).logits - model(changed).logits).abs().amax(dim=(0, 2))
    assert difference[:20].max() < 1e-12
    assert difference[20:].min() > 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shared_prior", [False, True])
def test_halves_leave_priors_and_ssmax_in_fp32(
    dtype: torch.dtype,
    shared_prior: bool,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
    tmp_path: Path,
) -> None:
    model = make_model(shared_prior=shared_prior)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for name, value in loaded.state_dict().items():
        kept = "prior" in name or "ssmax" in name
        assert value.dtype == (torch.float32 if kept else dtype), name
        if kept:
            assert torch.equal(value, model.state_dict()[name])
    with torch.no_grad():
        logits, expected = loaded(tokens).logits, model(tokens).logits
    assert logits.dtype == torch.float32
    assert (logits - expected).norm() < 0.03 * expected.norm()
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=dtype)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, logits)


@pytest.mark.parametrize(
    "mask",
    [[0, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]],
    ids=lambda mask: "".join(map(str, mask)),
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
def test_padding_that_would_move_tokens_is_refused(
    mask: list[int], dtype: torch.dtype, make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    both = torch.tensor([[1, 1, 1, 1], mask]).to(dtype)
    with pytest.raises(ValueError, match="padding before a token would move it"):
        make_model()(tokens[:, :4], attention_mask=both)


def test_padding_at_the_end_changes_nothing_before_it(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model().double()
    mask = torch.ones_like(tokens)
    mask[1, 20:] = 0
    with torch.no_grad():
        padded = model(tokens, attention_mask=mask).logits
        alone = model(tokens[:, :20]).logits
    assert (padded[1, :20] - alone[1]).abs().max() < 1e-10
    with pytest.raises(ValueError, match="padding before a token"):  # what is generated would stand behind it
        model.generate(tokens, attention_mask=mask, max_new_tokens=2, do_sample=False, pad_token_id=0)


def test_log_length_scale_is_a_factor_on_ssmax(
    make_model: Callable[..., BamForCausalLM], tokens: Tensor
) -> None:
    model = make_model().double()
    with torch.no_grad():
        as_it_is = model(tokens).logits
        scaled = model(tokens, log_length_scale=1.7).logits
        for layer in model.model.layers:
            layer.self_attn.ssmax.scale.mul_(1.7)
        expected = model(tokens).logits
    assert (scaled - expected).abs().max() < 1e-10
    assert (scaled - as_it_is).abs().max() > 1e-3


def test_loss_is_that_of_the_next_token(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    model = make_model()
    labels = tokens.clone()
    labels[:, :10] = -100
    out = model(tokens, labels=labels)
    expected = F.cross_entropy(out.logits[:, 9:-1].flatten(0, 1), tokens[:, 10:].flatten())
    torch.testing.assert_close(out.loss, expected)
    assert model(tokens).loss is None


@pytest.mark.parametrize(("position_encoding", "ssmax"), TEN)
@pytest.mark.parametrize("training", [True, False])
def test_everything_learned_gets_a_gradient(
    position_encoding: str,
    ssmax: bool,
    training: bool,
    make_model: Callable[..., BamForCausalLM],
    tokens: Tensor,
) -> None:
    model = make_model(position_encoding=position_encoding, ssmax=ssmax, learned_location=True)
    model.train(training)
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_starting_values_reach_the_priors(make_model: Callable[..., BamForCausalLM]) -> None:
    model = make_model(prior_alpha=[[1.0, 2.0, 3.0, 4.0], [5.0] * 4], prior_mu=-1.5)
    first, second = (layer.self_attn for layer in model.model.layers)
    assert first.prior.alpha.tolist() == pytest.approx([1, 2, 3, 4], rel=1e-5)
    assert second.prior.alpha.tolist() == pytest.approx([5] * 4, rel=1e-5)
    assert second.prior.beta.tolist() == pytest.approx([0.2, -1.5, 0.4, 1.0])
    assert first.prior.mu.tolist() == [-1.5] * 4
    assert first.ssmax.scale.tolist() == pytest.approx([0.3, 0.4, -0.1, 0.5])
    papers = make_model(prior_beta=1.0, ssmax_initial=1.0).model.layers[0].self_attn
    assert papers.prior.alpha.tolist() == pytest.approx([4, 16, 64, 256])  # 1 / ALiBi's slopes
    assert papers.ssmax.scale.tolist() == [1] * 4


def test_weights_start_as_the_configuration_says(make_config: Callable[..., BamConfig]) -> None:
    torch.manual_seed(0)
    model = BamForCausalLM(make_config(hidden_size=128, initializer_range=0.05))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name


def test_tied_embeddings(make_model: Callable[..., BamForCausalLM], tokens: Tensor, tmp_path: Path) -> None:
    model = make_model(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_a_shared_prior_is_one_module(make_model: Callable[..., BamForCausalLM]) -> None:
    shared, own = make_model(shared_prior=True), make_model()
    assert {n for n, _ in shared.named_parameters() if "prior" in n} == {
        "model.prior.log_rate",
        "model.prior.beta",
    }
    assert sum("prior" in name for name, _ in own.named_parameters()) == 4


def test_auto_classes(make_model: Callable[..., BamForCausalLM], tmp_path: Path, tokens: Tensor) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), BamConfig)
    base = AutoModel.from_pretrained(tmp_path)
    assert isinstance(base, BamModel)
    with torch.no_grad():
        hidden = base(tokens).last_hidden_state
        torch.testing.assert_close(model.lm_head(hidden), model(tokens).logits)


def test_transformers_own_cache(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    model = make_model().double()
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        cache = DynamicCache(config=model.config)
        parts = [model(part, past_key_values=cache).logits for part in tokens.split(10, dim=1)]
    assert cache.get_seq_length() == 33
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-10


def test_a_cache_where_one_is_wanted(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    model = make_model()

    def cache_of(model: BamForCausalLM, **arguments: Any) -> Any:
        with torch.no_grad():
            out = model(tokens, **arguments)
        return out.get(_CACHE_FIELD)

    assert isinstance(cache_of(model), PreallocatedCache)
    assert cache_of(model).length == 33
    assert cache_of(model, use_cache=False) is None
    assert cache_of(make_model(use_cache=False)) is None
    assert isinstance(cache_of(make_model(use_cache=False), use_cache=True), PreallocatedCache)
    assert cache_of(model.train()) is None


def test_beam_search(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    """Beams change places in the cache: with it and without it the same is found."""
    model = make_model().double()
    arguments = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    arguments["attention_mask"] = torch.ones_like(tokens)
    cached = model.generate(tokens, **{_CACHE_FIELD: PreallocatedCache(2)}, **arguments)
    assert torch.equal(cached, model.generate(tokens, use_cache=False, **arguments))


def test_embeddings_instead_of_tokens(make_model: Callable[..., BamForCausalLM], tokens: Tensor) -> None:
    model = make_model()
    with torch.no_grad():
        given = model(inputs_embeds=model.get_input_embeddings()(tokens)).logits
        assert torch.equal(given, model(tokens).logits)
