"""The reference's log-probability and the greedy answer, with as few calls of the model as they need.

Every call reads the keys and values of the whole prompt, however few its tokens. Scoring the reference is one
call of all its tokens; its logits are also what greedy generation would see for as long as it chooses the
reference's tokens. So generation takes its tokens from there up to the first other one, which is known too,
and goes on behind it: speculative decoding (arXiv 2211.17192), with the reference as the draft. The tokens
are those of plain generation, save where two logits are equal within rounding.

Shapes: B prompts of one length, A tokens of the longest reference, K = A + 1, V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bamctl.models.cache import PreallocatedCache
from bamctl.models.modeling import BamForCausalLM


@dataclass(kw_only=True)
class Answer:
    """What became of one prompt."""

    limit: int
    """The most tokens to generate."""
    logprob: float
    """ln p of the reference, in nats."""
    tokens: list[int] = field(default_factory=list)
    """Greedy tokens, without the end of sequence."""
    stopped: bool = False
    """Whether the model ended its answer."""

    @property
    def complete(self) -> bool:
        """Whether no further token is wanted."""
        return self.stopped or len(self.tokens) >= self.limit

    def add(self, token: int, ends: Collection[int]) -> None:
        """Takes the next token, unless there are enough."""
        if self.complete:
            return
        if token in ends:
            self.stopped = True
        else:
            self.tokens.append(token)


def decode(
    model: BamForCausalLM,
    cache: PreallocatedCache,
    next_BV: Tensor,
    *,
    references: Sequence[tuple[int, ...]],
    limits: Sequence[int],
    ends: Collection[int],
) -> list[Answer]:
    """Scores each prompt's reference and generates greedily.

    Args:
        model: what to ask.
        cache: of the prompts; it is left longer than it was.
        next_BV: logits of the token after each prompt.
        references: tokens that are to follow each prompt, one or more.
        limits: how many tokens to generate for each prompt.
        ends: tokens that end an answer.
    """
    prompt_length = cache.length
    longest = max(map(len, references))
    # What stands behind a shorter reference is never looked at: attention is causal.
    draft_BA = torch.tensor(
        [[*ids, *[0] * (longest - len(ids))] for ids in references], device=next_BV.device
    )
    logits_BKV = torch.cat((next_BV[:, None], model(draft_BA, cache=cache).logits), dim=1)
    logprobs_BA = logits_BKV[:, :-1].log_softmax(dim=-1).gather(-1, draft_BA[..., None])[..., 0].tolist()
    answers = [
        Answer(limit=limit, logprob=sum(row[: len(ids)]))
        for row, ids, limit in zip(logprobs_BA, references, limits, strict=True)
    ]
    for answer, ids, greedy in zip(answers, references, logits_BKV.argmax(dim=-1).tolist(), strict=True):
        for token, drafted in zip(greedy, [*ids, None], strict=False):  # None: behind the reference
            answer.add(token, ends)
            if token != drafted:
                break

    unfinished = [answer for answer in answers if not answer.complete]
    # The last token known is not read yet; of several prompts the one goes first that knows least.
    read = min((len(answer.tokens) - 1 for answer in unfinished), default=0)
    cache.truncate(prompt_length + read)
    while any(not answer.complete for answer in answers):
        step_B1 = torch.tensor(
            [[answer.tokens[read] if read < len(answer.tokens) else 0] for answer in answers],
            device=next_BV.device,
        )
        chosen = model(step_B1, cache=cache).logits[:, -1].argmax(dim=-1).tolist()
        read += 1
        for answer, token in zip(answers, chosen, strict=True):
            if len(answer.tokens) == read:
                answer.add(token, ends)
    return answers
