"""What every task can do: a definition and a tokenizer in, prompts of an exact length out."""

from typing import Protocol

import numpy as np

from bamctl.errors import BadInput
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.spec import TaskSpec
from bamctl.tasks.tokenization import PromptTokenizer


class Task(Protocol):
    """A task bound to a tokenizer. Made by `bamctl.tasks.catalog.build_task`."""

    @property
    def spec(self) -> TaskSpec:
        """The definition: what is asked, and its digest."""

    @property
    def tokenizer(self) -> PromptTokenizer:
        """The tokenizer that the prompts are made for."""

    @property
    def shortest_length(self) -> int:
        """The shortest length, in tokens, at which every depth and every draw has a prompt.

        Where draws differ in their number of tokens (several digits a token) this is the worst case.
        `build` accepts this length and every longer one. A shorter one may do for a draw, if it needs less.
        """

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample.

        Args:
            length: target in tokens. The prompt has exactly this many, or, where the definition says
                `length_includes_generation`, this many less `Prompt.tokens_to_generate`.
            depth: where the first needle goes, 0 (start of the haystack) to 100 (its end). A task with
                several needles draws the others from `rng`.
            rng: the sample's own random stream; the same stream gives the same prompt.

        Raises:
            BadInput: `length` is too short for this draw (the message names one that is not), or `depth` lies
                outside 0–100.
        """


def check_depth(depth: float) -> None:
    """Checks a depth that `Task.build` is given.

    Raises:
        BadInput: it lies outside 0–100.
    """
    if not 0 <= depth <= 100:
        raise BadInput(f"depth {depth} lies outside 0 (start of the haystack) to 100 (its end)")
