"""Spark's hashes: Murmur3 and xxHash64 over any columns, and digests of bytes.

Numbers are hashed as whole columns, bytes word by word for all rows at once; a digest is computed once for each
distinct value, by Python's own library.
"""

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.dates import string_column
from tidegate.plan.kernels.lifting import as_column, lift, unscaled_longs
from tidegate.plan.kernels.values import Kernel, Value, as_array, numpy_of, unsupported

Words: TypeAlias = Any

_SHA2 = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


@dataclass(frozen=True, slots=True)
class _Family:
    """One way of hashing: each takes the values and the hash so far, which is the seed, of each row."""

    word: type[np.generic]
    of_ints: Callable[[Words, Words], Words]
    of_longs: Callable[[Words, Words], Words]
    of_bytes: "Callable[[_Bytes, Words], Words]"


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Values of any length in one buffer: where each starts, and how long it is."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def words(self, rows: Words, at: Words | int, width: int) -> Words:
        """The little-endian words of `width` bytes that start `at` bytes into these rows' values."""
        places = (self.starts[rows] + at)[:, None] + np.arange(width)
        return np.ascontiguousarray(self.data[places]).view(f"<u{width}")[:, 0]


def build_hash(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Murmur3Hash, XxHash64: each column's hash is the seed of the next; a null leaves it as it is."""
    family = _FAMILIES[call.function]
    seed = np.array(int(call.setting("seed") or 42) % 2**64, np.uint64).astype(family.word)
    steps = [_step(call, argument.type, family) for argument in arguments]

    def run(rows: pa.RecordBatch) -> Value:
        hashes = np.full(rows.num_rows, seed)
        with np.errstate(over="ignore"):
            for argument, step in zip(arguments, steps, strict=True):
                column = as_array(argument.run(rows), rows.num_rows)
                if column.null_count == 0:
                    hashes = step(column, hashes)
                    continue
                valid = numpy_of(pc.cast(column.is_valid(), pa.int8())).astype(bool)
                hashes[valid] = step(column.filter(column.is_valid()), hashes[valid])
        return as_column(hashes.view(f"i{hashes.itemsize}"), call.type)

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def build_digest(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Md5, Sha1, Sha2 as hexadecimal text."""
    child, *bits = arguments
    name = {"Md5": "md5", "Sha1": "sha1"}.get(call.function) or _sha2_name(call, bits)
    if child.type != pa.binary():
        raise unsupported(call.function, child.type)

    def run(values: pa.Array) -> pa.Array:
        distinct = values.dictionary_encode()
        digests = [hashlib.new(name, value).hexdigest() for value in distinct.dictionary.to_pylist()]
        return string_column(digests).take(distinct.indices)

    return lift(call, (child,), run)


def build_crc(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    if child.type != pa.binary():
        raise unsupported(call.function, child.type)

    def run(values: pa.Array) -> Words:
        distinct = values.dictionary_encode()
        sums = np.array([zlib.crc32(value) for value in distinct.dictionary.to_pylist()], np.int64)
        return sums[numpy_of(distinct.indices)]

    return lift(call, arguments, run)


def _sha2_name(call: Call, bits: list[Kernel]) -> str:
    (length,) = bits
    wanted = None if length.constant is None else length.constant.as_py()
    if wanted not in _SHA2:
        raise unsupported(f"{call.function} of a length other than 224, 256, 384 and 512", length.type)
    return _SHA2[wanted]


def _step(call: Call, type_: pa.DataType, family: _Family) -> Callable[[pa.Array, Words], Words]:
    if pa.types.is_boolean(type_):
        return lambda column, seeds: family.of_ints(numpy_of(pc.cast(column, pa.int8())).astype(np.int32), seeds)
    if pa.types.is_floating(type_):
        hashed = family.of_ints if type_.bit_width == 32 else family.of_longs
        return lambda column, seeds: hashed(_float_bits(column), seeds)
    if pa.types.is_primitive(type_):
        hashed, width = (family.of_longs, np.int64) if type_.bit_width == 64 else (family.of_ints, np.int32)
        return lambda column, seeds: hashed(numpy_of(column).astype(width, copy=False), seeds)
    if pa.types.is_decimal(type_) and type_.precision <= 18:
        return lambda column, seeds: family.of_longs(unscaled_longs(column), seeds)
    if type_ in (pa.string(), pa.binary()):
        return lambda column, seeds: family.of_bytes(_bytes_of(column), seeds)
    raise unsupported(call.function, type_)


def _float_bits(column: pa.Array) -> Words:
    """-0.0 is hashed as 0.0, and every NaN as Java's."""
    numbers = numpy_of(column)
    whole = np.dtype(f"i{numbers.itemsize}")
    bits = np.where(numbers == 0, np.zeros(1, numbers.dtype), numbers).view(whole)
    return np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype).view(whole), bits)


def _bytes_of(column: pa.Array) -> _Bytes:
    if len(column) == 0:
        return _Bytes(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return _Bytes(content, bounds[:-1], np.diff(bounds))


# -- Murmur3, 32 bits, as org.apache.spark.unsafe.hash.Murmur3_x86_32: a rest of bytes is hashed byte by byte, signed.


def _rotated(words: Words, count: int) -> Words:
    bits = words.itemsize * 8
    return (words << words.dtype.type(count)) | (words >> words.dtype.type(bits - count))


def _murmur_mixed(hashes: Words, words: Words) -> Words:
    mixed = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _murmur_finished(hashes: Words, lengths: Words) -> Words:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _murmur_ints(values: Words, seeds: Words) -> Words:
    return _murmur_finished(_murmur_mixed(seeds, values.view(np.uint32)), np.uint32(4))


def _murmur_longs(values: Words, seeds: Words) -> Words:
    longs = np.ascontiguousarray(values).view(np.uint64)
    low, high = longs.astype(np.uint32), (longs >> np.uint64(32)).astype(np.uint32)
    return _murmur_finished(_murmur_mixed(_murmur_mixed(seeds, low), high), np.uint32(8))


def _murmur_bytes(values: _Bytes, seeds: Words) -> Words:
    hashes = seeds.copy()
    whole = values.lengths // 4
    for at in range(int(whole.max(initial=0))):
        rows = np.flatnonzero(whole > at)
        hashes[rows] = _murmur_mixed(hashes[rows], values.words(rows, 4 * at, 4))
    for at in range(3):
        rows = np.flatnonzero(values.lengths - 4 * whole > at)
        rest = values.words(rows, 4 * whole[rows] + at, 1).view(np.int8).astype(np.int32).view(np.uint32)
        hashes[rows] = _murmur_mixed(hashes[rows], rest)
    return _murmur_finished(hashes, values.lengths.astype(np.uint32))


# -- xxHash, 64 bits

_P1, _P2, _P3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def _xx_finished(hashes: Words) -> Words:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _xx_round(lane: Words, words: Words) -> Words:
    return _rotated(lane + words * _P2, 31) * _P1


def _xx_with_long(hashes: Words, words: Words) -> Words:
    return _rotated(hashes ^ _xx_round(np.zeros_like(words), words), 27) * _P1 + _P4


def _xx_with_int(hashes: Words, words: Words) -> Words:
    return _rotated(hashes ^ (words.astype(np.uint64) * _P1), 23) * _P2 + _P3


def _xx_with_byte(hashes: Words, words: Words) -> Words:
    return _rotated(hashes ^ (words.astype(np.uint64) * _P5), 11) * _P1


def _xx_ints(values: Words, seeds: Words) -> Words:
    return _xx_finished(_xx_with_int(seeds + _P5 + np.uint64(4), values.view(np.uint32)))


def _xx_longs(values: Words, seeds: Words) -> Words:
    return _xx_finished(_xx_with_long(seeds + _P5 + np.uint64(8), np.ascontiguousarray(values).view(np.uint64)))


def _xx_bytes(values: _Bytes, seeds: Words) -> Words:
    blocks = values.lengths // 32
    hashes = np.where(blocks > 0, _xx_blocks(values, blocks, seeds), seeds + _P5) + values.lengths.astype(np.uint64)
    rest = values.lengths - 32 * blocks
    for at in range(3):
        rows = np.flatnonzero(rest // 8 > at)
        hashes[rows] = _xx_with_long(hashes[rows], values.words(rows, 32 * blocks[rows] + 8 * at, 8))
    rows = np.flatnonzero(rest % 8 >= 4)
    hashes[rows] = _xx_with_int(hashes[rows], values.words(rows, values.lengths[rows] - rest[rows] % 8, 4))
    for at in range(3):
        rows = np.flatnonzero(rest % 4 > at)
        hashes[rows] = _xx_with_byte(hashes[rows], values.words(rows, (values.lengths - rest % 4)[rows] + at, 1))
    return _xx_finished(hashes)


def _xx_blocks(values: _Bytes, blocks: Words, seeds: Words) -> Words:
    """Four lanes over blocks of 32 bytes, merged into one hash."""
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for at in range(int(blocks.max(initial=0))):
        rows = np.flatnonzero(blocks > at)
        for number, lane in enumerate(lanes):
            lane[rows] = _xx_round(lane[rows], values.words(rows, 32 * at + 8 * number, 8))
    merged = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    for lane in lanes:
        merged = (merged ^ _xx_round(np.zeros_like(lane), lane)) * _P1 + _P4
    return merged


_FAMILIES: Mapping[str, _Family] = {
    "Murmur3Hash": _Family(np.uint32, _murmur_ints, _murmur_longs, _murmur_bytes),
    "XxHash64": _Family(np.uint64, _xx_ints, _xx_longs, _xx_bytes),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_FAMILIES, build_hash),
    **dict.fromkeys(("Md5", "Sha1", "Sha2"), build_digest),
    "Crc32": build_crc,
}
