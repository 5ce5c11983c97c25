"""Rows that are not in memory: one entry for each, by its key, and found by their ends too.

A key that ends by event time has its end in front of it, so that what is due is a scan of a key group's first entries.
Must never read or write single rows where it is given many.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import Damaged
from tidegate.operators.columnar import KeyIndex, Slots, slots_array
from tidegate.operators.keys_seen import KeysSeen
from tidegate.operators.row_codec import RowCodec
from tidegate.plan.key_groups import Hashes, key_group_of
from tidegate.state.contract import RestoredSection, Section, StateBackend

# In front of each row; rows of another format are refused.
_FORMAT: Final = b"\x01"
_STATE_NAME: Final = "rows"
_END_BYTES: Final = 8
_NEVER_US: Final = np.iinfo(np.int64).max
_LEAST_US: Final = np.iinfo(np.int64).min
_SIGN: Final = np.uint64(1 << 63)

# From the columns of a key, when it ends.
EndsOf: TypeAlias = Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Keys:
    """Of one row each."""

    key_groups: list[int]
    stored: list[bytes]


class EvictedRows:
    """`ends_of`: None if no key ends. Rows are those of `schema`, the first `key_count` columns the key."""

    def __init__(
        self,
        entries: StateBackend,
        schema: pa.Schema,
        *,
        key_count: int,
        max_parallelism: int,
        ends_of: EndsOf | None,
        restored: Sequence[RestoredSection],
    ) -> None:
        kinds = [field.type for field in schema]
        self._entries = entries
        self._schema = schema
        self._keys = RowCodec(kinds[:key_count])
        self._values = RowCodec(kinds[key_count:])
        self._key_count = key_count
        self._max_parallelism = max_parallelism
        self._ends_of = ends_of
        # No entry of a key group ends sooner; kept loose, made tight by looking.
        self._first_ends_us = np.full(max_parallelism, _NEVER_US)
        self.has_any = bool(restored)
        # Which keys were restored is not known.
        self._seen = None if restored else KeysSeen()
        if restored:
            entries.restore(restored)
            self._first_ends_us[:] = _LEAST_US
        self._state = entries.keyed(_STATE_NAME)

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
        if self._ends_of is not None:
            ends_us = self._ends_of(keys)
            np.minimum.at(self._first_ends_us, named.key_groups, ends_us)
            last_end_us = int(ends_us.max(initial=_LEAST_US))
        encoded = self._values.encode(values, len(hashes))
        self._state.put_many(named.key_groups, named.stored, [_FORMAT + row for row in encoded])
        self.has_any = True
        if self._seen is not None:
            self._seen.add(hashes, most_bytes=most_seen_bytes, last_end_us=last_end_us)

    def get(self, index: KeyIndex, slots: Slots) -> tuple[Slots, pa.RecordBatch | None]:
        """Of those slots, the ones whose keys have an entry, and their rows."""
        if self._seen is not None:
            slots = slots[self._seen.may_hold(index.hashes[slots])]
        if len(slots) == 0:
            return slots, None
        keys = index.gather(slots)
        named = self._named(keys, index.hashes[slots])
        found = self._state.get_many(named.key_groups, named.stored)
        places = np.array([at for at, row in enumerate(found) if row is not None], dtype=np.int64)
        if len(places) == 0:
            return places, None
        chosen = slots_array(places)
        columns = [key.take(chosen) for key in keys]
        values = self._decoded([row for row in found if row is not None])
        return slots[places], pa.RecordBatch.from_arrays([*columns, *values], schema=self._schema)

    def delete(self, index: KeyIndex, slots: Slots) -> None:
        named = self._named(index.gather(slots), index.hashes[slots])
        self._state.delete_many(named.key_groups, named.stored)

    # -- by end

    def due(self, watermarks_us: npt.NDArray[np.int64], own: range, most: int) -> pa.RecordBatch | None:
        """Up to so many rows that have ended, each key group's earliest first; None if there is none.

        They stay until they are deleted, and are found again until then.
        """
        if self._ends_of is None:
            return None
        if self._seen is not None:
            # Rows of keys that have ended in every key group are late, and not looked up.
            self._seen.forget_ended(int(watermarks_us[own.start : own.stop].min()))
        found: list[tuple[bytes, bytes]] = []
        for group in own:
            if self._first_ends_us[group] > watermarks_us[group] or len(found) == most:
                continue
            start, behind = _end_bytes(self._first_ends_us[group]), _end_bytes(int(watermarks_us[group]) + 1)
            ended = self._state.entries_from(group, start, most - len(found), end=behind)
            found += ended
            first = ended or self._state.entries_from(group, behind, 1)
            self._first_ends_us[group] = _end_from(first[0][0]) if first else _NEVER_US
        return self._rows_of(found) if found else None

    # -- all

    def all_rows(self, own: range, most: int) -> Iterator[pa.RecordBatch]:
        """Up to so many at a time, by key group."""
        for group in own:
            entries = self._state.scan(group)
            while some := list(islice(entries, most)):
                yield self._rows_of(some)

    def _rows_of(self, entries: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        key_start = 0 if self._ends_of is None else _END_BYTES
        keys = self._keys.decode([key[key_start:] for key, _ in entries])
        return pa.RecordBatch.from_arrays([*keys, *self._decoded([row for _, row in entries])], schema=self._schema)

    def _named(self, keys: Sequence[pa.Array], hashes: Hashes) -> Keys:
        stored = self._keys.encode(keys, len(hashes))
        if self._ends_of is not None:
            ends = (self._ends_of(keys).view(np.uint64) ^ _SIGN).astype(">u8").tobytes()
            stored = [ends[at * _END_BYTES : (at + 1) * _END_BYTES] + key for at, key in enumerate(stored)]
        return Keys(key_group_of(hashes, self._max_parallelism).tolist(), stored)

    def _decoded(self, rows: Sequence[bytes]) -> list[pa.Array]:
        if any(row[:1] != _FORMAT for row in rows):
            raise Damaged("Rows of state in RocksDB have a format that this version does not read.")
        return self._values.decode([row[1:] for row in rows])


def _end_bytes(end_us: int) -> bytes:
    return (int(end_us) + (1 << 63)).to_bytes(_END_BYTES, "big")


def _end_from(key: bytes) -> int:
    return int.from_bytes(key[:_END_BYTES], "big") - (1 << 63)
