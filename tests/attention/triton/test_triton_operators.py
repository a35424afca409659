"""What is registered with PyTorch: the operators' checks, and graphs without a break."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, ScalableSoftmax, Uniform, attention


def _inputs(device: torch.device, requires_grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, n, 16, generator=random).to(device) for h, n in ((2, 3), (1, 17), (1, 17)))
    return tuple(x.requires_grad_(requires_grad) for x in (q, k, v))  # type: ignore[return-value]


@pytest.mark.parametrize(("splits", "full"), [(1, True), (3, False)])
def test_the_operators_keep_their_promises(splits: int, full: bool, device: torch.device) -> None:
    """Schema, fake tensors, autograd registration and tracing, by PyTorch's own checks."""
    from bamctl.attention import triton
    from bamctl.attention.kernels import launch

    q, k, v = _inputs(device)
    t = torch.rand(2, 3, device=device, requires_grad=True) if full else None
    parameters = torch.tensor([[0.1, 0.2], [0.5, -0.4], [0.0, 1.0]], device=device, requires_grad=True)
    content = torch.tensor([3.0, 3.0], device=device) if full else None
    arguments = (
        *(q, k, v, t),
        parameters if full else None,
        content,
        launch.GENERALIZED_GAUSSIAN if full else launch.UNIFORM,
        *(True, True, 14, [16, 16, 4, 1], splits),
    )
    torch.library.opcheck(triton._forward, arguments)

    with torch.no_grad():
        out, lse, first = triton._forward(*arguments)
    backward = (
        *(torch.randn_like(out), q, k, v, out, lse, first, t),
        parameters if full else None,
        launch.GENERALIZED_GAUSSIAN if full else launch.UNIFORM,
        *(full, full, True, 14, 16, [16, 16, 4, 1]),
    )
    # No autograd of its own: the gradient of a gradient is refused.
    detached = [x.detach() if isinstance(x, Tensor) else x for x in backward]
    torch.library.opcheck(triton._backward, detached, test_utils=("test_schema", "test_faketensor"))


PRIORS = {
    "uniform": lambda: Uniform(2),
    "Laplace": lambda: Laplace(2, learned=True),
    "generalized Gaussian": lambda: GeneralizedGaussian(2, alpha=[1.0, 3.0], beta=[0.5, -0.5]),
}


class _Layer(torch.nn.Module):
    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior
        self.ssmax = ScalableSoftmax(prior.heads, initial=0.4)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, query_start: int) -> Tensor:
        return attention(
            q,
            k,
            v,
            prior=self.prior,
            query_start=query_start,
            ssmax_scale_H=self.ssmax.scale,
            implementation="triton",
        )


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_one_graph_and_the_same_numbers(
    prior: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bamctl.attention import triton

    monkeypatch.setattr(triton, "SEARCH_KEYS", 0)
    torch._dynamo.reset()
    layer = _Layer(prior()).to(device)
    q, k, v = _inputs(device)
    eager = layer(q, k, v, 14)
    eager_gradients = torch.autograd.grad(eager.square().sum(), [q, k, v, *layer.parameters()])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v, 14)
    gradients = torch.autograd.grad(compiled.square().sum(), [q, k, v, *layer.parameters()])
    assert torch.equal(eager, compiled)
    assert all(torch.equal(a, b) for a, b in zip(eager_gradients, gradients, strict=True))


def test_positions_may_change_from_call_to_call(device: torch.device) -> None:
    """A cache that grows compiles no new graph for every token."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    layer = _Layer(Laplace(2)).to(device).requires_grad_(False)
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    q, k, v = _inputs(device, requires_grad=False)
    for end in (11, 13, 15, 17):
        arguments = (q[:, :, :1], k[:, :, :end], v[:, :, :end], end - 1)
        assert torch.equal(compiled(*arguments), layer(*arguments))
    assert counter.frame_count <= 2
