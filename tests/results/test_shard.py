import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.results.shard import Shard, parse_shard


@pytest.mark.parametrize(
    ("text", "shard"), [("1/1", (1, 1)), ("2/8", (2, 8)), (" 8 / 8 ", (8, 8)), ("10000/10000", (10_000,) * 2)]
)
def test_a_shard_as_it_is_typed(text, shard):
    assert parse_shard(text) == Shard(k=shard[0], n=shard[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--shard '': is written K/N, 2/8 for the second of eight shards"),
        ("2", "--shard '2': is written K/N, 2/8 for the second of eight shards"),
        ("2/", "--shard '2/': is written K/N, 2/8 for the second of eight shards"),
        ("-1/8", "--shard '-1/8': is written K/N, 2/8 for the second of eight shards"),
        ("1.5/8", "--shard '1.5/8': is written K/N, 2/8 for the second of eight shards"),
        ("²/8", "--shard '²/8': is written K/N, 2/8 for the second of eight shards"),
        ("0/8", "--shard 0/8: shards are counted from 1, the last of them is 8/8"),
        ("9/8", "--shard 9/8: shards are counted from 1, the last of them is 8/8"),
        ("0/0", "--shard 0/0: there are 1 to 10000 shards"),
        ("1/10001", "--shard 1/10001: there are 1 to 10000 shards"),
    ],
)
def test_what_is_no_shard_is_one_line(text, message):
    with pytest.raises(BadInput) as caught:
        parse_shard(text)
    assert str(caught.value) == message


def test_what_its_files_and_its_option_are_called():
    shard = Shard(k=2, n=8)
    assert (shard.tag, str(shard)) == ("2-of-8", "2/8")
    assert parse_shard(str(shard)) == shard


@given(st.integers(1, 50), st.integers(0, 1000))
def test_every_sample_is_in_one_shard(n, sample):
    assert [k for k in range(1, n + 1) if Shard(k=k, n=n).holds(sample)] == [sample % n + 1]
