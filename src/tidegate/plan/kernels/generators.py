"""One row in, several out: the rows of `explode` and its relatives, and of several projections of each row.

Rows keep Spark's order. What one batch gives may be large, so it is made in pieces; an empty piece is never given.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.kernels.lists import Flags, Integers, fixed_array, lists_of, take
from tidegate.plan.kernels.nested import column
from tidegate.plan.kernels.values import Kernel
from tidegate.plan.nodes import EmptyCollections, ExplodedAs

RowMaker: TypeAlias = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]

# About as many rows as a decoded piece of a file has: what follows sees batches of the usual size.
_PIECE_ROWS = 16_384


def explode_rows(
    collection: Kernel,
    exploded_as: ExplodedAs,
    of_empty: EmptyCollections,
    *,
    kept: tuple[int, ...],
    schema: pa.Schema,
) -> RowMaker:
    """Each row once for every element, with the columns that are kept in front of the element's."""
    is_map = pa.types.is_map(collection.type)

    def run(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        lists = lists_of(column(collection, rows))
        lengths = lists.lengths if of_empty is EmptyCollections.NO_ROW else np.maximum(lists.lengths, 1)
        ends = np.cumsum(lengths)
        for first in range(0, int(ends[-1]) if len(ends) else 0, _PIECE_ROWS):
            numbers = np.arange(first, min(first + _PIECE_ROWS, int(ends[-1])))
            owners = np.searchsorted(ends, numbers, side="right")
            positions = numbers - (ends - lengths)[owners]
            present = lists.lengths[owners] > 0
            elements = take(lists.values, lists.starts[owners] + positions, present)
            values = _fields(elements) if is_map else [elements]
            made = _element_columns(exploded_as, values, positions, present)
            yield pa.RecordBatch.from_arrays([*(take(rows.column(at), owners) for at in kept), *made], schema=schema)

    return run


def expand_rows(projections: Sequence[Sequence[Kernel]], schema: pa.Schema) -> RowMaker:
    """All projections of the first row, then all of the second, and so on."""
    step = max(1, _PIECE_ROWS // len(projections))

    def run(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for first in range(0, rows.num_rows, step):
            piece = rows.slice(first, step)
            order = np.arange(len(projections)) * piece.num_rows + np.arange(piece.num_rows).reshape(-1, 1)
            columns = [
                take(pa.concat_arrays([column(kernel, piece) for kernel in alternatives]), order.reshape(-1))
                for alternatives in zip(*projections, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return run


def _element_columns(
    exploded_as: ExplodedAs, values: list[pa.Array], positions: Integers, present: Flags
) -> list[pa.Array]:
    match exploded_as:
        case ExplodedAs.VALUE:
            return values
        case ExplodedAs.POSITION_AND_VALUE:
            return [fixed_array(pa.int32(), positions.astype(np.int32), present), *values]
        case ExplodedAs.FIELDS:
            return _fields(values[0])
        case _:
            assert_never(exploded_as)


def _fields(structs: pa.Array) -> list[pa.Array]:
    return [pc.struct_field(structs, [at]) for at in range(structs.type.num_fields)]
