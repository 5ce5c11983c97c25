"""Joins a stream with a fixed table that every task holds: no exchange, no state, row by row of the stream.

The table is part of the plan, read once when the query was started. Must never change it.
"""

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.operators.columnar import Flags
from tidegate.operators.contract import Emit, Stateless, TaskContext
from tidegate.operators.join_rows import (
    PAIRS_AT_ONCE,
    Pairs,
    RowStore,
    by_hash,
    flags_array,
    has_nulls_in_keys,
    same_keys,
    taken,
    true_flags,
)
from tidegate.plan.expressions import Expression
from tidegate.plan.kernels import compile_expression, compile_projection
from tidegate.plan.key_groups import hash_rows
from tidegate.plan.nodes import JoinType, StreamSide
from tidegate.plan.physical import StaticJoinSpec
from tidegate.state.contract import RestoredSection

_NEVER_US = np.iinfo(np.int64).max


class StaticJoinOperator(Stateless):
    def __init__(self, spec: StaticJoinSpec) -> None:
        _require_ending_pairs(spec)
        self._spec = spec
        self._key_count = len(spec.keys)
        self._keys = compile_projection(spec.keys, _key_schema(spec.keys))
        self._condition = None if spec.condition is None else compile_expression(spec.condition)
        stream, table = list(spec.stream_schema), list(spec.table.schema)
        columns = [*stream, *table] if spec.stream_side is StreamSide.LEFT else [*table, *stream]
        # Positions name the columns: the names of a Spark plan may repeat.
        self._pair_schema = pa.schema([pa.field(str(at), column.type) for at, column in enumerate(columns)])
        self._store = RowStore()

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        table = _read_table(self._spec)
        keys = self._table_keys(table)
        kinds = [*keys.schema.types, *table.schema.types]
        named = pa.schema([pa.field(str(at), kind) for at, kind in enumerate(kinds)])
        rows = pa.RecordBatch.from_arrays([*keys.columns, *table.columns], schema=named)
        # A null is equal to nothing.
        rows = taken(rows, np.flatnonzero(~has_nulls_in_keys(rows, self._key_count)))
        rows, hashes = by_hash(rows, self._key_count)
        ends_us = np.full(rows.num_rows, _NEVER_US)
        self._store.add(rows, hashes, ends_us, np.zeros(rows.num_rows, dtype=np.bool_))

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows == 0:
            return
        keys = self._keys(rows) if self._key_count else rows
        probing = np.flatnonzero(~has_nulls_in_keys(keys, self._key_count))
        has_partner = np.zeros(rows.num_rows, dtype=np.bool_)
        asked = keys if len(probing) == rows.num_rows else taken(keys, probing)
        for pairs in self._store.candidates(hash_rows(asked, self._key_count)):
            found = Pairs(pairs.run, probing[pairs.probing], pairs.places)
            self._join_pairs(rows, keys, found, has_partner, emit)
        self._emit_single(rows, has_partner, emit)

    def _table_keys(self, table: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._spec.table.keys
        if not keys:
            return pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        return compile_projection(keys, _key_schema(keys))(table)

    def _join_pairs(
        self, rows: pa.RecordBatch, keys: pa.RecordBatch, pairs: Pairs, has_partner: Flags, emit: Emit
    ) -> None:
        theirs = taken(pairs.run.rows, pairs.places)
        matches = same_keys(taken(keys, pairs.probing), theirs, self._key_count)
        probing = pairs.probing
        if not matches.all():
            probing, theirs = probing[matches], theirs.filter(flags_array(matches))
        if len(probing) == 0:
            return
        mine, own = taken(rows, probing).columns, theirs.columns[self._key_count :]
        columns = [*mine, *own] if self._spec.stream_side is StreamSide.LEFT else [*own, *mine]
        both = pa.RecordBatch.from_arrays(columns, schema=self._pair_schema)
        if self._condition is not None:
            met = true_flags(self._condition(both))
            if not met.all():
                probing, both = probing[met], both.filter(flags_array(met))
        has_partner[probing] = True
        if both.num_rows and _shows_pairs(self._spec.type):
            emit(pa.RecordBatch.from_arrays(both.columns, schema=self._spec.schema))

    def _emit_single(self, rows: pa.RecordBatch, has_partner: Flags, emit: Emit) -> None:
        """What is given of the stream's rows once it is known whether they have a partner."""
        match self._spec.type:
            case JoinType.INNER:
                return
            case JoinType.LEFT_SEMI:
                self._emit_rows(rows, has_partner, emit)
            case JoinType.LEFT_ANTI:
                self._emit_rows(rows, ~has_partner, emit)
            case JoinType.LEFT_OUTER | JoinType.RIGHT_OUTER | JoinType.FULL_OUTER:
                alone = np.flatnonzero(~has_partner)
                for start in range(0, len(alone), PAIRS_AT_ONCE):
                    part = taken(rows, alone[start : start + PAIRS_AT_ONCE])
                    nulls = [pa.nulls(part.num_rows, kind) for kind in self._spec.table.schema.types]
                    is_left = self._spec.stream_side is StreamSide.LEFT
                    columns = [*part.columns, *nulls] if is_left else [*nulls, *part.columns]
                    emit(pa.RecordBatch.from_arrays(columns, schema=self._spec.schema))
            case _:
                assert_never(self._spec.type)

    def _emit_rows(self, rows: pa.RecordBatch, wanted: Flags, emit: Emit) -> None:
        if wanted.any():
            shown = rows if wanted.all() else rows.filter(flags_array(wanted))
            emit(pa.RecordBatch.from_arrays(shown.columns, schema=self._spec.schema))


def _require_ending_pairs(spec: StaticJoinSpec) -> None:
    """Rows of the table that have no partner are known only when the stream ends, and it has no end."""
    all_of_left = (JoinType.LEFT_OUTER, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI)
    fits = {StreamSide.LEFT: all_of_left, StreamSide.RIGHT: (JoinType.RIGHT_OUTER,)}[spec.stream_side]
    if spec.type is not JoinType.INNER and spec.type not in fits:
        raise UnsupportedPlan(
            f"Tidegate does not run a {spec.type.value} join with the stream on the {spec.stream_side.value} side: "
            f"put the stream on the other side, or join with another type."
        )


def _shows_pairs(kind: JoinType) -> bool:
    return kind not in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI)


def _key_schema(keys: Sequence[Expression]) -> pa.Schema:
    return pa.schema([pa.field(f"key_{at}", key.type) for at, key in enumerate(keys)])


def _read_table(spec: StaticJoinSpec) -> pa.RecordBatch:
    with pa.ipc.open_stream(spec.table.rows) as stream:
        table = stream.read_all().combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.nulls(0, field.type)
        for column, field in zip(table.columns, spec.table.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=spec.table.schema)
