"""Between Arrow tables, which are what is stored, and pandas frames, which are what is computed with.

Integers and flags become pandas' nullable types, so that a null stays a null instead of turning its
column into floats or objects; a null float is NaN.
"""

import functools

import pandas as pd
import pyarrow as pa

_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table as a frame, column by column; a dictionary-encoded column as plain text."""
    frame: pd.DataFrame = decoded(table).to_pandas(types_mapper=_NULLABLE.get, ignore_metadata=True)
    return frame


def decoded(table: pa.Table) -> pa.Table:
    """The table without dictionary-encoded columns."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def empty_frame(schema: pa.Schema) -> pd.DataFrame:
    """A frame with the schema's columns and no row."""
    return to_frame(schema.empty_table())


def to_table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """The inverse of `to_frame`.

    The table says which pandas types it came from, so that `pandas.read_parquet` gives them back.

    Raises:
        pyarrow.ArrowException: the frame does not fit the schema.
    """
    return pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)


def with_pandas_types(table: pa.Table) -> pa.Table:
    """The table with the note of `to_table` in its metadata, without its data going through pandas."""
    note = _pandas_note(table.schema.remove_metadata())
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"pandas": note})


@functools.cache
def _pandas_note(schema: pa.Schema) -> bytes:
    note: bytes = to_table(empty_frame(schema), schema).schema.metadata[b"pandas"]
    return note
