"""Who holds entries: a number for each slot that has some, which it keeps when slots get other numbers.

A slot that was cleared has none, and gets another one with what comes next, so that what it held before is nobody's. A
number is given again once it is known that no entry has it any more; must never be before.
"""

from typing import Any, Final

import numpy as np

from tidegate.operators.columnar import Flags, GrowingArray, Slots

_NOBODY: Final = 0

# Of a number: to be given; held by a slot; held by none, while entries may have it; the same, and those are being left
# behind.
_FREE, _HELD, _DEAD, _GOING = 0, 1, 2, 3


class Owners:
    def __init__(self) -> None:
        self._of_slots: GrowingArray[np.int32] = GrowingArray(np.int32)
        self._states: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        self._states.grow_to(1)
        self._free: Slots = np.zeros(0, dtype=np.int64)

    @property
    def count(self) -> int:
        """All numbers are below it."""
        return self._states.count

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot."""
        return [self._of_slots]

    def grow_to(self, slot_count: int) -> None:
        self._of_slots.grow_to(slot_count)

    def of(self, slots: Slots | None) -> Slots:
        """Of these slots, or of all; 0 for one that has nothing."""
        owners = self._of_slots.used if slots is None else self._of_slots.used[slots]
        return owners.astype(np.int64)

    def of_or_new(self, slots: Slots) -> Slots:
        owners = self.of(slots)
        without = np.flatnonzero(owners == _NOBODY)
        if len(without):
            missing = slots[without]
            # The last write to a place stays, so that of the same slots one is chosen.
            marks = np.arange(len(missing))
            self._of_slots.used[missing] = marks
            new = missing[self._of_slots.used[missing] == marks]
            self._of_slots.used[new] = self._given(len(new))
            owners[without] = self._of_slots.used[missing]
        return owners

    def clear(self, slots: Slots) -> Slots:
        """These slots have nothing any more. Who is nobody now."""
        owners = self.of(slots)
        self._of_slots.used[slots] = _NOBODY
        dead: Slots = owners[owners != _NOBODY]
        self._states.used[dead] = _DEAD
        return dead

    def keep(self) -> Slots:
        """Slots have other numbers now, and some are gone, whose owners are nobody now: those."""
        is_held = np.zeros(self.count, dtype=np.bool_)
        is_held[self._of_slots.used] = True
        dead = np.flatnonzero((self._states.used == _HELD) & ~is_held)
        self._states.used[dead] = _DEAD
        return dead

    def is_somebody(self, owners: Slots) -> Flags:
        flags: Flags = self._states.used[owners] == _HELD
        return flags

    def begin_leaving(self) -> None:
        """From now on no entry of those that are nobody is copied."""
        self._states.used[self._states.used == _DEAD] = _GOING

    def end_leaving(self) -> None:
        """There is no entry any more of those that were nobody when it began."""
        gone = np.flatnonzero(self._states.used == _GOING)
        self._states.used[gone] = _FREE
        self._free = np.concatenate([self._free, gone])

    def size_bytes(self) -> int:
        return self._of_slots.used.nbytes + self._states.used.nbytes + self._free.nbytes

    def _given(self, count: int) -> Slots:
        again = self._free[max(0, len(self._free) - count) :]
        self._free = self._free[: len(self._free) - len(again)]
        first = self.count
        self._states.grow_to(first + count - len(again))
        given = np.concatenate([again, np.arange(first, self.count)])
        self._states.used[given] = _HELD
        return given
