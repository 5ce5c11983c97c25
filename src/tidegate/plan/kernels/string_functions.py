"""String functions by positions and pieces: trim, substring, locate, repeat, replace, pad, translate.

All count code points, as Spark does; positions and searched texts that steer them are constants.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.text import (
    byte_slices,
    bytes_of,
    code_points,
    column_of,
    constant_integer,
    constant_text,
    per_distinct,
    require_types,
    require_utf8,
    run_in_order,
    strings,
    text_slices,
    used_bytes,
)
from tidegate.plan.kernels.values import Kernel, Value, array_of, as_array, numpy_of, unsupported

TEXT, INT = pa.string(), pa.int32()
# A padding is kept once for each length up to this one.
_LONGEST_PADDING = 1000


def build_trim(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Without characters to trim only the space of ASCII goes, no other blank."""
    require_types(call.function, arguments, *[TEXT] * len(arguments))
    child, *given = arguments
    characters = constant_text(given[0], call.function, "set of characters") if given else " "
    trim = _TRIMS[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        if not characters.isascii():
            require_utf8(values, call.function)
        return trim(values, characters=characters) if characters else values

    return Kernel(run, TEXT, raises=child.raises)


def build_substring(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Positions count from 1, negative ones from the end; a binary is cut by bytes."""
    if arguments[0].type not in (TEXT, pa.binary()) or any(argument.type != INT for argument in arguments[1:]):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    is_text = arguments[0].type == TEXT

    def run(rows: pa.RecordBatch) -> Value:
        given = [as_array(value, rows.num_rows) for value in run_in_order(arguments, rows)]
        values, position, length = given
        found = bytes_of(values)
        count = code_points(values, call.function).count if is_text else found.ends - found.starts
        at = numpy_of(position).astype(np.int64)
        starts = np.where(at > 0, at - 1, np.where(at < 0, count + at, 0))
        ends = np.minimum(starts + numpy_of(length).astype(np.int64), np.iinfo(np.int32).max)
        if is_text:
            result = text_slices(values, starts=starts, ends=ends, function=call.function)
        else:
            low = np.clip(starts, 0, count)
            result = byte_slices(values, starts=low, ends=np.clip(ends, low, count))
        known = pc.and_(position.is_valid(), length.is_valid())
        return pc.if_else(known, result, constant(None, call.type))

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def build_substring_index(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """What stands before the n-th delimiter, or behind the n-th from the end."""
    require_types(call.function, arguments, TEXT, TEXT, INT)
    child = arguments[0]
    delimiter = constant_text(arguments[1], call.function, "delimiter")
    number = constant_integer(arguments[2], call.function, "count")
    if any(delimiter.endswith(delimiter[:size]) for size in range(1, len(delimiter))):
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} with a delimiter that overlaps itself")

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        if not delimiter or not number:
            return pc.if_else(values.is_valid(), constant("", TEXT), constant(None, TEXT))
        # Split as often as there are delimiters to keep, and once more: what is behind it is cut off.
        parts = pc.split_pattern(values, pattern=delimiter, max_splits=abs(number), reverse=number < 0)
        is_cut = numpy_of(pc.fill_null(pc.list_value_length(parts), constant(0, INT))).astype(np.int64) > abs(number)
        edge = _element_bytes(parts, last=number > 0) + len(delimiter.encode())
        found = bytes_of(values)
        size = found.ends - found.starts
        cut = np.where(is_cut, edge, 0)
        if number > 0:
            return byte_slices(values, starts=np.zeros_like(size), ends=size - cut)
        return byte_slices(values, starts=cut, ends=size)

    return Kernel(run, TEXT, raises=child.raises)


def build_locate(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """StringInstr(text, part) and StringLocate(part, text, start): a position that counts from 1, or 0."""
    if call.function == "StringInstr":
        require_types(call.function, arguments, TEXT, TEXT)
        child, part = arguments
        start = 1
    else:
        require_types(call.function, arguments, TEXT, TEXT, INT)
        part, child = arguments[:2]
        start = constant_integer(arguments[2], call.function, "start")
    wanted = constant_text(part, call.function, "text to look for")

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        if start < 1 or not wanted:
            return pc.if_else(values.is_valid(), constant(int(start >= 1), INT), constant(None, INT))
        rest = pc.utf8_slice_codeunits(values, start=start - 1) if start > 1 else values
        byte = numpy_of(pc.fill_null(pc.find_substring(rest, pattern=wanted), constant(-1, INT))).astype(np.int64)
        position = code_points(rest, call.function).position_of(np.maximum(byte, 0))
        return array_of(np.where(byte < 0, 0, position + start).astype(np.int32), INT, nulls_of=values)

    return Kernel(run, INT, raises=child.raises)


def build_repeat(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """StringRepeat; StringSpace repeats a space. A negative number of times is none."""
    if call.function == "StringSpace":
        space = constant(" ", TEXT)
        arguments = (Kernel(lambda _rows: space, TEXT, raises=False, constant=space), *arguments)
    require_types(call.function, arguments, TEXT, INT)
    zero = constant(0, INT)

    def run(rows: pa.RecordBatch) -> Value:
        values, times = (as_array(value, rows.num_rows) for value in run_in_order(arguments, rows))
        return pc.binary_repeat(values, pc.max_element_wise(times, zero, skip_nulls=False))

    return Kernel(run, TEXT, raises=any(argument.raises for argument in arguments))


def build_replace(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT, TEXT)
    child = arguments[0]
    search = constant_text(arguments[1], call.function, "text to look for")
    replacement = constant_text(arguments[2], call.function, "replacement")
    if not search:
        return child
    return Kernel(
        lambda rows: pc.replace_substring(child.run(rows), pattern=search, replacement=replacement),
        TEXT,
        raises=child.raises,
    )


def build_reverse(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT)
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return pc.utf8_reverse(values)

    return Kernel(run, TEXT, raises=child.raises)


def build_pad(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Pads to a constant length, and cuts what is longer."""
    require_types(call.function, arguments, TEXT, INT, TEXT)
    child = arguments[0]
    length = max(constant_integer(arguments[1], call.function, "length"), 0)
    unit = constant_text(arguments[2], call.function, "padding")
    if length > _LONGEST_PADDING:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} to more than {_LONGEST_PADDING} characters")
    padding = (unit * length)[:length]
    paddings = strings([padding[:size] for size in range(length + 1)], TEXT)
    empty = constant("", TEXT)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        missing = np.clip(length - code_points(values, call.function).count, 0, length)
        added = paddings.take(array_of(missing.astype(np.int32), INT, nulls_of=values))
        cut = pc.utf8_slice_codeunits(values, start=0, stop=length)
        parts = (added, cut) if call.function == "StringLPad" else (cut, added)
        return pc.binary_join_element_wise(*parts, empty)

    return Kernel(run, TEXT, raises=child.raises)


def build_concat_ws(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Nulls among the parts are left out; a null separator makes all null."""
    require_types(call.function, arguments, *[TEXT] * len(arguments))
    separator, *parts = arguments
    empty, null = constant("", TEXT), constant(None, TEXT)

    def run(rows: pa.RecordBatch) -> Value:
        between = as_array(separator.run(rows), rows.num_rows)
        values = [as_array(part.run(rows), rows.num_rows) for part in parts]
        if not values:
            return pc.if_else(between.is_valid(), empty, null)
        filled = pc.fill_null(between, empty)
        # Arrow loses a row whose parts are all null: one of them becomes an empty text.
        missing = values[0].is_null()
        for value in values[1:]:
            missing = pc.and_(missing, value.is_null())
        values[0] = pc.if_else(missing, empty, values[0])
        joined = pc.binary_join_element_wise(*values, filled, null_handling="skip")
        return joined if between.null_count == 0 else pc.if_else(between.is_valid(), joined, null)

    return Kernel(run, TEXT, raises=any(argument.raises for argument in arguments))


def build_translate(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Character by character; those without a counterpart are removed, the first of equal ones counts."""
    require_types(call.function, arguments, TEXT, TEXT, TEXT)
    child = arguments[0]
    matching = constant_text(arguments[1], call.function, "text to look for")
    replacement = constant_text(arguments[2], call.function, "replacement")
    table: dict[int, int | None] = {}
    for index, character in enumerate(matching):
        table.setdefault(ord(character), ord(replacement[index]) if index < len(replacement) else None)
    is_ascii = all(code < 0x80 and (to is None or to < 0x80) for code, to in table.items())

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        if is_ascii:
            return _translate_bytes(values, table)
        require_utf8(values, call.function)
        return per_distinct(values, lambda text: text.translate(table))

    return Kernel(run, TEXT, raises=child.raises)


def build_overlay(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT, INT, INT)
    child, replacement = arguments[:2]
    position = constant_integer(arguments[2], call.function, "position")
    size = constant_integer(arguments[3], call.function, "length")
    if position < 1 or replacement.constant is None or not replacement.constant.is_valid:
        raise unsupported(f"{call.function} without a constant text and position from 1", TEXT)
    resumes = position - 1 + (size if size >= 0 else len(replacement.constant.as_py()))
    empty = constant("", TEXT)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        before = pc.utf8_slice_codeunits(values, start=0, stop=position - 1)
        behind = pc.utf8_slice_codeunits(values, start=resumes)
        return pc.binary_join_element_wise(before, replacement.constant, behind, empty)

    return Kernel(run, TEXT, raises=child.raises)


def build_byte_length(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """OctetLength, BitLength."""
    (child,) = arguments
    if child.type not in (TEXT, pa.binary()):
        raise unsupported(call.function, child.type)
    factor = constant(8 if call.function == "BitLength" else 1, INT)
    return Kernel(lambda rows: pc.multiply(pc.binary_length(child.run(rows)), factor), INT, raises=child.raises)


def build_find_in_set(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The place of a word in a constant list with commas; 0 if it is not there, or has a comma."""
    require_types(call.function, arguments, TEXT, TEXT)
    child = arguments[0]
    words = constant_text(arguments[1], call.function, "list").split(",")
    known, zero, one = strings(words, TEXT), constant(0, INT), constant(1, INT)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        found = pc.fill_null(pc.add(pc.index_in(values, value_set=known), one), zero)
        return pc.if_else(values.is_valid(), found, constant(None, INT))

    return Kernel(run, INT, raises=child.raises)


def _element_bytes(lists: pa.Array, *, last: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The length of each list's first or last text; anything for a list that is null."""
    found = bytes_of(lists.values)
    lengths = np.append(found.ends - found.starts, 0)
    offsets = numpy_of(lists.offsets).astype(np.int64)
    return lengths[np.maximum(offsets[1:] - 1, 0)] if last else lengths[offsets[:-1]]


def _translate_bytes(values: pa.Array, table: Mapping[int, int | None]) -> pa.Array:
    """Bytes below 0x80 are characters of their own, wherever they stand."""
    to = np.arange(256, dtype=np.uint8)
    removed = np.zeros(256, bool)
    for code, target in table.items():
        to[code], removed[code] = target or 0, target is None
    found, content = bytes_of(values), used_bytes(values)
    kept = ~removed[content]
    # Kept bytes before each byte of the column, so that a row's new length is a difference.
    before = np.concatenate([[0], np.cumsum(kept)])
    origin = found.starts[0] if len(values) else 0
    lengths = before[found.ends - origin] - before[found.starts - origin]
    return column_of(values.type, lengths=lengths, data=to[content][kept], nulls_of=values)


_TRIMS: Mapping[str, Callable[..., Value]] = {
    "StringTrim": pc.utf8_trim,
    "StringTrimLeft": pc.utf8_ltrim,
    "StringTrimRight": pc.utf8_rtrim,
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_TRIMS, build_trim),
    "Substring": build_substring,
    "SubstringIndex": build_substring_index,
    **dict.fromkeys(("StringInstr", "StringLocate"), build_locate),
    **dict.fromkeys(("StringRepeat", "StringSpace"), build_repeat),
    "StringReplace": build_replace,
    "Reverse": build_reverse,
    **dict.fromkeys(("StringLPad", "StringRPad"), build_pad),
    "ConcatWs": build_concat_ws,
    "StringTranslate": build_translate,
    "Overlay": build_overlay,
    **dict.fromkeys(("OctetLength", "BitLength"), build_byte_length),
    "FindInSet": build_find_in_set,
}
