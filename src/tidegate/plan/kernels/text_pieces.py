"""Texts taken apart by a constant pattern, or put together by a constant format: split, regexp_extract_all,
regexp_instr, format_string.
"""

import re
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call
from tidegate.plan.kernels import java_regex
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.java_regex import JavaPattern
from tidegate.plan.kernels.lists import list_array, lists_of
from tidegate.plan.kernels.text import constant_integer, constant_text, per_distinct, require_types, require_utf8
from tidegate.plan.kernels.values import Kernel, Value, as_array, unsupported

TEXT, INT = pa.string(), pa.int32()
_FORMAT_PARTS = re.compile(r"%%|%n|%[sd]|%|[^%]+")


def build_split(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """At every match; with a limit above 0 into so many pieces at most."""
    require_types(call.function, arguments, TEXT, TEXT, INT)
    pattern = _pattern(call, arguments[1])
    limit = constant_integer(arguments[2], call.function, "limit")
    if pattern.has_end or pattern.has_begin:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} at the beginning or end of the text")
    searched = pattern.for_re2()
    most = limit - 1 if limit > 0 else None

    def run(values: pa.Array) -> pa.Array:
        pieces = lists_of(pc.split_pattern_regex(values, searched, max_splits=most) if most != 0 else _alone(values))
        return list_array(call.type, pieces.lengths, pieces.elements(), pieces.valid)

    return _kernel(call, arguments[0], run)


def build_extract_all(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """A group of every match; empty where the group took no part."""
    require_types(call.function, arguments, TEXT, TEXT, INT)
    pattern = _pattern(call, arguments[1])
    group = constant_integer(arguments[2], call.function, "group")
    if not 0 <= group <= pattern.groups or group in pattern.repeated_groups:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} of group {group}")
    searched = re.compile(pattern.for_python([group]))

    def found(text: str) -> list[str]:
        return [match.group(f"g{group}") or "" for match in searched.finditer(text)]

    def run(values: pa.Array) -> pa.Array:
        encoded = values.dictionary_encode()
        lists = [None if text is None else found(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(lists, call.type).take(encoded.indices)

    return _kernel(call, arguments[0], run)


def build_instr(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Where the first match begins, from 1, in Java's characters of 16 bits; 0 if there is none."""
    require_types(call.function, arguments, TEXT, TEXT, INT)
    searched = re.compile(_pattern(call, arguments[1]).for_python())
    constant_integer(arguments[2], call.function, "group")

    def place(text: str) -> str:
        found = searched.search(text)
        return "0" if found is None else str(len(text[: found.start()].encode("utf-16-le")) // 2 + 1)

    return _kernel(call, arguments[0], lambda values: pc.cast(per_distinct(values, place, TEXT), INT))


def build_format(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """`%s` of texts and integers and `%d` of integers, without flags; a null is written as such."""
    given, *values = arguments
    text = constant_text(given, call.function, "format")
    parts = _FORMAT_PARTS.findall(text)
    marks = [part for part in parts if part in ("%s", "%d")]
    fits = len(marks) == len(values) and all(map(_can_print, marks, values))
    if not fits or any(part in ("%", "%n") for part in parts):
        raise unsupported(f"{call.function} with the format {text!r}", *(value.type for value in values))

    def run(rows: pa.RecordBatch) -> Value:
        texts = iter(_text(value, rows) for value in values)
        pieces = [next(texts) if part in ("%s", "%d") else constant(part.replace("%%", "%"), TEXT) for part in parts]
        joined = pc.binary_join_element_wise(constant("", TEXT), *pieces, constant("", TEXT))
        return as_array(joined, rows.num_rows)

    return Kernel(run, TEXT, raises=any(value.raises for value in values))


def _can_print(mark: str, value: Kernel) -> bool:
    return bool(pa.types.is_signed_integer(value.type)) or (mark == "%s" and value.type == TEXT)


def _text(value: Kernel, rows: pa.RecordBatch) -> pa.Array:
    column = as_array(value.run(rows), rows.num_rows)
    return pc.fill_null(pc.cast(column, TEXT), constant("null", TEXT))


def _alone(values: pa.Array) -> pa.Array:
    return pc.split_pattern(values, "x", max_splits=0)


def _pattern(call: Call, given: Kernel) -> JavaPattern:
    pattern = java_regex.parse(constant_text(given, call.function, "pattern"))
    if pattern.matches_empty:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} with a pattern that matches nothing at all")
    return pattern


def _kernel(call: Call, child: Kernel, apply: Callable[[pa.Array], pa.Array]) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return apply(values)

    return Kernel(run, call.type, raises=child.raises)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "StringSplit": build_split,
    "RegExpExtractAll": build_extract_all,
    "RegExpInStr": build_instr,
    "FormatString": build_format,
}
