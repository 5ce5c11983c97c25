"""What slots store of a checkpoint comes back whole, at the same parallelism and at any other one."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import ONE, RECEIVER, SENDER, Captured, acknowledged
from tidegate.connectors.registry import open_source
from tidegate.coordinator.history import Underway
from tidegate.model.elements import Batch, EndOfInput, Idle, NumberedElement, Watermark
from tidegate.model.errors import Damaged
from tidegate.model.ids import (
    ChannelId,
    EdgeId,
    Generation,
    KeyGroupRange,
    Sequence,
    SlotIndex,
    TaskId,
    range_of,
)
from tidegate.plan.key_groups import hash_rows, key_group_of, owner_of
from tidegate.plan.lower import fingerprint
from tidegate.plan.matching import match_stored
from tidegate.plan.nodes import Scan
from tidegate.plan.physical import (
    BroadcastPartitioning,
    DeduplicateSpec,
    Edge,
    ForwardPartitioning,
    HashPartitioning,
    JobPlan,
    Partitioning,
    PointwisePartitioning,
    RebalancePartitioning,
    Vertex,
)
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.recovery import CapturedRows
from tidegate.protocol.rescale import connections
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, ChannelWatermark
from tidegate.state import heap
from tidegate.state.contract import Redistribution, Section
from tidegate.state.heap import HeapBackend
from tidegate.storage.manifests import Manifest, decode_manifest, encode_manifest
from tidegate.storage.state_file import SectionKey, StateFile
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import SlotRestore, StoredFiles, read_source_states, restore_slot
from tidegate.worker.stored_task import StoredTask, stored_task
from tidegate.worker.task_reports import TaskSnapshot

SCHEMA = pa.schema([("v", pa.int64())])
MAX_PARALLELISM = 16
MANIFEST = "manifest.json"
EDGES: dict[str, Partitioning] = {
    "hash": HashPartitioning(1),
    "rebalance": RebalancePartitioning(),
    "pointwise": PointwisePartitioning(),
    "broadcast": BroadcastPartitioning(),
    "forward": ForwardPartitioning(),
}


def plan_of(
    parallelism: int,
    partitioning: Partitioning = EDGES["hash"],
    *,
    senders: int | None = None,
    receivers: int | None = None,
    source: Scan | None = None,
) -> JobPlan:
    vertices = (
        Vertex(SENDER, "sender", source, (), None, parallelism=senders),
        Vertex(RECEIVER, "receiver", None, (DeduplicateSpec(1, None, None, SCHEMA),), None, parallelism=receivers),
    )
    return JobPlan(vertices, (Edge(EdgeId(0), SENDER, RECEIVER, partitioning, SCHEMA),), parallelism, MAX_PARALLELISM)


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA))


def values_in(captured: Captured) -> list[int]:
    """Of the rows that are not processed yet."""
    found: list[int] = []
    for at, element in enumerate(captured.elements):
        if isinstance(element, Batch):
            found += element.rows.column(0).to_pylist()[captured.row if at == 0 else 0 :]
    return found


@dataclass(slots=True)
class Job:
    """A checkpoint of a whole job, written by the slots and gathered as the coordinator does it."""

    store: LocalFiles
    plan: JobPlan
    channels: dict[ChannelId, Captured] = field(default_factory=dict)
    sections: Callable[[TaskId], list[Section]] = lambda task: []
    progress: dict[TaskId, StoredTask] = field(default_factory=dict)
    inline_below_bytes: int = 20 << 10
    sources: dict[TaskId, bytes] = field(default_factory=dict)
    state_backend: str = "heap"

    def write(self) -> Manifest:
        underway = Underway(ONE, 0.0, 0)
        for slot in range(self.plan.parallelism):
            underway.acknowledged[SlotIndex(slot)] = acknowledged(
                SlotIndex(slot),
                self.store,
                self.plan,
                self._snapshot,
                self.channels,
                inline_below_bytes=self.inline_below_bytes,
            )
        assert underway.find_gap() is None
        manifest = underway.manifest(
            generation=Generation(1),
            now_ms=1.0,
            fingerprint=fingerprint(self.plan),
            plan=self.plan,
            state_backend=self.state_backend,
        )
        self.store.put(MANIFEST, encode_manifest(manifest))
        return manifest

    def _snapshot(self, task: TaskId) -> TaskSnapshot:
        return TaskSnapshot(
            task=task,
            checkpoint=ONE,
            kind=CheckpointKind.UNALIGNED,
            start_delay_ms=0.0,
            alignment_ms=0.0,
            sync_ms=0.0,
            sections=[(0, section) for section in self.sections(task)],
            source_state=self.sources.get(task),
            progress=self.progress.get(task, StoredTask()),
            prepared=None,
            state_bytes=0,
        )

    def restore(self, plan: JobPlan, captured_rows: CapturedRows = CapturedRows.DELIVER) -> list[SlotRestore]:
        return [
            restore_slot(self.store, MANIFEST, plan, SlotIndex(slot), captured_rows=captured_rows)
            for slot in range(plan.parallelism)
        ]


def in_flight(plan: JobPlan) -> dict[ChannelId, Captured]:
    """On every channel rows that belong there: some half done, some at the receiver, some at the sender."""
    edge = plan.edges[0]
    shape = plan.shape_of(edge)
    captured = {}
    for sender, receiver in connections(shape):
        candidates = list(range(1000 * sender, 1000 * sender + 200))
        if isinstance(edge.partitioning, HashPartitioning):
            owners = owner_of(_key_groups(candidates), parallelism=shape.receivers, max_parallelism=MAX_PARALLELISM)
            own = [value for value, owner in zip(candidates, owners.tolist(), strict=True) if owner == receiver]
        elif isinstance(edge.partitioning, BroadcastPartitioning):
            own = candidates
        else:
            own = candidates[10 * receiver : 10 * receiver + 10]
        # Receivers of a broadcast are not equally far: the last one has the least left.
        first = 5 + receiver
        elements: list[NumberedElement] = [
            rows(*own[0:3]),
            rows(*own[3:5]),
            Watermark(7),
            rows(*own[5:6]),
            rows(*own[6:9]),
        ]
        shift = receiver if isinstance(edge.partitioning, BroadcastPartitioning) else 0
        captured[ChannelId(edge.id, sender, receiver)] = Captured(
            tuple(elements[shift:]), first=first, row=0 if shift else 1, held=2
        )
    return captured


def _key_groups(values: Items[int]) -> "np.typing.NDArray[np.uint16]":
    return key_group_of(hash_rows(rows(*values).rows, 1), MAX_PARALLELISM)


def recovered_values(restore: SlotRestore) -> list[int]:
    return [
        value
        for channel in sorted(restore.recovered)
        for arrived in restore.recovered[channel].elements
        if isinstance(arrived.element, Batch)
        for value in arrived.element.rows.column(0).to_pylist()
    ]


def ends_agree(restores: Items[SlotRestore]) -> None:
    """Where recovered data ends, the sender goes on: both sides know by themselves."""
    expected = {c: recovered.next_sequence for r in restores for c, recovered in r.recovered.items()}
    assert {c: sequence for r in restores for c, sequence in r.next_sequences.items()} == expected
    for restore in restores:
        for recovered in restore.recovered.values():
            numbers = [arrived.sequence for arrived in recovered.elements]
            before = recovered.next_sequence
            assert numbers == list(range(before - len(numbers), before)), "without gaps, up to the first new one"


@pytest.fixture
def store(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


# -- captured elements


@pytest.mark.parametrize("inline_below_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", EDGES)
def test_at_the_same_parallelism_every_channel_is_as_it_was(
    store: LocalFiles, kind: str, inline_below_bytes: int
) -> None:
    plan = plan_of(3, EDGES[kind])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=inline_below_bytes)
    manifest = job.write()
    assert any(slot.shared for slot in manifest.slots) == (inline_below_bytes == 0)
    restores = job.restore(plan)
    ends_agree(restores)
    for channel, captured in job.channels.items():
        recovered = restores[channel.receiver].recovered[channel]
        assert recovered.next_sequence == captured.cut.before
        assert [arrived.sequence for arrived in recovered.elements] == list(range(captured.first, captured.cut.before))
        assert recovered.elements[0].first_row == captured.row
        found = [arrived.element for arrived in recovered.elements]
        assert [value for e in found if isinstance(e, Batch) for value in e.rows[0].to_pylist()] == values_in(captured)
        assert [e for e in found if not isinstance(e, Batch)] == [
            e for e in captured.elements if not isinstance(e, Batch)
        ]
    # What lies in files of its own may be referred to by the next checkpoint, by whoever has it in its gate now.
    known = {(channel, sequence) for restore in restores for channel, sequence, _ in restore.known}
    stored = {(channel, at) for channel, c in job.channels.items() for at in range(c.first, c.cut.before)}
    assert known == (stored if inline_below_bytes == 0 else set())


@pytest.mark.parametrize(("old", "new"), [(4, 4), (4, 3), (3, 4)])
def test_a_slot_reads_what_is_stored_of_a_channel_once(
    store: LocalFiles, monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    """And nothing of channels that are not its own: where a read is a request, all for each would be minutes."""
    plan = plan_of(old, EDGES["hash"])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    job.write()
    read: Counter[SectionKey] = Counter()
    checked = StateFile._checked

    def counted(self: StateFile, entry: Any) -> memoryview:
        read[entry.key] += entry.key.kind == "channel"
        return checked(self, entry)

    monkeypatch.setattr(StateFile, "_checked", counted)
    ends = {(key.task, key.name) for slot in range(old) for key in _channel_sections(store, slot)}
    for slot in range(new):
        read.clear()
        restore_slot(store, MANIFEST, plan_of(new, EDGES["hash"]), SlotIndex(slot))
        assert max(read.values()) == 1
        assert old != new or sum(read.values()) == sum(name.endswith(f":{slot}") for _, name in ends)


def _channel_sections(store: LocalFiles, slot: int) -> list[SectionKey]:
    manifest = decode_manifest(store.read(MANIFEST), name=MANIFEST)
    keys = StoredFiles(store, manifest).section_keys(SlotIndex(slot))
    return [key for key in keys if key.kind == "channel"]


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 3)])
@pytest.mark.parametrize("kind", ["hash", "rebalance", "pointwise", "forward"])
def test_at_another_parallelism_every_row_in_flight_comes_back_once(
    store: LocalFiles, kind: str, old: int, new: int
) -> None:
    plan = plan_of(old, EDGES[kind])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    job.write()
    restores = job.restore(plan_of(new, EDGES[kind]))
    ends_agree(restores)
    found = [recovered_values(restore) for restore in restores]
    assert Counter(v for values in found for v in values) == Counter(
        value for captured in job.channels.values() for value in values_in(captured)
    )
    if kind == "hash":
        for receiver, values in enumerate(found):
            owners = owner_of(_key_groups(values), parallelism=new, max_parallelism=MAX_PARALLELISM)
            assert set(owners.tolist()) <= {receiver}
    assert all(restore.known == [] for restore in restores), "what is numbered anew is written anew"
    elements = [a.element for r in restores for c in r.recovered.values() for a in c.elements]
    assert all(isinstance(element, Batch) for element in elements), "a mark spoke for one old sender"


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 4), (3, 2)])
def test_at_another_parallelism_all_take_what_the_most_advanced_had_left_of_a_broadcast(
    store: LocalFiles, old: int, new: int
) -> None:
    plan = plan_of(old, EDGES["broadcast"])
    job = Job(store, plan, in_flight(plan))
    job.write()
    restores = job.restore(plan_of(new, EDGES["broadcast"]))
    ends_agree(restores)
    left = Counter(v for channel, c in job.channels.items() if channel.receiver == old - 1 for v in values_in(c))
    assert [Counter(recovered_values(restore)) for restore in restores] == [left] * new


def test_a_vertex_may_have_fewer_subtasks_than_there_are_slots(store: LocalFiles) -> None:
    plan = plan_of(3, senders=1, receivers=2)
    job = Job(store, plan, in_flight(plan))
    job.write()
    restores = job.restore(plan)
    ends_agree(restores)
    assert [sorted(restore.tasks) for restore in restores] == [
        [TaskId(SENDER, 0), TaskId(RECEIVER, 0)],
        [TaskId(RECEIVER, 1)],
        [],
    ]
    assert recovered_values(restores[1]) == values_in(job.channels[ChannelId(EdgeId(0), 0, 1)])
    assert restores[2] == SlotRestore({}, {}, {}, [], 0)


def test_a_channel_with_nothing_in_flight_starts_anew_at_both_ends(store: LocalFiles) -> None:
    plan = plan_of(1)
    job = Job(store, plan)
    job.write()
    (restore,) = job.restore(plan)
    assert (restore.recovered, restore.next_sequences, restore.recovered_bytes) == ({}, {}, 0)


def test_marks_keep_their_place_and_an_end_mark_no_more_than_that(store: LocalFiles) -> None:
    plan = plan_of(1)
    channel = ChannelId(EdgeId(0), 0, 0)
    job = Job(store, plan, {channel: Captured((Watermark(9), Idle(), EndOfInput()), first=4)})
    job.write()
    (restore,) = job.restore(plan)
    watermark, idle, end = (arrived.element for arrived in restore.recovered[channel].elements)
    assert (watermark, idle) == (Watermark(9), Idle())
    assert isinstance(end, Batch)
    assert end.rows.num_rows == 0


@pytest.mark.parametrize("new", [1, 2])
def test_a_missing_element_is_damage_and_names_the_channel(store: LocalFiles, new: int) -> None:
    plan = plan_of(1)
    channel = ChannelId(EdgeId(0), 0, 0)
    job = Job(store, plan, {channel: Captured((rows(1), rows(2)), first=4)})
    manifest = job.write()
    longer = msgspec.structs.replace(manifest.channels[0], n=Sequence(7), h=Sequence(7))
    store.put(MANIFEST, encode_manifest(msgspec.structs.replace(manifest, channels=[longer])))
    with pytest.raises(Damaged, match="Channel e0:0->0 should have the elements 4 to 7 in flight, but .* number 6"):
        for slot in range(new):
            restore_slot(store, MANIFEST, plan_of(new), SlotIndex(slot))


@pytest.mark.parametrize("new", [1, 2])
def test_of_a_batch_that_was_stored_before_it_was_half_done_the_done_rows_are_cut_off(
    store: LocalFiles, new: int
) -> None:
    """A later checkpoint refers to the file of an earlier one, which holds all rows, and says how many are done."""
    channel = ChannelId(EdgeId(0), 0, 0)
    job = Job(store, plan_of(1), {channel: Captured((rows(1, 2, 3), rows(4)), first=4)}, inline_below_bytes=0)
    manifest = job.write()
    later = msgspec.structs.replace(manifest.channels[0], row=2)
    store.put(MANIFEST, encode_manifest(msgspec.structs.replace(manifest, channels=[later])))
    restores = job.restore(plan_of(new))
    assert sorted(value for restore in restores for value in recovered_values(restore)) == [3, 4]
    if new == 1:
        head = restores[0].recovered[channel].elements[0]
        assert (head.sequence, head.first_row) == (4, 2)


def test_a_damaged_shared_file_is_named(store: LocalFiles) -> None:
    plan = plan_of(1)
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    manifest = job.write()
    (file,) = manifest.slots[0].shared
    store.put(file.path, b"x" * file.length)
    with pytest.raises(Damaged, match=file.path):
        job.restore(plan)


# -- state


def _heap_sections(task: TaskId, plan: JobPlan) -> list[Section]:
    """Twenty keys in each key group that the task owns."""
    own = range_of(task.subtask, parallelism=plan.parallelism_of(task.vertex), max_parallelism=plan.max_parallelism)
    backend = HeapBackend(own)
    for key_group in range(own.first, own.last):
        for number in range(20):
            backend.keyed("count").put(key_group, b"%d.%d" % (key_group, number), b"%d" % number)
    return backend.snapshot()


@pytest.mark.parametrize(("old", "new"), [(2, 2), (1, 3), (3, 1), (2, 3), (3, 2), (2, 5)])
def test_keyed_state_goes_to_the_owners_of_its_key_groups(store: LocalFiles, old: int, new: int) -> None:
    plan, new_plan = plan_of(old), plan_of(new)
    job = Job(store, plan, sections=lambda task: _heap_sections(task, plan) if task.vertex == RECEIVER else [])
    job.write()
    for slot, restore in enumerate(job.restore(new_plan)):
        own = range_of(slot, parallelism=new, max_parallelism=MAX_PARALLELISM)
        backend = HeapBackend(own)
        backend.restore(restore.tasks[TaskId(RECEIVER, slot)].sections[0])
        found = [len(list(backend.keyed("count").scan(key_group))) for key_group in range(MAX_PARALLELISM)]
        assert found == [20 if key_group in own else 0 for key_group in range(MAX_PARALLELISM)]
        assert backend.keyed("count").get(own.first, b"%d.7" % own.first) == b"7"


@pytest.mark.parametrize(("old", "new"), [(1, 8), (2, 3), (3, 2), (2, 2)])
def test_state_of_other_key_groups_is_not_read_and_the_rest_when_a_backend_takes_it(
    store: LocalFiles, monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    """Else each of eight slots would read, and have in memory, all that the only one had."""
    monkeypatch.setattr(heap, "SECTION_TARGET_BYTES", 1)
    plan, new_plan = plan_of(old), plan_of(new)
    job = Job(store, plan, sections=lambda task: _heap_sections(task, plan) if task.vertex == RECEIVER else [])
    job.write()
    read: list[SectionKey] = []
    checked = StateFile._checked

    def noted(self: StateFile, entry: Any) -> memoryview:
        read.append(entry.key)
        return checked(self, entry)

    monkeypatch.setattr(StateFile, "_checked", noted)
    for slot, restore in enumerate(job.restore(new_plan)):
        assert not [key for key in read if key.kind == "state"]
        own = range_of(slot, parallelism=new, max_parallelism=MAX_PARALLELISM)
        backend = HeapBackend(own)
        backend.restore(restore.tasks[TaskId(RECEIVER, slot)].sections[0])
        key_groups = [key.key_groups for key in read if key.kind == "state"]
        assert key_groups == [KeyGroupRange(group, group + 1) for group in range(own.first, own.last)]
        assert backend.size_bytes() > 0
        read.clear()


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 2)])
def test_damaged_state_is_named_when_it_is_read(store: LocalFiles, old: int, new: int) -> None:
    plan = plan_of(old)
    job = Job(store, plan, sections=lambda task: _heap_sections(task, plan) if task.vertex == RECEIVER else [])
    (file,) = job.write().slots
    data = bytearray(store.read(file.path))
    data[data.index(b"0.7")] ^= 1
    store.put(file.path, bytes(data))
    sections = job.restore(plan_of(new))[0].tasks[TaskId(RECEIVER, 0)].sections[0]
    with pytest.raises(Damaged, match=rf"State file {file.path} is damaged: the checksum of section state 'keyed/"):
        HeapBackend(range_of(0, parallelism=new, max_parallelism=MAX_PARALLELISM)).restore(sections)


def _items(task: TaskId) -> list[bytes]:
    return [b"%d-%d" % (task.subtask, number) for number in range(3)]


def _one_of_each(task: TaskId) -> list[Section]:
    items = msgspec.msgpack.encode(_items(task))
    return [
        Section("list", None, lambda: items, Redistribution.SPLIT),
        Section("all", None, lambda: b"of %d" % task.subtask, Redistribution.UNION),
        Section("rules", None, lambda: b"of %d" % task.subtask, Redistribution.BROADCAST),
    ]


def _restored_by_name(restores: Items[SlotRestore]) -> list[dict[str, list[bytes]]]:
    found: list[dict[str, list[bytes]]] = []
    for slot, restore in enumerate(restores):
        named: dict[str, list[bytes]] = {}
        for section in restore.tasks[TaskId(RECEIVER, slot)].sections.get(0, []):
            named.setdefault(section.name, []).append(bytes(section.data))
        found.append(named)
    return found


@pytest.mark.parametrize(("old", "new"), [(2, 2), (1, 3), (3, 1), (2, 3), (4, 2)])
def test_split_items_are_dealt_out_once(store: LocalFiles, old: int, new: int) -> None:
    job = Job(store, plan_of(old), sections=_one_of_each)
    job.write()
    dealt = [
        [item for data in named.get("list", []) for item in msgspec.msgpack.decode(data, type=list[bytes])]
        for named in _restored_by_name(job.restore(plan_of(new)))
    ]
    items = [item for subtask in range(old) for item in _items(TaskId(RECEIVER, subtask))]
    assert sorted(item for own in dealt for item in own) == sorted(items)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 3)])
def test_union_sections_of_all_go_to_everyone(store: LocalFiles, old: int, new: int) -> None:
    job = Job(store, plan_of(old), sections=_one_of_each)
    job.write()
    for named in _restored_by_name(job.restore(plan_of(new))):
        assert named["all"] == [b"of %d" % subtask for subtask in range(old)]


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 4), (3, 2)])
def test_the_broadcast_state_of_the_most_advanced_goes_to_everyone(store: LocalFiles, old: int, new: int) -> None:
    plan = plan_of(old, EDGES["broadcast"])
    job = Job(store, plan, in_flight(plan), sections=_one_of_each)
    job.write()
    for named in _restored_by_name(job.restore(plan_of(new, EDGES["broadcast"]))):
        assert named["rules"] == [b"of %d" % (old - 1)]


def test_at_the_same_parallelism_each_takes_its_own(store: LocalFiles) -> None:
    plan = plan_of(2, EDGES["broadcast"])
    job = Job(store, plan, in_flight(plan), sections=_one_of_each)
    job.write()
    for slot, named in enumerate(_restored_by_name(job.restore(plan))):
        assert named["rules"] == named["all"] == [b"of %d" % slot]


@pytest.mark.parametrize(("old", "new"), [(1, 4), (2, 3), (3, 2)])
def test_broadcast_sections_without_a_broadcast_edge_are_the_same_everywhere(
    store: LocalFiles, old: int, new: int
) -> None:
    job = Job(
        store,
        plan_of(old),
        sections=lambda task: [Section("rules", None, lambda: b"same", Redistribution.BROADCAST)],
    )
    job.write()
    assert [named["rules"] for named in _restored_by_name(job.restore(plan_of(new)))] == [[b"same"]] * new


# -- event time


def _progress(input_ms: int, output_ms: int, channels: Mapping[ChannelId, ChannelWatermark] = {}) -> StoredTask:
    return stored_task(input_watermark_ms=input_ms, output_watermark_ms=output_ms, channels=channels, floors=[])


def _far(subtasks: Iterable[int]) -> dict[TaskId, StoredTask]:
    """Subtask i of the receivers has come to 100 * (i + 1), and has told 10 less."""
    return {TaskId(RECEIVER, subtask): _progress(100 * (subtask + 1), 100 * (subtask + 1) - 10) for subtask in subtasks}


def test_at_the_same_parallelism_event_time_goes_on_per_channel(store: LocalFiles) -> None:
    plan = plan_of(1)
    channel = ChannelId(EdgeId(0), 0, 0)
    floors = [(KeyGroupRange(0, 4), 900)]
    progress = stored_task(
        input_watermark_ms=100,
        output_watermark_ms=90,
        channels={channel: ChannelWatermark(100, is_idle=True)},
        floors=floors,
    )
    job = Job(store, plan, progress={TaskId(RECEIVER, 0): progress})
    job.write()
    restored = job.restore(plan)[0].tasks[TaskId(RECEIVER, 0)]
    assert restored.progress.channel_watermarks() == {channel: ChannelWatermark(100, is_idle=True)}
    assert (restored.progress.input_watermark_ms, restored.progress.output_watermark_ms) == (100, 90)
    assert (restored.floors.of(3, 100), restored.floors.of(4, 100)) == (900, 100)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (2, 4), (4, 2), (3, 2)])
def test_at_another_parallelism_key_groups_keep_how_far_they_had_come(store: LocalFiles, old: int, new: int) -> None:
    job = Job(store, plan_of(old), progress=_far(range(old)))
    job.write()
    for slot, restore in enumerate(job.restore(plan_of(new))):
        restored = restore.tasks[TaskId(RECEIVER, slot)]
        assert restored.progress == _progress(MIN_WATERMARK_MS, 90), "towards downstream the slowest counts"
        own = range_of(slot, parallelism=new, max_parallelism=MAX_PARALLELISM)
        for key_group in range(own.first, own.last):
            old_owner = key_group * old // MAX_PARALLELISM
            assert restored.floors.of(key_group, MIN_WATERMARK_MS) == 100 * (old_owner + 1)


def test_new_senders_alone_make_channels_new_and_key_groups_keep_their_time(store: LocalFiles) -> None:
    job = Job(store, plan_of(2, senders=2, receivers=1), progress=_far([0]))
    job.write()
    restored = job.restore(plan_of(2, senders=1, receivers=1))[0].tasks[TaskId(RECEIVER, 0)]
    assert restored.progress == _progress(MIN_WATERMARK_MS, 90)
    assert restored.floors.of(5, MIN_WATERMARK_MS) == 100


# -- sources


@pytest.mark.parametrize("new", [1, 2, 3])
def test_readers_and_the_driver_find_the_same_positions(store: LocalFiles, new: int) -> None:
    scan = Scan("rate", {"rowsPerSecond": "1000"}, pa.schema([("value", pa.int64())]))
    plan = plan_of(2, source=scan)
    readers = [open_source(scan).reader(subtask=subtask, parallelism=2) for subtask in range(2)]
    job = Job(store, plan, sources={TaskId(SENDER, s): reader.snapshot() for s, reader in enumerate(readers)})
    manifest = job.write()
    new_plan = plan_of(new, source=scan)
    lines = fingerprint(new_plan)
    match = match_stored(new_plan, lines, stored=manifest.plan_fingerprint, stored_names={})
    assert match is not None
    on_driver = read_source_states(store, manifest, new_plan, match)
    in_slots = {task: r.source_state for restore in job.restore(new_plan) for task, r in restore.tasks.items()}
    assert on_driver == {task: state for task, state in in_slots.items() if task.vertex == SENDER}
    assert len(on_driver) == new
