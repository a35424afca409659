"""Passkey prompts: exact lengths, needles in place, an honest flag where text and tokens differ."""

import copy
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.haystack import split_sentences
from bamctl.tasks.passkey import PasskeyTask
from bamctl.tasks.prompt import Prompt

TaskOf = Callable[..., PasskeyTask]
few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # `kind` is the only such fixture, and it is a string
extra_tokens = st.one_of(st.integers(0, 40), st.integers(0, 3000))
depths = st.one_of(st.sampled_from([0, 100, 50]), st.floats(0, 100))
seeds = st.integers(0, 2**32)


def build(task: PasskeyTask, extra: int, depth: float = 50, seed: int = 0) -> Prompt:
    return task.build(length=task.shortest_length + extra, depth=depth, rng=np.random.default_rng(seed))


def letters(text: str) -> str:
    """A text without spaces and case, which some tokenizers do not keep."""
    return "".join(text.split()).lower()


def haystack_of(task: PasskeyTask, prompt: Prompt) -> np.ndarray:
    start, end = prompt.needle_spans[0]
    frame = task.build(length=task.shortest_length, depth=0, rng=np.random.default_rng(0))
    head = frame.needle_spans[0][0]
    # What stands behind the needle at depth 100 of the shortest prompt is the question.
    worst = task.build(length=task.shortest_length, depth=100, rng=np.random.default_rng(0))
    question = len(worst.token_ids) - worst.needle_spans[0][1]
    ids = np.concatenate([prompt.token_ids[head:start], prompt.token_ids[end:]])
    return ids[: len(ids) - question]


@few
@given(extra=extra_tokens, depth=depths, digits=st.sampled_from([1, 3, 5, 7, 32]), seed=seeds)
def test_prompts_are_what_they_say(
    kind: str, task_of: TaskOf, reencoded: Any, extra: int, depth: float, digits: int, seed: int
) -> None:
    task = task_of(kind, digits=digits)
    prompt = build(task, extra, depth, seed)
    ids, tokenizer = prompt.token_ids, task.tokenizer
    key, (start, end) = prompt.references[0], prompt.needle_spans[0]

    assert ids.dtype == np.int32
    assert len(ids) == task.shortest_length + extra
    assert tuple(ids[: len(tokenizer.prefix)]) == tokenizer.prefix
    assert not set(tokenizer.tokenizer.all_special_ids) & set(ids[len(tokenizer.prefix) :].tolist())

    assert len(key) == digits
    assert key[0] != "0"
    assert letters(tokenizer.decode(ids)).count(key) == 2
    information = f"The pass key is {key}. Remember it. {key} is the pass key."
    assert letters(tokenizer.decode(ids[start:end])) == letters(information)
    assert prompt.shared_prefix == start
    assert letters(tokenizer.decode(np.array(prompt.answer_ids[0]))) == key
    assert prompt.tokens_to_generate == len(prompt.answer_ids[0]) + 2

    whole = ids[len(tokenizer.prefix) :].tolist()
    assert prompt.roundtrip_stable
    assert reencoded(kind, whole) == whole
    answered = whole + list(prompt.answer_ids[0])
    assert reencoded(kind, answered) == answered


@few
@given(extra=extra_tokens, depth=depths, seed=seeds)
def test_the_needle_lies_at_the_end_of_a_sentence_nearest_to_the_depth(
    kind: str, task_of: TaskOf, tokenizer_of: Any, extra: int, depth: float, seed: int
) -> None:
    task = task_of(kind)
    prompt = build(task, extra, depth, seed)
    start, end = prompt.needle_spans[0]
    encode = tokenizer_of(kind).encode
    text = task.spec.description
    head = len(encode(text, add_special_tokens=False))
    question = len(encode(text + " " + task.spec.question, add_special_tokens=False)) - head
    size = len(prompt.token_ids) - len(task.tokenizer.prefix) - head - (end - start) - question

    ends = [0]
    for sentence in itertools.cycle(task.spec.garbage):
        length = len(encode(text + " " + sentence, add_special_tokens=False)) - head
        if ends[-1] + length > size:
            break
        ends.append(ends[-1] + length)
    ends.append(size)
    nearest = min(ends, key=lambda position: abs(position - size * depth / 100))
    assert start == len(task.tokenizer.prefix) + head + nearest


def test_depth_0_and_100_are_the_ends_of_the_haystack(kind: str, task_of: TaskOf) -> None:
    task = task_of(kind)
    first, last = build(task, 333, 0), build(task, 333, 100)
    head = letters(task.tokenizer.decode(first.token_ids[len(task.tokenizer.prefix) : first.shared_prefix]))
    assert head == letters(task.spec.description)
    tail = letters(task.tokenizer.decode(last.token_ids[last.needle_spans[0][1] :]))
    assert tail == letters(task.spec.question)


@few
@given(extra=extra_tokens, depth=depths, other=depths, seeds=st.tuples(seeds, seeds))
def test_samples_of_a_length_share_their_haystack(
    task_of: TaskOf, extra: int, depth: float, other: float, seeds: tuple[int, int]
) -> None:
    task = task_of("byte_bpe")
    one, two = build(task, extra, depth, seeds[0]), build(task, extra, other, seeds[1])
    assert haystack_of(task, one).tolist() == haystack_of(task, two).tolist()
    shared = min(one.shared_prefix, two.shared_prefix)
    assert one.token_ids[:shared].tolist() == two.token_ids[:shared].tolist()


def test_the_same_random_stream_gives_the_same_prompt(kind: str, task_of: TaskOf) -> None:
    task = task_of(kind)
    digests = [build(task, 200, 50, seed).digest for seed in (7, 7, 8)]
    assert digests[0] == digests[1] != digests[2]
    assert build(task_of(kind, tokens_to_generate=50), 200, 50, 7).digest == digests[0]


def test_keys_are_uniform_with_no_leading_zero(task_of: TaskOf) -> None:
    rng = np.random.default_rng(0)
    task = task_of("byte_bpe", digits=2)
    keys = [task.build(length=task.shortest_length, depth=0, rng=rng).references[0] for _ in range(1000)]
    assert set(keys) == {str(key) for key in range(10, 100)}


@pytest.mark.parametrize("digits", [1, 5, 32])
@pytest.mark.parametrize("includes", [False, True])
def test_the_shortest_length_works_and_one_less_does_not(
    kind: str, task_of: TaskOf, digits: int, includes: bool
) -> None:
    task = task_of(kind, digits=digits, length_includes_generation=includes)
    for seed in range(20):
        prompt = build(task, 0, 10 * (seed % 11), seed)
        generated = prompt.tokens_to_generate if includes else 0
        assert len(prompt.token_ids) + generated == task.shortest_length
        with pytest.raises(BadInput, match=rf"shortest that always works is {task.shortest_length} tokens"):
            build(task, -1, 50, seed)


def test_the_shortest_length_is_tight_where_a_digit_is_a_token(task_of: TaskOf) -> None:
    task = task_of("byte_bpe")
    assert len(haystack_of(task, build(task, 0))) == 0


@pytest.mark.parametrize("length", [0, -5])
def test_lengths_that_are_none(task_of: TaskOf, length: int) -> None:
    with pytest.raises(BadInput, match="too short"):
        task_of("byte_bpe").build(length=length, depth=0, rng=np.random.default_rng(0))


@pytest.mark.parametrize("depth", [-0.1, 100.1, float("nan"), float("inf")])
def test_depths_outside_0_to_100(task_of: TaskOf, depth: float) -> None:
    with pytest.raises(BadInput, match="depth"):
        build(task_of("byte_bpe"), 100, depth)


def test_garbage_counts_no_repeats_and_a_text_does(task_of: TaskOf, plain_text: str) -> None:
    assert build(task_of("byte_bpe"), 5000).haystack_repeats == 0
    task = task_of("byte_bpe", haystack=plain_text)
    once = len(task._haystack.token_ids)
    sizes = [0, 1, once, once + 1, 2 * once, 2 * once + 1]
    assert [build(task, size).haystack_repeats for size in sizes] == [0, 0, 0, 1, 1, 2]


def test_a_million_tokens(task_of: TaskOf) -> None:
    prompt = task_of("llama").build(length=2**20, depth=37.5, rng=np.random.default_rng(0))
    assert len(prompt.token_ids) == 2**20
    assert abs(prompt.needle_spans[0][0] / 2**20 - 0.375) < 1e-4
    assert prompt.roundtrip_stable


@few
@given(extra=st.integers(0, 9000), depth=depths, seed=seeds)
def test_a_text_is_used_in_order_and_mostly_stable(
    kind: str, task_of: TaskOf, reencoded: Any, plain_text: str, extra: int, depth: float, seed: int
) -> None:
    task = task_of(kind, haystack=plain_text)
    prompt = build(task, extra, depth, seed)
    assert len(prompt.token_ids) == task.shortest_length + extra
    whole = prompt.token_ids[len(task.tokenizer.prefix) :].tolist()
    assert prompt.roundtrip_stable
    assert reencoded(kind, whole) == whole
    if prompt.haystack_repeats == 0:
        ids = haystack_of(task, prompt)
        whole_sentences = task._haystack.whole_sentences(len(ids))
        text = task.tokenizer.decode(ids[: task._haystack.start_of(whole_sentences)])
        sentences = split_sentences(Path(plain_text).read_text())
        assert letters(text) == letters("".join(sentences[:whole_sentences]))


@pytest.mark.parametrize(
    "any_kind", ["byte_bpe", "three_digits", "llama", "metaspace_first", "unigram", "wordpiece", "multiword"]
)
@few
@given(extra=st.integers(0, 2500), depth=depths, seed=seeds)
def test_the_flag_is_sound_on_a_text_that_makes_trouble(
    any_kind: str, task_of: TaskOf, reencoded: Any, wild_text: str, extra: int, depth: float, seed: int
) -> None:
    task = task_of(any_kind, haystack=wild_text)
    prompt = build(task, extra, depth, seed)
    assert len(prompt.token_ids) == task.shortest_length + extra
    whole = prompt.token_ids[len(task.tokenizer.prefix) :].tolist()
    special = set(task.tokenizer.tokenizer.all_special_ids) - {task.tokenizer.tokenizer.unk_token_id}
    assert not special & set(whole)
    assert prompt.references[0] not in split_sentences(Path(wild_text).read_text())
    if prompt.roundtrip_stable:
        assert reencoded(any_kind, whole) == whole


@few
@given(extra=extra_tokens, depth=depths, digits=st.sampled_from([1, 5, 12]), seed=seeds)
def test_the_flag_is_sound_where_tokens_span_sentences(
    task_of: TaskOf, reencoded: Any, extra: int, depth: float, digits: int, seed: int
) -> None:
    task = task_of("multiword", digits=digits)
    prompt = build(task, extra, depth, seed)
    assert len(prompt.token_ids) == task.shortest_length + extra
    whole = prompt.token_ids[len(task.tokenizer.prefix) :].tolist()
    if prompt.roundtrip_stable:
        assert reencoded("multiword", whole) == whole


def test_byte_tokenizers_are_stable_on_the_troublesome_text(task_of: TaskOf, wild_text: str) -> None:
    task = task_of("byte_bpe", haystack=wild_text)
    stable = [build(task, extra, 10 * (extra % 11)).roundtrip_stable for extra in range(0, 1200, 7)]
    assert all(stable)  # a cut within a character is replaced by another sentence's first tokens


def test_unstable_prompts_say_so(tmp_path: Path, task_of: TaskOf) -> None:
    text = tmp_path / "emoji.txt"
    text.write_text("😀😀😀")  # one sentence: no other cut to choose
    task = task_of("byte_bpe", haystack=str(text))
    per_sentence = len(task._haystack.token_ids)
    flags = [build(task, extra).roundtrip_stable for extra in range(2 * per_sentence)]
    assert True in flags
    assert False in flags


@pytest.mark.parametrize(
    "changes",
    [
        {"description": "Find the 日本語 key."},
        {"information": "The 日本語 key is {key}."},
        {"question": "What is the 日本語 key?"},
        {"garbage": ("The sky is blue.", "日本語.")},
    ],
)
def test_every_piece_counts_for_the_flag(task_of: TaskOf, changes: dict[str, Any]) -> None:
    assert build(task_of("wordpiece"), 100, 50).roundtrip_stable
    task = task_of("wordpiece", **changes)  # which has no token for these characters
    for depth in (0, 50, 100):
        assert not build(task, 100, depth).roundtrip_stable


def test_an_answer_that_does_not_join_its_question_is_flagged(
    task_of: TaskOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of("byte_bpe")
    joined = task._answers(["12345"])[0]
    monkeypatch.setattr(task, "_answers", lambda _: [dataclasses.replace(joined, clean=False)])
    assert not build(task, 100).roundtrip_stable


def test_keys_keep_clear_of_numbers_in_the_text(tmp_path: Path, task_of: TaskOf) -> None:
    text = tmp_path / "numbers.txt"
    text.write_text(f"Numbers: {' '.join(str(number) for number in range(10, 97))}. Also 0970.")
    task = task_of("byte_bpe", haystack=str(text), digits=2)
    keys = {build(task, 300, seed=seed).references[0] for seed in range(40)}
    assert keys == {"98", "99"}  # 97 is part of 0970
    text.write_text("All of 123456789 here.")
    with pytest.raises(BadInput, match=r"numbers\.txt holds every number of digits=1; ask for more digits"):
        task_of("byte_bpe", haystack=str(text), digits=1)


def test_too_few_tokens_for_the_answer(task_of: TaskOf) -> None:
    with pytest.raises(BadInput, match=r"tokens_to_generate=2 is too few for an answer of \d tokens"):
        build(task_of("byte_bpe", tokens_to_generate=2), 0)
    assert build(task_of("byte_bpe", tokens_to_generate=9), 0).tokens_to_generate == 9


class Counting:
    """A tokenizer that counts what it is asked."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls, self.characters, self.decoded = tokenizer, 0, 0, 0

    def __call__(self, texts: Any, **options: Any) -> Any:
        self.calls += 1
        self.characters += len("".join(texts))
        return self.tokenizer(texts, **options)

    def decode(self, ids: Any, **options: Any) -> Any:
        self.calls += 1
        self.decoded += len(ids)
        return self.tokenizer.decode(ids, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("in_text", [False, True])
def test_the_work_of_the_tokenizer_does_not_grow_with_the_length(
    kind: str, tokenizer_of: Any, plain_text: str, in_text: bool
) -> None:
    counting: Any = Counting(tokenizer_of(kind))
    changes = {"haystack": plain_text} if in_text else {}
    task = build_task(load_spec("passkey", **changes), counting)
    for length in (512, 4096, 2**18):
        task.build(
            length=length, depth=50, rng=np.random.default_rng(1)
        )  # what the samples of a length share
        for seed in (2, 3):
            counting.calls = counting.characters = counting.decoded = 0
            task.build(length=length, depth=50, rng=np.random.default_rng(seed))
            assert counting.calls <= 8
            assert counting.characters < 1500
            assert counting.decoded < 1500


def test_of_two_equally_near_places_the_earlier_is_taken(task_of: TaskOf) -> None:
    task = task_of("byte_bpe", garbage=("The sky is blue.",))
    sentence = len(task._haystack.token_ids)
    prompt = build(task, sentence, 50)
    assert prompt.shared_prefix == len(task.tokenizer.opening(task.spec.description))
    assert build(task, sentence, 50.01).shared_prefix == prompt.shared_prefix + sentence


def test_a_chat_template_stands_around_the_prompt_and_counts(tokenizer_of: Any) -> None:
    tokenizer = copy.deepcopy(tokenizer_of("byte_bpe"))
    tokenizer.chat_template = "<s>User: {{ messages[0]['content'] }}\n\nAssistant:"
    spec: Any = load_spec("passkey", apply_chat_template=True)
    task = build_task(spec, tokenizer)
    assert spec.digest != load_spec("passkey").digest
    for length in range(task.shortest_length, task.shortest_length + 40):
        prompt = task.build(length=length, depth=50, rng=np.random.default_rng(length))
        assert len(prompt.token_ids) == length
        text = task.tokenizer.decode(prompt.token_ids)
        assert text.startswith(f"<s>User: {spec.description}")
        assert text.endswith(f"{spec.question}\n\nAssistant:")
        assert prompt.chat_prefix == "<s>User: "
