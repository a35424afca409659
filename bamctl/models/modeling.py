"""The whole model on one page: a decoder whose attention has a prior over positions.

    from transformers import AutoModelForCausalLM
    import bamctl.models                                    # registers model_type "bam"
    model = AutoModelForCausalLM.from_pretrained("models/tiny-bam-ssmax")

Shapes: B batch, C tokens of this call, N tokens held in the cache and C together, E width, F width of the
SwiGLU, H query heads, G key-value heads, D head size, K positions whose logits are asked for, V vocabulary.
"""

from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from bamctl.attention import (
    GeneralizedGaussian,
    Laplace,
    Prior,
    ScalableSoftmax,
    Uniform,
    alibi_slopes,
    attention,
)
from bamctl.models.cache import PreallocatedCache
from bamctl.models.config import BamConfig
from bamctl.models.positions import rotate, sinusoids

_CACHE_FIELD = (
    "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"
)
"""What this version of transformers calls the cache: `past_key_values` before 5.24, then `cache`."""


def make_prior(config: BamConfig, layer: int) -> Prior:
    """The prior of one layer, at its starting values."""
    heads = config.num_attention_heads
    if config.position_encoding == "ggd":
        return GeneralizedGaussian(
            heads,
            alpha=config.initial_values("prior_alpha", layer) or [1 / slope for slope in alibi_slopes(heads)],
            beta=config.initial_values("prior_beta", layer) or 1.0,
            mu=config.initial_values("prior_mu", layer) or 0.0,
            learned=("alpha", "beta", "mu") if config.learned_location else ("alpha", "beta"),
        )
    if config.position_encoding == "laplace":
        return Laplace(heads)
    return Uniform(heads)


class RMSNorm(nn.Module):
    """x / √(mean x² + ε) · weight, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        work = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(work, self.weight.shape, self.weight.to(work.dtype), self.eps).to(x.dtype)


class BamAttention(nn.Module):
    """Causal attention under a prior, with Scalable Softmax where the configuration asks for it."""

    def __init__(self, config: BamConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        width, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, width, bias=False)
        self.prior = None if config.shared_prior else make_prior(config, layer)
        self.ssmax = None
        if config.ssmax:
            initial = config.initial_values("ssmax_initial", layer)
            self.ssmax = ScalableSoftmax(config.num_attention_heads, initial=initial or 1.0)

    def forward(
        self,
        x_BCE: Tensor,
        *,
        start: int,
        shared_prior: Prior | None,
        cache: Cache | None,
        keep: int,
        log_length_scale: float,
    ) -> Tensor:
        """What attention adds to the residual stream of the last K = `keep` positions, ``[B, K, E]``.

        With K = 0 the keys and values go into the cache, and that is all.
        """
        tokens = x_BCE.shape[1]
        first_kept = tokens - keep
        x_BKE = x_BCE[:, first_kept:]
        k_BGCD, v_BGCD = self._heads(self.k_proj(x_BCE)), self._heads(self.v_proj(x_BCE))
        positions_C = torch.arange(start, start + tokens, device=x_BCE.device)
        if self.config.position_encoding == "rotary":
            k_BGCD = rotate(k_BGCD, positions_C, self.config.rope_theta)
        k_BGND, v_BGND = (k_BGCD, v_BGCD) if cache is None else cache.update(k_BGCD, v_BGCD, self.layer)
        if not keep:
            return x_BKE
        q_BHKD = self._heads(self.q_proj(x_BKE))
        if self.config.position_encoding == "rotary":
            q_BHKD = rotate(q_BHKD, positions_C[first_kept:], self.config.rope_theta)
        prior = shared_prior if self.prior is None else self.prior
        assert prior is not None
        out_BHKD = attention(
            q_BHKD,
            k_BGND,
            v_BGND,
            prior=prior,
            query_start=start + first_kept,
            ssmax_scale_H=None if self.ssmax is None else self.ssmax.scale * log_length_scale,
            ssmax_scales_prior=self.config.ssmax_scales_prior,
            longest_key_G=cache.longest_key(self.layer) if isinstance(cache, PreallocatedCache) else None,
        )
        out: Tensor = self.o_proj(out_BHKD.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """``[B, C, H · D]`` → ``[B, H, C, D]``."""
        return x.view(*x.shape[:-1], -1, self.config.head_dim).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(silu(gate x) · up x) (arXiv 2002.05202)."""

    def __init__(self, config: BamConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class BamLayer(nn.Module):
    """norm → attention → norm → SwiGLU, each added to the residual stream."""

    def __init__(self, config: BamConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BamAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x_BCE: Tensor, *, keep: int, **attention_arguments: Any) -> Tensor:
        """``[B, C, E]`` → ``[B, K, E]``, the last K = `keep` positions; with 0 it fills the cache alone."""
        attended_BKE: Tensor = self.self_attn(self.input_layernorm(x_BCE), keep=keep, **attention_arguments)
        if not keep:
            return attended_BKE
        x_BKE = x_BCE[:, x_BCE.shape[1] - keep :] + attended_BKE
        out: Tensor = x_BKE + self.mlp(self.post_attention_layernorm(x_BKE))
        return out


class BamPreTrainedModel(PreTrainedModel):
    """What transformers needs to know for loading, saving and starting weights."""

    config_class = BamConfig
    base_model_prefix = "model"
    _no_split_modules = ["BamLayer"]  # noqa: RUF012 (transformers' own convention)
    # A prior's parameters are few and enter an exponential: halves would move every distance.
    _keep_in_fp32_modules_strict = ["prior", "ssmax"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (Prior, ScalableSoftmax)):
            module.reset_parameters()
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        else:
            super()._init_weights(module)


class BamModel(BamPreTrainedModel):
    """Token ids → the final hidden states."""

    def __init__(self, config: BamConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.prior = make_prior(config, 0) if config.shared_prior else None
        self.layers = nn.ModuleList([BamLayer(config, layer) for layer in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        keep: int | None = None,
        log_length_scale: float = 1.0,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """One call over C tokens that follow those in the cache.

        Args:
            input_ids: ``[B, C]``.
            attention_mask: must hide nothing that a token follows: prompts of one batch have one length.
            past_key_values, cache: the tokens before these; two names for one thing.
            keep: return the last `keep` positions alone, None for all; the last layer then attends from
                those only. With 0 it computes keys and values for the cache, and nothing else.
            log_length_scale: a factor on SSMax's ln n. Training varies it to imitate longer contexts.

        Raises:
            ValueError: padding on the left or in the middle.
        """
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if attention_mask is not None and attention_mask.dim() == 2:
            shown = attention_mask.bool().int()
            if not shown[:, 0].all() or (shown.diff(dim=1) > 0).any():
                raise ValueError("padding before a token would move it: batch prompts of one length instead")
        cache = past_key_values if cache is None else cache
        if (
            cache is None
            and (self.config.use_cache if use_cache is None else use_cache)
            and not self.training
        ):
            cache = PreallocatedCache(self.config.num_hidden_layers)
        start = 0 if cache is None else int(cache.get_seq_length())
        tokens = inputs_embeds.shape[1]
        hidden = inputs_embeds
        if self.config.position_encoding == "sinusoidal":
            positions_C = torch.arange(start, start + tokens, device=hidden.device)
            hidden = hidden + sinusoids(positions_C, self.config.hidden_size).to(hidden.dtype)
        for number, layer in enumerate(self.layers, start=1):
            hidden = layer(
                hidden,
                start=start,
                shared_prior=self.prior,
                cache=cache,
                keep=tokens if keep is None or number < len(self.layers) else min(keep, tokens),
                log_length_scale=log_length_scale,
            )
        named: dict[str, Any] = {_CACHE_FIELD: cache}
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), **named)


class BamForCausalLM(BamPreTrainedModel, GenerationMixin):
    """The decoder with its head: token ids → logits of the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: BamConfig) -> None:
        super().__init__(config)
        self.model = BamModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
        log_length_scale: float = 1.0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[B, K, V]`` of the last K = `logits_to_keep` positions (0: of all), in fp32 or float64.

        Args:
            labels: ``[B, C]``, -100 where nothing is to be predicted; shifted by one here.

        The other arguments are those of `BamModel.forward`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            keep=logits_to_keep or None,
            log_length_scale=log_length_scale,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss: Any = None  # versions of transformers name its type differently
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, **{_CACHE_FIELD: getattr(outputs, _CACHE_FIELD)}
        )

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, cache: PreallocatedCache, *, chunk_size: int) -> Tensor:
        """Reads ``[B, C]`` tokens into the cache, `chunk_size` at a time; the next token's logits ``[B, V]``.

        Between chunks only keys and values are kept, so that activations take memory for one chunk. The
        tokens follow those in the cache, and chunks end at multiples of `chunk_size` counted from the first
        of all: what is read on top of whole chunks is computed bit for bit as it would be at once.
        """
        start = position = cache.length
        end = start + input_ids.shape[1]
        while (chunk_end := (position // chunk_size + 1) * chunk_size) < end:
            self.model(input_ids[:, position - start : chunk_end - start], cache=cache, keep=0)
            position = chunk_end
        last_BV: Tensor = self(input_ids[:, position - start :], cache=cache, logits_to_keep=1).logits[:, -1]
        return last_BV
