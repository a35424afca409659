"""How far each head has to look, and what reading a prompt costs, without reading it.

What attention leaves out depends on the prior and on U, a bound on content scores (`bamctl.attention.reach`).
The prior is known at any distance; U is measured on a sample prompt, once. Everything said here therefore
holds for prompts whose queries and keys are no longer than the sample's, as those of one task are.

Which key a tile of queries has to begin at depends on where the tile stands and on nothing behind it. So one
table over positions answers for every length up to the longest, and for every prefix that is read already.

Shapes: C tokens of the sample, H query heads, G key-value heads, D head size, T tiles of consecutive queries.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bamctl.attention.cpu import LONGEST_BLOCK, LONGEST_WINDOW, TILE
from bamctl.attention.priors import Prior
from bamctl.attention.reach import content_bound, first_keys
from bamctl.models.modeling import BamAttention, BamForCausalLM

EVERY_TILE = 256
"""Tiles at the start of a prompt that are all looked up; farther out, some stand for their neighbours."""

_SPACING = 1.03
"""Ratio of the positions of two neighbours out there: what a head computes is smooth in the position."""

_SEARCHED_AT_ONCE = 2**14
"""Heads times tiles whose first keys are searched together: some tens of megabytes."""


@dataclass(frozen=True, kw_only=True)
class HeadWork:
    """What one head does with a prompt of one length."""

    layer: int
    head: int
    beta: float | None
    """The prior's shape β, scale α and location μ; None where it is uniform."""
    alpha: float | None
    mu: float | None
    ssmax: float | None
    """SSMax's factor s; None without."""
    reach: int | None
    """How many tokens back the last position has to look; None: at all there are."""
    computed: float
    """Of the causal tiles of 512 queries by 512 keys, the fraction that is computed while the prompt is read.
    The last layer attends from the last position alone."""


class PrefillWork:
    """What `BamForCausalLM.prefill` computes for prompts like a sample, at any length up to `longest`.

    Args:
        model: whose priors are asked.
        sample_ids: tokens of a prompt, ``[C]``, on the model's device. It is read once.
        longest: tokens of the longest prompt that will be asked about.
    """

    def __init__(self, model: BamForCausalLM, sample_ids: Tensor, *, longest: int) -> None:
        self.longest = longest
        self.sample_tokens = len(sample_ids)
        self._layers = [layer.self_attn for layer in model.model.layers]
        self._shared_prior = model.model.prior
        self._config = model.config
        self._bounds = content_bounds(model, sample_ids)
        # What the layers before the last compute in front of each row of tiles.
        positions_T = _grid(longest)
        self._rows_T = positions_T // TILE
        self._tiles_LHT: list[NDArray[np.float64]] = []
        self._pairs_T = np.zeros(len(positions_T))  # of all these layers and heads
        for number in range(len(self._layers) - 1):
            firsts_HT = self._first_keys(number, positions_T, TILE)
            tiles_HT = self._rows_T - firsts_HT // TILE + 1
            self._tiles_LHT.append(_running_sum(tiles_HT.astype(float), self._rows_T))
            pairs_1T = _pairs(firsts_HT, positions_T).sum(axis=0, keepdims=True)
            self._pairs_T += _running_sum(pairs_1T, self._rows_T)[0]
        self._last_pairs: dict[int, float] = {}

    def heads(self, length: int) -> list[HeadWork]:
        """Every head at one length in tokens, layer by layer."""
        rows = math.ceil(length / TILE)
        tiles = rows * (rows + 1) // 2
        found = []
        for number, layer in enumerate(self._layers):
            first_H = self._first_keys(number, np.array([length - 1]), 1)[:, 0].tolist()
            if number < len(self._tiles_LHT):
                computed_H = [np.interp(rows, self._rows_T, tiles_T) for tiles_T in self._tiles_LHT[number]]
            else:
                computed_H = [rows - first // TILE for first in first_H]
            for head, (first, computed) in enumerate(zip(first_H, computed_H, strict=True)):
                found.append(
                    HeadWork(
                        layer=number,
                        head=head,
                        **_prior_values(self._prior(layer), head),
                        ssmax=None if layer.ssmax is None else layer.ssmax.scale[head].item(),
                        reach=length - 1 - first if first else None,
                        computed=min(1.0, float(computed) / tiles),  # interpolation may be above
                    )
                )
        return found

    def flops(self, length: int, *, start: int = 0) -> float:
        """Floating-point operations of reading a prompt, matrix products alone.

        4 · D for a pair of query and key, 2 for a weight and token. The last layer makes keys and values of
        every token, and goes on with the last one.

        Args:
            length: tokens of the prompt.
            start: of which so many are in the cache already.
        """
        config = self._config
        width, head_size, heads = config.hidden_size, config.head_dim, config.num_attention_heads
        keys_and_values = 2 * width * config.num_key_value_heads * head_size
        others = 2 * width * heads * head_size + 3 * width * config.intermediate_size
        before_last = len(self._layers) - 1
        weights = (length - start) * (before_last * (keys_and_values + others) + keys_and_values)
        weights += others + width * config.vocab_size
        before = np.interp([start / TILE, length / TILE], self._rows_T, self._pairs_T).tolist()
        pairs: float = before[1] - before[0] + self._pairs_of_last_layer(length)
        flops: float = 2.0 * weights + 4.0 * head_size * pairs
        return flops

    def _pairs_of_last_layer(self, length: int) -> float:
        """Looked up once a length: many samples ask."""
        if length not in self._last_pairs:
            first_H1 = self._first_keys(len(self._layers) - 1, np.array([length - 1]), 1)
            self._last_pairs[length] = float((length - first_H1).sum())
        return self._last_pairs[length]

    def _prior(self, layer: BamAttention) -> Prior:
        prior = self._shared_prior if layer.prior is None else layer.prior
        assert prior is not None
        return prior

    @torch.no_grad()
    def _first_keys(self, number: int, positions_T: NDArray[np.int64], queries: int) -> NDArray[np.int64]:
        """`bamctl.attention.reach.first_keys` ``[H, T]`` for the tiles of one layer, some at a time."""
        layer, bound_H = self._layers[number], self._bounds[number]
        prior = self._prior(layer)
        slices = torch.from_numpy(positions_T).split(max(1, _SEARCHED_AT_ONCE // prior.heads))
        found = [
            first_keys(
                prior,
                content_H=bound_H,
                positions_T=some_T.to(bound_H.device),
                queries=queries,
                key_start=0,
                scale_H=None if layer.ssmax is None else layer.ssmax.scale,
                scales_prior=self._config.ssmax_scales_prior,
                dtype=bound_H.dtype,
            ).cpu()
            for some_T in slices
        ]
        firsts_HT: NDArray[np.int64] = torch.cat(found, dim=1).numpy()
        return firsts_HT


@torch.no_grad()
def content_bounds(model: BamForCausalLM, ids: Tensor) -> list[Tensor]:
    """U ``[H]`` of each layer on one prompt: no content score that its prefill computes is larger.

    Rotary positions turn queries and keys and leave their lengths alone. Of the last layer, that attends from
    the last position, the bound is of that position's queries.

    Args:
        model: what reads.
        ids: the prompt, ``[C]``, on the model's device.
    """
    seen: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, _: object, output: Tensor) -> None:
        seen[module] = output

    layers = [layer.self_attn for layer in model.model.layers]
    projections = [projection for layer in layers for projection in (layer.q_proj, layer.k_proj)]
    hooks = [projection.register_forward_hook(note) for projection in projections]
    try:
        model(ids[None], logits_to_keep=1, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    size = model.config.head_dim
    q_and_k = [seen[projection].unflatten(-1, (-1, size)).transpose(1, 2) for projection in projections]
    return [content_bound(q_BHCD, k_BGCD) for q_BHCD, k_BGCD in zip(q_and_k[::2], q_and_k[1::2], strict=True)]


def _pairs(firsts_HT: NDArray[np.int64], positions_T: NDArray[np.int64]) -> NDArray[np.float64]:
    """Pairs of query and key that each tile computes, ``[H, T]``.

    Ahead of its own diagonal a tile computes as much as behind, a window only as much as a block has.
    """
    back_HT = positions_T - firsts_HT
    is_window_HT = (back_HT <= LONGEST_WINDOW) & (firsts_HT > 0)
    ahead_HT = np.where(is_window_HT, np.minimum(back_HT, LONGEST_BLOCK), TILE)
    pairs_HT: NDArray[np.float64] = (TILE * (back_HT + ahead_HT)).astype(float)
    return pairs_HT


def _running_sum(of_HT: NDArray[np.float64], rows_T: NDArray[np.int64]) -> NDArray[np.float64]:
    """Σ over all rows before each row, those between two known ones taken to lie on a line: ``[H, T]``."""
    gap_T = np.diff(rows_T)
    between_HT = gap_T * of_HT[:, :-1] + (gap_T - 1) / 2 * np.diff(of_HT)
    return np.concatenate([np.zeros((len(of_HT), 1)), between_HT.cumsum(axis=1)], axis=1)


def _grid(longest: int) -> NDArray[np.int64]:
    """Positions of tiles up to the first that begins behind `longest`."""
    end = math.ceil(longest / TILE)
    rows = list(range(min(end, EVERY_TILE) + 1))
    while rows[-1] < end:
        rows.append(min(end, max(rows[-1] + 1, int(rows[-1] * _SPACING))))
    return np.array(rows, dtype=np.int64) * TILE


def _prior_values(prior: Prior, head: int) -> dict[str, float | None]:
    law = prior.power_law()
    if law is None:
        return {"beta": None, "alpha": None, "mu": None}
    alpha_H = law.rate_H.double() ** (-1 / law.beta_H.double())
    return {
        name: of_H[head].item() for name, of_H in (("beta", law.beta_H), ("alpha", alpha_H), ("mu", law.mu_H))
    }
