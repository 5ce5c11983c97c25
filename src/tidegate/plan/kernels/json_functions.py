"""Functions that read JSON texts: from_json, get_json_object, json_tuple and the like.

Plain texts are read in bulk; the others one by one, each distinct text once. A text that is no UTF-8 is refused when
it is met: Java would replace its bytes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.lists import struct_array
from tidegate.plan.kernels.text import constant_text, per_distinct, require_types, require_utf8
from tidegate.plan.kernels.values import Kernel, Value, as_array, spread, unsupported
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.parsing.json_copy import copy_of, java_text
from tidegate.plan.parsing.json_cursor import FUNCTION_GRAMMAR, Grammar, JsonCursor, JsonError, Token, is_surrogate
from tidegate.plan.parsing.json_rows import BLANK, JsonColumns, struct_columns, value_column
from tidegate.plan.parsing.json_values import can_convert
from tidegate.plan.parsing.parsed import Parsed

TEXT = pa.string()
_PATH = re.compile(r"\$(?:\.[^.\[\s*'?]+|\['[^'?\s*]+'\]|\[[0-9]{1,9}\])*")
_STEP = re.compile(r"\.([^.\[]+)|\['([^']+)'\]|\[([0-9]+)\]")

Step = str | int


def _from_json(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types("JsonToStructs", arguments, TEXT)
    corrupt = call.setting("columnNameOfCorruptRecord")
    fields = [field for field in call.type if field.name != corrupt] if pa.types.is_struct(call.type) else []
    wanted = pa.struct(fields) if pa.types.is_struct(call.type) else call.type
    if not can_convert(wanted):
        raise unsupported("JsonToStructs", call.type)
    columns = _columns(call, wanted)
    fails_fast = (call.setting("mode") or "").upper() == "FAILFAST"

    def run(rows: pa.RecordBatch) -> Value:
        texts = as_array(arguments[0].run(rows), rows.num_rows)
        present = _present(texts, "from_json")
        try:
            parsed = columns.parse(texts.filter(present))
        except Damaged as unknown:
            raise UserCodeFailure(str(unknown)) from unknown
        if parsed.bad is not None and fails_fast:
            text = str(parsed.records.filter(parsed.bad)[0])
            raise UserCodeFailure(
                f"from_json met a malformed record ({text[:100]!r}) and 'mode' is FAILFAST: "
                f"correct the record, or choose PERMISSIVE."
            )
        return _where(present, _value_of(parsed, call.type, corrupt))

    return Kernel(run, call.type, raises=fails_fast or arguments[0].raises)


def _columns(call: Call, wanted: pa.DataType) -> JsonColumns:
    zone = call.setting("timeZone") or call.setting("timeZoneId") or "UTC"
    grammar = Grammar(
        single_quotes=call.setting("allowSingleQuotes") != "false",
        non_numeric_numbers=call.setting("allowNonNumericNumbers") != "false",
        control_characters=call.setting("allowUnquotedControlChars") == "true",
        any_escape=call.setting("allowBackslashEscapingAnyCharacter") == "true",
    )
    digits = _digits(call)
    if pa.types.is_struct(wanted):
        return struct_columns(pa.schema(list(wanted)), zone=zone, grammar=grammar, digits=digits)
    return value_column(wanted, zone=zone, grammar=grammar, digits=digits)


def _value_of(parsed: Parsed, type_: pa.DataType, corrupt: str | None) -> pa.Array:
    if not pa.types.is_struct(type_):
        return parsed.columns[0]
    read = iter(parsed.columns)
    parts = [_corrupt(parsed) if field.name == corrupt else next(read) for field in type_]
    return struct_array(type_, parts, len(parsed.records), None)


def _corrupt(parsed: Parsed) -> pa.Array:
    if parsed.bad is None:
        return pa.nulls(len(parsed.records), TEXT)
    return pc.if_else(parsed.bad, parsed.records, constant(None, TEXT))


def _present(texts: pa.Array, function: str) -> pa.Array:
    """Neither null nor blank: Spark gives null for both."""
    require_utf8(texts, function)
    is_blank = pc.equal(pc.utf8_trim(texts, BLANK), constant("", TEXT))
    return pc.invert(pc.fill_null(is_blank, constant(True, pa.bool_())))


def _where(present: pa.Array, part: pa.Array) -> pa.Array:
    return part if present.true_count == len(present) else spread(part, present)


def _digits(call: Call) -> Digits:
    return Digits(call.setting("digits") or Digits.SHORTEST.value)


def _get_json_object(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types("GetJsonObject", arguments, TEXT, TEXT)
    path = constant_text(arguments[1], "GetJsonObject", "path")
    if _PATH.fullmatch(path) is None:
        raise unsupported(f"GetJsonObject with the path {path!r}, other than fields and positions,", TEXT)
    steps = tuple(_step(found) for found in _STEP.finditer(path))
    digits = _digits(call)
    return _of_each_text(call, arguments[0], lambda cursor: _at_path(cursor, steps, digits))


def _step(found: re.Match[str]) -> Step:
    dotted, quoted, position = found.groups()
    return int(position) if position is not None else dotted or quoted


def _at_path(cursor: JsonCursor, path: tuple[Step, ...], digits: Digits) -> str | None:
    """What stands at the path from the present token on; the cursor stands at its end then."""
    if not path:
        return _written(cursor, digits)
    step, rest = path[0], path[1:]
    if isinstance(step, str) and cursor.token is Token.START_OBJECT:
        return _in_object(cursor, step, rest, digits)
    if isinstance(step, int) and cursor.token is Token.START_ARRAY:
        return _in_array(cursor, step, rest, digits)
    cursor.skip_children()
    return None


def _in_object(cursor: JsonCursor, name: str, rest: tuple[Step, ...], digits: Digits) -> str | None:
    """The first field of the name that has something there; what follows is read all the same, as it may be broken."""
    found: str | None = None
    while (token := cursor.next()) is not Token.END_OBJECT:
        if found is None and token is Token.NAME and cursor.name() == name:
            if cursor.next() is not Token.NULL:
                found = _at_path(cursor, rest, digits)
        else:
            cursor.skip_children()
    return found


def _in_array(cursor: JsonCursor, position: int, rest: tuple[Step, ...], digits: Digits) -> str | None:
    cursor.next()
    for _ in range(position):
        if cursor.token is Token.END_ARRAY:
            return None
        cursor.skip_children()
        cursor.next()
    if cursor.token is Token.END_ARRAY:
        return None
    found = _at_path(cursor, rest, digits)
    while cursor.next() is not Token.END_ARRAY:
        cursor.skip_children()
    return found


def _written(cursor: JsonCursor, digits: Digits) -> str:
    if cursor.token is not Token.STRING:
        return copy_of(cursor, digits)
    text = cursor.text()
    if any(map(is_surrogate, text)):
        # Half a pair has no UTF-8, and Jackson's generator says so.
        raise JsonError
    return text


def _json_tuple_field(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT)
    name = constant_text(arguments[1], "JsonTuple", "field")
    digits = _digits(call)

    def read(cursor: JsonCursor) -> str | None:
        found: str | None = None
        if cursor.token is not Token.START_OBJECT:
            return None
        while (token := cursor.next()) is not Token.END_OBJECT:
            if token is Token.NAME and cursor.name() == name and cursor.next() is not Token.NULL:
                found = _written(cursor, digits)
            cursor.skip_children()
        return found

    return _of_each_text(call, arguments[0], read)


def _array_length(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types("json_array_length", arguments, TEXT)

    def read(cursor: JsonCursor) -> str | None:
        if cursor.token is not Token.START_ARRAY:
            return None
        length = 0
        while cursor.next() is not Token.END_ARRAY:
            length += 1
            cursor.skip_children()
        return str(length)

    lengths = _of_each_text(call, arguments[0], read)
    return Kernel(lambda rows: pc.cast(lengths.run(rows), pa.int32()), call.type, raises=lengths.raises)


def _object_keys(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types("json_object_keys", arguments, TEXT)

    def run(rows: pa.RecordBatch) -> Value:
        texts = as_array(arguments[0].run(rows), rows.num_rows)
        encoded = _checked(texts, call).dictionary_encode()
        keys = [_read_text(text, _keys) for text in encoded.dictionary.to_pylist()]
        return pa.array(keys, call.type).take(encoded.indices)

    return Kernel(run, call.type, raises=arguments[0].raises)


def _keys(cursor: JsonCursor) -> list[str] | None:
    if cursor.token is not Token.START_OBJECT:
        return None
    keys: list[str] = []
    while True:
        token = cursor.next()
        if token is Token.NAME:
            token = cursor.next()
        name = cursor.name()
        if token is None or name is None:
            return keys
        keys.append(java_text(name))
        cursor.skip_children()


def _of_each_text(call: Call, argument: Kernel, read: Callable[[JsonCursor], str | None]) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        texts = _checked(as_array(argument.run(rows), rows.num_rows), call)
        return per_distinct(texts, lambda text: _read_text(text, read), TEXT)

    return Kernel(run, TEXT, raises=argument.raises)


def _checked(texts: pa.Array, call: Call) -> pa.Array:
    require_utf8(texts, call.function)
    return texts


def _read_text(text: str | None, read: Callable[[JsonCursor], Any]) -> Any:
    """Null for a text that is no JSON as far as it is read."""
    if text is None:
        return None
    cursor = JsonCursor(text, FUNCTION_GRAMMAR)
    try:
        return None if cursor.next() is None else read(cursor)
    except JsonError:
        return None


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "JsonToStructs": _from_json,
    "GetJsonObject": _get_json_object,
    "JsonTuple": _json_tuple_field,
    "JsonExpressionUtils.lengthOfJsonArray": _array_length,
    "JsonExpressionUtils.jsonObjectKeys": _object_keys,
}
