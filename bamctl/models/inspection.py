"""What a model's heads are, and what they attend to: for looking at, one row of attention at a time.

Shapes: N tokens, K last positions of them, H query heads, G key-value heads, D head size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bamctl.attention.kinds import kind_of
from bamctl.attention.mass import DistanceMass, HeadPrior, head_priors
from bamctl.attention.priors import Prior
from bamctl.attention.ssmax import ssmax_factor
from bamctl.models.cache import PreallocatedCache
from bamctl.models.modeling import BamAttention, BamForCausalLM
from bamctl.models.positions import rotate


@dataclass(frozen=True, kw_only=True)
class InspectedHead:
    """One head's prior, and what SSMax makes of it."""

    layer: int
    head: int
    prior: HeadPrior
    ssmax: float | None
    """s; None without SSMax."""
    ssmax_scales_prior: bool

    def factor(self, length: int) -> float:
        """t, what multiplies the prior for the last of `length` tokens."""
        if self.ssmax is None or not self.ssmax_scales_prior:
            return 1.0
        return self.ssmax * math.log(length)

    def mass(self, length: int) -> DistanceMass:
        """Where the prior's mass lies for the last of `length` tokens."""
        return DistanceMass(self.prior, length=length, factor=self.factor(length))

    def kind(self, length: int) -> str:
        """See `bamctl.attention.kinds.kind_of`."""
        return kind_of(self.prior, length=length, factor=self.factor(length))


def inspect_heads(model: BamForCausalLM) -> list[InspectedHead]:
    """Every head, layer by layer."""
    return [
        InspectedHead(
            layer=number,
            head=head,
            prior=prior,
            ssmax=None if layer.ssmax is None else layer.ssmax.scale[head].item(),
            ssmax_scales_prior=model.config.ssmax_scales_prior,
        )
        for number, layer in enumerate(_attentions(model))
        for head, prior in enumerate(head_priors(_prior(model, layer)))
    ]


def learned_prior_parameters(model: BamForCausalLM) -> int:
    """How many numbers the model has learned for its priors; SSMax's are not among them."""
    return sum(p.numel() for m in model.modules() if isinstance(m, Prior) for p in m.parameters())


@torch.no_grad()
def attention_rows(
    model: BamForCausalLM, ids_N: Tensor, *, queries: int, chunk_size: int
) -> Iterator[Tensor]:
    """What the last K = `queries` tokens attend to, layer by layer.

    The text is read into a cache; the rows are then made of each layer's own queries and keys as
    `bamctl.attention.reference` defines them, in float64. Beside the cache, one layer's rows are all
    that is held.

    Args:
        model: what reads.
        ids_N: tokens ``[N]`` on the model's device, N ≥ K ≥ 1.
        queries: K.
        chunk_size: how many tokens go through the model at once.

    Yields:
        ``[H, K, N]`` for each layer: row k is the attention of the token at N - K + k, and sums to 1.
    """
    tokens = len(ids_N)
    cache = PreallocatedCache(model.config.num_hidden_layers, tokens)
    if tokens > queries:
        model.prefill(ids_N[None, :-queries], cache, chunk_size=chunk_size)
    projected: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, _: object, output: Tensor) -> None:
        projected[module] = output

    layers = _attentions(model)
    hooks = [layer.q_proj.register_forward_hook(note) for layer in layers]
    try:
        model(ids_N[None, -queries:], cache=cache)
    finally:
        for hook in hooks:
            hook.remove()
    positions_K = torch.arange(tokens - queries, tokens, device=ids_N.device)
    for layer, buffer in zip(layers, cache.buffers, strict=True):
        assert buffer.keys is not None
        q_HKD = projected[layer.q_proj][0].unflatten(-1, (-1, model.config.head_dim)).transpose(0, 1)
        if model.config.position_encoding == "rotary":
            q_HKD = rotate(q_HKD[None], positions_K, model.config.rope_theta)[0]
        yield _rows(
            q_HKD,
            buffer.keys[0, :, :tokens],
            prior=_prior(model, layer),
            positions_K=positions_K,
            scale_H=None if layer.ssmax is None else layer.ssmax.scale,
            scales_prior=model.config.ssmax_scales_prior,
        )


def _rows(
    q_HKD: Tensor,
    k_GND: Tensor,
    *,
    prior: Prior,
    positions_K: Tensor,
    scale_H: Tensor | None,
    scales_prior: bool,
) -> Tensor:
    """Attention of queries at `positions_K` on the keys at 0 … N - 1, ``[H, K, N]`` in float64."""
    groups, keys, size = k_GND.shape
    scaled_q_GRD = (q_HKD.double() / math.sqrt(size)).reshape(
        groups, -1, size
    )  # R: heads of a group and queries
    logits_HKN = torch.empty((*q_HKD.shape[:2], keys), dtype=torch.float64, device=q_HKD.device)
    for group, q_RD in enumerate(scaled_q_GRD):  # of the keys, float64 copies of one group at a time
        logits_HKN.view(groups, -1, keys)[group] = q_RD @ k_GND[group].double().T
    rel_KN = torch.arange(keys, device=q_HKD.device) - positions_K[:, None]
    t_HK1: Tensor | float = 1.0
    if scale_H is not None:
        t_HK1 = ssmax_factor(scale_H.double(), positions_K)[..., None]
    if scales_prior:
        logits_HKN.add_(prior.bias(rel_KN)).mul_(t_HK1)
    else:
        logits_HKN.mul_(t_HK1).add_(prior.bias(rel_KN))
    # Masked last: t may be 0 or negative.
    return logits_HKN.masked_fill_(rel_KN > 0, -math.inf).softmax(dim=-1)


def _attentions(model: BamForCausalLM) -> list[BamAttention]:
    return [layer.self_attn for layer in model.model.layers]


def _prior(model: BamForCausalLM, layer: BamAttention) -> Prior:
    prior = model.model.prior if layer.prior is None else layer.prior
    assert prior is not None
    return prior
