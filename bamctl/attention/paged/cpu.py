"""Attention over pages in plain PyTorch: what it needs of one sequence at a time, and no more.

Shapes: see `bamctl.attention.paged`; beside them N queries or keys of one sequence, R = H / G query heads of
a group, L relative positions, W sequences of one query.

Sequences of several queries go through `bamctl.attention.cpu`, one after another. Those of one query have
their bias in common: it is computed once, and each takes as much of it as it has keys.

Keys are not copied where a sequence's pages follow one another in memory. Else they are gathered, from the
first on that the prior lets matter: memory beyond inputs and output is at most what one layer's keys and
values of one sequence take in fp32.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bamctl.attention import cpu
from bamctl.attention.cpu.partial import attend
from bamctl.attention.priors import Prior, Uniform
from bamctl.attention.reach import content_bound, first_keys
from bamctl.attention.ssmax import ssmax_factor


@torch.no_grad()
def paged_attention(
    q_THD: Tensor,
    k_cache_PSGD: Tensor,
    v_cache_PSGD: Tensor,
    *,
    out_THD: Tensor,
    prior: Prior,
    query_starts: Tensor,
    lengths_B: Tensor,
    pages_BP: Tensor,
    most_queries: int,
    most_keys: int,
    ssmax_scale_H: Tensor | None,
    ssmax_scales_prior: bool,
    longest_key_G: Tensor | None,
) -> None:
    """Causal attention of every sequence's newest tokens over all that it has in the cache.

    The arithmetic is fp32, whatever the dtype. There are no gradients.

    Args:
        q_THD: queries; those of sequence b are rows query_starts[b] … query_starts[b + 1] - 1.
        k_cache_PSGD, v_cache_PSGD: the pool of pages, as views of any strides whose last dimension is dense.
        out_THD: is written, but for the rows from query_starts[-1] on.
        prior: over relative positions, H heads.
        query_starts: integers ``[B + 1]``, from 0 on and never falling.
        lengths_B: tokens of each sequence in the cache, with those of this call: the last of its n queries
            stands at position lengths_B[b] - 1, the first at lengths_B[b] - n.
        pages_BP: the pages of each sequence, in the order of its tokens.
        most_queries, most_keys: bounds on a sequence's queries and keys, for a device that is not to be
            waited for; not needed here.
        ssmax_scale_H: s_h of Scalable Softmax; None for the plain softmax.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        longest_key_G: no key that these sequences have in the cache is longer. None: all keys are looked at.
    """
    pool = _Pool(
        k_PSGD=k_cache_PSGD,
        v_PSGD=v_cache_PSGD,
        prior=prior,
        ssmax_scale_H=ssmax_scale_H,
        ssmax_scales_prior=ssmax_scales_prior,
        longest_key_G=longest_key_G,
    )
    starts, lengths = query_starts.tolist(), lengths_B.tolist()
    queries = [stop - start for start, stop in itertools.pairwise(starts)]
    for b, (start, count, length) in enumerate(zip(starts, queries, lengths, strict=False)):
        if count > 1:
            q_1HND = q_THD[None, start : start + count].transpose(1, 2)
            out_1HND = _attend_several(pool, q_1HND, pages_BP[b], length)
            out_THD[start : start + count] = out_1HND[0].transpose(0, 1)
    single = [b for b, count in enumerate(queries) if count == 1]
    if single:
        rows = [starts[b] for b in single]
        out_WHD = _attend_single(pool, q_THD[rows], pages_BP[single], [lengths[b] for b in single])
        out_THD[rows] = out_WHD.to(out_THD.dtype)


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """What all sequences of a call share."""

    k_PSGD: Tensor
    v_PSGD: Tensor
    prior: Prior
    ssmax_scale_H: Tensor | None
    ssmax_scales_prior: bool
    longest_key_G: Tensor | None

    def first_keys(self, q_1HND: Tensor, positions_W: Tensor, *, queries: int, keys: int) -> Tensor:
        """Where to begin looking ``[G, W]``: a multiple of S, and no key before it matters to the group.

        Args:
            q_1HND: of all the sequences.
            positions_W: of each sequence's first query.
            queries: of each.
            keys: of all together; with few, all are looked at, for finding out would take longer.
        """
        slots, groups = self.k_PSGD.shape[1:3]
        heads, size = q_1HND.shape[1], q_1HND.shape[3]
        products = heads * queries * keys * size
        if self.longest_key_G is None or isinstance(self.prior, Uniform) or products < cpu.SEARCH_WORTH:
            return positions_W.new_zeros((groups, len(positions_W)))
        first_HW = first_keys(
            self.prior,
            content_H=content_bound(q_1HND, self.k_PSGD.transpose(1, 2), self.longest_key_G),
            positions_T=positions_W,
            queries=queries,
            key_start=0,
            scale_H=self.ssmax_scale_H,
            scales_prior=self.ssmax_scales_prior,
            dtype=torch.float32,
        )
        first_GW: Tensor = first_HW.unflatten(0, (groups, -1)).amin(dim=1)
        return first_GW // slots * slots

    def keys_and_values(
        self, pages_P: Tensor, first: int, stop: int, groups: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """``[1, G, N, D]`` each, of a sequence's tokens first … stop - 1, where `first` begins a page."""
        slots = self.k_PSGD.shape[1]
        pages = pages_P[first // slots : -(-stop // slots)]
        consecutive = bool((pages.diff() == 1).all())
        k, v = (
            _in_order(x[:, :, groups], pages, consecutive, stop - first) for x in (self.k_PSGD, self.v_PSGD)
        )
        return k, v


def _attend_several(pool: _Pool, q_1HND: Tensor, pages_P: Tensor, length: int) -> Tensor:
    """``[1, H, N, D]``: the last N tokens of one sequence of `length`."""
    start = length - q_1HND.shape[2]
    positions_1 = torch.tensor([start], device=q_1HND.device)
    first = int(pool.first_keys(q_1HND, positions_1, queries=q_1HND.shape[2], keys=length).min())
    k_1GND, v_1GND = pool.keys_and_values(pages_P, first, length)
    return cpu.attention(
        q_1HND,
        k_1GND,
        v_1GND,
        prior=pool.prior,
        query_start=start,
        key_start=first,
        ssmax_scale_H=pool.ssmax_scale_H,
        ssmax_scales_prior=pool.ssmax_scales_prior,
        longest_key_G=pool.longest_key_G,
    )


def _attend_single(pool: _Pool, q_WHD: Tensor, pages_WP: Tensor, lengths: Sequence[int]) -> Tensor:
    """``[W, H, D]`` fp32: the last token of each of W sequences.

    The heads of a group stand in for queries, so that no key is repeated for them.
    """
    groups = pool.k_PSGD.shape[2]
    positions_W = torch.tensor(lengths, device=q_WHD.device) - 1
    first_GW = pool.first_keys(q_WHD.transpose(0, 1)[None], positions_W, queries=1, keys=sum(lengths))
    q_WGRD = (q_WHD.float() * q_WHD.shape[-1] ** -0.5).unflatten(1, (groups, -1))
    t_WGR1 = None
    if pool.ssmax_scale_H is not None:
        t_HW = ssmax_factor(pool.ssmax_scale_H.float(), positions_W)
        t_WGR1 = t_HW.T.unflatten(1, (groups, -1))[..., None]
        q_WGRD = q_WGRD * t_WGR1
    bias_GRL = None
    if not isinstance(pool.prior, Uniform):
        farthest = int((first_GW - positions_W).min())
        rel_L = torch.arange(farthest, 1, device=q_WHD.device)
        bias_GRL = pool.prior.bias(rel_L).float().unflatten(0, (groups, -1))

    out_WGRD = torch.empty_like(q_WGRD)
    for w, (length, first_G) in enumerate(zip(lengths, first_GW.T.tolist(), strict=True)):
        # Groups that look equally far back are computed together.
        for first, members in itertools.groupby(range(groups), key=first_G.__getitem__):
            neighbours = list(members)
            some = slice(neighbours[0], neighbours[-1] + 1)
            k_1GND, v_1GND = pool.keys_and_values(pages_WP[w], first, length, some)
            bias_GRN = None
            if bias_GRL is not None:
                bias_GRN = bias_GRL[some, :, bias_GRL.shape[-1] - (length - first) :]
                if t_WGR1 is not None and pool.ssmax_scales_prior:
                    bias_GRN = bias_GRN * t_WGR1[w, some]
                bias_GRN = bias_GRN[None]
            seen = attend(q_WGRD[w : w + 1, some], k_1GND.float(), v_1GND.float(), bias_GRN)
            out_WGRD[w, some] = seen.out_BHCD[0]
    return out_WGRD.flatten(1, 2)


def _in_order(x_PSGD: Tensor, pages_P: Tensor, consecutive: bool, count: int) -> Tensor:
    """``[1, G, N, D]``: the first `count` tokens of some pages, without a copy where that is possible."""
    slots, groups, size = x_PSGD.shape[1:]
    of_page, of_slot, of_group, of_element = x_PSGD.stride()
    if len(pages_P) == 1 or (consecutive and of_page == slots * of_slot):
        return x_PSGD.as_strided(
            (1, groups, count, size),
            (0, of_group, of_slot, of_element),
            x_PSGD.storage_offset() + int(pages_P[0]) * of_page,
        )
    x_NGD = x_PSGD[pages_P].flatten(0, 1)[:count]
    return x_NGD.transpose(0, 1)[None]
