"""Scalable Softmax (arXiv 2501.19399): logits grow with the logarithm of the number of keys.

A softmax over n keys flattens as n grows; multiplied by s · ln n it does not. For a query at absolute
position i the number of visible keys is n = i + 1.
"""

import torch
from torch import Tensor, nn


class ScalableSoftmax(nn.Module):
    """The learned factor s_h of each head.

    Args:
        heads: H.
        initial: s_h at the start.
    """

    def __init__(self, heads: int, *, initial: float | list[float] = 1.0) -> None:
        super().__init__()
        self.initial = initial
        self.scale = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts the initial values back."""
        with torch.no_grad():
            self.scale.copy_(torch.as_tensor(self.initial, dtype=torch.float64))


def ssmax_factor(scale_H: Tensor, query_positions_C: Tensor) -> Tensor:
    """t_hi = s_h · ln(i + 1), ``[H, C]`` in the dtype of `scale_H`, the logarithm taken in float64."""
    log_n_C = torch.log1p(query_positions_C.double()).to(scale_H.dtype)
    return scale_H[:, None] * log_n_C
