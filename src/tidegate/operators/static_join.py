"""Joins a stream with a fixed table that every task holds: no exchange, row by row of the stream.

The table is part of the plan, read once when the query was started. A row may meet all of it: what is left to be given
is in the snapshots in between. Must never change the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, assert_never

import numpy as np
import pyarrow as pa

from tidegate.model.errors import IncompatibleCheckpoint, UnsupportedPlan
from tidegate.operators.columnar import Flags, Slots
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.held_rows import SECTION, GivesInOrder, decoded_batches, encode_batches
from tidegate.operators.join_rows import (
    PAIRS_AT_ONCE,
    Candidates,
    RowStore,
    by_hash,
    flags_array,
    has_nulls_in_keys,
    same_keys,
    taken,
    true_flags,
)
from tidegate.operators.stored_rows import SECTION_ROWS
from tidegate.plan.expressions import Expression
from tidegate.plan.kernels import compile_expression, compile_projection
from tidegate.plan.key_groups import hash_rows
from tidegate.plan.nodes import JoinType, StreamSide
from tidegate.plan.physical import Giving, StaticJoinSpec
from tidegate.state.contract import Redistribution, RestoredSection, Section

PAIRS_SECTION: Final = "pairs held"
# A slice that finds no more gives them at once: holding them would cost more than it spreads.
MOST_PAIRS_AT_ONCE: Final = PAIRS_AT_ONCE

_NEVER_US = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Rows:
    """Of the stream, not joined yet."""

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Made:
    """Pairs from a snapshot."""

    rows: pa.RecordBatch


@dataclass(slots=True)
class _Probe:
    """Rows of the stream with what they may meet, as pairs that are numbered through row by row.

    Those of row i end at `ends[i]`. Pairs below `pair` are given, and all that there is of rows below `row`.
    """

    rows: pa.RecordBatch
    keys: pa.RecordBatch
    found: Candidates | None
    ends: Slots
    has_partner: Flags
    row: int = 0
    pair: int = 0

    @property
    def pair_count(self) -> int:
        return int(self.ends[-1])

    def is_done(self) -> bool:
        return self.row == len(self.ends)


_Held: TypeAlias = _Rows | _Made | _Probe


class StaticJoinOperator(GivesInOrder[_Held]):
    """`GivesLater`: a slice that finds very many pairs gives them slice by slice."""

    def __init__(self, spec: StaticJoinSpec) -> None:
        super().__init__(spec.giving)
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
        super().open(context, restored)
        self._read_table()
        made = [section for section in restored if section.name == PAIRS_SECTION]
        rows = [section for section in restored if section.name != PAIRS_SECTION]
        self._held += [_Made(_fitting(batch, self._spec.schema)) for batch in decoded_batches(made)]
        self._held += [_Rows(_fitting(batch, self._spec.stream_schema)) for batch in decoded_batches(rows)]

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows == 0:
            return
        if self._held or not self._pace.has_time():
            self._held.append(_Rows(rows))
            return
        self._timed(partial(self._join, emit=emit), rows)

    def give(self, max_rows: int, emit: Emit) -> int:
        given, most = 0, min(max_rows, MOST_PAIRS_AT_ONCE)
        # What small batches meet is one slice together.
        while self._held and given < most:
            given += self._give_next(most - given, emit)
        return given

    def snapshot(self) -> list[Section]:
        rows: list[pa.RecordBatch] = []
        pairs: list[Section] = []
        for held in self._held:
            match held:
                case _Made(made):
                    pairs.append(_section(PAIRS_SECTION, partial(encode_batches, [made])))
                case _Rows(waiting):
                    rows.append(waiting)
                case _Probe():
                    is_begun = _shows_pairs(self._spec.type) and bool(held.has_partner[held.row])
                    pairs += self._sections_of_row(held) if is_begun else []
                    rows.append(held.rows.slice(held.row + 1 if is_begun else held.row))
                case _:
                    assert_never(held)
        # Batches never change, so that they can be encoded later.
        return [*pairs, _section(SECTION, partial(encode_batches, rows))] if rows else pairs

    def state_bytes(self) -> int:
        return sum(_left_bytes(held) for held in self._held)

    def _read_table(self) -> None:
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

    def _join(self, rows: pa.RecordBatch, emit: Emit) -> None:
        probe = self._probed(rows)
        if self._giving is Giving.IN_SLICES and probe.pair_count > MOST_PAIRS_AT_ONCE:
            self._held.append(probe)
            return
        while not probe.is_done():
            self._advance(probe, MOST_PAIRS_AT_ONCE, emit)

    def _table_keys(self, table: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._spec.table.keys
        if not keys:
            return pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        return compile_projection(keys, _key_schema(keys))(table)

    # -- pairs

    def _probed(self, rows: pa.RecordBatch) -> _Probe:
        keys = self._keys(rows) if self._key_count else rows
        asking = np.flatnonzero(~has_nulls_in_keys(keys, self._key_count))
        asked = keys if len(asking) == rows.num_rows else taken(keys, asking)
        # The table is one run, so that the pairs of a row follow each other.
        found = next(self._store.found(hash_rows(asked, self._key_count)), None)
        counts = np.zeros(rows.num_rows, dtype=np.int64)
        if found is not None:
            found = replace(found, probing=asking[found.probing])
            counts[found.probing] = found.counts
        return _Probe(rows, keys, found, np.cumsum(counts), np.zeros(rows.num_rows, dtype=np.bool_))

    def _give_next(self, most: int, emit: Emit) -> int:
        held = self._held.popleft()
        match held:
            case _Made(rows):
                if rows.num_rows > most:
                    self._held.appendleft(_Made(rows.slice(most)))
                emit(rows.slice(0, most))
                return int(min(most, rows.num_rows))
            case _Rows(rows):
                if rows.num_rows > most:
                    self._held.appendleft(_Rows(rows.slice(most)))
                return self._give_some(self._probed(rows.slice(0, most)), most, emit)
            case _Probe():
                return self._give_some(held, most, emit)
            case _:
                assert_never(held)

    def _give_some(self, probe: _Probe, most: int, emit: Emit) -> int:
        row, pair = probe.row, probe.pair
        self._advance(probe, most, emit)
        if not probe.is_done():
            self._held.appendleft(probe)
        return max(probe.row - row, probe.pair - pair)

    def _advance(self, probe: _Probe, most: int, emit: Emit) -> None:
        """Gives up to so many pairs, and rows by themselves once all their pairs are known."""
        stop = min(probe.pair + most, probe.pair_count)
        if stop > probe.pair:
            probing, both = self._met(probe, probe.pair, stop)
            probe.has_partner[probing] = True
            if both.num_rows and _shows_pairs(self._spec.type):
                emit(pa.RecordBatch.from_arrays(both.columns, schema=self._spec.schema))
        row = int(np.searchsorted(probe.ends, stop, side="right"))
        self._emit_single(probe.rows.slice(probe.row, row - probe.row), probe.has_partner[probe.row : row], emit)
        probe.row, probe.pair = row, stop

    def _met(self, probe: _Probe, start: int, stop: int) -> tuple[Slots, pa.RecordBatch]:
        """The pairs of these numbers that are some, and for each the row of the stream."""
        assert probe.found is not None
        pairs = probe.found.pairs(start, stop)
        probing, theirs = pairs.probing, taken(pairs.run.batch(), pairs.places)
        matches = same_keys(taken(probe.keys, probing), theirs, self._key_count)
        if not matches.all():
            probing, theirs = probing[matches], theirs.filter(flags_array(matches))
        mine, own = taken(probe.rows, probing).columns, theirs.columns[self._key_count :]
        columns = [*mine, *own] if self._spec.stream_side is StreamSide.LEFT else [*own, *mine]
        both = pa.RecordBatch.from_arrays(columns, schema=self._pair_schema)
        if self._condition is not None and len(probing):
            met = true_flags(self._condition(both))
            if not met.all():
                probing, both = probing[met], both.filter(flags_array(met))
        return probing, both

    def _sections_of_row(self, probe: _Probe) -> list[Section]:
        """The pairs that are left of a row of which some were given, as another table may be there after a restart."""
        stop = int(probe.ends[probe.row])
        parts = [(at, min(at + SECTION_ROWS, stop)) for at in range(probe.pair, stop, SECTION_ROWS)]
        return [_section(PAIRS_SECTION, partial(self._encoded_pairs, probe, start, end)) for start, end in parts]

    def _encoded_pairs(self, probe: _Probe, start: int, stop: int) -> bytes:
        _, both = self._met(probe, start, stop)
        made = pa.RecordBatch.from_arrays(both.columns, schema=self._spec.schema)
        return encode_batches([made] if made.num_rows else [])

    # -- rows by themselves

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


def _section(name: str, encoder: Callable[[], bytes]) -> Section:
    return Section(name, None, encoder, Redistribution.SPLIT)


def _fitting(stored: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if stored.schema.types != schema.types:
        raise IncompatibleCheckpoint(
            f"The checkpoint holds rows of a join with a table of ({_described(stored.schema)}), this query has one of "
            f"({_described(schema)}): start with a new checkpointLocation, or with the query it was."
        )
    return stored


def _described(schema: pa.Schema) -> str:
    return ", ".join(map(str, schema.types))


def _left_bytes(held: _Held) -> int:
    match held:
        case _Made(rows) | _Rows(rows):
            return int(rows.nbytes)
        case _Probe():
            return int(held.rows.slice(held.row).nbytes)
        case _:
            assert_never(held)


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
