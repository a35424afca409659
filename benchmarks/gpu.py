"""The Triton kernels on a GPU: first whether they are right, then how fast. benchmarks/gpu.sh runs it.

Causal, bf16, 2^17 / length sequences at once and 16 heads, so that every length has the same number of
tokens. Each figure is seconds of one call, and ratios are taken round by round (compare.py):

    sdpa       scaled_dot_product_attention(is_causal=True) without any bias, the flash kernel
    flex       FlexAttention, compiled, with the same bias as score_mod
    dense      scaled_dot_product_attention with the bias as a dense mask, where that fits into memory
    ours       the Triton kernel: with a prior that lets nothing be skipped, and with a local one

Backward, all give the gradients of q, k and v, and ours those of α and β too.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from compare import append_rows, percentiles, ratios, time_side_by_side
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, attention
from bamctl.attention.reach import longest_vector

TOKENS = 2**17
HEADS = 16
DENSE_BYTES = 8 * 2**30
"""The largest dense bias that is tried."""
HALF = torch.bfloat16

KEYS = 700
"""Of the calls that are checked."""

TOLERANCE = {"float32": 2e-4, "float16": 4e-3, "bfloat16": 3e-2}


def check() -> list[dict[str, Any]]:
    """The kernels against the definition in float64, forward and backward, with many queries and with few."""
    cases: list[dict[str, Any]] = [
        {"what": "error", "case": name, "dtype": dtype, "head_size": size, "queries": queries}
        for dtype, sizes in (("float32", (32, 64)), ("float16", (32, 64, 128)), ("bfloat16", (32, 64, 128)))
        for size, queries in (*((size, KEYS) for size in sizes), (64, 3))
        for name in _priors()
    ]
    # Nearly all of the time is the compiler's: one process would need minutes.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), context) as pool:
        errors = list(pool.map(_error, cases))
    return [
        case | {"error": error, "right": error < TOLERANCE[case["dtype"]]}
        for case, error in zip(cases, errors, strict=True)
    ]


def _priors() -> dict[str, tuple[Prior, bool]]:
    """Priors of 4 heads, and whether SSMax goes with them."""
    return {
        "uniform": (Uniform(4), False),
        "laplace": (Laplace(4), False),
        "local, SSMax": (GeneralizedGaussian(4, alpha=2.0, beta=1.3), True),
        "ggd β -0.85, SSMax": (GeneralizedGaussian(4, alpha=1.2, beta=-0.85), True),
        "ggd β 0.3, μ -20": (GeneralizedGaussian(4, alpha=10.0, beta=0.3, mu=-20.0), False),
    }


def _error(case: dict[str, Any]) -> float:
    """The largest error of a case; infinite if it cannot be compiled or launched."""
    prior, ssmax = _priors()[case["case"]]
    try:
        return _worst_error(prior, getattr(torch, case["dtype"]), case["head_size"], case["queries"], ssmax)
    except Exception as error:
        print(f"  {case}: {type(error).__name__}: {error}", flush=True)
        return math.inf


def _worst_error(prior: Prior, dtype: torch.dtype, size: int, queries: int, ssmax: bool) -> float:
    """Of the output and of the gradients of q, k, v, each relative to its own largest value."""
    device = torch.device("cuda")
    random = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {}
    # As many heads of keys in bf16 as `speed` has: what is compiled here is in Triton's cache by then.
    groups = 4 if dtype == HALF else 2
    q, k, v = (torch.randn(1, heads, KEYS, size, generator=random).to(dtype) for heads in (4, groups, groups))
    q = q[:, :, -queries:]
    for implementation, work in (("triton", dtype), ("reference", torch.float64)):
        inputs = [x.detach().to(device, work).requires_grad_() for x in (q, k, v)]
        prior = prior.to(device, prior_dtype(work))
        scale_H = torch.full((4,), 0.25, device=device, dtype=prior_dtype(work))
        out = attention(
            *inputs,
            prior=prior,
            query_start=KEYS - queries,
            ssmax_scale_H=scale_H if ssmax else None,
            # Known, it lets few queries skip keys too.
            longest_key_G=longest_vector(inputs[1].detach()) if queries < KEYS else None,
            implementation=implementation,
        )
        out.square().sum().backward()
        found[implementation] = [out.detach(), *(x.grad for x in inputs if x.grad is not None)]
    errors = [
        (a.double() - b.double()).abs().max() / b.double().abs().max()
        for a, b in zip(found["triton"], found["reference"], strict=True)
    ]
    return float(torch.stack(errors).max())  # which, unlike Python's max, is nan if any is


def prior_dtype(work: torch.dtype) -> torch.dtype:
    """Parameters of priors and SSMax are fp32 beside halves."""
    return torch.float64 if work == torch.float64 else torch.float32


def speed(
    device: torch.device, length: int, size: int, *, backward: bool, rounds: int
) -> list[dict[str, Any]]:
    """Everything at one length, side by side."""
    batch = max(1, TOKENS // length)
    q, k, v = (
        torch.randn(batch, HEADS, length, size, device=device, dtype=HALF, requires_grad=backward)
        for _ in range(3)
    )
    grad = torch.randn_like(q)
    far = GeneralizedGaussian(HEADS, beta=-0.5).to(device)
    local = Laplace(HEADS, slopes=0.5).to(device)
    scale_H = torch.full((HEADS,), 0.25, device=device)

    def run(forward: Callable[[], Tensor]) -> Callable[[], object]:
        def call() -> None:
            out = forward()
            if backward:
                torch.autograd.grad(out, (q, k, v), grad)  # leaves add nothing up from round to round

        return call

    def flash() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    calls = {
        "sdpa": run(flash),
        "ours, nothing skipped": run(lambda: attention(q, k, v, prior=far, query_start=0)),
        "ours, SSMax, nothing skipped": run(
            lambda: attention(q, k, v, prior=far, query_start=0, ssmax_scale_H=scale_H)
        ),
        "ours, local": run(lambda: attention(q, k, v, prior=local, query_start=0)),
    }
    flex = _flex(far, q, k, v)
    if flex is not None:
        calls["flex"] = run(flex)
    if HEADS * length * length * 2 <= DENSE_BYTES and not backward:
        bias = _dense(far, length)
        calls["dense"] = run(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    rows: list[dict[str, Any]] = []
    seconds = time_side_by_side(calls, rounds=rounds)
    for name, of_call in seconds.items():
        rows.append(
            {
                "what": "forward and backward" if backward else "forward",
                "case": name,
                "length": length,
                "head_size": size,
                "batch": batch,
                "seconds": percentiles(of_call)["p50"],
                **{f"sdpa/{key}": value for key, value in ratios(seconds["sdpa"], of_call).items()},
            }
        )
    return rows


def _dense(prior: GeneralizedGaussian, length: int) -> Tensor:
    """The bias of every pair, ``[1, H, N, N]``, a head at a time: for all of them fp32 would not fit."""
    with torch.no_grad():
        position_N = torch.arange(length, device=prior.beta.device)
        distance_NN = position_N[:, None] - position_N
        by_distance_HN = prior.bias(-position_N).to(HALF)
        bias_HNN = by_distance_HN.new_empty((prior.heads, length, length))
        for bias_NN, by_distance_N in zip(bias_HNN, by_distance_HN, strict=True):
            seen_NN = by_distance_N[distance_NN.clamp(min=0)]
            bias_NN.copy_(seen_NN.masked_fill_(distance_NN < 0, -math.inf))
    return bias_HNN[None]


def _flex(prior: GeneralizedGaussian, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor] | None:
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        rate_H, beta_H = prior.log_rate.detach().exp(), prior.beta.detach()
        epsilon = prior.EPSILON

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - rate_H[h] * ((i - j).abs() + epsilon) ** beta_H[h]

        length = q.shape[2]
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=str(q.device))
        # Shapes of other lengths count as recompilations, and after eight of those it would run uncompiled.
        torch.compiler.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        out = compiled(q, k, v, score_mod=score_mod, block_mask=mask)
        if out.requires_grad:  # the backward pass is compiled by the first that runs
            torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    except Exception as error:  # whatever a version of it does not do: the table goes on without
        print(f"flex: not measured ({type(error).__name__}: {str(error).partition(chr(10))[0]})")
        return None
    return lambda: compiled(q, k, v, score_mod=score_mod, block_mask=mask)


def main() -> None:
    """Checks and measures. Rows are printed and appended as they come: what breaks loses only itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="no new measurement begins after these")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("attention on a GPU: not measured (no GPU)")
        return
    started = time.monotonic()
    device = torch.device("cuda")
    checked = check()
    append_rows("attention-gpu", checked)
    wrong = [row for row in checked if not row["right"]]
    print(f"correct: {len(checked) - len(wrong)} of {len(checked)} cases against float64")
    for row in wrong:
        case = f"{row['case']} {row['dtype']} head size {row['head_size']} queries {row['queries']}"
        print(f"  WRONG {case}: {row['error']:.1e}")
    print(f"{'what':22}{'case':30}{'length':>8}{'head':>6}{'ms':>10}{'sdpa time / time':>20}")
    for backward in (False, True):
        for size in (64, 128):
            for length in (4096, 16384, 65536, 131072):
                call = f"backward={backward}, head size {size}, length {length}"
                if time.monotonic() - started > arguments.seconds:
                    print(f"not measured, out of time: {call}")
                    continue
                try:
                    rows = speed(device, length, size, backward=backward, rounds=arguments.rounds)
                except Exception as error:  # such as too little memory: other lengths may do
                    print(f"not measured, {type(error).__name__}: {call}: {error}")
                    continue
                finally:
                    torch.cuda.empty_cache()
                append_rows("attention-gpu", rows)
                for row in rows:
                    spread = f"{row['sdpa/p50']:.2f} ({row['sdpa/p20']:.2f}-{row['sdpa/p80']:.2f})"
                    print(
                        f"{row['what']:22}{row['case']:30}{row['length']:>8}{row['head_size']:>6}"
                        f"{1000 * row['seconds']:>10.2f}{spread:>20}"
                    )
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
