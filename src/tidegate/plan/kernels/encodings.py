"""Texts of bytes and numbers: Hex, Unhex, Bin, Base64, Chr, Ascii, URL encoding, UTF-8 from and to binary."""

import base64
import urllib.parse
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.text import (
    bytes_of,
    column_of,
    constant_of,
    constant_text,
    per_distinct,
    require_types,
    require_utf8,
    strings,
    used_bytes,
)
from tidegate.plan.kernels.values import Kernel, Value, array_of, as_array, numpy_of, unsupported

TEXT, BINARY, INT = pa.string(), pa.binary(), pa.int32()
_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
# Each byte's two digits, and each digit's value; 255 is no digit.
_HEX_PAIRS = np.stack([np.repeat(_HEX_DIGITS, 16), np.tile(_HEX_DIGITS, 16)], axis=1)
_HEX_VALUES = np.full(256, 255, np.uint8)
for _text in (b"0123456789ABCDEF", b"0123456789abcdef"):
    _HEX_VALUES[np.frombuffer(_text, np.uint8)] = np.arange(16, dtype=np.uint8)
_CHARACTERS = strings([chr(code) for code in range(256)], TEXT)
# Lines of MIME, as Java's encoder cuts them.
_BASE64_LINE = 76


def build_hex(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    if child.type not in (TEXT, BINARY, pa.int64()):
        raise unsupported(call.function, child.type)
    convert = _hex_of_numbers if child.type == pa.int64() else _hex_of_bytes
    return Kernel(lambda rows: convert(as_array(child.run(rows), rows.num_rows)), TEXT, raises=child.raises)


def build_bin(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, pa.int64())
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        bits = np.unpackbits(_big_endian(values), axis=1) + np.uint8(ord("0"))
        return _without_leading_zeros(bits, values)

    return Kernel(run, TEXT, raises=child.raises)


def build_unhex(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null for what is no hexadecimal number; an odd first digit stands for itself."""
    require_types(call.function, arguments, TEXT)
    if call.ansi:
        raise unsupported(f"{call.function} that raises", TEXT)
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        is_odd = pc.equal(pc.bit_wise_and(pc.binary_length(values), constant(1, INT)), constant(1, INT))
        prefix = pc.if_else(is_odd, constant("0", TEXT), constant("", TEXT))
        even = pc.binary_join_element_wise(prefix, values, constant("", TEXT))
        digits = _HEX_VALUES[used_bytes(even)]
        data = ((digits[::2] << 4) | (digits[1::2] & 15)).astype(np.uint8)
        found = bytes_of(even)
        lengths = (found.ends - found.starts) // 2
        decoded = column_of(BINARY, lengths=lengths, data=data, nulls_of=values)
        is_valid = pc.match_substring_regex(values, pattern="^[0-9A-Fa-f]*$")
        return pc.if_else(is_valid, decoded, constant(None, BINARY))

    return Kernel(run, BINARY, raises=child.raises)


def build_chr(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The character of the lowest byte; nothing for a negative number."""
    require_types(call.function, arguments, pa.int64())
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        codes = (numpy_of(values).astype(np.int64) & 0xFF).astype(np.int32)
        characters = _CHARACTERS.take(array_of(codes, INT, nulls_of=values))
        return pc.if_else(pc.less(values, constant(0, pa.int64())), constant("", TEXT), characters)

    return Kernel(run, TEXT, raises=child.raises)


def build_ascii(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The first code point, 0 for nothing."""
    require_types(call.function, arguments, TEXT)
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        found = bytes_of(values)
        # Three more bytes, so that every first byte has three behind it.
        data = np.concatenate([found.data, np.zeros(4, np.uint8)]).astype(np.int32)
        first, second, third, fourth = (data[np.minimum(found.starts, len(data) - 4) + ahead] for ahead in range(4))
        tail2, tail3, tail4 = second & 63, third & 63, fourth & 63
        code = np.select(
            [found.starts == found.ends, first < 0x80, first < 0xE0, first < 0xF0],
            [
                np.int32(0),
                first,
                (first & 31) << 6 | tail2,
                (first & 15) << 12 | tail2 << 6 | tail3,
            ],
            (first & 7) << 18 | tail2 << 12 | tail3 << 6 | tail4,
        )
        return array_of(code.astype(np.int32), INT, nulls_of=values)

    return Kernel(run, INT, raises=child.raises)


def build_base64(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """With lines of 76 characters if the second argument says so."""
    require_types(call.function, arguments, BINARY, pa.bool_())
    child = arguments[0]
    in_lines = constant_of(arguments[1], call.function, "way to cut lines")

    def encode(value: bytes) -> bytes:
        whole = base64.b64encode(value)
        lines = [whole[at : at + _BASE64_LINE] for at in range(0, len(whole), _BASE64_LINE)]
        return b"\r\n".join(lines) if in_lines else whole

    def run(rows: pa.RecordBatch) -> Value:
        return per_distinct(as_array(child.run(rows), rows.num_rows), encode, TEXT)

    return Kernel(run, TEXT, raises=child.raises)


def build_url_encode(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT)
    (child,) = arguments

    def encode(text: str) -> str:
        return urllib.parse.quote_plus(text, safe="*-._").replace("~", "%7E")

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return per_distinct(values, encode)

    return Kernel(run, TEXT, raises=child.raises)


def build_encode(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """A string's bytes in UTF-8, which are the bytes it has."""
    _require_utf8_charset(call, arguments, TEXT)
    child = arguments[0]

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return pc.cast(values, BINARY)

    return Kernel(run, BINARY, raises=child.raises)


def build_decode(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    _require_utf8_charset(call, arguments, BINARY)
    child = arguments[0]

    def run(rows: pa.RecordBatch) -> Value:
        try:
            return pc.cast(as_array(child.run(rows), rows.num_rows), TEXT)
        except pa.ArrowInvalid as broken:
            raise UserCodeFailure(
                "[MALFORMED_CHARACTER_CODING] decode met bytes that are not UTF-8: "
                "filter them with is_valid_utf8, or keep the column binary."
            ) from broken

    return Kernel(run, TEXT, raises=True)


def _require_utf8_charset(call: Call, arguments: tuple[Kernel, ...], source: pa.DataType) -> None:
    require_types(call.function, arguments, source, TEXT, pa.bool_(), pa.bool_())
    charset = constant_text(arguments[1], call.function, "charset").upper()
    if charset != "UTF-8" or any(constant_of(flag, call.function, "mode") for flag in arguments[2:]):
        raise unsupported(f"{call.function} with the charset {charset}, or in a legacy mode,", source)


def _hex_of_bytes(values: pa.Array) -> pa.Array:
    found = bytes_of(values)
    lengths = 2 * (found.ends - found.starts)
    return column_of(TEXT, lengths=lengths, data=_HEX_PAIRS[used_bytes(values)].reshape(-1), nulls_of=values)


def _hex_of_numbers(values: pa.Array) -> pa.Array:
    return _without_leading_zeros(_HEX_PAIRS[_big_endian(values)].reshape(len(values), 16), values)


def _big_endian(values: pa.Array) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return numpy_of(values).astype(">i8").view(np.uint8).reshape(len(values), 8)


def _without_leading_zeros(digits: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], nulls_of: pa.Array) -> pa.Array:
    width = digits.shape[1]
    lengths = np.full(len(digits), width, np.int64)
    trimmed = pc.ascii_ltrim(
        column_of(TEXT, lengths=lengths, data=digits.reshape(-1), nulls_of=nulls_of), characters="0"
    )
    return pc.if_else(pc.equal(pc.binary_length(trimmed), constant(0, INT)), constant("0", TEXT), trimmed)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "Hex": build_hex,
    "Unhex": build_unhex,
    "Bin": build_bin,
    "Chr": build_chr,
    "Ascii": build_ascii,
    "Base64.encode": build_base64,
    "UrlCodec.encode": build_url_encode,
    "Encode.encode": build_encode,
    "StringDecode.decode": build_decode,
}
