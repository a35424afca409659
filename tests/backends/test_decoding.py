"""Tokens, ends and scores are those of plain generation, token by token; the calls are fewer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bamctl.backends.decoding import decode
from bamctl.models.cache import PreallocatedCache

LENGTH = 30
MOST = 10
"""Greedy tokens known of each prompt."""


class Prompts:
    """Four prompts of one length, their greedy continuations and the scores of any other."""

    def __init__(self, model):
        self.model = model.double()  # no two logits are near enough for rounding to decide
        self.ids = torch.randint(2, 100, (4, LENGTH), generator=torch.Generator().manual_seed(3))
        self.greedy = [self._continuation(row) for row in self.ids.tolist()]

    @torch.inference_mode()
    def _logits(self, ids):
        return self.model(torch.tensor([ids]), use_cache=False).logits[0]

    def _continuation(self, ids):
        tokens = []
        for _ in range(MOST):
            tokens.append(int(self._logits([*ids, *tokens])[-1].argmax()))
        return tokens

    def logprob(self, row, reference):
        logprobs = self._logits([*self.ids[row].tolist(), *reference]).log_softmax(dim=-1)
        return sum(float(logprobs[LENGTH - 1 + i, token]) for i, token in enumerate(reference))

    def expected(self, row, limit, ends):
        """Tokens and whether they ended, as plain generation has them."""
        end = next((i for i, token in enumerate(self.greedy[row][:limit]) if token in ends), None)
        return (self.greedy[row][:limit], False) if end is None else (self.greedy[row][:end], True)

    @torch.inference_mode()
    def decode(self, rows, references, limits, ends=()):
        """The answers, and how many calls of the model they took."""
        cache = PreallocatedCache(2, LENGTH + 40)
        next_BV = self.model.prefill(self.ids[rows], cache, chunk_size=LENGTH)
        calls = []
        handle = self.model.register_forward_hook(lambda *_: calls.append(1))
        answers = decode(
            self.model, cache, next_BV, references=references, limits=limits, ends=frozenset(ends)
        )
        handle.remove()
        return answers, len(calls)

    def check(self, rows, references, limits, ends=()):
        """Compares with plain generation; how many calls there were."""
        answers, calls = self.decode(rows, references, limits, ends)
        for answer, row, reference, limit in zip(answers, rows, references, limits, strict=True):
            assert (answer.tokens, answer.stopped) == self.expected(row, limit, ends)
            assert math.isclose(answer.logprob, self.logprob(row, reference), abs_tol=1e-9)
        return calls


@pytest.fixture(scope="module")
def prompts(checkpoint):
    return Prompts(checkpoint.load(device="cpu", dtype="float32"))


def other_than(token):
    return 7 if token != 7 else 8


def agreeing(greedy, agreed, length):
    """A reference of `length` tokens, the first `agreed` of which are the greedy ones."""
    return tuple(token if i < agreed else other_than(token) for i, token in enumerate(greedy[:length]))


def test_the_prompts_are_worth_asking(prompts):
    assert len({tuple(tokens) for tokens in prompts.greedy}) == 4
    assert all(len(set(tokens)) > 3 for tokens in prompts.greedy)


@pytest.mark.parametrize(
    ("agreed", "length", "limit", "calls"),
    [
        (5, 5, 6, 1),  # right, and the token behind it is known as well
        (5, 5, 5, 1),
        (5, 5, 3, 1),
        (5, 5, 7, 2),
        (5, 5, 10, 5),
        (0, 5, 1, 1),
        (0, 5, 7, 7),  # one for the score; the first token is known from reading the prompt
        (2, 5, 7, 5),
        (4, 5, 7, 3),
        (1, 1, 2, 1),
        (1, 1, 5, 4),
        (0, 1, 5, 5),
    ],
)
def test_what_scoring_has_told_is_not_asked_again(prompts, agreed, length, limit, calls):
    reference = agreeing(prompts.greedy[0], agreed, length)
    assert prompts.check([0], [reference], [limit]) == calls


@pytest.mark.parametrize("end_at", range(8))
@pytest.mark.parametrize("agreed", range(6))
def test_an_end_within_the_reference_at_its_end_and_behind(prompts, agreed, end_at):
    greedy = prompts.greedy[1]
    calls = prompts.check([1], [agreeing(greedy, agreed, 5)], [9], ends={greedy[end_at]})
    if greedy.index(greedy[end_at]) <= agreed:
        assert calls == 1


def test_a_batch_goes_on_from_where_the_first_of_them_leaves_its_reference(prompts):
    references = [
        agreeing(prompts.greedy[row], agreed, length)
        for row, (agreed, length) in enumerate([(5, 5), (1, 3), (0, 1), (3, 6)])
    ]
    assert prompts.check([0, 1, 2, 3], references, [7, 7, 7, 7]) == 7
    assert prompts.check([0, 1, 3], [references[row] for row in (0, 1, 3)], [7, 7, 7]) == 6
    assert prompts.check([0, 1, 2, 3], references, [7, 2, 1, 4]) == 2  # only the first has not enough


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_is_plain_generation(prompts, data):
    rows = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    lengths = [data.draw(st.integers(1, 7)) for _ in rows]
    references = [
        agreeing(prompts.greedy[row], data.draw(st.integers(0, length)), length)
        for row, length in zip(rows, lengths, strict=True)
    ]
    limits = [data.draw(st.integers(1, MOST)) for _ in rows]
    tokens = sorted({token for row in rows for token in prompts.greedy[row]})
    ends = data.draw(st.lists(st.sampled_from(tokens), max_size=2))
    prompts.check(rows, references, limits, ends)
