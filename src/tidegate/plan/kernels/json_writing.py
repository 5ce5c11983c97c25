"""to_json: structs, arrays and maps as texts, spelled as Jackson spells them for Spark.

Texts are joined column by column, from the innermost values outwards. Binaries and intervals are refused, and floats on
a Java whose digits for them are not known here.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant, constants
from tidegate.plan.kernels.instants import local_parts
from tidegate.plan.kernels.json_escapes import json_escaped
from tidegate.plan.kernels.lists import list_array, lists_of
from tidegate.plan.kernels.text import per_distinct, require_utf8
from tidegate.plan.kernels.text_casts import text_cast
from tidegate.plan.kernels.time_formats import Field, print_times
from tidegate.plan.kernels.values import Kernel, Value, as_array, numpy_of, spread, unsupported
from tidegate.plan.kernels.zones import Zone, zone_of
from tidegate.plan.key_groups import validity_of
from tidegate.plan.parsing.java_doubles import Digits, double_text

TEXT = pa.string()
# Null where the value is.
Spell: TypeAlias = Callable[[pa.Array], pa.Array]
_EMPTY, _COMMA, _NULL, _QUOTE = (constant(text, TEXT) for text in ("", ",", "null", '"'))
_DATE = (Field("y", 4), "-", Field("M", 2), "-", Field("d", 2))
_TIME = (*_DATE, "T", Field("H", 2), ":", Field("m", 2), ":", Field("s", 2), ".", Field("S", 3))
_NOT_NUMBERS = constants(["NaN", "Infinity", "-Infinity"], TEXT)


def _to_json(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    if not pa.types.is_nested(child.type):
        raise unsupported("StructsToJson", child.type)
    spell = _Spelling(call).of(child.type)

    def run(rows: pa.RecordBatch) -> Value:
        return spell(as_array(child.run(rows), rows.num_rows))

    return Kernel(run, TEXT, raises=child.raises)


class _Spelling:
    def __init__(self, call: Call) -> None:
        self._digits = Digits(call.setting("digits") or Digits.SHORTEST.value)
        self._drops_nulls = call.setting("ignoreNullFields") != "false"
        self._call = call

    def of(self, type_: pa.DataType) -> Spell:
        if pa.types.is_struct(type_):
            return self._struct(type_)
        if pa.types.is_map(type_):
            return self._map(type_)
        if pa.types.is_list(type_):
            return self._array(type_)
        if pa.types.is_string(type_):
            return _string
        if pa.types.is_signed_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_decimal(type_):
            return lambda values: pc.cast(values, TEXT)
        if pa.types.is_floating(type_):
            return self._float(type_)
        if pa.types.is_date32(type_):
            return _date
        if pa.types.is_timestamp(type_):
            zone = zone_of(self._call, type_)
            return lambda values: _timestamp(values, zone)
        raise unsupported("StructsToJson", type_)

    def _struct(self, type_: pa.DataType) -> Spell:
        spells = [(_name(field.name), self.of(field.type)) for field in type_]

        def spell(values: pa.Array) -> pa.Array:
            # Each field brings its comma, so the first one of a row is cut off again.
            fields = [self._field(name, one(part)) for (name, one), part in zip(spells, values.flatten(), strict=True)]
            inner = _joined(*(pc.fill_null(field, _EMPTY) for field in fields))
            whole = _joined(constant("{", TEXT), pc.utf8_slice_codeunits(inner, 1), constant("}", TEXT))
            return pc.if_else(values.is_valid(), whole, constant(None, TEXT))

        return spell

    def _field(self, name: str, texts: pa.Array) -> pa.Array:
        if not self._drops_nulls:
            texts = pc.fill_null(texts, _NULL)
        return _joined(constant(f",{name}:", TEXT), texts)

    def _array(self, type_: pa.DataType) -> Spell:
        one = self.of(type_.value_type)
        return lambda values: _listed(values, lambda elements: pc.fill_null(one(elements), _NULL), "[]")

    def _map(self, type_: pa.DataType) -> Spell:
        if not pa.types.is_string(type_.key_type):
            raise unsupported("StructsToJson", type_)
        item = self.of(type_.item_type)

        def entries(elements: pa.Array) -> pa.Array:
            key, value = elements.field(0), elements.field(1)
            return _joined(_string(key), constant(":", TEXT), pc.fill_null(item(value), _NULL))

        return lambda values: _listed(values, entries, "{}")

    def _float(self, type_: pa.DataType) -> Spell:
        if self._digits is Digits.EARLIER:
            if type_ != pa.float64():
                raise unsupported("StructsToJson before Java 19", type_)
            return lambda values: _number(per_distinct(values, lambda value: double_text(value, Digits.EARLIER), TEXT))
        stages = text_cast(type_, TEXT)
        assert stages is not None, "floats can be texts"
        return lambda values: _number(stages[0].convert(values))


def _listed(values: pa.Array, spell: Spell, brackets: str) -> pa.Array:
    lists = lists_of(values)
    texts = list_array(pa.list_(TEXT), lists.lengths, spell(lists.elements()), None)
    whole = _joined(constant(brackets[0], TEXT), pc.binary_join(texts, _COMMA), constant(brackets[1], TEXT))
    return pc.if_else(values.is_valid(), whole, constant(None, TEXT))


def _name(name: str) -> str:
    return str(_string(constants([name], TEXT))[0].as_py())


def _number(texts: pa.Array) -> pa.Array:
    """What is no number stands in quotes."""
    return pc.if_else(pc.is_in(texts, value_set=_NOT_NUMBERS), _joined(_QUOTE, texts, _QUOTE), texts)


def _string(values: pa.Array) -> pa.Array:
    require_utf8(values, "to_json")
    return _joined(_QUOTE, json_escaped(values), _QUOTE)


def _date(values: pa.Array) -> pa.Array:
    def spelled(dense: pa.Array) -> pa.Array:
        days = numpy_of(dense).astype(np.int64)
        return print_times(_DATE, days, np.zeros_like(days), np.zeros_like(days))

    return _where_valid(values, spelled)


def _timestamp(values: pa.Array, zone: Zone) -> pa.Array:
    """Milliseconds, and the offset from UTC where the type has a zone."""

    def spelled(dense: pa.Array) -> pa.Array:
        micros = numpy_of(dense).astype(np.int64)
        days, second, rest = local_parts(zone, micros)
        texts = print_times(_TIME, days, second, rest)
        if values.type.tz is None:
            return texts
        return _joined(texts, _offsets(days * 86_400 + second - np.floor_divide(micros, 1_000_000)))

    return _where_valid(values, spelled)


def _where_valid(values: pa.Array, spelled: Spell) -> pa.Array:
    valid = validity_of(values)
    texts = spelled(values if valid is None else values.drop_null())
    return _joined(_QUOTE, texts if valid is None else spread(texts, values.is_valid()), _QUOTE)


def _offsets(seconds: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    distinct, places = np.unique(seconds, return_inverse=True)
    texts = constants([_offset(int(one)) for one in distinct], TEXT)
    indices = np.ascontiguousarray(places.astype(np.int64))
    return texts.take(pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)]))


def _offset(seconds: int) -> str:
    """Z for none at all, and seconds only where an old offset has some."""
    if seconds == 0:
        return "Z"
    minutes, rest = divmod(abs(seconds), 60)
    text = f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{rest:02}" if rest else text


def _joined(*parts: Value) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _EMPTY)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {"StructsToJson": _to_json}
