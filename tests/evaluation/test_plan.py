import itertools
from types import SimpleNamespace

import pytest

from bamctl.errors import BadInput
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples, select_samples
from bamctl.results.shard import Shard
from bamctl.tasks.catalog import build_task, load_spec

SPEC = load_spec("passkey")


def plan(lengths=(256, 512), samples=4, depths="0,50,100", seed=0, spec=SPEC):
    return plan_samples(
        spec, lengths=lengths, samples=samples, depths=parse_depths(depths, samples), seed=seed
    )


def flat(planned):
    return list(itertools.chain.from_iterable(planned.values()))


@pytest.mark.parametrize("depths", ["equidistant", "0,50,100", "50%", "random"])
def test_the_grid_is_complete_and_every_row_has_an_id_of_its_own(depths):
    planned = plan(lengths=(1024, 256, 512), samples=25, depths=depths)
    assert list(planned) == [256, 512, 1024]
    for length, rows in planned.items():
        assert [(row.length, row.sample) for row in rows] == [(length, sample) for sample in range(25)]
    assert len({row.row_id for row in flat(planned)}) == 75
    assert all(0 <= row.depth <= 100 for row in flat(planned))


@pytest.mark.parametrize("depths", ["0,50,100", "random", "3"])
def test_other_lengths_their_order_and_more_samples_change_no_row(depths):
    rows = plan(lengths=(512,), samples=3, depths=depths)[512]
    assert plan(lengths=(4096, 512, 256), samples=8, depths=depths)[512][:3] == rows
    assert plan(lengths=(512, 256, 4096), samples=3, depths=depths)[512] == rows


def test_whatever_defines_a_sample_changes_its_id():
    base = {row.row_id for row in flat(plan())}
    for other in (
        plan(seed=1),
        plan(lengths=(257, 513)),
        plan(depths="1,51,99"),
        plan(depths="random"),
        plan(spec=load_spec("passkey", digits=6)),
    ):
        assert base.isdisjoint(row.row_id for row in flat(other))


def test_ids_and_draws_are_the_same_for_ever():
    """A change here orphans the results that people have."""
    row = plan(lengths=(512,), samples=1, spec=SimpleNamespace(digest="5" * 64, prompt_version=1))[512][0]
    assert row.row_id == "5ee5f83136c6333d6df7ce05"
    assert row.rng().integers(0, 10, size=5).tolist() == [9, 9, 7, 1, 0]


def test_a_samples_stream_starts_anew_whenever_it_is_asked_for():
    first, second = plan(samples=2)[256]
    assert first.rng().integers(0, 2**60) == first.rng().integers(0, 2**60)
    assert first.rng().integers(0, 2**60) != second.rng().integers(0, 2**60)


def test_random_depths_come_from_each_samples_own_stream():
    depths = [row.depth for row in plan(lengths=(512,), samples=200, depths="random")[512]]
    assert len(set(depths)) == 200
    assert min(depths) < 10
    assert max(depths) > 90
    assert 40 < sum(depths) / 200 < 60
    again = [row.depth for row in plan(lengths=(64, 512), samples=5, depths="random")[512]]
    assert again == depths[:5]
    assert [row.depth for row in plan(lengths=(512,), samples=5, depths="random", seed=1)[512]] != again


def test_models_with_different_tokenizers_are_asked_for_the_same_keys(tokenizers):
    row = plan(lengths=(512,), samples=4)[512]
    asked = []
    for tokenizer in tokenizers:
        task = build_task(SPEC, tokenizer)
        prompts = [task.build(length=512, depth=sample.depth, rng=sample.rng()) for sample in row]
        assert {len(prompt.token_ids) for prompt in prompts} == {512}
        asked.append([prompt.references for prompt in prompts])
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 4


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_shards_together_are_the_plan(n):
    whole = plan(samples=5)
    shards = [select_samples(whole, shard=Shard(k=k, n=n)) for k in range(1, n + 1)]
    assert sorted(row.row_id for shard in shards for row in flat(shard)) == sorted(
        row.row_id for row in flat(whole)
    )
    for k, shard in enumerate(shards):
        assert list(shard) == ([256, 512] if k < 5 else [])
        assert all([row.sample for row in rows] == list(range(k, 5, n)) for rows in shard.values())


def test_only_some_of_the_samples():
    whole = plan()
    ids = frozenset({whole[512][0].row_id, whole[512][3].row_id})
    assert select_samples(whole) == whole
    assert select_samples(whole, only=ids) == {512: [whole[512][0], whole[512][3]]}
    assert select_samples(whole, only=ids, shard=Shard(k=2, n=2)) == {512: [whole[512][3]]}
    assert select_samples(whole, only=frozenset()) == {}
    with pytest.raises(BadInput, match=r"^--only ff: no sample of these [^\n]*; bamctl show prints [^\n]*$"):
        select_samples(whole, only=ids | {"ff"})
