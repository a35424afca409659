"""Muon, in fp32: torch's own works in bfloat16, ten times slower on a CPU with no instructions for it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal (K. Jordan, kellerjordan.github.io/posts/muon).

    Args:
        params: matrices, or groups of them.
        lr: a step's size: its singular values are about lr · √max(1, rows / columns).
        weight_decay: as in AdamW.
    """

    def __init__(
        self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], *, lr: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, along Nesterov's momentum."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum"].lerp_(parameter.grad, 1 - MOMENTUM)
                step = orthogonalised(parameter.grad.lerp(momentum, MOMENTUM))
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """U S V^T with all singular values brought near 1, between about 0.7 and 1.2."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x
