"""Leaves dead keys behind: an index of the live ones is made part by part, while the one that there is stays in use.

Must never lose a key that came, or came again, while it was being made.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tidegate.operators.columnar import Flags, KeyIndex, Slots

# So many keys are copied in a step: a few ms.
MOST_COPIED_KEYS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Compacted:
    """`slots`: of each slot of the new index, the one that it was in the old."""

    index: KeyIndex
    slots: Slots


class Compaction:
    def __init__(self, index: KeyIndex, live: Flags) -> None:
        self._old = index
        self._slots: Slots = np.flatnonzero(live)
        self._new = index.empty_copy(len(self._slots))

    def advance(self, live: Flags) -> Compacted | None:
        """One part of it; the new index once it is complete. `live`: which slots are so now."""
        self._copy_some()
        if self._new.count < len(self._slots):
            return None
        is_copied = np.zeros(self._old.count, dtype=np.bool_)
        is_copied[self._slots] = True
        missing = np.flatnonzero(live & ~is_copied)
        if len(missing):
            self._slots = np.concatenate([self._slots, missing])
            self._copy_some()
        return Compacted(self._new, self._slots) if self._new.count == len(self._slots) else None

    def _copy_some(self) -> None:
        start = self._new.count
        self._new.append_from(self._old, self._slots[start : start + MOST_COPIED_KEYS])
