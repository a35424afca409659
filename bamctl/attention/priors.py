"""Priors over positions: how likely a query at i is to look at a key at j, before any content.

Shapes: H heads, C queries, N keys; ``rel`` is j - i, an exact int64, at most 0 for a visible key.

A prior gives two things: its `bias`, the unnormalised log-density that attention adds to the content
score, and its `log_prob`, the same normalised over the keys that a query can see. The Bayesian reading
(arXiv 2505.22842, section 3): attention is the posterior, softmax(content + bias) = content · prior / Z.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PerHead = float | Sequence[float]
"""One value for every head, or one value a head."""

_FARTHEST = 2.0**60
"""Beyond every position: a location out there is as good as one farther out."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """b = -rate_h · (|j - i - μ_h| + ε)^β_h: the form that generalized Gaussian and Laplace share.

    What knows more of a prior than its values builds on this form: the expansion of the far field, and
    kernels that compute the bias themselves. All three are ``[H]``, in fp32 or float64.
    """

    rate_H: Tensor
    beta_H: Tensor
    mu_H: Tensor
    epsilon: float


class Prior(nn.Module, ABC):
    """A distribution over relative positions, one a head.

    The values that define it are parameters where they are learned and persistent buffers where they
    are fixed, so that both are saved with a model and only the former count as parameters.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    @abstractmethod
    def bias(self, rel: Tensor) -> Tensor:
        """The log-density, up to a constant, at relative positions `rel` = j - i.

        Args:
            rel: int64, any shape ``[...]``.

        Returns:
            ``[H, ...]`` in fp32, or in float64 where the prior's own values are float64.
        """

    @abstractmethod
    def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
        """The largest bias at any of the relative positions first_rel … last_rel.

        Args:
            first_rel, last_rel: int64, of shapes that broadcast to ``[H, ...]``; first_rel ≤ last_rel.

        Returns:
            ``[H, ...]``. Exact but for the rounding of `bias`, which need not be monotone to the last bit.
        """

    @abstractmethod
    def reset_parameters(self) -> None:
        """Puts the values that the prior was made with back into its parameters and buffers."""

    def power_law(self) -> PowerLaw | None:
        """The prior as a power of the distance; None where it is none."""
        return None

    def log_prob(self, query_positions: Tensor, keys: int) -> Tensor:
        """ln p(j | i), normalised over the visible keys j ≤ i.

        Args:
            query_positions: int64 ``[C]``, absolute.
            keys: N; the keys stand at positions 0 … N - 1.

        Returns:
            ``[H, C, N]``; -inf where j > i.
        """
        rel_CN = torch.arange(keys, device=query_positions.device) - query_positions[:, None]
        bias_HCN = self.bias(rel_CN.clamp(max=0)).masked_fill(rel_CN > 0, -math.inf)
        return bias_HCN.log_softmax(dim=-1)

    def _store(self, name: str, learned: bool) -> None:
        """Registers `name`, one value a head, as a parameter or as a buffer; `reset_parameters` fills it."""
        empty_H = torch.empty(self.heads)
        if learned:
            self.register_parameter(name, nn.Parameter(empty_H))
        else:
            self.register_buffer(name, empty_H)

    def _fill(self, name: str, values: Sequence[float]) -> None:
        stored_H: Tensor = getattr(self, name)
        with torch.no_grad():
            stored_H.copy_(torch.tensor(values, dtype=torch.float64))


class Uniform(Prior):
    """Every visible key is as likely as any other: attention without positional encoding (NoPE)."""

    def bias(self, rel: Tensor) -> Tensor:
        return torch.zeros((self.heads, *rel.shape), device=rel.device)

    def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(first_rel.shape, last_rel.shape)
        return torch.zeros((self.heads, *shape[1:]), device=first_rel.device)

    def reset_parameters(self) -> None:
        """There is nothing to put back."""


class Laplace(Prior):
    """b = -slope_h · |j - i|: ALiBi (arXiv 2108.12409). The Laplace scale is α_h = 1 / slope_h.

    Args:
        slopes: default the geometric series of Press et al. for this number of heads.
        learned: whether the slopes are parameters; ALiBi's are not.
    """

    slopes: Tensor

    def __init__(self, heads: int, *, slopes: PerHead | None = None, learned: bool = False) -> None:
        super().__init__(heads)
        self._initial = alibi_slopes(heads) if slopes is None else per_head(slopes, heads, "slopes")
        self._store("slopes", learned)
        self.reset_parameters()

    def bias(self, rel: Tensor) -> Tensor:
        slopes_H = _at_least_fp32(self.slopes)
        return -_broadcast(slopes_H, rel) * rel.abs().to(slopes_H.dtype)

    def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
        slopes_H = _at_least_fp32(self.slopes)
        nearest = torch.maximum(first_rel, -last_rel).clamp(min=0).to(slopes_H.dtype)
        farthest = torch.maximum(-first_rel, last_rel).to(slopes_H.dtype)
        slopes = slopes_H.view(-1, *[1] * (nearest.dim() - 1))
        return -slopes * nearest.where(slopes >= 0, farthest)

    def power_law(self) -> PowerLaw:
        slopes_H = _at_least_fp32(self.slopes)
        return PowerLaw(
            rate_H=slopes_H, beta_H=torch.ones_like(slopes_H), mu_H=torch.zeros_like(slopes_H), epsilon=0.0
        )

    def reset_parameters(self) -> None:
        self._fill("slopes", self._initial)


class GeneralizedGaussian(Prior):
    """b = -(|j - i - μ_h| / α_h)^β_h, the generalized Gaussian of BAM (arXiv 2505.22842, eq. 11).

    β = 2 is a Gaussian, β = 1 Laplace, 0 < β < 1 heavy-tailed; with β < 0 the neighbourhood is
    suppressed and the mass lies far away.

    What is stored is ``log_rate`` = ln α^-β and not α: b = -exp(log_rate) · (|j - i - μ| + ε)^β. It is
    how the authors' checkpoints hold it, and unlike α it is defined and smooth at β = 0. ε = 1e-5,
    theirs too, keeps a negative β finite at distance 0; the bias there may pass -1e8, beyond fp16.

    Args:
        alpha: scale α > 0.
        beta: shape β, of either sign.
        mu: location μ, in tokens; negative values look back.
        learned: which of ``alpha``, ``beta`` and ``mu`` are parameters.
    """

    EPSILON = 1e-5
    LOWEST = -1e37
    """No bias is lower: it is weightless already, and 0 · -inf would be undefined where t_i = 0."""

    log_rate: Tensor
    beta: Tensor
    mu: Tensor

    def __init__(
        self,
        heads: int,
        *,
        alpha: PerHead = 1.0,
        beta: PerHead = 1.0,
        mu: PerHead = 0.0,
        learned: Collection[str] = ("alpha", "beta"),
    ) -> None:
        super().__init__(heads)
        unknown = set(learned) - {"alpha", "beta", "mu"}
        if unknown:
            raise ValueError(f"a generalized Gaussian learns alpha, beta and mu, not {', '.join(unknown)}")
        alphas = per_head(alpha, heads, "alpha")
        if any(a <= 0 for a in alphas):
            raise ValueError(f"alpha must be above 0, got {min(alphas)}")
        self._initial_beta = per_head(beta, heads, "beta")
        self._initial_log_rate = [-b * math.log(a) for a, b in zip(alphas, self._initial_beta, strict=True)]
        self._initial_mu = per_head(mu, heads, "mu")
        self._store("log_rate", "alpha" in learned)
        self._store("beta", "beta" in learned)
        self._store("mu", "mu" in learned)
        self.reset_parameters()

    @property
    def alpha(self) -> Tensor:
        """α ``[H]``; not defined (inf, 0 or nan) where β = 0, where the prior is uniform."""
        return torch.exp(-_at_least_fp32(self.log_rate) / _at_least_fp32(self.beta))

    def bias(self, rel: Tensor) -> Tensor:
        return self._bias_of_each(rel.expand(1, *rel.shape))

    def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
        """One of three places: either end, or the position nearest to μ between them."""
        mu_H = _at_least_fp32(self.mu).round().clamp(-_FARTHEST, _FARTHEST).long()
        mu = mu_H.view(-1, *[1] * (first_rel.dim() - 1))
        nearest = torch.minimum(torch.maximum(mu, first_rel), last_rel)
        places = torch.stack(torch.broadcast_tensors(first_rel, last_rel, nearest), dim=-1)
        return self._bias_of_each(places).amax(dim=-1)

    def power_law(self) -> PowerLaw:
        log_rate_H, beta_H, mu_H = (_at_least_fp32(x) for x in (self.log_rate, self.beta, self.mu))
        return PowerLaw(rate_H=log_rate_H.exp(), beta_H=beta_H, mu_H=mu_H, epsilon=self.EPSILON)

    def _bias_of_each(self, rel_H: Tensor) -> Tensor:
        """The bias where every head has relative positions of its own, ``[H or 1, ...]``."""
        law = self.power_law()
        rate, beta, mu = (x.view(-1, *[1] * (rel_H.dim() - 1)) for x in (law.rate_H, law.beta_H, law.mu_H))
        offset = (rel_H.to(mu.dtype) - mu).abs() + self.EPSILON
        return (-rate * offset**beta).clamp(min=self.LOWEST)

    def reset_parameters(self) -> None:
        self._fill("log_rate", self._initial_log_rate)
        self._fill("beta", self._initial_beta)
        self._fill("mu", self._initial_mu)


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slopes: 2^(-8/n), 2^(-16/n), … for n heads, n a power of two.

    For other n, as Press et al. do: the series of the next lower power of two m, then every other value
    of the series of 2m (arXiv 2108.12409 and its code).
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2.0 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]
    return slopes


def per_head(value: PerHead, heads: int, name: str) -> list[float]:
    """One float a head from one for all, or from one each.

    Raises:
        ValueError: the number of values is not the number of heads.
    """
    if isinstance(value, (int, float)):
        return [float(value)] * heads
    if len(value) != heads:
        raise ValueError(f"{name} has {len(value)} values for {heads} heads")
    return [float(v) for v in value]


def _broadcast(value_H: Tensor, rel: Tensor) -> Tensor:
    return value_H.view(-1, *[1] * rel.dim())


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
