"""Attention with gradients on the CPU: chunks of queries, computed again in the backward pass.

Shapes: B batch, H query heads, G key-value heads, Q queries, C queries of one chunk, N keys, D head size,
L = N + C - 1 relative positions.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bamctl.attention.cpu.exact import is_ahead, toeplitz_view
from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.ssmax import ssmax_factor

CHUNK_BYTES = 2**30
"""The most that the scores of one chunk, kept for the backward pass, may take."""

LONGEST_CHUNK = 512
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

    Memory beyond inputs and output: one chunk's scores (`CHUNK_BYTES`), the bias vector of H · (N + Q)
    values, and copies of k and v where they are of a half type or shared by several heads. Where there is
    more than one chunk each is computed again in the backward pass, so that the bound holds there too.
    """
    work = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
    batch, heads, queries, size = q_BHQD.shape
    groups, keys = k_BGND.shape[1:3]
    k_BHND, v_BHND = (x.to(work).repeat_interleave(heads // groups, dim=1) for x in (k_BGND, v_BGND))
    scaled_q_BHQD = q_BHQD.to(work) / math.sqrt(size)
    t_HQ = None
    if ssmax_scale_H is not None:
        positions_Q = torch.arange(query_start, query_start + queries, device=q_BHQD.device)
        t_HQ = ssmax_factor(ssmax_scale_H.to(work), positions_Q)
        scaled_q_BHQD = scaled_q_BHQD * t_HQ[..., None]
        if not ssmax_scales_prior or isinstance(prior, Uniform):
            t_HQ = None
    # The bias at every relative position at which some query sees a key, from the farthest back on.
    farthest = key_start - (query_start + queries - 1)
    nearest = min(key_start + keys - 1 - query_start, 0)
    u_HL = prior.bias(torch.arange(farthest, nearest + 1, device=q_BHQD.device)).to(work)

    longest = CHUNK_BYTES // (2 * batch * heads * keys * work.itemsize)
    longest = max(1, min(LONGEST_CHUNK, longest))
    chunks = []
    for start in range(0, queries, longest):
        position, count = query_start + start, min(longest, queries - start)
        visible = min(keys, position + count - key_start)
        ahead = max(key_start + visible - 1 - position, 0)
        first_rel = key_start - (position + count - 1) - farthest
        last_rel = min(key_start + visible - 1 - position, 0) - farthest
        arguments = (
            scaled_q_BHQD[:, :, start : start + count].flip(2),
            k_BHND[:, :, :visible],
            v_BHND[:, :, :visible],
            F.pad(u_HL[:, first_rel : last_rel + 1], (0, ahead)),
            None if t_HQ is None else t_HQ[:, start : start + count].flip(1),
            ahead,
        )
        if count < queries:
            chunk_BHCD: Tensor = checkpoint(_attend, *arguments, use_reentrant=False)
        else:
            chunk_BHCD = _attend(*arguments)
        chunks.append(chunk_BHCD.flip(2))
    return torch.cat(chunks, dim=2).to(q_BHQD.dtype)


def _attend(
    q_BHCD: Tensor, k_BHND: Tensor, v_BHND: Tensor, w_HL: Tensor, t_HC: Tensor | None, ahead: int
) -> Tensor:
    """One chunk, its queries in reverse order, `ahead` of the keys behind its first query."""
    queries = q_BHCD.shape[2]
    bias_HCN: Tensor = _Toeplitz.apply(w_HL, queries)
    if t_HC is not None:
        bias_HCN = bias_HCN * t_HC[..., None]
    # Written out: the fused kernel has no gradient for its mask.
    logits_BHCN = q_BHCD @ k_BHND.transpose(-1, -2) + bias_HCN
    if ahead:
        logits_BHCN[..., -ahead:].masked_fill_(is_ahead(queries, ahead, w_HL.device), -math.inf)
    out_BHCD: Tensor = logits_BHCN.softmax(dim=-1) @ v_BHND
    return out_BHCD


class _Toeplitz(torch.autograd.Function):
    """`toeplitz_view` with a fast gradient: the sum along the diagonals."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, w_HL: Tensor, rows: int) -> Tensor:
        return toeplitz_view(w_HL.contiguous(), rows).contiguous()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad_HCN: Tensor) -> tuple[Tensor, None]:
        heads, rows, columns = grad_HCN.shape
        offsets = rows + columns - 1
        # Rows padded to one more than L and read as rows of L: each is then shifted by its index.
        skewed = F.pad(grad_HCN, (0, offsets + 1 - columns)).view(heads, -1)[:, : rows * offsets]
        return skewed.view(heads, rows, offsets).sum(dim=1), None
