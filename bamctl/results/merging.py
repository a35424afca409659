"""Tables of samples become one with each sample once."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from bamctl.results.schema import STATUSES

KEYS = ("run_id", "length", "sample", "row_id", "status", "started_at")
"""What `merge` needs to know of each row."""
_RANKS = {status: rank for rank, status in enumerate(STATUSES)}


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables as one with each sample once, sorted by run, length and sample.

    Of several rows of one sample done counts before failed and failed before skipped; of equals, the one
    that was started last, and then the later one in the order given.

    Args:
        tables: all of one part of SAMPLE_SCHEMA, in which KEYS are.
    """
    table = pa.concat_tables(tables).unify_dictionaries()
    runs = _ranks(table["run_id"], lambda ids: np.argsort(np.argsort(ids)))
    order = [runs, table["length"].to_numpy(), table["sample"].to_numpy()]
    if _strictly_rising(order):  # as a stored table is
        return table
    statuses = _ranks(table["status"], lambda names: [_RANKS.get(name, -1) for name in names])
    keys = pa.table([*order, table["row_id"], statuses, table["started_at"]], names=KEYS)
    indices = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in KEYS])  # stable
    row_ids = keys["row_id"].take(indices)
    runs = runs[indices.to_numpy()]
    same = pc.equal(row_ids[1:], row_ids[:-1]).to_numpy() & (runs[1:] == runs[:-1])
    return table.take(indices.filter(pa.array(np.append(~same, True))))


def _ranks(column: pa.ChunkedArray, rank: Callable[[list[str]], ArrayLike]) -> NDArray[np.int64]:
    """``[N]``: each text's rank among the different ones, as `rank` has it."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = encoded.combine_chunks()
    ranks = np.asarray(rank(whole.dictionary.to_pylist()), dtype=np.int64)
    each: NDArray[np.int64] = ranks[whole.indices.to_numpy()]
    return each


def _strictly_rising(keys: Sequence[NDArray[np.int64]]) -> bool:
    """Whether each row comes behind the one before it: by the first key, of equals by the next, and so on."""
    behind = np.zeros(max(len(keys[0]) - 1, 0), dtype=bool)
    alike = ~behind
    for key in keys:
        behind |= alike & (key[1:] > key[:-1])
        alike &= key[1:] == key[:-1]
    return bool(behind.all())
