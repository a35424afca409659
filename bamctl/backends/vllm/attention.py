"""Attention under a prior inside vLLM: where its keys and values lie, and what computes over them.

Shapes: T query tokens of a step, of all sequences one after another; P pages of the pool, S slots a page,
H query heads, G key-value heads, D head size; of one tensor-parallel rank.

vLLM hands a layer its cache as ``[P, G, S, 2 D]``, keys before values in the last dimension; the strides are
those of the layout that it chose. Both implementations of `bamctl.attention.paged` take views of it.

**A bound on the keys.** To skip keys without reading them it must be known how long they can be. Each layer
has one running maximum of key norms, over everything that was ever written to its cache in this process. All
that is read from the cache was written by `BamAttentionImpl.do_kv_cache_update` of the same layer, whoever
asks: pages of the prefix cache were written by an earlier request, a preempted request writes its keys anew,
keys of rejected drafts and of profiling runs only raise the maximum, and a page that vLLM sets to zero holds
keys of length 0. What would bring keys in from elsewhere, a KV connector, is refused. The maximum never
falls: one long key of a past request makes later ones skip less, never wrongly.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.platforms import current_platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from bamctl.attention.priors import Prior
from bamctl.attention.ssmax import ScalableSoftmax
from bamctl.errors import BadInput

CHOICE = "BAMCTL_VLLM_ATTENTION"
"""The environment variable that may choose the implementation of attention."""

BLOCK_MULTIPLE = 16
"""Slots of a page come in multiples of this, the least that a tensor core multiplies."""


@dataclass(frozen=True, kw_only=True)
class PagedMetadata(AttentionMetadata):
    """Where the sequences of one step lie; see `bamctl.attention.paged` for the shapes."""

    query_starts: Tensor
    lengths_B: Tensor
    pages_BP: Tensor
    tokens: int
    """Without those that pad the batch."""
    most_queries: int
    most_keys: int


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """One a group of layers whose caches are alike."""

    # The kernel's grid follows the step's longest sequence, which a captured graph would freeze.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> PagedMetadata:
        """What vLLM knows of a step, in our words."""
        return PagedMetadata(
            query_starts=common_attn_metadata.query_start_loc,
            lengths_B=common_attn_metadata.seq_lens,
            pages_BP=common_attn_metadata.block_table_tensor,
            tokens=common_attn_metadata.num_actual_tokens,
            most_queries=common_attn_metadata.max_query_len,
            most_keys=common_attn_metadata.max_seq_len,
        )


class BamAttentionBackend(AttentionBackend):
    """Passed to vLLM's `Attention` by the model, for on a CPU vLLM takes its own whatever is registered."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # the one name that vLLM has for backends from elsewhere

    @staticmethod
    def get_impl_cls() -> type["BamAttentionImpl"]:
        return BamAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[PagedMetadataBuilder]:
        return PagedMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(BLOCK_MULTIPLE)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Tokens before heads first, where pages that follow one another are one view."""
        return (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC, KVCacheLayout.BLNHC, KVCacheLayout.BLHNC)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


class BamAttentionImpl(AttentionImpl[PagedMetadata]):
    """One layer's attention.

    Beside vLLM's own arguments:

    Args:
        prior: of this rank's H heads.
        ssmax: of this rank's H heads, or None.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        longest_key_G: fp32 zeros, where the running maximum of key norms is kept.

    Raises:
        BadInput: something is asked for that this attention has not, or no such implementation.
    """

    supports_quant_query_input: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        *,
        prior: Prior,
        ssmax: ScalableSoftmax | None,
        ssmax_scales_prior: bool,
        longest_key_G: Tensor,
    ) -> None:
        vllm_config = get_current_vllm_config()
        dtype = torch.get_default_dtype()  # while a model is built it is the model's
        for is_wrong, what in (
            (alibi_slopes is not None, "ALiBi besides its prior"),
            (sliding_window is not None, "a sliding window"),
            (bool(logits_soft_cap), "a cap on its logits"),
            (attn_type != AttentionType.DECODER, f"attention of the type {attn_type}"),
            (kv_sharing_target_layer_name is not None, "keys shared between layers"),
            (abs(scale * head_size**0.5 - 1) > 1e-6, f"a scale of {scale}, only 1/√{head_size}"),
            (
                kv_cache_dtype_str_to_dtype(kv_cache_dtype, vllm_config.model_config) != dtype,
                f"keys of another type than the model's ({kv_cache_dtype}): kv_cache_dtype must be auto",
            ),
            (vllm_config.kv_transfer_config is not None, "a KV connector, whose keys it has not measured"),
        ):
            if is_wrong:
                raise BadInput(f"the vllm backend's attention under a prior has not got {what}")
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_size = head_size
        self.scale = scale
        self.kv_cache_dtype = kv_cache_dtype
        self.prior = prior
        self.ssmax = ssmax
        self.ssmax_scales_prior = ssmax_scales_prior
        self.longest_key_G = longest_key_G
        self._paged_attention = implementation(head_size)

    def forward(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: PagedMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Fills `output` ``[T, H, D]``; keys and values of these tokens are in the cache already."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("quantised outputs were not offered")
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        k_cache_PSGD, v_cache_PSGD = self._views(kv_cache)
        self._paged_attention(
            query[: attn_metadata.tokens],
            k_cache_PSGD,
            v_cache_PSGD,
            out_THD=output[: attn_metadata.tokens],
            prior=self.prior,
            query_starts=attn_metadata.query_starts,
            lengths_B=attn_metadata.lengths_B,
            pages_BP=attn_metadata.pages_BP,
            most_queries=attn_metadata.most_queries,
            most_keys=attn_metadata.most_keys,
            ssmax_scale_H=None if self.ssmax is None else self.ssmax.scale,
            ssmax_scales_prior=self.ssmax_scales_prior,
            longest_key_G=self.longest_key_G,
        )
        return output

    def do_kv_cache_update(
        self, layer: nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Stores keys and values ``[T, G, D]`` in their slots, and remembers how long the longest key is.

        A token whose slot is negative pads the batch, and is dropped.
        """
        tokens = slot_mapping.shape[0]
        if not tokens:
            return
        key, value = key[:tokens].to(kv_cache.dtype), value[:tokens].to(kv_cache.dtype)
        norm_TG = torch.linalg.vector_norm(key, dim=-1, dtype=torch.float32)
        norm_TG.masked_fill_((slot_mapping < 0)[:, None], 0.0)
        torch.maximum(self.longest_key_G, norm_TG.amax(dim=0), out=self.longest_key_G)
        k_cache_PSGD, v_cache_PSGD = self._views(kv_cache)
        if kv_cache.device.type == "cpu":
            kept = slot_mapping >= 0
            slots = slot_mapping[kept]
            pages, slots = slots // k_cache_PSGD.shape[1], slots % k_cache_PSGD.shape[1]
            k_cache_PSGD[pages, slots] = key[kept]
            v_cache_PSGD[pages, slots] = value[kept]
            return
        # Dropping tokens by a mask would wait for the device.
        from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

        triton_reshape_and_cache_flash(
            key,
            value,
            k_cache_PSGD,
            v_cache_PSGD,
            slot_mapping,
            self.kv_cache_dtype,
            layer._k_scale,
            layer._v_scale,
        )

    def _views(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[P, S, G, D]``."""
        k_cache_PSGD, v_cache_PSGD = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        return k_cache_PSGD, v_cache_PSGD


def implementation(head_size: int) -> Callable[..., None]:
    """`paged_attention` of the platform: plain PyTorch on a CPU, else the kernel; `CHOICE` overrides.

    Raises:
        BadInput: the variable names neither, or there is no kernel for heads of this size.
    """
    chosen = os.environ.get(CHOICE) or ("torch" if current_platform.is_cpu() else "triton")
    # Imported where it is used: triton need not be installed.
    if chosen == "torch":
        from bamctl.attention.paged.cpu import paged_attention as in_torch

        return in_torch
    if chosen == "triton":
        from bamctl.attention.paged.triton import paged_attention as in_triton
        from bamctl.attention.triton import LARGEST_HEAD

        if head_size > LARGEST_HEAD:
            raise BadInput(f"heads of {head_size}: the vllm backend's kernel has up to {LARGEST_HEAD}")
        return in_triton
    raise BadInput(f"{CHOICE} is {chosen!r}; torch or triton expected")
