"""Sessions by slot: which key each is of, when it starts, and which of them rows join or make one.

The sessions of a key do not touch each other, and are kept in the order of their starts, so that rows find those that
they touch without a look at the others, however many there are. Must never touch single rows in Python, nor own what a
session is about.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.operators.ordered_slots import OrderedSlots, Places, Spare, places_between

_NOTHING: Slots = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Joined:
    """`slots` with `ends_us`: sessions that are new or have grown; `absorbed` ones are part of `absorbed_by` now."""

    slot_of_row: Slots
    slots: Slots
    ends_us: npt.NDArray[np.int64]
    absorbed: Slots
    absorbed_by: Slots


@dataclass(frozen=True, slots=True)
class _Windows:
    """By key and start. Those of a key do not touch each other."""

    keys: Slots
    starts_us: npt.NDArray[np.int64]
    ends_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Touched:
    """Sessions that windows touch, each once: `of_window` is the first that does, `places` are those of their keys.

    Of each window: `low` is the place of the first session that does not end before it, and `shares` whether it touches
    one that the window before it touches too.
    """

    slots: Slots
    of_window: Slots
    places: Slots
    low: Slots
    shares: Flags


class Sessions:
    """Which key each session is of and when it starts, and the sessions of each key."""

    def __init__(self) -> None:
        self.keys: GrowingArray[np.int64] = GrowingArray(np.int64)
        self.starts_us: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._by_key = OrderedSlots()
        self._spare = Spare()

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
        self._by_key.grow_keys_to(int(keys.max()) + 1)
        windows, window_of_row = _windows_of(keys, starts_us, row_ends_us)
        touched = self._touched(windows, ends_us)
        is_over = ~live[touched.slots]
        if is_over.any():
            # Nothing joins those, and what comes into their time must stand alone there.
            over = Places(windows.keys[touched.of_window[is_over]], touched.places[is_over])
            self._by_key.change(gone=over, added=Places(_NOTHING, _NOTHING), slots=_NOTHING)
            touched = self._touched(windows, ends_us)
        return self._joined(windows, touched, window_of_row, ends_us)

    def _touched(self, windows: _Windows, ends_us: npt.NDArray[np.int64]) -> _Touched:
        starts_us = self.starts_us.used
        low = self._by_key.find(windows.keys, lambda slots, which: ends_us[slots] < windows.starts_us[which])
        high = self._by_key.find(windows.keys, lambda slots, which: starts_us[slots] <= windows.ends_us[which], low)
        shares = np.zeros(len(low), dtype=np.bool_)
        # No more than one: the next session starts after this one, and so after the window before.
        shares[1:] = (windows.keys[1:] == windows.keys[:-1]) & (low[1:] < high[:-1])
        of_window, places = places_between(low + shares, high)
        return _Touched(self._by_key.at(windows.keys[of_window], places), of_window, places, low, shares)

    def _joined(
        self, windows: _Windows, touched: _Touched, window_of_row: Slots, ends_us: npt.NDArray[np.int64]
    ) -> Joined:
        """All that windows touch is there."""
        firsts = np.flatnonzero(~touched.shares)
        lasts = np.append(firsts[1:], len(touched.shares)) - 1
        session_of = np.cumsum(~touched.shares) - 1
        keys, starts, ends = windows.keys[firsts], windows.starts_us[firsts], windows.ends_us[lasts]
        owners = session_of[touched.of_window]
        # Of those that become one, the earliest keeps its slot, and its place among those of its key.
        is_kept, is_latest = _is_first(owners), _is_first(owners[::-1])[::-1]
        grown, kept = owners[is_kept], touched.slots[is_kept]
        starts[grown] = np.minimum(starts[grown], self.starts_us.used[kept])
        ends[grown] = np.maximum(ends[grown], ends_us[touched.slots[is_latest]])
        slots = np.full(len(firsts), -1, dtype=np.int64)
        slots[grown] = kept
        is_new = slots < 0
        slots[is_new] = self._new_slots(int(np.count_nonzero(is_new)))
        self.keys.used[slots] = keys
        self.starts_us.used[slots] = starts
        self._by_key.change(
            gone=Places(keys[owners[~is_kept]], touched.places[~is_kept]),
            added=Places(keys[is_new], touched.low[firsts[is_new]]),
            slots=slots[is_new],
        )
        return Joined(slots[session_of[window_of_row]], slots, ends, touched.slots[~is_kept], slots[owners[~is_kept]])

    def reserve(self, *, session_count: int, key_count: int) -> None:
        """Room for so many sessions of so many keys, while there are none."""
        for array in (self.keys, self.starts_us):
            array.reserve(session_count)
        # Ranges are up to twice as long as what is in them.
        self._by_key.reserve(slot_count=2 * session_count, key_count=key_count)

    def add_closed_up(self, keys: Slots, starts_us: npt.NDArray[np.int64]) -> None:
        """Sessions at the next slots, which touch neither each other nor those that are here."""
        order = np.lexsort((starts_us, keys))
        first = self.count
        self._grow_to(first + len(keys))
        self.keys.used[first:] = keys
        self.starts_us.used[first:] = starts_us
        keys, starts_us, stored_us = keys[order], starts_us[order], self.starts_us.used
        places = self._by_key.find(keys, lambda slots, which: stored_us[slots] < starts_us[which])
        nothing = Places(_NOTHING, _NOTHING)
        self._by_key.change(gone=nothing, added=Places(keys, places), slots=first + order)

    def free(self, slots: Slots) -> None:
        """Slots of sessions that are part of others now: the next new sessions take them."""
        self._spare.give_back(slots)

    def size_bytes(self) -> int:
        return self.keys.used.nbytes + self.starts_us.used.nbytes + self._by_key.size_bytes()

    def of_keys(self, keys: Slots, live: npt.NDArray[np.bool_]) -> Slots:
        """Live sessions of these keys: those of the first, the earliest first, then those of the second."""
        slots = self._by_key.of(keys)
        return slots[live[slots]]

    def _new_slots(self, count: int) -> Slots:
        again, first = self._spare.take(count), self.count
        self._grow_to(first + count - len(again))
        return np.concatenate([again, np.arange(first, self.count)])

    def _grow_to(self, count: int) -> None:
        for array in (self.keys, self.starts_us):
            array.grow_to(count)


def _windows_of(
    keys: Slots, starts_us: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]
) -> tuple[_Windows, Slots]:
    """Rows of a key that touch each other as one window; and the window of each row."""
    order = np.lexsort((starts_us, keys))
    keys, starts_us, ends_us = keys[order], starts_us[order], ends_us[order]
    numbers = _session_numbers(keys, starts_us, ends_us)
    firsts = np.flatnonzero(_is_first(numbers))
    window_of_row = np.empty(len(order), dtype=np.int64)
    window_of_row[order] = numbers
    return _Windows(keys[firsts], starts_us[firsts], np.maximum.reduceat(ends_us, firsts)), window_of_row


def _is_first(numbers: Slots) -> Flags:
    """Of numbers of which equal ones stand together."""
    flags = np.ones(len(numbers), dtype=np.bool_)
    flags[1:] = numbers[1:] != numbers[:-1]
    return flags


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
