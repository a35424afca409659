"""Attention under a prior on the CPU, in bounded memory.

Shapes: B batch, H query heads, G key-value heads, C queries of one chunk, N keys, D head size, L = N + C - 1
relative positions.

A bias that depends on j - i alone is a Toeplitz matrix, and one vector w over the relative positions holds
all of it. With the queries of a chunk in reverse order, row y of the matrix is w shifted by y, so that
``as_strided(w, (C, N), (1, 1))`` *is* the matrix, causal -inf included, without a copy. Queries are taken
in chunks over the keys they see, each small enough that what it must materialise stays bounded. A head
whose prior makes far keys weightless looks back only as far as `bamctl.attention.reach` says it must.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.reach import Reach, content_bound
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

    # The bias at every relative position at which some query sees a key, from the farthest back on.
    farthest = key_start - (query_start + queries - 1)
    nearest = min(key_start + keys - 1 - query_start, 0)
    u_HL = prior.bias(torch.arange(farthest, nearest + 1, device=q_BHCD.device)).to(work)

    def attend(heads_: slice, chunk: _Chunk) -> Tensor:
        first_key, start = chunk.key_start - key_start, chunk.position - query_start
        arguments = (
            q_BHCD[:, heads_, start : start + chunk.queries].to(work).flip(2),
            k_BHND[:, heads_, first_key : first_key + chunk.visible],
            v_BHND[:, heads_, first_key : first_key + chunk.visible],
            u_HL[heads_, chunk.first_rel - farthest : min(chunk.last_rel, 0) - farthest + 1],
            None if scale_H is None else scale_H[heads_],
            chunk,
            bias_is_scaled,
            differentiable,
        )
        if differentiable and chunk.queries < queries:
            out_BHCD: Tensor = checkpoint(_attend, *arguments, use_reentrant=False)
        else:
            out_BHCD = _attend(*arguments)
        return out_BHCD.flip(2).to(q_BHCD.dtype)

    everything = _Chunk(position=query_start, queries=queries, key_start=key_start, keys=keys)
    if differentiable:
        size = DIFFERENTIABLE_CHUNK_BYTES // (2 * batch * heads * keys * work.itemsize)
        chunks = everything.split(min(longest_chunk, size))
        return torch.cat([attend(slice(None), chunk) for chunk in chunks], dim=2)

    bias_is_view = not bias_is_scaled and q_BHCD.device.type == "cpu"
    bytes_a_score = 0 if bias_is_view else work.itemsize
    out_BHCD = torch.empty_like(q_BHCD)
    for heads_, reach in _groups(
        q_BHCD, k_BHND, u_HL, scale_H, ssmax_scales_prior, everything, longest_chunk
    ):
        count = len(range(heads)[heads_])
        start = 0
        while start < queries:
            position = query_start + start
            longest = _Chunk(
                position=position,
                queries=min(longest_chunk, queries - start),
                key_start=key_start,
                keys=keys,
            )
            if reach is not None and longest.sees_itself:
                rel = reach.first_rel(position, longest.queries, visible=position + 1 - key_start)[0]
                longest = longest.without_keys_before(position + rel)
            size = max(1, CHUNK_BYTES // max(1, count * longest.visible * bytes_a_score))
            chunk = next(iter(longest.split(size)))
            out_BHCD[:, heads_, start : start + chunk.queries] = attend(heads_, chunk)
            start += chunk.queries
    return out_BHCD


def _groups(
    q_BHCD: Tensor,
    k_BHND: Tensor,
    u_HL: Tensor,
    scale_H: Tensor | None,
    ssmax_scales_prior: bool,
    everything: "_Chunk",
    longest_chunk: int,
) -> list[tuple[slice, Reach | None]]:
    """Heads to compute together: those that need not look back all the way one by one, others in runs."""
    heads = q_BHCD.shape[1]
    together: list[tuple[slice, Reach | None]] = [(slice(0, heads), None)]
    if not everything.sees_itself or everything.visible <= longest_chunk:
        return together
    content_H = content_bound(q_BHCD, k_BHND)
    last = everything.position + everything.queries - 1

    def reach_of(heads_: slice) -> Reach:
        return Reach(
            u_HL[heads_],
            content_H[heads_],
            None if scale_H is None else scale_H[heads_],
            scales_prior=ssmax_scales_prior,
        )

    rels = reach_of(slice(0, heads)).first_rel(last, 1, visible=everything.visible)
    local = [-rel < everything.visible // 2 for rel in rels]
    groups: list[tuple[slice, Reach | None]] = []
    for is_local, run in itertools.groupby(range(heads), key=local.__getitem__):
        members = list(run)
        if is_local:
            groups += [(slice(h, h + 1), reach_of(slice(h, h + 1))) for h in members]
        else:
            groups.append((slice(members[0], members[-1] + 1), None))
    return groups


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Which positions one chunk's queries and keys have."""

    position: int
    """Absolute position of the first query."""
    queries: int
    key_start: int
    keys: int

    @property
    def sees_itself(self) -> bool:
        """Whether every query's own key is among the keys."""
        return self.position + self.queries - self.key_start <= self.keys

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

    def split(self, size: int) -> Iterator["_Chunk"]:
        """The same queries, at most `size` at a time."""
        size = max(1, size)
        for start in range(0, self.queries, size):
            yield replace(self, position=self.position + start, queries=min(size, self.queries - start))

    def without_keys_before(self, position: int) -> "_Chunk":
        """The same queries over the keys from an absolute position on."""
        key_start = max(self.key_start, position)
        return replace(self, key_start=key_start, keys=self.keys - (key_start - self.key_start))

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
        if bias_HCN.device.type != "cpu":  # kernels elsewhere want aligned rows, not shifted ones
            bias_HCN = bias_HCN.contiguous()
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
