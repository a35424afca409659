"""The attention of the paper: priors over positions, Scalable Softmax, and implementations that agree."""

from bamctl.attention.api import IMPLEMENTATIONS, attention
from bamctl.attention.priors import GeneralizedGaussian, Laplace, Prior, Uniform, alibi_slopes
from bamctl.attention.ssmax import ScalableSoftmax

__all__ = [
    "IMPLEMENTATIONS",
    "GeneralizedGaussian",
    "Laplace",
    "Prior",
    "ScalableSoftmax",
    "Uniform",
    "alibi_slopes",
    "attention",
]
