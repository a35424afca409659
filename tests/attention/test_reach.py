"""Leaving out keys that a prior makes weightless changes nothing, whatever the prior and the content."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamctl.attention import GeneralizedGaussian, Laplace, Uniform, cpu, reference
from bamctl.attention.reach import Reach, content_bound

HEADS, KEYS, SIZE = 2, 300, 16


def both(
    prior,
    *,
    q_norm=1.0,
    k_norm=1.0,
    scale_H=None,
    scales_prior=True,
    query_start=0,
    seed=0,
    dtype=torch.float64,
):
    """The CPU implementation in small chunks, so that it may skip, and the definition in float64."""
    generator = torch.Generator().manual_seed(seed)
    queries = KEYS - query_start
    q = torch.randn(1, HEADS, queries, SIZE, generator=generator, dtype=torch.float64) * q_norm
    k = torch.randn(1, HEADS, KEYS, SIZE, generator=generator, dtype=torch.float64) * k_norm
    v = torch.randn(1, HEADS, KEYS, SIZE, generator=generator, dtype=torch.float64)
    arguments = {"query_start": query_start, "ssmax_scales_prior": scales_prior}
    with torch.no_grad():
        right = reference.attention(q, k, v, prior=prior.double(), ssmax_scale_H=scale_H, **arguments)
        prior.to(dtype)
        skipped = cpu.attention(
            *(x.to(dtype) for x in (q, k, v)),
            prior=prior,
            ssmax_scale_H=None if scale_H is None else scale_H.to(dtype),
            longest_chunk=16,
            **arguments,
        )
    return skipped.double(), right


# A bias so huge that nothing that is subtracted from it moves it.
@example(beta=3.0, alpha=1e-6, mu=7.5, scale=None, scales_prior=False, norm=0.01, query_start=0, seed=0)
@settings(max_examples=60, deadline=None)
@given(
    beta=st.sampled_from([-3.0, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0]),
    alpha=st.sampled_from([1e-6, 1e-2, 0.5, 3.0, 50.0, 1e6]),
    mu=st.sampled_from([0.0, 7.5, -40.0]),
    scale=st.sampled_from([None, 0.3, 2.0, 0.0, -0.4]),
    scales_prior=st.booleans(),
    norm=st.sampled_from([0.01, 1.0, 4.0]),
    query_start=st.sampled_from([0, 1, 150, 299]),
    seed=st.integers(0, 5),
)
def test_nothing_changes(beta, alpha, mu, scale, scales_prior, norm, query_start, seed):
    prior = GeneralizedGaussian(HEADS, alpha=alpha, beta=beta, mu=[mu, 0.0])
    scale_H = None if scale is None else torch.tensor([scale, 0.5], dtype=torch.float64)
    skipped, right = both(
        prior, q_norm=norm, scale_H=scale_H, scales_prior=scales_prior, query_start=query_start, seed=seed
    )
    # t · (c + b) and t · c + t · b round differently, by a unit of the largest logit, which the weights feel.
    rounding = 0.0
    if scale_H is not None and scales_prior:
        largest = prior.bias(torch.arange(1 - KEYS, 1)).abs().max() * scale_H.abs().max() * math.log(KEYS)
        rounding = 8 * torch.finfo(torch.float64).eps * largest.item()
    if rounding < 0.1:  # beyond, float64 itself does not know the weights
        torch.testing.assert_close(skipped, right, rtol=1e-9 + rounding, atol=1e-9 + rounding)


@pytest.mark.parametrize("distance", [20, 60, 150, 280])
@pytest.mark.parametrize("norm", [5.0, 30.0])
def test_a_far_key_with_a_large_norm_is_looked_at(distance, norm):
    """The worst case for a local head: one aligned key, so strong that content outweighs distance."""
    prior = Laplace(1, slopes=1.0)
    q = torch.zeros(1, 1, KEYS, SIZE, dtype=torch.float64)
    k, v = torch.zeros_like(q), torch.zeros_like(q)
    q[..., 0] = norm
    k[:, :, KEYS - 1 - distance, 0] = norm
    v[:, :, KEYS - 1 - distance] = 1
    arguments = {"prior": prior.double(), "query_start": 0}
    with torch.no_grad():
        skipped = cpu.attention(q, k, v, longest_chunk=16, **arguments)
        right = reference.attention(q, k, v, **arguments)
    torch.testing.assert_close(skipped, right, rtol=1e-12, atol=1e-12)


def reach_of(prior, content, scale=None, *, scales_prior=True, keys=4096):
    u_HL = prior.bias(torch.arange(1 - keys, 1))
    scale_H = None if scale is None else torch.full((prior.heads,), scale)
    return Reach(u_HL, torch.full((prior.heads,), content), scale_H, scales_prior=scales_prior)


def test_a_laplace_head_looks_back_as_far_as_the_bound_says():
    # near = 0, far = -distance: distance - 2U >= ln n + 24 ln 2
    rel = reach_of(Laplace(1, slopes=1.0), 3.0).first_rel(3999, 97, visible=4000)[0]
    bound = 6 + math.log(4097) + 24 * math.log(2)
    assert -rel == math.ceil(bound) - 1
    assert reach_of(Laplace(1, slopes=0.5), 3.0).first_rel(3999, 97, visible=4000)[0] < rel


def test_ssmax_shortens_the_reach_with_the_length():
    reach = reach_of(Laplace(1, slopes=0.1), 0.5, scale=0.5)
    near = reach.first_rel(100, 16, visible=101)[0]
    far = reach.first_rel(4000, 16, visible=4001)[0]
    assert near < far < 0


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_where_the_order_turns_round_all_is_looked_at(scale):
    assert reach_of(Laplace(1, slopes=10.0), 0.1, scale=scale).first_rel(4000, 16, visible=4001) == [-4095]


def test_the_first_query_looks_at_all():
    """t = ln 1 = 0 there: every logit is the same, however far."""
    assert reach_of(Laplace(1, slopes=10.0), 0.1, scale=1.0).first_rel(0, 16, visible=1) == [-4095]


@pytest.mark.parametrize("prior", [Uniform(1), GeneralizedGaussian(1, beta=-1.5, alpha=1.0)])
def test_flat_and_far_looking_heads_look_at_all(prior):
    assert reach_of(prior, 1.0).first_rel(4000, 16, visible=4001) == [-4095]


def test_a_head_that_looks_away_from_its_neighbourhood_by_a_location():
    """μ = -1000 puts the mass a thousand tokens back: those keys stay, farther ones go."""
    prior = GeneralizedGaussian(1, alpha=5.0, beta=1.0, mu=-1000.0)
    rel = reach_of(prior, 0.5).first_rel(4000, 16, visible=4001)[0]
    assert -1500 < rel < -1000


def test_content_bound_bounds():
    q, k = torch.randn(2, 3, 50, 16), torch.randn(2, 3, 70, 16)
    content = (q @ k.transpose(-1, -2)).abs().amax(dim=(0, 2, 3)) / 4
    assert (content_bound(q, k) >= content).all()


def test_local_heads_skip(monkeypatch):
    """Work that is saved is real: the fused kernel sees far fewer keys than there are."""
    seen = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def watch(q, k, v, **arguments):
        seen.append(k.shape[2] * q.shape[2] * q.shape[1])
        return fused(q, k, v, **arguments)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    skipped, right = both(Laplace(HEADS, slopes=[3.0, 0.0]), q_norm=0.1)
    torch.testing.assert_close(skipped, right, rtol=1e-9, atol=1e-9)
    triangle = KEYS * KEYS / 2
    assert 1.0 * triangle < sum(seen) < 1.6 * triangle  # one head in full, the other next to nothing
