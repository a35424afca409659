"""Reading a prompt with the shipped checkpoint, side by side with a straightforward quadratic implementation.

    python benchmarks/prefill.py                  # 8k and 32k tokens: about five minutes
    python benchmarks/prefill.py --lengths 8k --rounds 5

Both run the same weights on the same prompt. The straightforward one adds a dense bias to all scores, one
chunk of queries after another so that memory suffices, and computes every layer in full; its logits are
compared with ours before anything is timed.
"""

import argparse
from typing import Any

import torch
from compare import append_rows, percentiles, ratios, time_side_by_side
from torch import Tensor

import bamctl.models.modeling as modeling
from bamctl.attention import reference
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples
from bamctl.lengths import format_length, parse_lengths
from bamctl.models.cache import PreallocatedCache
from bamctl.models.loading import open_checkpoint
from bamctl.tasks.catalog import build_task, load_spec

OURS = modeling.attention
CHUNK = 512
PREFILL_CHUNK = 4096


def quadratic_attention(q_BHCD: Tensor, k_BGND: Tensor, v_BGND: Tensor, **arguments: Any) -> Tensor:
    """The definition, over all keys that a chunk of queries sees."""
    start = arguments.pop("query_start")
    chunks = []
    for first in range(0, q_BHCD.shape[2], CHUNK):
        q = q_BHCD[:, :, first : first + CHUNK]
        visible = start + first + q.shape[2]
        chunks.append(
            reference.attention(
                q, k_BGND[:, :, :visible], v_BGND[:, :, :visible], query_start=start + first, **arguments
            )
        )
    return torch.cat(chunks, dim=2)


def main() -> None:
    """Compares, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", default="8k,32k")
    parser.add_argument("--model", default="tiny-bam-ssmax")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    checkpoint = open_checkpoint(arguments.model)
    model = checkpoint.load(device=torch.device("cpu"), dtype="float32")
    spec = load_spec("passkey")
    task = build_task(spec, checkpoint.tokenizer)
    rows = []
    for length in parse_lengths(arguments.lengths):
        plan = plan_samples(spec, lengths=[length], samples=1, depths=parse_depths("50%", 1), seed=0)
        (sample,) = plan[length]
        prompt = task.build(length=length, depth=sample.depth, rng=sample.rng())
        ids = torch.from_numpy(prompt.token_ids).long()[None]

        def ours(ids: Tensor = ids) -> Tensor:
            modeling.attention = OURS
            cache = PreallocatedCache(model.config.num_hidden_layers, capacity=ids.shape[1])
            return model.prefill(ids, cache, chunk_size=PREFILL_CHUNK)

        def quadratic(ids: Tensor = ids) -> Tensor:
            modeling.attention = quadratic_attention
            hidden = model.model(ids, use_cache=False).last_hidden_state
            return model.lm_head(hidden[:, -1])

        difference = float((ours() - quadratic()).abs().max())
        seconds = time_side_by_side({"ours": ours, "quadratic": quadratic}, rounds=arguments.rounds)
        ratio = ratios(seconds["quadratic"], seconds["ours"])
        rows.append(
            {
                "what": "prefill",
                "case": arguments.model,
                "length": length,
                "seconds": percentiles(seconds["ours"])["p50"],
                "quadratic_seconds": percentiles(seconds["quadratic"])["p50"],
                "logit_difference": difference,
                **ratio,
            }
        )
        print(
            f"{format_length(length)}: {rows[-1]['seconds']:.2f} s,"
            f" straightforwardly {rows[-1]['quadratic_seconds']:.1f} s:"
            f" {ratio['p50']:.0f} times ({ratio['p20']:.0f} to {ratio['p80']:.0f});"
            f" logits differ by at most {difference:.1e}",
            flush=True,
        )
    append_rows("prefill-cpu", rows)


if __name__ == "__main__":
    main()
