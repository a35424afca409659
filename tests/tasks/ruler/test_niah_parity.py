"""Given the draws of RULER's own niah.py, our tokens say what its strings say, character for character.

And the other way round: RULER, given the draws of one of our prompts, writes its text.
"""

import itertools
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from bamctl.tasks.catalog import build_task, load_spec, ruler_tasks
from bamctl.tasks.fill import Cut, Filled, Sentences, Source, fill
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.ruler import niah
from bamctl.tasks.ruler.corpora import essay_sentences
from bamctl.tasks.ruler.layout import NeedlePrompt, essay_slots, line_slots
from bamctl.tasks.ruler.niah import DEPTHS, NiahTask
from bamctl.tasks.ruler.niah_spec import NiahSpec
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, PromptTokenizer

NIAH = ruler_tasks("niah_*")
ESSAY, LINES, NEEDLES = "niah_single_2", "niah_single_1", "niah_multikey_2"
Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of: Any) -> PromptTokenizer:
    return PromptTokenizer(tokenizer_of("byte_bpe"))


def ours(spec: NiahSpec, sample: Any, seed: int, tokenizer: PromptTokenizer) -> tuple[str, list[str]]:
    """What we make of RULER's draws: the text of our tokens, and the answers."""
    words = iter(sample.words)
    keys, values, needles = [], [], []
    for _ in range(spec.keys):
        keys.append(next(words))
        values.append([next(words) for _ in range(spec.num_needle_v)])
        needles += [spec.needle_text(keys[-1], value) for value in values[-1]]
    random.Random(seed).shuffle(needles)  # the order in which RULER takes them
    positions, asked = sample.samples
    if spec.type_haystack == "essay":
        sentences, depths = sample.sentences, sorted(positions)
    else:
        lines = [spec.noise] * sample.haystack
        if spec.type_haystack == "needle":
            lines = [spec.needle_text(key, value) for key, value in zip(words, words, strict=True)]
        sentences, needles = lines, needles[::-1]
        depths = [(line + 0.5) / sample.haystack * 100 for line in sorted(positions)]
    assert list(words) == []
    before, question, answer_prefix = spec.around([keys[index] for index in asked])
    prompt = NeedlePrompt(
        before=before,
        question=question,
        answer_prefix=answer_prefix,
        needles=tuple(needles),
        depths=tuple(float(depth) for depth in depths),
    )
    answers = [value for index in asked for value in values[index]]
    return text_of(spec, prompt, sentences, tokenizer), answers


def text_of(spec: NiahSpec, prompt: NeedlePrompt, sentences: list[str], tokenizer: PromptTokenizer) -> str:
    """The text of the tokens of a prompt with exactly these sentences."""
    if spec.type_haystack == "essay":
        slots: Any = partial(essay_slots, prompt)
        haystack = Haystack.of([" " + sentence for sentence in sentences], tokenizer)
        first = tokenizer.continuations([sentences[0]], behind=(*BEHIND_NEWLINE, *ANCHORS))[0].ids
    else:
        slots = partial(line_slots, prompt)
        haystack = Haystack.of([line + "\n" for line in sentences], tokenizer, behind=BEHIND_NEWLINE)
        first = haystack.sentence(0)
    assert haystack.sentences == len(sentences)
    source = Source(haystack, first=first)
    tokens = tokens_of(slots(len(sentences), False), source, tokenizer)
    filled = fill(slots, source, tokenizer, tokens)
    assert isinstance(filled, Filled)
    ids = filled.assembly.token_ids()
    assert len(ids) == tokens
    assert filled.assembly.is_stable()
    for (start, end), needle in zip(filled.assembly.needles, prompt.needles, strict=True):
        assert tokenizer.decode(ids[start:end]).strip() == needle
    return tokenizer.decode(ids)


def tokens_of(slots: Any, source: Source, tokenizer: PromptTokenizer) -> int:
    """The length of a prompt, found without `fill`."""
    total = len(tokenizer.prefix)
    for index, slot in enumerate(slots):
        assert not isinstance(slot, Cut)
        if isinstance(slot, Sentences):
            at_start = index == 1 and slot.start == 0
            total += len(source.stretch(slot, at_start=at_start).ids)
        elif hasattr(slot, "text"):
            total += len(tokenizer.continuations([slot.text], behind=getattr(slot, "behind", ANCHORS))[0].ids)
        else:
            total += len(tokenizer.closing(slot.question, slot.answer_prefix, behind=slot.behind))
    return total


def spec_of(task: str, **changes: object) -> NiahSpec:
    spec = load_spec(task, **changes)
    assert isinstance(spec, NiahSpec)
    return spec


@pytest.mark.parametrize("length", [1500, 6000])
@pytest.mark.parametrize("task", NIAH)
def test_what_rulers_own_run_writes(
    task: str, length: int, ruler_niah: Load, tokenizer: PromptTokenizer
) -> None:
    ruler = ruler_niah(task)
    spec = spec_of(task)
    arguments = ("type_haystack", "type_needle_k", "type_needle_v", "num_needle_v", "num_needle_q")
    assert [getattr(ruler.args, name) for name in arguments] == [getattr(spec, name) for name in arguments]
    assert ruler.args.num_needle_k == spec.keys
    assert ruler.args.tokens_to_generate == spec.tokens_to_generate
    lines = ruler.run(length, 5)
    assert len(lines) == 5
    for line, sample in lines:
        assert line["length"] <= length
        text, answers = ours(spec, sample, ruler.args.random_seed, tokenizer)
        assert text == line["input"]
        assert answers == line["outputs"]


def corner_positions(population: int, count: int, grid: list[int]) -> list[list[int]]:
    """Draws of depths or line numbers at the ends, at one place, and far apart."""
    picks = [grid[:count], grid[-count:], [*grid[: count // 2], *grid[count // 2 - count :]]]
    spread = np.linspace(0, len(grid) - 1, count).round().astype(int)
    return [*picks, [grid[index] for index in spread], grid[:count][::-1]]


SHAPES = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 4, 1), (1, 1, 2), (1, 1, 3), (2, 3, 2), (5, 2, 4)]
KINDS = [(k, v) for k in ("words", "numbers", "uuids") for v in ("words", "numbers", "uuids")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("task", [ESSAY, LINES, NEEDLES])
def test_corner_draws(
    task: str,
    shape: tuple[int, int, int],
    ruler_niah: Load,
    tokenizer: PromptTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ruler = ruler_niah(task)
    names = ("num_needle_k", "num_needle_v", "num_needle_q")
    first = SHAPES.index(shape) % 3
    for (kind_k, kind_v), haystack in zip(KINDS[first::3], [8, 40, 21 + 100 * first], strict=True):
        changes: dict[str, Any] = dict(zip(names, shape, strict=True))
        changes |= {"type_needle_k": kind_k, "type_needle_v": kind_v}
        spec = spec_of(task, **changes)
        for name, value in changes.items():
            monkeypatch.setattr(ruler.args, name, value)
        monkeypatch.setattr(ruler.args, "num_needle_k", spec.keys)
        haystack = max(haystack, spec.needles)
        grid = [int(depth) for depth in DEPTHS] if task == ESSAY else list(range(haystack))
        for positions in corner_positions(haystack, spec.needles, grid):
            asked = random.Random(haystack).sample(range(spec.keys), spec.num_needle_q)
            ruler.forced_samples = [positions, asked]
            sample = ruler.one(haystack)
            assert sample.samples == [positions, asked]
            text, answers = ours(spec, sample, ruler.args.random_seed, tokenizer)
            assert text == sample.text
            assert answers == sample.answers


class InOrder:
    """In the place of `random.Random`: shuffles into a known order."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def __call__(self, seed: int) -> "InOrder":
        return self

    def shuffle(self, needles: list[str]) -> None:
        assert sorted(needles) == sorted(self.order)
        needles[:] = self.order


def whole_sentences(spec: NiahSpec, context: str, needles: list[str], sentences: list[str]) -> list[str]:
    """The haystack's sentences or lines; none where the last one is cut."""
    if spec.type_haystack == "essay":
        for needle in needles:
            context = context.replace(needle, "")
        words = context.split()
        for count in range(1, len(sentences) + 1):
            joined = " ".join(sentences[:count]).split()
            if len(joined) >= len(words):
                return sentences[:count] if joined == words else []
        return []
    lines = [line for line in context.split("\n") if line not in needles]
    whole = all(line == spec.noise or len(words_of(line)) == 2 for line in lines)
    return lines if whole else []


def words_of(line: str) -> list[str]:
    """Key and value of a whole needle."""
    found = re.fullmatch(r"One of the special magic \w+ for (.+) is: (\d{7}|[0-9a-f-]{36})\.", line)
    return list(found.groups()) if found else []


class Recorded:
    """`fill`, and how many tokens its last cut sentence had."""

    cut_tokens = 0

    def __call__(self, slots_of: Any, source: Source, *others: Any) -> Filled | int:
        filled = fill(slots_of, source, *others)
        assert isinstance(filled, Filled)
        whole = source.haystack.whole_sentences(filled.haystack_tokens)
        self.cut_tokens = filled.haystack_tokens - source.haystack.start_of(whole)
        return filled


@pytest.mark.parametrize("task", NIAH)
def test_ruler_writes_our_prompts(
    task: str, ruler_niah: Load, tokenizer: PromptTokenizer, essay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruler = ruler_niah(task)
    spec = spec_of(task, essays=essay)
    built = build_task(spec, tokenizer)
    assert isinstance(built, NiahTask)
    known = essay_sentences(spec.essay_text)
    filled = Recorded()
    monkeypatch.setattr(niah, "fill", filled)
    compared = 0
    for extra, depth, off in itertools.product((250, 400, 800), (0.0, 100.0, 41.0, 77.5), range(-2, 3)):
        drawn = built.draw(depth, np.random.default_rng(extra))
        length = built.shortest_length + extra
        if off == -2:
            built.build(length=length, depth=depth, rng=np.random.default_rng(extra))
            cut = filled.cut_tokens
        prompt = built.build(length=length - cut + off, depth=depth, rng=np.random.default_rng(extra))
        text = tokenizer.decode(prompt.token_ids)
        before, question, prefix = spec.around(drawn.queries)
        context = text.removeprefix(before).removesuffix(question + prefix)
        placed = sorted(drawn.needles, key=lambda needle: needle[2])
        needles = [spec.needle_text(key, value) for key, value, _ in placed]
        sentences = whole_sentences(spec, context, needles, known)
        count = len(sentences)
        depths: list[Any] = [where for _, _, where in placed]
        if spec.type_haystack == "essay":
            words = " ".join(sentences).split(" ")
            monkeypatch.setattr(ruler.module, "haystack", words)
            monkeypatch.setattr(ruler.module, "sent_tokenize", lambda _, known=sentences: known)
            monkeypatch.setattr(ruler.module, "DEPTHS", depths)
            positions, order, count = depths, needles, len(words) * bool(sentences)
        else:
            positions = [min(int(count * (where / 100)), count - 1) for where in depths]
            order = needles[::-1]
        if not count:
            continue
        keys = list(dict.fromkeys(key for key, _, _ in drawn.needles))
        ruler.forced_words = [
            word for key in keys for word in (key, *(v for k, v, _ in drawn.needles if k == key))
        ]
        if spec.type_haystack == "needle":
            ruler.forced_words += [word for line in sentences for word in words_of(line)]
        ruler.forced_samples = [positions, [keys.index(query) for query in drawn.queries]]
        monkeypatch.setattr(ruler, "Random", InOrder(order), raising=False)
        sample = ruler.one(count)
        assert sample.text == text
        assert tuple(sample.answers) == prompt.references
        compared += 1
    assert compared >= 8
