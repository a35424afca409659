"""A prompt on its way through the engine: one request that generates, and those that score the reference.

Greedy generation tells the log-probability of every token it chooses. As long as these are the reference's,
they are its score. From the first other token on, one request for each token of the reference that is left
reads the prompt and the reference up to there, and is allowed that token alone: what vLLM then tells is the
token's log-probability among all tokens, as it is taken before any is forbidden. With the prefix cache such a
request reads little anew; without one it reads the whole prompt, which is as right and slower.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from bamctl.backends.base import Completion
from bamctl.tasks.prompt import Prompt


@dataclass(kw_only=True)
class Flight:
    """What is known of one prompt so far."""

    number: int
    """Of the prompts that were taken."""
    prompt: Prompt
    token_ids: list[int]
    """Of the prompt."""
    generated: list[int] = field(default_factory=list)
    """Without the end of sequence."""
    stopped: bool = False
    logprobs: dict[int, float] = field(default_factory=dict)
    """ln p of the reference's tokens, by their place in it."""
    reused_tokens: int | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    _first_token_at: float = 0.0

    @property
    def reference(self) -> tuple[int, ...]:
        """The tokens that are scored."""
        return self.prompt.answer_ids[0]

    def take_answer(self, output: Any, ends: Collection[int]) -> list[int]:
        """Takes what the request generated; the places of the reference that are still to be scored."""
        made = output.outputs[0]
        tokens = list(made.token_ids)
        for place, (token, wanted) in enumerate(zip(tokens, self.reference, strict=False)):
            if token != wanted:
                break
            self.logprobs[place] = made.logprobs[place][token].logprob
        self.stopped = bool(tokens) and tokens[-1] in ends
        self.generated = tokens[:-1] if self.stopped else tokens
        self.reused_tokens = output.num_cached_tokens
        times = output.metrics
        if times is not None:
            self.prefill_seconds = times.first_token_ts - times.scheduled_ts
            self.decode_seconds = times.last_token_ts - times.first_token_ts
            self._first_token_at = times.first_token_ts
        return [place for place in range(len(self.reference)) if place not in self.logprobs]

    def take_score(self, place: int, output: Any) -> None:
        """Takes what the request for one place of the reference tells."""
        self.logprobs[place] = output.outputs[0].logprobs[0][self.reference[place]].logprob
        times = output.metrics
        if times is not None:
            # The requests for a reference's places run side by side.
            self.decode_seconds = max(self.decode_seconds, times.last_token_ts - self._first_token_at)

    @property
    def finite(self) -> bool:
        """Whether what is known of the reference's log-probability is a number; else no logit is."""
        return not any(math.isnan(logprob) for logprob in self.logprobs.values())

    @property
    def complete(self) -> bool:
        """Whether all of the reference is scored."""
        return len(self.logprobs) == len(self.reference)

    def completion(self, tokenizer: Any, peak_memory_bytes: int | None) -> Completion:
        """What became of it."""
        return Completion(
            token_ids=tuple(self.generated),
            text=str(tokenizer.decode(self.generated, skip_special_tokens=True)),
            finish_reason="stop" if self.stopped else "length",
            answer_logprob=sum(self.logprobs.values()),
            reused_tokens=self.reused_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            peak_memory_bytes=peak_memory_bytes,
        )
