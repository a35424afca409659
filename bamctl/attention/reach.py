"""How far back a query has to look: keys that a prior makes weightless need not be computed.

Take queries at positions p … p + C - 1, the first of them with n_p visible keys, and a head with logits
l_ij = t_i · (c_ij + b_ij), t_i > 0. Let

    U     ≥ |c_ij|                       from ‖q‖ · ‖k‖ / √D (Cauchy-Schwarz)
    near  = max of b over 0 … n_p - 1 tokens back: each of these queries sees a key that has it
    far   = max of b at a distance and beyond

Then the largest logit of row i is at least t_i · (near - U), and a key that far away has at most
t_i · (far + U). With n keys in all and tolerance ε, if

    t_i · (near - far - 2U) ≥ ln n - ln ε        for every i of the chunk,

each such key's weight is at most ε/n of the row's largest, and all of them together at most ε of the row's
mass. The bracket is then positive, so it is enough to ask it of the smallest t_i. Where SSMax leaves the
prior alone, l_ij = t_i · c_ij + b_ij and the condition is near - far - 2 · t_i · U ≥ ln n - ln ε for the
largest t_i. Nothing is assumed of the prior's form: near and far are read off its values. A head with
t_i ≤ 0 turns the order of logits round, and looks at everything.

ε is half a unit of the arithmetic's precision: 2⁻²⁴ for fp32, 2⁻⁵³ for fp64.
"""

import math

import torch
from torch import Tensor


class Reach:
    """For each head, the farthest relative position that a chunk of queries must look at.

    Args:
        u_HL: the bias at relative positions ``farthest`` … 0.
        content_H: U of each head.
        scale_H: s_h of SSMax, or None.
        scales_prior: whether SSMax multiplies the prior too.
    """

    def __init__(
        self, u_HL: Tensor, content_H: Tensor, scale_H: Tensor | None, *, scales_prior: bool
    ) -> None:
        self._farthest = 1 - u_HL.shape[1]
        self._far_HL = u_HL.cummax(dim=1).values
        self._near_HL = u_HL.flip(1).cummax(dim=1).values  # [:, n - 1] is of the n nearest
        self._content_H = content_H
        self._scale_H = scale_H
        self._scales_prior = scales_prior
        self._ln_tolerance = math.log(torch.finfo(u_HL.dtype).eps / 2)

    def first_rel(self, position: int, queries: int, *, visible: int) -> list[int]:
        """The farthest j - i that must be looked at, one a head; the bias's own farthest for all of it.

        Args:
            position: of the first query.
            queries: C.
            visible: keys that the first query sees, its own among them.
        """
        near_H = self._near_HL[:, min(visible, self._near_HL.shape[1]) - 1]
        needed = math.log(visible + queries) - self._ln_tolerance
        if self._scale_H is None:
            limit_H = near_H - 2 * self._content_H - needed
            looks_at_all_H = torch.zeros_like(near_H, dtype=torch.bool)
        else:
            if self._scales_prior:
                t_H = self._scale_H * math.log(position + 1)
                limit_H = near_H - 2 * self._content_H - needed / t_H
            else:
                t_H = self._scale_H * math.log(position + queries)
                limit_H = near_H - 2 * t_H * self._content_H - needed
            looks_at_all_H = t_H <= 0
        # far_HL rises towards 0: the first entry that reaches the limit is the first that matters. One that
        # equals it is kept, for where |near| is huge the rounded limit is near itself.
        index_H = torch.searchsorted(self._far_HL, limit_H[:, None])[:, 0]
        index_H = index_H.masked_fill(looks_at_all_H | ~limit_H.isfinite(), 0)
        return [self._farthest + index for index in index_H.tolist()]


def content_bound(q_BHCD: Tensor, k_BHND: Tensor) -> Tensor:
    """U ``[H]`` in the dtype of the keys: no content score q · k / √D of this call is larger in magnitude.

    Rounding may put a computed score above the exact product of norms, hence the thousandth on top.
    """
    longest_q_H, longest_k_H = (
        torch.linalg.vector_norm(x, dim=-1, dtype=k_BHND.dtype).amax(dim=(0, 2)) for x in (q_BHCD, k_BHND)
    )
    bound_H: Tensor = longest_q_H * longest_k_H * (1.001 / math.sqrt(q_BHCD.shape[-1]))
    return bound_H
