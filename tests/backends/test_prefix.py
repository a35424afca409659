"""What prompts have in common is read once, and nothing else of what they answer changes, not by one bit."""

import itertools
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bamctl.backends.native as native
from bamctl.backends.native import NativeBackend
from bamctl.backends.prefix import SharedPrefix, common_prefix
from bamctl.models import BamForCausalLM
from bamctl.models.cache import PreallocatedCache
from bamctl.models.config import POSITION_ENCODINGS
from bamctl.models.loading import open_checkpoint
from bamctl.tasks.catalog import build_task, load_spec

ROOT = Path(__file__).parents[2]
CHUNK = 16


def ids(*rows):
    return np.array(rows, dtype=np.int32)


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ([[1, 2, 3]], [[1, 2, 3]], 3),
        ([[1, 2, 3]], [[1, 2, 4]], 2),
        ([[1, 2, 3]], [[4, 2, 3]], 0),
        ([[1, 2, 3]], [[1, 2, 3, 4]], 3),
        ([[1, 2, 3, 4]], [[1, 2, 3]], 3),
        ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 7]], 2),
        ([[1, 2, 3], [4, 5, 6]], [[1, 0, 3], [4, 5, 6]], 1),
        ([[1, 2, 3], [4, 5, 6]], [[4, 5, 6], [1, 2, 3]], 0),  # row by row, not as a set
    ],
)
def test_common_prefix(left, right, common):
    assert common_prefix(ids(*left), ids(*right)) == common


class Held:
    """A `SharedPrefix` that has kept one prompt of 40 tokens and some that were generated behind it."""

    def __init__(self, batch=1, length=40, chunk_size=CHUNK, capacity=64):
        self.ids = np.arange(batch * length, dtype=np.int32).reshape(batch, length)
        self.shared = SharedPrefix(layers=2)
        self.cache = self.shared.take(self.ids, chunk_size=chunk_size, capacity=capacity)
        assert self.cache.length == 0
        for layer in range(2):
            self.cache.update(
                torch.zeros(batch, 1, length + 9, 4), torch.zeros(batch, 1, length + 9, 4), layer
            )
        self.shared.keep(self.cache, self.ids, chunk_size=chunk_size)

    def take_with(self, first_difference, length=40, **options):
        other = np.resize(self.ids, (len(self.ids), length)).copy()
        other[:, first_difference:] += 1000
        return self.shared.take(other, **({"chunk_size": CHUNK, "capacity": 64} | options))


@pytest.mark.parametrize(
    ("first_difference", "reused"),
    [(0, 0), (1, 0), (15, 0), (16, 16), (17, 16), (31, 16), (32, 32), (33, 32), (39, 32), (40, 32)],
)
def test_whole_chunks_up_to_the_first_difference_are_taken_over(first_difference, reused):
    held = Held()
    cache = held.take_with(first_difference)
    assert cache is held.cache
    assert [layer.length for layer in cache.buffers] == [reused, reused]


@pytest.mark.parametrize("length", [1, 16, 32, 48])
def test_the_last_token_is_read_again_even_if_all_are_the_same(length):
    assert Held(length=length).take_with(length, length).length == length - 1 - (length - 1) % CHUNK


def test_what_was_generated_behind_a_prompt_is_never_taken_over():
    held = Held(length=32)  # the cache holds 41 positions
    longer = np.arange(48, dtype=np.int32)[None]  # begins with all of the prompt
    assert held.shared.take(longer, chunk_size=CHUNK, capacity=64).length == 32


@pytest.mark.parametrize("options", [{"chunk_size": 8}, {"chunk_size": 32}, {"capacity": 128}])
def test_another_shape_gets_a_cache_of_its_own(options):
    held = Held()
    cache = held.take_with(40, **options)
    assert cache is not held.cache
    assert (cache.length, cache.capacity) == (0, options.get("capacity", 64))


def test_another_number_of_prompts_gets_a_cache_of_its_own():
    held = Held(batch=2)
    cache = held.shared.take(held.ids[:1], chunk_size=CHUNK, capacity=64)
    assert cache is not held.cache
    assert cache.length == 0


def test_a_cache_is_taken_once_and_let_go_of_when_it_does_not_fit():
    held = Held()
    assert held.shared.nbytes() == held.cache.nbytes() > 0
    held.take_with(40)
    assert held.shared.nbytes() == 0
    assert held.take_with(40) is not held.cache
    again = Held()
    again.take_with(40, capacity=128)
    assert again.shared.nbytes() == 0


def differing_from(prompt, position):
    """The same prompt with other tokens from a position on."""
    token_ids = prompt.token_ids.copy()
    token_ids[position:] = np.where(token_ids[position:] == 5, 6, 5)
    return replace(prompt, token_ids=token_ids)


def same_but_for_time(completions):
    return [(c.token_ids, c.text, c.finish_reason, c.answer_logprob) for c in completions]


class Both:
    """One checkpoint with and without sharing; what every prefill gave and left in the cache is compared."""

    def __init__(self, checkpoint):
        self.sharing = NativeBackend(checkpoint, device="cpu")
        self.plain = NativeBackend(checkpoint, device="cpu", share_prefixes=False)

    def complete(self, prompts):
        """What both answer is the same; how many tokens were taken over."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "PREFILL_CHUNK", CHUNK)
            patch.setattr(BamForCausalLM, "prefill", self._recorded(BamForCausalLM.prefill))
            self._seen = []
            shared = self.sharing.complete(prompts)
            plain = self.plain.complete(prompts)
        (left, left_states), (right, right_states) = self._seen
        assert torch.equal(left, right)
        assert all(torch.equal(x, y) for x, y in zip(left_states, right_states, strict=True))
        assert same_but_for_time(shared) == same_but_for_time(plain)
        assert {completion.reused_tokens for completion in plain} == {0}
        (reused,) = {completion.reused_tokens for completion in shared}
        return reused

    def _recorded(self, prefill):
        def recording(model, unread, cache, **options):
            logits = prefill(model, unread, cache, **options)
            states = [x[:, :, : cache.length].clone() for layer in cache.buffers for x in layer._filled()]
            self._seen.append((logits, states))
            return logits

        return recording


@pytest.mark.parametrize(
    ("position_encoding", "ssmax"), list(itertools.product(POSITION_ENCODINGS, [False, True]))
)
def test_sharing_changes_no_bit(make_checkpoint, make_prompt, position_encoding, ssmax):
    fields = {"position_encoding": position_encoding, "ssmax": ssmax}
    both = Both(open_checkpoint(str(make_checkpoint(**fields))))
    prompt = make_prompt(90)
    assert both.complete([prompt]) == 0
    for first_difference, reused in ((90, 80), (89, 80), (80, 80), (79, 64), (33, 32), (15, 0), (0, 0)):
        both.complete([prompt])
        assert both.complete([differing_from(prompt, first_difference)]) == reused


@pytest.fixture(scope="module")
def both_ways(checkpoint):
    return Both(checkpoint)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_comes_after_whatever(both_ways, make_prompt, data):
    """Lengths, batches and beginnings in any order."""
    for _ in range(data.draw(st.integers(2, 5))):
        length = data.draw(st.sampled_from([30, 33, 64]))
        batch = data.draw(st.integers(1, 2))
        prompts = []
        for _ in range(batch):
            whole = make_prompt(64, answer=data.draw(st.integers(1, 4)), limit=data.draw(st.integers(1, 4)))
            other = differing_from(whole, data.draw(st.integers(0, length)))
            prompts.append(replace(other, token_ids=other.token_ids[:length]))
        both_ways.complete(prompts)


def test_the_shipped_checkpoint_answers_the_same():
    checkpoint = open_checkpoint(str(ROOT / "models/tiny-bam-ssmax"))
    task = build_task(load_spec(str(ROOT / "tasks/passkey.yaml")), checkpoint.tokenizer)
    both = Both(checkpoint)
    for length in (512, 600):
        prompts = [
            task.build(length=length, depth=depth, rng=np.random.default_rng(depth))
            for depth in (100, 75, 50, 25, 0)
        ]
        reused = [both.complete([prompt]) for prompt in prompts]
        # Needles have their first words in common too, hence "at least".
        for tokens, prompt in zip(reused[1:], prompts[1:], strict=True):
            assert tokens >= prompt.shared_prefix // CHUNK * CHUNK
            assert tokens < prompt.needle_spans[0][1]


def test_tokens_taken_over_do_not_go_through_the_model(checkpoint, make_prompt, monkeypatch):
    monkeypatch.setattr(native, "PREFILL_CHUNK", CHUNK)
    backend = NativeBackend(checkpoint, device="cpu")
    read = []
    backend._model.model.layers[0].register_forward_pre_hook(
        lambda _, inputs: read.append(inputs[0].shape[1])
    )

    def tokens_read(prompt):
        read.clear()
        backend.complete([prompt])
        return sum(read)

    prompt = make_prompt(90, answer=1, limit=1)  # one token for the reference, none for generating
    assert tokens_read(prompt) == 91
    assert tokens_read(differing_from(prompt, 70)) == 90 - 64 + 1
    assert tokens_read(differing_from(prompt, 40)) == 90 - 32 + 1
    assert tokens_read(differing_from(prompt, 3)) == 91


def test_two_backends_share_nothing(make_checkpoint, make_prompt, monkeypatch):
    monkeypatch.setattr(native, "PREFILL_CHUNK", CHUNK)
    other = open_checkpoint(str(make_checkpoint("other", ssmax=False)))
    first, second = (NativeBackend(c, device="cpu") for c in (other, open_checkpoint(str(make_checkpoint()))))
    prompt = make_prompt()
    first.complete([prompt])
    assert second.complete([prompt])[0].reused_tokens == 0
    assert first.complete([prompt])[0].reused_tokens == 80


def test_after_a_failure_nothing_is_taken_over(checkpoint, make_prompt, monkeypatch):
    monkeypatch.setattr(native, "PREFILL_CHUNK", CHUNK)
    backend = NativeBackend(checkpoint, device="cpu")
    prompt = make_prompt()
    before = backend.complete([prompt])

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(native, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.complete([prompt])
    (after,) = backend.complete([prompt])
    assert after.reused_tokens == 0
    assert same_but_for_time([after]) == same_but_for_time(before)


def test_the_old_cache_is_gone_before_the_new_one_takes_memory(checkpoint, make_prompt, monkeypatch):
    backend = NativeBackend(checkpoint, device="cpu")
    made, alive = [], []

    class Watched(PreallocatedCache):
        def __init__(self, *arguments, **options):
            alive.append([cache() is not None for cache in made])
            super().__init__(*arguments, **options)
            made.append(weakref.ref(self))

    monkeypatch.setattr("bamctl.backends.prefix.PreallocatedCache", Watched)
    for length in (60, 130, 260):
        backend.complete([make_prompt(length)])
    assert alive == [[], [False], [False, False]]
    assert made[-1]() is not None  # held for the next call
