import hashlib
import json
import re
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bamctl.results.frames import empty_frame, to_frame, to_table, with_pandas_types
from bamctl.results.journal import rows_table
from bamctl.results.schema import (
    ACCURACY_SCHEMA,
    EARLIER,
    SAMPLE_SCHEMA,
    VERSION_KEY,
    RunIdentity,
    SampleRow,
)
from bamctl.results.statistics import accuracy_table

SCHEMAS = pytest.mark.parametrize("schema", [SAMPLE_SCHEMA, ACCURACY_SCHEMA], ids=["samples", "accuracy"])


def test_the_run_id_is_the_digest_of_the_identity(identity):
    text = json.dumps(asdict(identity), sort_keys=True, separators=(",", ":"))
    assert identity.run_id == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert identity.run_id == "548c4bc2f307"  # another value would orphan every run there is


@pytest.mark.parametrize("field", [field.name for field in fields(RunIdentity)])
def test_any_other_value_makes_another_run(identity, field):
    value = getattr(identity, field)
    other = replace(identity, **{field: value + 1 if isinstance(value, int) else f"{value}x"})
    assert other.run_id != identity.run_id
    assert replace(other, **{field: value}).run_id == identity.run_id


def test_the_row_has_the_schema_s_columns():
    assert {field.name for field in fields(SampleRow)} == set(SAMPLE_SCHEMA.names)


def test_what_earlier_files_lack_has_a_value_or_is_null():
    for name, value in EARLIER.items():
        assert not SAMPLE_SCHEMA.field(name).nullable
        (field,) = [field for field in fields(SampleRow) if field.name == name]
        assert field.default == value


def test_what_may_be_left_out_of_a_row_may_be_null():
    optional = {field.name for field in fields(SampleRow) if field.default is None}
    assert optional | {"train_length"} == {field.name for field in SAMPLE_SCHEMA if field.nullable}


@SCHEMAS
def test_every_column_says_what_it_means(schema):
    assert all(field.metadata[b"description"] for field in schema)
    assert schema.metadata[VERSION_KEY] == b"4"


@SCHEMAS
def test_what_is_measured_has_a_unit(schema):
    measured = re.compile(
        "seconds|bytes|length|logprob|tokens|depth$|^n$|_count|recall|accuracy|^ci_|score|cut_off"
    )
    lacking = [
        field.name for field in schema if measured.search(field.name) and b"unit" not in field.metadata
    ]
    assert lacking == []


def test_a_row_survives_json(make_row, make_loss_row):
    several = make_row(depth=(0.0, 100.0), needle_start=(17, 400), references=("1", "2"), chat_prefix="<s>\n")
    shown = make_row(
        needles=("key",),
        excerpts=("a key", ""),
        question="Which?",
        command=("bamctl", "passkey", "-m", "a b"),
    )
    for row in (
        make_row(3),
        make_row(status="skipped"),
        make_row(prediction="a\nb\u2028é😀"),
        several,
        shown,
        make_loss_row(),
    ):
        line = row.to_json()
        assert "\n" not in line
        assert SampleRow.from_json(line) == row


def test_a_time_is_stored_in_utc(make_row):
    local = datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=3)))
    row = SampleRow.from_json(make_row(started_at=local).to_json())
    assert row.started_at.isoformat() == "2024-12-31T22:00:00+00:00"


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "finished"},
        {"exact": None},
        {"recall": None},
        {"prediction": None},
        {"status": "skipped", "exact": False},
        {"status": "skipped", "recall": 0.0},
        {"status": "failed", "prediction": ""},
        {"status": "failed", "error": None},
        {"started_at": datetime(2025, 1, 1)},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(make_row, columns):
    with pytest.raises(ValueError, match=r"status|row 512-0"):
        make_row(**columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"loss": None},
        {"tokens_scored": None},
        {"status": "failed", "loss": 1.0},
        {"status": "skipped", "tokens_scored": 5},
        {"exact": False},
        {"recall": 1.0},
        {"prediction": ""},
        {"metric": "exact"},
        {"metric": "exact", "exact": True, "recall": 1.0, "prediction": "1"},
    ],
)
def test_a_row_has_a_loss_or_an_answer_as_its_metric_says(make_loss_row, columns):
    make_loss_row()
    make_loss_row(status="failed")
    with pytest.raises(ValueError, match=r"row 512-0"):
        make_loss_row(**columns)


def test_a_row_of_an_answer_has_no_loss(make_row):
    for columns in ({"loss": 1.0}, {"tokens_scored": 5}, {"metric": "loss"}):
        with pytest.raises(ValueError, match=r"row 512-0"):
            make_row(**columns)


@pytest.mark.parametrize("line", ["", "[]", "7", "{}", '{"row_id": "a"}', '{"started_at": 3}', "\x00\x00"])
def test_json_that_is_no_row_is_refused(line):
    with pytest.raises(ValueError, match=r".+"):
        SampleRow.from_json(line)


def test_samples_survive_pandas_and_parquet(make_row, tmp_path):
    rows = [make_row(0), make_row(1, exact=False, recall=0.5), make_row(2, status="skipped")]
    table = rows_table(rows)
    assert to_table(to_frame(table), SAMPLE_SCHEMA).equals(table)

    pq.write_table(with_pandas_types(table), tmp_path / "samples.parquet")
    assert pq.read_table(tmp_path / "samples.parquet").equals(table)
    assert (
        pq.read_schema(tmp_path / "samples.parquet").remove_metadata().equals(SAMPLE_SCHEMA.remove_metadata())
    )

    frame = pd.read_parquet(tmp_path / "samples.parquet")
    assert frame["exact"].tolist() == [True, False, pd.NA]
    assert frame["peak_memory_bytes"].tolist() == [2**33 + 1, 2**33 + 1, pd.NA]
    assert frame["recall"].isna().tolist() == [False, False, True]
    assert str(frame["started_at"].dt.tz) == "UTC"


def test_units_and_version_are_in_the_file(make_row, tmp_path):
    pq.write_table(with_pandas_types(rows_table([make_row()])), tmp_path / "samples.parquet")
    schema = pq.read_schema(tmp_path / "samples.parquet")
    assert schema.field("prefill_seconds").metadata[b"unit"] == b"seconds"
    assert schema.metadata[VERSION_KEY] == b"4"


def test_a_null_stays_a_null(make_row):
    table = rows_table([make_row(status="failed", depth=None)])
    nulls = {field.name for field in SAMPLE_SCHEMA if field.nullable} - {"train_length", "error"}
    assert {name for name in table.column_names if table.column(name).null_count} == nulls
    frame = to_frame(table)
    assert {name for name in frame if frame[name].isna().all()} == nulls
    back = to_table(frame, SAMPLE_SCHEMA)
    assert {name for name in back.column_names if back.column(name).null_count} == nulls


def test_a_frame_without_rows_has_the_types_of_one_with_rows(make_row):
    frame = to_frame(rows_table([make_row()]))
    assert empty_frame(SAMPLE_SCHEMA).dtypes.equals(frame.dtypes)
    assert accuracy_table(frame).dtypes.equals(empty_frame(ACCURACY_SCHEMA).dtypes)
    assert accuracy_table(frame.iloc[:0]).dtypes.equals(empty_frame(ACCURACY_SCHEMA).dtypes)


@pytest.mark.parametrize(
    "columns", [{"length": "512"}, {"seed": 2**63}, {"exact": "yes"}, {"model": None}, {"depth": (None, "x")}]
)
def test_a_value_of_a_wrong_type_is_refused(make_row, columns):
    with pytest.raises(ValueError, match=r".+"):
        rows_table([make_row(**columns)])


def test_the_readme_describes_every_column():
    text = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    _, samples, accuracy = re.split(r"^## Columns of .*$", text, flags=re.MULTILINE)
    for section, schema in ((samples, SAMPLE_SCHEMA), (accuracy, ACCURACY_SCHEMA)):
        described = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
        assert [
            (name, "may be null" in kind, unit.strip(), meaning) for name, kind, unit, meaning in described
        ] == [
            (
                field.name,
                field.nullable,
                field.metadata.get(b"unit", b"").decode(),
                field.metadata[b"description"].decode(),
            )
            for field in schema
        ]
