"""One row in, several out: the rows of `explode` and its relatives, and of several projections of each row.

Rows keep Spark's order. What one batch gives may be large, so it is made in pieces; an empty piece is never given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.kernels.lists import Flags, Integers, fixed_array, lists_of, take
from tidegate.plan.kernels.nested import column
from tidegate.plan.kernels.values import Kernel
from tidegate.plan.nodes import EmptyCollections, ExplodedAs

RowMaker: TypeAlias = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
Explode: TypeAlias = Callable[[pa.RecordBatch], "Exploded"]

# About as many rows as a decoded piece of a file has: what follows sees batches of the usual size.
_PIECE_ROWS = 16_384


class Exploded:
    """What the rows of one batch give, made as far as it is asked for."""

    def __init__(self, plan: "_Explosion", rows: pa.RecordBatch) -> None:
        self._plan = plan
        self._rows = rows
        self._lists = lists_of(column(plan.collection, rows))
        is_skipped = plan.of_empty is EmptyCollections.NO_ROW
        self._lengths = self._lists.lengths if is_skipped else np.maximum(self._lists.lengths, 1)
        self._ends = np.cumsum(self._lengths)
        self._firsts = self._ends - self._lengths
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    def made(self, first: int, last: int) -> pa.RecordBatch:
        """The rows from one number up to another."""
        numbers = np.arange(first, last)
        owners = np.searchsorted(self._ends, numbers, side="right")
        positions = numbers - self._firsts[owners]
        present = self._lists.lengths[owners] > 0
        elements = take(self._lists.values, self._lists.starts[owners] + positions, present)
        values = _fields(elements) if self._plan.is_map else [elements]
        own = _element_columns(self._plan.exploded_as, values, positions, present)
        kept = (take(self._rows.column(at), owners) for at in self._plan.kept)
        return pa.RecordBatch.from_arrays([*kept, *own], schema=self._plan.schema)

    def rest(self, first: int) -> tuple[pa.RecordBatch, int]:
        """The rows of the batch that make what follows that number, and how much the first of them has made before."""
        owner = int(np.searchsorted(self._ends, first, side="right"))
        return self._rows.slice(owner), first - int(self._firsts[owner])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, self.count, _PIECE_ROWS):
            yield self.made(first, min(first + _PIECE_ROWS, self.count))


@dataclass(frozen=True, slots=True)
class _Explosion:
    collection: Kernel
    exploded_as: ExplodedAs
    of_empty: EmptyCollections
    kept: tuple[int, ...]
    schema: pa.Schema
    is_map: bool


def explode_rows(
    collection: Kernel,
    exploded_as: ExplodedAs,
    of_empty: EmptyCollections,
    *,
    kept: tuple[int, ...],
    schema: pa.Schema,
) -> Explode:
    """Each row once for every element, with the columns that are kept in front of the element's."""
    plan = _Explosion(collection, exploded_as, of_empty, kept, schema, pa.types.is_map(collection.type))
    return partial(Exploded, plan)


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
