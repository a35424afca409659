"""Gradients of everything that is learned: against autograd through the definition, and by differences."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, attention, cpu, reference
from bamctl.attention.cpu import differentiable

PRIORS: dict[str, Callable[[], Prior]] = {
    "uniform": lambda: Uniform(4),
    "fixed slopes": lambda: Laplace(4),
    "learned slopes": lambda: Laplace(4, learned=True),
    "generalized Gaussian": lambda: GeneralizedGaussian(
        4,
        alpha=[0.7, 2.0, 5.0, 1.0],
        beta=[-1.2, 0.4, 1.0, 0.0],
        mu=[0.3, -2.4, 0.0, 1.6],
        learned=("alpha", "beta", "mu"),
    ),
}


def _gradients(
    attend: Callable[..., Tensor], inputs: Any, prior: Prior, scale_H: Tensor | None, **kwargs: Any
) -> dict[str, Tensor]:
    prior = copy.deepcopy(prior)
    q, k, v = (x.detach().clone().requires_grad_() for x in inputs)
    leaves = {"q": q, "k": k, "v": v, **dict(prior.named_parameters())}
    if scale_H is not None:
        leaves["ssmax"] = scale_H.detach().clone().requires_grad_()
    out = attend(q, k, v, prior=prior, ssmax_scale_H=leaves.get("ssmax"), **kwargs)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (out * weights).sum().backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    assert all(gradient is not None for gradient in gradients.values())
    return gradients  # type: ignore[return-value]


@pytest.mark.parametrize("make_prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("longest_chunk", [512, 7, 1])
@pytest.mark.parametrize(
    ("scale", "scaled"), [(None, True), ([0.5, -0.2, 0.0, 1.1], True), ([0.5, -0.2, 0.0, 1.1], False)]
)
@pytest.mark.parametrize(
    "place", [(21, 21, 0, 0), (10, 31, 21, 0), (5, 12, 20, 4)], ids=["whole", "middle", "gap"]
)
def test_agree_with_the_reference(
    make_prior: Callable[[], Prior],
    longest_chunk: int,
    scale: list[float] | None,
    scaled: bool,
    place: tuple[int, int, int, int],
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(differentiable, "LONGEST_CHUNK", longest_chunk)
    queries, keys, query_start, key_start = place
    inputs = make_inputs(queries=queries, keys=keys, groups=2, head_size=8)
    prior = in_float64(make_prior())
    scale_H = None if scale is None else torch.tensor(scale, dtype=torch.float64)
    arguments = {"query_start": query_start, "key_start": key_start, "ssmax_scales_prior": scaled}
    expected = _gradients(reference.attention, inputs, prior, scale_H, **arguments)
    actual = _gradients(cpu.attention, inputs, prior, scale_H, **arguments)
    assert expected.keys() == actual.keys()
    for name in expected:
        scale_of_gradient = max(1.0, expected[name].abs().max().item())
        assert (actual[name] - expected[name]).abs().max() < 1e-11 * scale_of_gradient, name


@pytest.mark.parametrize("make_prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("limit", [1, 4000])
def test_a_small_limit_of_memory_changes_nothing(
    make_prior: Callable[[], Prior],
    limit: int,
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = make_inputs(queries=15, keys=20, head_size=4)
    prior = in_float64(make_prior())
    scale_H = torch.full((4,), 0.7, dtype=torch.float64)
    whole = _gradients(cpu.attention, inputs, prior, scale_H, query_start=5)
    monkeypatch.setattr(differentiable, "CHUNK_BYTES", limit)
    cut = _gradients(cpu.attention, inputs, prior, scale_H, query_start=5)
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("longest_chunk", [512, 2])
def test_agree_with_differences(
    scaled: bool,
    longest_chunk: int,
    make_inputs: Callable[..., Any],
    in_float64: Callable[[Prior], Prior],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(differentiable, "LONGEST_CHUNK", longest_chunk)
    q, k, v = make_inputs(queries=3, keys=5, heads=2, groups=1, head_size=2, batch=1, requires_grad=True)
    prior = in_float64(
        GeneralizedGaussian(
            2, alpha=[1.5, 0.8], beta=[0.7, -0.6], mu=[-1.3, 0.4], learned=("alpha", "beta", "mu")
        )
    )
    scale_H = torch.tensor([0.6, -0.3], dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in prior.named_parameters()]

    def attend(q: Tensor, k: Tensor, v: Tensor, scale_H: Tensor, *values: Tensor) -> Tensor:
        def call(prior: nn.Module) -> Tensor:
            return cpu.attention(
                q,
                k,
                v,
                prior=prior,  # type: ignore[arg-type]
                query_start=2,
                ssmax_scale_H=scale_H,
                ssmax_scales_prior=scaled,
            )

        return _with_values(prior, dict(zip(names, values, strict=True)), call)

    values = [parameter.detach().clone().requires_grad_() for parameter in prior.parameters()]
    assert torch.autograd.gradcheck(attend, (q, k, v, scale_H, *values), eps=1e-6, atol=1e-7)


def _with_values(prior: Prior, values: dict[str, Tensor], call: Callable[[Prior], Tensor]) -> Tensor:
    """`call` with a prior of the same kind whose parameters are these tensors of the graph."""

    class Bound(Prior):
        def bias(self, rel: Tensor) -> Tensor:
            return torch.func.functional_call(
                _Bias(prior), {f"prior.{n}": x for n, x in values.items()}, (rel,)
            )

        def highest(self, first_rel: Tensor, last_rel: Tensor) -> Tensor:
            return prior.highest(first_rel, last_rel)

        def reset_parameters(self) -> None: ...

    return call(Bound(prior.heads))


class _Bias(nn.Module):
    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def forward(self, rel: Tensor) -> Tensor:
        return self.prior.bias(rel)


@pytest.mark.parametrize(("rows", "offsets"), [(1, 1), (1, 6), (4, 4), (3, 8), (8, 9)])
def test_toeplitz_matrix_and_its_gradient(rows: int, offsets: int) -> None:
    w_HL = torch.randn(2, offsets, dtype=torch.float64, requires_grad=True)
    matrix = differentiable._Toeplitz.apply(w_HL, rows)
    assert matrix.shape == (2, rows, offsets - rows + 1)
    for y in range(rows):  # the last row is w from its start
        assert torch.equal(matrix[:, rows - 1 - y], w_HL[:, y : y + offsets - rows + 1])
    assert torch.autograd.gradcheck(differentiable._Toeplitz.apply, (w_HL, rows))


def test_toeplitz_of_a_slice() -> None:
    """Chunks take a slice of one long vector, whose heads lie far apart."""
    whole = torch.randn(3, 50, dtype=torch.float64, requires_grad=True)
    matrix = differentiable._Toeplitz.apply(whole[:, 10:21], 4)
    assert torch.equal(matrix[:, 1], whole[:, 12:20])
    assert torch.autograd.gradcheck(lambda w: differentiable._Toeplitz.apply(w[:, 10:21], 4), (whole,))


def test_without_a_gradient_to_take_nothing_is_recorded(make_inputs: Callable[..., Any]) -> None:
    inputs = make_inputs(queries=4, keys=4)
    prior = GeneralizedGaussian(4)
    assert attention(*inputs, prior=prior, query_start=0).requires_grad  # the prior's own parameters
    prior.requires_grad_(False)
    assert not attention(*inputs, prior=prior, query_start=0).requires_grad


def test_a_step_towards_a_lower_loss_lowers_it(make_inputs: Callable[..., Any]) -> None:
    """The signs are right all the way from the loss to α, β, μ and s."""
    inputs = make_inputs(queries=30, keys=30, dtype=torch.float32)
    prior = GeneralizedGaussian(4, alpha=4.0, beta=0.8, mu=-1.0, learned=("alpha", "beta", "mu"))
    scale_H = torch.full((4,), 0.5, requires_grad=True)
    target = inputs.v.roll(3, dims=2)

    def loss() -> Tensor:
        out = attention(*inputs, prior=prior, query_start=0, ssmax_scale_H=scale_H)
        return (out - target)[:, :, 3:].square().mean()

    for parameter in (*prior.parameters(), scale_H):
        before = loss()
        (gradient,) = torch.autograd.grad(before, parameter)
        with torch.no_grad():
            parameter -= 1e-2 * gradient / gradient.norm()
        assert loss() < before
