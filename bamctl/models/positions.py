"""The two baselines that are no prior: rotary and sinusoidal positions, computed on the fly at any position.

Shapes: B batch, H heads, C positions, D head size, E model width.
"""

import torch
from torch import Tensor


def rotate(x_BHCD: Tensor, positions_C: Tensor, theta: float) -> Tensor:
    """RoPE (arXiv 2104.09864) on interleaved pairs: (x_2m, x_2m+1) turned by position · theta^(-2m/D).

    Angles are taken in float64: at position 2²⁰ an fp32 product would be off by a tenth of a radian.
    """
    head_size = x_BHCD.shape[-1]
    exponents = torch.arange(0, head_size, 2, device=x_BHCD.device, dtype=torch.float64) / head_size
    angles = positions_C.double()[:, None] * theta**-exponents
    work = torch.float64 if x_BHCD.dtype == torch.float64 else torch.float32
    cos, sin = angles.cos().to(work), angles.sin().to(work)
    even, odd = x_BHCD[..., 0::2].to(work), x_BHCD[..., 1::2].to(work)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x_BHCD.dtype)


def sinusoids(positions_C: Tensor, width: int) -> Tensor:
    """``[C, E]`` fp32: position · 10000^(-e/E), its sin in the even dimensions e, its cos in the odd ones.

    So every dimension has a frequency of its own, as in the checkpoints of arXiv 2505.22842. In
    arXiv 1706.03762 the two of a pair share one.
    """
    exponents = torch.arange(width, device=positions_C.device, dtype=torch.float64) / width
    angles = positions_C.double()[:, None] * 10000.0**-exponents
    return torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=-1).flatten(-2).float()
