"""The definition: Bayesian attention as the paper has it, in any dtype, with no thought of speed.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), C queries, N keys, D head size.

For a query at absolute position i and a key at j ≤ i (arXiv 2505.22842, arXiv 2501.19399):

    content  c_ij = q_i · k_j / √D
    prior    b_ij = ln p(j - i) up to a constant
    logit    l_ij = t_i · (c_ij + b_ij)     with t_i = s_h · ln(i + 1) under SSMax, else 1
             l_ij = t_i · c_ij + b_ij       where SSMax leaves the prior alone
    output   o_i  = Σ_j softmax_j(l_ij) v_j

Every other implementation is tested against this one.
"""

import math

import torch
from torch import Tensor

from bamctl.attention.priors import Prior
from bamctl.attention.ssmax import ssmax_factor


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
) -> Tensor:
    """Causal attention under a prior. Arithmetic is float64 for float64 inputs, else fp32.

    Args:
        q_BHCD: queries at absolute positions query_start … query_start + C - 1.
        k_BGND: keys at absolute positions key_start … key_start + N - 1.
        v_BGND: values of the same positions.
        prior: over relative positions, one a head.
        query_start: at least `key_start`, so that every query sees a key.
        key_start: above 0, earlier keys are left out, though SSMax counts them.
        ssmax_scale_H: s_h; None for the plain softmax.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        longest_key_G: not needed here, where every key is looked at.

    Returns:
        ``[B, H, C, D]`` in the dtype of `q_BHCD`.
    """
    work = torch.float64 if q_BHCD.dtype == torch.float64 else torch.float32
    heads, queries, head_size = q_BHCD.shape[1:]
    groups, keys = k_BGND.shape[1:3]
    k_BHND = k_BGND.to(work).repeat_interleave(heads // groups, dim=1)
    v_BHND = v_BGND.to(work).repeat_interleave(heads // groups, dim=1)

    query_positions_C = torch.arange(query_start, query_start + queries, device=q_BHCD.device)
    key_positions_N = torch.arange(key_start, key_start + keys, device=q_BHCD.device)
    rel_CN = key_positions_N - query_positions_C[:, None]

    content_BHCN = q_BHCD.to(work) @ k_BHND.transpose(-1, -2) / math.sqrt(head_size)
    bias_HCN = prior.bias(rel_CN).to(work)
    if ssmax_scale_H is None:
        logits_BHCN = content_BHCN + bias_HCN
    else:
        t_HC1 = ssmax_factor(ssmax_scale_H.to(work), query_positions_C)[..., None]
        if ssmax_scales_prior:
            logits_BHCN = t_HC1 * (content_BHCN + bias_HCN)
        else:
            logits_BHCN = t_HC1 * content_BHCN + bias_HCN
    # Masked last: t may be 0 (0 · -inf is not a number) or negative (-inf would turn round).
    logits_BHCN = logits_BHCN.masked_fill(rel_CN > 0, -math.inf)
    return (logits_BHCN.softmax(dim=-1) @ v_BHND).to(q_BHCD.dtype)
