"""Committed rows as a table in the driver's process, found by query name. For trying out and for tests.

Owns the process-wide tables. Rows travel inside the committables, so nothing is left behind anywhere.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Prepared
from tidegate.connectors.options import Options, nearest
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.plan.kernels.row_order import ordered
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.decoding import from_msgpack


@dataclass(slots=True)
class _Table:
    """`parts`: in complete mode the newest rows of each writer, all of one generation."""

    schema: pa.Schema
    order: nodes.RowOrder | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    parts: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    parts_generation: int = 0

    def rows(self) -> list[pa.RecordBatch]:
        return [*self.batches, *(batch for part in self.parts.values() for batch in part)]

    def replace_part(self, part: "_Part", batches: list[pa.RecordBatch]) -> None:
        """A later generation shows all groups anew, perhaps by other writers: what an earlier one showed goes."""
        if part.generation > self.parts_generation:
            self.parts, self.parts_generation = {}, part.generation
        self.parts[part.writer] = batches


# The user's thread reads while the coordinator's commits.
_lock = Lock()
_tables: dict[str, _Table] = {}


class _Committable(msgspec.Struct, frozen=True):
    """`id` is unlike any other writer's or epoch's, so that a repeated commit is recognised."""

    id: str
    batches: list[bytes]
    part: "_Part | None" = None


class _Part(msgspec.Struct, frozen=True):
    """In complete mode: whose rows these are, all there are now, in place of those before.

    By writer, because one whose input has ended shows its groups for the last time while others go on. Without rows
    it shows nothing; one that is to stay sends none.
    """

    writer: str
    generation: int


def read_memory_table(name: str) -> pa.Table:
    """What was committed so far by the query of that name in this process."""
    with _lock:
        table = _tables.get(name)
        if table is None:
            known = ", ".join(sorted(_tables)) or "none yet"
            raise OptionError(f"There is no memory table {name!r}{nearest(name, _tables)}: there are {known}.")
        # PySpark cannot take a nested column without any chunk.
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in table.schema], schema=table.schema)
        rows = pa.Table.from_batches(table.rows() or [nothing], schema=table.schema)
        return rows if table.order is None else ordered(rows, table.order)


@dataclass(frozen=True, slots=True)
class MemorySink:
    name: str
    schema: pa.Schema
    mode: nodes.OutputMode = nodes.OutputMode.APPEND
    order: nodes.RowOrder | None = None

    def prepare_location(self) -> None:
        with _lock:
            _tables.setdefault(self.name, self.empty_table())

    def empty_table(self) -> _Table:
        return _Table(self.schema, self.order)

    def writer(self, *, task: TaskId, generation: Generation) -> "MemoryWriter":
        part = _Part(str(task), generation) if self.mode is nodes.OutputMode.COMPLETE else None
        return MemoryWriter(f"{task}-g{generation}-{secrets.token_hex(8)}", part)

    def committer(self) -> "MemoryCommitter":
        return MemoryCommitter(self)


def from_node(node: nodes.Sink) -> MemorySink:
    options = Options(node.options, owner="memory sink", known=("queryName",))
    name = options.required("queryName", example="""queryName("totals")""")
    return MemorySink(name, node.schema, node.mode, node.order)


class MemoryWriter:
    def __init__(self, token: str, part: _Part | None = None) -> None:
        self._token = token
        self._part = part
        self._batches: list[bytes] = []
        self._has_result = False

    def write(self, rows: pa.RecordBatch) -> None:
        self._has_result |= self._part is not None
        if rows.num_rows:
            self._batches.append(rows.serialize().to_pybytes())

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        batches, self._batches = self._batches, []
        has_result, self._has_result = self._has_result, False
        committable = _Committable(f"{self._token}-{checkpoint}", batches, self._part)
        return Prepared([msgspec.msgpack.encode(committable)] if batches or has_result else [], lambda: None)

    def close(self) -> None:
        self._batches = []


class MemoryCommitter:
    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        decoded = [from_msgpack(data, _Committable) for data in committables]
        with _lock:
            table = _tables.setdefault(self._sink.name, self._sink.empty_table())
            for committable in decoded:
                if committable.id not in table.committed:
                    table.committed.add(committable.id)
                    _show(table, committable)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        """A first generation begins a new query, which shows nothing of an earlier one of its name, as in Spark."""
        if generation == 1:
            with _lock:
                _tables[self._sink.name] = self._sink.empty_table()


def _show(table: _Table, committable: _Committable) -> None:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(batch), table.schema) for batch in committable.batches]
    if committable.part is None:
        table.batches += batches
    else:
        table.replace_part(committable.part, batches)
