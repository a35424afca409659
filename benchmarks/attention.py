"""Attention under a prior on the CPU, side by side with attention without one.

    python benchmarks/attention.py                      # all of it, on 1 and on 2 threads: half an hour
    python benchmarks/attention.py --threads 2 --lengths 8k,16k --rounds 5

Causal, fp32, batch 1, every query and key of one length; each figure is a ratio within a round.

    throughput      of scaled_dot_product_attention(is_causal=True), which knows no bias: 1 is as fast.
    flex            how many times as long FlexAttention takes, compiled, with the same bias as score_mod.
    linear          seconds at twice the length over seconds at the length: 2 is linear, 4 quadratic.
"""

import argparse
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from compare import append_rows, percentiles, ratios, time_side_by_side
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bamctl.attention import GeneralizedGaussian, Laplace, Prior, Uniform, attention
from bamctl.lengths import format_length, parse_lengths

HEADS = 2
SSMAX_SCALE = 0.25

NO_SKIPPING: dict[str, tuple[Callable[[int], Prior], bool]] = {
    "uniform": (lambda heads: Uniform(heads), False),
    "ggd β -0.5": (lambda heads: GeneralizedGaussian(heads, beta=-0.5), False),
    "ggd β 0.3 α 1e4": (lambda heads: GeneralizedGaussian(heads, beta=0.3, alpha=1e4), False),
    "ggd β -0.85, SSMax": (lambda heads: GeneralizedGaussian(heads, beta=-0.85, alpha=1.2), True),
    "ggd β -1.8, SSMax": (lambda heads: GeneralizedGaussian(heads, beta=-1.8), True),
}


def inputs(length: int, head_size: int, heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one length."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, head_size, generator=random) for _ in range(3))
    return q, k, v


def throughput(length: int, head_size: int, rounds: int) -> list[dict[str, object]]:
    """Priors that allow no key to be left out, against no prior at all."""
    q, k, v = inputs(length, head_size)
    scale_H = torch.full((HEADS,), SSMAX_SCALE)
    calls: dict[str, Callable[[], object]] = {
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    }
    for name, (make, ssmax) in NO_SKIPPING.items():
        prior = make(HEADS)
        calls[name] = lambda prior=prior, ssmax=ssmax: attention(
            q, k, v, prior=prior, query_start=0, ssmax_scale_H=scale_H if ssmax else None
        )
    seconds = time_side_by_side(calls, rounds=rounds)
    return [
        {
            "what": "throughput",
            "case": name,
            "length": length,
            "head_size": head_size,
            "seconds": percentiles(seconds[name])["p50"],
            **ratios(seconds["sdpa"], seconds[name]),
        }
        for name in NO_SKIPPING
    ]


def flex(length: int, head_size: int, rounds: int) -> list[dict[str, object]]:
    """FlexAttention, compiled, with the prior as its score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = inputs(length, head_size)
    prior = GeneralizedGaussian(HEADS, beta=-0.5)
    rate_H, beta_H = prior.log_rate.detach().exp(), prior.beta.detach()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - rate_H[h] * ((i - j).abs() + prior.EPSILON) ** beta_H[h]

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention)
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: attention(q, k, v, prior=prior, query_start=0),
        "flex": lambda: compiled(q, k, v, score_mod=score_mod, block_mask=mask),
    }
    torch.testing.assert_close(calls["flex"](), calls["ours"](), rtol=1e-3, atol=1e-4)
    seconds = time_side_by_side(calls, rounds=rounds)
    row: dict[str, object] = {
        "what": "flex",
        "case": "ggd β -0.5",
        "length": length,
        "head_size": head_size,
        "seconds": percentiles(seconds["ours"])["p50"],
        **ratios(seconds["flex"], seconds["ours"]),
    }
    return [row]


def linear(length: int, head_size: int, rounds: int) -> list[dict[str, object]]:
    """Decaying heads at a length and at twice it."""
    cases: dict[str, tuple[Prior, Tensor | None]] = {
        "laplace slope 0.5": (Laplace(1, slopes=0.5), None),
        "laplace slope 0.01": (Laplace(1, slopes=0.01), None),
        "ggd β 1.3, SSMax": (GeneralizedGaussian(1, beta=1.3, alpha=2.0), torch.tensor([SSMAX_SCALE])),
    }
    short, long = inputs(length, head_size, heads=1), inputs(2 * length, head_size, heads=1)
    rows: list[dict[str, object]] = []
    for name, (prior, scale_H) in cases.items():
        seconds = time_side_by_side(
            {
                which: lambda qkv=qkv, prior=prior, scale_H=scale_H: attention(
                    *qkv, prior=prior, query_start=0, ssmax_scale_H=scale_H
                )
                for which, qkv in (("short", short), ("long", long))
            },
            rounds=rounds,
        )
        rows.append(
            {
                "what": "linear",
                "case": name,
                "length": length,
                "head_size": head_size,
                "seconds": percentiles(seconds["short"])["p50"],
                **ratios(seconds["long"], seconds["short"]),
            }
        )
    return rows


def main() -> None:
    """Runs what is asked for and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="1,2")
    parser.add_argument("--lengths", default="8k,16k,32k,64k", help="of the throughput")
    parser.add_argument("--head-sizes", default="32,64")
    parser.add_argument("--linear-length", default="128k")
    parser.add_argument("--rounds", type=int, help="default: as many as take a minute or so, 3 to 9")
    parser.add_argument("--skip-flex", action="store_true")
    arguments = parser.parse_args()

    table = Table("what", "case", "threads", "length", "head", "seconds", "ratio", "p20 … p80")
    torch.set_grad_enabled(False)
    for threads in (int(x) for x in arguments.threads.split(",")):
        torch.set_num_threads(threads)
        rows: list[dict[str, object]] = []
        for head_size in (int(x) for x in arguments.head_sizes.split(",")):
            for length in parse_lengths(arguments.lengths):
                rounds = arguments.rounds or max(3, min(9, math.ceil(2**31 / length**2)))
                rows += throughput(length, head_size, rounds)
        if not arguments.skip_flex:
            rows += flex(8192, 64, arguments.rounds or 5)
        (linear_length,) = parse_lengths(arguments.linear_length)
        rows += linear(linear_length, 64, arguments.rounds or 5)
        append_rows("attention-cpu", rows)
        for row in rows:
            table.add_row(
                str(row["what"]),
                str(row["case"]),
                str(threads),
                format_length(int(str(row["length"]))),
                str(row["head_size"]),
                f"{row['seconds']:.2f}",
                f"{row['p50']:.2f}",
                f"{row['p20']:.2f} … {row['p80']:.2f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
