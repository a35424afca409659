"""What a configuration of transformers says of positions: their encoding, their number, their scaling.

Every architecture has its own words for it; those that are in use are listed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIMITS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "max_seq_length",
    "seq_length",
    "n_ctx",
    "context_length",
)
"""Fields that may hold the number of positions, the first that is there counts."""

ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""Two names of one thing: the first since transformers 5."""

_ROTARY = (*ROPE_FIELDS, "rope_theta", "rotary_dim", "rotary_pct", "rotary_emb_base", "rope")
_STATE_SPACE = ("state_size", "mamba_d_state", "ssm_cfg", "attention_hidden_size", "lru_width")
_NEEDS_ORIGINAL = ("yarn", "longrope", "llama3")
"""Scalings that start from the length before scaling."""


@dataclass(frozen=True, kw_only=True)
class FrequencySwitch:
    """Rotary frequencies that depend on how long a text is."""

    at: int
    """Up to so many tokens they are those of training."""
    once: bool
    """Whether they are the same for all longer texts (longrope), or others for every length (dynamic)."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """What there is to know before a model is loaded."""

    encoding: str
    """``rotary``, ``laplace`` (ALiBi), ``learned``, ``state-space`` (none of its own), or ``unknown``."""
    train_length: int | None
    """Tokens, before any scaling; None where it is not known."""
    limit: int | None
    """The most positions; None where the model has no limit of its own."""
    field: str | None
    """The field that says so."""
    switch: FrequencySwitch | None


def describe_positions(config: Any, *, plain: Any, stretched: bool, learned: bool) -> Positions:
    """Reads a configuration.

    Args:
        config: what runs, a ``PreTrainedConfig``.
        plain: the same without what the user has changed.
        stretched: whether the user gave a rope scaling. One that the checkpoint came with is taken to be in
            its own limit already, which is how checkpoints are published, except for YaRN's.
        learned: whether the model has a table of position embeddings.
    """
    field, declared = _declared(config)
    _, trained = _declared(plain)
    kind = _encoding(config, learned=learned)
    if kind == "laplace" and field != "max_seq_len":  # MPT builds its slopes for so many positions
        return Positions(encoding=kind, train_length=trained, limit=None, field=None, switch=None)
    rope = rope_of(config)
    kind_of_rope = rope.get("rope_type", rope.get("type", "default"))
    original = (
        getattr(plain, "original_max_position_embeddings", None)
        or rope_of(plain).get("original_max_position_embeddings")
        or trained
    )
    limit = declared
    factor = rope.get("factor")
    if limit is not None and isinstance(factor, (int, float)) and (stretched or kind_of_rope == "yarn"):
        base = rope.get("original_max_position_embeddings") or original or limit
        limit = max(limit, int(base * factor))
    switch = None
    if kind_of_rope in ("longrope", "dynamic"):
        at = rope.get("original_max_position_embeddings") if kind_of_rope == "longrope" else declared
        switch = FrequencySwitch(at=at or original or 0, once=kind_of_rope == "longrope")
    return Positions(encoding=kind, train_length=original, limit=limit, field=field, switch=switch)


def with_rope_scaling(given: Mapping[str, Any], plain: Any) -> dict[str, Any]:
    """A rope scaling as a user writes it, with what it leaves out: the base, and the length before scaling.

    Args:
        given: ``{"rope_type": "yarn", "factor": 4.0}``; of a model whose kinds of layers each have their own,
            ``{"full_attention": {...}}``.
        plain: the configuration without it.
    """
    before: Mapping[str, Any] = getattr(plain, "rope_parameters", None) or {}
    if any(isinstance(value, Mapping) for value in before.values()):
        return {**before, **{key: {**before.get(key, {}), **value} for key, value in given.items()}}
    kept = {key: before[key] for key in ("rope_theta", "partial_rotary_factor") if key in before}
    kind = given.get("rope_type", given.get("type"))
    if kind in _NEEDS_ORIGINAL:
        original = before.get("original_max_position_embeddings") or _declared(plain)[1]
        kept["original_max_position_embeddings"] = original
    return {**kept, **given}


def rope_of(config: Any) -> Mapping[str, Any]:
    """The rotary parameters of the layers that look far; empty where there are none."""
    for name in ROPE_FIELDS:
        rope = getattr(config, name, None)
        if isinstance(rope, Mapping) and rope:
            far = rope.get("full_attention")
            return far if isinstance(far, Mapping) else rope
    return {}


def _declared(config: Any) -> tuple[str | None, int | None]:
    for name in LIMITS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return name, value
    return None, None


def _encoding(config: Any, *, learned: bool) -> str:
    attention = getattr(config, "attn_config", None)  # of MPT: a configuration or a dictionary
    nested = attention.get("alibi") if isinstance(attention, Mapping) else getattr(attention, "alibi", None)
    if config.model_type == "bloom" or getattr(config, "alibi", None) or nested:
        return "laplace"
    if learned:
        return "learned"
    if any(getattr(config, name, None) for name in _ROTARY):
        return "rotary"
    if any(getattr(config, name, None) is not None for name in _STATE_SPACE):
        return "state-space"
    return "unknown"
