import re

import numpy as np
import pytest

from bamctl.models.training.data import ExampleSource
from bamctl.models.training.recipe import load_recipe
from bamctl.models.training.text import load_text
from bamctl.models.training.tokenizer import BOS, EOS, train_tokenizer
from bamctl.models.training.wording import prompt_strings
from bamctl.tasks.tokenization import PromptTokenizer


@pytest.fixture
def recipe(recipe_file):
    return load_recipe(recipe_file)


@pytest.fixture
def tokenizer(recipe, recipe_file):
    text = load_text(recipe.data.text, relative_to=recipe_file.parent)
    return train_tokenizer(text, prompt_strings(recipe), recipe.tokenizer.vocab_size)


@pytest.fixture
def source(recipe, tokenizer, recipe_file):
    text = load_text(recipe.data.text, relative_to=recipe_file.parent)
    return ExampleSource(recipe, PromptTokenizer(tokenizer), text, tokenizer.eos_token_id)


def test_digits_stand_alone_and_the_prompts_words_are_whole(tokenizer):
    assert tokenizer.tokenize(" 90210") == ["Ġ", "9", "0", "2", "1", "0"]
    assert tokenizer.tokenize("The pass key") == ["The", "Ġpass", "Ġkey"]
    assert len(tokenizer) == 400
    assert tokenizer("x")["input_ids"][0] == tokenizer.convert_tokens_to_ids(BOS)
    assert tokenizer.decode(tokenizer("naïve ☃ text")["input_ids"][1:]) == "naïve ☃ text"


def test_a_batch_has_one_length_and_is_a_function_of_seed_step_and_rank(source, recipe):
    for step in range(recipe.optimiser.steps):
        batch = source.batch(step, rank=0, ranks=1)
        low, high = recipe.stages[0 if step < 4 else 1].lengths
        assert low <= batch.ids.shape[1] <= high
        assert batch.ids.shape[0] == 600 // batch.ids.shape[1]
        assert np.array_equal(batch.ids, source.batch(step, rank=0, ranks=1).ids)
    first, second = (source.batch(0, rank=rank, ranks=2) for rank in (0, 1))
    assert first.ids.shape == second.ids.shape
    assert not np.array_equal(first.ids, second.ids)


def test_what_is_asked_for_stands_in_the_prompt(source, tokenizer, recipe):
    """Every marked answer is a number, ends the example, and is what the needle says for its key."""
    passkeys = lookups = 0
    for step in range(recipe.optimiser.steps):
        batch = source.batch(step, rank=0, ranks=1)
        for ids, is_answer in zip(batch.ids, batch.is_answer, strict=True):
            if not is_answer.any():
                continue
            prompt, answer = tokenizer.decode(ids[~is_answer]), tokenizer.decode(ids[is_answer])
            assert is_answer[np.argmax(is_answer) :].all()
            number = answer.removesuffix(EOS).strip()
            assert answer == f" {number}{EOS}"
            assert number.isdecimal()
            if prompt.endswith("The pass key is"):
                assert f"The pass key is {number}. Remember it. {number} is the pass key." in prompt
                passkeys += 1
            else:
                key = re.search(r"What is the number for (\w+)\? It is$", prompt).group(1)
                assert f"The number for {key} is: {number}." in prompt
                lookups += 1
            assert ids[0] == tokenizer.bos_token_id
            assert (ids[1:] != tokenizer.bos_token_id).all()
    assert passkeys > 5
    assert lookups > 5


def test_distractors_are_strewn_in(source, tokenizer, recipe):
    texts = [tokenizer.decode(row) for step in range(8) for row in source.batch(step, rank=0, ranks=1).ids]
    assert sum("Page " in text for text in texts) > 3
    assert sum("Page " not in text for text in texts) > 3


def test_a_copy_repeats_its_text(source, recipe, recipe_content):
    copies = [source._copy(101, np.random.default_rng(seed)) for seed in range(5)]
    for ids, is_answer in copies:
        assert len(ids) == 101
        assert not is_answer.any()
        assert np.array_equal(ids[1:51], ids[51:101])


def test_what_is_too_long_for_a_length_gives_way_to_text(source):
    draft = next(
        d
        for d in (source._draft(source.recipe.data.examples[0], np.random.default_rng(s)) for s in range(9))
        if d
    )
    pieces = source.material.pieces(draft.texts)
    needed = 1 + sum(map(len, pieces[:1])) + sum(map(len, pieces[-2:])) + 1
    assert source._filled(draft, pieces, needed - 1, np.random.default_rng(0)) is None
    ids, is_answer = source._filled(draft, pieces, needed, np.random.default_rng(0))
    assert len(ids) == needed
    assert is_answer.sum() == len(pieces[-1]) + 1
