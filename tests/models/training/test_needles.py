import re

import numpy as np
import pytest

from bamctl.errors import BadInput
from bamctl.models.training.data import ExampleSource
from bamctl.models.training.material import Material
from bamctl.models.training.needles import NeedleExamples, is_held_out, key_words, niah_spec
from bamctl.models.training.recipe import NiahExamples, Recipe, load_recipe
from bamctl.models.training.text import load_text
from bamctl.models.training.tokenizer import EOS, train_tokenizer
from bamctl.models.training.wording import key_strings, prompt_strings
from bamctl.tasks.ruler.niah_spec import listed
from bamctl.tasks.ruler.words import word_list
from bamctl.tasks.tokenization import PromptTokenizer

TASKS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
)
KEY = r"[\w'. -]+?"
KEYS = r"[\w'., -]+"


@pytest.fixture(scope="module")
def tokenizer():
    """Of the alphabet and the prompts' words: what a key becomes does not matter here."""
    spec = niah_spec("niah_multiquery")
    prompts = [*spec.around(["a"]), spec.needle_text("a", "b"), spec.noise]
    return train_tokenizer("A text of a few words.", prompts, 400)


@pytest.fixture
def recipe(recipe_file):
    return load_recipe(recipe_file)


@pytest.fixture
def source(recipe, recipe_file, tokenizer) -> NeedleExamples:
    content = recipe.model_dump()
    content["data"]["examples"] = [{"kind": "niah", "weight": 1, "task": task} for task in TASKS]
    content["data"]["held_out_nouns"] = 0.5
    needles = Recipe.model_validate(content)
    text = load_text(needles.data.text, relative_to=recipe_file.parent)
    pieces = PromptTokenizer(tokenizer)
    material = Material(needles.data, pieces, text)
    return NeedleExamples(needles, pieces, material, tokenizer.eos_token_id)


def texts_of(row, tokenizer):
    """The prompt before the answer, the answer, and whether nothing else is marked."""
    ids, is_answer = row
    first = int(np.argmax(is_answer))
    assert is_answer[first:].all()
    return tokenizer.decode(ids[:first]), tokenizer.decode(ids[first:])


def stated(prompt):
    """What the needles say: key to values, in the order of the prompt."""
    found = {}
    for key, value in re.findall(rf"for ({KEY}) is: ([0-9a-f-]+)\.", prompt):
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("task", TASKS)
def test_a_prompt_has_its_length_and_is_answered_as_its_needles_say(source, tokenizer, task):
    kind = NiahExamples(kind="niah", weight=1, task=task)
    spec = niah_spec(task)
    for seed in range(4):
        length = 700 + 61 * seed
        row = source.prompt(kind, length, np.random.default_rng(seed))
        assert len(row[0]) == len(row[1]) == length
        assert row[0][0] == tokenizer.bos_token_id
        prompt, answer = texts_of(row, tokenizer)
        values = stated(prompt)
        asked = re.search(
            rf"The special magic \w+ for ({KEYS}) mentioned in the provided text (is|are)$", prompt
        )
        if spec.num_needle_q == 1:
            expected = ", ".join(sorted(values[asked[1]]))
            assert len(values[asked[1]]) == spec.num_needle_v
        else:
            keys = re.split(", and |, ", asked[1])
            assert len(keys) == spec.num_needle_q
            expected = listed([f"{key}: {values[key][0]} {key}" for key in keys])
        assert answer == f" {expected}{EOS}"
        before, behind, _ = spec.around(asked[1].split(", "))
        assert prompt.removeprefix("<s>").startswith(before)
        assert re.search(r"\nWh.*$", prompt)[0].startswith(behind[:9])
        if spec.type_haystack == "repeat":
            assert prompt.count(f"{spec.noise}\n") > 5
        if spec.type_haystack == "needle":
            assert len(values) > 3


def test_counts_are_drawn_from_their_ranges(source, tokenizer):
    kind = NiahExamples(
        kind="niah", weight=1, task="niah_multivalue", keys=(2, 3), values=(1, 3), queries=(1, 2)
    )
    seen = set()
    for seed in range(30):
        prompt, answer = texts_of(source.prompt(kind, 700, np.random.default_rng(seed)), tokenizer)
        values = stated(prompt)
        counts = {len(found) for found in values.values()}
        assert len(counts) == 1
        seen.add((len(values), *counts, max(1, answer.count(":"))))
    assert {keys for keys, _, _ in seen} == {2, 3}
    assert {count for _, count, _ in seen} == {1, 2, 3}
    assert {asked for _, _, asked in seen} == {1, 2}


def test_where_there_is_little_room_the_opening_goes_first_and_then_the_prompt(source, tokenizer):
    kind = NiahExamples(kind="niah", weight=1, task="niah_single_1")
    starts = {}
    for length in range(40, 260):
        ids, is_answer = source.prompt(kind, length, np.random.default_rng(5))
        assert len(ids) == len(is_answer) == length
        beginning = next(x for x in (" for", "A special", "") if tokenizer.decode(ids[1:]).startswith(x))
        starts.setdefault(beginning, []).append(length)
    assert list(starts) == [" for", "", "A special"]
    assert starts[" for"][-1] < starts[""][0] <= starts[""][-1] < starts["A special"][0]


@pytest.mark.parametrize("task", TASKS)
def test_a_stream_answers_from_what_it_has_said_so_far(source, tokenizer, task):
    values, queries = (3, 1) if task == "niah_multivalue" else (1, 3)
    answered = several = 0
    for seed in range(6):
        ids, is_answer = source.stream(task, 900, np.random.default_rng(seed), values=values, queries=queries)
        assert len(ids) == len(is_answer) == 900
        edges = np.flatnonzero(np.diff(is_answer.astype(int)))
        for start, end in zip(edges[0::2] + 1, edges[1::2] + 1, strict=False):
            said, answer = tokenizer.decode(ids[:start]), tokenizer.decode(ids[start:end])
            told = stated(said)
            asked = re.split(
                ", and |, ", re.search(rf".* for ({KEYS}) mentioned in the provided text (is|are)$", said)[1]
            )
            parts = [", ".join(sorted(told[key])) for key in asked]
            if len(asked) > 1:
                parts = [f"{key}: {part} {key}" for key, part in zip(asked, parts, strict=True)]
            assert answer == f" {listed(parts)}{EOS}"
            answered += 1
            several += len(asked) > 1 or "," in answer
    assert answered > 8
    assert several > 1


@pytest.mark.parametrize("length", [16, 17, 150, 1500])
def test_a_stream_of_any_length(source, length):
    for seed in range(20):
        ids, is_answer = source.stream(
            "niah_single_2", length, np.random.default_rng(seed), values=4, queries=4
        )
        assert len(ids) == len(is_answer) == length


def test_held_out_nouns_are_in_no_key(source):
    held_out = {noun for noun in word_list("noun") if is_held_out(noun, 0.5)}
    assert 0.45 < len(held_out) / len(set(word_list("noun"))) < 0.55
    rng = np.random.default_rng(0)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        keys = source._keys("words", 50, rng)
        for _ in range(50):
            key = next(keys)
            # Adjectives have hyphens too; a key ends with its noun.
            assert any(key.endswith("-" + noun) for noun in source.nouns), key
    assert not held_out & set(source.nouns)
    assert not held_out & set(key_words(0.5)[1])
    assert key_words(0.0)[1] == list(word_list("noun"))
    assert not is_held_out("apple", 0.0)


def test_the_tokenizer_sees_the_keys_words_but_not_the_held_out_ones(recipe):
    content = recipe.model_dump()
    assert key_strings(recipe) == []
    content["data"]["examples"] = [{"kind": "niah", "weight": 1, "task": "niah_multikey_3"}]
    assert key_strings(Recipe.model_validate(content)) == []
    content["data"]["examples"] = [{"kind": "niah_stream", "weight": 1, "task": "niah_single_2"}]
    content["data"]["held_out_nouns"] = 0.25
    keys = key_strings(Recipe.model_validate(content))
    nouns = key_words(0.25)[1]
    assert len(keys) == len(nouns)
    assert all(key.endswith("-" + noun) for key, noun in zip(keys, nouns, strict=True))
    assert any("magic" in string for string in prompt_strings(Recipe.model_validate(content)))


def test_batches_of_all_kinds(recipe, recipe_file, tokenizer):
    content = recipe.model_dump()
    content["data"]["examples"] = [
        *content["data"]["examples"],
        {"kind": "niah", "weight": 9, "task": "niah_single_2"},
        {"kind": "niah_stream", "weight": 9, "task": "niah_multiquery", "queries": 3},
    ]
    recipe = Recipe.model_validate(content)
    text = load_text(recipe.data.text, relative_to=recipe_file.parent)
    source = ExampleSource(recipe, PromptTokenizer(tokenizer), text, tokenizer.eos_token_id)
    for step in range(8):
        batch = source.batch(step, rank=0, ranks=1)
        assert batch.ids.shape == batch.is_answer.shape
        assert np.array_equal(batch.ids, source.batch(step, rank=0, ranks=1).ids)
        assert batch.is_answer.any()


@pytest.mark.parametrize("task", ["passkey", "niah_single_9"])
def test_a_task_that_is_no_needle_task(task):
    with pytest.raises(BadInput, match=task):
        niah_spec(task)


def test_examples_describe_themselves():
    assert NiahExamples(kind="niah", weight=1, task="niah_single_1").describe() == (
        "the prompt of the task niah_single_1"
    )
    described = NiahExamples(kind="niah", weight=1, task="niah_multivalue", values=(2, 4)).describe()
    assert described == "the prompt of the task niah_multivalue, 2 to 4 values a key"
