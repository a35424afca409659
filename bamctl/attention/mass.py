"""Where the mass of a prior lies: over how many tokens back, at any length, to the token.

Shapes: K blocks of consecutive distances, Q nodes of a block.

The last of n tokens sees keys at the distances d = 0 … n - 1. Before any content it gives them the weights

    w(d) = exp(t · b(-d))        b(-d) = -rate · (|d + μ| + ε)^β

with t = s · ln n where SSMax multiplies the prior too, else t = 1. With u = |d + μ| + ε, the distance from
the prior's centre, ln w is monotone in u on either side of the centre, and smooth. So each side is cut into
blocks within which u at most doubles and ln w changes by at most 2, and what weighs less than e^-70 of the
heaviest distance is left out. There are some hundred blocks whatever n is. A short one is summed term by
term, a long one by Gaussian quadrature for sums: the rule of Q nodes for Σ f(k), k = 0 … m - 1, is exact for
polynomials up to the degree 2Q - 1. Its nodes are the roots of a Gram polynomial, eigenvalues of the matrix
of the recurrence

    p_{i+1}(x) = x · p_i(x) - γ_i · p_{i-1}(x)        γ_i = i² (m² - i²) / (4 (4 i² - 1))

about the block's middle (Gautschi, Orthogonal Polynomials, 2004, section 1.5; Golub and Welsch, 1969). On a
block as smooth as these, twelve nodes are exact to a float64 rounding.

Everything is float64. Shares of mass are right to about 1e-12, or to 1e-16 of the largest |ln w| where that
is more; so a distance is right to the token wherever one token there has more mass than that.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bamctl.attention.priors import GeneralizedGaussian, Prior

_CUT = 70.0
"""e to minus this, for each of 2^40 distances, is less than 1e-18 of the mass."""
_STEP = 2.0
"""The most that ln w changes within a block."""
_NODES = 12
_SUMMED = 64
"""A block of no more distances than this is summed term by term."""
_ROUNDING = 1e-13
"""By so much a sum that ought to be a round share of the mass may fall short of it."""


@dataclass(frozen=True, kw_only=True)
class HeadPrior:
    """The prior of one head: b = -rate · (|d + μ| + ε)^β at the distance d."""

    rate: float
    """α^-β; 0 where the prior is uniform."""
    beta: float
    mu: float
    epsilon: float

    @property
    def alpha(self) -> float | None:
        """The scale α; None where the prior is uniform, and any would do."""
        if self.rate <= 0 or self.beta == 0:
            return None
        try:
            return float(self.rate ** (-1 / self.beta))
        except OverflowError:
            return math.inf

    @property
    def is_uniform(self) -> bool:
        """Whether every distance has the same weight, exactly."""
        return self.rate == 0 or self.beta == 0

    def bias(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """b at distances, which need not be whole, of any shape."""
        if self.is_uniform:
            return np.zeros_like(distances)
        with np.errstate(over="ignore"):
            power = (np.abs(distances + self.mu) + self.epsilon) ** self.beta
            bias: NDArray[np.float64] = np.maximum(-self.rate * power, GeneralizedGaussian.LOWEST)
        return bias

    def turning_points(self, length: int) -> list[int]:
        """Distances of which some has the least b of 0 … `length` - 1, and some the greatest.

        The ends, and those on either side of the centre -μ, between which b is monotone.
        """
        centre = math.ceil(min(max(-self.mu, 0.0), float(length)))
        return sorted({d for d in (0, centre - 1, centre, length - 1) if 0 <= d < length})

    def spread(self, length: int) -> float:
        """The greatest difference between the biases of two distances 0 … `length` - 1, in nats."""
        biases = self.bias(np.array(self.turning_points(length), dtype=np.float64))
        return float(biases.max() - biases.min())


def head_priors(prior: Prior) -> list[HeadPrior]:
    """The prior of each head."""
    law = prior.power_law()
    if law is None:
        return [HeadPrior(rate=0.0, beta=0.0, mu=0.0, epsilon=0.0)] * prior.heads
    values = zip(law.rate_H.tolist(), law.beta_H.tolist(), law.mu_H.tolist(), strict=True)
    return [HeadPrior(rate=rate, beta=beta, mu=mu, epsilon=law.epsilon) for rate, beta, mu in values]


class DistanceMass:
    """How the last of `length` tokens spreads the mass of a prior over the distances 0 … length - 1.

    Args:
        prior: of one head.
        length: n in tokens, up to 2^40.
        factor: t, what multiplies the prior at that length; below 0 it turns the order of distances round.
    """

    def __init__(self, prior: HeadPrior, *, length: int, factor: float = 1.0) -> None:
        if not 1 <= length <= 2**40:
            raise ValueError(f"length {length} lies outside 1 … 2^40")
        self.length = length
        self._prior = prior
        self._factor = factor
        self._heaviest = max(self._log_weight(d) for d in prior.turning_points(length))
        centre = math.ceil(min(max(-prior.mu, 0.0), float(length)))
        blocks = sorted(self._side(range(centre - 1, -1, -1)) + self._side(range(centre, length)))
        self._starts = [start for start, _ in blocks]
        self._tokens = [tokens for _, tokens in blocks]
        self._before = np.concatenate([[0.0], np.cumsum(self._sums(self._starts, self._tokens))])

    def within(self, distance: int) -> float:
        """The share of the mass at distances up to and including `distance`."""
        if distance >= self.length - 1:
            return 1.0
        return self._mass_within(distance) / float(self._before[-1])

    def reach(self, share: float = 0.99) -> int:
        """The least distance within which at least `share` of the mass lies, 0 < share ≤ 1."""
        if not 0 < share <= 1:
            raise ValueError(f"share {share} lies outside 0 … 1")
        wanted = share * float(self._before[-1]) * (1 - _ROUNDING)
        block = int(np.searchsorted(self._before[1:], wanted))
        low, high = self._starts[block], self._starts[block] + self._tokens[block] - 1
        while low < high:
            middle = (low + high) // 2
            if self._mass_within(middle) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low

    def at(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of the mass at each of some distances, of any shape."""
        shares: NDArray[np.float64] = self._weights(distances) / self._before[-1]
        return shares

    def _mass_within(self, distance: int) -> float:
        block = int(np.searchsorted(self._starts, distance, side="right")) - 1
        if block < 0:
            return 0.0
        tokens = min(distance - self._starts[block] + 1, self._tokens[block])
        return float(self._before[block] + self._sums([self._starts[block]], [tokens])[0])

    def _log_weight(self, distance: float) -> float:
        return float(self._factor * self._prior.bias(np.array(float(distance))))

    def _side(self, distances: range) -> list[tuple[int, int]]:
        """The blocks of one side as (first distance, distances), from the centre outwards.

        Only those of the distances that weigh something, which lie at one end of the side.
        """
        if not distances:
            return []
        weighs = [self._log_weight(d) >= self._heaviest - _CUT for d in (distances[0], distances[-1])]
        if not any(weighs):
            return []
        if not all(weighs):
            low, high = 0, len(distances) - 1  # of which one weighs something and one does not
            while high - low > 1:
                middle = (low + high) // 2
                if (self._log_weight(distances[middle]) >= self._heaviest - _CUT) == weighs[0]:
                    low = middle
                else:
                    high = middle
            distances = distances[: low + 1] if weighs[0] else distances[high:]
        blocks = []
        while distances:
            from_centre = abs(distances[0] + self._prior.mu)
            tokens = len(distances) if self._prior.is_uniform else min(len(distances), int(from_centre) + 1)
            first = self._log_weight(distances[0])
            while tokens > 1 and abs(self._log_weight(distances[tokens - 1]) - first) > _STEP:
                tokens = (tokens + 1) // 2
            blocks.append((min(distances[0], distances[tokens - 1]), tokens))
            distances = distances[tokens:]
        return blocks

    def _sums(self, starts: list[int], tokens: list[int]) -> NDArray[np.float64]:
        """Σ w(d) over each of K blocks, the heaviest distance weighing 1: ``[K]``."""
        sums_K = np.zeros(len(starts))
        long = [i for i, count in enumerate(tokens) if count > _SUMMED]
        nodes_KQ, weights_KQ = _gauss_for_sums(np.array([tokens[i] for i in long], dtype=np.float64))
        nodes_KQ += np.array([starts[i] for i in long], dtype=np.float64)[:, None]
        sums_K[long] = (weights_KQ * self._weights(nodes_KQ)).sum(axis=1)
        for i, (start, count) in enumerate(zip(starts, tokens, strict=True)):
            if count <= _SUMMED:
                sums_K[i] = self._weights(np.arange(start, start + count, dtype=np.float64)).sum()
        return sums_K

    def _weights(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.exp(self._factor * self._prior.bias(distances) - self._heaviest)
        return weights


def _gauss_for_sums(tokens_K: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights ``[K, Q]``: Σ weight · f(node) is Σ f(k), k = 0 … m - 1, m from `tokens_K`."""
    i = np.arange(1, _NODES, dtype=np.float64)
    m_K1 = tokens_K[:, None]
    off_diagonal = np.sqrt(i**2 * (1 - (i / m_K1) ** 2) / (4 * (4 * i**2 - 1)))  # of x / m: no m² overflows
    jacobi_KQQ = np.zeros((len(tokens_K), _NODES, _NODES))
    jacobi_KQQ[:, np.arange(1, _NODES), np.arange(_NODES - 1)] = off_diagonal  # eigh reads the lower half
    roots_KQ, vectors_KQQ = np.linalg.eigh(jacobi_KQQ)
    return roots_KQ * m_K1 + (m_K1 - 1) / 2, vectors_KQQ[:, 0] ** 2 * m_K1
