"""Leaves dead keys behind: an index of the live ones is made part by part, while the one that there is stays in use.

What stands by slot beside the index is copied after the keys, part by part too; if it changes meanwhile, that is begun
anew. Must never lose a key that came, or came again, while it was being made, nor put in place what has changed since.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots

# So many keys are copied in a step: a few ms.
MOST_COPIED_KEYS: Final = 1 << 15
# So many bytes of values are copied in a step: a few ms, most of which is the first touch of new memory.
MOST_COPIED_BYTES: Final = 1 << 22
# Rows come in between only from what the same task holds. If values had to be begun so often, one step does the rest.
MOST_BEGINNINGS: Final = 4
# While rows come all the time: many more keys than come with them, so that it does not go on for ever.
_COPIED_PER_ADDED: Final = 4


class KeptArrays:
    """Arrays by slot with some slots only, made part by part; the arrays must not change until they are in place."""

    def __init__(self, arrays: Sequence[GrowingArray[Any]], slots: Slots) -> None:
        self._arrays = list(arrays)
        self._slots = slots
        self._kept: list[npt.NDArray[Any]] = []
        self._array = 0
        self._copied = 0

    def copy_some(self, most_bytes: int) -> bool:
        """Whether nothing is left then."""
        left_bytes = most_bytes
        while self._array < len(self._arrays) and left_bytes > 0:
            left_bytes -= self._copy_part(left_bytes)
        return self._array == len(self._arrays)

    def put_in_place(self) -> None:
        for array, kept in zip(self._arrays, self._kept, strict=True):
            array.take_over(kept, len(self._slots))

    def _copy_part(self, most_bytes: int) -> int:
        array, start = self._arrays[self._array], self._copied
        if start == 0:
            # Not all of them at once: memory that was used before is filled with zeros.
            self._kept.append(array.memory_for(len(self._slots)))
        kept = self._kept[-1]
        bytes_each = kept.itemsize * int(np.prod(kept.shape[1:]))
        stop = min(start + max(1, most_bytes // bytes_each), len(self._slots))
        kept[start:stop] = array.used[self._slots[start:stop]]
        self._copied = stop
        if stop == len(self._slots):
            self._array, self._copied = self._array + 1, 0
        return (stop - start) * bytes_each


@dataclass(frozen=True, slots=True)
class Compacted:
    """`slots`: of each slot of the new index, the one that it was in the old."""

    index: KeyIndex
    slots: Slots
    values: KeptArrays


def kept(index: KeyIndex, slots: Slots, arrays: Sequence[GrowingArray[Any]]) -> Compacted:
    """At once."""
    values = KeptArrays(arrays, slots)
    values.copy_some(1 << 62)
    return Compacted(index.kept(slots), slots, values)


class Compaction:
    """`arrays`: what stands by slot."""

    def __init__(self, index: KeyIndex, live: Flags, arrays: Sequence[GrowingArray[Any]] = ()) -> None:
        self._old = index
        self._arrays = arrays
        self._slots: Slots = np.flatnonzero(live)
        self._new = index.empty_copy(len(self._slots))
        self._values: KeptArrays | None = None
        self._beginnings = 0
        self._step_keys = MOST_COPIED_KEYS

    def advance(self, live: Callable[[], Flags]) -> Compacted | None:
        """One part of it; the new index once all is complete. `live`: which slots are so now."""
        if self._new.count < len(self._slots):
            self._copy_keys()
            return None
        if self._values is None:
            if self._has_missed(live()):
                self._copy_keys()
                if self._beginnings < MOST_BEGINNINGS or self._new.count < len(self._slots):
                    return None
            self._values = KeptArrays(self._arrays, self._slots)
            self._beginnings += 1
        is_complete = self._values.copy_some(MOST_COPIED_BYTES if self._beginnings <= MOST_BEGINNINGS else 1 << 62)
        return Compacted(self._new, self._slots, self._values) if is_complete else None

    def hurry(self, added_keys: int) -> None:
        """Rows come all the time, the last ones with so many keys: once the keys are copied, one step does the rest."""
        self._step_keys = max(MOST_COPIED_KEYS, _COPIED_PER_ADDED * added_keys)
        self._beginnings = MOST_BEGINNINGS

    def values_changed(self) -> None:
        """What was copied of them is not true any more; there may be new keys too."""
        self._values = None

    def _has_missed(self, live: Flags) -> bool:
        is_copied = np.zeros(self._old.count, dtype=np.bool_)
        is_copied[self._slots] = True
        missing = np.flatnonzero(live & ~is_copied)
        if len(missing):
            self._slots = np.concatenate([self._slots, missing])
        return len(missing) > 0

    def _copy_keys(self) -> None:
        start = self._new.count
        self._new.append_from(self._old, self._slots[start : start + self._step_keys])
