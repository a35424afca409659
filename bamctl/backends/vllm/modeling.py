"""The model of `bamctl.models.modeling` inside vLLM: the same decoder, of its parallel layers.

Shapes: T tokens of a step, of all sequences one after another; E width, F width of the SwiGLU, V vocabulary;
H query heads, G key-value heads, D head size, of one tensor-parallel rank unless said otherwise.

What vLLM splits over ranks are the heads and the SwiGLU's width. A head's prior and its factor of SSMax go
with the head, and stay in fp32 whatever the dtype.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader, sharded_weight_loader
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.utils import (
    PPMissingLayer,
    is_pp_missing_parameter,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)
from vllm.sequence import IntermediateTensors

from bamctl.attention.priors import GeneralizedGaussian, Laplace, Prior, Uniform
from bamctl.attention.ssmax import ScalableSoftmax
from bamctl.backends.vllm.attention import BamAttentionBackend
from bamctl.errors import BadInput
from bamctl.models.config import BamConfig
from bamctl.models.modeling import RMSNorm
from bamctl.models.positions import rotate, sinusoids

PACKED: dict[str, dict[str, str | int]] = {
    "qkv_proj": {"q_proj": "q", "k_proj": "k", "v_proj": "v"},
    "gate_up_proj": {"gate_proj": 0, "up_proj": 1},
}
"""Layers of vLLM that hold several of a checkpoint's, and what it calls each within them."""


def empty_prior(config: BamConfig, heads: int) -> Prior:
    """The prior of a rank's heads, whose values the checkpoint holds; nothing is learned here."""
    if config.position_encoding == "ggd":
        return GeneralizedGaussian(heads, learned=()).float()
    if config.position_encoding == "laplace":
        return Laplace(heads).float()
    return Uniform(heads)


class BamAttention(nn.Module):
    """Causal attention under a prior, with Scalable Softmax where the configuration asks for it."""

    def __init__(self, vllm_config: VllmConfig, *, shared_prior: Prior | None, prefix: str) -> None:
        super().__init__()
        config: BamConfig = vllm_config.model_config.hf_config
        ranks = get_tensor_model_parallel_world_size()
        heads, groups = config.num_attention_heads // ranks, max(1, config.num_key_value_heads // ranks)
        self.config = config
        self.widths = (heads * config.head_dim, groups * config.head_dim, groups * config.head_dim)
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self.prior = empty_prior(config, heads) if shared_prior is None else None
        self.ssmax = ScalableSoftmax(heads).float().requires_grad_(False) if config.ssmax else None
        # A buffer, so that it outlives an engine's sleep as the weights do.
        self.register_buffer("longest_key_G", torch.zeros(groups, dtype=torch.float32), persistent=False)
        self.attn = Attention(
            heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=groups,
            cache_config=vllm_config.cache_config,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.attn",
            attn_backend=BamAttentionBackend,
            prior=self.prior if shared_prior is None else shared_prior,
            ssmax=self.ssmax,
            ssmax_scales_prior=config.ssmax_scales_prior,
            longest_key_G=self.longest_key_G,
        )

    def forward(self, positions_T: Tensor, x_TE: Tensor) -> Tensor:
        """``[T, E]``: what attention adds to the residual stream."""
        qkv, _ = self.qkv_proj(x_TE)
        q, k, v = qkv.split(self.widths, dim=-1)
        if self.config.position_encoding == "rotary":
            q, k = (self._rotate(x, positions_T) for x in (q, k))
        out_TE: Tensor = self.o_proj(self.attn(q, k, v))[0]
        return out_TE

    def _rotate(self, x: Tensor, positions_T: Tensor) -> Tensor:
        x_HTD = x.unflatten(-1, (-1, self.config.head_dim)).transpose(0, 1)
        return rotate(x_HTD, positions_T, self.config.rope_theta).transpose(0, 1).flatten(1)


class SwiGLU(nn.Module):
    """down(silu(gate x) · up x) (arXiv 2002.05202)."""

    def __init__(self, vllm_config: VllmConfig, *, prefix: str) -> None:
        super().__init__()
        config: BamConfig = vllm_config.model_config.hf_config
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size,
            config.hidden_size,
            bias=False,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.down_proj",
        )
        self.gated = SiluAndMul()

    def forward(self, x_TE: Tensor) -> Tensor:
        gate_up, _ = self.gate_up_proj(x_TE)
        out_TE: Tensor = self.down_proj(self.gated(gate_up))[0]
        return out_TE


class BamLayer(nn.Module):
    """norm → attention → norm → SwiGLU, each added to the residual stream."""

    def __init__(self, vllm_config: VllmConfig, *, shared_prior: Prior | None, prefix: str) -> None:
        super().__init__()
        config: BamConfig = vllm_config.model_config.hf_config
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BamAttention(vllm_config, shared_prior=shared_prior, prefix=f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(vllm_config, prefix=f"{prefix}.mlp")

    def forward(self, positions_T: Tensor, x_TE: Tensor) -> Tensor:
        x_TE = x_TE + self.self_attn(positions_T, self.input_layernorm(x_TE))
        out_TE: Tensor = x_TE + self.mlp(self.post_attention_layernorm(x_TE))
        return out_TE


@support_torch_compile
class BamModel(nn.Module):
    """Token ids → the final hidden states, or those between two pipeline stages."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: BamConfig = vllm_config.model_config.hf_config
        stage = get_pp_group()
        self.config = config
        # An embedding that is the head's too is held by the last stage as well.
        self.embed_tokens = (
            VocabParallelEmbedding(
                config.vocab_size,
                config.hidden_size,
                quant_config=vllm_config.quant_config,
                prefix=f"{prefix}.embed_tokens",
            )
            if stage.is_first_rank or (config.tie_word_embeddings and stage.is_last_rank)
            else PPMissingLayer()
        )
        heads = config.num_attention_heads // get_tensor_model_parallel_world_size()
        self.prior = empty_prior(config, heads) if config.shared_prior else None
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers,
            lambda prefix: BamLayer(vllm_config, shared_prior=self.prior, prefix=prefix),
            prefix=f"{prefix}.layers",
        )
        self.norm = (
            RMSNorm(config.hidden_size, config.rms_norm_eps) if stage.is_last_rank else PPMissingLayer()
        )

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """``[T, E]``, without positions."""
        embedded_TE: Tensor = self.embed_tokens(input_ids)
        return embedded_TE

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """One step over T tokens, each with its position in its sequence."""
        if intermediate_tensors is not None:
            x_TE = intermediate_tensors["hidden_states"]
        else:
            x_TE = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            if self.config.position_encoding == "sinusoidal":
                x_TE = x_TE + sinusoids(positions, self.config.hidden_size).to(x_TE.dtype)
        for layer in islice(self.layers, self.start_layer, self.end_layer):
            x_TE = layer(positions, x_TE)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": x_TE})
        normed_TE: Tensor = self.norm(x_TE)
        return normed_TE


class BamForCausalLM(nn.Module, SupportsPP):
    """The decoder with its head: token ids → logits of the next token.

    Raises:
        BadInput: what cannot be split over the tensor-parallel ranks.
    """

    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        packed: list(parts) for packed, parts in PACKED.items()
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: BamConfig = vllm_config.model_config.hf_config
        _check_ranks(config, get_tensor_model_parallel_world_size())
        self.config = config
        self.model = BamModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                config.vocab_size,
                config.hidden_size,
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "lm_head"),
            )
            if config.tie_word_embeddings:
                self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        else:
            self.lm_head = PPMissingLayer()
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states"], config.hidden_size
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """``[T, E]``, without positions."""
        embedded_TE: Tensor = self.model.embed_input_ids(input_ids)
        return embedded_TE

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor | IntermediateTensors:
        """See `BamModel.forward`."""
        out: Tensor | IntermediateTensors = self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """``[T, V]`` of hidden states ``[T, E]``; on some ranks None."""
        logits_TV: Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits_TV

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Puts a checkpoint's tensors into their places; the names of those that this rank holds.

        Raises:
            BadInput: a tensor is missing, has no place, or a prior's is of another number of heads.
        """
        places = self._places()
        loaded = set()
        for name, weight in weights:
            if is_pp_missing_parameter(name, self) or self._is_tied(name):
                continue
            if name not in places:
                raise BadInput(f"the weights hold {name}, which config.json has no place for")
            if not torch.isfinite(weight).all():
                raise BadInput(f"weight {name} is not finite")
            ours, tensor, part = places.pop(name)
            if isinstance(part, Prior | ScalableSoftmax):
                if weight.shape != (self.config.num_attention_heads,):
                    raise BadInput(
                        f"weight {name} is {list(weight.shape)}, config.json asks for"
                        f" [{self.config.num_attention_heads}]"
                    )
                sharded_weight_loader(0)(tensor, weight)
            elif part is None:
                getattr(tensor, "weight_loader", default_weight_loader)(tensor, weight)
            else:
                tensor.weight_loader(tensor, weight, part)
            loaded.add(ours)
        if places:
            raise BadInput(f"the weights lack {min(places)}, which config.json asks for")
        return loaded

    def _is_tied(self, name: str) -> bool:
        return self.config.tie_word_embeddings and name == "lm_head.weight"

    def _places(self) -> dict[str, tuple[str, Any, Any]]:
        """A checkpoint's names → our own, the tensor, and the part of it that is meant."""
        places: dict[str, tuple[str, Any, Any]] = {}
        for name, parameter in self.named_parameters():
            packed = next((packed for packed in PACKED if f".{packed}." in name), None)
            if packed is None:
                places[name] = (name, parameter, None)
                continue
            for theirs, part in PACKED[packed].items():
                places[name.replace(packed, theirs)] = (name, parameter, part)
        for module_name, module in self.named_modules():
            if isinstance(module, Prior | ScalableSoftmax):
                for name, tensor in module.state_dict(prefix=f"{module_name}.").items():
                    places[name] = (name, tensor, module)
        return places


def _check_ranks(config: BamConfig, ranks: int) -> None:
    """vLLM splits query heads and the SwiGLU evenly, and key-value heads too or repeats each evenly."""
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    if heads % ranks or width % ranks or max(groups, ranks) % min(groups, ranks):
        raise BadInput(
            f"{heads} query heads, {groups} key-value heads and an intermediate_size of {width} cannot be"
            f" split over {ranks} tensor-parallel ranks; lower --tensor-parallel-size"
        )
