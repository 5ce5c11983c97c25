"""Reads what a checkpoint holds as batches of columns: states, timers, captured rows. For people and tools.

Everything is read and checked as a restore does it, by the same code. It changes and deletes nothing.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any, TypeVar, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.elements import Batch
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import EdgeId, KeyGroupRange, TaskId, VertexId, range_of
from tidegate.operators.broadcast_state import SECTION as BROADCAST_SECTION
from tidegate.operators.broadcast_state import decode_states
from tidegate.operators.numbered_from_disk import NumberedFromDisk
from tidegate.operators.processor_handle import TIMER_STATES, StateKind, stored_name
from tidegate.operators.rows_from_disk import RowsFromDisk
from tidegate.operators.state_handles import decode_position
from tidegate.operators.stored_group_values import group_columns
from tidegate.operators.stored_rows import read_rows
from tidegate.protocol.rescale import EdgeKind, EdgeShape, most_advanced_of
from tidegate.state.codec import decode
from tidegate.state.contract import ROCKSDB_SECTION, RestoredSection
from tidegate.state.heap import read_section, section_name
from tidegate.state.subkeys import entry_parts
from tidegate.state.timer_entries import decode_timer
from tidegate.state.ttl import split_expiry
from tidegate.storage.stored_plan import StoredEdge, StoredGroups, StoredOperator, StoredRows, UserState, decode_schema
from tidegate.worker.captured import RECEIVED
from tidegate.worker.captured_parts import in_flight_of
from tidegate.worker.restoring import ChannelEnds, StoredFiles
from tidegate.worker.state_backends import StateBackends, open_backends

# What is in memory of a state while it is read.
BATCH_ROWS = 1 << 13

_KINDS = {"value": StateKind.VALUE, "list": StateKind.LIST, "map": StateKind.MAP}
_NEVER_US = np.iinfo(np.int64).max
# Timestamps of Spark and datetimes of Python reach from the year 1 to 9999; a day less, for zones. A timer or an
# expiration may lie beyond, for instance at the last ms there is as one that never comes: shown as the end of time.
_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_400_000
ItemT = TypeVar("ItemT")


# -- states


def read_state(
    files: StoredFiles, operator: StoredOperator, state: UserState | StoredRows | StoredGroups, subtask: int
) -> Iterator[list[pa.Array]]:
    """What one subtask held of it, batch by batch; the last two columns are the key group and the subtask."""
    match state:
        case UserState(shape="broadcast"):
            # One speaks for all; those that are behind it have in flight what they have not applied.
            shown = _most_advanced(files, operator)
            return _broadcast_state(files, operator, state, subtask) if subtask == shown else iter(())
        case UserState():
            return _user_state(files, operator, state, subtask)
        case StoredRows():
            return _rows(files, operator, state, subtask)
        case StoredGroups():
            return _groups(files, operator, state, subtask)
        case _:
            assert_never(state)


def keyed_entries(
    files: StoredFiles, operator: StoredOperator, name: str, subtask: int
) -> Iterator[tuple[int, bytes, bytes]]:
    """Key group, key and value of all entries of one keyed state, whichever backend stored it."""
    task = TaskId(VertexId(operator.vertex), subtask)
    for section in files.sections_of(task, "state", operator=operator.position, name=section_name(name)):
        yield from read_section(section, _key_groups(files, task))[1]
    for _, key_group, key, value in entries_in_files(files, operator, subtask, name=name):
        yield key_group, key, value


def entries_in_files(
    files: StoredFiles, operator: StoredOperator, subtask: int, *, name: str | None = None
) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Name, key group, key and value of what a subtask stored in files beside its section; of all states or of one."""
    task = TaskId(VertexId(operator.vertex), subtask)
    stored = files.sections_of(task, "files", operator=operator.position)
    if not stored:
        return
    key_groups = _key_groups(files, task)
    backends = _backends_for(stored)
    try:
        backend = backends.open(key_groups)
        backend.restore([files.with_files(task, section)[0] for section in stored])
        for found in backend.state_names() if name is None else [name]:
            state = backend.keyed(found)
            for key_group in range(key_groups.first, key_groups.last):
                for key, value in state.scan(key_group):
                    yield found, key_group, key, value
    finally:
        backends.close()


def all_keyed_entries(
    files: StoredFiles, operator: StoredOperator, subtask: int
) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Name, key group, key and value of the entries of all keyed states, whichever backend stored them."""
    task = TaskId(VertexId(operator.vertex), subtask)
    for section in files.sections_of(task, "state", operator=operator.position):
        name, entries = read_section(section, _key_groups(files, task))
        for key_group, key, value in entries:
            yield name, key_group, key, value
    yield from entries_in_files(files, operator, subtask)


def _backends_for(stored: Iterable[RestoredSection]) -> StateBackends:
    """That can read these."""
    return open_backends("rocksdb" if any(section.name == ROCKSDB_SECTION for section in stored) else "heap")


def _key_groups(files: StoredFiles, task: TaskId) -> KeyGroupRange:
    parallelism = files.parallelism_of(task.vertex)
    return range_of(task.subtask, parallelism=parallelism, max_parallelism=files.manifest.max_parallelism)


def _user_state(
    files: StoredFiles, operator: StoredOperator, state: UserState, subtask: int
) -> Iterator[list[pa.Array]]:
    keys = [field.type for field in decode_schema(operator.keys)]
    subkeys = [] if state.subkeys is None else [field.type for field in decode_schema(state.subkeys)]
    values = [field.type for field in decode_schema(state.values)]
    kind = _KINDS[state.shape]
    # Any TTL will do: the name only says that there is one.
    name = stored_name(state.name, 1 if state.has_ttl else None, kind)
    for entries in chunks(keyed_entries(files, operator, name, subtask)):
        expiries = [split_expiry(value) for _, _, value in entries] if state.has_ttl else None
        stored_values = [value for _, _, value in entries] if expiries is None else [value for _, value in expiries]
        owners, below = [key for _, key, _ in entries], []
        if kind is not StateKind.VALUE:
            owners, below = map(list, zip(*[entry_parts(key) for _, key, _ in entries], strict=True))
        columns = _columns(owners, keys, _as_it_is)
        if kind is StateKind.LIST:
            columns.append(pa.array([decode_position(position) for position in below], pa.int64()))
        elif kind is StateKind.MAP:
            columns += _columns(below, subkeys, readable)
        columns += _columns(stored_values, values, readable)
        if expiries is not None:
            columns.append(_times([expiry_ms for expiry_ms, _ in expiries]))
        yield [*columns, _integers([key_group for key_group, _, _ in entries]), _same(subtask, len(entries))]


def _broadcast_state(
    files: StoredFiles, operator: StoredOperator, state: UserState, subtask: int
) -> Iterator[list[pa.Array]]:
    assert state.subkeys is not None, "a broadcast state is a map"
    subkeys = [field.type for field in decode_schema(state.subkeys)]
    values = [field.type for field in decode_schema(state.values)]
    task = TaskId(VertexId(operator.vertex), subtask)
    for section in files.sections_of(task, "broadcast", operator=operator.position, name=BROADCAST_SECTION):
        for entries in chunks(iter(decode_states(section).get(state.name, {}).items())):
            yield [
                *_columns([key for key, _ in entries], subkeys, readable),
                *_columns([value for _, value in entries], values, readable),
                pa.nulls(len(entries), pa.int32()),
                _same(subtask, len(entries)),
            ]


def _most_advanced(files: StoredFiles, operator: StoredOperator) -> int:
    """The subtask whose broadcast state a restore with other slots would give to all."""
    manifest = files.manifest
    assert manifest.plan is not None, "an operator is known from it"
    shapes = [
        EdgeShape(
            edge=EdgeId(edge.id),
            kind=EdgeKind.BROADCAST,
            senders=manifest.vertex_parallelism[edge.sender],
            receivers=manifest.vertex_parallelism[edge.receiver],
        )
        for edge in manifest.plan.edges
        if edge.receiver == operator.vertex and edge.kind == EdgeKind.BROADCAST.value
    ]
    return most_advanced_of(shapes, in_flight_of(manifest).values()) if shapes else 0


def _rows(files: StoredFiles, operator: StoredOperator, state: StoredRows, subtask: int) -> Iterator[list[pa.Array]]:
    kinds = [field.type for field in decode_schema(state.columns)]
    for stored in stored_rows(files, operator, state, subtask):
        columns = [_fitted(column, kind) for column, kind in zip(stored.columns[:-1], kinds, strict=True)]
        yield [*columns, stored.columns[-1].cast(pa.int32()), _same(subtask, stored.num_rows)]


def _groups(
    files: StoredFiles, operator: StoredOperator, state: StoredGroups, subtask: int
) -> Iterator[list[pa.Array]]:
    for stored in stored_rows(files, operator, state, subtask):
        columns = group_columns(state, stored.select(range(stored.num_columns - 1)))
        yield [*columns, stored.columns[-1].cast(pa.int32()), _same(subtask, stored.num_rows)]


def stored_rows(
    files: StoredFiles,
    operator: StoredOperator,
    state: StoredRows | StoredGroups,
    subtask: int,
    *,
    wanted: KeyGroupRange | None = None,
) -> Iterator[pa.RecordBatch]:
    """Their last column is the key group. `wanted`: of others not all need be there."""
    yield from rows_in_sections(files, operator, state.section, subtask)
    task = TaskId(VertexId(operator.vertex), subtask)
    on_disk = files.sections_of(task, "files", operator=operator.position)
    if on_disk:
        own = _key_groups(files, task)
        if wanted is not None:
            own = KeyGroupRange(max(own.first, wanted.first), min(own.last, wanted.last))
        yield from _rows_on_disk(files, task, operator, state, on_disk, own)


def rows_in_sections(
    files: StoredFiles, operator: StoredOperator, section: str, subtask: int
) -> Iterator[pa.RecordBatch]:
    """Rows that were stored whole; their last column is the key group."""
    task = TaskId(VertexId(operator.vertex), subtask)
    for stored in files.sections_of(task, "state", operator=operator.position, name=section):
        yield from read_rows(stored, noun=operator.name)


def _rows_on_disk(
    files: StoredFiles,
    task: TaskId,
    operator: StoredOperator,
    state: StoredRows | StoredGroups,
    sections: list[RestoredSection],
    key_groups: KeyGroupRange,
) -> Iterator[pa.RecordBatch]:
    if state.on_disk is None and state.in_log is None:
        raise IncompatibleCheckpoint(
            f"The checkpoint does not say how the rows of {operator.name} lie on disk, because it was taken by an "
            "earlier Tidegate: resume its query, and read a checkpoint that was taken since."
        )
    backends = _backends_for(sections)
    try:
        yield from _reader_of(backends, operator, state, key_groups, files.manifest.max_parallelism).read(
            [files.with_files(task, section)[0] for section in sections]
        )
    finally:
        backends.close()


def _reader_of(
    backends: StateBackends,
    operator: StoredOperator,
    state: StoredRows | StoredGroups,
    key_groups: KeyGroupRange,
    max_parallelism: int,
) -> RowsFromDisk | NumberedFromDisk:
    if state.in_log is not None:
        return NumberedFromDisk(
            backends.open_rows(key_groups), state.in_log, state.on_disk, key_groups, max_parallelism, operator.name
        )
    assert state.on_disk is not None, "rows are by number, or by key"
    return RowsFromDisk(backends.open_rows(key_groups), state.on_disk, key_groups, max_parallelism, operator.name)


# -- timers


def read_timers(
    files: StoredFiles, operator: StoredOperator, subtask: int
) -> Iterator[tuple[list[bytes], list[pa.Array]]]:
    """The keys, and the columns time, kind, key group, subtask."""
    for mode, name in TIMER_STATES.items():
        for entries in chunks(keyed_entries(files, operator, name, subtask)):
            timers = [decode_timer(entry) for _, entry, _ in entries]
            yield (
                [key for _, key in timers],
                [
                    _times([at_ms for at_ms, _ in timers]),
                    pa.array([mode.value] * len(timers), pa.string()),
                    _integers([key_group for key_group, _, _ in entries]),
                    _same(subtask, len(timers)),
                ],
            )


def key_columns(keys: list[bytes], operator: StoredOperator) -> list[pa.Array]:
    return _columns(keys, [field.type for field in decode_schema(operator.keys)], _as_it_is)


def keys_as_json(keys: list[bytes], operator: StoredOperator) -> pa.Array:
    names = decode_schema(operator.keys).names
    return rows_as_json(pa.RecordBatch.from_arrays(key_columns(keys, operator), names=names))


# -- captured rows


def read_in_flight(files: StoredFiles, edges: Iterable[StoredEdge], slot: int) -> Iterator[tuple[list[pa.Array], Any]]:
    """What was in flight to the tasks of one slot: edge, sender, receiver, side, sequence and row; and the rows."""
    known = {EdgeId(edge.id): edge for edge in edges}
    for stored in files.manifest.channels:
        edge = known.get(stored.channel.edge)
        if edge is None or stored.channel.receiver != slot:
            continue
        ends = ChannelEnds(sender=VertexId(edge.sender), receiver=VertexId(edge.receiver))
        parts = files.captured_parts(stored, ends)
        for captured in files.captured_elements(stored, parts, decode_schema(edge.schema)):
            if not isinstance(captured.element, Batch) or captured.element.rows.num_rows == 0:
                continue
            rows = captured.element.rows
            side = "receiver" if captured.side == RECEIVED else "sender"
            count = rows.num_rows
            place = [
                pa.array([f"e{edge.id}"] * count, pa.string()),
                _same(stored.channel.sender, count),
                _same(stored.channel.receiver, count),
                pa.array([side] * count, pa.string()),
                pa.array([int(captured.sequence)] * count, pa.int64()),
                pa.array(range(captured.first_row, captured.first_row + count), pa.int64()),
            ]
            yield place, rows


def rows_as_json(rows: pa.RecordBatch) -> pa.Array:
    """By names; one that repeats keeps its last column, as objects do."""
    return pa.array([json.dumps(row, default=_plain, allow_nan=False) for row in _finite(rows)], pa.string())


def _finite(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    lists = [column.to_pylist() for column in rows.columns]
    for values in zip(*lists, strict=True) if lists else [()] * rows.num_rows:
        yield {name: _json_value(value) for name, value in zip(rows.schema.names, values, strict=True)}


def _json_value(value: Any) -> Any:
    match value:
        case float():
            return value if np.isfinite(value) else str(value)
        case list():
            return [_json_value(item) for item in value]
        case tuple():
            return [_json_value(item) for item in value]
        case dict():
            return {name: _json_value(item) for name, item in value.items()}
        case _:
            return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


# -- values


def readable(value: Any, kind: pa.DataType) -> Any:
    """A value of user state as Arrow takes it: parts of structs by their names, entries of maps as pairs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: readable(item, field.type) for field, item in zip(kind, value, strict=True)}
    if pa.types.is_list(kind):
        return [readable(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(readable(key, kind.key_type), readable(item, kind.item_type)) for key, item in value]
    return value


def _as_it_is(value: Any, kind: pa.DataType) -> Any:
    return value


def _columns(
    stored: list[bytes], kinds: list[pa.DataType], convert: Callable[[Any, pa.DataType], Any]
) -> list[pa.Array]:
    # Values that were stored before fields were added end without them.
    rows = [(*row, *[None] * (len(kinds) - len(row))) for row in (decode(each) for each in stored)]
    fields = list(zip(*rows, strict=True))
    if len(fields) != len(kinds):
        raise Damaged(f"Stored state has {len(fields)} fields where the checkpoint describes {len(kinds)}.")
    return [
        _array([convert(value, kind) for value in values], kind) for values, kind in zip(fields, kinds, strict=True)
    ]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return _array(values, kind.value_type)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"Stored state does not fit its declared type {kind} ({error}).") from error


def _fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and pa.types.is_int64(column.type):
        # As it is stored, a time that never comes is the last one there is.
        column = pc.if_else(pc.equal(column, _NEVER_US), pa.scalar(None, pa.int64()), column)
    return column.cast(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _times(values_ms: list[int]) -> pa.Array:
    return pa.array([max(_FIRST_MS, min(at_ms, _LAST_MS)) for at_ms in values_ms], pa.timestamp("ms", "UTC"))


def _integers(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int32())


def _same(value: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int32()), count)


def chunks(items: Iterator[ItemT]) -> Iterator[list[ItemT]]:
    while chunk := list(islice(items, BATCH_ROWS)):
        yield chunk
