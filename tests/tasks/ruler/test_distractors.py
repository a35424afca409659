"""Haystacks of needles: each another one, none of them asked for, and enough of them."""

import re
from typing import Any

import numpy as np
import pytest

from bamctl.tasks.catalog import load_spec
from bamctl.tasks.ruler import distractors
from bamctl.tasks.ruler.distractors import SMALLEST_POOL, DistractorPool
from bamctl.tasks.tokenization import PromptTokenizer


def pool_of(tokenizer: Any, task: str = "niah_multikey_2", **changes: object) -> DistractorPool:
    spec: Any = load_spec(task, **changes)
    return DistractorPool(spec, PromptTokenizer(tokenizer))


def lines_of(pool: DistractorPool, haystack: Any) -> list[tuple[str, str]]:
    """Keys and values of all lines."""
    text = pool._tokenizer.decode(haystack.token_ids)
    pattern = r"One of the special magic \w+ for (.+) is: (.+)\.\n"
    assert re.fullmatch(f"(?:{pattern})*", text)
    return re.findall(pattern, text)


def test_lines_are_whole_distinct_and_enough(tokenizer_of: Any) -> None:
    pool = pool_of(tokenizer_of("byte_bpe"))
    for tokens in (1, 500, 20_000, 100_000):
        haystack, first = pool.haystack(tokens, without=[], rng=np.random.default_rng(tokens))
        assert len(haystack.token_ids) >= tokens
        lines = lines_of(pool, haystack)
        assert len(lines) == haystack.sentences == len({key for key, _ in lines})
        assert first == "One of the special magic numbers for {} is: {}.\n".format(*lines[0])
        assert haystack.first_unstable is None


def test_the_order_is_the_samples_own(tokenizer_of: Any) -> None:
    pool = pool_of(tokenizer_of("llama"))
    one, same, other = (
        pool.haystack(3000, without=[], rng=np.random.default_rng(seed))[0].token_ids for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert one[:100].tolist() != other[:100].tolist()


def test_two_tasks_at_once_have_the_same_pool(tokenizer_of: Any) -> None:
    haystacks = [
        pool_of(tokenizer_of("byte_bpe")).haystack(3000, without=[], rng=np.random.default_rng(1))
        for _ in range(2)
    ]
    assert (haystacks[0][0].token_ids == haystacks[1][0].token_ids).all()


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_what_is_left_out_is_in_no_line(task: str, tokenizer_of: Any) -> None:
    pool = pool_of(tokenizer_of("byte_bpe"), task)
    small = pool._pool(SMALLEST_POOL)
    keys, values = small.keys[:300].tolist(), small.values[300:600].tolist()
    haystack, first = pool.haystack(
        1000, without=[*keys, *values, "longer than any key"], rng=np.random.default_rng(0)
    )
    all_left, _ = pool.haystack(8000, without=[*keys, *values], rng=np.random.default_rng(0))
    for found in (haystack, all_left):
        lines = lines_of(pool, found)
        assert not {key for key, _ in lines} & set(keys)
        assert not {value for _, value in lines} & set(values)
    assert "{} is: {}".format(*lines_of(pool, haystack)[0]) in first


def test_pools_are_twice_as_large_as_needed(tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(tokenizer_of("byte_bpe"))
    sizes = []
    original = pool._pool
    monkeypatch.setattr(pool, "_pool", lambda size: sizes.append(size) or original(size))
    mean = len(original(SMALLEST_POOL).ids) / SMALLEST_POOL
    for lines, size in ((1, 1024), (511, 1024), (513, 2048), (2000, 4096)):
        haystack, _ = pool.haystack(int(lines * mean), without=[], rng=np.random.default_rng(0))
        assert sizes[-1] == size
        assert haystack.sentences <= size


def test_the_largest_pool_starts_again(tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distractors, "LARGEST_POOL", 2048)
    pool = pool_of(tokenizer_of("byte_bpe"))
    haystack, _ = pool.haystack(10**9, without=[], rng=np.random.default_rng(0))
    assert haystack.sentences == 2048
    assert len(haystack.tokens(0, 10**6)) == 10**6


def test_the_needles_text_and_kinds_are_other_pools(tokenizer_of: Any) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"needle": "The {type_needle_v} of {key}: {value}"},
        {"type_needle_k": "numbers"},
        {"type_needle_v": "uuids"},
    ]
    rng = np.random.default_rng
    texts = [
        pool._tokenizer.decode(pool.haystack(50, without=[], rng=rng(0))[0].token_ids)
        for pool in (pool_of(tokenizer_of("byte_bpe"), **change) for change in changes)
    ]
    assert len(set(texts)) == len(texts)
    assert texts[1].startswith("The numbers of ")
