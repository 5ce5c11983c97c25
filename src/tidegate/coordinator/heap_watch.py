"""Whether state in memory is about to outgrow its workers: says so once, with what to set.

A slot's share of memory is that of its machine or container, divided by the query's slots there. State counts as it is
stored; in memory it takes more, so that the warning comes while there is still time. Decides nothing.
"""

import logging
from collections import Counter
from collections.abc import Iterable

from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.views import TaskCheckpointView
from tidegate.model.ids import SlotIndex
from tidegate.model.units import format_bytes
from tidegate.network.messages import SlotIntroduction
from tidegate.operators.described import can_leave_memory
from tidegate.state.contract import HEAP

log = logging.getLogger("tidegate")

# In Python's dictionaries state takes two to four times what it takes in a file.
WARN_AT_SHARE = 0.4


class HeapWatch:
    """`largest_share`: what state took of its slot's memory at the newest checkpoint, in the fullest one."""

    def __init__(self, spec: JobSpec) -> None:
        self._query = spec.name
        plan = spec.slot_settings.plan
        can_move = {f"v{vertex.id}" for vertex in plan.vertices if any(map(can_leave_memory, vertex.operators))}
        is_on_heap = spec.slot_settings.state_backend == HEAP
        # What RocksDB holds is not in memory; what it cannot hold is, whatever the backend.
        self._movable = can_move if is_on_heap else set()
        self._elsewhere = set() if is_on_heap else can_move
        self._slots: dict[SlotIndex, SlotIntroduction] = {}
        self.largest_share: float | None = None
        self.warnings: tuple[str, ...] = ()

    def on_joined(self, slot: SlotIndex, introduction: SlotIntroduction) -> None:
        # Those of an earlier launch may have been more, or elsewhere.
        self._slots = {at: one for at, one in self._slots.items() if one.launch == introduction.launch}
        self._slots[slot] = introduction

    def on_completed(self, tasks: Iterable[TaskCheckpointView]) -> None:
        state_bytes: Counter[int] = Counter()
        movable_bytes: Counter[int] = Counter()
        for task in tasks:
            vertex, _, slot = task.task.partition(".")
            if vertex not in self._elsewhere:
                state_bytes[int(slot)] += task.state_bytes
            if vertex in self._movable:
                movable_bytes[int(slot)] += task.state_bytes
        shares = {slot: size / share for slot, size in state_bytes.items() if (share := self._share_bytes(slot))}
        if not shares:
            return
        fullest = max(shares, key=lambda slot: shares[slot])
        self.largest_share = shares[fullest]
        if self.largest_share >= WARN_AT_SHARE and not self.warnings:
            self._warn(fullest, state_bytes[fullest], can_move=movable_bytes[fullest] * 2 >= state_bytes[fullest])

    def _share_bytes(self, slot: int) -> float | None:
        introduction = self._slots.get(SlotIndex(slot))
        if introduction is None or introduction.memory_bytes is None:
            return None
        beside = [one for one in self._slots.values() if one.address.host_id == introduction.address.host_id]
        return introduction.memory_bytes / len(beside)

    def _warn(self, slot: int, size_bytes: int, *, can_move: bool) -> None:
        share_bytes = self._share_bytes(slot)
        assert share_bytes is not None, "known, since it was compared with"
        remedy = (
            "set .option('state.backend', 'rocksdb'), which keeps it on disk"
            if can_move
            else "give the executors more memory, or the query more slots on more machines"
        )
        sentence = (
            f"The state in slot {slot} takes {format_bytes(size_bytes)} as stored, and more in memory, of which the "
            f"slot has {format_bytes(share_bytes)}: {remedy}."
        )
        self.warnings = (sentence,)
        log.warning("Query %r: %s", self._query, sentence)
