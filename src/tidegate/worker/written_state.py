"""State that did not come out of a running task: entries made of rows, and the state files that hold them.

Writes what a restore reads: entries are encoded as user code's states encode them, sections as the heap backend does.
What is taken over from another checkpoint is read and checked as a restore does it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from tidegate.model.errors import OptionError
from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId, VertexId, range_of
from tidegate.operators.initial_state import SECTION as INITIAL_SECTION
from tidegate.operators.initial_state import applied_mark
from tidegate.operators.processor_handle import DERIVED_STATES, TIMER_STATES, StateKind, stored_name
from tidegate.operators.state_handles import encode_position
from tidegate.operators.user_rows import RowsByKey
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.protocol.rescale import key_group_floors
from tidegate.state.codec import encode_key, encode_value
from tidegate.state.heap import HeapBackend, is_keyed_section, section_name
from tidegate.state.subkeys import entry_key, entry_parts
from tidegate.state.timer_entries import decode_timer
from tidegate.state.ttl import TTL_SUFFIX, with_expiry
from tidegate.storage import layout
from tidegate.storage.decoding import from_json
from tidegate.storage.manifests import SharedFile, SlotFile
from tidegate.storage.state_file import SectionKey, SectionKind, StateFileWriter, sum_of
from tidegate.storage.store import Store
from tidegate.storage.stored_plan import StoredOperator, StoredPlan, UserState, decode_schema
from tidegate.worker.reading import all_keyed_entries, chunks, entries_in_files, key_columns
from tidegate.worker.regrouped_rows import (
    kept_sections,
    not_by_key,
    regrouped_sections,
    remaining_sections,
    unshown_sections,
)
from tidegate.worker.restoring import StoredFiles, plain_name
from tidegate.worker.snapshotting import KIND_OF, PART_MARK
from tidegate.worker.stored_task import StoredTask, decode_task, encode_task
from tidegate.worker.written_rows import RowsOfTable

# Of sections that go by key groups.
KEYED_KINDS: Final[tuple[SectionKind, ...]] = ("state", "files")
_KINDS = {"value": StateKind.VALUE, "list": StateKind.LIST, "map": StateKind.MAP}


class StateEntry(NamedTuple):
    """Of one keyed state: `operator` is its place among the plan's operators, `name` the one it is stored under.

    Of operators that keep rows: `value` is some of them, all of one slot.
    """

    operator: int
    name: str
    key_group: int
    key: bytes
    value: bytes


# -- rows to entries


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Rows of a state table, by the columns of its schema: keys, place or key below them, values, expiration."""

    operator: StoredOperator
    number: int
    state: UserState
    max_parallelism: int

    @property
    def name(self) -> str:
        return stored_state_name(self.state)

    def entries(self, rows: pa.RecordBatch) -> Iterator[StateEntry]:
        keys = decode_schema(self.operator.keys)
        columns = [_storable(column) for column in rows.columns[len(keys) :]]
        for key_group, key, numbers in self._by_key(rows, keys):
            encoded_key = self._encoded(key)
            for (number,) in numbers:
                fields = [column[number] for column in columns]
                yield self._entry(key_group, key, encoded_key, fields)

    def left_of(self, rows: pa.RecordBatch, gone: Set[bytes]) -> pa.RecordBatch:
        """Stored rows, which begin with the keys, but those of some encoded keys."""
        by_key = self._by_key(rows, decode_schema(self.operator.keys))
        left = sorted(number for _, key, numbers in by_key if self._encoded(key) not in gone for (number,) in numbers)
        return rows if len(left) == rows.num_rows else rows.take(pa.array(left, pa.int64()))

    def _encoded(self, key: tuple[Any, ...]) -> bytes:
        return encode_key([_listed(field) for field in key], state=self.state.name)

    def _entry(self, key_group: int, key: tuple[Any, ...], encoded_key: bytes, fields: list[Any]) -> StateEntry:
        expiry_us = fields.pop() if self.state.has_ttl else None
        if self.state.has_ttl and expiry_us is None:
            raise OptionError(f"State {self.state.name!r} has a TTL, but the row of key {key!r} has no expiration.")
        match self.state.shape:
            case "list":
                index = fields.pop(0)
                if index is None or index < 0:
                    raise OptionError(f"Key {key!r} has an element of list state {self.state.name!r} without an index.")
                encoded_key = entry_key(encoded_key, encode_position(index))
            case "map":
                assert self.state.subkeys is not None
                count = len(decode_schema(self.state.subkeys))
                subkey, fields = tuple(fields[:count]), fields[count:]
                encoded_key = entry_key(encoded_key, encode_key(subkey, state=self.state.name))
            case _:
                pass
        value = encode_value(fields, state=self.state.name)
        stored = value if expiry_us is None else with_expiry(value, max(0, expiry_us // 1000))
        return StateEntry(self.number, self.name, key_group, encoded_key, stored)

    def _by_key(self, rows: pa.RecordBatch, keys: pa.Schema) -> Iterator[tuple[int, tuple[Any, ...], Iterable[Any]]]:
        """As the operator itself takes its rows apart, with their numbers in place of values."""
        fitted = [column.cast(field.type) for column, field in zip(rows.columns[: len(keys)], keys, strict=True)]
        numbers = pa.array(range(rows.num_rows), pa.int64())
        schema = pa.schema([*keys, pa.field("number", pa.int64())])
        numbered = pa.RecordBatch.from_arrays([*fitted, numbers], schema=schema)
        zone = "UTC" if self.operator.has_zoned_keys else None
        return RowsByKey(schema, len(keys), time_zone=zone).of(numbered, max_parallelism=self.max_parallelism)


@dataclass(frozen=True, slots=True)
class StoredRowEncoder:
    """Rows of a state table of an operator that keeps rows."""

    number: int
    table: RowsOfTable

    def entries(self, rows: pa.RecordBatch) -> Iterator[StateEntry]:
        for key_group, stored in self.table.by_slot(rows):
            yield StateEntry(self.number, self.table.state.section, key_group, b"", stored)


def _listed(field: Any) -> Any:
    """Windows and other structs are keys of aggregations only, whose encoded keys are compared and never stored."""
    if isinstance(field, dict):
        return [_listed(part) for part in field.values()]
    return [_listed(part) for part in field] if isinstance(field, list) else field


def stored_state_name(state: UserState) -> str:
    # Any TTL will do: the name only says that there is one.
    return stored_name(state.name, 1 if state.has_ttl else None, _KINDS[state.shape])


def _storable(column: pa.Array) -> list[Any]:
    """Values as user state keeps them: times as numbers, structs and entries of maps as lists."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    kind = column.type
    return [_plain(value, kind) for value in column.cast(_numbers_for_times(kind)).to_pylist()]


def _numbers_for_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_numbers_for_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_numbers_for_times(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_numbers_for_times(kind.key_type), _numbers_for_times(kind.item_type))
    return kind


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return [_plain(value[field.name], field.type) for field in kind]
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [[_plain(key, kind.key_type), _plain(item, kind.item_type)] for key, item in value]
    return value


# -- entries of another checkpoint


def regrouped_entries(
    files: StoredFiles, plan: StoredPlan, slot: int, *, max_parallelism: int, without: tuple[int, str] | None
) -> Iterator[StateEntry]:
    """All keyed user state of a slot but one, by other key groups; what is derived from it is made anew."""
    for number, operator in enumerate(plan.operators):
        if slot >= files.parallelism_of(VertexId(operator.vertex)) or not has_entries(operator):
            continue
        for name, stored in groupby(all_keyed_entries(files, operator, slot), key=lambda entry: entry[0]):
            if (number, name) == without or name in DERIVED_STATES:
                continue
            for entries in chunks(stored):
                columns = key_columns([_owner(key, name) for _, _, key, _ in entries], operator)
                owners = pa.RecordBatch.from_arrays(columns, names=decode_schema(operator.keys).names)
                hashes = hash_rows(owners, len(columns))
                if key_group_of(hashes, files.manifest.max_parallelism).tolist() != [entry[1] for entry in entries]:
                    raise not_by_key(operator)
                key_groups = key_group_of(hashes, max_parallelism).tolist()
                for (_, _, key, value), key_group in zip(entries, key_groups, strict=True):
                    yield StateEntry(number, name, key_group, key, value)


def _owner(key: bytes, name: str) -> bytes:
    """The key that an entry belongs to."""
    if name in TIMER_STATES.values():
        return decode_timer(key)[1]
    is_below = name.removesuffix(TTL_SUFFIX).endswith((StateKind.LIST.value, StateKind.MAP.value))
    return entry_parts(key)[0] if is_below else key


# -- state files


@dataclass(frozen=True, slots=True)
class Regrouping:
    """A checkpoint gets other key groups. `floors`: how far event time had come for each, by vertex with keys."""

    floors: Mapping[int, Sequence[tuple[KeyGroupRange, int]]]

    def of_task(self, task: StoredTask, vertex: VertexId, own: KeyGroupRange) -> StoredTask:
        """Its key groups stay ahead of it if their keys were."""
        if vertex not in self.floors:
            return task
        floors = key_group_floors(self.floors[vertex], own)
        return msgspec.structs.replace(task, floors=[floor for floor in floors if floor[1] > task.input_watermark_ms])


@dataclass(frozen=True, slots=True)
class SlotContent:
    """What a slot's file is to hold. `base`: what it takes over; None for tasks that start anew.

    `replaced`: the keyed state, by operator and stored name, of which only `entries` count. `regrouping`: if there is
    one, they are all that counts of any keyed state of user code, and rows are those of the slot's new key groups.
    `already_begun`: an operator whose query has an initial state for it, which must not be applied over its entries.
    `dropped_keys`: of an operator; if it is there, `entries` are no state, but name the keys of it that go.
    `rows`: of an operator that keeps rows, all that it is to have, which `entries` of it hold.
    """

    plan: StoredPlan
    vertex_parallelism: Sequence[int]
    max_parallelism: int
    base: StoredFiles | None
    replaced: tuple[int, str] | None
    regrouping: Regrouping | None = None
    already_begun: StoredOperator | None = None
    dropped_keys: RowEncoder | None = None
    rows: StoredRowEncoder | None = None

    @property
    def without_keys_of(self) -> int | None:
        """Its place among the plan's operators."""
        return None if self.dropped_keys is None else self.dropped_keys.number

    @property
    def written_anew(self) -> int | None:
        """The same of the one whose keyed state is nowhere copied as it is."""
        return self.without_keys_of if self.rows is None else self.rows.number

    def key_groups_of(self, vertex: int, slot: SlotIndex) -> KeyGroupRange:
        return range_of(slot, parallelism=self.vertex_parallelism[vertex], max_parallelism=self.max_parallelism)


def write_slot(
    content: SlotContent, slot: SlotIndex, entries: Iterable[StateEntry], store: Store, *, token: str
) -> SlotFile:
    """`token` makes the file's name: of several attempts only one is in the manifest."""
    writer = StateFileWriter()
    if content.dropped_keys is not None or content.rows is not None:
        entries = list(entries)
    if content.base is None:
        for vertex, parallelism in enumerate(content.vertex_parallelism):
            if slot < parallelism:
                writer.add(
                    SectionKey(TaskId(VertexId(vertex), slot), -1, "task", "progress"), encode_task(StoredTask())
                )
        shared = []
    else:
        # Captured files come first: elements name them by their place.
        shared = content.base.copy_captured(slot, store)
        if content.regrouping is None:
            shared += _copy_sections(content, content.base, slot, writer, store)
        else:
            _add_regrouped(content, content.base, content.regrouping, slot, writer)
        if content.dropped_keys is not None:
            _add_remaining(content, content.base, content.dropped_keys, slot, {entry.key for entry in entries}, writer)
    if content.rows is not None:
        streams = [entry.value for entry in entries if entry.operator == content.rows.number]
        entries = [entry for entry in entries if entry.operator != content.rows.number]
        _add_rows(content, content.rows, slot, streams, writer)
    begun = content.already_begun
    if begun is not None and slot < content.vertex_parallelism[begun.vertex]:
        _add_mark(begun, slot, writer)
    backends: dict[int, HeapBackend] = {}
    for entry in _all_entries(content, slot, entries):
        operator = content.plan.operators[entry.operator]
        backend = backends.get(entry.operator)
        if backend is None:
            backend = backends[entry.operator] = HeapBackend(content.key_groups_of(operator.vertex, slot))
        state = backend.keyed(entry.name)
        if state.get(entry.key_group, entry.key) is not None:
            raise OptionError(
                f"Two rows have the same place in state {entry.name!r} of operator {operator.id}: "
                f"give each key, list index or map key once."
            )
        state.put(entry.key_group, entry.key, entry.value)
    for number, backend in backends.items():
        operator = content.plan.operators[number]
        for part, section in enumerate(backend.snapshot()):
            writer.add(_written_key(operator, slot, section.name, part, section.key_groups), *section.pieces())
    pieces = writer.finish()
    file = sum_of(pieces)
    path = layout.written_state_file(slot, token)
    store.put(path, pieces)
    return SlotFile(slot, path, file.length_bytes, file.crc32, shared)


def _copy_sections(
    content: SlotContent, base: StoredFiles, slot: SlotIndex, writer: StateFileWriter, store: Store
) -> list[SharedFile]:
    """What is taken over as it is; the files beside it."""
    numbers = {(operator.vertex, operator.position): number for number, operator in enumerate(content.plan.operators)}
    sorted_out = content.written_anew
    own_rows = frozenset[str]() if sorted_out is None else kept_sections(content.plan.operators[sorted_out])
    files: list[SharedFile] = []
    for stored in base.all_sections(slot):
        key = stored.key
        if key.kind == "files":
            number = numbers.get((key.task.vertex, key.operator))
            if number is not None and (number == sorted_out or has_entries(content.plan.operators[number])):
                continue  # they are written as those of the heap
            files += base.copy_files(stored, store)
        if key.kind == "state" and content.replaced is not None:
            number, name = content.replaced
            if numbers.get((key.task.vertex, key.operator)) == number and plain_name(key) == section_name(name):
                continue
        is_sorted_out = numbers.get((key.task.vertex, key.operator), -1) == sorted_out
        is_by_key = is_keyed_section(plain_name(key)) or plain_name(key) in own_rows
        if key.kind == "state" and is_sorted_out and is_by_key:
            continue  # what stays of it is written anew
        if plain_name(key) == INITIAL_SECTION and _is_of(key, content.already_begun):
            continue  # the mark is written anew
        writer.add(key, stored.data)
    return files


def _add_regrouped(
    content: SlotContent, base: StoredFiles, regrouping: Regrouping, slot: SlotIndex, writer: StateFileWriter
) -> None:
    """What is not keyed is taken over as it is; rows as they are now those of the slot."""
    for stored in base.all_sections(slot, is_wanted=lambda key: key.kind not in KEYED_KINDS):
        key = stored.key
        if plain_name(key) == INITIAL_SECTION and _is_of(key, content.already_begun):
            continue  # the mark is written anew
        if key.kind == "task":
            task = decode_task(stored.data, name=f"the checkpoint of {key.task}")
            own = content.key_groups_of(key.task.vertex, slot)
            writer.add(key, encode_task(regrouping.of_task(task, key.task.vertex, own)))
        else:
            writer.add(key, stored.data)
    for number, operator in enumerate(content.plan.operators):
        if slot < content.vertex_parallelism[operator.vertex] and number != content.written_anew:
            own = content.key_groups_of(operator.vertex, slot)
            sections = regrouped_sections(base, operator, own, max_parallelism=content.max_parallelism)
            for part, (name, pieces) in enumerate(sections):
                writer.add(_written_key(operator, slot, name, part, own), *pieces)


def _add_remaining(
    content: SlotContent,
    base: StoredFiles,
    dropped: RowEncoder,
    slot: SlotIndex,
    gone: Set[bytes],
    writer: StateFileWriter,
) -> None:
    """Rows of keys that stay. Of user code there are entries."""
    operator = content.plan.operators[dropped.number]
    if has_entries(operator) or slot >= content.vertex_parallelism[operator.vertex]:
        return
    own = content.key_groups_of(operator.vertex, slot)
    sections = remaining_sections(base, operator, own, lambda rows: dropped.left_of(rows, gone))
    for part, (name, pieces) in enumerate(sections):
        writer.add(_written_key(operator, slot, name, part, own), *pieces)


def _add_rows(
    content: SlotContent, rows: StoredRowEncoder, slot: SlotIndex, streams: Sequence[bytes], writer: StateFileWriter
) -> None:
    """And which of their groups are not shown yet: of others there is nothing to show."""
    operator, base = rows.table.operator, content.base
    if slot >= content.vertex_parallelism[operator.vertex]:
        return
    own = content.key_groups_of(operator.vertex, slot)

    def unshown(left: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Iterator[tuple[str, Sequence[memoryview]]]:
        if base is not None:
            yield from unshown_sections(base, operator, own, left, max_parallelism=content.max_parallelism)

    for part, (name, pieces) in enumerate(rows.table.sections(streams, unshown)):
        writer.add(_written_key(operator, slot, name, part, own), *pieces)


def _written_key(
    operator: StoredOperator, slot: SlotIndex, name: str, part: int, key_groups: KeyGroupRange | None
) -> SectionKey:
    task = TaskId(VertexId(operator.vertex), slot)
    return SectionKey(task, operator.position, "state", f"{name}{PART_MARK}written-{part}", key_groups)


def _add_mark(begun: StoredOperator, slot: SlotIndex, writer: StateFileWriter) -> None:
    mark = applied_mark()
    name = f"{mark.name}{PART_MARK}written"
    task = TaskId(VertexId(begun.vertex), slot)
    writer.add(SectionKey(task, begun.position, KIND_OF[mark.redistribution], name), *mark.pieces())


def _is_of(key: SectionKey, operator: StoredOperator | None) -> bool:
    return operator is not None and (key.task.vertex, key.operator) == (operator.vertex, operator.position)


def has_entries(operator: StoredOperator) -> bool:
    """Of user code, also if it declares no state any more that it had; others keep rows."""
    return all(isinstance(state, UserState) for state in operator.states)


def _all_entries(content: SlotContent, slot: SlotIndex, entries: Iterable[StateEntry]) -> Iterator[StateEntry]:
    if content.without_keys_of is None:
        yield from entries
        gone = frozenset[bytes]()
    else:
        gone = frozenset(entry.key for entry in entries)
    if content.base is None or content.regrouping is not None:
        return
    for number, operator in enumerate(content.plan.operators):
        if not has_entries(operator) or slot >= content.base.parallelism_of(VertexId(operator.vertex)):
            continue
        is_sorted_out = number == content.without_keys_of
        # Of others, sections are copied as they are.
        stored = all_keyed_entries if is_sorted_out else entries_in_files
        for name, key_group, key, value in stored(content.base, operator, slot):
            if (number, name) == content.replaced or name in DERIVED_STATES:
                continue
            if not is_sorted_out or _owner(key, name) not in gone:
                yield StateEntry(number, name, key_group, key, value)


def encode_slot_file(file: SlotFile) -> str:
    return msgspec.json.encode(file).decode()


def decode_slot_file(text: str) -> SlotFile:
    return from_json(text, SlotFile)
