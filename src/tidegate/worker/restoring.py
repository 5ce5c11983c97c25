"""Reads a checkpoint back: state for operators, positions for sources, captured rows for the receiving gates."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, NumberedElement
from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence, SlotIndex, TaskId
from tidegate.plan.physical import JobPlan
from tidegate.state.contract import RestoredSection
from tidegate.storage.manifests import ChannelRange, Manifest, SlotFile, decode_manifest
from tidegate.storage.state_file import FileSum, StateFile, check_sum
from tidegate.storage.store import Store
from tidegate.worker.captured import HELD, RECEIVED, decode_elements, parse_section_name
from tidegate.worker.gate import Arrived, RecoveredChannel, element_bytes
from tidegate.worker.snapshotting import PART_MARK

NEW_CHANNEL = RecoveredChannel((), Sequence(0))


@dataclass(frozen=True, slots=True)
class SlotRestore:
    """What one slot takes over from a checkpoint. Empty for a new job."""

    sections: Mapping[tuple[TaskId, int], list[RestoredSection]]
    source_states: Mapping[TaskId, bytes]
    recovered: Mapping[ChannelId, RecoveredChannel]
    next_sequences: Mapping[ChannelId, Sequence]
    recovered_bytes: int


NOTHING_TO_RESTORE = SlotRestore({}, {}, {}, {}, 0)


def restore_slot(store: Store, manifest_path: str, plan: JobPlan, slot: SlotIndex) -> SlotRestore:
    manifest = decode_manifest(store.read(manifest_path), name=manifest_path)
    files = {file.slot: file for file in manifest.slots}
    own = _open(store, files[slot])
    sections: dict[tuple[TaskId, int], list[RestoredSection]] = {}
    for stored in own.sections(kind="state"):
        key = stored.key
        restored = RestoredSection(key.name.rpartition(PART_MARK)[0], key.key_groups, stored.data)
        sections.setdefault((key.task, key.operator), []).append(restored)
    source_states = {stored.key.task: bytes(stored.data) for stored in own.sections(kind="source")}
    incoming = [r for r in manifest.channels if r.channel.receiver == slot]
    captured = _captured_elements(store, manifest, plan, incoming, own=own, slot=slot)
    schemas = {edge.id: edge.schema for edge in plan.edges}
    recovered = {
        r.channel: _recovered_channel(r, captured.get(r.channel, []), schemas[r.channel.edge]) for r in incoming
    }
    return SlotRestore(
        sections=sections,
        source_states=source_states,
        recovered=recovered,
        next_sequences={r.channel: r.n for r in manifest.channels if r.channel.sender == slot},
        recovered_bytes=sum(element_bytes(element) for elements in captured.values() for _, element in elements),
    )


def read_source_states(store: Store, manifest: Manifest) -> dict[TaskId, bytes]:
    """Every reader's position, for the enumerators on the driver."""
    states: dict[TaskId, bytes] = {}
    for file in manifest.slots:
        for stored in _open(store, file).sections(kind="source"):
            states[stored.key.task] = bytes(stored.data)
    return states


def _open(store: Store, file: SlotFile) -> StateFile:
    data = store.read(file.path)
    check_sum(data, FileSum(file.length_bytes, file.crc32), name=file.path)
    return StateFile.open(data, name=file.path)


def _captured_elements(
    store: Store, manifest: Manifest, plan: JobPlan, incoming: list[ChannelRange], *, own: StateFile, slot: SlotIndex
) -> dict[ChannelId, list[tuple[Sequence, NumberedElement]]]:
    """The receiver's part first, then the sender's, in sequence."""
    schemas = {edge.id: edge.schema for edge in plan.edges}
    wanted = {r.channel for r in incoming}
    elements = _elements_of(own, RECEIVED, wanted, schemas)
    senders = {r.channel.sender for r in incoming if r.h < r.n}
    for file in manifest.slots:
        if file.slot in senders:
            source = own if file.slot == slot else _open(store, file)
            for channel, held in _elements_of(source, HELD, wanted, schemas).items():
                elements.setdefault(channel, []).extend(held)
    return elements


def _elements_of(
    file: StateFile, side: str, wanted: set[ChannelId], schemas: Mapping[EdgeId, pa.Schema]
) -> dict[ChannelId, list[tuple[Sequence, NumberedElement]]]:
    found: dict[ChannelId, list[tuple[Sequence, NumberedElement]]] = {}
    for stored in file.sections(kind="channel"):
        stored_side, channel = parse_section_name(stored.key.name)
        if stored_side == side and channel in wanted:
            found[channel] = decode_elements(stored.data, schemas[channel.edge], name=stored.key.name)
    return found


def _recovered_channel(
    stored: ChannelRange, elements: list[tuple[Sequence, NumberedElement]], schema: pa.Schema
) -> RecoveredChannel:
    sequences = [sequence for sequence, _ in elements]
    if sequences != list(range(stored.first, stored.n)):
        raise Damaged(
            f"Channel {stored.channel} should have the elements {stored.first} to {stored.n} in flight, "
            f"but the checkpoint holds {sequences[:3]}...: start from another checkpoint."
        )
    recovered = [(sequence, _in_this_run(element, schema)) for sequence, element in elements]
    arrived = tuple(Arrived(sequence, CheckpointId(0), e, element_bytes(e)) for sequence, e in recovered)
    return RecoveredChannel(arrived, stored.n)


def _in_this_run(element: NumberedElement, schema: pa.Schema) -> NumberedElement:
    """An end mark belongs to the run that wrote it: this run's sources say themselves when they end.

    Its place is kept by an empty batch: a hole in the sequence would be in the next capture, too.
    """
    if isinstance(element, EndOfInput):
        return Batch(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))
    return element
