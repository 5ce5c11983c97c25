"""Rows that are not in memory: one entry for each, by its key, and found by their ends too.

A key that says when its row ends has that time in front of it, so that what is due is a scan of a key group's first
entries. Where only the row says it, a second entry without a value has the end in front of the key. Must never read or
write single rows where it is given many, nor leave an end without its row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.operators.columnar import KeyIndex, Slots, slots_array
from tidegate.operators.keys_seen import KeysSeen
from tidegate.operators.row_codec import RowCodec, can_encode
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes, hash_rows, key_group_of
from tidegate.state.contract import ROCKSDB_SECTION, RestoredSection, Section, StateBackend
from tidegate.state.heap import refuse_files

# In front of each row; rows of another format are refused.
_FORMAT: Final = b"\x01"
_STATE_NAME: Final = "rows"
_ENDS_NAME: Final = "ends"
_END_BYTES: Final = 8
_NEVER_US: Final = np.iinfo(np.int64).max
_LEAST_US: Final = np.iinfo(np.int64).min
_SIGN: Final = np.uint64(1 << 63)
# So many bytes of rows come back at once, of which there are some copies for a moment: some ten ms.
READ_BYTES: Final = 1 << 22
# So many rows are looked up at once while it is not known how large they are, then up to twice as many as before.
_FIRST_READ: Final = 1 << 8
_MOST_READ: Final = 1 << 14

# From columns, when each row ends.
EndsOf: TypeAlias = Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Ends:
    """When rows end. `is_in_key`: the columns of the key say it; otherwise it takes those of the row."""

    of: EndsOf
    is_in_key: bool


@dataclass(frozen=True, slots=True)
class Keys:
    """Of one row each."""

    key_groups: list[int]
    stored: list[bytes]


def can_leave_memory(schema: pa.Schema, *, key_count: int, stays: str | None) -> bool:
    """Whether such rows can be kept here. `stays`: why not, if that is not for the columns."""
    return stays is None and key_count > 0 and all(can_encode(field.type) for field in schema)


def open_evicted(
    entries: StateBackend | None,
    format: RowFormat,
    *,
    key_count: int,
    max_parallelism: int,
    ends: Ends | None,
    stays: str | None,
    restored: Sequence[RestoredSection],
) -> "EvictedRows | None":
    """None if all rows are kept in memory. `restored`: all that was; raises `IncompatibleCheckpoint`."""
    stored = [section for section in restored if section.name == ROCKSDB_SECTION]
    if can_leave_memory(format.schema, key_count=key_count, stays=stays):
        if entries is not None:
            return EvictedRows(
                entries,
                format.schema,
                key_count=key_count,
                max_parallelism=max_parallelism,
                ends=ends,
                restored=stored,
            )
        for section in stored:
            refuse_files(section)
    elif stored:
        raise IncompatibleCheckpoint(
            f"The checkpoint holds {format.noun} with rows on disk, and this query keeps them in memory "
            f"({stays or 'there is no form for them on disk'}): start with the query it was."
        )
    return None


class EvictedRows:
    """`ends`: None if no row ends. Rows are those of `schema`, the first `key_count` columns the key."""

    def __init__(
        self,
        entries: StateBackend,
        schema: pa.Schema,
        *,
        key_count: int,
        max_parallelism: int,
        ends: Ends | None,
        restored: Sequence[RestoredSection],
    ) -> None:
        kinds = [field.type for field in schema]
        self._entries = entries
        self._schema = schema
        self._keys = RowCodec(kinds[:key_count])
        self._values = RowCodec(kinds[key_count:])
        self._key_count = key_count
        self._max_parallelism = max_parallelism
        self._ends = ends
        # No entry of a key group ends sooner; kept loose, made tight by looking.
        self._first_ends_us = np.full(max_parallelism, _NEVER_US)
        self._read_at_once = _FIRST_READ
        self.has_any = bool(restored)
        # Which keys were restored is not known.
        self._seen = None if restored else KeysSeen()
        if restored:
            entries.restore(restored)
            self._first_ends_us[:] = _LEAST_US
        self._state = entries.keyed(_STATE_NAME)
        self._by_end = entries.keyed(_ENDS_NAME) if ends is not None and not ends.is_in_key else None

    def snapshot(self) -> list[Section]:
        return self._entries.snapshot()

    def size_bytes(self) -> int:
        return self._entries.size_bytes()

    def seen_bytes(self) -> int:
        """What knowing the keys takes in memory."""
        return 0 if self._seen is None else self._seen.size_bytes()

    # -- by slot

    def put(self, rows: Sequence[pa.Array], hashes: Hashes, *, most_seen_bytes: int) -> None:
        """Columns of whole rows. Knowing which keys these are takes no more memory than that."""
        keys, values = rows[: self._key_count], rows[self._key_count :]
        named = self._named(keys, hashes)
        last_end_us = _NEVER_US
        if self._ends is not None:
            ends_us = self._ends.of(rows)
            np.minimum.at(self._first_ends_us, named.key_groups, ends_us)
            last_end_us = int(ends_us.max(initial=_LEAST_US))
            if self._by_end is not None:
                self._by_end.put_many(named.key_groups, _behind(ends_us, named.stored), [b""] * len(ends_us))
        encoded = self._values.encode(values, len(hashes))
        self._learn_from(encoded)
        self._state.put_many(named.key_groups, named.stored, [_FORMAT + row for row in encoded])
        self.has_any = True
        if self._seen is not None:
            self._seen.add(hashes, most_bytes=most_seen_bytes, last_end_us=last_end_us)

    def get(self, index: KeyIndex, slots: Slots) -> Iterator[tuple[Slots, pa.RecordBatch]]:
        """Of those slots, the ones whose keys have an entry, and their rows: by their bytes, some at a time."""
        if self._seen is not None:
            slots = slots[self._seen.may_hold(index.hashes[slots])]
        while len(slots):
            some, slots = slots[: self._read_at_once], slots[self._read_at_once :]
            keys = index.gather(some)
            found = self._read(self._named(keys, index.hashes[some]))
            places = np.array([at for at, row in enumerate(found) if row is not None], dtype=np.int64)
            if len(places) == 0:
                continue
            chosen = slots_array(places)
            columns = [key.take(chosen) for key in keys]
            values = self._decoded([row for row in found if row is not None])
            yield some[places], pa.RecordBatch.from_arrays([*columns, *values], schema=self._schema)

    def delete(self, index: KeyIndex, slots: Slots, ends_us: npt.NDArray[np.int64] | None) -> None:
        """`ends_us`: of their rows as they were written, if the keys do not say it; None to leave those as they are."""
        named = self._named(index.gather(slots), index.hashes[slots])
        self._state.delete_many(named.key_groups, named.stored)
        if self._by_end is not None and ends_us is not None:
            self._by_end.delete_many(named.key_groups, _behind(ends_us, named.stored))

    def remove(self, rows: pa.RecordBatch) -> None:
        """Rows that were found here."""
        named = self._named(rows.columns[: self._key_count], hash_rows(rows, self._key_count))
        self._state.delete_many(named.key_groups, named.stored)
        if self._by_end is not None and self._ends is not None:
            self._by_end.delete_many(named.key_groups, _behind(self._ends.of(rows.columns), named.stored))

    # -- by end

    def may_be_due(self, watermarks_us: npt.NDArray[np.int64], own: range) -> bool:
        """False if no row has ended."""
        groups = slice(own.start, own.stop)
        return self.has_any and bool((self._first_ends_us[groups] <= watermarks_us[groups]).any())

    def due(self, watermarks_us: npt.NDArray[np.int64], own: range, most: int) -> pa.RecordBatch | None:
        """Up to so many rows that have ended, each key group's earliest first; None if there is none.

        Fewer if they are large. They stay until they are deleted, and are found again until then.
        """
        if self._ends is None:
            return None
        if self._seen is not None:
            # Keys that say that they have ended, in every key group, are those of late rows, and not looked up. Others
            # are, until their entries are gone.
            first_us = int((watermarks_us if self._ends.is_in_key else self._first_ends_us)[own.start : own.stop].min())
            self._seen.forget_ended(first_us if self._ends.is_in_key else first_us - 1)
        by_end = self._by_end or self._state
        found: list[tuple[bytes, bytes]] = []
        key_groups: list[int] = []
        left_bytes = READ_BYTES
        for group in own:
            if self._first_ends_us[group] > watermarks_us[group] or len(found) == most or left_bytes <= 0:
                continue
            start, behind = _end_bytes(self._first_ends_us[group]), _end_bytes(int(watermarks_us[group]) + 1)
            ended = by_end.entries_from(group, start, most - len(found), end=behind, most_bytes=left_bytes)
            left_bytes -= sum(len(row) for _, row in ended)
            found += ended
            key_groups += [group] * len(ended)
            first = ended or by_end.entries_from(group, behind, 1)
            self._first_ends_us[group] = _end_from(first[0][0]) if first else _NEVER_US
        if self._by_end is not None:
            found = self._named_by(Keys(key_groups, [key[_END_BYTES:] for key, _ in found]))
        return self._rows_of(found) if found else None

    def _named_by(self, named: Keys) -> list[tuple[bytes, bytes]]:
        """The entries of the first of these keys, which are there, until they take so many bytes."""
        entries: list[tuple[bytes, bytes]] = []
        left_bytes = READ_BYTES
        while len(entries) < len(named.stored) and left_bytes > 0:
            part = slice(len(entries), len(entries) + self._read_at_once)
            some = Keys(named.key_groups[part], named.stored[part])
            rows = [row for row in self._read(some) if row is not None]
            assert len(rows) == len(some.stored), "an end has its row"
            entries += zip(some.stored, rows, strict=True)
            left_bytes -= sum(map(len, rows))
        return entries

    # -- all

    def all_rows(self, own: range, most: int) -> Iterator[pa.RecordBatch]:
        """Up to so many at a time, by key group."""
        for group in own:
            entries = self._state.scan(group)
            while some := list(islice(entries, most)):
                yield self._rows_of(some)

    def _rows_of(self, entries: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        key_start = _END_BYTES if self._ends is not None and self._ends.is_in_key else 0
        keys = self._keys.decode([key[key_start:] for key, _ in entries])
        return pa.RecordBatch.from_arrays([*keys, *self._decoded([row for _, row in entries])], schema=self._schema)

    def _read(self, named: Keys) -> list[bytes | None]:
        found = self._state.get_many(named.key_groups, named.stored)
        self._learn_from([row for row in found if row is not None])
        return found

    def _learn_from(self, rows: Sequence[bytes]) -> None:
        """How many are read at once, by how large the last ones were."""
        fitting = READ_BYTES * len(rows) // max(1, sum(map(len, rows)))
        self._read_at_once = max(1, min(2 * self._read_at_once, fitting, _MOST_READ)) if rows else self._read_at_once

    def _named(self, keys: Sequence[pa.Array], hashes: Hashes) -> Keys:
        stored = self._keys.encode(keys, len(hashes))
        if self._ends is not None and self._ends.is_in_key:
            stored = _behind(self._ends.of(keys), stored)
        return Keys(key_group_of(hashes, self._max_parallelism).tolist(), stored)

    def _decoded(self, rows: Sequence[bytes]) -> list[pa.Array]:
        if any(row[:1] != _FORMAT for row in rows):
            raise Damaged("Rows of state in RocksDB have a format that this version does not read.")
        return self._values.decode([row[1:] for row in rows])


def _behind(ends_us: npt.NDArray[np.int64], keys: Sequence[bytes]) -> list[bytes]:
    """Each key with its end in front, by which they are in order."""
    ends = (ends_us.view(np.uint64) ^ _SIGN).astype(">u8").tobytes()
    return [ends[at * _END_BYTES : (at + 1) * _END_BYTES] + key for at, key in enumerate(keys)]


def _end_bytes(end_us: int) -> bytes:
    return (int(end_us) + (1 << 63)).to_bytes(_END_BYTES, "big")


def _end_from(key: bytes) -> int:
    return int.from_bytes(key[:_END_BYTES], "big") - (1 << 63)
