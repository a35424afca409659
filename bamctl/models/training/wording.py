"""The words of a recipe's prompts and keys: what its tokenizer is to have as tokens of their own."""

import itertools

from bamctl.models.training.needles import key_words, niah_spec
from bamctl.models.training.recipe import (
    LookupExamples,
    NiahExamples,
    PasskeyExamples,
    Recipe,
    StreamExamples,
)
from bamctl.tasks.catalog import load_spec
from bamctl.tasks.passkey import PasskeySpec


def prompt_strings(recipe: Recipe) -> list[str]:
    """Every string that the recipe's prompts are made of."""
    strings = [*recipe.data.distractors]
    for examples in recipe.data.examples:
        if isinstance(examples, LookupExamples):
            strings += [examples.needle, examples.question]
        if isinstance(examples, PasskeyExamples):
            spec = load_spec(examples.task)
            if isinstance(spec, PasskeySpec):
                strings += [spec.description, *spec.garbage, spec.information, spec.question]
        if isinstance(examples, (NiahExamples, StreamExamples)):
            niah = niah_spec(examples.task)
            for values in {1, niah.num_needle_v}:
                niah = niah.model_copy(update={"num_needle_v": values, "num_needle_q": 1})
                strings += [*niah.around(["{key}"]), niah.needle_text("{key}", "{value}"), niah.noise]
    return [string.replace("{", " ").replace("}", " ") for string in strings]


def key_strings(recipe: Recipe) -> list[str]:
    """Keys that between them have every word which the recipe's needles may have, each about once."""
    asks_for_words = any(
        isinstance(examples, (NiahExamples, StreamExamples))
        and niah_spec(examples.task).type_needle_k == "words"
        for examples in recipe.data.examples
    )
    if not asks_for_words:
        return []
    adjectives, nouns = key_words(recipe.data.held_out_nouns)
    return [
        f"{adjective}-{noun}" for adjective, noun in zip(itertools.cycle(adjectives), nouns, strict=False)
    ]
