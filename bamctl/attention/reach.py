"""How far back a query has to look: keys that a prior makes weightless need not be computed.

Shapes: B batch, H query heads, G key-value heads, T tiles of consecutive queries.

Take a tile of C queries at positions p … p + C - 1, the first of them with n_p visible keys, and a head with
logits l_ij = t_i · (c_ij + b_ij), t_i > 0. Let

    U     ≥ |c_ij|                       from ‖q‖ · ‖k‖ / √D (Cauchy-Schwarz)
    near  = max of b over 0 … n_p - 1 tokens back: each of these queries sees a key that has it
    far   = max of b at a distance and beyond

Then the largest logit of row i is at least t_i · (near - U), and a key that far away has at most
t_i · (far + U). With n keys in all and tolerance ε, if

    t_i · (near - far - 2U) ≥ ln n - ln ε        for every i of the tile,

each such key's weight is at most ε/n of the row's largest, and all of them together at most ε of the row's
mass: the tolerance is a total, whatever number of tiles is left out. The bracket is then positive, so it is
enough to ask it of the smallest t_i, the first query's. Where SSMax leaves the prior alone,
l_ij = t_i · c_ij + b_ij and the condition is near - far - 2 · t_i · U ≥ ln n - ln ε for the largest t_i, the
last query's. A head with t_i ≤ 0 turns the order of logits round, and looks at everything.

Nothing is assumed of the prior's form beyond `Prior.highest`; far never falls as the distance shrinks, so a
search finds the first key that matters in time logarithmic in the distance, without a table of the bias.

ε is half a unit of the arithmetic's precision: 2⁻²⁴ for fp32, 2⁻⁵³ for fp64.
"""

import math

import torch
from torch import Tensor

from bamctl.attention.priors import Prior

_FARTHEST_BITS = 41
"""Distances below 2 to this power are searched: any on a device whose positions are not to be read back."""

_BRANCHES_BITS = 6
"""Every round of the search compares 2 to this power - 1 distances at once: rounds are what takes time."""


def first_keys(
    prior: Prior,
    *,
    content_H: Tensor,
    positions_T: Tensor,
    queries: int,
    key_start: int,
    scale_H: Tensor | None,
    scales_prior: bool,
    dtype: torch.dtype,
) -> Tensor:
    """The first key that each tile of queries has to look at, as an absolute position ``[H, T]``, int64.

    Only for tiles whose queries all see their own key. On a GPU nothing is waited for.

    Args:
        prior: of H heads.
        content_H: U of each head, see `content_bound`.
        positions_T: int64, absolute, of each tile's first query.
        queries: C of each tile; one that holds fewer may look farther than it would have to.
        key_start: position of the first key that there is.
        scale_H: s_h of SSMax, or None.
        scales_prior: whether SSMax multiplies the prior too.
        dtype: of the arithmetic, which sets the tolerance.
    """
    device, eps = positions_T.device, torch.finfo(dtype).eps
    visible_T = positions_T + 1 - key_start
    near_HT = prior.highest(1 - visible_T[None], torch.zeros_like(visible_T)[None]).to(dtype)
    needed_T = (visible_T + queries).to(dtype).log() - math.log(eps / 2)
    content_H1 = content_H.to(dtype)[:, None]
    all_HT = torch.zeros_like(near_HT, dtype=torch.bool)
    if scale_H is None:
        limit_HT = near_HT - 2 * content_H1 - needed_T
    else:
        at_T = positions_T if scales_prior else positions_T + (queries - 1)
        t_HT = scale_H.to(dtype)[:, None] * torch.log1p(at_T.double()).to(dtype)
        all_HT = t_HT <= 0
        if scales_prior:
            limit_HT = near_HT - 2 * content_H1 - needed_T / t_HT
        else:
            limit_HT = near_HT - 2 * t_HT * content_H1 - needed_T
    # Two computations of one bias may differ in the last bits; where |near| is huge this covers it too that
    # the rounded limit may be near itself.
    limit_HT = limit_HT - 4 * eps * (near_HT.abs() + limit_HT.abs())

    # Between `low`, where no key matters that far back or farther, and `high`, where one does.
    farthest_T = key_start - (positions_T + (queries - 1))
    high_HT = torch.zeros_like(near_HT, dtype=torch.int64)
    low_HT = (farthest_T - 1).expand_as(high_HT)
    bits = _FARTHEST_BITS
    if device.type == "cpu":
        bits = int((-farthest_T).max()).bit_length() + 1
    branches_K = torch.arange(1, 2**_BRANCHES_BITS, device=device)
    for _ in range(math.ceil(bits / _BRANCHES_BITS)):
        gap_HT1 = (high_HT - low_HT)[..., None]
        rel_HTK = low_HT[..., None] + (gap_HT1 * branches_K) // 2**_BRANCHES_BITS
        rel_HTK = torch.maximum(rel_HTK, farthest_T[:, None])
        far_HTK = prior.highest(farthest_T[None, :, None].expand(1, -1, 1), rel_HTK).to(dtype)
        matters_HTK = far_HTK >= limit_HT[..., None]
        high_HT = torch.minimum(high_HT, rel_HTK.where(matters_HTK, 0).amin(dim=-1))
        low_HT = torch.maximum(low_HT, rel_HTK.where(~matters_HTK, low_HT[..., None]).amax(dim=-1))
    all_HT = all_HT | ~limit_HT.isfinite()
    return (positions_T + high_HT).clamp(min=key_start).where(~all_HT, key_start)


def content_bound(q_BHCD: Tensor, k_BGND: Tensor, longest_key_G: Tensor | None = None) -> Tensor:
    """U ``[H]``, in at least fp32: no content score q · k / √D of this call is larger in magnitude.

    Rounding may put a computed score above the exact product of norms, hence the thousandth on top.

    Args:
        longest_key_G: no key is longer than this; measured where it is not known.
    """
    heads, groups = q_BHCD.shape[1], k_BGND.shape[1]
    if longest_key_G is None:
        longest_key_G = longest_vector(k_BGND)
    longest_key_H = longest_key_G.repeat_interleave(heads // groups)
    bound_H: Tensor = longest_vector(q_BHCD) * longest_key_H * (1.001 / math.sqrt(q_BHCD.shape[-1]))
    return bound_H


def longest_vector(x_BHND: Tensor) -> Tensor:
    """The largest Euclidean norm ``[H]`` of the vectors of each head, in at least fp32."""
    work = torch.float64 if x_BHND.dtype == torch.float64 else torch.float32
    longest_H: Tensor = torch.linalg.vector_norm(x_BHND, dim=-1, dtype=work).amax(dim=(0, 2))
    return longest_H
