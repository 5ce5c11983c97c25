"""Reads a checkpoint back: state for operators, positions for sources, captured rows for the receiving gates.

Works for any parallelism; `protocol.rescale` says what goes where. It changes and deletes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import msgspec
import pyarrow as pa

from tidegate.connectors.registry import open_source
from tidegate.model.elements import EndOfInput, NumberedElement
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import (
    ChannelId,
    CheckpointId,
    KeyGroupRange,
    Sequence,
    SlotIndex,
    TaskId,
    VertexId,
    range_of,
)
from tidegate.network.messages import DroppedOnEdge, StoredElement
from tidegate.operators.contract import NO_FLOORS
from tidegate.plan.lower import fingerprint
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.parts import SOURCE_POSITION, Place, Way
from tidegate.plan.physical import Edge, JobPlan, Vertex
from tidegate.protocol.phases import phase_of
from tidegate.protocol.recovery import CapturedRows
from tidegate.protocol.rescale import (
    Piece,
    key_group_floors,
    overlapping,
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
from tidegate.worker.captured import HELD, RECEIVED, section_name
from tidegate.worker.captured_parts import CapturedPart, StoredCapture
from tidegate.worker.channel_state import StoredAt, decode_section, referable
from tidegate.worker.dropped_rows import DroppedRows, no_rows
from tidegate.worker.gate import Arrived, RecoveredChannel, element_bytes
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.local_first import LocalFirst, ReadBytes
from tidegate.worker.restored_channels import RestoredChannels, is_broadcast
from tidegate.worker.restored_elements import in_sequence, rows_of
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


def taken_over(
    files: "StoredFiles", plan: JobPlan, match: PlanMatch, slot: SlotIndex, captured_rows: CapturedRows
) -> "TakenOver":
    """What restoring a slot takes of a checkpoint; of the files only the indexes are read."""
    return _Restoring(files, plan, match, slot, captured_rows).taken_over()


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


@dataclass(frozen=True, slots=True)
class TakenOver:
    """`captured`: what of channels, each with its ends."""

    sections: list[StoredSection]
    captured: list[tuple[ChannelRange, ChannelEnds]]


class StoredFiles:
    """The files of one checkpoint: those of rows in flight are read and checked once, when they are first needed, and
    sections of state files each time that their data is asked for.
    """

    def __init__(self, store: ReadableStore, manifest: Manifest) -> None:
        self.manifest = manifest
        self._store = store
        self._of_slot = {file.slot: file for file in manifest.slots}
        self._opened: dict[SlotIndex, StateFile] = {}
        self._shared: dict[str, memoryview] = {}

    def sections(
        self, task: TaskId, kind: SectionKind, *, key_groups: KeyGroupRange | None = None
    ) -> list[StoredSection]:
        """`key_groups`: without those that are of other key groups alone."""

        def is_wanted(key: SectionKey) -> bool:
            return key_groups is None or key.key_groups is None or _overlap(key.key_groups, key_groups)

        return self._file_of(SlotIndex(task.subtask)).sections(task=task, kind=kind, is_wanted=is_wanted)

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

    def index_bytes(self, slot: SlotIndex) -> int:
        """What is read of the slot's state file to know its sections."""
        return self._file_of(slot).index_bytes

    def captured_parts(self, stored: ChannelRange, edge: ChannelEnds) -> list[CapturedPart]:
        """What the tasks at both ends of a channel stored of it, the receiver's first."""
        return [self._captured(stored, *end) for end in self._ends(stored, edge)]

    def captured_sections(self, stored: ChannelRange, edge: ChannelEnds) -> list[StoredSection]:
        """Of both ends, without reading them."""
        return [section for _, _, section in self._ends(stored, edge) if section is not None]

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
        return in_sequence(stored, parts, schema, read=self.shared, instead=instead)

    def _file_of(self, slot: SlotIndex) -> StateFile:
        if slot not in self._opened:
            self._opened[slot] = _open(self._store, self._of_slot[slot])
        return self._opened[slot]

    def _captured(self, stored: ChannelRange, side: str, owner: TaskId, section: StoredSection | None) -> CapturedPart:
        files = self._of_slot[SlotIndex(owner.subtask)].shared
        if section is None:
            return CapturedPart(side, [], files, memoryview(b""))
        decoded = decode_section(section.data, name=section_name(side, stored.channel))
        return CapturedPart(side, decoded.elements, files, memoryview(decoded.inline))

    def _ends(self, stored: ChannelRange, edge: ChannelEnds) -> Iterator[tuple[str, TaskId, StoredSection | None]]:
        channel = stored.channel
        ends: list[tuple[str, TaskId]] = [(RECEIVED, TaskId(edge.receiver, channel.receiver))]
        if stored.h < stored.n:
            ends.append((HELD, TaskId(edge.sender, channel.sender)))
        for side, owner in ends:
            # That one alone: a task has a section for each of its channels.
            name = section_name(side, channel)
            sections = self._file_of(SlotIndex(owner.subtask)).sections(task=owner, kind="channel")
            yield side, owner, next((section for section in sections if section.key.name == name), None)

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
        self._channels = RestoredChannels(files.manifest, plan, match)
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
            pieces_of = self._channels.pieces(edge)
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

    def taken_over(self) -> TakenOver:
        own = [vertex for vertex in self._plan.vertices if self._slot < self._plan.parallelism_of(vertex.id)]
        sections = [stored for vertex in own for stored in self._stored_of_task(vertex)]
        captured = [
            (stored, self._ends(edge))
            for edge in self._plan.edges
            for channel, pieces in self._channels.pieces(edge).items()
            if channel.receiver == self._slot
            for stored in self._channels.stored(edge, channel, pieces)
        ]
        return TakenOver(sections, captured)

    # -- tasks

    def _stored_of_task(self, vertex: Vertex) -> Iterator[StoredSection]:
        before, source = self._match.vertices.get(vertex.id), _source_before(vertex, self._match)
        if before is not None:
            is_as_it_was = self._is_as_it_was(vertex, before)
            for subtask in (self._slot,) if is_as_it_was else range(self._files.parallelism_of(before)):
                yield from self._files.sections(TaskId(before, subtask), "task")
        if source is not None:
            for subtask in range(self._files.parallelism_of(source)):
                yield from self._files.sections(TaskId(source, subtask), "source")
        for old in self._now_at(vertex):
            yield from self._stored(vertex, old)

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
            self._channels.keeps(edge) and self._match.ways[edge.id].id == edge.id for edge in incoming
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
        return {
            position: sections
            for before, positions in self._now_at(vertex).items()
            for old_position, sections in self._sections_of(vertex, before).items()
            if (position := positions.get(old_position)) is not None
        }

    def _now_at(self, vertex: Vertex) -> dict[VertexId, dict[int, int]]:
        """The positions of its operators, by those of then."""
        found: dict[VertexId, dict[int, int]] = {}
        for place, old in self._match.operators.items():
            if place.vertex == vertex.id and place.position != SOURCE_POSITION:
                found.setdefault(old.vertex, {})[old.position] = place.position
        return found

    def _sections_of(self, vertex: Vertex, before: VertexId) -> dict[int, list[RestoredSection]]:
        """What `vertex` takes of the sections of `before`, by the positions of then."""
        found: dict[int, list[RestoredSection]] = {}
        items: dict[tuple[int, str], list[list[bytes]]] = {}
        for stored in self._stored(vertex, before):
            match stored.key.kind:
                case "files":
                    section, files = self._files.with_files(stored.key.task, _restored(stored))
                    found.setdefault(stored.key.operator, []).append(section)
                    self._known_files.update(files)
                case "split":
                    named = (stored.key.operator, plain_name(stored.key))
                    items.setdefault(named, []).append(from_msgpack(stored.data, list[bytes]))
                case _:
                    found.setdefault(stored.key.operator, []).append(_restored(stored))
        for (operator, name), of_subtasks in items.items():
            found.setdefault(operator, []).append(self._split(vertex, before, name, of_subtasks))
        return found

    def _stored(self, vertex: Vertex, before: VertexId) -> Iterator[StoredSection]:
        """Of the sections of `before` those that `vertex` takes; without those of state that is all others'."""
        old_parallelism = self._files.parallelism_of(before)
        parallelism, max_parallelism = self._plan.parallelism_of(vertex.id), self._plan.max_parallelism
        own = range_of(self._slot, parallelism=parallelism, max_parallelism=max_parallelism)
        if old_parallelism == parallelism:
            keyed = listed = range(self._slot, self._slot + 1)
        else:
            keyed = overlapping(
                self._slot, parallelism=parallelism, old_parallelism=old_parallelism, max_parallelism=max_parallelism
            )
            listed = range(old_parallelism)
        broadcast = self._broadcast_from(vertex, before)
        of: dict[SectionKind, range]
        of = {"state": keyed, "union": listed, "broadcast": broadcast, "files": keyed, "split": listed}
        for kind, subtasks in of.items():
            for subtask in subtasks:
                yield from self._files.sections(TaskId(before, subtask), kind, key_groups=own)

    def _broadcast_from(self, vertex: Vertex, before: VertexId) -> range:
        chosen = self._channels.broadcast_subtask(vertex.id)
        if chosen is None and self._dropped is not None:
            # Nobody is brought what it has not applied yet, so all go on from where one of them stands.
            chosen = self._channels.most_advanced(vertex.id)
        if chosen is None:
            # Each its own; without a broadcast edge all have the same, and a new subtask takes any of them.
            chosen = self._slot % self._files.parallelism_of(before)
        return range(chosen, chosen + 1)

    def _split(self, vertex: Vertex, before: VertexId, name: str, of_subtasks: list[list[bytes]]) -> RestoredSection:
        parallelism = self._plan.parallelism_of(vertex.id)
        if self._files.parallelism_of(before) != parallelism:
            own = split_items(of_subtasks, parallelism)[self._slot]
        else:
            own = [item for items in of_subtasks for item in items]
        return RestoredSection(name, None, memoryview(msgspec.msgpack.encode(own)))

    # -- channels

    def _next_sequence(self, edge: Edge, channel: ChannelId, pieces: tuple[Piece, ...]) -> Sequence:
        if self._channels.keeps(edge):
            return self._channels.in_flight[self._channels.before(edge, channel)].before
        return recovered_count(pieces, self._channels.in_flight)

    def _recovered(self, edge: Edge, channel: ChannelId, pieces: tuple[Piece, ...]) -> RecoveredChannel:
        stored = self._channels.stored(edge, channel, pieces)
        if self._channels.keeps(edge):
            return self._kept(edge, *stored)
        of_phases = max(len(part.phases) for part in stored) + 1
        in_phase: list[list[NumberedElement]] = [[] for _ in range(of_phases)]
        for piece, part in zip(pieces, stored, strict=True):
            for sequence, element, _ in self._captured(edge, part):
                left = self._restored(edge, rows_of(element, edge, piece, max_parallelism=self._plan.max_parallelism))
                in_phase[phase_of(sequence, part.phases, of_phases=of_phases)].append(left)
        ends = list(accumulate(len(elements) for elements in in_phase))
        arrived = tuple(
            Arrived(Sequence(number), CheckpointId(0), element, element_bytes(element))
            for number, element in enumerate(element for elements in in_phase for element in elements)
        )
        return RecoveredChannel(arrived, Sequence(len(arrived)), tuple(Sequence(end) for end in ends[:-1]))

    def _kept(self, edge: Edge, stored: ChannelRange) -> RecoveredChannel:
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
        if not is_broadcast(edge):
            return self._slot
        # New channels have the same for all. Of kept ones, those of the subtask whose state all take have what is lost.
        return self._channels.most_advanced(edge.receiver) if self._channels.keeps(edge) else 0

    def _captured(self, edge: Edge, stored: ChannelRange) -> Iterator[tuple[Sequence, NumberedElement, int]]:
        """The receiver's part first, then the sender's, in sequence; each with the number of its first row."""
        before = self._match.ways[edge.id]
        parts = self._files.captured_parts(stored, self._ends(edge))
        dropped = self._dropped
        # If rows are dropped, a checkpoint must not come to refer to them.
        if self._channels.keeps(edge) and before.id == edge.id and dropped is None:
            for part in parts:
                self._known += referable(stored.channel, part.elements, part.files)
        # Whoever takes a part of a channel finds the same that cannot be read: one of them counts it.
        is_counted = self._first_takers[stored.channel] == self._slot
        instead = None if dropped is None else lambda found: dropped.unread(edge, found.length if is_counted else 0)
        for captured in self._files.captured_elements(stored, parts, edge.schema, instead=instead):
            yield captured.sequence, captured.element, captured.first_row

    def _ends(self, edge: Edge) -> ChannelEnds:
        before = self._match.ways[edge.id]
        return ChannelEnds(sender=before.sender, receiver=before.receiver)


def _source_states(files: StoredFiles, vertex: Vertex, plan: JobPlan, match: PlanMatch) -> list[bytes]:
    """One state for each reader of the plan; none if there is no source, or one that has not been read from yet."""
    before = _source_before(vertex, match)
    if vertex.source is None or before is None:
        return []
    stored = [
        bytes(section.data)
        for subtask in range(files.parallelism_of(before))
        for section in files.sections(TaskId(before, subtask), "source")
    ]
    if not stored:
        return []
    parallelism = plan.parallelism_of(vertex.id)
    if len(stored) == parallelism:
        return stored
    return open_source(vertex.source).redistribute(stored, parallelism=parallelism)


def _source_before(vertex: Vertex, match: PlanMatch) -> VertexId | None:
    place = match.operators.get(Place(vertex.id, SOURCE_POSITION))
    return None if place is None else place.vertex


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
    return RestoredSection(plain_name(stored.key), stored.key.key_groups, stored.read)


def _overlap(one: KeyGroupRange, other: KeyGroupRange) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


def plain_name(key: SectionKey) -> str:
    """As its operator knows it, which may have several of one name."""
    return key.name.rpartition(PART_MARK)[0]
