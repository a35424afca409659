"""Variable tracking: RULER's text for RULER's draws, exact lengths, assignments in order and whole."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler.variable_tracking import VariableTrackingDraw, VariableTrackingTask
from bamctl.tasks.ruler.variable_tracking_spec import Chain, context, placed

Make = Callable[..., VariableTrackingTask]


@pytest.fixture(scope="module")
def task_of(any_tokenizer: Any) -> Make:
    def make(kind: str, **overrides: object) -> VariableTrackingTask:
        task = build_task(load_spec("vt", **overrides), any_tokenizer(kind))
        assert isinstance(task, VariableTrackingTask)
        return task

    return make


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def places(positions: list[int], free: int) -> tuple[float, ...]:
    """What gives these positions among so many."""
    return tuple(
        (position - index + 0.5) / (free - len(positions) + 1) for index, position in enumerate(positions)
    )


def chains_of(drawn: tuple[Any, Any]) -> tuple[Chain, ...]:
    return tuple(
        Chain(value=assignments[0].split(" = ")[1], names=tuple(names))
        for names, assignments in zip(*drawn, strict=True)
    )


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k"])
@pytest.mark.parametrize(
    ("length", "chains", "hops", "splits"),
    [(1700, 1, 4, False), (4096, 1, 4, False), (3000, 3, 2, False), (1400, 1, 1, False), (1000, 1, 12, True)],
)
def test_the_text_is_rulers(
    ruler_module: Any,
    any_tokenizer: Any,
    task_of: Make,
    kind: str,
    length: int,
    chains: int,
    hops: int,
    splits: bool,
) -> None:
    ruler = ruler_module("vt")
    task = task_of(kind, num_chains=chains, num_hops=hops)
    lines = ruler.run(length, 4, num_chains=chains, num_hops=hops)
    example_call = max(call for call in range(len(ruler.calls)) if is_example(ruler, call))
    task.example_lines = ruler.calls[example_call][0][0]  # RULER counts other tokens here
    for number, line in enumerate(lines):
        call = len(ruler.calls) - len(lines) + number
        (noises, *_), (text, answer) = ruler.calls[call]
        assert line["input"].endswith(text)
        drawn = chains_of(ruler.chains[call])
        units = len(task.spec.units(noises, hops))
        assert (units > noises) == splits
        positions = [sorted(sample) for sample in ruler.samples[call]]
        first = positions[0][0]
        example = chains_of(ruler.chains[example_call])
        names = tuple(line["input"].split("they are: ")[1].split("\n")[0].split())
        example = (Chain(value=example[0].value, names=names), *example[1:])
        example_units = len(task.spec.units(task.example_lines, min(10, hops)))
        draw = VariableTrackingDraw(
            chains=drawn,
            places=(
                places([position - first - 1 for position in positions[0][1:]], units - 1 - first),
                *(places(p, units + chain * (hops + 1)) for chain, p in enumerate(positions[1:], start=1)),
            ),
            example=example,
            example_places=tuple(
                places(sorted(sample), example_units + chain * len(example[0].names))
                for chain, sample in enumerate(ruler.samples[example_call])
            ),
        )
        tokens = len(task.tokenizer.opening(line["input"]))
        prompt = task.assemble(draw, length=tokens + 30, depth=100 * (first + 0.5) / units)
        assert task.tokenizer.decode(prompt.token_ids) == line["input"]
        assert prompt.references == tuple(answer) == tuple(line["outputs"])
        assert len(prompt.token_ids) == tokens
        assert prompt.roundtrip_stable


def is_example(ruler: Any, call: int) -> bool:
    """Whether a call made an example: names of three letters."""
    return len(ruler.chains[call][0][0][0]) == 3


def test_the_example_is_as_long_as_rulers(ruler_module: Any, tiny_bam: Any) -> None:
    ruler = ruler_module("vt")
    ruler.run(4096, 1, tiny_bam)
    call = max(call for call in range(len(ruler.calls)) if is_example(ruler, call))
    assert build_task(load_spec("vt"), tiny_bam).example_lines == ruler.calls[call][0][0]  # type: ignore[attr-defined]


def test_places_count_what_is_there_before_a_chain() -> None:
    units = [f"{number}." for number in range(4)]
    chains = (Chain(value="1", names=("A", "B")), Chain(value="2", names=("C", "D")))
    positions = [[0, 2], [1, 4]]
    assert context(units, chains, positions) == (
        "VAR A = 1 VAR C = 2 0. 1. VAR B = VAR A  VAR D = VAR C  2. 3."
    )
    assert [place.before for place in placed(4, positions)] == [0, 0, 2, 2]


def test_a_newline_follows_its_full_stop_and_an_assignment_has_its_space() -> None:
    chain = (Chain(value="1", names=("A",)),)
    assert context(["One.", " Two.", "\n"], chain, [[1]]) == "One. VAR A = 1  Two.\n"
    assert context(["One.", " Two.", "\n"], chain, [[2]]) == "One.  Two. VAR A = 1 \n"


@pytest.mark.parametrize("more", [0, 1, 2, 7, 23, 100, 1001])
def test_the_length_is_exact(task_of: Make, kind: str, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    prompt = task.build(length=length, depth=50, rng=rng(more))
    assert len(prompt.token_ids) == length - 30
    alone = task_of(kind, length_includes_generation=False)
    assert alone.shortest_length == task.shortest_length - 30
    assert len(alone.build(length=length, depth=50, rng=rng(more)).token_ids) == length


@pytest.mark.parametrize("kind", ["byte_bpe", "merged_digits", "three_digits", "llama", "cl100k"])
def test_prompts_are_what_their_text_is_tokenised_to(task_of: Make, any_tokenizer: Any, kind: str) -> None:
    task = task_of(kind)
    for more in range(40):
        prompt = task.build(length=task.shortest_length + 100 + more, depth=more * 2.5, rng=rng(more))
        ids = prompt.token_ids[len(task.tokenizer.prefix) :]
        again = any_tokenizer(kind)(task.tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        assert prompt.roundtrip_stable == (again == ids.tolist())
        # A full stop that is cut off from the rest of its line is one token with the newline behind it.
        assert prompt.roundtrip_stable or kind == "cl100k"


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k", "multiword"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), depth=st.floats(0, 100), more=st.integers(0, 60))
def test_every_draw_fits(task_of: Make, kind: str, seed: int, depth: float, more: int) -> None:
    task = task_of(kind)
    length = task.shortest_length + more
    assert len(task.build(length=length, depth=depth, rng=rng(seed)).token_ids) == length - 30


@pytest.mark.parametrize("fields", [{"num_chains": 5, "num_hops": 2}, {"num_hops": 13}, {"num_hops": 1}])
@pytest.mark.parametrize("noise", ["One line without an end", "One. Two. Three."])
def test_other_chains_and_other_noise_fit_too(task_of: Make, fields: dict[str, int], noise: str) -> None:
    task = task_of("byte_bpe", noise=noise, **fields)
    for more in (0, 1, 5, 200):
        prompt = task.build(length=task.shortest_length + more, depth=30, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 30
        assert_whole(task, prompt)


def assert_whole(task: VariableTrackingTask, prompt: Any) -> None:
    """Every assignment is there, whole and in the order of its chain."""
    texts = [task.tokenizer.decode(prompt.token_ids[slice(*span)]).strip() for span in prompt.needle_spans]
    length = task.spec.num_hops + 1
    assert len(texts) == task.spec.num_chains * length
    for start in range(0, len(texts), length):
        chain = texts[start : start + length]
        names = [text.split(" = ")[0].removeprefix("VAR ") for text in chain]
        assert chain[0].split(" = ")[1].isdigit()
        assert [text.split(" = ")[1] for text in chain[1:]] == [f"VAR {name}" for name in names[:-1]]
        spans = prompt.needle_spans[start : start + length]
        assert list(spans) == sorted(spans)
        if not start:
            assert prompt.references == tuple(names)


@pytest.mark.parametrize("depth", [0, 12.5, 50, 99, 100])
def test_the_first_assignment_is_at_the_depth(task_of: Make, depth: float) -> None:
    task = task_of("byte_bpe")
    prompt = task.build(length=20_000, depth=depth, rng=rng())
    assert_whole(task, prompt)
    start = len(task.tokenizer.opening(task._opening(task.draw(rng()))))
    share = (prompt.needle_spans[0][0] - start) / (len(prompt.token_ids) - start)
    assert share == pytest.approx(depth / 100, abs=0.03)
    assert prompt.depths[0] == depth
    assert list(prompt.depths[1:]) == sorted(prompt.depths[1:])
    if depth == 0:
        assert task.tokenizer.decode(prompt.token_ids[: prompt.needle_spans[0][0]]).endswith("text.\n\n")


def test_the_same_stream_gives_the_same_prompt_and_tokenizers_the_same_names(task_of: Make) -> None:
    one, other = task_of("byte_bpe"), task_of("cl100k")
    prompt = one.build(length=4000, depth=10, rng=rng(3))
    assert prompt.digest == one.build(length=4000, depth=10, rng=rng(3)).digest
    assert prompt.digest != one.build(length=4000, depth=10, rng=rng(4)).digest
    assert prompt.references == other.build(length=5000, depth=60, rng=rng(3)).references
    another = one.build(length=4000, depth=10, rng=rng(4))
    assert (prompt.token_ids[: prompt.shared_prefix] == another.token_ids[: prompt.shared_prefix]).all()
    assert one.tokenizer.decode(prompt.token_ids[: prompt.shared_prefix]).endswith("text.\n\n")


@pytest.mark.parametrize("kind", ["byte_bpe", "llama"])
def test_what_is_too_short_is_refused_with_the_shortest(task_of: Make, kind: str) -> None:
    task = task_of(kind)
    for length in (1, 64, task.shortest_length - 1):
        with pytest.raises(BadInput, match=f"always works is {task.shortest_length} tokens"):
            task.build(length=length, depth=0, rng=rng())
    for depth in (-0.1, 100.1):
        with pytest.raises(BadInput, match=r"depth .* lies outside"):
            task.build(length=4000, depth=depth, rng=rng())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_chains", 0, "num_chains: .*greater than or equal to 1"),
        ("num_hops", 1001, "num_hops: .*less than or equal to 1000"),
        ("template", "no place", r"template: must hold \{context\} once"),
        ("template", "{context} {key}", "template: 'key' is no field of it"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_spec("vt", **{field: value})


def test_a_chat_template_is_inside_the_length(any_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(any_tokenizer("cl100k"))
    tokenizer.chat_template = "<|user|>{{ messages[0].content }}<|assistant|>"
    task: Any = build_task(load_spec("vt", apply_chat_template=True), tokenizer)
    for more in (0, 1, 500):
        prompt = task.build(length=task.shortest_length + more, depth=50, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 30
        text = task.tokenizer.decode(prompt.token_ids)
        assert text.startswith("<|user|>")
        assert text.count("<|assistant|>") == 1
        assert text.rstrip().endswith(":")
        assert prompt.chat_prefix == "<|user|>"
