"""Trains the recipe's tokenizer: byte-level BPE, single digits, the words of its prompts one token each."""

import re
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"

_PROMPT_COPIES = 5000
"""How often the prompts' words are counted, beside once for the text: enough to be merged first."""


_KEY_COPIES = 20
"""How often a key is counted: enough to weigh as much as the text, so that keys take few tokens."""


def train_tokenizer(
    text: str, prompts: Iterable[str], vocab_size: int, *, keys: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab_size` tokens that puts `BOS` before a text.

    Digits stand alone, so that a number of n digits always is n tokens (behind its space) and numbers
    unseen in training are made of seen tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = " ".join(re.findall(r"[A-Za-z]+", " ".join(prompts)))
    corpus = [text, *[f" {words}"] * _PROMPT_COPIES, *[f" {' '.join(keys)}"] * _KEY_COPIES]
    tokenizer.train_from_iterator(corpus, trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
