"""An engine of several ranks, which start this file anew: asked and answered in JSON."""

import json
import sys
from pathlib import Path
from typing import Any


def main(asked: Path, answered: Path) -> None:
    from vllm import LLM, SamplingParams

    task: dict[str, Any] = json.loads(asked.read_text())
    engine = LLM(
        task["folder"],
        **{
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 4096,
            "max_num_batched_tokens": 1024,
            "block_size": 16,
            "kv_cache_memory_bytes": 16 * 2**20,
            "distributed_executor_backend": "mp",
            **task["options"],
        },
    )
    sampling = SamplingParams(temperature=0, max_tokens=task["count"], ignore_eos=True, logprobs=1)
    outputs = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in task["prompts"]], sampling, use_tqdm=False
    )
    answers = []
    for output in outputs:
        tokens = list(output.outputs[0].token_ids)
        places = output.outputs[0].logprobs
        answers.append((tokens, [place[token].logprob for token, place in zip(tokens, places, strict=True)]))
    answered.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
