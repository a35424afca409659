"""The configuration of a Bayesian-attention decoder, in Hugging Face form."""

import math
from typing import Any, Literal, get_args

from transformers import PretrainedConfig

PositionEncoding = Literal["ggd", "laplace", "uniform", "rotary", "sinusoidal"]
POSITION_ENCODINGS: tuple[str, ...] = get_args(PositionEncoding)

PriorValues = float | list[float] | list[list[float]]
"""One value for all heads, one a head, or one a head in each layer."""


class BamConfig(PretrainedConfig):
    """A decoder with RMSNorm, SwiGLU and no biases, whose attention has a prior over positions.

    Args:
        vocab_size: number of token ids.
        hidden_size: width of the residual stream.
        intermediate_size: width of the SwiGLU.
        num_hidden_layers: layers.
        num_attention_heads: query heads a layer.
        num_key_value_heads: key and value heads a layer; default as many as query heads.
        head_dim: size of a head; default hidden_size / num_attention_heads.
        position_encoding: ``ggd`` (BAM's generalized Gaussian), ``laplace`` (ALiBi), ``uniform`` (NoPE),
            ``rotary`` (RoPE, interleaved pairs) or ``sinusoidal`` (added to the embedding). The last two
            attend under the uniform prior.
        ssmax: Scalable Softmax, one learned factor a head and layer.
        ssmax_scales_prior: whether SSMax multiplies content and prior, or the content alone.
        shared_prior: one prior for all layers instead of one a layer.
        learned_location: whether the location μ of ``ggd`` is learned; the paper fixes it at 0.
        prior_alpha: α of ``ggd`` at the start; default 1 / ALiBi's slopes, the paper's choice.
        prior_beta: β of ``ggd`` at the start.
        prior_mu: μ of ``ggd`` at the start.
        ssmax_initial: SSMax's factor at the start.
        rms_norm_eps: ε of the norms.
        rope_theta: base of ``rotary``.
        train_length: the longest context it was trained at, in tokens; None if that is not known.
        initializer_range: standard deviation of the weights at the start.

    Raises:
        ValueError: values that describe no model; the message names the field and what it may be.
    """

    model_type = "bam"

    def __init__(
        self,
        vocab_size: int = 32768,
        hidden_size: int = 768,
        intermediate_size: int = 1536,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 16,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        position_encoding: PositionEncoding = "ggd",
        ssmax: bool = True,
        ssmax_scales_prior: bool = True,
        shared_prior: bool = False,
        learned_location: bool = False,
        prior_alpha: PriorValues | None = None,
        prior_beta: PriorValues = 1.0,
        prior_mu: PriorValues = 0.0,
        ssmax_initial: PriorValues = 1.0,
        rms_norm_eps: float = 1e-5,
        rope_theta: float = 500000.0,
        train_length: int | None = None,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        _require_counts(
            self,
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
        )
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.position_encoding = position_encoding
        self.ssmax = ssmax
        self.ssmax_scales_prior = ssmax_scales_prior
        self.shared_prior = shared_prior
        self.learned_location = learned_location
        self.prior_alpha = prior_alpha
        self.prior_beta = prior_beta
        self.prior_mu = prior_mu
        self.ssmax_initial = ssmax_initial
        self.rms_norm_eps = rms_norm_eps
        self.rope_theta = rope_theta
        self.train_length = train_length
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self.tie_word_embeddings = tie_word_embeddings
        self._check_architecture(explicit_head_dim=head_dim is not None)
        super().__init__(**{"tie_word_embeddings": tie_word_embeddings, **kwargs})

    def _check_architecture(self, *, explicit_head_dim: bool) -> None:
        _require_counts(self, "head_dim")
        if self.train_length is not None:
            _require_counts(self, "train_length", most=2**40)
        for name in (
            "ssmax",
            "ssmax_scales_prior",
            "shared_prior",
            "learned_location",
            "use_cache",
            "tie_word_embeddings",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if not explicit_head_dim and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of num_attention_heads"
                f" {self.num_attention_heads}; give head_dim to choose the head size freely"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads"
                f" {self.num_key_value_heads}"
            )
        if self.position_encoding not in POSITION_ENCODINGS:
            raise ValueError(
                f"position_encoding {self.position_encoding!r} is none of {', '.join(POSITION_ENCODINGS)}"
            )
        if self.position_encoding == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary turns pairs, so head_dim must be even, not {self.head_dim}")
        if self.position_encoding == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(f"sinusoidal needs an even hidden_size, not {self.hidden_size}")
        for name in ("rms_norm_eps", "rope_theta", "initializer_range"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0, not {value!r}")
        for name in ("prior_alpha", "prior_beta", "prior_mu", "ssmax_initial"):
            for layer in range(self.num_hidden_layers if _is_per_layer(getattr(self, name)) else 1):
                values = self.initial_values(name, layer)
                if name == "prior_alpha" and values is not None and min(values) <= 0:
                    raise ValueError(f"prior_alpha must be above 0, not {min(values)}")

    def initial_values(self, name: str, layer: int) -> list[float] | None:
        """The starting values of `name` for the heads of one layer, whichever way they were given.

        Raises:
            ValueError: neither one value, nor one a head, nor one a head and layer; or not finite.
        """
        given = getattr(self, name)
        if given is None:
            return None
        heads = self.num_attention_heads
        if _is_per_layer(given) and len(given) != self.num_hidden_layers:
            raise ValueError(f"{name} has {len(given)} layers of values for {self.num_hidden_layers} layers")
        values = given[layer] if _is_per_layer(given) else given
        values = values if isinstance(values, list) else [values] * heads
        if len(values) != heads:
            raise ValueError(f"{name} has {len(values)} values for {heads} heads")
        if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
            raise ValueError(f"{name} must hold finite numbers, not {values}")
        return [float(v) for v in values]


def _is_per_layer(given: PriorValues) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], list)


def _require_counts(config: BamConfig, *names: str, most: int = 2**20) -> None:
    """`most` is far above any model, and small enough that a product of three sizes fits into 64 bits."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 1 to {most}, not {value!r}")
