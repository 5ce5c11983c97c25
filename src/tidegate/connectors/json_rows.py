"""Lines of JSON as rows of a schema, with the answers of Spark's json reader.

Plain lines are parsed in bulk; a bulk that Arrow refuses is halved until the lines that are not plain stand alone,
and these are taken apart one by one. Arrow is asked only where its answer is Spark's: see `_is_plain`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidegate.connectors.json_tokens import Kind, Malformed, Record, Token, read_records
from tidegate.connectors.malformed import Parsed, either, joined
from tidegate.connectors.text_values import (
    Reading,
    Unreadable,
    instant_micros,
    java_decimal,
    java_float,
    json_date_reading,
    local_micros,
    timestamp_reading,
)

_BLANK = " \t\r\n"
# Below this, halving costs more than reading line by line.
_FEW_LINES = 8
_FLOAT_WORDS = {
    "NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "+INF": "inf", "-Infinity": "-inf", "-INF": "-inf",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The columns to read, without the corrupt-record column; `zone` is where times without one are."""

    schema: pa.Schema
    zone: str

    def parse(self, lines: pa.Array) -> Parsed:
        lines = lines.filter(pc.not_equal(pc.utf8_trim(lines, _BLANK), ""))
        plain = _is_plain(lines)
        pieces = []
        at = 0
        for is_plain, count in _runs(plain):
            part = lines.slice(at, count)
            pieces.append(self._in_bulk(part) if is_plain else self._one_by_one(part))
            at += count
        return joined(pieces) if pieces else self._one_by_one(lines)

    def _in_bulk(self, lines: pa.Array) -> Parsed:
        table = self._arrow_rows(lines)
        if table is not None:
            return self._converted(table, lines)
        if len(lines) <= _FEW_LINES:
            return self._one_by_one(lines)
        half = len(lines) // 2
        return joined([self._in_bulk(lines.slice(0, half)), self._in_bulk(lines.slice(half))])

    def _arrow_rows(self, lines: pa.Array) -> pa.Table | None:
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(whole, "\n")[0].as_buffer()
        fields = [pa.field(field.name, _token_type(field.type)) for field in self.schema]
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=max(1024, text.size + 1)),
                parse_options=pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
            )
            # Arrow's parser takes decimals of more digits than their type has.
            table.validate(full=True)
        except pa.ArrowInvalid:
            return None
        # As many rows as lines, each line an object from its first letter to its last: so each row is one line.
        return table if table.num_rows == len(lines) else None

    def _converted(self, table: pa.Table, lines: pa.Array) -> Parsed:
        arrays, masks = [], []
        for field in self.schema:
            column = table.column(field.name).combine_chunks()
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            reading = self._time_reading(field.type)
            if reading is None:
                arrays.append(array)
                continue
            read = reading.column(array)
            arrays.append(read.values)
            masks.append(read.bad)
        return Parsed(arrays, either(masks), lines)

    def _time_reading(self, type_: pa.DataType) -> Reading | None:
        if pa.types.is_date32(type_):
            return json_date_reading(type_)
        return timestamp_reading(type_, zone=self.zone) if pa.types.is_timestamp(type_) else None

    def _one_by_one(self, lines: pa.Array) -> Parsed:
        values: list[list[Any]] = [[] for _ in self.schema]
        bad: list[bool] = []
        records: list[str] = []
        for line in lines.to_pylist():
            rows, is_bad = self._rows_of(line)
            for row in rows:
                for column, value in zip(values, row, strict=True):
                    column.append(value)
            bad += [is_bad] * len(rows)
            records += [line] * len(rows)
        arrays = [pa.array(column, field.type) for column, field in zip(values, self.schema, strict=True)]
        return Parsed(arrays, pa.array(bad, pa.bool_()) if any(bad) else None, pa.array(records, pa.string()))

    def _rows_of(self, line: str) -> tuple[list[list[Any]], bool]:
        """A line gives one row, or one for each object of an array; one bad field makes all of them corrupt."""
        try:
            found = read_records(line, self.schema.names)
        except Malformed:
            return [[None] * len(self.schema)], True
        rows, is_bad = [], False
        for record in found or ():
            row, has_bad = self._row_of(record)
            rows.append(row)
            is_bad = is_bad or has_bad
        return rows, is_bad

    def _row_of(self, record: Record) -> tuple[list[Any], bool]:
        row: list[Any] = [None] * len(self.schema)
        is_bad = False
        for name, token in record:
            index = self.schema.get_field_index(name)
            if index < 0:
                continue
            try:
                row[index] = None if token.kind is Kind.NULL else self._value(token, self.schema.field(index).type)
            except Unreadable:
                is_bad = True
        return row, is_bad

    def _value(self, token: Token, type_: pa.DataType) -> Any:
        if token.kind is Kind.BROKEN:
            raise Unreadable
        if pa.types.is_string(type_):
            return token.text
        if pa.types.is_timestamp(type_):
            return self._time(token, type_)
        return _converter(type_)(token, type_)

    def _time(self, token: Token, type_: pa.DataType) -> int:
        if token.kind is Kind.STRING and token.text:
            return local_micros(token.text) if type_.tz is None else instant_micros(token.text, zone=self.zone)
        if token.kind is Kind.INTEGER and type_.tz is not None:
            return _within(int(token.text), 64) * 1_000_000
        raise Unreadable


def can_read(type_: pa.DataType) -> bool:
    is_type = pa.types
    checks: Sequence[Callable[[pa.DataType], bool]] = (
        is_type.is_string, is_type.is_signed_integer, is_type.is_floating, is_type.is_boolean, is_type.is_decimal,
        is_type.is_date32, is_type.is_timestamp,
    )  # fmt: skip
    return any(check(type_) for check in checks)


def _is_plain(lines: pa.Array) -> pa.Array:
    """Lines that are one object at most, and use no spelling that Arrow and Jackson read differently."""
    is_object = pc.match_substring_regex(lines, r"^[ \t\r\n]*\{(?s:.*)\}[ \t\r\n]*$")
    return pc.and_not(is_object, pc.match_substring_regex(lines, "NaN|Inf|-0[^0-9.eE]"))


def _runs(mask: pa.Array) -> list[tuple[bool, int]]:
    runs = pc.run_end_encode(mask)
    ends = [0, *runs.run_ends.to_pylist()]
    return [(value, end - start) for value, start, end in zip(runs.values.to_pylist(), ends, ends[1:], strict=False)]


def _token_type(type_: pa.DataType) -> pa.DataType:
    """Times come as strings, and are read by Spark's rules for them."""
    return pa.string() if pa.types.is_date(type_) or pa.types.is_timestamp(type_) else type_


def _converter(type_: pa.DataType) -> Callable[[Token, pa.DataType], Any]:
    if pa.types.is_integer(type_):
        return _integer
    if pa.types.is_floating(type_):
        return _float
    if pa.types.is_boolean(type_):
        return _boolean
    return _decimal if pa.types.is_decimal(type_) else _date


def _integer(token: Token, type_: pa.DataType) -> int:
    if token.kind is not Kind.INTEGER:
        raise Unreadable
    value = int(token.text)
    if type_.bit_width == 8:
        # Jackson lets a byte go up to 255 and wraps it.
        if not -128 <= value <= 255:
            raise Unreadable
        return value if value < 128 else value - 256
    return _within(value, type_.bit_width)


def _within(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Unreadable
    return value


def _float(token: Token, type_: pa.DataType) -> float:
    if token.text in _FLOAT_WORDS and token.kind in (Kind.STRING, Kind.FLOAT):
        return float(_FLOAT_WORDS[token.text])
    if token.kind not in (Kind.INTEGER, Kind.FLOAT):
        raise Unreadable
    # Jackson reads an integer first, and an integer has no negative zero.
    return java_float("0" if token.text == "-0" else token.text, type_)


def _boolean(token: Token, type_: pa.DataType) -> bool:
    if token.kind not in (Kind.TRUE, Kind.FALSE):
        raise Unreadable
    return token.kind is Kind.TRUE


def _decimal(token: Token, type_: pa.DataType) -> Any:
    if token.kind in (Kind.INTEGER, Kind.FLOAT):
        return java_decimal(token.text, type_)
    if token.kind is Kind.STRING and token.text:
        return java_decimal(token.text.replace(",", ""), type_)
    raise Unreadable


def _date(token: Token, type_: pa.DataType) -> int:
    if token.kind is not Kind.STRING or not token.text:
        raise Unreadable
    return int(json_date_reading(type_).scalar(token.text))
