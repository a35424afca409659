import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bamctl.backends.native import NativeBackend
from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.perplexity import check_context, loss_identity, measure_losses, token_losses
from bamctl.evaluation.stretches import Stretches
from bamctl.models.loading import open_checkpoint
from bamctl.results.store import RunStore, accuracy_table, load_samples

CLOSE = 1e-4
LENGTH = 600  # the last range of positions is cut off


class CountingBackend:
    """-ln p of a token is its index in what is read + its id / 1000: it tells how much stood before it."""

    name, device, dtype = "native", "cpu", "float32"

    def __init__(self, description):
        self.model = description
        self.read = []
        self.before = lambda number: None

    def token_logprobs(self, token_ids, *, first=1):
        self.before(len(self.read))
        self.read.append(token_ids.tolist())
        return -(np.arange(len(token_ids)) + token_ids / 1000.0)[first:]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    return open_checkpoint(str(tiny_checkpoint))


@pytest.fixture(scope="module")
def native(checkpoint):
    return NativeBackend(checkpoint, device="cpu", share_prefixes=False)


@pytest.fixture
def counting(native):
    return CountingBackend(native.model)


@pytest.fixture(scope="module")
def make_stretches(checkpoint):
    def make(length=LENGTH, samples=2, prefix=1, name="text.txt"):
        rng = np.random.default_rng([length, samples])
        ids = rng.integers(2, len(checkpoint.tokenizer), (samples, length)).astype(np.int32)
        ids[:, :prefix] = 0
        digest = hashlib.sha256(json.dumps([name, length, samples, prefix]).encode()).hexdigest()
        return Stretches(text=name, digest=digest, token_ids=ids, prefix=prefix, tokenizer_digest="t" * 64)

    return make


@pytest.fixture(scope="module")
def forward(checkpoint):
    """-ln p of every token but the first, from one forward in float64."""
    model = checkpoint.load(device="cpu", dtype="float32").double()

    @torch.inference_mode()
    def run(ids):
        logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return -logits.log_softmax(-1)[np.arange(len(ids) - 1), list(ids)[1:]].numpy()

    return run


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_in_full_context_a_token_has_all_before_it(native, make_stretches, forward, prefix):
    ids = make_stretches(prefix=prefix).token_ids[0]
    losses = token_losses(native, ids, prefix=prefix, window=None)
    assert losses == pytest.approx(forward(ids)[max(1, prefix) - 1 :], abs=CLOSE)


@pytest.mark.parametrize(("window", "prefix"), [(32, 1), (41, 0), (41, 3)])
def test_in_a_window_a_token_has_what_the_definition_says(native, make_stretches, forward, window, prefix):
    ids = make_stretches(length=110, prefix=prefix).token_ids[0]
    losses = token_losses(native, ids, prefix=prefix, window=window)
    expected = list(forward(ids[:window])[max(1, prefix) - 1 :])
    for position in range(window, 110):
        start = (position - window) // (window // 2) * (window // 2) + window // 2
        assert math.ceil(window / 2) <= position - start <= window - 1
        read = [*ids[:prefix], *ids[start + prefix : position + 1]]
        expected.append(forward(read)[-1])
    assert losses == pytest.approx(np.array(expected), abs=CLOSE)


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("window", [8, 9, 10, 64])
@pytest.mark.parametrize("length", [65, 66, 67, 68, 96, 97])
def test_every_token_is_scored_once_and_windows_are_as_wide_as_they_say(
    counting, make_stretches, length, window, prefix
):
    ids = make_stretches(length=length, prefix=prefix).token_ids[0]
    losses = token_losses(counting, ids, prefix=prefix, window=window)
    first = max(1, prefix)
    before = np.floor(losses).astype(int)
    assert len(losses) == length - first
    assert np.round((losses - before) * 1000).astype(int).tolist() == ids[first:].tolist()
    assert before[: window - first].tolist() == list(range(first, window))
    assert (before[window - first :] >= math.ceil(window / 2)).all()
    assert before.max() == window - 1
    assert [len(read) for read in counting.read[:-1]] == [window] * (len(counting.read) - 1)
    assert len(counting.read[-1]) <= window
    assert all(read[:prefix] == [0] * prefix for read in counting.read)


def test_rows_are_means_over_ranges_of_positions(native, make_stretches, forward, tmp_path):
    stretches = make_stretches()
    for window in (None, 128):
        summary = measure_losses(native, stretches, window=window, out=tmp_path)
        assert (summary.ran, summary.found, len(summary.row_ids)) == (2, 0, 6)
    rows = load_samples([tmp_path])
    assert set(rows["row_id"]) >= summary.row_ids
    assert set(rows["metric"]) == {"loss"}
    assert set(rows["status"]) == {"done"}
    full, sliding = rows[rows["window"].isna()], rows[rows["window"] == 128]
    for run in (full, sliding):
        assert run["length"].tolist() == [256, 256, 512, 512, 600, 600]
        assert run["tokens_scored"].tolist() == [255, 255, 256, 256, 88, 88]
        assert run["tokens_scored"].sum() == 2 * (LENGTH - 1)
        assert set(run["prompt_tokens"]) == {LENGTH}
        assert (run["prefill_seconds"] > 0).all()
    for number in range(2):
        whole = forward(stretches.token_ids[number])
        means = [whole[:255].mean(), whole[255:511].mean(), whole[511:].mean()]
        assert full[full["sample"] == number]["loss"].tolist() == pytest.approx(means, abs=CLOSE)
        kept = token_losses(native, stretches.token_ids[number], prefix=1, window=128)
        means = [kept[:255].mean(), kept[255:511].mean(), kept[511:].mean()]
        assert sliding[sliding["sample"] == number]["loss"].tolist() == pytest.approx(means, abs=1e-12)
    pairs = full.merge(sliding, on=["prompt_digest", "length"])
    assert len(pairs) == 6
    assert (pairs["loss_x"] != pairs["loss_y"]).all()
    accuracy = accuracy_table(rows)
    assert accuracy["n"].tolist() == [2] * 6
    assert accuracy["loss"].notna().all()


def test_a_prefix_is_not_scored_and_an_empty_range_has_no_row(counting, make_stretches, tmp_path):
    measure_losses(counting, make_stretches(length=512, samples=1, prefix=300), window=None, out=tmp_path)
    rows = load_samples([tmp_path])
    assert (rows["length"].tolist(), rows["tokens_scored"].tolist()) == ([512], [212])


def test_a_run_that_ended_early_goes_on_with_the_stretch_it_was_at(counting, make_stretches, tmp_path):
    stretches = make_stretches(samples=3)

    def fail_at_the_second(number):
        if number == 1:
            raise RunFailed("scripted: the engine died")

    counting.before = fail_at_the_second
    with pytest.raises(RunFailed, match="the engine died"):
        measure_losses(counting, stretches, window=None, out=tmp_path)
    rows = load_samples([tmp_path])
    assert rows["status"].value_counts().to_dict() == {"done": 3, "failed": 3}
    assert rows[rows["status"] == "failed"]["error"].tolist() == ["scripted: the engine died"] * 3

    told = []
    counting.before, counting.read = lambda number: None, []
    summary = measure_losses(counting, stretches, window=None, out=tmp_path, on_progress=told.append)
    assert (summary.ran, summary.found) == (2, 1)
    assert counting.read == stretches.token_ids[1:].tolist()
    assert [(progress.done, progress.loss is None, progress.tokens) for progress in told] == [
        (1, True, 0),
        (2, False, 600),
        (3, False, 600),
    ]
    rows = load_samples([tmp_path])
    assert rows["status"].tolist() == ["done"] * 9
    assert rows["sample"].tolist() == [0, 1, 2] * 3
    counting.read = []
    again = measure_losses(counting, stretches, window=None, out=tmp_path)
    assert (again.ran, again.found, counting.read) == (0, 3, [])
    assert again.row_ids == summary.row_ids == frozenset(rows["row_id"])


def test_a_stretch_of_which_some_rows_are_missing_is_read_again(
    counting, make_stretches, tmp_path, monkeypatch
):
    stretches = make_stretches()
    append = RunStore.append

    def killed_at_the_fifth(store, row):
        if len(store.done()) == 4:
            raise KeyboardInterrupt
        append(store, row)

    monkeypatch.setattr(RunStore, "append", killed_at_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        measure_losses(counting, stretches, window=None, out=tmp_path)
    assert len(load_samples([tmp_path])) == 4
    monkeypatch.setattr(RunStore, "append", append)
    counting.read = []
    assert measure_losses(counting, stretches, window=None, out=tmp_path).ran == 1
    assert counting.read == stretches.token_ids[1:].tolist()
    assert load_samples([tmp_path])["status"].tolist() == ["done"] * 6


def test_what_defines_a_run(counting, make_stretches):
    stretches = make_stretches()
    identity = loss_identity(counting, stretches, None)
    assert identity.variant == "text=text.txt max_len=600 samples=2 context=full"
    assert loss_identity(counting, stretches, 128).variant.endswith("samples=2 window=128")
    assert loss_identity(counting, make_stretches(length=2048), None).variant.split()[1] == "max_len=2k"
    others = [
        loss_identity(counting, stretches, 128),
        loss_identity(counting, stretches, 256),
        loss_identity(counting, make_stretches(samples=3), None),
        loss_identity(counting, make_stretches(length=601), None),
        loss_identity(counting, replace(stretches, digest="other"), None),
        loss_identity(counting, replace(stretches, tokenizer_digest="other"), None),
    ]
    assert len({identity.run_id, *(other.run_id for other in others)}) == 7


@pytest.mark.parametrize(
    ("window", "longest", "message"),
    [
        (None, 599, "--max-len 600 is beyond what tiny reads: 599 tokens; lower it"),
        (128, 127, "--windows 128 is beyond what tiny reads: 127 tokens; lower it"),
        (3, None, "--windows 3: too short for tiny, the shortest is 4 tokens"),
        (
            600,
            None,
            "--windows 600: holds all of a stretch of 600, which is the full context; name shorter ones",
        ),
    ],
)
def test_a_context_that_does_not_fit_is_refused_before_anything_is_written(
    counting, make_stretches, tmp_path, window, longest, message
):
    counting.model = replace(counting.model, longest_prompt=longest)
    with pytest.raises(BadInput) as caught:
        measure_losses(counting, make_stretches(), window=window, out=tmp_path / "results")
    assert str(caught.value) == message
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("window", "longest"), [(None, 600), (None, None), (128, 128), (4, None), (599, None)]
)
def test_what_just_fits_is_not_refused(make_stretches, window, longest):
    check_context(make_stretches(), window, longest=longest, model="tiny")


def test_what_moves_a_limit_is_told(make_stretches):
    with pytest.raises(BadInput, match=r"reads: 99 positions; stretch it to 600$"):
        check_context(
            make_stretches(),
            None,
            longest=99,
            model="x",
            limit_note=lambda wanted: f"99 positions; stretch it to {wanted}",
        )


@pytest.mark.parametrize(("dtype", "hint"), [("float16", "; try --dtype float32"), ("float32", "")])
def test_a_loss_that_is_not_finite_is_no_loss(counting, make_stretches, tmp_path, dtype, hint):
    counting.dtype = dtype
    plain = counting.token_logprobs

    def broken(token_ids, *, first=1):
        logprobs = plain(token_ids, first=first)
        logprobs[6] = np.nan
        return logprobs

    counting.token_logprobs = broken
    with pytest.raises(RunFailed) as caught:
        measure_losses(counting, make_stretches(), window=None, out=tmp_path)
    assert str(caught.value) == f"tiny: the loss is nan in {dtype} at position 7 of stretch 0{hint}"
    rows = load_samples([tmp_path])
    assert rows["status"].tolist() == ["failed"] * 3
    assert rows["loss"].isna().all()
