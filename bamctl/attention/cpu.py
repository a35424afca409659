"""Attention under a prior on the CPU, in bounded memory.

Shapes: B batch, H query heads, G key-value heads, C queries of one chunk, N keys, D head size, L = N + C - 1
relative positions.

A bias that depends on j - i alone is a Toeplitz matrix, and one vector w over the relative positions holds
all of it. With the queries of a chunk in reverse order, row y of the matrix is w shifted by y, so that
``as_strided(w, (C, N), (1, 1))`` *is* the matrix, causal -inf included, without a copy. Queries are taken
in chunks over all the keys they see, each small enough that what it must materialise stays bounded.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.ssmax import ssmax_factor

CHUNK_BYTES = 16 * 2**20
"""The most that the bias of one chunk may take: what stays in the cache is several times faster."""

DIFFERENTIABLE_CHUNK_BYTES = 2**30
"""The most that the scores of one chunk, kept for the backward pass, may take."""

LONGEST_CHUNK = 512
"""A longer chunk wastes more above the causal diagonal than it gains in matrix products."""


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
    longest_chunk: int = LONGEST_CHUNK,
) -> Tensor:
    """`bamctl.attention.reference.attention`, differentiable in everything that is learned.

    Memory beyond inputs and output: one chunk's bias or scores (the constants above), the bias vector of
    H · (N + C) values, and copies of k and v where they are of a half type or shared by several heads.
    With gradients, chunks are computed again in the backward pass where there is more than one, so that
    the bound holds there too.
    """
    work = torch.float64 if q_BHCD.dtype == torch.float64 else torch.float32
    batch, heads, queries, _ = q_BHCD.shape
    groups, keys = k_BGND.shape[1:3]
    differentiable = torch.is_grad_enabled() and any(
        x.requires_grad for x in (q_BHCD, k_BGND, v_BGND, ssmax_scale_H, *prior.parameters()) if x is not None
    )
    k_BHND, v_BHND = (x.to(work).repeat_interleave(heads // groups, dim=1) for x in (k_BGND, v_BGND))
    scale_H = None if ssmax_scale_H is None else ssmax_scale_H.to(work)
    bias_is_scaled = scale_H is not None and ssmax_scales_prior and not isinstance(prior, Uniform)

    # The bias at every relative position that is visible to some query, from the farthest back up to 0.
    farthest = key_start - (query_start + queries - 1)
    u_HL = prior.bias(torch.arange(farthest, 1, device=q_BHCD.device)).to(work)

    if differentiable:
        size = DIFFERENTIABLE_CHUNK_BYTES // (2 * batch * heads * keys * work.itemsize)
    elif bias_is_scaled:
        size = CHUNK_BYTES // (heads * keys * work.itemsize)
    else:
        size = queries
    size = max(1, min(longest_chunk, queries, size))

    outputs = []
    for start in range(0, queries, size):
        chunk = _Chunk(
            position=query_start + start,
            queries=min(size, queries - start),
            key_start=key_start,
            keys=keys,
        )
        inputs = (
            q_BHCD[:, :, start : start + chunk.queries].to(work).flip(2),
            k_BHND[:, :, : chunk.visible],
            v_BHND[:, :, : chunk.visible],
            u_HL[:, chunk.first_rel - farthest : min(chunk.last_rel, 0) - farthest + 1],
            scale_H,
        )
        arguments = (*inputs, chunk, bias_is_scaled, differentiable)
        if differentiable and size < queries:
            out_BHCD = checkpoint(_attend, *arguments, use_reentrant=False)
        else:
            out_BHCD = _attend(*arguments)
        outputs.append(out_BHCD.flip(2).to(q_BHCD.dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Which positions one chunk's queries and keys have."""

    position: int
    """Absolute position of the first query."""
    queries: int
    key_start: int
    keys: int

    @property
    def visible(self) -> int:
        """How many keys the last query sees."""
        return min(self.keys, self.position + self.queries - self.key_start)

    @property
    def first_rel(self) -> int:
        """j - i of the last query and the first key: the farthest back."""
        return self.key_start - (self.position + self.queries - 1)

    @property
    def last_rel(self) -> int:
        """j - i of the first query and the last key: above 0 for keys that lie ahead of it."""
        return self.key_start + self.visible - 1 - self.position

    @property
    def ahead(self) -> int:
        """How many of the keys lie ahead of the first query."""
        return max(self.last_rel, 0)

    def positions(self, device: torch.device) -> Tensor:
        """Absolute query positions ``[C]``, in reverse order as everywhere inside a chunk."""
        return torch.arange(self.position + self.queries - 1, self.position - 1, -1, device=device)

    def mask_ahead_(self, scores: Tensor) -> Tensor:
        """Puts -inf into ``[..., C, N]`` where a key lies ahead of its query."""
        if self.ahead:
            positions_C1 = self.positions(scores.device)[:, None]
            ahead_A = torch.arange(self.position + 1, self.position + self.ahead + 1, device=scores.device)
            scores[..., -self.ahead :].masked_fill_(ahead_A > positions_C1, -math.inf)
        return scores


def _attend(
    q_BHCD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    w_HL: Tensor,
    scale_H: Tensor | None,
    chunk: _Chunk,
    bias_is_scaled: bool,
    differentiable: bool,
) -> Tensor:
    """One chunk. SSMax's factor goes into the queries and, where it multiplies the prior, into the bias."""
    if scale_H is not None:
        t_HC1 = ssmax_factor(scale_H, chunk.positions(q_BHCD.device))[..., None]
        q_BHCD = q_BHCD * t_HC1
    if not differentiable and not bias_is_scaled:
        bias_HCN = _toeplitz_view(F.pad(w_HL, (0, chunk.ahead), value=-math.inf), chunk.queries)
        return F.scaled_dot_product_attention(q_BHCD, k_BHND, v_BHND, attn_mask=bias_HCN[None])
    w_HL = F.pad(w_HL, (0, chunk.ahead))
    bias_HCN = _Toeplitz.apply(w_HL, chunk.queries) if differentiable else _toeplitz_view(w_HL, chunk.queries)
    if bias_is_scaled:  # t_i · b_ij is no Toeplitz matrix any more
        bias_HCN = bias_HCN * t_HC1
    bias_HCN = chunk.mask_ahead_(bias_HCN)
    if not differentiable:
        return F.scaled_dot_product_attention(q_BHCD, k_BHND, v_BHND, attn_mask=bias_HCN[None])
    # Written out: the fused kernel has no gradient for its mask.
    scores_BHCN = (q_BHCD / math.sqrt(q_BHCD.shape[-1])) @ k_BHND.transpose(-1, -2)
    return (scores_BHCN + bias_HCN).softmax(dim=-1) @ v_BHND


def _toeplitz_view(w_HL: Tensor, rows: int) -> Tensor:
    """``[H, rows, L - rows + 1]`` over the memory of `w_HL`: row y is w shifted by y."""
    heads, offsets = w_HL.shape
    return w_HL.as_strided((heads, rows, offsets - rows + 1), (offsets, 1, 1))


class _Toeplitz(torch.autograd.Function):
    """`_toeplitz_view` with a fast gradient: the sum along the diagonals."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, w_HL: Tensor, rows: int) -> Tensor:
        return _toeplitz_view(w_HL.contiguous(), rows).contiguous()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad_HCN: Tensor) -> tuple[Tensor, None]:
        heads, rows, columns = grad_HCN.shape
        offsets = rows + columns - 1
        # Rows padded to one more than L and read as rows of L: each is then shifted by its index.
        skewed = F.pad(grad_HCN, (0, offsets + 1 - columns)).view(heads, -1)[:, : rows * offsets]
        return skewed.view(heads, rows, offsets).sum(dim=1), None
