from dataclasses import replace

import pandas as pd
import pytest

from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.run import evaluate, run_identity
from bamctl.results.store import RunStore, load_samples

VOLATILE = ["started_at", "prefill_seconds", "decode_seconds", "peak_memory_bytes"]


def rows_of(out):
    return load_samples([out]).drop(columns=VOLATILE)


def assert_same(left, right):
    pd.testing.assert_frame_equal(rows_of(left), rows_of(right))


def at_length(*lengths):
    return lambda prompt: len(prompt.token_ids) in lengths


def test_every_sample_of_the_grid_has_a_row_with_everything_in_it(backend, task, request_for):
    backend.right = lambda prompt: len(prompt.token_ids) < 512
    request = request_for(samples=4)
    summary = evaluate(backend, task, request)
    assert (summary.ran, summary.found) == (12, 0)
    assert summary.folder == request.out / "passkey" / f"scripted-{summary.run_id}"

    rows = pd.read_parquet(summary.folder / "samples.parquet")
    assert list(zip(rows["length"], rows["sample"], strict=True)) == [
        (length, sample) for length in (128, 256, 512) for sample in range(4)
    ]
    of_others = ["error", "chat_prefix", "window", "loss", "tokens_scored", "command"]
    assert rows.drop(columns=of_others).notna().all(axis=None)
    assert rows[of_others].isna().all(axis=None)
    assert set(rows["metric"]) == {"exact"}
    assert rows["row_id"].is_unique
    assert rows["prompt_digest"].is_unique
    assert set(rows["run_id"]) == {summary.run_id}
    assert (rows["status"] == "done").all()
    assert rows["prompt_tokens"].tolist() == rows["length"].tolist()
    assert [list(depth) for depth in rows["depth"]] == [[0.0], [50.0], [100.0], [0.0]] * 3
    assert rows["exact"].tolist() == [True] * 8 + [False] * 4
    assert rows["recall"].tolist() == [1.0] * 8 + [0.0] * 4
    assert rows["answer_logprob"].tolist() == [-0.5] * 8 + [-20.0] * 4
    assert rows["finish_reason"].tolist() == ["length"] * 8 + ["stop"] * 4
    assert rows["reused_tokens"].tolist() == [7] * 12
    asked = {prompt.digest: prompt for (prompt,) in backend.batches}
    answers = [len(asked[digest].answer_ids[0]) for digest in rows["prompt_digest"]]
    assert rows["completion_tokens"].tolist() == answers[:8] + [0] * 4
    assert rows["prediction"].tolist() == [f" {r[0]}." for r in rows["references"][:8]] + [""] * 4
    for row in rows.itertuples():
        prompt = asked[row.prompt_digest]
        assert list(row.references) == list(prompt.references)
        assert list(row.needle_start) == [start for start, _ in prompt.needle_spans]
    assert not (summary.folder / "journal.jsonl").read_bytes()

    accuracy = pd.read_parquet(summary.folder / "accuracy.parquet")
    assert accuracy["length"].tolist() == [128, 256, 512]
    assert accuracy["n"].tolist() == [4, 4, 4]
    assert accuracy["exact_count"].tolist() == [4, 4, 0]


def test_the_same_call_again_runs_nothing(backend, task, request_for):
    request = request_for()
    first = evaluate(backend, task, request)
    files = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    again = evaluate(backend, task, request)
    assert (again.ran, again.found) == (0, 9)
    assert (again.run_id, again.folder) == (first.run_id, first.folder)
    assert backend.answered == 9
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == files


@pytest.mark.parametrize("depths", ["0,50,100", "random", "3"])
def test_more_samples_and_lengths_extend_a_run(backend, task, request_for, tmp_path, depths):
    evaluate(backend, task, request_for(depths, lengths=(512,)))
    backend.batches.clear()
    summary = evaluate(backend, task, request_for(depths, samples=5, lengths=(128, 512)))
    assert (summary.ran, summary.found) == (7, 3)
    assert [len(batch[0].token_ids) for batch in backend.batches] == [128] * 5 + [512] * 2
    evaluate(backend, task, request_for(depths, samples=5, lengths=(128, 512), out=tmp_path / "at_once"))
    assert_same(tmp_path / "out", tmp_path / "at_once")


def test_fewer_samples_take_nothing_away(backend, task, request_for):
    evaluate(backend, task, request_for(samples=4))
    summary = evaluate(backend, task, request_for(samples=2))
    assert (summary.ran, summary.found) == (0, 6)
    assert len(pd.read_parquet(summary.folder / "samples.parquet")) == 12


def test_equidistant_depths_of_another_number_are_another_run(backend, task, request_for):
    folders = {evaluate(backend, task, request_for("equidistant", samples=n)).folder for n in (2, 3)}
    assert len(folders) == 2
    assert backend.answered == 6 + 9


def test_another_seed_is_another_run_with_other_keys(backend, task, request_for):
    folders = {evaluate(backend, task, request_for(seed=seed)).folder for seed in (0, 1)}
    assert len(folders) == 2
    keys = [prompt.references for batch in backend.batches for prompt in batch]
    assert set(keys[:9]).isdisjoint(keys[9:])


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (64, [5])])
def test_batches_change_no_row(backend, task, request_for, tmp_path, batch_size, sizes):
    evaluate(backend, task, request_for("random", samples=5, out=tmp_path / "one_by_one"))
    backend.batches.clear()
    evaluate(backend, task, request_for("random", samples=5, batch_size=batch_size))
    assert [len(batch) for batch in backend.batches] == sizes * 3
    assert all(len({len(prompt.token_ids) for prompt in batch}) == 1 for batch in backend.batches)
    assert_same(tmp_path / "out", tmp_path / "one_by_one")


def asked_depths(backend):
    """Depths in the order of asking, by length."""
    depths = {}
    for batch in backend.batches:
        depths.setdefault(len(batch[0].token_ids), []).append([prompt.depths[0] for prompt in batch])
    return depths


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("depths", ["equidistant", "random", "0,50,100", "50%"])
def test_within_a_length_the_deepest_needle_comes_first(backend, task, request_for, depths, batch_size):
    evaluate(backend, task, request_for(depths, samples=5, batch_size=batch_size))
    by_length = asked_depths(backend)
    assert list(by_length) == [128, 256, 512]
    for batches in by_length.values():
        order = [depth for batch in batches for depth in batch]
        assert order == sorted(order, reverse=True)
        assert [len(batch) for batch in batches] == {1: [1] * 5, 2: [2, 2, 1], 5: [5]}[batch_size]


def test_samples_of_one_depth_keep_their_order(backend, task, request_for):
    request = request_for("0,100", samples=5, lengths=(128,))
    evaluate(backend, task, request)
    rows = load_samples([request.out]).set_index("prompt_digest")
    assert [rows.loc[prompt.digest, "sample"] for (prompt,) in backend.batches] == [1, 3, 0, 2, 4]


def test_what_is_missing_is_run_in_the_same_order(backend, task, request_for):
    def interrupt(number):
        if number == 2:
            raise KeyboardInterrupt

    backend.before = interrupt
    request = request_for("equidistant", samples=5, lengths=(128,))
    with pytest.raises(KeyboardInterrupt):
        evaluate(backend, task, request)
    backend.before = lambda number: None
    evaluate(backend, task, request)
    assert asked_depths(backend) == {128: [[100.0], [75.0], [50.0], [25.0], [0.0]]}


def test_ctrl_c_keeps_what_was_finished(backend, task, request_for, tmp_path):
    def interrupt(number):
        if number == 4:
            raise KeyboardInterrupt

    backend.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        evaluate(backend, task, request_for())
    assert len(load_samples([tmp_path / "out"])) == 4
    (parquet,) = (tmp_path / "out").rglob("samples.parquet")
    assert len(pd.read_parquet(parquet)) == 4

    backend.before = lambda number: None
    summary = evaluate(backend, task, request_for())
    assert (summary.ran, summary.found) == (5, 4)
    assert backend.answered == 9
    evaluate(backend, task, request_for(out=tmp_path / "at_once"))
    assert_same(tmp_path / "out", tmp_path / "at_once")


def test_a_failure_leaves_failed_rows_which_the_next_call_runs(backend, task, request_for, tmp_path):
    def fail(number):
        if number == 3:  # the second batch at 256
            raise RunFailed("scripted: out of memory")

    backend.before = fail
    request = request_for(samples=4, batch_size=2)
    with pytest.raises(RunFailed, match="out of memory"):
        evaluate(backend, task, request)
    rows = load_samples([tmp_path / "out"])
    # Depths are 0, 50, 100, 0; the deepest two went first.
    assert rows["status"].tolist() == ["done"] * 4 + ["failed", "done", "done", "failed"]
    failed = rows[rows["status"] == "failed"]
    assert failed["error"].tolist() == ["scripted: out of memory"] * 2
    assert failed["prompt_digest"].notna().all()
    assert failed[["prediction", "exact", "recall", "answer_logprob"]].isna().all(axis=None)
    accuracy = pd.read_parquet(next((tmp_path / "out").rglob("accuracy.parquet")))
    assert accuracy[["length", "n", "failed"]].values.tolist() == [[128, 4, 0], [256, 2, 2]]

    backend.before = lambda number: None
    summary = evaluate(backend, task, request)
    assert (summary.ran, summary.found) == (6, 6)
    evaluate(backend, task, request_for(samples=4, out=tmp_path / "at_once"))
    assert_same(tmp_path / "out", tmp_path / "at_once")


def test_a_prompt_that_memory_does_not_hold_is_a_failed_run(
    backend, task, request_for, tmp_path, monkeypatch
):
    build = task.build

    def build_short_ones(**arguments):
        if arguments["length"] > 128:
            raise MemoryError
        return build(**arguments)

    monkeypatch.setattr(task, "build", build_short_ones)
    with pytest.raises(
        RunFailed, match=r"^passkey: out of memory while making a prompt of 256 tokens; lower"
    ):
        evaluate(backend, task, request_for())
    assert len(load_samples([tmp_path / "out"])) == 3


@pytest.mark.parametrize(
    ("right", "patience", "statuses"),
    [
        ((128,), None, {128: "done", 256: "done", 512: "done", 1024: "done"}),
        ((128,), 1, {128: "done", 256: "done", 512: "skipped", 1024: "skipped"}),
        ((128,), 2, {128: "done", 256: "done", 512: "done", 1024: "skipped"}),
        ((128,), 3, {128: "done", 256: "done", 512: "done", 1024: "done"}),
        ((), 1, {128: "done", 256: "skipped", 512: "skipped", 1024: "skipped"}),
        ((256,), 2, {128: "done", 256: "done", 512: "done", 1024: "done"}),  # 256 starts the count anew
        ((128, 256, 512, 1024), 1, {128: "done", 256: "done", 512: "done", 1024: "done"}),
    ],
)
def test_patience(backend, task, request_for, tmp_path, right, patience, statuses):
    backend.right = at_length(*right)
    evaluate(backend, task, request_for(samples=2, lengths=tuple(statuses), patience=patience))
    rows = load_samples([tmp_path / "out"])
    assert len(rows) == 8
    assert dict(zip(rows["length"], rows["status"], strict=True)) == statuses
    skipped = rows[rows["status"] == "skipped"]
    assert skipped[["prompt_tokens", "prediction", "exact", "recall"]].isna().all(axis=None)
    assert all("accuracy was 0" in error for error in skipped["error"])
    asked = {len(prompt.token_ids) for batch in backend.batches for prompt in batch}
    assert asked == {length for length, status in statuses.items() if status == "done"}


def test_one_right_answer_among_many_is_no_zero(backend, task, request_for, tmp_path):
    backend.right = lambda prompt: len(backend.batches) % 3 == 0
    evaluate(backend, task, request_for(patience=1))
    assert set(load_samples([tmp_path / "out"])["status"]) == {"done"}


def test_skipped_rows_are_run_once_patience_is_lifted(backend, task, request_for, tmp_path):
    backend.right = at_length(512)
    evaluate(backend, task, request_for(patience=1))
    rows = load_samples([tmp_path / "out"])
    assert rows["status"].tolist() == ["done"] * 3 + ["skipped"] * 6
    summary = evaluate(backend, task, request_for())
    assert (summary.ran, summary.found) == (6, 3)
    evaluate(backend, task, request_for(out=tmp_path / "at_once"))
    assert_same(tmp_path / "out", tmp_path / "at_once")


def test_patience_does_not_skip_what_is_done(backend, task, request_for, tmp_path):
    backend.right = at_length()
    evaluate(backend, task, request_for())
    told = []
    evaluate(backend, task, request_for(patience=1), on_progress=told.append)
    assert not any(progress.skipped for progress in told)
    assert set(load_samples([tmp_path / "out"])["status"]) == {"done"}


def test_a_length_that_is_too_short_is_told_before_anything_is_written(backend, task, request_for, tmp_path):
    shortest = task.shortest_length
    with pytest.raises(BadInput, match=rf"length {shortest - 1} is too short .* works is {shortest}$"):
        evaluate(backend, task, request_for(lengths=(shortest - 1, 512)))
    assert list(tmp_path.iterdir()) == []
    assert evaluate(backend, task, request_for(lengths=(shortest,))).ran == 3


def test_a_length_that_is_too_long_is_told_before_anything_is_written(backend, task, request_for, tmp_path):
    backend.model = replace(backend.model, longest_prompt=512)
    with pytest.raises(BadInput, match=r"length 513 is beyond what scripted reads: 512 tokens"):
        evaluate(backend, task, request_for(lengths=(128, 513)))
    assert list(tmp_path.iterdir()) == []
    assert evaluate(backend, task, request_for(lengths=(512,))).ran == 3


def test_a_folder_that_cannot_be_written_to_is_bad_input(backend, task, request_for, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match="name another folder with --out"):
        evaluate(backend, task, request_for(out=tmp_path / "file" / "below"))
    assert (tmp_path / "file").read_text() == "in the way"
    assert backend.answered == 0


def test_two_calls_at_once_do_not_mix(backend, task, request_for):
    request = request_for()

    def second_call(number):
        with pytest.raises(RunFailed, match="open in another process"):
            evaluate(backend, task, request)

    backend.before = second_call
    assert evaluate(backend, task, request).ran == 9


def test_progress_is_told_at_the_start_of_a_length_and_after_every_batch(backend, task, request_for):
    backend.right = at_length(128, 512)
    evaluate(backend, task, request_for(samples=2, lengths=(128,)))
    told = []
    request = request_for(samples=3, batch_size=2, patience=1)
    evaluate(backend, task, request, on_progress=told.append)
    assert all(p.metric == "exact" and p.score_sum == p.right for p in told)
    assert [(p.length, p.done, p.right, p.ran, p.seconds, p.skipped) for p in told] == [
        (128, 2, 2, 0, 0.0, False),
        (128, 3, 3, 1, 0.75, False),
        (256, 0, 0, 0, 0.0, False),
        (256, 2, 0, 2, 1.5, False),
        (256, 3, 0, 1, 0.75, False),
        (512, 0, 0, 0, 0.0, True),
    ]
    assert {(p.model, p.task, p.samples) for p in told} == {("scripted", "passkey", 3)}
    told.clear()
    evaluate(backend, task, request_for(samples=3, lengths=(128,)), on_progress=told.append)
    assert [(p.length, p.done, p.right, p.ran) for p in told] == [(128, 3, 3, 0)]


def test_every_length_is_in_parquet_as_soon_as_it_is_done(backend, task, request_for, tmp_path):
    def look(number):
        if number % 3 == 0 and number:
            (parquet,) = (tmp_path / "out").rglob("samples.parquet")
            assert len(pd.read_parquet(parquet)) == number

    backend.before = look
    evaluate(backend, task, request_for())


def test_a_disk_that_fills_up_keeps_what_was_finished(backend, task, request_for, tmp_path, monkeypatch):
    append = RunStore.append

    def full(store, row):
        if row.length == 256:
            raise RunFailed("cannot write (No space left on device); what was finished is kept")
        append(store, row)

    monkeypatch.setattr(RunStore, "append", full)
    with pytest.raises(RunFailed, match="No space left"):
        evaluate(backend, task, request_for())
    assert load_samples([tmp_path / "out"])["length"].tolist() == [128] * 3


def test_a_task_of_ruler_s_is_scored_by_its_metric(backend, two_keys, request_for):
    """The first of two answers is given: half of them, and not an exact answer."""
    summary = evaluate(backend, two_keys, request_for(lengths=(128,)))
    rows = load_samples([summary.folder])
    asked = {prompt.digest: prompt for (prompt,) in backend.batches}
    for row in rows.itertuples():
        prompt = asked[row.prompt_digest]
        assert (row.metric, row.exact, row.recall) == ("string_match_all", False, 0.5)
        assert row.chat_prefix == "<user>\n"
        assert list(row.depth) == list(prompt.depths) == [50.0 * row.sample, 97.5]
        assert list(row.needle_start) == [start for start, _ in prompt.needle_spans]
    accuracy = pd.read_parquet(summary.folder / "accuracy.parquet")
    assert accuracy[["metric", "accuracy", "score"]].values.tolist() == [["string_match_all", 0.0, 0.5]]


def test_progress_of_a_recall(backend, two_keys, request_for):
    told = []
    backend.right = lambda prompt: len(backend.batches) != 2
    evaluate(backend, two_keys, request_for(lengths=(128,)), on_progress=told.append)
    assert [(p.done, p.right, p.score_sum) for p in told] == [
        (0, 0, 0),
        (1, 0, 0.5),
        (2, 0, 0.5),
        (3, 0, 1.0),
    ]
    assert {p.metric for p in told} == {"string_match_all"}
    told.clear()
    evaluate(backend, two_keys, request_for(lengths=(128,)), on_progress=told.append)
    assert [(p.done, p.score_sum) for p in told] == [(3, 1.0)]


def test_patience_ends_where_the_recall_is_zero(backend, two_keys, request_for, tmp_path):
    backend.right = at_length(128, 256)
    evaluate(backend, two_keys, request_for(lengths=(128, 256, 512, 1024), patience=1))
    rows = load_samples([tmp_path / "out"])
    assert rows["status"].tolist() == ["done"] * 9 + ["skipped"] * 3
    skipped = rows[rows["status"] == "skipped"]
    assert all("recall was 0 at 1 shorter length" in error for error in skipped["error"])
    assert [list(depth) for depth in skipped["depth"]] == [[0.0], [50.0], [100.0]]
    assert skipped[["chat_prefix", "needle_start"]].isna().all(axis=None)


def test_a_failed_row_has_every_needle_s_depth(backend, two_keys, request_for, tmp_path):
    def fail(number):
        raise RunFailed("scripted: out of memory")

    backend.before = fail
    with pytest.raises(RunFailed):
        evaluate(backend, two_keys, request_for(lengths=(128,)))
    (row,) = load_samples([tmp_path / "out"]).itertuples()
    assert (row.status, list(row.depth), row.chat_prefix) == ("failed", [100.0, 97.5], "<user>\n")


def test_a_task_without_needles_has_no_depth(backend, two_keys, request_for, monkeypatch):
    build = two_keys.build
    monkeypatch.setattr(
        two_keys, "build", lambda **arguments: replace(build(**arguments), depths=(), needle_spans=())
    )
    summary = evaluate(backend, two_keys, request_for(lengths=(128,)))
    rows = load_samples([summary.folder])
    assert [(list(row.depth), list(row.needle_start)) for row in rows.itertuples()] == [([], [])] * 3


def test_the_metric_is_no_part_of_a_run_s_identity(backend, task, two_keys, request_for, tmp_path):
    """It follows from the task; runs of before it was a column keep their ids."""
    request = request_for(lengths=(128,), samples=1)
    assert run_identity(backend, task, request) == run_identity(backend, two_keys, request)
