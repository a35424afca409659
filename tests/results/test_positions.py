import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.results.positions import bucket_start, context_name, position_buckets


@pytest.mark.parametrize(
    ("length", "buckets"),
    [
        (1, [(0, 1)]),
        (255, [(0, 255)]),
        (256, [(0, 256)]),
        (257, [(0, 256), (256, 257)]),
        (512, [(0, 256), (256, 512)]),
        (513, [(0, 256), (256, 512), (512, 513)]),
        (4096, [(0, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 4096)]),
        (3000, [(0, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 3000)]),
    ],
)
def test_positions_double_and_end_with_the_text(length, buckets):
    assert position_buckets(length) == buckets


@given(st.integers(1, 2**40))
def test_every_position_lies_in_one_of_them(length):
    buckets = position_buckets(length)
    assert (buckets[0][0], buckets[-1][1]) == (0, length)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(buckets))
    assert [bucket_start(end) for _, end in buckets] == [start for start, _ in buckets]


def test_a_text_without_tokens_has_none():
    with pytest.raises(ValueError, match="no positions"):
        position_buckets(0)


def test_a_context_is_named_as_an_option_is_written():
    assert (context_name(None), context_name(512)) == ("context=full", "window=512")
