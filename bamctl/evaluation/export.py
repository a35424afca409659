"""A task's prompts as files for other programs, each the very prompt that a run would ask."""

from collections.abc import Iterator
from typing import Any

from bamctl.evaluation.depths import DepthPolicy
from bamctl.evaluation.plan import plan_samples
from bamctl.tasks.base import Task


def ruler_lines(
    task: Task, *, length: int, samples: int, depths: DepthPolicy, seed: int
) -> Iterator[dict[str, Any]]:
    """The samples of one length, as RULER's own pipeline reads them.

    ``index`` is the sample's number, ``input`` the prompt without what the tokenizer puts before every text,
    ``outputs`` the references, and ``length`` RULER's: the prompt's tokens and those to generate. What RULER
    passes through as ``others`` says which sample it is and where its needles lie, in tokens.

    Raises:
        BadInput: `length` is too short for the task.
    """
    plan = plan_samples(task.spec, lengths=[length], samples=samples, depths=depths, seed=seed)
    for sample in plan[length]:
        prompt = task.build(length=length, depth=sample.depth, rng=sample.rng())
        # The chat template is part of the text; BOS and the like are what a reader's tokenizer adds.
        chat = task.tokenizer.chat is not None
        written = prompt.token_ids if chat else prompt.token_ids[len(task.tokenizer.prefix) :]
        yield {
            "index": sample.sample,
            "input": task.tokenizer.decode(written),
            "outputs": list(prompt.references),
            "length": len(prompt.token_ids) + prompt.tokens_to_generate,
            "others": {
                "id": sample.row_id,
                "depth": list(prompt.depths),
                "needle_start": [start for start, _ in prompt.needle_spans],
                "haystack_repeats": prompt.haystack_repeats,
                "roundtrip_stable": prompt.roundtrip_stable,
            },
        }
