"""Event time of groups: which rows are late, which groups are finished, both by Spark's predicate `end <= watermark`.

Keeps each group's end by slot. Must never call a group finished before the watermark of its key group has passed it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.due_slots import DueSlots
from tidegate.plan.key_groups import Hashes, fixed_values_of, key_group_of, validity_of
from tidegate.protocol.watermarks import FIRST_EVENT_TIME_MS

_US_PER_MS = 1000
# A group without an event time is never finished, and a row without one never late.
_NEVER_US = np.iinfo(np.int64).max
_TICKS_PER_US = {"us": 1, "ms": 1000}


# A call looks at so many slots, or at as many as have so many that are due: a few ms either way.
MOST_LOOKED_AT = 1 << 19
MOST_FOUND = 1 << 16
_NO_SLOTS: Slots = np.zeros(0, dtype=np.int64)
# Of some slots, the hashes of their keys.
HashesOf: TypeAlias = Callable[[slice | Slots], Hashes]


@dataclass(frozen=True, slots=True)
class Finished:
    """`has_more`: there are more, or there may be."""

    slots: Slots
    has_more: bool


NONE_FINISHED = Finished(_NO_SLOTS, has_more=False)


class Expiry:
    def __init__(self) -> None:
        self._ends_us: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._is_live: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._watermark_ms = FIRST_EVENT_TIME_MS
        # No live group ends sooner; kept loose, made tight when groups are looked through.
        self._first_end_us = _NEVER_US
        self._context: TaskContext | None = None
        self._floors_us: npt.NDArray[np.int64] | None = None
        self._due: DueSlots | None = None
        self._looked_at = 0
        self._looked_for_ms = FIRST_EVENT_TIME_MS

    def open(self, context: TaskContext) -> None:
        self._context = context
        self._set_floors()

    @property
    def live(self) -> Flags:
        return self._is_live.used

    def live_slots(self) -> Slots:
        return np.flatnonzero(self._is_live.used)

    @property
    def ends_us(self) -> npt.NDArray[np.int64]:
        return self._ends_us.used

    def frozen_live(self) -> Flags:
        """As it is now, to be read later; so are the ends."""
        return self._is_live.frozen()

    def frozen_ends_us(self) -> npt.NDArray[np.int64]:
        return self._ends_us.frozen()

    def on_watermark(self, event_time_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, event_time_ms)
        self._set_floors()

    def late(self, ends_us: npt.NDArray[np.int64], hashes: Callable[[], Hashes]) -> Flags:
        """Rows whose group was finished already."""
        flags: Flags = ends_us <= self._watermarks_us(hashes)
        return flags

    def watch(self, slots: Slots, ends_us: npt.NDArray[np.int64], slot_count: int) -> None:
        """These groups are there, and end then."""
        self._ends_us.grow_to(slot_count)
        self._is_live.grow_to(slot_count)
        self._ends_us.used[slots] = ends_us
        self._is_live.used[slots] = True
        if len(ends_us):
            self._first_end_us = min(self._first_end_us, int(ends_us.min()))

    def finished(self, most: int, hashes: HashesOf) -> Finished:
        """Up to so many live groups whose end has passed, the earliest first.

        A call looks at a bounded number of slots. While groups are being given out a snapshot may fall in between:
        what is left then is found again.
        """
        if self._due is None:
            if self._floors_us is None and self._first_end_us > _as_us(self._watermark_ms):
                return NONE_FINISHED
            self._begin_look()
        assert self._due is not None
        if self._looked_at < self._ends_us.count:
            self._look(self._due, hashes)
            if self._looked_at < self._ends_us.count:
                return Finished(_NO_SLOTS, has_more=True)
        slots = self._still_due(self._due.take(most), hashes)
        if self._due.is_empty():
            self._due = None
            # Event time may have passed more of them meanwhile.
            return Finished(slots, has_more=self._watermark_ms != self._looked_for_ms)
        return Finished(slots, has_more=True)

    def is_giving_out(self) -> bool:
        """Whether slots that are finished were found and not all given out yet."""
        return self._due is not None

    def _still_due(self, slots: Slots, hashes: HashesOf) -> Slots:
        """Rows that came since may have moved the end of a session."""
        has_ended = self._ends_us.used[slots] <= self._watermarks_us(partial(hashes, slots))
        return slots[self._is_live.used[slots] & has_ended]

    def _begin_look(self) -> None:
        self._due, self._looked_at, self._looked_for_ms = DueSlots(), 0, self._watermark_ms
        self._first_end_us = _NEVER_US

    def _look(self, due: DueSlots, hashes: HashesOf) -> None:
        """Goes over slots until it has seen, or found, as many as a step may."""
        looked, found = 0, 0
        while looked < MOST_LOOKED_AT and found < MOST_FOUND and self._looked_at < self._ends_us.count:
            part = slice(self._looked_at, min(self._looked_at + MOST_FOUND, self._ends_us.count))
            live, ends = self._is_live.used[part], self._ends_us.used[part]
            is_due = live & (ends <= self._watermarks_us(partial(hashes, part)))
            left = ends[live & ~is_due]
            if len(left):
                self._first_end_us = min(self._first_end_us, int(left.min()))
            slots = np.flatnonzero(is_due)
            due.add(slots + part.start, ends[slots])
            looked, found, self._looked_at = looked + len(ends), found + len(slots), part.stop

    def end(self, slots: Slots) -> None:
        self._is_live.used[slots] = False

    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot; slots may get another number while none that is finished waits to be given out."""
        assert self._due is None, "slots that were found would mean other groups"
        return [self._ends_us, self._is_live]

    def size_bytes(self) -> int:
        return self._ends_us.used.nbytes + self._is_live.used.nbytes

    def watermarks_us(self) -> npt.NDArray[np.int64]:
        """Of each key group."""
        if self._floors_us is not None:
            return self._floors_us
        assert self._context is not None
        return np.full(self._context.max_parallelism, _as_us(self._watermark_ms))

    def _watermarks_us(self, hashes: Callable[[], Hashes]) -> npt.NDArray[np.int64] | int:
        if self._floors_us is None:
            return _as_us(self._watermark_ms)
        assert self._context is not None
        return self._floors_us[key_group_of(hashes(), self._context.max_parallelism)]

    def _set_floors(self) -> None:
        """While the old owner of some key group was further than this task, each key group has a watermark."""
        assert self._context is not None
        floors = self._context.floors
        if not floors.pending(self._watermark_ms):
            self._floors_us = None
            return
        groups = range(self._context.max_parallelism)
        self._floors_us = np.array([_as_us(floors.of(group, self._watermark_ms)) for group in groups], dtype=np.int64)


def end_of(key: pa.Array) -> npt.NDArray[np.int64]:
    """The event time of a key in microseconds: its own, or the second field of a window of start and end."""
    return _microseconds(key.flatten()[1] if pa.types.is_struct(key.type) else key)


def start_of(window: pa.Array) -> npt.NDArray[np.int64]:
    return _microseconds(window.flatten()[0])


def _microseconds(key: pa.Array) -> npt.NDArray[np.int64]:
    ticks = fixed_values_of(key) * np.int64(_TICKS_PER_US[key.type.unit])
    valid = validity_of(key)
    return ticks if valid is None else np.where(valid, ticks, _NEVER_US)


def _as_us(event_time_ms: int) -> int:
    return max(-_NEVER_US - 1, min(event_time_ms * _US_PER_MS, _NEVER_US - 1))
