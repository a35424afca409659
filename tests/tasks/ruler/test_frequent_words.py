"""Frequent words: RULER's text for RULER's draws, exact lengths, an answer that is one."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler.frequent_words import FrequentWordsDraw, FrequentWordsTask
from bamctl.tasks.ruler.frequent_words_spec import is_answerable, zeta

Make = Callable[..., FrequentWordsTask]


@pytest.fixture(scope="module")
def task_of(any_tokenizer: Any) -> Make:
    def make(kind: str, **overrides: object) -> FrequentWordsTask:
        task = build_task(load_spec("fwe", **overrides), any_tokenizer(kind))
        assert isinstance(task, FrequentWordsTask)
        return task

    return make


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def words_of(text: str) -> list[str]:
    return text.split("coded words. ")[1].split("\nQuestion: ")[0].split(" ")


def draw_of(words: list[str], answers: list[str]) -> tuple[FrequentWordsDraw, list[int]]:
    """What makes this text, and how often each rank occurs in it."""
    often = Counter(words)
    ranked = sorted(often, key=lambda word: (-often[word], word != "...", word not in answers))
    ranked[1:4] = answers
    rank = {word: number for number, word in enumerate(ranked)}
    left = np.array([often[word] for word in ranked])
    ends = []
    for word in (words[0], words[-1]):
        before = left[: rank[word]].sum()
        ends.append(float((before + 0.5) / left.sum()))
        left[rank[word]] -= 1
    target = np.array([rank[word] for word in words[1:-1]])
    shuffled = np.empty(len(target), dtype=np.int64)
    shuffled[target.argsort(kind="stable")] = np.arange(len(target))
    draw = FrequentWordsDraw(words=tuple(ranked), ends=(ends[0], ends[1]), shuffled=lambda count: shuffled)
    return draw, [often[word] for word in ranked]


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k"])
@pytest.mark.parametrize("alpha", [2.0, 1.5, 3.5])
@pytest.mark.parametrize("length", [900, 4096])
def test_the_text_is_rulers(ruler_module: Any, task_of: Make, kind: str, alpha: float, length: int) -> None:
    task = task_of(kind, alpha=alpha)
    ruler = ruler_module("fwe")
    for seed in (42, 43):
        lines = ruler.run(length, 2, seed=seed, alpha=alpha)
        number = ruler.calls[-1][1][2]
        for line in lines:
            draw, often = draw_of(words_of(line["input"]), line["outputs"])
            counts = task.spec.counts(number, task.spec.vocabulary(length))
            assert counts[counts > 0].tolist() == often
            tokens = len(task.tokenizer.opening(line["input"]))
            prompt = task.assemble(draw, length=tokens + 50)
            assert task.tokenizer.decode(prompt.token_ids) == line["input"]
            assert prompt.references == tuple(line["outputs"])
            assert len(prompt.token_ids) == tokens
            assert prompt.roundtrip_stable


@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.5, 2.0, 2.5, 3.5, 10.0])
def test_zeta_is_riemanns(alpha: float) -> None:
    from scipy.special import zeta as riemann

    assert zeta(alpha) == pytest.approx(float(riemann(alpha)), rel=1e-15)


@pytest.mark.parametrize("more", [0, 1, 2, 3, 17, 64, 500, 1001])
def test_the_length_is_exact_and_the_answer_clear(task_of: Make, kind: str, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    prompt = task.build(length=length, depth=50, rng=rng(more))
    assert len(prompt.token_ids) == length - 50
    if kind not in ("wordpiece", "unigram"):  # their text is another one
        words = words_of(task.tokenizer.decode(prompt.token_ids))
        often = Counter(word for word in words if set(word) != {"."})
        assert is_answerable(np.array([10**6, *sorted(often.values(), reverse=True)]))
        assert {word for word, _ in often.most_common(3)} == set(prompt.references)
        assert sum(word != "..." and set(word) == {"."} for word in words) <= 1
    assert prompt.needle_spans == prompt.depths == ()


@pytest.mark.parametrize("kind", ["byte_bpe", "merged_digits", "three_digits", "llama", "cl100k"])
def test_prompts_are_what_their_text_is_tokenised_to(task_of: Make, any_tokenizer: Any, kind: str) -> None:
    task = task_of(kind)
    for more in range(30):
        prompt = task.build(length=task.shortest_length + 200 + more, depth=0, rng=rng(more))
        ids = prompt.token_ids[len(task.tokenizer.prefix) :]
        again = any_tokenizer(kind)(task.tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        assert prompt.roundtrip_stable
        assert again == ids.tolist()


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k", "multiword"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), more=st.integers(0, 300))
def test_every_draw_fits(task_of: Make, kind: str, seed: int, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    assert len(task.build(length=length, depth=0, rng=rng(seed)).token_ids) == length - 50


@pytest.mark.parametrize(
    "fields", [{"alpha": 1.2}, {"alpha": 4.0}, {"vocab_size": 4}, {"coded_wordlen": 12}, {"noise": "xyz"}]
)
def test_other_definitions_are_exact_too(task_of: Make, fields: dict[str, Any]) -> None:
    task = task_of("byte_bpe", **fields)
    for more in (0, 1, 999):
        prompt = task.build(length=task.shortest_length + more, depth=0, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 50
        assert len(set(prompt.references)) == 3
        assert {len(word) for word in prompt.references} == {task.spec.coded_wordlen}


def test_there_is_a_word_for_every_fifty_tokens(task_of: Make) -> None:
    spec = task_of("byte_bpe").spec
    assert [spec.vocabulary(length) for length in (199, 200, 4096)] == [3, 4, 81]
    assert task_of("byte_bpe", vocab_size=7).spec.vocabulary(10**6) == 7
    assert task_of("byte_bpe").shortest_length >= 200


def test_the_same_stream_gives_the_same_prompt_and_tokenizers_the_same_words(task_of: Make) -> None:
    one, other = task_of("byte_bpe"), task_of("cl100k")
    prompt = one.build(length=4000, depth=10, rng=rng(3))
    assert prompt.digest == one.build(length=4000, depth=90, rng=rng(3)).digest
    assert prompt.digest != one.build(length=4000, depth=10, rng=rng(4)).digest
    assert prompt.references == other.build(length=5000, depth=60, rng=rng(3)).references
    another = one.build(length=4000, depth=10, rng=rng(4))
    assert (prompt.token_ids[: prompt.shared_prefix] == another.token_ids[: prompt.shared_prefix]).all()
    assert one.tokenizer.decode(prompt.token_ids[: prompt.shared_prefix]).endswith("coded words.")


@pytest.mark.parametrize("kind", ["byte_bpe", "llama"])
def test_what_is_too_short_is_refused_with_the_shortest(task_of: Make, kind: str) -> None:
    task = task_of(kind)
    for length in (1, 64, task.shortest_length - 1):
        with pytest.raises(BadInput, match=f"always works is {task.shortest_length} tokens"):
            task.build(length=length, depth=0, rng=rng())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", 3, "vocab_size: must be 4 or more, or -1, but is 3"),
        ("alpha", 1.0, "alpha: .*greater than 1"),
        ("coded_wordlen", 3, "coded_wordlen: .*greater than or equal to 4"),
        ("noise", "a b", "noise: must be one word"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_spec("fwe", **{field: value})


def test_a_chat_template_is_inside_the_length(any_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(any_tokenizer("cl100k"))
    tokenizer.chat_template = "<|user|>{{ messages[0].content }}<|assistant|>"
    task: Any = build_task(load_spec("fwe", apply_chat_template=True), tokenizer)
    for more in (0, 1, 500):
        prompt = task.build(length=task.shortest_length + more, depth=50, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 50
        text = task.tokenizer.decode(prompt.token_ids)
        assert text.startswith("<|user|>")
        assert text.count("<|assistant|>") == 1
        assert text.rstrip().endswith(":")
        assert prompt.chat_prefix == "<|user|>"
