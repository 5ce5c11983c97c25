"""Event time of groups: which rows are late, which groups are finished, both by Spark's predicate `end <= watermark`.

Keeps each group's end by slot. Must never call a group finished before the watermark of its key group has passed it.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.plan.key_groups import Hashes, fixed_values_of, key_group_of, validity_of
from tidegate.protocol.watermarks import FIRST_EVENT_TIME_MS

_US_PER_MS = 1000
# A group without an event time is never finished, and a row without one never late.
_NEVER_US = np.iinfo(np.int64).max
_TICKS_PER_US = {"us": 1, "ms": 1000}


class Expiry:
    def __init__(self) -> None:
        self._ends_us: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._is_live: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._watermark_ms = FIRST_EVENT_TIME_MS
        # No live group ends sooner; kept loose, made tight when groups are looked through.
        self._first_end_us = _NEVER_US
        self._context: TaskContext | None = None
        self._floors_us: npt.NDArray[np.int64] | None = None

    def open(self, context: TaskContext) -> None:
        self._context = context
        self._set_floors()

    @property
    def live(self) -> Flags:
        return self._is_live.used

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

    def finished(self, hashes: Callable[[], Hashes]) -> Slots:
        """Slots of live groups whose end has passed, the earliest first; `hashes` are those of all slots."""
        if self._floors_us is None and self._first_end_us > _as_us(self._watermark_ms):
            return np.zeros(0, dtype=np.int64)
        live, ends = self._is_live.used, self._ends_us.used
        is_due = live & (ends <= self._watermarks_us(hashes))
        left = ends[live & ~is_due]
        self._first_end_us = int(left.min()) if len(left) else _NEVER_US
        due: Slots = np.flatnonzero(is_due)
        # While these are being emitted a snapshot may fall in between: what is left then is found again.
        due_ends = ends[due]
        if len(due) < 2 or (due_ends[1:] >= due_ends[:-1]).all():
            # Windows of one end, however many: sorting them would take longer than a slice.
            return due
        return due[np.argsort(due_ends, kind="stable")]

    def end(self, slots: Slots) -> None:
        self._is_live.used[slots] = False

    def keep(self, slots: Slots) -> None:
        self._ends_us.keep(slots)
        self._is_live.keep(slots)

    def size_bytes(self) -> int:
        return self._ends_us.used.nbytes + self._is_live.used.nbytes

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
