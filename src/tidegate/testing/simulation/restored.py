"""What must be true of what a slot takes over, before its tasks have done anything with it."""

from collections.abc import Iterator

import msgspec

from tidegate.model.ids import SlotIndex, TaskId, range_of
from tidegate.operators.broadcast_state import SECTION as BROADCAST_SECTION
from tidegate.plan.nodes import RightSide
from tidegate.plan.physical import ConnectSpec, JobPlan
from tidegate.state.codec import decode
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker.restoring import SlotRestore


def check_restored(restore: SlotRestore, plan: JobPlan, slot: SlotIndex) -> None:
    """No key has been handled by a rule that its subtask does not know: the most advanced one's rules are restored."""
    for vertex in plan.vertices:
        restored = restore.tasks.get(TaskId(vertex.id, slot))
        head = vertex.operators[0] if vertex.operators else None
        if restored is None or not isinstance(head, ConnectSpec) or head.right_side is not RightSide.BROADCAST:
            continue
        sections = restored.sections.get(0, [])
        known = max(applied_rules(sections), default=0)
        parallelism = plan.parallelism_of(vertex.id)
        groups = range_of(slot, parallelism=parallelism, max_parallelism=plan.max_parallelism)
        backend = HeapBackend(groups)
        backend.restore([section for section in sections if section.key_groups is not None])
        for group in range(groups.first, groups.last):
            for key, value in backend.keyed("seen").scan(group):
                if decode(value)[1] > known:
                    raise SimulationFailed(
                        f"key {decode(key)} was handled by rule {decode(value)[1]}, of {known} that are restored"
                    )


def applied_rules(sections: list[RestoredSection]) -> Iterator[int]:
    """How many rules each broadcast state has applied."""
    for section in sections:
        if section.name == BROADCAST_SECTION:
            states = msgspec.msgpack.decode(section.data, type=dict[str, dict[bytes, bytes]])
            yield from (decode(value)[0] for entries in states.values() for value in entries.values())
