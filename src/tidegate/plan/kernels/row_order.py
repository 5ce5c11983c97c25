"""Whole rows in Spark's order: what `orderBy` and `limit` at the end of a query make of its result."""

import numpy as np
import pyarrow as pa

from tidegate.plan.kernels.lists import Integers, fixed_array
from tidegate.plan.kernels.ordering import ranks
from tidegate.plan.nodes import RowOrder, SortKey


def ordered(rows: pa.Table, order: RowOrder) -> pa.Table:
    """Rows that are equal in all keys stay as they came."""
    if rows.num_rows > 1:
        columns = [_positions(rows.column(key.column), key) for key in order.keys]
        rows = rows.take(fixed_array(pa.int64(), np.lexsort(tuple(reversed(columns))), None))
    return rows if order.most_rows is None else rows.slice(0, order.most_rows)


def _positions(column: pa.ChunkedArray, key: SortKey) -> Integers:
    """Numbers that sort as the key asks."""
    found = ranks(pa.concat_arrays(column.chunks))
    placed = found if key.is_ascending else -found
    where_nulls_go = np.iinfo(np.int64).min if key.are_nulls_first else np.iinfo(np.int64).max
    return np.where(found < 0, where_nulls_go, placed)
