"""Groups that changed since they were shown: which they are, when their turn comes, and how many take about a slice.

They are shown round by round, a part of a round in a step, with the values that they have then. What a barrier finds
unshown is stored by key. Must never forget that a group has changed.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.operators.block_marks import BlockMarks
from tidegate.operators.columnar import GrowingArray, KeyIndex, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes
from tidegate.state.contract import RestoredSection, Section

EMIT_INTERVAL_MS: Final = 100.0
# About a slice: groups are shown for so long in one go, and a barrier waits no longer.
SHOWING_MS: Final = 10.0
# Named as what has come and is not done with: a savepoint for other key groups finds it by that name.
SECTION_NAME: Final = "aggregate-arrived"

_FIRST_GROUPS: Final = 16
_GROWTH: Final = 4
# What takes a smaller part of the time says nothing of what a group costs: it is mostly the cost of a call.
_TELLING_PART: Final = 1 / 8
# What groups cost before is trusted for this part of them, until some have shown what they cost today.
_PROBED_PART: Final = 8


class ChangedGroups:
    """`flags`: by slot. `any`: False if there are none; there may be none if it is True."""

    def __init__(self, keys: pa.Schema) -> None:
        self.flags: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self.any = False
        self._blocks = BlockMarks(self.flags, 1)
        self._shown_to = 0
        self._due_at_ms = 0.0
        self._format = RowFormat(SECTION_NAME, "an aggregation", keys)

    def open(self, now_ms: float) -> None:
        self._due_at_ms = now_ms + EMIT_INTERVAL_MS

    @property
    def due_at_ms(self) -> float:
        """When the next part is to be shown, if there are any: a round that was begun goes on at once."""
        return self._due_at_ms

    def grow_to(self, slot_count: int) -> None:
        self.flags.grow_to(slot_count)
        self._blocks.grow_to(slot_count)

    def mark(self, slots: Slots) -> None:
        self.flags.used[slots] = True
        self._blocks.mark(slots)
        self.any = True

    def among(self, slots: Slots) -> Slots:
        changed: Slots = slots[self.flags.used[slots]]
        return changed

    def on_shown(self, slots: Slots) -> None:
        """These were shown out of turn."""
        self.flags.used[slots] = False

    def take(self, most: int, now_ms: float) -> Slots:
        """The next ones, up to so many, which are shown now; none is found if only others were looked at."""
        slots, self._shown_to = self._blocks.take(self._shown_to, most)
        self.flags.used[slots] = False
        if self._shown_to == self.flags.count:
            # Those that changed meanwhile, in front of where it was, wait for the next round.
            self._shown_to, self.any = 0, not self._blocks.is_empty()
            self._due_at_ms = now_ms + EMIT_INTERVAL_MS
        else:
            self._due_at_ms = min(self._due_at_ms, now_ms)
        return slots

    def on_renumbered(self, slot_count: int) -> None:
        """Slots have other numbers now, and there are so many."""
        self._shown_to = 0
        self._blocks.on_renumbered(slot_count)

    def sections(self, index: KeyIndex, context: TaskContext) -> list[Section]:
        """The keys of those that are not shown yet."""
        slots = self._blocks.slots()
        # Keys and hashes never change, so they are read when encoding.
        hashes = index.hashes

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            keys = pa.RecordBatch.from_arrays(index.gather(slots[part]), schema=self._format.schema)
            return keys, hashes[slots[part]]

        return self._format.sections(read, len(slots), context)

    def restored(self, section: RestoredSection, context: TaskContext) -> Iterator[pa.RecordBatch]:
        """The keys of groups that were not shown when the snapshot was taken."""
        return self._format.restored(section, context.key_groups)


class Pace:
    """How many groups are shown in about `SHOWING_MS`, by what showing them has taken lately."""

    def __init__(self, most_groups: int) -> None:
        self._most_groups = most_groups
        self.groups = min(_FIRST_GROUPS, most_groups)

    @property
    def probe_groups(self) -> int:
        """For the first part of some: what is behind the groups may suddenly take a thousand times as long."""
        return self.groups if self.groups <= _FIRST_GROUPS else self.groups // _PROBED_PART

    def observe(self, groups: int, elapsed_ms: float) -> None:
        if elapsed_ms >= _TELLING_PART * SHOWING_MS:
            affordable = int(groups * SHOWING_MS / elapsed_ms)
        elif groups >= self.groups:
            affordable = self._most_groups
        else:
            return
        self.groups = max(1, min(affordable, _GROWTH * self.groups, self._most_groups))
