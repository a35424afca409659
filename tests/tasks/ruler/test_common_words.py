"""Common words: RULER's text for RULER's draws, exact lengths, words as often as they should be."""

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler import common_words_spec
from bamctl.tasks.ruler.common_words import CommonWordsDraw, CommonWordsTask
from bamctl.tasks.ruler.common_words_spec import list_words, pair_words

Make = Callable[..., CommonWordsTask]


@pytest.fixture(scope="module")
def task_of(any_tokenizer: Any) -> Make:
    def make(kind: str, **overrides: object) -> CommonWordsTask:
        task = build_task(load_spec("cwe", **overrides), any_tokenizer(kind))
        assert isinstance(task, CommonWordsTask)
        return task

    return make


@pytest.fixture
def few_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One in forty of RULER's words."""
    few = common_words_spec.word_list
    monkeypatch.setattr(common_words_spec, "word_list", lambda kind: few(kind)[::40])
    for cached in (list_words, pair_words):
        cached.cache_clear()
    yield
    for cached in (list_words, pair_words):
        cached.cache_clear()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def listed(text: str) -> list[str]:
    """The words of a numbered list."""
    words = []
    for number in itertools.count(1):
        found = re.match(rf"{number}\. (.*?)(?= {number + 1}\. |$)", text)
        if found is None:
            assert not text
            return words
        words.append(found[1])
        text = text[found.end() :].lstrip(" ")
    raise AssertionError


def lists_of(text: str) -> tuple[list[str], list[str], list[str]]:
    """The words of the example, its answer, and the words of the list."""
    _, example, rest = text.split("appear most often.\n")
    example, answer = example.split("\nQuestion: ")
    answer = answer.split("in the list are:")[1].split("\n")[0]
    return listed(example), listed(answer), listed(rest.split("\nQuestion: ")[0])


def order_of(words: list[str], first: list[str]) -> Any:
    """All of our words: some first, then those of a list, then the others."""
    index = {word: number for number, word in enumerate(list_words())}
    return np.array([index[word] for word in dict.fromkeys([*first, *words, *list_words()])])


def shuffle_to(words: list[str], order: Any, common: int, often: int, seldom: int) -> Callable[[int], Any]:
    """The shuffle that makes this list of its words."""
    index = {word: number for number, word in enumerate(list_words())}
    target = np.array([index[word] for word in words])
    before = common_words_spec.entries(order[: len(set(words))], common, often, seldom)
    shuffled = np.empty(len(words), dtype=np.int64)
    shuffled[target.argsort(kind="stable")] = before.argsort(kind="stable")

    def shuffle(count: int) -> Any:
        assert count == len(shuffled)
        return shuffled

    return shuffle


def draw_of(line: dict[str, Any], often: tuple[int, int, int, int]) -> CommonWordsDraw:
    example, answer, words = lists_of(line["input"])
    example_order, order = order_of(example, answer), order_of(words, line["outputs"])
    return CommonWordsDraw(
        words=order,
        pairs=(1, 1),
        shuffled=shuffle_to(words, order, 10, *often[:2]),
        example=example_order,
        example_shuffled=shuffle_to(example, example_order, 10, *often[2:]),
    )


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k"])
@pytest.mark.parametrize(
    ("length", "often"), [(2000, (6, 1, 3, 1)), (3900, (6, 1, 3, 1)), (9000, (30, 3, 10, 3))]
)
def test_the_text_is_rulers(
    ruler_module: Any, any_tokenizer: Any, task_of: Make, kind: str, length: int, often: Any
) -> None:
    task = task_of(kind)
    for line in ruler_module("cwe").run(length, 3, seed=length):
        tokens = len(task.tokenizer.opening(line["input"]))
        task._long_from = 0 if often[0] == 30 else 10**9  # RULER counts other tokens here
        prompt = task.assemble(draw_of(line, often), length=tokens + 120)
        assert task.tokenizer.decode(prompt.token_ids) == line["input"]
        assert prompt.references == tuple(line["outputs"])
        assert len(prompt.token_ids) == tokens
        assert prompt.roundtrip_stable


def test_the_words_are_rulers(ruler_module: Any) -> None:
    assert tuple(sorted(ruler_module("cwe").module.words)) == list_words()
    adjectives, nouns = pair_words()
    assert len(adjectives) > 800
    assert len(nouns) > 6000
    ours = set(list_words())
    assert not [word for word in ours if "-" in word and word.split("-")[0] in adjectives]


def words_of(task: CommonWordsTask, prompt: Any) -> list[str]:
    """The words of the list, less the last entry, which may be cut."""
    text = task.tokenizer.decode(prompt.token_ids)
    entries = text.split("appear most often.\n")[-1].split("\nQuestion: ")[0]
    return listed(re.sub(r" \d+\.?( \D*)?$", "", entries))


def often_of(task: CommonWordsTask, length: int) -> tuple[set[int], set[int]]:
    """How often common words stand in a list, and how often the others do."""
    prompt = task.build(length=length, depth=0, rng=rng(5))
    count = Counter(words_of(task, prompt))
    common = {count.pop(word) for word in prompt.references}
    assert prompt.needle_spans == prompt.depths == ()
    return common, set(count.values())


def test_lists_are_larger_from_4096_tokens_on(task_of: Make) -> None:
    task = task_of("cl100k", freq_cw=9, freq_ucw=2)
    assert often_of(task, 4095)[0] <= {5, 6}
    assert often_of(task, 4096)[0] <= {8, 9}
    including = task_of("cl100k", freq_cw=9, freq_ucw=2, length_includes_generation=False)
    assert often_of(including, 4095 - 120)[0] <= {5, 6}
    assert often_of(including, 4096 - 120)[0] <= {8, 9}


def test_lists_are_larger_only_where_those_fit(task_of: Make) -> None:
    task = task_of("byte_bpe")
    assert task._long_from > 4096
    assert often_of(task, task._long_from - 1)[0] <= {5, 6}
    assert often_of(task, task._long_from)[0] <= {29, 30}
    assert often_of(task, 12_000)[1] <= {1, 2, 3}


@pytest.mark.usefixtures("few_words")
@pytest.mark.parametrize("more", [0, 1, 2, 3, 50, 1001])
def test_the_length_is_exact(task_of: Make, kind: str, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    assert len(task.build(length=length, depth=50, rng=rng(more)).token_ids) == length - 120


@pytest.mark.usefixtures("few_words")
@pytest.mark.parametrize("kind", ["byte_bpe", "three_digits", "llama", "cl100k"])
def test_prompts_are_what_their_text_is_tokenised_to(task_of: Make, any_tokenizer: Any, kind: str) -> None:
    task = task_of(kind)
    for more in range(20):
        prompt = task.build(length=task.shortest_length + 100 + more, depth=0, rng=rng(more))
        ids = prompt.token_ids[len(task.tokenizer.prefix) :]
        again = any_tokenizer(kind)(task.tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        assert prompt.roundtrip_stable
        assert again == ids.tolist()


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), more=st.integers(0, 60))
def test_every_draw_fits(task_of: Make, kind: str, seed: int, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    assert len(task.build(length=length, depth=0, rng=rng(seed)).token_ids) == length - 120


@pytest.mark.usefixtures("few_words")
def test_the_list_goes_on_with_pairs(task_of: Make) -> None:
    task = task_of("byte_bpe")
    words = set(list_words())
    assert len(words) < 250
    prompt = task.build(length=40_000, depth=0, rng=rng(2))
    count = Counter(words_of(task, prompt))
    assert words <= set(count)
    pairs = Counter({word: often for word, often in count.items() if word not in words})
    assert len(pairs) > 100
    assert set(pairs.values()) <= {1, 2, 3}
    adjectives, nouns = map(set, pair_words())
    for pair in pairs:
        assert any(pair[:at] in adjectives and pair[at + 1 :] in nouns for at in range(len(pair)))
    assert len(prompt.token_ids) == 40_000 - 120
    assert prompt.roundtrip_stable


def test_the_same_stream_gives_the_same_prompt_and_tokenizers_the_same_words(task_of: Make) -> None:
    one, other = task_of("byte_bpe"), task_of("cl100k")
    prompt = one.build(length=4000, depth=10, rng=rng(3))
    assert prompt.digest == one.build(length=4000, depth=90, rng=rng(3)).digest
    assert prompt.digest != one.build(length=4000, depth=10, rng=rng(4)).digest
    assert prompt.references == other.build(length=5000, depth=60, rng=rng(3)).references
    another = one.build(length=4000, depth=10, rng=rng(4))
    assert (prompt.token_ids[: prompt.shared_prefix] == another.token_ids[: prompt.shared_prefix]).all()
    assert one.tokenizer.decode(prompt.token_ids[: prompt.shared_prefix]).endswith("often.\n")


@pytest.mark.parametrize("kind", ["byte_bpe", "llama"])
def test_what_is_too_short_is_refused_with_the_shortest(task_of: Make, kind: str) -> None:
    task = task_of(kind)
    for length in (1, 64, task.shortest_length - 1):
        with pytest.raises(BadInput, match=f"always works is {task.shortest_length} tokens"):
            task.build(length=length, depth=0, rng=rng())


def test_common_words_are_the_most_common_ones() -> None:
    with pytest.raises(BadInput, match=r"freq_cw: must be above freq_ucw \(3\), but is 3"):
        load_spec("cwe", freq_cw=3)
    assert load_spec("cwe", freq_cw=4).variant == "freq_cw=4"


def test_a_chat_template_is_inside_the_length(any_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(any_tokenizer("cl100k"))
    tokenizer.chat_template = "<|user|>{{ messages[0].content }}<|assistant|>"
    task: Any = build_task(load_spec("cwe", apply_chat_template=True), tokenizer)
    for more in (0, 1, 500):
        prompt = task.build(length=task.shortest_length + more, depth=50, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 120
        text = task.tokenizer.decode(prompt.token_ids)
        assert text.startswith("<|user|>")
        assert text.count("<|assistant|>") == 1
        assert text.rstrip().endswith(":")
        assert prompt.chat_prefix == "<|user|>"
