"""Needle prompts of every kind of task and tokenizer: exact lengths, whole needles, one answer."""

import itertools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import ruler_tasks
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.niah import DEPTHS, NiahTask

NIAH = ruler_tasks("niah_*")
SANE = (
    "byte_bpe",
    "merged_digits",
    "three_digits",
    "llama",
    "metaspace_first",
    "unigram",
    "wordpiece",
    "cl100k",
)
ANY = (*SANE, "multiword")
NiahOf = Callable[..., NiahTask]
extra_tokens = st.one_of(st.integers(0, 60), st.integers(0, 2500))
depths = st.one_of(st.sampled_from([0, 100, 50]), st.floats(0, 100))
seeds = st.integers(0, 2**32)


def build(task: NiahTask, extra: int, depth: float = 50, seed: int = 0) -> Prompt:
    return task.build(length=task.shortest_length + extra, depth=depth, rng=np.random.default_rng(seed))


def letters(text: str) -> str:
    """A text without spaces, newlines and case, which some tokenizers do not keep."""
    return "".join(text.replace("<unk>", " ").split()).lower()


def reencoded(task: NiahTask, ids: Any) -> list[int]:
    """The tokens of the whole text of some tokens, by the tokenizer itself."""
    tokenizer: Any = task.tokenizer.tokenizer
    text = tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    encoded = tokenizer(
        text, add_special_tokens=False, split_special_tokens=task.tokenizer.chat is None, verbose=False
    )
    return list(encoded["input_ids"])


def check(task: NiahTask, prompt: Prompt, length: int, depth: float) -> None:
    """All that holds of every prompt."""
    spec, tokenizer = task.spec, task.tokenizer
    ids = prompt.token_ids
    assert ids.dtype == np.int32
    assert len(ids) == length - spec.tokens_to_generate
    assert prompt.tokens_to_generate == spec.tokens_to_generate == 128
    assert tuple(ids[: len(tokenizer.prefix)]) == tokenizer.prefix
    text = letters(tokenizer.decode(ids))

    assert len(prompt.needle_spans) == len(prompt.depths) == spec.needles
    assert prompt.depths[0] == depth
    assert prompt.shared_prefix == min(prompt.needle_spans)[0]
    by_depth = [span for _, span in sorted(zip(prompt.depths, prompt.needle_spans, strict=True))]
    assert by_depth == sorted(prompt.needle_spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(by_depth))

    needles = [letters(tokenizer.decode(ids[start:end])) for start, end in prompt.needle_spans]
    parts = [re.fullmatch(rf"oneofthespecialmagic{spec.type_needle_v}for(.+)is:(.+)\.", n) for n in needles]
    assert all(parts)
    keys, values = zip(*(part.groups() for part in parts if part), strict=True)
    assert len(set(keys)) == spec.keys
    assert len(set(values)) == spec.needles
    assert set(Counter(keys).values()) == {spec.num_needle_v}
    asked = spec.num_needle_q * spec.num_needle_v
    assert prompt.references == tuple(dict.fromkeys(prompt.references))
    assert list(values[:asked]) == [letters(reference) for reference in prompt.references]
    for key in keys:
        assert text.count(f"for{key}is:") == spec.num_needle_v  # nor in a line that nobody asks for
    for value in values:
        assert text.count(value) == 1

    queries = list(dict.fromkeys(keys[:asked]))
    before, question, prefix = (letters(part) for part in spec.around(queries))
    body = letters(tokenizer.decode(ids[len(tokenizer.prefix) :]))
    if tokenizer.chat is None:
        assert body.startswith(before)
        assert body.endswith(question + prefix)
    else:
        assert text.startswith(letters(tokenizer.chat.before) + before)
        assert text.endswith(question + letters(tokenizer.chat.behind) + prefix)

    if prompt.roundtrip_stable:
        whole = ids if tokenizer.chat else ids[len(tokenizer.prefix) :]
        assert reencoded(task, whole) == whole.tolist()
    for answer, reference in zip(prompt.answer_ids, prompt.references, strict=True):
        assert letters(tokenizer.decode(np.array(answer))) == letters(reference)


@pytest.mark.parametrize("kind", ANY)
@settings(max_examples=6, deadline=None)
@given(task=st.sampled_from(NIAH), extra=extra_tokens, depth=depths, seed=seeds)
def test_prompts_are_what_they_say(
    kind: str, task: str, niah_of: NiahOf, extra: int, depth: float, seed: int
) -> None:
    made = niah_of(kind, task)
    check(made, build(made, extra, depth, seed), made.shortest_length + extra, depth)


@pytest.mark.parametrize("task", NIAH)
def test_every_length_of_a_row(task: str, niah_of: NiahOf) -> None:
    made = niah_of("llama" if task in ("niah_single_1", "niah_multikey_1") else "byte_bpe", task)
    for extra in range(150, 210):
        depth = extra * 37 % 101
        check(made, build(made, extra, depth, extra), made.shortest_length + extra, depth)


@pytest.mark.parametrize("kind", SANE)
def test_text_and_tokens_agree_nearly_always(kind: str, niah_of: NiahOf) -> None:
    stable = [
        build(niah_of(kind, task), 83 * number + number % 7, 13 * number % 101, number).roundtrip_stable
        for task in NIAH
        for number in range(4)
    ]
    assert sum(stable) >= 0.95 * len(stable)


@pytest.mark.parametrize("task", NIAH)
def test_the_same_stream_gives_the_same_prompt_and_another_one_another(task: str, niah_of: NiahOf) -> None:
    made = niah_of("llama", task)
    one, same, other = (build(made, 500, 40, seed) for seed in (1, 1, 2))
    assert one.digest == same.digest
    assert (one.references, one.needle_spans, one.depths) == (same.references, same.needle_spans, same.depths)
    assert one.references != other.references


@pytest.mark.parametrize("task", NIAH)
def test_words_and_depths_do_not_depend_on_the_tokenizer(task: str, niah_of: NiahOf) -> None:
    for seed in range(5):
        first, second = (build(niah_of(kind, task), 700, 60, seed) for kind in ("byte_bpe", "unigram"))
        assert first.references == second.references
        assert first.depths == second.depths


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multikey_1", "niah_multivalue", "niah_multiquery"])
def test_depths_are_rulers_and_the_first_needles_is_the_one_asked(task: str, niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", task)
    seen: set[float] = set()
    for seed in range(200):
        depth = float(DEPTHS[seed % 40])
        drawn = made.draw(depth, np.random.default_rng(seed))
        depths = [where for _, _, where in drawn.needles]
        assert depths[0] == depth
        assert len(set(depths)) == len(depths) == made.spec.needles
        assert set(depths) <= set(DEPTHS.tolist())
        assert drawn.needles[0][0] == drawn.queries[0]
        assert drawn.needles[0][1] == drawn.answers[0]
        seen |= set(depths)
    assert seen == set(DEPTHS.tolist())


def test_a_depth_between_rulers_has_others_none_of_which_is_its_neighbour(niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", "niah_multivalue", num_needle_v=40)
    depths = [where for _, _, where in made.draw(50.9, np.random.default_rng(0)).needles]
    assert depths[0] == 50.9
    assert sorted(depths[1:]) == sorted(set(DEPTHS.tolist()) - {51})


def test_needles_lie_at_their_depths(niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", "niah_multivalue")
    prompt = build(made, 20_000, 25)
    for (start, _), depth in zip(prompt.needle_spans, prompt.depths, strict=True):
        assert abs(start / len(prompt.token_ids) - depth / 100) < 0.06  # sentences have their lengths


@pytest.mark.parametrize("depth", [-1, -1e-9, 100.5, float("nan"), float("inf")])
def test_depths_outside_are_refused(depth: float, niah_of: NiahOf) -> None:
    with pytest.raises(BadInput, match=r"depth .* lies outside 0 .* to 100"):
        build(niah_of("byte_bpe", "niah_single_1"), 100, depth)


def test_a_length_may_count_the_prompt_alone(niah_of: NiahOf) -> None:
    whole = niah_of("byte_bpe", "niah_single_1")
    prompt_alone = niah_of("byte_bpe", "niah_single_1", length_includes_generation=False)
    assert prompt_alone.shortest_length == whole.shortest_length - 128
    built = prompt_alone.build(length=2000, depth=30, rng=np.random.default_rng(3))
    assert len(built.token_ids) == 2000
    assert built.digest == whole.build(length=2128, depth=30, rng=np.random.default_rng(3)).digest


def test_tokens_to_generate_are_the_files_or_an_override(niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", "niah_single_1", tokens_to_generate=20)
    prompt = made.build(length=1000, depth=30, rng=np.random.default_rng(3))
    assert prompt.tokens_to_generate == 20
    assert len(prompt.token_ids) == 980


def test_repeats_of_essays_and_of_nothing_else(niah_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("One sentence is here. Another one is there. A third one ends it.")
    made = niah_of("byte_bpe", "niah_single_2", essays=str(text))
    run = len(made.tokenizer.continuations([" " + text.read_text()])[0].ids)
    prompts = [build(made, extra, 50, 4) for extra in range(3 * run)]
    for one, two in itertools.pairwise(prompts):
        assert one.haystack_repeats <= two.haystack_repeats <= one.haystack_repeats + 1
    for prompt in prompts:
        starts = letters(made.tokenizer.decode(prompt.token_ids)).count("onesentence")
        assert prompt.haystack_repeats in (starts - 1, starts)  # of the last one there may be a beginning
    rises = [two.haystack_repeats - one.haystack_repeats for one, two in itertools.pairwise(prompts)]
    assert np.diff(np.flatnonzero(rises)).tolist() == [run] * (sum(rises) - 1)
    assert sum(rises) == 3
    assert build(niah_of("byte_bpe", "niah_single_1"), 5000).haystack_repeats == 0
    assert build(niah_of("byte_bpe", "niah_multikey_2"), 5000).haystack_repeats == 0


def test_a_million_tokens(niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", "niah_multikey_1")
    prompt = made.build(length=2**20, depth=37.5, rng=np.random.default_rng(0))
    assert len(prompt.token_ids) == 2**20 - 128
    assert prompt.roundtrip_stable
    assert prompt.haystack_repeats > 20
    assert abs(prompt.needle_spans[0][0] / 2**20 - 0.375) < 1e-3
