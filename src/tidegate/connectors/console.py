"""Prints the rows of each committed epoch, in the form of Spark's console sink.

A writer keeps no more rows than will be shown, unless they have an order; the rest are only counted.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Prepared
from tidegate.connectors.options import Options
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.plan.expressions import Cast, Column
from tidegate.plan.kernels import compile_expression
from tidegate.plan.kernels.row_order import ordered
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.zones import UTC, ZoneRules
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.decoding import from_json, from_msgpack

_DEFAULT_TRUNCATE = 20
_RULE = "-" * 43


class _Committable(msgspec.Struct, frozen=True):
    id: str
    total_rows: int
    batches: list[bytes]


@dataclass(frozen=True, slots=True)
class Spelling:
    """What Spark's own `show` would go by: the zone of the session, and how its Java prints a double."""

    zone: ZoneRules = UTC
    digits: Digits = Digits.SHORTEST

    def options(self) -> dict[str, str]:
        """As options of the sink, which `from_node` reads."""
        return {"sessionZoneRules": msgspec.json.encode(self.zone).decode(), "javaDigits": self.digits.value}


DEFAULT_SPELLING = Spelling()


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """`truncate` is the widest a cell may get; None shows cells whole."""

    schema: pa.Schema
    shown_rows: int
    truncate: int | None
    order: nodes.RowOrder | None = None
    spelling: Spelling = DEFAULT_SPELLING

    def prepare_location(self) -> None:
        """The terminal is always there."""

    def writer(self, *, task: TaskId, generation: Generation) -> "ConsoleWriter":
        return ConsoleWriter(self, f"{task}-g{generation}-{secrets.token_hex(8)}")

    def committer(self) -> "ConsoleCommitter":
        return ConsoleCommitter(self)


def from_node(node: nodes.Sink) -> ConsoleSink:
    known = ("numRows", "truncate", *DEFAULT_SPELLING.options())
    options = Options(node.options, owner="console sink", known=known)
    shown_rows = options.positive("numRows", default=20)
    return ConsoleSink(node.schema, shown_rows, _truncate(options), node.order, _spelling(options))


def _spelling(options: Options) -> Spelling:
    default = DEFAULT_SPELLING.options()
    rules, digits = (options.text(name, default=default[name]) for name in ("sessionZoneRules", "javaDigits"))
    return Spelling(from_json(rules, ZoneRules), Digits(digits))


def _truncate(options: Options) -> int | None:
    text = options.text("truncate", default="true").strip().lower()
    if text in ("true", "false"):
        return _DEFAULT_TRUNCATE if text == "true" else None
    if not text.isdecimal():
        raise OptionError(f"Option 'truncate' of the console sink is {text!r}: write true, false or a width.")
    return int(text) or None


class ConsoleWriter:
    def __init__(self, sink: ConsoleSink, token: str) -> None:
        self._sink = sink
        self._token = token
        self._start_epoch()

    def write(self, rows: pa.RecordBatch) -> None:
        # Which rows stand first in an order is known when all are there.
        is_any_row_shown = self._sink.order is not None
        shown = rows if is_any_row_shown else rows.slice(0, self._sink.shown_rows - self._kept_rows)
        if shown.num_rows:
            self._batches.append(shown.serialize().to_pybytes())
        self._kept_rows += shown.num_rows
        self._total_rows += rows.num_rows

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        committable = _Committable(f"{self._token}-{checkpoint}", self._total_rows, self._batches)
        self._start_epoch()
        return Prepared([msgspec.msgpack.encode(committable)] if committable.total_rows else [], lambda: None)

    def close(self) -> None:
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._batches: list[bytes] = []
        self._kept_rows = 0
        self._total_rows = 0


class ConsoleCommitter:
    """What was printed cannot be taken back: after a crash of the driver an epoch may be printed once more."""

    def __init__(self, sink: ConsoleSink) -> None:
        self._sink = sink
        self._printed: set[str] = set()
        self._newest_checkpoint = CheckpointId(0)

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        # Commits come in order, so an older checkpoint was printed already and only the newest needs remembering.
        if permit.checkpoint < self._newest_checkpoint:
            return
        if permit.checkpoint > self._newest_checkpoint:
            self._newest_checkpoint, self._printed = permit.checkpoint, set()
        decoded = [from_msgpack(data, _Committable) for data in committables]
        new = [committable for committable in decoded if committable.id not in self._printed]
        self._printed |= {committable.id for committable in new}
        if new:
            print(f"{_RULE}\nBatch: {permit.checkpoint}\n{_RULE}\n{self._table(new)}", flush=True)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        """Nothing is left behind."""

    def _table(self, committables: list[_Committable]) -> str:
        schema = self._sink.schema
        batches = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for c in committables for data in c.batches]
        rows = pa.Table.from_batches(batches, schema=schema)
        total_rows = sum(committable.total_rows for committable in committables)
        if self._sink.order is not None:
            rows = ordered(rows, self._sink.order)
            total_rows = rows.num_rows
        shown = rows.slice(0, self._sink.shown_rows)
        text = render_table(shown, truncate=self._sink.truncate, spelling=self._sink.spelling)
        if total_rows > self._sink.shown_rows:
            rows_word = "row" if self._sink.shown_rows == 1 else "rows"
            text += f"only showing top {self._sink.shown_rows} {rows_word}\n"
        return text


def render_table(rows: pa.Table, *, truncate: int | None, spelling: Spelling = DEFAULT_SPELLING) -> str:
    """As `DataFrame.show` draws it: right-aligned when truncating, left-aligned when not."""
    spelled = [_spelled(column.combine_chunks(), spelling) for column in rows.columns]
    columns = [
        [name, *(_cell(value, column.type) for value in column.to_pylist())]
        for name, column in zip(rows.schema.names, spelled, strict=True)
    ]
    cells = [[_shorten(cell, truncate) for cell in column] for column in columns]
    widths = [max(3, *map(len, column)) for column in cells]
    rule = "+" + "+".join("-" * width for width in widths) + "+\n"
    lines = [
        "|" + "|".join(_align(cell, width, truncate) for cell, width in zip(line, widths, strict=True)) + "|\n"
        for line in zip(*cells, strict=True)
    ]
    return "".join([rule, *lines[:1], rule, *lines[1:], rule])


def _align(cell: str, width: int, truncate: int | None) -> str:
    return cell.ljust(width) if truncate is None else cell.rjust(width)


def _shorten(cell: str, truncate: int | None) -> str:
    if truncate is None or len(cell) <= truncate:
        return cell
    return cell[:truncate] if truncate < 4 else cell[: truncate - 3] + "..."


def _spelled(column: pa.Array, spelling: Spelling) -> pa.Array:
    """The column with texts in place of floats and times, also inside of arrays, maps and structs."""
    target = _with_texts(column.type)
    if target == column.type:
        return column
    cast = Cast(Column(0, "value", column.type), target, False, spelling.zone.name, spelling.zone, spelling.digits)
    return compile_expression(cast)(pa.RecordBatch.from_arrays([column], ["value"]))


def _with_texts(type_: pa.DataType) -> pa.DataType:
    is_type = pa.types
    if is_type.is_floating(type_) or is_type.is_timestamp(type_) or is_type.is_date(type_):
        return pa.string()
    if is_type.is_map(type_):
        return pa.map_(_with_texts(type_.key_type), _with_texts(type_.item_type))
    if is_type.is_list(type_):
        return pa.list_(_with_texts(type_.value_type))
    if is_type.is_struct(type_):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in type_])
    return type_


def _cell(value: Any, kind: pa.DataType) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case Decimal():
            return f"{value:f}"
        case bytes():
            return "[" + " ".join(f"{byte:02X}" for byte in value) + "]"
        case dict():
            return "{" + ", ".join(_cell(item, kind.field(name).type) for name, item in value.items()) + "}"
        case list() if pa.types.is_map(kind):
            pairs = (f"{_cell(key, kind.key_type)} -> {_cell(item, kind.item_type)}" for key, item in value)
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(_cell(item, kind.value_type) for item in value) + "]"
        case _:
            return str(value)
