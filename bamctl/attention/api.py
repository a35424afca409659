"""The one way into attention: checks the shapes, chooses the implementation.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), C queries, N keys, D head size.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bamctl.attention import cpu, reference
from bamctl.attention.priors import Prior


def _triton_attention(*args: Any, **kwargs: Any) -> Tensor:
    # Imported where it is used: triton need not be installed, and takes a while to import.
    from bamctl.attention import triton

    return triton.attention(*args, **kwargs)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "reference": reference.attention,
    "cpu": cpu.attention,
    "triton": _triton_attention,
}


def attention(
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    *,
    prior: Prior,
    query_start: int,
    key_start: int = 0,
    ssmax_scale_H: Tensor | None = None,
    ssmax_scales_prior: bool = True,
    longest_key_G: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Causal attention under a prior over positions; `bamctl.attention.reference` defines what it computes.

    Args:
        q_BHCD: queries at absolute positions query_start … query_start + C - 1.
        k_BGND: keys at absolute positions key_start … key_start + N - 1.
        v_BGND: values of the same positions.
        prior: over relative positions, H heads.
        query_start: at least `key_start`, so that every query sees a key.
        key_start: above 0, earlier keys are left out, though SSMax counts them.
        ssmax_scale_H: s_h of Scalable Softmax; None for the plain softmax.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        longest_key_G: no key of a head has a larger Euclidean norm. Where it is known, the keys need not all
            be read to find out which of them matter; where it is not, it is measured.
        implementation: one of `IMPLEMENTATIONS`, or ``auto``: ``triton`` on a GPU where there is a kernel for
            the call, else ``cpu``, which is plain PyTorch and runs on any device.

    Returns:
        ``[B, H, C, D]`` in the dtype of `q_BHCD`. The arithmetic is fp32, or float64 for float64 inputs,
        under autocast too.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    batch, heads, queries, head_size = q_BHCD.shape
    groups, keys = k_BGND.shape[1:3]
    if k_BGND.shape != v_BGND.shape or k_BGND.shape != (batch, groups, keys, head_size):
        raise ValueError(
            f"queries {tuple(q_BHCD.shape)}, keys {tuple(k_BGND.shape)} and values {tuple(v_BGND.shape)}"
            " do not fit: [B, H, C, D], [B, G, N, D], [B, G, N, D] expected"
        )
    if heads % groups or prior.heads != heads:
        raise ValueError(f"{heads} query heads, {groups} key-value heads and a prior of {prior.heads} heads")
    if not 0 <= key_start <= query_start:
        raise ValueError(f"queries from {query_start} would see no key of those from {key_start}")
    if not queries or not keys:
        raise ValueError(f"attention of {queries} queries over {keys} keys is not defined")
    if implementation == "auto":
        implementation = "triton" if _triton_suits(q_BHCD, k_BGND, v_BGND, prior) else "cpu"
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"no implementation {implementation!r}; there are {', '.join(IMPLEMENTATIONS)}")
    with torch.autocast(q_BHCD.device.type, enabled=False):
        return IMPLEMENTATIONS[implementation](
            q_BHCD,
            k_BGND,
            v_BGND,
            prior=prior,
            query_start=query_start,
            key_start=key_start,
            ssmax_scale_H=ssmax_scale_H,
            ssmax_scales_prior=ssmax_scales_prior,
            longest_key_G=longest_key_G,
        )


def _triton_suits(q_BHCD: Tensor, k_BGND: Tensor, v_BGND: Tensor, prior: Prior) -> bool:
    if q_BHCD.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    from bamctl.attention import triton

    return triton.why_not(q_BHCD, k_BGND, v_BGND, prior) is None
