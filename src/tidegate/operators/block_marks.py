"""In which blocks of slots something may be marked, so that whoever looks for marks passes over all others.

The marks themselves, a bit for each slot, are the owner's. A block may be named without a mark in it; must never leave
out one that has some.
"""

from typing import Any, Final

import numpy as np

from tidegate.operators.columnar import GrowingArray, Slots

_SHIFT: Final = 4
# With marks on one slot in a hundred, at random, one block in seven has some.
BLOCK_SLOTS: Final = 1 << _SHIFT
# Of fewer slots all are looked at, which takes some µs: rows of few groups come in tens of millions a second.
LEAST_SLOTS: Final = 1 << 17
# So many blocks are looked at in a step: a ms.
_STEP_BLOCKS: Final = 1 << 17
# However few slots are wanted: looking at so many blocks takes some µs.
_LEAST_LOOKED_AT: Final = 1 << 10
# From so many blocks on, what is in them is estimated.
_SAMPLE_BLOCKS: Final = 1 << 10


class BlockMarks:
    """Of the slots that have `bit` in `flags`."""

    def __init__(self, flags: GrowingArray[Any], bit: int) -> None:
        self._flags = flags
        self.bit = np.uint8(bit)
        self._blocks: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        # Whether there are so few slots that blocks are not kept.
        self._is_small = True

    def grow_to(self, slot_count: int) -> None:
        """Before slots from there on are marked."""
        block_count = -(-slot_count // BLOCK_SLOTS)
        if block_count == self._blocks.count:
            return
        self._blocks.grow_to(block_count)
        if self._is_small and slot_count >= LEAST_SLOTS:
            self._is_small = False
            self.mark_all()

    def mark(self, slots: Slots) -> None:
        """These have the bit."""
        if not self._is_small:
            self._blocks.used[slots >> _SHIFT] = True

    def mark_all(self) -> None:
        """Any slot may have it."""
        self._blocks.used[:] = True

    def clear(self) -> None:
        """No slot has it."""
        self._blocks.used[:] = False

    def on_renumbered(self, slot_count: int) -> None:
        """Slots have other numbers now, and there are so many."""
        self._blocks = GrowingArray(np.bool_)
        self._is_small = True
        self.grow_to(slot_count)

    def count(self) -> int:
        """How many slots have the bit; about so many, if they are in many blocks."""
        marked = self._marked(0, self._blocks.count)
        step = max(1, len(marked) // _SAMPLE_BLOCKS)
        return step * int(np.count_nonzero(self._bits_of(marked[::step])))

    def is_empty(self) -> bool:
        """False, if there may be some."""
        if self._is_small:
            return not (self._flags.used.view(np.uint8) & self.bit).any()
        return not self._blocks.used.any()

    def slots(self) -> Slots:
        """All that have the bit, ascending."""
        marked = self._marked(0, self._blocks.count)
        return _slots_at(marked, np.flatnonzero(self._bits_of(marked)))

    def take(self, start: int, most: int) -> tuple[Slots, int]:
        """Up to so many slots from `start` on that have the bit, ascending, and from which slot on it has not looked.

        The caller sees to it that they do not have the bit any more. `start` is 0, or where the last call ended; what
        is marked below it meanwhile is for the next round.
        """
        first = start >> _SHIFT
        stop = min(first + _STEP_BLOCKS, self._blocks.count)
        marked = self._marked(first, stop)
        most_blocks = max(most, _LEAST_LOOKED_AT)
        if len(marked) > most_blocks:
            marked, stop = marked[:most_blocks], int(marked[most_blocks])
        bits = self._bits_of(marked)
        # Of a block that the last call has left amid.
        below = bits[: start & (BLOCK_SLOTS - 1)] if len(marked) and marked[0] == first else bits[:0]
        is_left = bool(below.any())
        below[:] = False
        if len(bits) > most and np.count_nonzero(bits) > most:
            ends = np.cumsum(np.count_nonzero(bits.reshape(-1, BLOCK_SLOTS), axis=1))
            bits = bits[: (int(np.searchsorted(ends, most)) + 1) * BLOCK_SLOTS]
            slots = _slots_at(marked, np.flatnonzero(bits)[:most])
            looked_to = int(slots[-1]) + 1
        else:
            slots, looked_to = _slots_at(marked, np.flatnonzero(bits)), stop << _SHIFT
        self._blocks.used[first : looked_to >> _SHIFT] = False
        if is_left:
            self._blocks.used[first] = True
        return slots, min(looked_to, self._flags.count)

    def _marked(self, first: int, stop: int) -> Slots:
        if self._is_small:
            return np.arange(first, stop)
        return np.flatnonzero(self._blocks.used[first:stop]) + first

    def _bits_of(self, blocks: Slots) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Of their slots, one after the other, whether they have the bit."""
        bits = self._flags.in_rows_of(BLOCK_SLOTS).view(np.uint8).take(blocks, axis=0).ravel()
        bits &= self.bit
        return bits != 0 if self.bit != 1 else bits.view(np.bool_)


def _slots_at(blocks: Slots, places: Slots) -> Slots:
    """Of the slots of these blocks, one after the other, those at these places."""
    slots: Slots = blocks[places >> _SHIFT]
    slots <<= _SHIFT
    slots += places & (BLOCK_SLOTS - 1)
    return slots
