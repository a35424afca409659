"""Attention over a part of the keys, and how two parts become one.

Shapes: B batch, H heads, C queries, N keys, D head size.

Softmax over all keys is the mean of the softmaxes over parts of them, weighted by their masses: with
o = Σ e^l v / Σ e^l and L = ln Σ e^l of each part, L = ln(e^L₁ + e^L₂) and o = e^(L₁-L) o₁ + e^(L₂-L) o₂
(Milakov and Gimelshein, arXiv 1805.02867).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """What some queries see of some keys."""

    out_BHCD: Tensor
    """The values' mean under the softmax over these keys."""
    lse_BHC: Tensor
    """ln Σ e^logit over these keys."""

    def copy_(self, other: "Partial") -> None:
        """Becomes the other, in place."""
        self.out_BHCD.copy_(other.out_BHCD)
        self.lse_BHC.copy_(other.lse_BHC)

    def merge_(self, other: "Partial") -> None:
        """Adds other keys of the same queries, in place."""
        # Not e^(L₁-L) and e^(L₂-L): with the rounding of L these do not add up to 1.
        weight_BHC = torch.sigmoid(other.lse_BHC - self.lse_BHC)
        self.out_BHCD.lerp_(other.out_BHCD, weight_BHC[..., None])
        self.lse_BHC.copy_(torch.logaddexp(self.lse_BHC, other.lse_BHC))


def attend(q_BHCD: Tensor, k_BHND: Tensor, v_BHND: Tensor, bias_1HCN: Tensor | None = None) -> Partial:
    """softmax(q kᵀ + bias) v, every query seeing at least one key; q carries all factors, 1/√D included."""
    if q_BHCD.device.type == "cpu":
        return Partial(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q_BHCD, k_BHND, v_BHND, attn_mask=bias_1HCN, scale=1.0
            )
        )
    logits_BHCN = q_BHCD @ k_BHND.transpose(-1, -2)
    if bias_1HCN is not None:
        logits_BHCN += bias_1HCN
    lse_BHC = logits_BHCN.logsumexp(dim=-1)
    return Partial((logits_BHCN - lse_BHC[..., None]).exp_() @ v_BHND, lse_BHC)


def attend_causal(q_BHCD: Tensor, k_BHCD: Tensor, v_BHCD: Tensor) -> Partial:
    """softmax(q kᵀ) v on the CPU, every query seeing the keys up to its own."""
    return Partial(
        *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHCD, k_BHCD, v_BHCD, is_causal=True, scale=1.0
        )
    )
