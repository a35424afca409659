"""Attention as a posterior: content times prior over Z; and the encodings it takes in as special cases."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bamctl.attention import IMPLEMENTATIONS, GeneralizedGaussian, Laplace, Prior, Uniform, attention

HEADS, LENGTH, SIZE = 4, 24, 16


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if name != "triton"])  # which needs a GPU
def implementation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _content(q: Tensor, k: Tensor) -> Tensor:
    """The likelihood exp(q · k / √D) of every pair."""
    return torch.einsum("bhcd,bhnd->bhcn", q, k).div(math.sqrt(q.shape[-1])).exp()


def _weights(q: Tensor, k: Tensor, **arguments: Any) -> Tensor:
    """Attention over values that are the unit vectors: the weights themselves, ``[B, H, C, N]``."""
    keys = k.shape[2]
    padded_q, padded_k = (F.pad(x, (0, keys - x.shape[-1])) for x in (q, k))
    padded_q = padded_q * math.sqrt(keys / q.shape[-1])  # the √D of the call is that of the padded size
    units = torch.eye(keys, dtype=q.dtype).expand(*k.shape[:2], keys, keys)
    return attention(padded_q, padded_k, units, **arguments)


@pytest.mark.parametrize("kind", range(5))
def test_weights_are_content_times_prior_over_z(
    kind: int,
    implementation: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
) -> None:
    q, k, _ = make_inputs(queries=LENGTH, keys=LENGTH, heads=HEADS, head_size=SIZE)
    prior = priors_of_every_kind(HEADS)[kind]
    p_HCN = prior.log_prob(torch.arange(LENGTH), keys=LENGTH).exp()
    joint = _content(q, k) * p_HCN
    z = joint.sum(-1, keepdim=True)
    weights = _weights(q, k, prior=prior, query_start=0, implementation=implementation)
    torch.testing.assert_close(weights, joint / z, rtol=1e-6 if kind == 0 else 1e-9, atol=1e-12)
    # Without the prior it would be something else (but for the uniform ones).
    causal = torch.ones(LENGTH, LENGTH, dtype=q.dtype).tril()
    content_alone = _content(q, k) * causal
    content_alone /= content_alone.sum(-1, keepdim=True)
    is_uniform = kind in (0, 4)
    assert torch.allclose(weights, content_alone, atol=1e-6) == is_uniform


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", range(1, 5))
def test_ssmax_raises_to_the_power_t(
    kind: int,
    scaled: bool,
    implementation: str,
    make_inputs: Callable[..., Any],
    priors_of_every_kind: Callable[[int], list[Prior]],
) -> None:
    """(content · prior)^t / Z, or content^t · prior / Z where the prior is left alone."""
    q, k, _ = make_inputs(queries=LENGTH, keys=LENGTH, heads=HEADS, head_size=SIZE)
    prior = priors_of_every_kind(HEADS)[kind]
    s_H = torch.tensor([0.2, 0.7, 1.0, 0.0], dtype=q.dtype)
    t_HC1 = s_H[:, None, None] * torch.arange(1, LENGTH + 1, dtype=q.dtype).log()[:, None]
    p_HCN = prior.log_prob(torch.arange(LENGTH), keys=LENGTH).exp()
    causal = torch.ones(LENGTH, LENGTH, dtype=q.dtype).tril()
    joint = ((_content(q, k) * p_HCN) ** t_HC1 if scaled else _content(q, k) ** t_HC1 * p_HCN) * causal
    weights = _weights(
        q,
        k,
        prior=prior,
        query_start=0,
        ssmax_scale_H=s_H,
        ssmax_scales_prior=scaled,
        implementation=implementation,
    )
    torch.testing.assert_close(weights, joint / joint.sum(-1, keepdim=True), rtol=1e-8, atol=1e-12)


def test_the_first_token_sees_itself_alone(
    implementation: str, make_inputs: Callable[..., Any], priors_of_every_kind: Callable[[int], list[Prior]]
) -> None:
    """ln 1 = 0: under SSMax every logit of row 0 is 0, and still nothing ahead is seen."""
    inputs = make_inputs(queries=3, keys=3)
    for prior in priors_of_every_kind(4):
        for s in (1.0, 0.0, -2.0):
            out = attention(
                *inputs,
                prior=prior,
                query_start=0,
                ssmax_scale_H=torch.full((4,), s, dtype=torch.float64),
                implementation=implementation,
            )
            torch.testing.assert_close(out[:, :, 0], inputs.v[:, :, 0])
            assert out.isfinite().all()


def test_uniform_is_attention_without_positions(implementation: str, make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=LENGTH, keys=LENGTH)
    out = attention(*inputs, prior=Uniform(4), query_start=0, implementation=implementation)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*inputs, is_causal=True))


def test_uniform_does_not_know_the_order_of_the_keys(
    implementation: str, make_inputs: Callable[..., Any]
) -> None:
    q, k, v = make_inputs(queries=1, keys=LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    arguments = {"query_start": LENGTH - 1, "implementation": implementation}
    uniform = attention(q, k, v, prior=Uniform(4), **arguments)
    torch.testing.assert_close(
        attention(q, k[:, :, order], v[:, :, order], prior=Uniform(4), **arguments), uniform
    )
    laplace = attention(q, k, v, prior=Laplace(4), **arguments)
    assert not torch.allclose(
        attention(q, k[:, :, order], v[:, :, order], prior=Laplace(4), **arguments), laplace, atol=1e-3
    )


def _alibi_mask(slopes: list[float], length: int) -> Tensor:
    """The bias of Press et al., written down entry by entry."""
    mask = torch.full((len(slopes), length, length), -math.inf, dtype=torch.float64)
    for head, slope in enumerate(slopes):
        for i in range(length):
            for j in range(i + 1):
                mask[head, i, j] = -slope * (i - j)
    return mask


SLOPES_4 = [0.25, 0.0625, 0.015625, 0.00390625]
SLOPES_6 = [*SLOPES_4, 0.5, 0.125]


@pytest.mark.parametrize("slopes", [SLOPES_4, SLOPES_6], ids=len)
def test_laplace_is_alibi(slopes: list[float], implementation: str, make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=LENGTH, keys=LENGTH, heads=len(slopes))
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=_alibi_mask(slopes, LENGTH))
    out = attention(*inputs, prior=Laplace(len(slopes)), query_start=0, implementation=implementation)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    ggd = GeneralizedGaussian(len(slopes), alpha=[1 / slope for slope in slopes])
    out = attention(*inputs, prior=ggd, query_start=0, implementation=implementation)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)  # ε in the distance


@pytest.mark.parametrize(
    "wrong",
    [
        [slope * 1.02 for slope in SLOPES_4],
        [-slope for slope in SLOPES_4],
        SLOPES_4[::-1],
        [*SLOPES_4[:3], SLOPES_4[2]],
    ],
    ids=["2% off", "sign", "heads reversed", "one head"],
)
def test_wrong_slopes_are_not_alibi(wrong: list[float], make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=LENGTH, keys=LENGTH)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=_alibi_mask(SLOPES_4, LENGTH))
    out = attention(*inputs, prior=Laplace(4, slopes=wrong), query_start=0)
    assert (out - expected).abs().max() > 1e-3


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_bias_one_position_off_is_noticed(
    shift: int, implementation: str, make_inputs: Callable[..., Any]
) -> None:
    """With queries in the middle, so that a mistake in the offset of the positions would be such a shift."""
    inputs = make_inputs(queries=5, keys=LENGTH)

    def attend(mu: float) -> Tensor:
        prior = GeneralizedGaussian(4, alpha=2.0, beta=1.4, mu=mu)
        return attention(*inputs, prior=prior, query_start=LENGTH - 5, implementation=implementation)

    rel = torch.arange(LENGTH) - torch.arange(LENGTH - 5, LENGTH)[:, None]
    density = -((((rel + 3).abs().double() + 1e-5) / 2.0) ** 1.4)
    bias = density.masked_fill(rel > 0, -math.inf)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=bias)
    torch.testing.assert_close(attend(-3.0), expected, rtol=1e-6, atol=1e-6)
    assert (attend(-3.0 + shift) - expected).abs().max() > 1e-2


def test_a_constant_added_to_the_log_density_changes_nothing(
    implementation: str, make_inputs: Callable[..., Any]
) -> None:
    """Priors are given up to a constant."""

    class Shifted(Laplace):
        def bias(self, rel: Tensor) -> Tensor:
            return super().bias(rel) + 5.0

    inputs = make_inputs(queries=9, keys=LENGTH)
    arguments = {"query_start": LENGTH - 9, "implementation": implementation}
    s_H = torch.tensor([1.0, 0.5, -0.5, 0.0], dtype=torch.float64)
    for scale_H in (None, s_H):
        torch.testing.assert_close(
            attention(*inputs, prior=Shifted(4), ssmax_scale_H=scale_H, **arguments),
            attention(*inputs, prior=Laplace(4), ssmax_scale_H=scale_H, **arguments),
        )
