"""Reads a checkpoint back: state for operators, positions for sources, captured rows for the receiving gates.

Works for any parallelism; `protocol.rescale` says what goes where. It changes and deletes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.connectors.registry import open_source
from tidegate.model.elements import Batch, EndOfInput, NumberedElement
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import ChannelId, CheckpointId, Sequence, SlotIndex, TaskId, VertexId, range_of
from tidegate.network.messages import DroppedOnEdge, StoredElement
from tidegate.operators.columnar import slots_array
from tidegate.operators.contract import NO_FLOORS
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.lower import fingerprint
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.parts import SOURCE_POSITION, Place, Way
from tidegate.plan.physical import BroadcastPartitioning, Edge, HashPartitioning, JobPlan, Vertex, kind_of
from tidegate.protocol.phases import phase_of
from tidegate.protocol.recovery import CapturedRows
from tidegate.protocol.rescale import (
    EdgeShape,
    Piece,
    keeps_channels,
    key_group_floors,
    most_advanced_of,
    overlapping,
    recovered_channels,
    recovered_count,
    restored_watermark,
    split_items,
)
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.state.sst_files import StoredFile
from tidegate.storage import layout
from tidegate.storage.decoding import from_msgpack
from tidegate.storage.manifests import ChannelRange, Manifest, SharedFile, SlotFile, decode_manifest
from tidegate.storage.state_file import FileSum, SectionKey, SectionKind, StateFile, StoredSection, check_sum, damaged
from tidegate.storage.store import ReadableStore, Store
from tidegate.worker.captured import HELD, RECEIVED, decode_element, section_name
from tidegate.worker.captured_parts import CapturedPart, StoredCapture, in_flight_of, without_rows
from tidegate.worker.channel_state import INLINE, StoredAt, decode_section, referable
from tidegate.worker.dropped_rows import DroppedRows, no_rows
from tidegate.worker.gate import Arrived, RecoveredChannel, element_bytes
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.local_first import LocalFirst, ReadBytes
from tidegate.worker.snapshotting import PART_MARK
from tidegate.worker.state_files import restored_section
from tidegate.worker.stored_task import StoredTask, decode_task

NEW_CHANNEL = RecoveredChannel((), Sequence(0))


@dataclass(frozen=True, slots=True)
class RestoredTask:
    """`progress` has watermarks per channel only if the channels are the ones they were."""

    progress: StoredTask = field(default_factory=StoredTask)
    floors: KeyGroupFloors = NO_FLOORS
    source_state: bytes | None = None
    sections: Mapping[int, list[RestoredSection]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotRestore:
    """What one slot takes over from a checkpoint. Empty for a new job.

    `reads` grows until the backends have fetched their files.
    """

    tasks: Mapping[TaskId, RestoredTask]
    recovered: Mapping[ChannelId, RecoveredChannel]
    next_sequences: Mapping[ChannelId, Sequence]
    known: list[tuple[ChannelId, Sequence, StoredAt]]
    recovered_bytes: int  # of captured data
    known_files: Mapping[str, SharedFile] = field(default_factory=dict)
    dropped: tuple[DroppedOnEdge, ...] = ()
    reads: ReadBytes = field(default_factory=ReadBytes)


NOTHING_TO_RESTORE = SlotRestore({}, {}, {}, [], 0)


def restore_slot(
    store: Store,
    manifest_path: str,
    plan: JobPlan,
    slot: SlotIndex,
    *,
    captured_rows: CapturedRows = CapturedRows.DELIVER,
    copies: LocalCopies | None = None,
) -> SlotRestore:
    """`copies`: of files of this store, on this machine."""
    manifest = decode_manifest(store.read(manifest_path), name=manifest_path)
    stored, names = manifest.plan_fingerprint, manifest.operator_names
    match = match_stored(plan, fingerprint(plan), stored=stored, stored_names=names)
    if match is None or lost_in_flight(match, manifest):
        # The driver has looked before: a slot that finds more would lose rows.
        raise IncompatibleCheckpoint(f"{manifest_path} does not fit this query: use a new checkpointLocation.")
    reads = ReadBytes()
    files = StoredFiles(LocalFirst(store, manifest, copies, reads), manifest)
    return replace(_Restoring(files, plan, match, slot, captured_rows).restore(), reads=reads)


def read_source_states(store: Store, manifest: Manifest, plan: JobPlan, match: PlanMatch) -> dict[TaskId, bytes]:
    """Every reader's position at the plan's parallelism, for the enumerators on the driver."""
    files = StoredFiles(store, manifest)
    states: dict[TaskId, bytes] = {}
    for vertex in plan.vertices:
        for subtask, state in enumerate(_source_states(files, vertex, plan, match)):
            states[TaskId(vertex.id, subtask)] = state
    return states


def lost_in_flight(match: PlanMatch, manifest: Manifest) -> list[Way]:
    """The exchanges with rows in flight that the plan has no counterpart of."""
    in_flight = {stored.channel.edge for stored in manifest.channels if stored.first < stored.n}
    return [way for way in match.lost_ways if way.id in in_flight]


def stored_places(store: Store, manifest: Manifest) -> frozenset[Place]:
    """The operators and sources that have something in a checkpoint. Reads the index of every state file."""
    return frozenset(place for place, _ in stored_sections(store, manifest))


def stored_sections(store: Store, manifest: Manifest) -> frozenset[tuple[Place, str]]:
    """What they have, by its name. Reads the index of every state file."""
    found: set[tuple[Place, str]] = set()
    for file in manifest.slots:
        for key in _open(store, file).keys():  # noqa: SIM118 - not a mapping
            match key.kind:
                case "task" | "channel":
                    continue
                case "source":
                    found.add((Place(key.task.vertex, SOURCE_POSITION), key.name))
                case _:
                    found.add((Place(key.task.vertex, key.operator), plain_name(key)))
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEnds:
    """The vertices that an edge joins."""

    sender: VertexId
    receiver: VertexId


class StoredFiles:
    """The files of one checkpoint, each read and checked once, when it is first needed."""

    def __init__(self, store: ReadableStore, manifest: Manifest) -> None:
        self.manifest = manifest
        self._store = store
        self._of_slot = {file.slot: file for file in manifest.slots}
        self._opened: dict[SlotIndex, StateFile] = {}
        self._shared: dict[str, memoryview] = {}

    def sections(self, task: TaskId, kind: SectionKind) -> list[StoredSection]:
        return self._file_of(SlotIndex(task.subtask)).sections(task=task, kind=kind)

    def sections_of(
        self, task: TaskId, kind: SectionKind, *, operator: int, name: str | None = None
    ) -> list[RestoredSection]:
        """Of one operator, and only those of that name if one is given; others are not read."""

        def is_wanted(key: SectionKey) -> bool:
            return name is None or plain_name(key) == name

        stored = self._file_of(SlotIndex(task.subtask)).sections(
            task=task, kind=kind, operator=operator, is_wanted=is_wanted
        )
        return [_restored(section) for section in stored]

    def all_sections(
        self, slot: SlotIndex, *, is_wanted: Callable[[SectionKey], bool] = lambda key: True
    ) -> list[StoredSection]:
        return self._file_of(slot).sections(is_wanted=is_wanted)

    def section_keys(self, slot: SlotIndex) -> list[SectionKey]:
        """What the slot stored, without reading it."""
        return self._file_of(slot).keys()

    def copy_captured(self, slot: SlotIndex, to: Store) -> list[SharedFile]:
        """The shared files of rows in flight; they keep their paths and their order, by which elements name them."""
        files = [file for file in self._of_slot[slot].shared if layout.parse_channel_file(file.path) is not None]
        for file in files:
            to.put(file.path, self.shared(file))
        return files

    def captured_parts(self, stored: ChannelRange, edge: ChannelEnds) -> list[CapturedPart]:
        """What the tasks at both ends of a channel stored of it, the receiver's first."""
        channel = stored.channel
        ends: list[tuple[str, TaskId]] = [(RECEIVED, TaskId(edge.receiver, channel.receiver))]
        if stored.h < stored.n:
            ends.append((HELD, TaskId(edge.sender, channel.sender)))
        return [self._captured(side, channel, owner) for side, owner in ends]

    def captured_elements(
        self,
        stored: ChannelRange,
        parts: Iterable[CapturedPart],
        schema: pa.Schema,
        *,
        instead: Callable[[StoredElement], NumberedElement] | None = None,
    ) -> Iterator[StoredCapture]:
        """In sequence, as long as there is no gap; whether all are there is seen at the end.

        `instead`: what takes the place of one that cannot be read; without it, that is raised.
        """
        channel = stored.channel
        expected = int(stored.first)
        for part in parts:
            for element in part.elements:
                try:
                    data = part.inline if element.file == INLINE else self.shared(part.files[element.file])
                    piece = data[element.offset : element.offset + element.length]
                    sequence, decoded = decode_element(piece, schema, name=f"{part.side} of {channel}")
                except Damaged:
                    if instead is None:
                        raise
                    sequence, decoded = element.sequence, instead(element)
                if sequence != expected:
                    break
                first_row = stored.row if sequence == stored.first else 0
                left = without_rows(decoded, first_row - element.first_row)
                yield StoredCapture(part.side, sequence, left, first_row)
                expected += 1
        if expected != stored.n:
            raise Damaged(
                f"Channel {channel} should have the elements {stored.first} to {stored.n} in flight, but the "
                f"checkpoint holds none of number {expected} there: start from another checkpoint."
            )

    def _file_of(self, slot: SlotIndex) -> StateFile:
        if slot not in self._opened:
            self._opened[slot] = _open(self._store, self._of_slot[slot])
        return self._opened[slot]

    def _captured(self, side: str, channel: ChannelId, owner: TaskId) -> CapturedPart:
        slot, name = SlotIndex(owner.subtask), section_name(side, channel)
        files = self._of_slot[slot].shared
        # That one alone: a task has a section for each of its channels, and all of them would be read for each of them.
        found = self._file_of(slot).sections(task=owner, kind="channel", is_wanted=lambda key: key.name == name)
        if not found:
            return CapturedPart(side, [], files, memoryview(b""))
        section = decode_section(found[0].data, name=name)
        return CapturedPart(side, section.elements, files, memoryview(section.inline))

    def shared(self, file: SharedFile) -> memoryview:
        if file.path not in self._shared:
            data = self._store.read(file.path)
            check_sum(data, FileSum(file.length, file.crc32), name=file.path)
            self._shared[file.path] = memoryview(data)
        return self._shared[file.path]

    def with_files(self, task: TaskId, section: RestoredSection) -> tuple[RestoredSection, dict[str, SharedFile]]:
        """A section of state that a task stored with files beside it, and those files by their names."""
        shared = {file.path: file for file in self._of_slot[SlotIndex(task.subtask)].shared}
        return restored_section(section, shared, self._store)

    def copy_files(self, stored: StoredSection, to: Store) -> list[SharedFile]:
        """Those beside a section of state; they keep their paths, by which the section names them."""
        files = list(self.with_files(stored.key.task, _restored(stored))[1].values())
        for file in files:
            StoredFile(self._store, file).copy_to(to)
        return files

    def parallelism_of(self, vertex: VertexId) -> int:
        return self.manifest.vertex_parallelism[vertex]


class _Restoring:
    def __init__(
        self, files: StoredFiles, plan: JobPlan, match: PlanMatch, slot: SlotIndex, captured_rows: CapturedRows
    ) -> None:
        self._files = files
        self._dropped = DroppedRows() if captured_rows is CapturedRows.DROP else None
        self._plan = plan
        self._match = match
        self._slot = slot
        self._ranges = {stored.channel: stored for stored in files.manifest.channels}
        self._in_flight = in_flight_of(files.manifest)
        self._known: list[tuple[ChannelId, Sequence, StoredAt]] = []
        self._known_files: dict[str, SharedFile] = {}
        self._first_takers: dict[ChannelId, int] = {}  # receivers, by old channels

    def restore(self) -> SlotRestore:
        tasks: dict[TaskId, RestoredTask] = {}
        recovered: dict[ChannelId, RecoveredChannel] = {}
        next_sequences: dict[ChannelId, Sequence] = {}
        for vertex in self._plan.vertices:
            if self._slot < self._plan.parallelism_of(vertex.id):
                tasks[TaskId(vertex.id, self._slot)] = self._task(vertex)
        for edge in self._plan.edges:
            pieces_of = self._pieces(edge)
            for channel, piece in ((channel, piece) for channel, pieces in pieces_of.items() for piece in pieces):
                self._first_takers.setdefault(piece.channel, channel.receiver)
            for channel, pieces in pieces_of.items():
                if channel.receiver == self._slot:
                    recovered[channel] = self._recovered(edge, channel, pieces)
                if channel.sender == self._slot:
                    next_sequences[channel] = self._next_sequence(edge, channel, pieces)
        return SlotRestore(
            tasks=tasks,
            recovered=recovered,
            next_sequences=next_sequences,
            known=self._known,
            recovered_bytes=sum(arrived.size_bytes for channel in recovered.values() for arrived in channel.elements),
            known_files=self._known_files,
            dropped=self._counted_here(),
        )

    # -- tasks

    def _task(self, vertex: Vertex) -> RestoredTask:
        states = _source_states(self._files, vertex, self._plan, self._match)
        source_state = states[self._slot] if states else None
        before = self._match.vertices.get(vertex.id)
        progress, floors = StoredTask(), NO_FLOORS
        if before is not None and self._is_as_it_was(vertex, before):
            progress = self._progress(TaskId(before, self._slot))
            floors = KeyGroupFloors(progress.floors)
        elif before is not None:
            progress, floors = self._progress_of_all(vertex, before)
        return RestoredTask(progress, floors, source_state, self._sections(vertex))

    def _is_as_it_was(self, vertex: Vertex, before: VertexId) -> bool:
        """Also by its channels' names, under which event time is stored."""
        incoming = [edge for edge in self._plan.edges if edge.receiver == vertex.id]
        return self._files.parallelism_of(before) == self._plan.parallelism_of(vertex.id) and all(
            self._keeps_channels(edge) and self._match.ways[edge.id].id == edge.id for edge in incoming
        )

    def _progress(self, task: TaskId) -> StoredTask:
        (stored,) = self._files.sections(task, "task")
        return decode_task(stored.data, name=f"the checkpoint of {task}")

    def _progress_of_all(self, vertex: Vertex, before: VertexId) -> tuple[StoredTask, KeyGroupFloors]:
        """Event time as the old subtasks left it: key groups keep theirs, towards downstream the slowest counts."""
        old_parallelism = self._files.parallelism_of(before)
        max_parallelism = self._plan.max_parallelism
        all_progress = [self._progress(TaskId(before, subtask)) for subtask in range(old_parallelism)]
        reached = [
            (range_of(subtask, parallelism=old_parallelism, max_parallelism=max_parallelism), p.input_watermark_ms)
            for subtask, p in enumerate(all_progress)
        ]
        reached += [floor for progress in all_progress for floor in progress.floors]
        parallelism = self._plan.parallelism_of(vertex.id)
        own = range_of(self._slot, parallelism=parallelism, max_parallelism=max_parallelism)
        told_ms = restored_watermark([progress.output_watermark_ms for progress in all_progress])
        return StoredTask(output_watermark_ms=told_ms), KeyGroupFloors(key_group_floors(reached, own))

    def _sections(self, vertex: Vertex) -> dict[int, list[RestoredSection]]:
        """By the operators' positions now; each from where it stood before."""
        now_at: dict[VertexId, dict[int, int]] = {}
        for place, old in self._match.operators.items():
            if place.vertex == vertex.id and place.position != SOURCE_POSITION:
                now_at.setdefault(old.vertex, {})[old.position] = place.position
        return {
            position: sections
            for before, positions in now_at.items()
            for old_position, sections in self._sections_of(vertex, before).items()
            if (position := positions.get(old_position)) is not None
        }

    def _sections_of(self, vertex: Vertex, before: VertexId) -> dict[int, list[RestoredSection]]:
        """What `vertex` takes of the sections of `before`, by the positions of then."""
        old_parallelism = self._files.parallelism_of(before)
        parallelism = self._plan.parallelism_of(vertex.id)
        if old_parallelism == parallelism:
            keyed = union = split = range(self._slot, self._slot + 1)
        else:
            keyed = overlapping(
                self._slot,
                parallelism=parallelism,
                old_parallelism=old_parallelism,
                max_parallelism=self._plan.max_parallelism,
            )
            union = split = range(old_parallelism)
        found: dict[int, list[RestoredSection]] = {}
        sources: list[tuple[SectionKind, range]] = [("state", keyed), ("union", union)]
        for kind, subtasks in [*sources, ("broadcast", self._broadcast_from(vertex, before))]:
            for stored in self._stored(before, kind, subtasks):
                found.setdefault(stored.key.operator, []).append(_restored(stored))
        for stored in self._stored(before, "files", keyed):
            section, files = self._files.with_files(stored.key.task, _restored(stored))
            found.setdefault(stored.key.operator, []).append(section)
            self._known_files.update(files)
        for operator, section in self._split(before, split, parallelism):
            found.setdefault(operator, []).append(section)
        return found

    def _stored(self, before: VertexId, kind: SectionKind, subtasks: Iterable[int]) -> Iterator[StoredSection]:
        for subtask in subtasks:
            yield from self._files.sections(TaskId(before, subtask), kind)

    def _broadcast_from(self, vertex: Vertex, before: VertexId) -> range:
        chosen = self._broadcast_subtask(vertex.id)
        if chosen is None and self._dropped is not None:
            # Nobody is brought what it has not applied yet, so all go on from where one of them stands.
            chosen = self._most_advanced(vertex.id)
        if chosen is None:
            # Each its own; without a broadcast edge all have the same, and a new subtask takes any of them.
            chosen = self._slot % self._files.parallelism_of(before)
        return range(chosen, chosen + 1)

    def _broadcast_subtask(self, vertex: VertexId) -> int | None:
        """The old subtask whose part of a broadcast everybody takes, or None if each takes its own channels."""
        are_kept = all(self._has_same_shape(edge) for edge in self._broadcast_edges(vertex))
        return None if are_kept else self._most_advanced(vertex)

    def _most_advanced(self, vertex: VertexId) -> int | None:
        """Of the old subtasks, by what each had left of its broadcast edges; None if there were none."""
        shapes = [shape for edge in self._broadcast_edges(vertex) if (shape := self._old_shape(edge)) is not None]
        return most_advanced_of(shapes, self._in_flight.values()) if shapes else None

    def _broadcast_edges(self, vertex: VertexId) -> list[Edge]:
        return [edge for edge in self._plan.edges if edge.receiver == vertex and _is_broadcast(edge)]

    def _split(self, before: VertexId, subtasks: range, parallelism: int) -> Iterator[tuple[int, RestoredSection]]:
        items: dict[tuple[int, str], list[list[bytes]]] = {}
        for stored in self._stored(before, "split", subtasks):
            key = (stored.key.operator, plain_name(stored.key))
            items.setdefault(key, []).append(from_msgpack(stored.data, list[bytes]))
        for (operator, name), of_subtasks in items.items():
            if self._files.parallelism_of(before) != parallelism:
                own = split_items(of_subtasks, parallelism)[self._slot]
            else:
                own = [item for items in of_subtasks for item in items]
            yield operator, RestoredSection(name, None, memoryview(msgspec.msgpack.encode(own)))

    # -- channels

    def _old_shape(self, edge: Edge) -> EdgeShape | None:
        """Of the edge that it takes over from, as it was."""
        before = self._match.ways.get(edge.id)
        if before is None:
            return None
        is_hashed = isinstance(edge.partitioning, HashPartitioning)
        return EdgeShape(
            edge=before.id,
            kind=kind_of(edge.partitioning),
            senders=self._files.parallelism_of(before.sender),
            receivers=self._files.parallelism_of(before.receiver),
            key_groups=self._files.manifest.key_groups_in_flight if is_hashed else None,
        )

    def _has_same_shape(self, edge: Edge) -> bool:
        old = self._old_shape(edge)
        return old is not None and keeps_channels(old, self._plan.shape_of(edge))

    def _keeps_channels(self, edge: Edge) -> bool:
        """Not if the receivers take over another one's broadcast state: then they take what that one had in flight."""
        return self._has_same_shape(edge) and self._broadcast_from_of(edge) is None

    def _broadcast_from_of(self, edge: Edge) -> int | None:
        return self._broadcast_subtask(edge.receiver) if _is_broadcast(edge) else None

    def _pieces(self, edge: Edge) -> dict[ChannelId, tuple[Piece, ...]]:
        old = self._old_shape(edge)
        if old is None:
            return {}
        return recovered_channels(
            old,
            self._plan.shape_of(edge),
            self._in_flight.values(),
            broadcast_from=self._broadcast_from_of(edge),
        )

    def _next_sequence(self, edge: Edge, channel: ChannelId, pieces: tuple[Piece, ...]) -> Sequence:
        if self._keeps_channels(edge):
            return self._in_flight[channel._replace(edge=self._match.ways[edge.id].id)].before
        return recovered_count(pieces, self._in_flight)

    def _recovered(self, edge: Edge, channel: ChannelId, pieces: tuple[Piece, ...]) -> RecoveredChannel:
        if self._keeps_channels(edge):
            return self._kept(edge, channel)
        stored = [self._ranges[piece.channel] for piece in pieces]
        of_phases = max(len(part.phases) for part in stored) + 1
        in_phase: list[list[NumberedElement]] = [[] for _ in range(of_phases)]
        for piece, part in zip(pieces, stored, strict=True):
            for sequence, element, _ in self._captured(edge, part):
                left = self._restored(edge, _rows_of(element, edge, piece, max_parallelism=self._plan.max_parallelism))
                in_phase[phase_of(sequence, part.phases, of_phases=of_phases)].append(left)
        ends = list(accumulate(len(elements) for elements in in_phase))
        arrived = tuple(
            Arrived(Sequence(number), CheckpointId(0), element, element_bytes(element))
            for number, element in enumerate(element for elements in in_phase for element in elements)
        )
        return RecoveredChannel(arrived, Sequence(len(arrived)), tuple(Sequence(end) for end in ends[:-1]))

    def _kept(self, edge: Edge, channel: ChannelId) -> RecoveredChannel:
        stored = self._ranges[channel._replace(edge=self._match.ways[edge.id].id)]
        arrived = []
        for sequence, element, first_row in self._captured(edge, stored):
            if isinstance(element, EndOfInput):
                # An end mark belongs to the run that wrote it: this run's sources say themselves when they end.
                element = no_rows(edge.schema)
            element = self._restored(edge, element)
            arrived.append(Arrived(sequence, CheckpointId(0), element, element_bytes(element), first_row))
        return RecoveredChannel(tuple(arrived), stored.n, stored.phases)

    def _restored(self, edge: Edge, element: NumberedElement) -> NumberedElement:
        return element if self._dropped is None else self._dropped.without_rows(edge, element)

    def _counted_here(self) -> tuple[DroppedOnEdge, ...]:
        """What this slot has dropped, but rows of a broadcast only once in all slots: each is lost once."""
        if self._dropped is None:
            return ()
        edges = {edge.id: edge for edge in self._plan.edges}
        return tuple(lost for lost in self._dropped.by_edge() if self._slot == self._counting_slot(edges[lost.edge]))

    def _counting_slot(self, edge: Edge) -> int | None:
        if not _is_broadcast(edge):
            return self._slot
        # New channels have the same for all. Of kept ones, those of the subtask whose state all take have what is lost.
        return self._most_advanced(edge.receiver) if self._keeps_channels(edge) else 0

    def _captured(self, edge: Edge, stored: ChannelRange) -> Iterator[tuple[Sequence, NumberedElement, int]]:
        """The receiver's part first, then the sender's, in sequence; each with the number of its first row."""
        before = self._match.ways[edge.id]
        parts = self._files.captured_parts(stored, ChannelEnds(sender=before.sender, receiver=before.receiver))
        dropped = self._dropped
        # If rows are dropped, a checkpoint must not come to refer to them.
        if self._keeps_channels(edge) and before.id == edge.id and dropped is None:
            for part in parts:
                self._known += referable(stored.channel, part.elements, part.files)
        # Whoever takes a part of a channel finds the same that cannot be read: one of them counts it.
        is_counted = self._first_takers[stored.channel] == self._slot
        instead = None if dropped is None else lambda found: dropped.unread(edge, found.length if is_counted else 0)
        for captured in self._files.captured_elements(stored, parts, edge.schema, instead=instead):
            yield captured.sequence, captured.element, captured.first_row


def _source_states(files: StoredFiles, vertex: Vertex, plan: JobPlan, match: PlanMatch) -> list[bytes]:
    """One state for each reader of the plan; none if there is no source, or one that has not been read from yet."""
    before = match.operators.get(Place(vertex.id, SOURCE_POSITION))
    if vertex.source is None or before is None:
        return []
    stored = [
        bytes(section.data)
        for subtask in range(files.parallelism_of(before.vertex))
        for section in files.sections(TaskId(before.vertex, subtask), "source")
    ]
    if not stored:
        return []
    parallelism = plan.parallelism_of(vertex.id)
    if len(stored) == parallelism:
        return stored
    return open_source(vertex.source).redistribute(stored, parallelism=parallelism)


def _is_broadcast(edge: Edge) -> bool:
    return isinstance(edge.partitioning, BroadcastPartitioning)


def _open(store: ReadableStore, file: SlotFile) -> StateFile:
    """Only its index: sections are read when they are needed, and each is checked by its own sum."""
    if file.content is not None:
        check_sum(file.content, FileSum(file.length_bytes, file.crc32), name=file.path)
        return StateFile.open(file.content, name=file.path)
    if (found_bytes := store.size(file.path)) != file.length_bytes:
        raise damaged(file.path, f"it has {found_bytes} bytes where the manifest says {file.length_bytes}")

    def read(start: int, length: int) -> memoryview:
        return memoryview(store.read_range(file.path, start=start, length=length))

    return StateFile.open_ranges(read, length_bytes=file.length_bytes, name=file.path)


def _restored(stored: StoredSection) -> RestoredSection:
    return RestoredSection(plain_name(stored.key), stored.key.key_groups, stored.data)


def plain_name(key: SectionKey) -> str:
    """As its operator knows it, which may have several of one name."""
    return key.name.rpartition(PART_MARK)[0]


def _rows_of(element: NumberedElement, edge: Edge, piece: Piece, *, max_parallelism: int) -> NumberedElement:
    """What a new channel takes of an element. Marks spoke for one old sender: only their place is kept."""
    if not isinstance(element, Batch):
        return no_rows(edge.schema)
    if piece.key_groups is None or element.rows.num_rows == 0:
        return element
    assert isinstance(edge.partitioning, HashPartitioning), "only hash edges are split by key group"
    key_groups = key_group_of(hash_rows(element.rows, edge.partitioning.key_count), max_parallelism)
    own = (key_groups >= piece.key_groups.first) & (key_groups < piece.key_groups.last)
    return Batch(element.rows.take(slots_array(np.flatnonzero(own))))
