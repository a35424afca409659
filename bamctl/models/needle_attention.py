"""How much attention each head gives the needle while the model answers.

Shapes: A tokens of the answer, L layers, H heads, N tokens, R regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bamctl.models.inspection import attention_rows
from bamctl.models.modeling import BamForCausalLM
from bamctl.tasks.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEIGHBOURHOOD = 64
"""Tokens on either side of a needle that are around it, and those last in a prompt that are its end."""

REGIONS = ("needle", "end", "around", "first", "rest")
"""Each token is in the first of these that it fits: part of a needle; one of the last 64 of the prompt, or of
the answer so far; one of the 64 before or behind a needle; the very first; anything else."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NeedleAttention:
    """Means over prompts of one length, and in each over the positions that choose the answer's tokens.

    The first of these is the last token of the prompt, the others are the answer's, teacher-forced. Where a
    tokenizer makes the space before an answer a token of its own, the position that chooses it does not
    count: it has nothing to retrieve.
    """

    length: int
    shares_LHR: NDArray[np.float64]
    """Of a head's attention, for each of `REGIONS`; they sum to 1."""
    tokens_R: NDArray[np.float64]
    """Of the tokens: the attention of a head that looks at all of them alike."""


def needle_attention(
    model: BamForCausalLM,
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Prompt],
    *,
    chunk_size: int,
) -> NeedleAttention:
    """Reads prompts, and behind each its first reference.

    Args:
        model: what answers.
        tokenizer: of the prompts.
        prompts: one or more of one length.
        chunk_size: how many tokens go through the model at once.
    """
    shares, tokens = [], []
    for prompt in prompts:
        answer = prompt.answer_ids[0]
        blank = next((i for i, token in enumerate(answer) if str(tokenizer.decode([token])).strip()), 0)
        ids = np.concatenate([prompt.token_ids, np.array(answer[:-1], dtype=np.int32)])
        regions_N = _regions(prompt, len(ids))
        is_in_NR = torch.from_numpy(np.eye(len(REGIONS))[regions_N]).to(model.device)
        rows = attention_rows(
            model,
            torch.from_numpy(ids).long().to(model.device),
            queries=len(answer) - blank,
            chunk_size=chunk_size,
        )
        shares.append([(rows_HAN @ is_in_NR).mean(dim=1).cpu().numpy() for rows_HAN in rows])
        tokens.append(np.bincount(regions_N, minlength=len(REGIONS)) / len(ids))
    return NeedleAttention(
        length=len(prompts[0].token_ids),
        shares_LHR=np.mean(shares, axis=0),
        tokens_R=np.mean(tokens, axis=0),
    )


def _regions(prompt: Prompt, tokens: int) -> NDArray[np.int64]:
    """The index into `REGIONS` of each of `tokens` tokens, ``[N]``; the last go beyond the prompt."""
    regions_N = np.full(tokens, REGIONS.index("rest"), dtype=np.int64)
    regions_N[0] = REGIONS.index("first")
    for start, end in prompt.needle_spans:
        regions_N[max(0, start - NEIGHBOURHOOD) : end + NEIGHBOURHOOD] = REGIONS.index("around")
    regions_N[max(0, len(prompt.token_ids) - NEIGHBOURHOOD) :] = REGIONS.index("end")
    for start, end in prompt.needle_spans:
        regions_N[start:end] = REGIONS.index("needle")
    return regions_N
