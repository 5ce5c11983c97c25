"""Owns the stable hash of keys, and which key group and which subtask a key belongs to.

Stored state and captured rows are found again by these functions: a value, once released, must never change.
It must never depend on how rows are cut into batches, on their offsets, or on what lies under a null.
"""

import itertools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import OptionError, UnsupportedPlan

Hashes: TypeAlias = npt.NDArray[np.uint64]

# Key groups are kept as 16 bits wherever there is one per row.
MAX_PARALLELISM_LIMIT = 1 << 15

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_NULL_HASH = np.uint64(0x6E756C6C5F6B6579)
_HIGH_HALF = np.uint64(32)
_WORD_BYTES = 8
# Values up to so many words are hashed position by position; longer ones word by word, whatever the others' lengths.
_FEW_WORDS = 4
# So many values are hashed at once that what is computed on the way stays in the processor's cache.
_BYTES_CHUNK_ROWS = 1 << 13
# So many times going over all targets is quicker than sorting them.
_FEW_TARGETS = 6
# Made from buffers: `pa.scalar` would import pandas.
_NO_BYTES = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
# The mask that keeps the first n bytes of a little-endian word, by n.
_KEEP_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(_WORD_BYTES + 1)], dtype=np.uint64)


def hash_rows(rows: pa.RecordBatch, key_count: int) -> Hashes:
    """One hash per row, over the first `key_count` columns; equal keys (as Spark groups them) hash the same."""
    if key_count == 0:
        return np.zeros(rows.num_rows, dtype=np.uint64)
    hashes = _hash_column(rows.column(0))
    for index in range(1, key_count):
        hashes = _mix(hashes * _GOLDEN + _hash_column(rows.column(index)))
    return hashes


def check_key_type(kind: pa.DataType) -> None:
    """Raises `UnsupportedPlan` for a type that `hash_rows` cannot take."""
    if pa.types.is_list(kind):
        check_key_type(kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            check_key_type(field.type)
    elif pa.types.is_nested(kind) or pa.types.is_interval(kind):
        raise _unsupported_key(kind)


def key_group_of(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.uint16]:
    if not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise OptionError(
            f"Option 'maxParallelism' is {max_parallelism}: it must be between 1 and {MAX_PARALLELISM_LIMIT}."
        )
    # Scaling the high half is quicker than a remainder, and leaves the low bits to hash tables.
    groups = ((hashes >> _HIGH_HALF) * np.uint64(max_parallelism)) >> _HIGH_HALF
    return groups.astype(np.uint16)


def owner_of(key_groups: npt.NDArray[Any], *, parallelism: int, max_parallelism: int) -> npt.NDArray[Any]:
    """The subtask that owns each key group, in the smallest unsigned type that holds all subtasks."""
    owners = np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism
    owner: npt.NDArray[Any] = owners.astype(np.uint8 if parallelism <= 256 else np.uint16)[key_groups]
    return owner


def partition(
    rows: pa.RecordBatch, *, key_count: int, parallelism: int, max_parallelism: int
) -> list[pa.RecordBatch | None]:
    """The rows of each subtask, in their order, or None where a subtask gets none."""
    if rows.num_rows == 0:
        return [None] * parallelism
    if parallelism == 1:
        return [rows]
    key_groups = key_group_of(hash_rows(rows, key_count), max_parallelism)
    targets = owner_of(key_groups, parallelism=parallelism, max_parallelism=max_parallelism)
    order, counts = _by_target(targets, parallelism)
    if max(counts) == rows.num_rows:
        return [rows if count else None for count in counts]
    grouped = rows.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))
    ends = itertools.accumulate(counts)
    return [grouped.slice(end - count, count) if count else None for end, count in zip(ends, counts, strict=True)]


def _by_target(targets: npt.NDArray[Any], parallelism: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The rows of the first target, then those of the second, each in their order; and how many each has."""
    if parallelism > _FEW_TARGETS:
        return np.argsort(targets, kind="stable"), np.bincount(targets, minlength=parallelism).tolist()
    parts = [np.flatnonzero(targets == target) for target in range(parallelism)]
    return np.concatenate(parts), [len(part) for part in parts]


def validity_of(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where a row has a value; None if all have."""
    if column.null_count == 0:
        return None
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.bool_)
    return _unpack_bits(column.buffers()[0], offset=column.offset, length=len(column))


def fixed_values_of(column: pa.Array) -> npt.NDArray[Any]:
    """The values of a fixed-width key column as Spark compares them: one NaN, no -0.0. Under a null is anything."""
    kind, length = column.type, len(column)
    if pa.types.is_null(kind):
        return np.zeros(length, dtype=np.int8)
    if pa.types.is_boolean(kind):
        return _unpack_bits(column.buffers()[1], offset=column.offset, length=length).view(np.int8)
    if pa.types.is_decimal128(kind):
        return _fixed(column, dtype=np.uint64, per_value=2).reshape(-1, 2)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _normalised_floats(_fixed(column, dtype=np.float32 if kind.bit_width == 32 else np.float64))
    if pa.types.is_unsigned_integer(kind):
        return _fixed(column, dtype=np.dtype(f"u{kind.bit_width // 8}"))
    if pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return _fixed(column, dtype=np.dtype(f"i{kind.bit_width // 8}"))
    raise _unsupported_key(kind)


def _unsupported_key(kind: pa.DataType) -> UnsupportedPlan:
    return UnsupportedPlan(f"Keys of type {kind} are not supported: group by the parts of the value instead.")


def is_variable_width(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def as_large_binary(column: pa.Array) -> pa.Array:
    """A column of strings or bytes in the one layout that this module and columnar state work on; no nulls."""
    if not (pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.binary())
    column = column.cast(pa.large_binary())
    return pc.fill_null(column, _NO_BYTES) if column.null_count else column


def _hash_column(column: pa.Array) -> Hashes:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    hashes = _hash_values(column)
    valid = validity_of(column)
    if valid is not None:
        hashes[~valid] = _NULL_HASH
    return hashes


def _hash_values(column: pa.Array) -> Hashes:
    """Under a null is anything."""
    if is_variable_width(column.type):
        return _hash_bytes(column)
    if pa.types.is_struct(column.type):
        return _hash_struct(column)
    if pa.types.is_list(column.type):
        return _hash_lists(column)
    return _hash_fixed(fixed_values_of(column))


def _hash_struct(column: pa.Array) -> Hashes:
    """As if its fields were key columns, and unlike a single one of them."""
    hashes = np.zeros(len(column), dtype=np.uint64)
    for index in range(column.type.num_fields):
        hashes = _mix(hashes * _GOLDEN + _hash_column(column.field(index)))
    return hashes


def _hash_lists(column: pa.Array) -> Hashes:
    """Sums the hashes of the elements, each weighted by its position, then mixes in the length."""
    if len(column) == 0:
        return np.zeros(0, dtype=np.uint64)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    first, lengths = int(offsets[0]), np.diff(offsets).astype(np.int64)
    elements = _hash_column(column.values.slice(first, int(offsets[-1]) - first))
    within = np.arange(len(elements)) - np.repeat(offsets[:-1] - first, lengths)
    terms = _mix(elements) * _position_weights(max(1, int(lengths.max())))[within]
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms)])
    sums = running[offsets[1:] - first] - running[offsets[:-1] - first]
    return _mix(sums + lengths.view(np.uint64) * _GOLDEN)


def _hash_fixed(values: npt.NDArray[Any]) -> Hashes:
    if values.ndim == 2:
        return _mix(_mix(values[:, 0]) * _GOLDEN + values[:, 1])
    if values.dtype.kind == "f":
        return _mix(values.astype(np.float64).view(np.uint64))
    if values.dtype.kind == "u":
        return _mix(values.astype(np.uint64, copy=False))
    # Widening first makes the hash of a number independent of the width of its type.
    return _mix(values.astype(np.int64, copy=False).view(np.uint64))


def _hash_bytes(column: pa.Array) -> Hashes:
    if len(column) <= _BYTES_CHUNK_ROWS:
        return _hash_few_bytes(column)
    hashes = np.empty(len(column), dtype=np.uint64)
    for start in range(0, len(column), _BYTES_CHUNK_ROWS):
        hashes[start : start + _BYTES_CHUNK_ROWS] = _hash_few_bytes(column.slice(start, _BYTES_CHUNK_ROWS))
    return hashes


def _hash_few_bytes(column: pa.Array) -> Hashes:
    """Sums the mixed 8-byte words of each value, each weighted by its position, then mixes in the length."""
    values = as_large_binary(column)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    if len(values) == 0:
        return np.zeros(0, dtype=np.uint64)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    most_words = -(-int(lengths.max()) // _WORD_BYTES)
    data = _padded(values.buffers()[2], start=int(offsets[0]), stop=int(offsets[-1]))
    if most_words <= _FEW_WORDS:
        sums = _sum_few_words(data, starts, lengths, most_words)
    else:
        sums = _sum_words(data, starts, lengths)
    return _mix(sums + lengths.view(np.uint64) * _GOLDEN)


def _sum_few_words(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], most_words: int
) -> Hashes:
    """The first words of all values, then the second ones: no array is longer than there are values."""
    sums = np.zeros(len(lengths), dtype=np.uint64)
    weights = _position_weights(max(1, most_words))
    shortest = int(lengths.min())
    for word in range(most_words):
        at = word * _WORD_BYTES
        words = _load_words(data, starts + at)
        if shortest < at + _WORD_BYTES:
            words &= _KEEP_BYTES[np.clip(lengths - at, 0, _WORD_BYTES)]
        terms = _mix(words)
        if word:
            terms *= weights[word]
        if shortest <= at:
            # A value that has ended has no word here, not one of zeros.
            terms *= lengths > at
        sums += terms
    return sums


def _sum_words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    word_counts = (lengths + (_WORD_BYTES - 1)) // _WORD_BYTES
    word_ends = np.cumsum(word_counts)
    word_starts = word_ends - word_counts
    within = np.arange(word_ends[-1]) - np.repeat(word_starts, word_counts)
    left = np.repeat(lengths, word_counts) - within * _WORD_BYTES
    words = _load_words(data, np.repeat(starts, word_counts) + within * _WORD_BYTES)
    words &= _KEEP_BYTES[np.minimum(left, _WORD_BYTES)]
    terms = _mix(words)
    terms *= _position_weights(int(word_counts.max()))[within]
    # Differences of the running sum stay right when it wraps, and give 0 for a value without words.
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms)])
    sums: Hashes = running[word_ends] - running[word_starts]
    return sums


def _position_weights(count: int) -> Hashes:
    """Odd, so that no bit of a word is lost; 1 for the first word, so that one-word values need no weight."""
    weights = _mix(np.arange(count, dtype=np.uint64)) | np.uint64(1)
    weights[0] = 1
    return weights


def _load_words(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]) -> Hashes:
    words: Hashes = np.ndarray(len(data) - _WORD_BYTES + 1, dtype="<u8", buffer=data, strides=(1,))
    return words[positions]


def _padded(buffer: pa.Buffer | None, *, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """A copy that may be read a few words past its end: the memory behind an Arrow buffer is not ours."""
    data = np.zeros(stop - start + _FEW_WORDS * _WORD_BYTES, dtype=np.uint8)
    if buffer is not None and stop > start:
        data[: stop - start] = np.frombuffer(buffer, dtype=np.uint8)[start:stop]
    return data


def _mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64: every bit of the input changes half of the bits of the output."""
    mixed = values + _GOLDEN
    shifted = mixed >> np.uint64(30)
    mixed ^= shifted
    mixed *= _MULTIPLY_1
    np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed ^= shifted
    mixed *= _MULTIPLY_2
    np.right_shift(mixed, np.uint64(31), out=shifted)
    mixed ^= shifted
    return mixed


def _fixed(column: pa.Array, *, dtype: npt.DTypeLike, per_value: int = 1) -> npt.NDArray[Any]:
    if len(column) == 0:
        return np.zeros(0, dtype=dtype)
    values = np.frombuffer(column.buffers()[1], dtype=dtype)
    return values[column.offset * per_value : (column.offset + len(column)) * per_value]


def _normalised_floats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        normalised: npt.NDArray[Any] = values + values.dtype.type(0)
    normalised[np.isnan(normalised)] = np.nan
    return normalised


def _unpack_bits(buffer: pa.Buffer, *, offset: int, length: int) -> npt.NDArray[np.bool_]:
    if length == 0:
        return np.zeros(0, dtype=np.bool_)
    first, last = offset // 8, (offset + length + 7) // 8
    packed = np.frombuffer(buffer, dtype=np.uint8)[first:last]
    skip = offset - first * 8
    return np.unpackbits(packed, bitorder="little")[skip : skip + length].view(np.bool_)
