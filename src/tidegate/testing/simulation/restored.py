"""What must be true of what a slot takes over, before its tasks have done anything with it."""

from collections.abc import Iterator, Sequence

import msgspec

from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators.broadcast_state import SECTION as BROADCAST_SECTION
from tidegate.plan.nodes import RightSide
from tidegate.plan.physical import ConnectSpec, JobPlan
from tidegate.state.codec import decode
from tidegate.state.contract import ROCKSDB_SECTION, RestoredSection
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker.restoring import SlotRestore
from tidegate.worker.state_backends import open_backends


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
        for key, value in entries_of("seen", sections, groups):
            if decode(value)[1] > known:
                raise SimulationFailed(
                    f"key {decode(key)} was handled by rule {decode(value)[1]}, of {known} that are restored"
                )


def entries_of(
    name: str, sections: Sequence[RestoredSection], key_groups: KeyGroupRange
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of one keyed state, in whatever backend it is."""
    keyed = [section for section in sections if section.key_groups is not None]
    backends = open_backends("rocksdb" if any(section.name == ROCKSDB_SECTION for section in keyed) else "heap")
    try:
        backend = backends.open(key_groups)
        backend.restore(keyed)
        for group in range(key_groups.first, key_groups.last):
            yield from backend.keyed(name).scan(group)
    finally:
        backends.close()


def applied_rules(sections: list[RestoredSection]) -> Iterator[int]:
    """How many rules each broadcast state has applied."""
    for section in sections:
        if section.name == BROADCAST_SECTION:
            states = msgspec.msgpack.decode(section.data, type=dict[str, dict[bytes, bytes]])
            yield from (decode(value)[0] for entries in states.values() for value in entries.values())
