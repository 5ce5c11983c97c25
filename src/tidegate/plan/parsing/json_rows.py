"""JSON texts as columns, with the answers of Spark's json reader.

Plain texts are parsed in bulk; a bulk that Arrow refuses is halved until the texts that are not plain stand alone,
and these are taken apart one by one. Arrow is asked only where its answer is Spark's: see `_is_plain`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.parsing.json_cursor import READER_GRAMMAR, Grammar, JsonCursor, JsonError, Token
from tidegate.plan.parsing.json_values import JsonReading, Partial
from tidegate.plan.parsing.parsed import Parsed, either, joined, runs
from tidegate.plan.parsing.text_values import Reading, Unreadable, json_date_reading, timestamp_reading

BLANK = " \t\r\n"
# Below this, halving costs more than reading text by text.
_FEW_TEXTS = 8
# Jackson's limit for objects and arrays within one another; Arrow has none.
_MOST_BRACKETS = 1000

Row: TypeAlias = dict[str, Any]
# The rows of one text, and whether it is a corrupt one.
RowsOf: TypeAlias = Callable[[str], tuple[list[Row], bool]]


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The columns to read; `zone` is where times without one are. `rows_of` reads a text that is not plain.

    `wrapped_as`: the texts are no objects, but the values of this one column.
    """

    schema: pa.Schema
    zone: str
    rows_of: RowsOf
    wrapped_as: str | None = None

    def parse(self, texts: pa.Array) -> Parsed:
        """`texts` has neither nulls nor blank ones."""
        if not _arrow_can_read(self.schema):
            return self._one_by_one(texts)
        return self._in_pieces(texts, self._is_plain(texts), self._in_bulk)

    def _in_pieces(self, texts: pa.Array, plain: pa.Array, read_plain: Callable[[pa.Array], Parsed]) -> Parsed:
        pieces = []
        at = 0
        for is_plain, count in runs(plain):
            part = texts.slice(at, count)
            pieces.append(read_plain(part) if is_plain else self._one_by_one(part))
            at += count
        return joined(pieces) if pieces else self._one_by_one(texts)

    def _is_plain(self, texts: pa.Array) -> pa.Array:
        """Texts that are one object (or array) at most, and use no spelling that Arrow and Jackson read differently."""
        ends = r"\{(?s:.*)\}" if self.wrapped_as is None else r"\[(?s:.*)\]"
        is_whole = pc.match_substring_regex(texts, rf"^[ \t\r\n]*{ends}[ \t\r\n]*$")
        brackets = pc.count_substring_regex(texts, r"[\[{]")
        is_shallow = pc.less_equal(brackets, pa.scalar(_MOST_BRACKETS, pa.int32()))
        return pc.and_not(pc.and_(is_whole, is_shallow), pc.match_substring_regex(texts, "NaN|Inf|-0[^0-9.eE]"))

    def _in_bulk(self, texts: pa.Array) -> Parsed:
        table = self._arrow_rows(texts)
        if table is not None:
            return self._converted(table, texts)
        if len(texts) <= _FEW_TEXTS:
            return self._one_by_one(texts)
        half = len(texts) // 2
        return joined([self._in_bulk(texts.slice(0, half)), self._in_bulk(texts.slice(half))])

    def _arrow_rows(self, texts: pa.Array) -> pa.Table | None:
        if self.wrapped_as is not None:
            texts = pc.binary_join_element_wise(f'{{"{self.wrapped_as}":', texts, "}", "")
        whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
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
        # As many rows as texts, each text an object from its first letter to its last: so each row is one text.
        return table if table.num_rows == len(texts) else None

    def _converted(self, table: pa.Table, texts: pa.Array) -> Parsed:
        arrays, masks = [], []
        for field in self.schema:
            column = table.column(field.name).combine_chunks()
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            values, bad = self._with_times(array, field.type)
            arrays.append(values)
            masks.append(bad)
        bad = either(masks)
        if bad is None:
            return Parsed(arrays, None, texts)
        # What a time that cannot be read costs beside itself depends on where it stands.
        part = pa.Table.from_arrays(arrays, schema=self.schema)
        at = 0
        pieces = []
        for is_bad, count in runs(bad):
            here = texts.slice(at, count)
            good = [column.combine_chunks() for column in part.slice(at, count).columns]
            pieces.append(self._one_by_one(here) if is_bad else Parsed(good, None, here))
            at += count
        return joined(pieces)

    def _with_times(self, array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
        """Texts of times as times, at any depth; and which rows have one that is none."""
        if array.type == type_:
            return array, None
        if pa.types.is_struct(type_):
            parts = [self._with_times(array.field(at), field.type) for at, field in enumerate(type_)]
            made = pa.StructArray.from_arrays([part for part, _ in parts], fields=list(type_), mask=array.is_null())
            return made, either([bad for _, bad in parts])
        if pa.types.is_list(type_):
            values, bad = self._with_times(array.flatten(), type_.value_type)
            offsets = _offsets(array)
            made = pa.ListArray.from_arrays(offsets, values, type=type_, mask=array.is_null())
            return made, None if bad is None else _rows_with(offsets, bad)
        read = self._time_reading(type_).column(array)
        return read.values, read.bad

    def _time_reading(self, type_: pa.DataType) -> Reading:
        return json_date_reading(type_) if pa.types.is_date32(type_) else timestamp_reading(type_, zone=self.zone)

    def _one_by_one(self, texts: pa.Array) -> Parsed:
        rows: list[Row] = []
        bad: list[bool] = []
        records: list[str] = []
        for text in texts.to_pylist():
            found, is_bad = self.rows_of(text)
            rows += found
            bad += [is_bad] * len(found)
            records += [text] * len(found)
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in self.schema]
        return Parsed(arrays, pa.array(bad, pa.bool_()) if any(bad) else None, pa.array(records, pa.string()))


def record_columns(schema: pa.Schema, *, zone: str) -> JsonColumns:
    """Lines of a file: each gives one row, or one for each object of an array; one bad field makes all corrupt."""
    # Bytes are taken as they stand, so that no number is printed anew.
    reading = JsonReading(READER_GRAMMAR, zone, Digits.SHORTEST, raw_strings=True)
    return JsonColumns(schema, zone, _rows_of_record(reading, pa.struct(list(schema))))


def struct_columns(schema: pa.Schema, *, zone: str, grammar: Grammar, digits: Digits) -> JsonColumns:
    """Texts of a column that are to be objects of these fields: each gives one row."""
    read = JsonReading(grammar, zone, digits, raw_strings=False).object_of(pa.struct(list(schema)))
    nothing: Row = dict.fromkeys(schema.names)

    def rows_of(text: str) -> tuple[list[Row], bool]:
        row, is_bad = _read_root(text, grammar, Token.START_OBJECT, read)
        return [nothing if row is None else row], is_bad

    return JsonColumns(schema, zone, rows_of)


def value_column(type_: pa.DataType, *, zone: str, grammar: Grammar, digits: Digits) -> JsonColumns:
    """Texts of a column that are to be arrays or maps: each gives one row of one column."""
    reading = JsonReading(grammar, zone, digits, raw_strings=False)
    name = "value"

    def rows_of(text: str) -> tuple[list[Row], bool]:
        if pa.types.is_map(type_):
            value, is_bad = _read_root(text, grammar, Token.START_OBJECT, reading.entries_of(type_))
        elif pa.types.is_struct(type_.value_type) and text.lstrip(BLANK).startswith("{"):
            # Spark takes an object for an array of one.
            element, is_bad = _read_root(text, grammar, Token.START_OBJECT, reading.object_of(type_.value_type))
            value = None if element is None else [element]
        else:
            value, is_bad = _read_root(text, grammar, Token.START_ARRAY, reading.elements_of(type_))
        return [{name: value}], is_bad

    return JsonColumns(pa.schema([(name, type_)]), zone, rows_of, wrapped_as=name)


def _read_root(text: str, grammar: Grammar, start: Token, read: Callable[[JsonCursor], Any]) -> tuple[Any, bool]:
    """The value, or None, and whether the text is a corrupt one."""
    cursor = JsonCursor(text, grammar)
    try:
        return (read(cursor), False) if cursor.next() is start else (None, True)
    except Partial as partial:
        return partial.value, True
    except (JsonError, Unreadable):
        return None, True


def _rows_of_record(reading: JsonReading, type_: pa.DataType) -> RowsOf:
    read_object, read_value = reading.object_of(type_), reading.converter(type_)
    nothing: Row = dict.fromkeys(field.name for field in type_)

    def read(cursor: JsonCursor) -> list[Row]:
        if cursor.token is Token.START_OBJECT:
            return [read_object(cursor)]
        return _read_array(cursor, read_value)

    def rows_of(text: str) -> tuple[list[Row], bool]:
        # Of bytes Jackson leaves such a mark out.
        cursor = JsonCursor(text.removeprefix("\ufeff"), reading.grammar)
        try:
            match cursor.next():
                case Token.START_OBJECT | Token.START_ARRAY:
                    return read(cursor), False
                case _:
                    return [nothing], True
        except Partial as partial:
            return partial.value if isinstance(partial.value, list) else [partial.value], True
        except (JsonError, Unreadable):
            return [nothing], True

    return rows_of


def _read_array(cursor: JsonCursor, read_value: Callable[[JsonCursor], Any]) -> list[Row]:
    rows: list[Row] = []
    is_bad = False
    while cursor.next() not in (None, Token.END_ARRAY):
        try:
            row = read_value(cursor)
        except Partial as partial:
            row, is_bad = partial.value, True
        if row is None:
            raise Unreadable
        rows.append(row)
    if is_bad:
        raise Partial(rows)
    return rows


def _arrow_can_read(schema: pa.Schema) -> bool:
    """Arrow has no maps of JSON objects."""
    return not any(_has_map(field.type) for field in schema)


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return True
    return pa.types.is_nested(type_) and any(_has_map(type_.field(at).type) for at in range(type_.num_fields))


def _token_type(type_: pa.DataType) -> pa.DataType:
    """Times come as strings, and are read by Spark's rules for them."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _token_type(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field(type_.value_field.name, _token_type(type_.value_type)))
    return pa.string() if pa.types.is_date(type_) or pa.types.is_timestamp(type_) else type_


def _offsets(lists: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _rows_with(offsets: pa.Array, bad: pa.Array) -> pa.Array:
    """Which lists have a bad element."""
    counts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(pc.cast(bad, pa.int32()))])
    at = counts.take(offsets)
    return pc.not_equal(at.slice(1), at.slice(0, len(at) - 1))
