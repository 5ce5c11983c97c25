"""Sessions by slot: which key each is of, when it starts, and which of them rows join or make one.

The sessions of a key are a chain of slots, the latest first: rows look at those that end after their first one starts,
however many there are. Must never touch single rows in Python, nor own what a session is about.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidegate.operators.accumulators.contract import distinct_slots
from tidegate.operators.columnar import GrowingArray, Slots

_NONE = 0  # slots in the chains are counted from 1
_BEFORE_ALL_US = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Joined:
    """`slots` with `ends_us`: sessions that are new or have grown; `absorbed` ones are part of `absorbed_by` now."""

    slot_of_row: Slots
    slots: Slots
    ends_us: npt.NDArray[np.int64]
    absorbed: Slots
    absorbed_by: Slots


class Sessions:
    """Which key each session is of and when it starts; the sessions of a key are a chain of slots."""

    def __init__(self) -> None:
        self.keys: GrowingArray[np.int64] = GrowingArray(np.int64)
        self.starts_us: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._next: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._first_of_key: GrowingArray[np.int64] = GrowingArray(np.int64)
        # Whether the latest is not known to be first in the chain of a key, and so on.
        self._is_mixed: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._free: Slots = np.zeros(0, dtype=np.int64)

    @property
    def count(self) -> int:
        return self.keys.count

    def join(
        self,
        keys: Slots,
        starts_us: npt.NDArray[np.int64],
        row_ends_us: npt.NDArray[np.int64],
        *,
        ends_us: npt.NDArray[np.int64],
        live: npt.NDArray[np.bool_],
    ) -> Joined:
        """Puts rows, as windows of their own, among the sessions of their keys; what touches becomes one session."""
        key_count = int(keys.max()) + 1
        self.grow_keys_to(key_count)
        touched, key_of_row = distinct_slots(keys, key_count)
        first_us = np.full(len(touched), np.iinfo(np.int64).max)
        np.minimum.at(first_us, key_of_row, starts_us)
        held = self._take_out(touched, first_us, ends_us=ends_us, live=live)
        all_keys = np.concatenate([self.keys.used[held], keys])
        all_starts = np.concatenate([self.starts_us.used[held], starts_us])
        all_ends = np.concatenate([ends_us[held], row_ends_us])
        order = np.lexsort((all_ends, all_starts, all_keys))
        numbers = _session_numbers(all_keys[order], all_starts[order], all_ends[order])
        session_of = np.empty(len(order), dtype=np.int64)
        session_of[order] = numbers
        firsts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        starts, ends = all_starts[order][firsts], np.maximum.reduceat(all_ends[order], firsts)
        slots, absorbed, absorbed_by = self._slots_for(held, session_of[: len(held)], len(firsts))
        self.keys.used[slots] = all_keys[order][firsts]
        self.starts_us.used[slots] = starts
        # They are in order of key and start: within a key the latest comes first now, and what was left behind them.
        self._link(slots[::-1])
        return Joined(slots[session_of[len(held) :]], slots, ends, absorbed, absorbed_by)

    def grow_keys_to(self, key_count: int) -> None:
        self._first_of_key.grow_to(max(self._first_of_key.count, key_count))
        self._is_mixed.grow_to(self._first_of_key.count)

    def reserve(self, *, session_count: int, key_count: int) -> None:
        """Room for so many sessions of so many keys, while there are none."""
        for array in (self.keys, self.starts_us, self._next):
            array.reserve(session_count)
        self._first_of_key.reserve(key_count)
        self._is_mixed.reserve(key_count)
        self.grow_keys_to(key_count)

    def add_closed_up(self, keys: Slots, starts_us: npt.NDArray[np.int64]) -> None:
        """Sessions at the next slots; others of their keys may be here already, but no rows have joined them."""
        first = self.count
        self._grow_to(first + len(keys))
        self.keys.used[first:] = keys
        self.starts_us.used[first:] = starts_us
        self._link(np.arange(first, self.count))
        self._is_mixed.used[keys] = True

    def free(self, slots: Slots) -> None:
        """Slots of sessions that are part of others now, in no chain any more: the next new sessions take them."""
        self._free = np.concatenate([self._free, slots])

    def size_bytes(self) -> int:
        by_key = (self._first_of_key, self._is_mixed)
        return sum(array.used.nbytes for array in (self.keys, self.starts_us, self._next, *by_key))

    def of_keys(self, keys: Slots, live: npt.NDArray[np.bool_]) -> Slots:
        """Live sessions of these keys. Takes as many steps as the longest chain has sessions."""
        found = [np.zeros(0, dtype=np.int64)]
        at = self._first_of_key.used[keys]
        while len(at := at[at != _NONE]):
            slots = at - 1
            found.append(slots[live[slots]])
            at = self._next.used[slots]
        return np.concatenate(found)

    def _slots_for(self, held: Slots, session_of: Slots, session_count: int) -> tuple[Slots, Slots, Slots]:
        """Each session's slot: that of one it held already, or a new one; then the others it held, and by whom."""
        slots = np.full(session_count, -1, dtype=np.int64)
        slots[session_of] = held
        is_new = slots < 0
        added = int(np.count_nonzero(is_new))
        again, self._free = self._free[:added], self._free[added:]
        first = self.count
        self._grow_to(first + added - len(again))
        slots[is_new] = np.concatenate([again, np.arange(first, self.count)])
        is_absorbed = slots[session_of] != held
        return slots, held[is_absorbed], slots[session_of[is_absorbed]]

    def _take_out(
        self,
        keys: Slots,
        first_us: npt.NDArray[np.int64],
        *,
        ends_us: npt.NDArray[np.int64],
        live: npt.NDArray[np.bool_],
    ) -> Slots:
        """Live sessions of these keys that do not end before then; the chains have those behind them only."""
        is_mixed = self._is_mixed.used[keys]
        first_us = np.where(is_mixed, _BEFORE_ALL_US, first_us)
        self._is_mixed.used[keys[is_mixed]] = False
        found = [np.zeros(0, dtype=np.int64)]
        at = self._first_of_key.used[keys]
        while len(keys):
            slots = at - 1
            # Of a key that has none left, the last one in the array, which says nothing.
            is_found = (at != _NONE) & (ends_us[slots] >= first_us) if len(ends_us) else np.zeros(len(at), np.bool_)
            self._first_of_key.used[keys] = at
            slots, keys, first_us = slots[is_found], keys[is_found], first_us[is_found]
            found.append(slots[live[slots]])
            at = self._next.used[slots]
        return np.concatenate(found)

    def _link(self, slots: Slots) -> None:
        """Puts sessions in front of the others of their keys."""
        if len(slots) == 0:
            return
        ordered = slots[np.argsort(self.keys.used[slots], kind="stable")]
        owners = self.keys.used[ordered]
        is_last = np.append(owners[1:] != owners[:-1], True)
        is_first = np.append(True, owners[1:] != owners[:-1])
        self._next.used[ordered] = np.where(is_last, self._first_of_key.used[owners], np.append(ordered[1:], -1) + 1)
        self._first_of_key.used[owners[is_first]] = ordered[is_first] + 1

    def _grow_to(self, count: int) -> None:
        for array in (self.keys, self.starts_us, self._next):
            array.grow_to(count)


def _session_numbers(keys: Slots, starts_us: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> Slots:
    """A session number for each window, which are in order of key and start.

    A new session begins where a window starts after all windows of its key before it have ended.
    """
    is_new_key = np.append(True, keys[1:] != keys[:-1])
    # The furthest end so far, per key: by rank, so that key and end together fit into 64 bits.
    ranked = np.sort(ends_us)
    ranks = np.searchsorted(ranked, ends_us)
    furthest = np.maximum.accumulate(np.cumsum(is_new_key) * len(keys) + ranks) % len(keys)
    is_new = is_new_key
    is_new[1:] |= starts_us[1:] > ranked[furthest[:-1]]
    numbers: Slots = np.cumsum(is_new) - 1
    return numbers
