"""The Triton kernels on a GPU: first whether they are right, then how fast. benchmarks/gpu.sh runs it.

Causal, bf16, 2^17 / length sequences at once and 16 heads, so that every length has the same number of
tokens. Each figure is seconds of one call, and ratios are taken round by round (compare.py):

    sdpa       scaled_dot_product_attention(is_causal=True) without any bias, the flash kernel
    flex       FlexAttention, compiled, with the same bias as score_mod
    dense      scaled_dot_product_attention with the bias as a dense mask, where that fits into memory
    ours       the Triton kernel: with a prior that lets nothing be skipped, and with a local one
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from compare import append_rows, percentiles, ratios, time_side_by_side
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, attention

TOKENS = 2**17
HEADS = 16
DENSE_BYTES = 8 * 2**30
"""The largest dense bias that is tried."""
HALF = torch.bfloat16


def check(device: torch.device) -> list[dict[str, Any]]:
    """The kernels against the definition in float64, forward and backward."""
    rows = []
    for dtype, tolerance in ((torch.float32, 2e-4), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        for size in (32, 64, 128):
            for name, make, ssmax in _priors(4):
                worst = _worst_error(device, make, dtype, size, ssmax)
                rows.append(
                    {
                        "what": "error",
                        "case": name,
                        "dtype": str(dtype).removeprefix("torch."),
                        "head_size": size,
                        "error": worst,
                        "right": worst < tolerance,
                    }
                )
    return rows


def _priors(heads: int) -> list[tuple[str, Callable[[], Prior], bool]]:
    return [
        ("uniform", lambda: Uniform(heads), False),
        ("laplace", lambda: Laplace(heads), False),
        ("local, SSMax", lambda: GeneralizedGaussian(heads, alpha=2.0, beta=1.3), True),
        ("ggd β -0.85, SSMax", lambda: GeneralizedGaussian(heads, alpha=1.2, beta=-0.85), True),
        ("ggd β 0.3, μ -20", lambda: GeneralizedGaussian(heads, alpha=10.0, beta=0.3, mu=-20.0), False),
    ]


def _worst_error(
    device: torch.device, make: Callable[[], Prior], dtype: torch.dtype, size: int, ssmax: bool
) -> float:
    """Of the output and of the gradients of q, k, v, each relative to its own largest value."""
    random = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {}
    q, k, v = (torch.randn(1, heads, 700, size, generator=random).to(dtype) for heads in (4, 2, 2))
    for implementation, work in (("triton", dtype), ("reference", torch.float64)):
        inputs = [x.to(device, work).requires_grad_() for x in (q, k, v)]
        prior = make().to(device)
        if work == torch.float64:
            prior = prior.double()
        scale_H = torch.full((4,), 0.25, device=device, dtype=torch.float64).to(prior_dtype(work))
        out = attention(
            *inputs,
            prior=prior,
            query_start=0,
            ssmax_scale_H=scale_H if ssmax else None,
            implementation=implementation,
        )
        out.square().sum().backward()
        found[implementation] = [out.detach(), *(x.grad for x in inputs if x.grad is not None)]
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max())
        for a, b in zip(found["triton"], found["reference"], strict=True)
    )


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
                out.backward(grad)

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
        rel_NN = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
        bias = far.bias(rel_NN.clamp(max=0)).masked_fill(rel_NN > 0, float("-inf")).to(HALF).detach()
        calls["dense"] = run(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None]))
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


def _flex(prior: GeneralizedGaussian, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor] | None:
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        rate_H, beta_H = prior.log_rate.detach().exp(), prior.beta.detach()
        epsilon = prior.EPSILON

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - rate_H[h] * ((i - j).abs() + epsilon) ** beta_H[h]

        length = q.shape[2]
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=str(q.device))
        compiled = torch.compile(flex_attention)
        compiled(q, k, v, score_mod=score_mod, block_mask=mask)
    except Exception as error:  # whatever a version of it does not do: the table goes on without
        print(f"flex: not measured ({type(error).__name__}: {str(error).splitlines()[0]})")
        return None
    return lambda: compiled(q, k, v, score_mod=score_mod, block_mask=mask)


def main() -> None:
    """Checks, measures, prints one table, appends the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="no new measurement begins after these")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("attention on a GPU: not measured (no GPU)")
        return
    started = time.monotonic()
    device = torch.device("cuda")
    rows = check(device)
    wrong = [row for row in rows if not row["right"]]
    print(f"correct: {len(rows) - len(wrong)} of {len(rows)} cases against float64")
    for row in wrong:
        print(f"  WRONG {row['case']} {row['dtype']} head size {row['head_size']}: {row['error']:.1e}")
    skipped = []
    for backward in (False, True):
        for size in (64, 128):
            for length in (4096, 16384, 65536, 131072):
                if time.monotonic() - started > arguments.seconds:
                    skipped.append((backward, size, length))
                    continue
                rows += speed(device, length, size, backward=backward, rounds=arguments.rounds)
                torch.cuda.empty_cache()
    append_rows("attention-gpu", rows)
    print(f"{'what':22}{'case':30}{'length':>8}{'head':>6}{'ms':>10}{'sdpa time / time':>20}")
    for row in rows:
        if row["what"] != "error":
            spread = f"{row['sdpa/p50']:.2f} ({row['sdpa/p20']:.2f}-{row['sdpa/p80']:.2f})"
            print(
                f"{row['what']:22}{row['case']:30}{row['length']:>8}{row['head_size']:>6}"
                f"{1000 * row['seconds']:>10.2f}{spread:>20}"
            )
    for backward, size, length in skipped:
        print(f"not measured, out of time: backward={backward}, head size {size}, length {length}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
