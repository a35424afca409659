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
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bamctl.backends.base import Completion
from bamctl.models.cache import PreallocatedCache
from bamctl.models.modeling import BamForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


def following_logprobs(logits_KV: Tensor, following_K: Tensor) -> NDArray[np.float64]:
    """ln p of the token behind each of K positions, in nats ``[K]``; the sum over V is in fp32 or float64."""
    chosen_K = logits_KV.gather(1, following_K[:, None].to(logits_KV.device))[:, 0]
    summed_KV = logits_KV if logits_KV.dtype == torch.float64 else logits_KV.float()
    logprob_K: NDArray[np.float64] = (chosen_K.double() - summed_KV.logsumexp(dim=1).double()).cpu().numpy()
    return logprob_K


def completions(
    answers: Sequence[Answer],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    reused_tokens: int,
    prefill_seconds: float,
    decode_seconds: float,
    peak_memory_bytes: int | None,
) -> list[Completion]:
    """What became of prompts that ran together, each with an equal share of the seconds that all took."""
    return [
        Completion(
            token_ids=tuple(answer.tokens),
            text=str(tokenizer.decode(answer.tokens, skip_special_tokens=True)),
            finish_reason="stop" if answer.stopped else "length",
            answer_logprob=answer.logprob,
            reused_tokens=reused_tokens,
            prefill_seconds=prefill_seconds / len(answers),
            decode_seconds=decode_seconds / len(answers),
            peak_memory_bytes=peak_memory_bytes,
        )
        for answer in answers
    ]


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
