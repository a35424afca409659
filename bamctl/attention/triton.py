"""Attention under a prior on a GPU, as operators of PyTorch.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), C queries, N keys, D head size,
P values of a prior for each head, T blocks of queries.

The kernels are in `bamctl.attention.kernels`, a family a file: `forward` and `decode` (few queries over many
keys), `backward_queries` and `backward_keys`, the `bias` that they share, the search for the keys that matter
(`reach`), and what launches them (`launch`, `launch_backward`). Registered with PyTorch are
``bamctl::attention_forward`` and ``bamctl::attention_backward``, so that torch.compile takes a model that
calls `attention` as one graph.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from bamctl.attention.kernels import launch, launch_backward
from bamctl.attention.kernels.launch import UNIFORM, choose_tiles
from bamctl.attention.kernels.tiles import MOST_DECODED, Tiles
from bamctl.attention.priors import GeneralizedGaussian, Laplace, Prior, Uniform
from bamctl.attention.reach import content_bound
from bamctl.attention.ssmax import ssmax_factor

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether the kernels, once imported, are run by Triton's interpreter."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

LARGEST_HEAD = 256
"""The largest head size: the output of a block of queries must fit the registers."""

MOST_KEYS = 2**31 - 1024
"""Keys of one call are counted in 32 bits; their positions are not."""

MOST_ROWS = {2: 64, 4: 16}
"""By bytes of an element: keys are split over programs only if the queries of all heads that share them are
no more rows than this. With more a program would spill registers, and fp32 takes minutes to compile."""

SEARCH_KEYS = 512
"""With fewer keys all are looked at: to search for those that matter would take longer."""


def attention(
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    *,
    prior: Prior,
    query_start: int,
    key_start: int = 0,
    ssmax_scale_H: Tensor | None = None,
    ssmax_scales_prior: bool = True,
    longest_key_G: Tensor | None = None,
    tiles: Tiles | None = None,
    splits: int | None = None,
) -> Tensor:
    """`bamctl.attention.reference.attention`, differentiable once in everything that is learned.

    fp16 and bf16 are multiplied on tensor cores and summed in fp32; fp32 is multiplied in full (IEEE), never
    in TF32. Logits, bias and softmax are fp32 throughout. Gradients have the same bits from run to run.

    Keys that the prior makes weightless are not read, see `bamctl.attention.reach`. With few queries that
    needs `longest_key_G`, for to measure the keys would be to read them all.

    Args:
        longest_key_G: no key of a head is longer than this; measured where it is not known.
        tiles: in place of those chosen for the device.
        splits: parts that the keys are split into; default by their number and the device, 1 for none.

    Raises:
        ValueError: a dtype, head size, prior or device that there is no kernel for.
    """
    reason = why_not(q_BHCD, k_BGND, v_BGND, prior)
    if reason is not None:
        raise ValueError(reason)
    heads, queries = q_BHCD.shape[1:3]
    groups, keys = k_BGND.shape[1:3]
    kind, parameters_PH, learns_mu = _parameters(prior)
    t_HC = None
    if ssmax_scale_H is not None:
        positions_C = torch.arange(query_start, query_start + queries, device=q_BHCD.device)
        t_HC = ssmax_factor(ssmax_scale_H.float(), positions_C)

    splittable = queries <= MOST_DECODED and queries * (heads // groups) <= MOST_ROWS[q_BHCD.element_size()]
    if splits is None:
        splits = launch.BY_DEVICE if splittable else 1
    elif splits > 1 and not splittable:
        rows = queries * (heads // groups)
        raise ValueError(
            f"{queries} queries, {rows} rows for each head of keys, are too many to split the keys"
        )
    content_H = None
    sees_itself = query_start + queries <= key_start + keys
    measurable = longest_key_G is not None or not splittable
    if kind != UNIFORM and sees_itself and measurable and keys >= SEARCH_KEYS:
        with torch.no_grad():
            content_H = content_bound(q_BHCD, k_BGND, longest_key_G)
    out_BHCD: Tensor = _forward(
        q_BHCD,
        k_BGND,
        v_BGND,
        t_HC,
        parameters_PH,
        content_H,
        kind,
        learns_mu,
        ssmax_scales_prior,
        query_start - key_start,
        [] if tiles is None else [tiles.block_m, tiles.block_n, tiles.warps, tiles.stages],
        splits,
    )[0]
    return out_BHCD


def _parameters(prior: Prior) -> tuple[int, Tensor | None, bool]:
    """The kind of a prior, its values ``[P, H]`` in fp32, and whether μ is learned."""
    learns_mu = isinstance(prior, GeneralizedGaussian) and prior.mu.requires_grad
    return *launch.prior_parameters(prior), learns_mu


def why_not(q_BHCD: Tensor, k_BGND: Tensor, v_BGND: Tensor, prior: Prior) -> str | None:
    """Why there is no kernel for these inputs, in one line; None where there is one."""
    dtype, head_size = q_BHCD.dtype, q_BHCD.shape[-1]
    if dtype not in DTYPES or k_BGND.dtype != dtype or v_BGND.dtype != dtype:
        asked, there_are = (
            ", ".join(str(x) for x in of) for of in ((dtype, k_BGND.dtype, v_BGND.dtype), DTYPES)
        )
        return f"triton attention of {asked}: one of {there_are} for all three expected"
    if head_size > LARGEST_HEAD:
        return f"triton attention has heads of up to {LARGEST_HEAD}, not {head_size}"
    if not isinstance(prior, (Uniform, Laplace, GeneralizedGaussian)):
        return f"triton attention has no kernel for a {type(prior).__name__} prior"
    if k_BGND.shape[2] > MOST_KEYS:
        return f"triton attention has up to {MOST_KEYS} keys, not {k_BGND.shape[2]}"
    if q_BHCD.device.type not in (("cuda", "cpu") if INTERPRETED else ("cuda",)):
        return f"triton attention needs a GPU, or TRITON_INTERPRET=1 to debug it, not {q_BHCD.device}"
    if INTERPRETED and dtype == torch.bfloat16:
        return "triton's interpreter multiplies bfloat16 wrongly: float16 or float32 expected"
    return None


@torch.library.custom_op("bamctl::attention_forward", mutates_args=())
def _forward(
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    content_H: Tensor | None,
    kind: int,
    learns_mu: bool,
    scales_prior: bool,
    offset: int,
    tiles: list[int],
    splits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return launch.forward(
        q_BHCD,
        k_BGND,
        v_BGND,
        t_HC,
        parameters_PH,
        content_H,
        kind=kind,
        scales_prior=scales_prior,
        offset=offset,
        tiles=tiles,
        splits=splits,
    )


@_forward.register_fake
def _(
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    content_H: Tensor | None,
    kind: int,
    learns_mu: bool,
    scales_prior: bool,
    offset: int,
    tiles: list[int],
    splits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = q_BHCD.shape
    block = choose_tiles("forward", q_BHCD, tiles).block_m
    blocks = 0 if content_H is None else (queries + block - 1) // block
    return (
        torch.empty_like(q_BHCD),
        q_BHCD.new_empty((batch, heads, queries), dtype=torch.float32),
        q_BHCD.new_empty((heads, blocks), dtype=torch.int64),
    )


@torch.library.custom_op("bamctl::attention_backward", mutates_args=())
def _backward(
    d_out_BHCD: Tensor,
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    out_BHCD: Tensor,
    lse_BHC: Tensor,
    first_HT: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    kind: int,
    learns_prior: bool,
    learns_mu: bool,
    scales_prior: bool,
    offset: int,
    first_block: int,
    tiles: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return launch_backward.backward(
        d_out_BHCD,
        q_BHCD,
        k_BGND,
        v_BGND,
        out_BHCD,
        lse_BHC,
        first_HT,
        t_HC,
        parameters_PH,
        kind=kind,
        learns_prior=learns_prior,
        learns_mu=learns_mu,
        scales_prior=scales_prior,
        offset=offset,
        first_block=first_block,
        tiles=tiles,
    )


@_backward.register_fake
def _(
    d_out_BHCD: Tensor,
    q_BHCD: Tensor,
    k_BGND: Tensor,
    v_BGND: Tensor,
    out_BHCD: Tensor,
    lse_BHC: Tensor,
    first_HT: Tensor,
    t_HC: Tensor | None,
    parameters_PH: Tensor | None,
    kind: int,
    learns_prior: bool,
    learns_mu: bool,
    scales_prior: bool,
    offset: int,
    first_block: int,
    tiles: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(q_BHCD),
        torch.empty_like(k_BGND),
        torch.empty_like(v_BGND),
        lse_BHC.new_empty(0) if t_HC is None else torch.empty_like(t_HC),
        torch.empty_like(parameters_PH)
        if learns_prior and parameters_PH is not None
        else lse_BHC.new_empty(0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, t, parameters, _, kind, learns_mu, scales_prior, offset, tiles, _ = inputs
    out, lse, first = output
    ctx.mark_non_differentiable(lse, first)
    ctx.save_for_backward(q, k, v, out, lse, first, t, parameters)
    block = choose_tiles("forward", q, tiles).block_m
    ctx.arguments = (kind, learns_mu, scales_prior, offset, block, tiles)


def _differentiate(ctx: Any, d_out: Tensor, d_lse: None, d_first: None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, first, t, parameters = ctx.saved_tensors
    kind, learns_mu, scales_prior, offset, block, tiles = ctx.arguments
    learns_prior = ctx.needs_input_grad[4]
    dq, dk, dv, dt, d_parameters = _backward(
        d_out,
        q,
        k,
        v,
        out,
        lse,
        first,
        t,
        parameters,
        kind,
        learns_prior,
        learns_mu and learns_prior,
        scales_prior,
        offset,
        block,
        tiles,
    )
    return (
        dq,
        dk,
        dv,
        dt if t is not None else None,
        d_parameters if learns_prior else None,
        *[None] * 7,
    )


_forward.register_autograd(_differentiate, setup_context=_setup_context)
