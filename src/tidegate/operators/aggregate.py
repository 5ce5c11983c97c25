"""Grouped counts and sums in update mode, over columns: state is one slot per key and one array per call.

Emits changed groups at the barrier, and at most every `EMIT_INTERVAL_MS` in between. Must never touch single rows
in Python, nor let a sum of integers pass through floating point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import Damaged, IncompatibleCheckpoint, ProtocolViolation, UnsupportedPlan, UserCodeFailure
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, fixed_array, slots_array
from tidegate.operators.contract import Emit, TaskContext, WithoutTimers
from tidegate.plan.expressions import Expression
from tidegate.plan.kernels import compile_expression, compile_projection
from tidegate.plan.key_groups import Hashes, fixed_values_of, key_group_of, validity_of
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section

EMIT_INTERVAL_MS = 100.0
# Bounds one output batch, so that offsets of strings fit and the receiver can take it in slices.
EMIT_BATCH_ROWS = 1 << 16
# A section is encoded between two steps of the stream; this many groups take a few ms.
SECTION_ROWS = 1 << 17
SECTION_NAME = "aggregate"

_INT64_MAX = (1 << 63) - 1
_LOW_HALF = np.int64(0xFFFFFFFF)
_KEY_GROUP_COLUMN = "key_group"


class Accumulator(Protocol):
    """The running values of one call, by slot."""

    def add(self, rows: pa.RecordBatch, slots: Slots, slot_count: int) -> None: ...
    def set(self, slots: Slots, values: pa.Array, slot_count: int) -> None: ...
    def gather(self, slots: Slots | slice) -> pa.Array:
        """Copies: later changes do not show in what was gathered."""
        ...

    def size_bytes(self) -> int: ...


class CountAccumulator:
    """count(*) without arguments; with arguments, the rows in which none of them is null."""

    def __init__(self, arguments: Sequence[Expression]) -> None:
        self._arguments = [compile_expression(argument) for argument in arguments]
        self._counts: GrowingArray[np.int64] = GrowingArray(np.int64)

    def add(self, rows: pa.RecordBatch, slots: Slots, slot_count: int) -> None:
        self._counts.grow_to(slot_count)
        flags = [valid for argument in self._arguments if (valid := validity_of(argument(rows))) is not None]
        if flags:
            slots = slots[np.logical_and.reduce(flags)]
        np.add.at(self._counts.used, slots, 1)

    def set(self, slots: Slots, values: pa.Array, slot_count: int) -> None:
        self._counts.grow_to(slot_count)
        self._counts.used[slots] = fixed_values_of(values)

    def gather(self, slots: Slots | slice) -> pa.Array:
        return fixed_array(pa.int64(), self._counts.used[slots].copy(), None)

    def size_bytes(self) -> int:
        return self._counts.used.nbytes


class SumAccumulator:
    """A sum that is null until a value came. `values` is int64 or float64."""

    def __init__(self, call: AggregateCall) -> None:
        self._argument = compile_expression(call.arguments[0])
        self._type = call.type
        self._seen: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._adder: IntegerAdder | FloatAdder = (
            FloatAdder() if pa.types.is_float64(call.type) else IntegerAdder(raises_on_overflow=call.ansi)
        )

    def add(self, rows: pa.RecordBatch, slots: Slots, slot_count: int) -> None:
        self._grow_to(slot_count)
        column = self._argument(rows)
        values, valid = fixed_values_of(column), validity_of(column)
        if valid is not None:
            values, slots = values[valid], slots[valid]
        if len(slots):
            self._adder.add(values, slots)
            self._seen.used[slots] = True

    def set(self, slots: Slots, values: pa.Array, slot_count: int) -> None:
        self._grow_to(slot_count)
        valid = validity_of(values)
        self._seen.used[slots] = True if valid is None else valid
        self._adder.set(fixed_values_of(values), slots, valid)

    def gather(self, slots: Slots | slice) -> pa.Array:
        return fixed_array(self._type, self._adder.sums.used[slots].copy(), self._seen.used[slots])

    def size_bytes(self) -> int:
        return self._adder.sums.used.nbytes + self._seen.used.nbytes

    def _grow_to(self, slot_count: int) -> None:
        self._seen.grow_to(slot_count)
        self._adder.sums.grow_to(slot_count)


class FloatAdder:
    def __init__(self) -> None:
        self.sums: GrowingArray[np.float64] = GrowingArray(np.float64)

    def add(self, values: npt.NDArray[Any], slots: Slots) -> None:
        np.add.at(self.sums.used, slots, values.astype(np.float64, copy=False))

    def set(self, values: npt.NDArray[Any], slots: Slots, valid: Flags | None) -> None:
        self.sums.used[slots] = values if valid is None else np.where(valid, values, 0.0)


class IntegerAdder:
    """Exact sums of 64 bits. Past the end it wraps, as Spark does without ANSI, or raises, as Spark does with it."""

    def __init__(self, *, raises_on_overflow: bool) -> None:
        self.sums: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._raises_on_overflow = raises_on_overflow
        # No sum is further from 0 than this; kept loose, made tight only when it gets in the way.
        self._bound = 0

    def add(self, values: npt.NDArray[Any], slots: Slots) -> None:
        wide = values.astype(np.int64, copy=False)
        if not self._raises_on_overflow or self._surely_fits(wide):
            np.add.at(self.sums.used, slots, wide)
        else:
            self._add_checked(wide, slots)

    def set(self, values: npt.NDArray[Any], slots: Slots, valid: Flags | None) -> None:
        self.sums.used[slots] = values if valid is None else np.where(valid, values, 0)
        self._bound = _furthest_from_zero(self.sums.used)

    def _surely_fits(self, values: npt.NDArray[np.int64]) -> bool:
        change = _furthest_from_zero(values) * len(values)
        if self._bound + change > _INT64_MAX:
            self._bound = _furthest_from_zero(self.sums.used)
        self._bound += change
        return self._bound <= _INT64_MAX

    def _add_checked(self, values: npt.NDArray[np.int64], slots: Slots) -> None:
        """Adds the two halves of 32 bits apart, where they cannot overflow, and looks whether the whole still fits."""
        sums = self.sums.used
        if len(sums) <= 4 * len(slots):
            # So few groups that working on all of them is quicker than finding the touched ones.
            touched, positions = np.arange(len(sums)), slots
        else:
            touched, positions = np.unique(slots, return_inverse=True)
        low, high = sums[touched] & _LOW_HALF, sums[touched] >> 32
        np.add.at(low, positions, values & _LOW_HALF)
        np.add.at(high, positions, values >> 32)
        high += low >> 32
        if (high != high.astype(np.int32)).any():
            raise UserCodeFailure(
                "[ARITHMETIC_OVERFLOW] long overflow: a sum left the range of BIGINT; cast its argument to a DECIMAL, "
                "use try_sum, or set spark.sql.ansi.enabled to false to let it wrap."
            )
        sums[touched] = (high << 32) | (low & _LOW_HALF)
        self._bound = _furthest_from_zero(sums)


class AggregateOperator(WithoutTimers):
    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        key_fields = [_plain(spec.input_schema.field(index)) for index in range(spec.key_count)]
        # Positions name the columns: the names of a Spark plan may repeat.
        keys = [pa.field(f"key_{index}", field.type) for index, field in enumerate(key_fields)]
        calls = [pa.field(f"call_{index}", call.type) for index, call in enumerate(spec.calls)]
        self._row_schema = pa.schema([*keys, *calls])
        self._index = KeyIndex([field.type for field in key_fields])
        self._accumulators = [_accumulator(call) for call in spec.calls]
        self._project = compile_projection(spec.results, spec.schema)
        self._dirty: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._has_dirty = False

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._emitted_at_ms = context.clock.monotonic_ms()
        for section in restored:
            self._restore(section)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows:
            slots = self._index.find_or_add(rows)
            for accumulator in self._accumulators:
                accumulator.add(rows, slots, self._index.count)
            self._dirty.grow_to(self._index.count)
            self._dirty.used[slots] = True
            self._has_dirty = True
        self._emit_if_due(emit)

    def before_barrier(self, emit: Emit) -> None:
        self._emit_dirty(emit)

    def end_of_input(self, emit: Emit) -> None:
        self._emit_dirty(emit)

    def on_idle(self, emit: Emit) -> None:
        self._emit_if_due(emit)

    def snapshot(self) -> list[Section]:
        groups, context = self._index.count, self._context
        sections = []
        for start in range(0, groups, SECTION_ROWS):
            part = slice(start, min(start + SECTION_ROWS, groups))
            # Keys and hashes never change, so they are read when encoding; running values are copied now.
            encode = partial(
                _encode_groups,
                _Frozen(self._index, part, [each.gather(part) for each in self._accumulators]),
                max_parallelism=context.max_parallelism,
                row_schema=self._row_schema,
            )
            sections.append(Section(SECTION_NAME, context.key_groups, encode))
        return sections

    def state_bytes(self) -> int:
        return self._index.size_bytes() + sum(each.size_bytes() for each in self._accumulators)

    def close(self) -> None:
        pass

    def _emit_if_due(self, emit: Emit) -> None:
        if self._has_dirty and self._context.clock.monotonic_ms() - self._emitted_at_ms >= EMIT_INTERVAL_MS:
            self._emit_dirty(emit)

    def _emit_dirty(self, emit: Emit) -> None:
        self._emitted_at_ms = self._context.clock.monotonic_ms()
        if not self._has_dirty:
            return
        changed = np.flatnonzero(self._dirty.used)
        self._dirty.used[:] = False
        self._has_dirty = False
        for start in range(0, len(changed), EMIT_BATCH_ROWS):
            emit(self._project(self._rows_of(changed[start : start + EMIT_BATCH_ROWS])))

    def _rows_of(self, slots: Slots) -> pa.RecordBatch:
        columns = [*self._index.gather(slots), *(each.gather(slots) for each in self._accumulators)]
        return pa.RecordBatch.from_arrays(columns, schema=self._row_schema)

    def _restore(self, section: RestoredSection) -> None:
        if section.name != SECTION_NAME:
            raise ProtocolViolation(f"Section {section.name!r} is not the state of an aggregation.")
        expected = _stored_schema(self._row_schema)
        try:
            with pa.ipc.open_stream(section.data) as stream:
                if stream.schema != expected:
                    raise IncompatibleCheckpoint(
                        f"The checkpoint holds an aggregation of ({_described(stream.schema)}), this query has one of "
                        f"({_described(expected)}): start with a new checkpointLocation, or with the query it was."
                    )
                for stored in stream:
                    self._restore_groups(_of_range(stored, self._context.key_groups))
        except (pa.ArrowInvalid, OSError) as error:
            raise Damaged(
                f"The state of an aggregation cannot be read ({error}): restore an older checkpoint."
            ) from error

    def _restore_groups(self, stored: pa.RecordBatch) -> None:
        if stored.num_rows == 0:
            return
        slots = self._index.find_or_add(stored)
        for position, accumulator in enumerate(self._accumulators):
            accumulator.set(slots, stored.column(self._spec.key_count + position), self._index.count)
        self._dirty.grow_to(self._index.count)


@dataclass(frozen=True, slots=True)
class _Frozen:
    index: KeyIndex
    part: slice
    values: Sequence[pa.Array]


def _encode_groups(frozen: _Frozen, *, max_parallelism: int, row_schema: pa.Schema) -> memoryview:
    hashes: Hashes = frozen.index.hashes[frozen.part]
    key_groups = fixed_array(pa.uint16(), key_group_of(hashes, max_parallelism), None)
    columns = [*frozen.index.gather(frozen.part), *frozen.values, key_groups]
    target = pa.BufferOutputStream()
    schema = _stored_schema(row_schema)
    with pa.ipc.new_stream(target, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return memoryview(target.getvalue())


def _stored_schema(row_schema: pa.Schema) -> pa.Schema:
    return row_schema.append(pa.field(_KEY_GROUP_COLUMN, pa.uint16()))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _of_range(stored: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    found = fixed_values_of(stored.column(stored.num_columns - 1))
    own = (found >= key_groups.first) & (found < key_groups.last)
    return stored if own.all() else stored.take(slots_array(np.flatnonzero(own)))


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _accumulator(call: AggregateCall) -> Accumulator:
    if call.function is not AggregateFunction.SUM:
        return CountAccumulator(call.arguments if call.function is AggregateFunction.COUNT else ())
    if not (pa.types.is_int64(call.type) or pa.types.is_float64(call.type)):
        raise UnsupportedPlan(
            f"sum with a result of type {call.type} is not supported: cast its argument to BIGINT or DOUBLE."
        )
    return SumAccumulator(call)


def _furthest_from_zero(values: npt.NDArray[np.int64]) -> int:
    return max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0
