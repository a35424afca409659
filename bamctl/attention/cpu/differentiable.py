"""Attention with gradients on the CPU: chunks of queries, computed again in the backward pass.

Shapes: B batch, H query heads, G key-value heads, Q queries, C queries of one chunk, N keys, D head size,
L = N + C - 1 relative positions.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bamctl.attention.cpu.exact import toeplitz_view
from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.ssmax import ssmax_factor

CHUNK_BYTES = 2**30
"""The most that scores kept for the backward pass may take."""

LONGEST_CHUNK = 96
"""A longer chunk wastes more above the causal diagonal than it gains in matrix products."""


def attention(
    q_BHQD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    *,
    prior: Prior,
    query_start: int,
    key_start: int,
    ssmax_scale_H: Tensor | None,
    ssmax_scales_prior: bool,
) -> Tensor:
    """`bamctl.attention.reference.attention`, differentiable in everything that is learned.

    Memory beyond inputs and output: scores of `CHUNK_BYTES`, the bias vector of H · (N + Q) values, and
    copies of k and v where they are of a half type or shared by several heads. Where all scores together
    take more, each chunk is computed again in the backward pass, so that the bound holds there too. A bias
    that nothing is learned of needs no scores: the fused kernel has the gradients.
    """
    work = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
    batch, heads, queries, size = q_BHQD.shape
    groups, keys = k_BGND.shape[1:3]
    k_BHND, v_BHND = k_BGND.to(work), v_BGND.to(work)
    if heads > groups:
        k_BHND, v_BHND = (x.repeat_interleave(heads // groups, dim=1) for x in (k_BHND, v_BHND))
    scaled_q_BHQD = q_BHQD.to(work) / math.sqrt(size)
    t_HQ = None
    if ssmax_scale_H is not None:
        positions_Q = torch.arange(query_start, query_start + queries, device=q_BHQD.device)
        t_HQ = ssmax_factor(ssmax_scale_H.to(work), positions_Q)
        scaled_q_BHQD = scaled_q_BHQD * t_HQ[..., None]
        if not ssmax_scales_prior or isinstance(prior, Uniform):
            t_HQ = None
    if isinstance(prior, Uniform) and queries == keys and query_start == key_start:
        return F.scaled_dot_product_attention(scaled_q_BHQD, k_BHND, v_BHND, is_causal=True, scale=1.0).to(
            q_BHQD.dtype
        )
    # The bias at every relative position at which some query sees a key, from the farthest back on.
    farthest = key_start - (query_start + queries - 1)
    nearest = min(key_start + keys - 1 - query_start, 0)
    u_HL = prior.bias(torch.arange(farthest, nearest + 1, device=q_BHQD.device)).to(work)

    longest = CHUNK_BYTES // (2 * batch * heads * keys * work.itemsize)
    again = longest < queries
    longest = max(1, min(LONGEST_CHUNK, longest))
    attend = _attend if t_HQ is not None or u_HL.requires_grad else _attend_fused
    # Contiguous once: a product of four dimensions would copy every slice that it is given.
    scaled_q_BHQD, k_BHND, v_BHND = (x.contiguous() for x in (scaled_q_BHQD, k_BHND, v_BHND))
    chunks = []
    for start in range(0, queries, longest):
        position, count = query_start + start, min(longest, queries - start)
        visible = min(keys, position + count - key_start)
        ahead = max(key_start + visible - 1 - position, 0)
        first_rel = key_start - (position + count - 1) - farthest
        last_rel = min(key_start + visible - 1 - position, 0) - farthest
        arguments = (
            scaled_q_BHQD[:, :, start : start + count],
            k_BHND[:, :, :visible],
            v_BHND[:, :, :visible],
            F.pad(u_HL[:, first_rel : last_rel + 1], (0, ahead)),
            None if t_HQ is None else t_HQ[:, start : start + count],
            ahead,
        )
        if again and attend is _attend:
            chunk_BHCD: Tensor = checkpoint(_attend, *arguments, use_reentrant=False)
        else:
            chunk_BHCD = attend(*arguments)
        chunks.append(chunk_BHCD)
    return torch.cat(chunks, dim=2).to(q_BHQD.dtype)


def _attend(
    q_BHCD: Tensor, k_BHND: Tensor, v_BHND: Tensor, w_HL: Tensor, t_HC: Tensor | None, ahead: int
) -> Tensor:
    """One chunk; `ahead` of the keys lie behind its first query."""
    batch, queries = q_BHCD.shape[0], q_BHCD.shape[2]
    bias_HCN: Tensor = _Toeplitz.apply(w_HL, queries)
    if t_HC is not None:
        bias_HCN = bias_HCN * t_HC[..., None]
    if ahead:
        bias_HCN = bias_HCN.masked_fill(_is_ahead(queries, ahead, bias_HCN), -math.inf)
    # Written out: the fused kernel has no gradient for its mask.
    q_BCD, k_BND, v_BND = (x.flatten(0, 1) for x in (q_BHCD, k_BHND, v_BHND))
    logits_BHCN = torch.bmm(q_BCD, k_BND.transpose(1, 2)).view(batch, *bias_HCN.shape).add_(bias_HCN)
    out_BCD = torch.bmm(logits_BHCN.softmax(dim=-1).flatten(0, 1), v_BND)
    return out_BCD.view(q_BHCD.shape)


def _attend_fused(
    q_BHCD: Tensor, k_BHND: Tensor, v_BHND: Tensor, w_HL: Tensor, t_HC: Tensor | None, ahead: int
) -> Tensor:
    """The same where the bias has no gradient and no factor."""
    bias_HCN = _toeplitz(w_HL, q_BHCD.shape[2])
    if ahead:
        bias_HCN.masked_fill_(_is_ahead(q_BHCD.shape[2], ahead, bias_HCN), -math.inf)
    return F.scaled_dot_product_attention(q_BHCD, k_BHND, v_BHND, attn_mask=bias_HCN[None], scale=1.0)


def _is_ahead(queries: int, ahead: int, like_HCN: Tensor) -> Tensor:
    """Which keys lie ahead of each query, ``[C, N]``, if the last `ahead` lie behind the first query."""
    keys = like_HCN.shape[2]
    mask_CN = torch.ones(queries, keys, dtype=torch.bool, device=like_HCN.device)
    return mask_CN.triu(keys - ahead)


def _toeplitz(w_HL: Tensor, rows: int) -> Tensor:
    """``[H, rows, L - rows + 1]``: the last row is w from its start, each one above it is shifted by one."""
    return toeplitz_view(w_HL.contiguous(), rows).flip(1)


class _Toeplitz(torch.autograd.Function):
    """`_toeplitz` with a fast gradient: the sum along the diagonals."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, w_HL: Tensor, rows: int) -> Tensor:
        return _toeplitz(w_HL, rows)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad_HCN: Tensor) -> tuple[Tensor, None]:
        heads, rows, columns = grad_HCN.shape
        offsets = rows + columns - 1
        # Laid out in rows of L - 1 and read in rows of L: the last row stays, each above it is shifted.
        skewed = grad_HCN.new_zeros(heads, rows, offsets)
        skewed.as_strided(grad_HCN.shape, (rows * offsets, offsets - 1, 1), rows - 1).copy_(grad_HCN)
        return skewed.sum(dim=1), None
