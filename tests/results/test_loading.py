import json
import logging
import random
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.results.frames import decoded, to_frame
from bamctl.results.journal import rows_table
from bamctl.results.loading import load_samples, read_samples
from bamctl.results.merging import merge
from bamctl.results.schema import EARLIER, SAMPLE_SCHEMA, STATUSES, VERSION_KEY, ModelFacts, RunIdentity
from bamctl.results.statistics import accuracy_table
from bamctl.results.store import RunStore


@pytest.fixture
def two_runs(tmp_path, identity, facts, make_row):
    """A run that is folded, and one (seed 1) that was left with a journal alone."""
    with RunStore.open(tmp_path / "results", identity, facts) as first:
        first.append(make_row(0))
        first.append(make_row(1))
    other = replace(identity, seed=1)
    second = RunStore.open(tmp_path / "results", other, facts)
    second.append(replace(make_row(0), run_id=other.run_id, seed=1))
    yield first.folder, second.folder
    second.close()


def test_all_runs_below_a_folder_each_sample_once(tmp_path, two_runs):
    first, second = two_runs
    everything = load_samples([tmp_path])
    assert sorted(everything["seed"]) == [0, 0, 1]
    pd.testing.assert_frame_equal(load_samples([first, tmp_path, second, tmp_path / "results"]), everything)
    assert load_samples([first])["seed"].tolist() == [0, 0]
    assert load_samples([second])["seed"].tolist() == [1]
    assert load_samples([first / "samples.parquet"])["seed"].tolist() == [0, 0]


def test_the_tables_stand_on_their_own(tmp_path, two_runs):
    first, _ = two_runs
    copy = tmp_path / "elsewhere" / "samples-0.parquet"
    copy.parent.mkdir()
    copy.write_bytes((first / "samples.parquet").read_bytes())
    pd.testing.assert_frame_equal(load_samples([copy.parent]), load_samples([first]))


def test_other_files_do_not_matter(tmp_path, two_runs):
    expected = load_samples([tmp_path])
    for name in ("notes.txt", "other.parquet", "samples.parquet.writing"):
        (two_runs[0] / name).write_text("not ours")
    pd.testing.assert_frame_equal(load_samples([tmp_path]), expected)


def test_a_folder_without_runs_has_no_samples(tmp_path):
    samples = load_samples([tmp_path])
    assert (len(samples), list(samples.columns)) == (0, SAMPLE_SCHEMA.names)


def test_a_folder_s_name_is_no_column(tmp_path, two_runs):
    folder = tmp_path / "seed=7"
    folder.mkdir()
    (folder / "samples.parquet").write_bytes((two_runs[0] / "samples.parquet").read_bytes())
    assert load_samples([folder])["seed"].tolist() == [0, 0]


def test_what_is_not_there_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"^[^\n]*nowhere: no such file or folder$"):
        load_samples([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["status"]), "not a table of samples, it has no column status"),
        (lambda _: pa.table({"x": [1]}), "not a table of samples, it has no column row_id"),
        (
            lambda t: t.replace_schema_metadata({VERSION_KEY: b"5"}),
            "written by a later bamctl (schema 5, this one reads up to 4); upgrade bamctl",
        ),
        (
            lambda t: t.replace_schema_metadata({VERSION_KEY: b"x"}),
            "not a table of samples, its schema's version is b'x'",
        ),
        (
            lambda t: t.set_column(t.column_names.index("length"), "length", pa.array(["long"])),
            "not a table of samples (Failed to parse",
        ),
    ],
)
def test_a_foreign_table_is_one_line_that_names_it(tmp_path, make_row, change, message):
    path = tmp_path / "samples.parquet"
    pq.write_table(change(rows_table([make_row()])), path)
    with pytest.raises(BadInput) as caught:
        load_samples([path])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_damaged_run_is_left_out_with_a_warning_and_hides_no_other(tmp_path, make_row, caplog):
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    pq.write_table(rows_table([make_row()]), tmp_path / "good/samples.parquet")
    (tmp_path / "bad/samples.parquet").write_bytes(b"PAR1 cut short")
    assert len(load_samples([tmp_path])) == 1
    (record,) = caplog.records
    assert f"left out: {tmp_path}/bad/samples.parquet: cannot be read" in record.getMessage()


def test_a_column_that_a_table_lacks_is_null_where_it_may_be(tmp_path, make_row):
    path = tmp_path / "samples.parquet"
    pq.write_table(rows_table([make_row()]).drop_columns(["haystack_repeats", "references"]), path)
    table = read_samples(path)
    assert decoded(table).schema.equals(SAMPLE_SCHEMA, check_metadata=True)
    assert table.column("haystack_repeats").null_count == table.column("references").null_count == 1
    assert read_samples(path, ["references", "row_id"]).column_names == ["references", "row_id"]


PUBLISHED = Path(__file__).parents[2] / "results" / "reference" / "passkey"
VERSION_1 = sorted(PUBLISHED.glob("tiny-bam-ssmax-*"))
"""Published runs, as version 1 of the schema has them."""


def test_published_runs_of_version_1_are_read_as_they_were_meant(tmp_path):
    for folder in VERSION_1:
        assert pq.read_schema(folder / "samples.parquet").metadata[VERSION_KEY] == b"1"
    rows = load_samples(VERSION_1)
    assert len(rows) == 2 * 11 * 20
    assert set(rows["metric"]) == {"exact"}
    assert rows["chat_prefix"].isna().all()
    for folder in VERSION_1:
        described = json.loads((folder / "run.json").read_text())
        assert RunIdentity(**described["identity"]).run_id == described["run_id"] == folder.name[-12:]
        stored = pd.read_parquet(folder / "accuracy.parquet")
        now = accuracy_table(load_samples([folder]))
        pd.testing.assert_frame_equal(now[stored.columns], stored)
        assert now["score"].tolist() == stored["accuracy"].tolist()
        assert now["score_low"].tolist() == stored["ci_low"].tolist()
        assert now["score_high"].tolist() == stored["ci_high"].tolist()


def test_a_published_run_is_opened_and_not_touched(tmp_path):
    (folder, *_) = VERSION_1
    copy = tmp_path / "passkey" / folder.name
    shutil.copytree(folder, copy)
    described = json.loads((folder / "run.json").read_text())
    identity = RunIdentity(**described["identity"])
    with RunStore.open(tmp_path, identity, ModelFacts(**described["model"])) as store:
        assert len(store.done()) == 11 * 20
        assert set(store.rows()["metric"]) == {"exact"}
    for path in folder.iterdir():
        assert (copy / path.name).read_bytes() == path.read_bytes()


SHOWN = ["needles", "excerpts", "question", "command"]


@pytest.mark.parametrize(
    ("version", "younger"),
    [
        (b"1", ["metric", "chat_prefix", "window", "loss", "tokens_scored", *SHOWN]),
        (b"2", ["window", "loss", "tokens_scored", *SHOWN]),
        (b"3", SHOWN),
    ],
)
def test_a_run_of_an_earlier_version_goes_on(tmp_path, identity, facts, make_row, version, younger):
    """Its table and its journal have none of the younger columns; what is added has them."""
    with RunStore.open(tmp_path, identity, facts) as store:
        store.append(make_row(0))
    folder = store.folder
    shown = {
        "needles": ("key",),
        "excerpts": ("a key",),
        "question": "Which?",
        "command": ("bamctl", "passkey"),
    }
    table = pq.read_table(folder / "samples.parquet").drop_columns(younger)
    table = table.replace_schema_metadata({**table.schema.metadata, VERSION_KEY: version})
    pq.write_table(table, folder / "samples.parquet")
    line = {name: value for name, value in json.loads(make_row(1).to_json()).items() if name not in younger}
    (folder / "journal.jsonl").write_text(json.dumps(line) + "\n")
    with RunStore.open(tmp_path, identity, facts) as store:
        store.append(make_row(2, depth=(1.0, 2.0), needle_start=(3, 4), **shown))
    rows = load_samples([tmp_path])
    assert rows["metric"].tolist() == ["exact"] * 3
    assert rows["chat_prefix"].isna().tolist() == [version == b"1"] * 2 + [False]
    assert rows[["window", "loss", "tokens_scored"]].isna().all(axis=None)
    assert rows[SHOWN].isna().to_numpy().tolist() == [[True] * 4, [True] * 4, [False] * 4]
    assert [list(depth) for depth in rows["depth"]] == [[0.0], [5.0], [1.0, 2.0]]
    assert pq.read_schema(folder / "samples.parquet").metadata[VERSION_KEY] == b"4"
    assert accuracy_table(rows)["score"].tolist() == [1.0]


def test_losses_are_stored_beside_answers_and_read_with_them(
    tmp_path, identity, facts, make_row, make_loss_row
):
    with RunStore.open(tmp_path, identity, facts) as store:
        store.append(make_row(0))
    losses = replace(identity, task="perplexity", variant="window=512")
    columns = {"run_id": losses.run_id, "task": "perplexity", "variant": "window=512"}
    written = [make_loss_row(sample, length, **columns) for sample in (0, 1) for length in (512, 1024)]
    with RunStore.open(tmp_path, losses, facts) as store:
        for row in written:
            store.append(row)
    rows = load_samples([tmp_path])
    assert rows["metric"].tolist().count("loss") == 4
    assert rows_table(written).equals(
        pq.read_table(store.folder / "samples.parquet").take([0, 2, 1, 3]).cast(SAMPLE_SCHEMA)
    )
    accuracy = pd.read_parquet(store.folder / "accuracy.parquet")
    pd.testing.assert_frame_equal(accuracy, accuracy_table(load_samples([store.folder])))
    assert accuracy["loss"].tolist() == [2.0, 2.0]
    assert accuracy["exact_count"].isna().all()


ADDED = {
    2: ["metric", "chat_prefix", "reused_tokens"],
    3: ["window", "loss", "tokens_scored"],
    4: ["needles", "excerpts", "question", "command"],
}
"""Version → the columns that files of the versions before it lack."""


def lacking(version):
    return [name for later, names in ADDED.items() if later > version for name in names]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_run_that_an_earlier_version_began_is_read_and_goes_on(
    tmp_path, identity, facts, make_row, version
):
    full = {"needles": ("a",), "excerpts": ("a b",), "question": "b?", "command": ("bamctl", "run")}
    rows = [make_row(sample, **full) for sample in range(3)]
    with RunStore.open(tmp_path, identity, facts) as store:
        store.append(rows[0])
    table = pq.read_table(store.folder / "samples.parquet").drop_columns(lacking(version))
    noted = {VERSION_KEY: str(version).encode()}
    pq.write_table(table.replace_schema_metadata(noted), store.folder / "samples.parquet")
    line = {name: value for name, value in vars(rows[1]).items() if name not in lacking(version)}
    line["started_at"] = line["started_at"].isoformat()
    (store.folder / "journal.jsonl").write_text(json.dumps(line) + "\n")

    unknown = dict.fromkeys(name for name in lacking(version) if name not in EARLIER)
    expected = to_frame(rows_table([*(replace(row, **unknown) for row in rows[:2]), rows[2]]))
    pd.testing.assert_frame_equal(load_samples([tmp_path]), expected[:2])
    with RunStore.open(tmp_path, identity, facts) as store:
        assert store.done() == {"512-0", "512-1"}
        store.append(rows[2])
    pd.testing.assert_frame_equal(load_samples([tmp_path]), expected)
    assert pq.read_schema(store.folder / "samples.parquet").metadata[VERSION_KEY] == b"4"
    assert pq.read_schema(store.folder / "samples.parquet").names == SAMPLE_SCHEMA.names
    assert not (store.folder / "journal.jsonl").read_bytes()


def test_a_text_file_is_no_table(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(BadInput, match=r"^[^\n]*a.txt: cannot be read as a table of samples [^\n]*$"):
        load_samples([tmp_path / "a.txt"])


def test_a_bad_line_is_named_and_the_rest_is_read(two_runs, caplog):
    journal = two_runs[1] / "journal.jsonl"
    journal.write_bytes(b"noise\n" + journal.read_bytes() + b'{"torn')
    with caplog.at_level(logging.WARNING):
        assert load_samples([two_runs[1]])["seed"].tolist() == [1]
    (message,) = caplog.messages
    assert message.startswith(f"{journal}, line 1: ")
    journal.write_bytes(b"")


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (["skipped", "failed"], 1),
        (["failed", "skipped"], 0),
        (["done", "failed", "skipped"], 0),
        (["failed", "done", "skipped", "failed"], 1),
        (["done", "done"], 1),
        (["skipped", "skipped", "skipped"], 2),
    ],
)
def test_of_one_sample_s_rows_the_better_and_then_the_newer_counts(make_row, statuses, kept):
    start = make_row().started_at
    rows = [
        make_row(status=status, device=f"device {number}", started_at=start + timedelta(seconds=number))
        for number, status in enumerate(statuses)
    ]
    for order in (rows, rows[::-1]):
        assert to_frame(merge([rows_table([row]) for row in order]))["device"].tolist() == [f"device {kept}"]


def test_of_rows_started_at_once_the_later_counts(make_row):
    rows = [make_row(device="first"), make_row(device="second")]
    assert to_frame(merge([rows_table(rows)]))["device"].tolist() == ["second"]


def test_samples_are_sorted_by_length_and_number(make_row):
    rows = [make_row(10, 1024), make_row(2, 1024), make_row(3, 512)]
    assert to_frame(merge([rows_table(rows)]))["sample"].tolist() == [3, 2, 10]


def test_a_folder_that_cannot_be_listed_is_one_line(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(BadInput, match=r"cannot be read \(Permission denied\)$"):
        load_samples([Path(tmp_path)])


def test_only_the_columns_that_are_asked_for(tmp_path, two_runs):
    everything = load_samples([tmp_path])
    for columns in (["length"], ["prediction", "row_id", "depth"], ["status", "model"]):
        pd.testing.assert_frame_equal(load_samples([tmp_path], columns), everything[columns])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert load_samples([empty], ["model", "exact"]).dtypes.equals(everything[["model", "exact"]].dtypes)


def test_rows_of_many_files_in_any_order_are_what_one_file_has(tmp_path, make_row):
    rows = [make_row(sample, length) for length in (512, 1024) for sample in range(6)]
    rows += [replace(row, run_id="another", model="m2") for row in rows]
    (tmp_path / "one").mkdir()
    pq.write_table(rows_table(rows), tmp_path / "one" / "samples.parquet")
    shuffled = random.Random(0).sample(rows, len(rows))
    for number in range(0, len(rows), 3):
        folder = tmp_path / "many" / str(number)
        folder.mkdir(parents=True)
        pq.write_table(rows_table(shuffled[number : number + 4]), folder / "samples.parquet")
    expected = to_frame(rows_table(sorted(rows, key=lambda row: (row.run_id, row.length, row.sample))))
    for name in ("one", "many"):
        pd.testing.assert_frame_equal(load_samples([tmp_path / name]), expected)


def test_of_a_folder_with_foreign_tables_and_old_ones_what_can_be_read_is_read(tmp_path, make_row, caplog):
    for name in ("good", "foreign", "later", "nulls"):
        (tmp_path / name).mkdir()
    table = rows_table([make_row()])
    pq.write_table(table, tmp_path / "good" / "samples.parquet")
    pq.write_table(pa.table({"row_id": ["x"]}), tmp_path / "foreign" / "samples.parquet")
    later = table.replace_schema_metadata({VERSION_KEY: b"99"})
    pq.write_table(later, tmp_path / "later" / "samples.parquet")
    place = table.column_names.index("model")
    nulls = table.set_column(place, "model", pa.nulls(1, pa.string()))
    pq.write_table(nulls, tmp_path / "nulls" / "samples.parquet")
    assert load_samples([tmp_path], ["row_id", "model"]).values.tolist() == [["512-0", "models/tiny"]]
    told = {message.removeprefix(f"left out: {tmp_path}/") for message in caplog.messages}
    assert {message.split(":")[0] for message in told} == {
        f"{name}/samples.parquet" for name in ("foreign", "later", "nulls")
    }
    assert not any("\n" in message for message in told)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from(STATUSES), st.integers(0, 2)),
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_merging_keeps_the_best_and_latest_row_of_each_sample(make_row, drawn, parts):
    rows = [
        make_row(
            sample,
            status=status,
            run_id=run,
            started_at=make_row(second).started_at,
            device=f"device {number}",
        )
        for number, (run, sample, status, second) in enumerate(drawn)
    ]
    best = {}
    for row in rows:
        known = best.get((row.run_id, row.sample))
        rank = STATUSES.index(row.status), row.started_at
        if known is None or rank >= (STATUSES.index(known.status), known.started_at):
            best[row.run_id, row.sample] = row
    size = -(-len(rows) // parts) or 1
    tables = [rows_table(rows[start : start + size]) for start in range(0, len(rows), size)]
    merged = merge(tables or [SAMPLE_SCHEMA.empty_table()])
    assert merged["device"].to_pylist() == [best[key].device for key in sorted(best)]
