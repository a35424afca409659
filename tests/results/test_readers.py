"""Whoever gets a file of ours reads it with what they have."""

from datetime import UTC, datetime

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bamctl.results.schema import ACCURACY_SCHEMA, SAMPLE_SCHEMA
from bamctl.results.store import RunStore


@pytest.fixture(scope="module")
def files(tmp_path_factory, make_row, identity, facts):
    """samples.parquet and accuracy.parquet of a run with a done, a wrong and a skipped sample."""
    with RunStore.open(tmp_path_factory.mktemp("run"), identity, facts) as store:
        store.append(make_row(0, references=("1", "é😀"), needle_start=(17, 400), depth=(0.0, 97.5)))
        store.append(make_row(1, exact=False, recall=0.5))
        store.append(make_row(2, status="skipped"))
    return store.folder / "samples.parquet", store.folder / "accuracy.parquet"


STARTED = [datetime(2025, 5, 28, 12, 0, second, tzinfo=UTC) for second in range(3)]


def test_pandas(files):
    samples, accuracy = map(pd.read_parquet, files)
    assert samples.columns.tolist() == SAMPLE_SCHEMA.names
    assert accuracy.columns.tolist() == ACCURACY_SCHEMA.names
    assert samples["exact"].tolist() == [True, False, pd.NA]
    assert samples["reused_tokens"].tolist() == [256, 256, pd.NA]
    assert samples["recall"].isna().tolist() == [False, False, True]
    assert [list(value) for value in samples["references"][:2]] == [["1", "é😀"], ["12345"]]
    assert samples["references"][2] is None
    assert samples["started_at"].dt.to_pydatetime().tolist() == STARTED
    assert accuracy[["n", "skipped", "exact_count"]].values.tolist() == [[2, 1, 1]]


def test_polars(files):
    polars = pytest.importorskip("polars", reason="polars is not installed; pip install polars")
    samples, accuracy = map(polars.read_parquet, files)
    assert samples.columns == SAMPLE_SCHEMA.names
    assert accuracy.columns == ACCURACY_SCHEMA.names
    assert samples["exact"].to_list() == [True, False, None]
    assert samples["reused_tokens"].to_list() == [256, 256, None]
    assert samples["recall"].to_list() == [1.0, 0.5, None]
    assert samples["references"].to_list() == [["1", "é😀"], ["12345"], None]
    assert samples["depth"].to_list()[0] == [0.0, 97.5]
    assert samples["started_at"].dtype == polars.Datetime("us", "UTC")
    assert samples["started_at"].to_list() == STARTED
    assert accuracy.select("n", "skipped", "exact_count").rows() == [(2, 1, 1)]


def test_duckdb(files):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed; pip install duckdb")
    samples, accuracy = files
    with duckdb.connect() as connection:
        ask = lambda query, path: connection.execute(query, [str(path)]).fetchall()  # noqa: E731
        described = ask("describe select * from read_parquet(?)", samples)
        assert [name for name, *_ in described] == SAMPLE_SCHEMA.names
        kinds = {name: kind for name, kind, *_ in described}
        assert kinds["started_at"] == "TIMESTAMP WITH TIME ZONE"
        assert (kinds["exact"], kinds["length"], kinds["references"]) == ("BOOLEAN", "BIGINT", "VARCHAR[]")
        rows = ask('select exact, recall, "references", epoch_us(started_at) from read_parquet(?)', samples)
        micros = [int(started.timestamp() * 1e6) for started in STARTED]
        assert rows == [
            (True, 1.0, ["1", "é😀"], micros[0]),
            (False, 0.5, ["12345"], micros[1]),
            (None, None, None, micros[2]),
        ]
        assert ask("select n, skipped, exact_count from read_parquet(?)", accuracy) == [(2, 1, 1)]


def test_datasets(files, tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed; pip install datasets")
    samples = datasets.Dataset.from_parquet(str(files[0]), cache_dir=str(tmp_path))
    assert samples.column_names == SAMPLE_SCHEMA.names
    assert list(samples["exact"]) == [True, False, None]
    assert list(samples["references"]) == [["1", "é😀"], ["12345"], None]
    assert samples[0]["started_at"] == STARTED[0]
    accuracy = datasets.Dataset.from_parquet(str(files[1]), cache_dir=str(tmp_path))
    assert [accuracy[0][name] for name in ("n", "skipped", "exact_count")] == [2, 1, 1]


def test_meaning_and_units_are_in_the_files(files):
    for path, schema in zip(files, (SAMPLE_SCHEMA, ACCURACY_SCHEMA), strict=True):
        found = pq.read_schema(path)
        assert found.names == schema.names
        for name in found.names:
            is_now, meant = found.field(name), schema.field(name)
            assert (is_now.type, is_now.nullable) == (meant.type, meant.nullable)
            assert {**meant.metadata} == {
                key: value for key, value in is_now.metadata.items() if key != b"PARQUET:field_id"
            }
