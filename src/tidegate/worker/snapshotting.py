"""A slot's part of each checkpoint: gathers snapshots, encodes between steps, uploads behind, acknowledges."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tidegate.connectors.contract import Prepared
from tidegate.model.clock import Clock
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import ChannelId, CheckpointId, Generation, Sequence, SlotIndex, TaskId
from tidegate.network.messages import (
    Acknowledge,
    ChannelCapture,
    CheckpointDone,
    Decline,
    LongStep,
    SlotStanding,
    SnapshotsTaken,
    StoredChannel,
    TaskPart,
    TaskStanding,
)
from tidegate.protocol.kinds import CheckpointKind, CheckpointStorage
from tidegate.protocol.switching import UNKNOWN_SPEED, StorageSpeed
from tidegate.state.contract import Redistribution, Section
from tidegate.storage import layout
from tidegate.storage.manifests import SharedFile
from tidegate.storage.state_file import SectionKey, SectionKind, StateFileWriter
from tidegate.storage.store import Store
from tidegate.worker.captured import HELD, RECEIVED, section_name
from tidegate.worker.channel_state import (
    CapturedChannel,
    CaptureWriter,
    EncodedCaptures,
    KnownElements,
    StoredAt,
    encode_section,
    referable,
)
from tidegate.worker.gate import CapturedElement, ReceivedCapture
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.mailbox import Background
from tidegate.worker.output import HeldCapture
from tidegate.worker.stored_ahead import StoredAhead
from tidegate.worker.stored_task import encode_task
from tidegate.worker.task_reports import TaskSnapshot
from tidegate.worker.upload import Upload, Uploaded, UploadTimes

PART_MARK = "#"
_DONE = object()
# How fast storage is decides when to switch. Where nothing needs a file, one is stored so often to know.
_MEASURE_STORAGE_EVERY_MS = 60_000.0
# A late snapshot of an aborted checkpoint is recognised as long as its id is within this many of the newest abort.
_REMEMBERED_ABORTS = 1000

KIND_OF: dict[Redistribution, SectionKind] = {
    Redistribution.KEYED: "state",
    Redistribution.SPLIT: "split",
    Redistribution.UNION: "union",
    Redistribution.BROADCAST: "broadcast",
}


@dataclass(slots=True)
class _TaskPart:
    snapshot: TaskSnapshot
    received: tuple[ReceivedCapture, ...] | None = None
    held: list[HeldCapture] | None = None

    def is_complete(self) -> bool:
        return self.received is not None and self.held is not None


@dataclass(slots=True)
class _Assembly:
    """`is_triggered`: the coordinator's own word has come, and with it whether this is a savepoint, and where."""

    parts: dict[TaskId, _TaskPart] = field(default_factory=dict)
    is_triggered: bool = False
    savepoint: str | None = None
    has_told_taken: bool = False
    writer: StateFileWriter = field(default_factory=StateFileWriter)
    captures: EncodedCaptures | None = None
    # Sections with files: what they are is known once somebody has waited for it, beside the loop.
    with_files: list[tuple[SectionKey, Section]] = field(default_factory=list)
    known_files: Mapping[str, SharedFile] = field(default_factory=dict)
    kept_files: Mapping[str, SharedFile] = field(default_factory=dict)
    encoding: Iterator[None] | None = None
    is_uploading: bool = False
    is_dropped: bool = False
    opened_at_ms: float = 0.0
    triggered_at_ms: float | None = None
    encoding_at_ms: float | None = None
    encoded_for_ms: float = 0.0
    queued_at_ms: float | None = None
    upload: UploadTimes = field(default_factory=UploadTimes)

    def drop(self) -> None:
        # What encodes it refers to it, too: the files of a snapshot would stay until the garbage is collected.
        self.is_dropped, self.encoding = True, None

    def raise_if_dropped(self) -> None:
        if self.is_dropped:
            raise DidNotHappen("The checkpoint was aborted while it was uploaded.")


def _nothing_known(checkpoint: CheckpointId, since_ms: float) -> tuple[list[TaskStanding], list[LongStep]]:
    return [], []


class SlotSnapshots:
    """`send` takes what the coordinator is to hear, `open_location` opens the place of a savepoint.

    `standings` tells how far the tasks are with a checkpoint, and their long steps since a time.
    """

    def __init__(
        self,
        *,
        slot: SlotIndex,
        generation: Generation,
        tasks: Iterable[TaskId],
        store: Store,
        open_location: Callable[[str], Store],
        background: Background,
        clock: Clock,
        inline_below_bytes: int,
        send: Callable[[Acknowledge | Decline | SnapshotsTaken], None],
        standings: Callable[[CheckpointId, float], tuple[list[TaskStanding], list[LongStep]]] = _nothing_known,
        copies: LocalCopies | None = None,
        storage: CheckpointStorage = CheckpointStorage.FILES,
        ahead: StoredAhead | None = None,
        in_manifest_below_bytes: int = 0,
    ) -> None:
        self._slot = slot
        self._generation = generation
        self._tasks = frozenset(tasks)
        self._store = store
        self._open_location = open_location
        self._background = background
        self._clock = clock
        self._inline_below_bytes = inline_below_bytes
        self._send = send
        self._task_standings = standings
        self._copies = copies if storage is CheckpointStorage.FILES else None
        self._storage = storage
        self._ahead = ahead
        self._in_manifest_below_bytes = in_manifest_below_bytes
        self._assemblies: dict[CheckpointId, _Assembly] = {}
        self._aborted: set[CheckpointId] = set()
        self._savepoints: set[CheckpointId] = set()
        self._last_snapshot: dict[TaskId, TaskSnapshot] = {}
        self._finished: set[TaskId] = set()
        self.known = KnownElements()
        self._acknowledged: dict[CheckpointId, list[tuple[ChannelId, Sequence, StoredAt]]] = {}
        # Files of state that the newest completed checkpoint holds, by their names; and those of later ones.
        self.known_files: dict[str, SharedFile] = {}
        self._acknowledged_files: dict[CheckpointId, dict[str, SharedFile]] = {}
        self._storage_speed = UNKNOWN_SPEED
        self._measured_at_ms = float("-inf")
        # What sinks prepared for checkpoints that are not known to be complete. Each later checkpoint carries it too:
        # if an earlier one fails, its rows are still committed, and committing them twice changes nothing.
        self._unsettled: dict[TaskId, dict[CheckpointId, Prepared]] = {}

    # -- events

    def on_trigger(self, checkpoint: CheckpointId, *, savepoint: str | None) -> None:
        if checkpoint in self._aborted:
            return
        assembly = self._assembly(checkpoint)
        assembly.is_triggered = True
        assembly.triggered_at_ms = self._clock.monotonic_ms()
        assembly.savepoint = savepoint
        if self._ahead is not None:
            self._ahead.on_trigger(checkpoint)
        if savepoint is not None:
            self._savepoints = {id for id in self._savepoints if id > checkpoint - _REMEMBERED_ABORTS} | {checkpoint}
        self._go_on(checkpoint, assembly)

    def on_snapshot(self, snapshot: TaskSnapshot) -> None:
        if snapshot.prepared is not None:
            self._unsettled.setdefault(snapshot.task, {})[snapshot.checkpoint] = snapshot.prepared
        if snapshot.has_ended:
            self._last_snapshot[snapshot.task] = snapshot
        if snapshot.checkpoint in self._aborted:
            return
        assembly = self._assembly(snapshot.checkpoint)
        assembly.parts[snapshot.task] = _TaskPart(snapshot)
        self._go_on(snapshot.checkpoint, assembly)

    def on_received(self, task: TaskId, checkpoint: CheckpointId, captures: tuple[ReceivedCapture, ...]) -> None:
        if (assembly := self._assemblies.get(checkpoint)) is not None and task in assembly.parts:
            assembly.parts[task].received = captures
            self._go_on(checkpoint, assembly)

    def on_held(self, task: TaskId, checkpoint: CheckpointId, captures: list[HeldCapture]) -> None:
        if (assembly := self._assemblies.get(checkpoint)) is not None:
            assembly.parts[task].held = captures
            self._go_on(checkpoint, assembly)

    def on_finished(self, task: TaskId) -> None:
        """It takes part in no further checkpoint: its last snapshot stands for it from now on."""
        self._finished.add(task)
        for checkpoint, assembly in list(self._assemblies.items()):
            self._go_on(checkpoint, assembly)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        if (assembly := self._assemblies.pop(checkpoint, None)) is not None:
            assembly.drop()
        self._acknowledged.pop(checkpoint, None)
        self._acknowledged_files.pop(checkpoint, None)
        if self._copies is not None:
            self._copies.on_abort(checkpoint)
        if self._ahead is not None:
            self._ahead.on_abort(checkpoint)
        self._aborted = {aborted for aborted in self._aborted if aborted > checkpoint - _REMEMBERED_ABORTS}
        self._aborted.add(checkpoint)

    def on_done(self, done: CheckpointDone) -> None:
        for task, prepared in self._unsettled.items():
            self._unsettled[task] = {later: p for later, p in prepared.items() if later > done.checkpoint}
        # Nothing may refer to a savepoint: what the checkpoint before holds is still there.
        if done.checkpoint not in self._savepoints:
            self._on_checkpoint_done(done)
        if self._ahead is not None:
            self._ahead.on_done(done.checkpoint, self.known_files)

    def _on_checkpoint_done(self, done: CheckpointDone) -> None:
        own = self._acknowledged.get(done.checkpoint, [])
        told = [found for stored in done.held for found in referable(stored.channel, stored.elements, done.files)]
        self.known.replace([*own, *told])
        self._acknowledged = {later: refs for later, refs in self._acknowledged.items() if later > done.checkpoint}
        self.known_files = self._acknowledged_files.get(done.checkpoint, {})
        self._acknowledged_files = {
            later: files for later, files in self._acknowledged_files.items() if later > done.checkpoint
        }
        if (copies := self._copies) is not None:
            needed = copies.on_done(done.checkpoint)
            self._background.submit(lambda: copies.prune(done.checkpoint, needed), _ignored)

    def start_with(self, known_files: Mapping[str, SharedFile]) -> None:
        """Files of state that the restored checkpoint holds."""
        self.known_files = dict(known_files)
        if self._ahead is not None:
            self._ahead.on_done(CheckpointId(0), self.known_files)

    def close(self) -> None:
        """Ends uploads that are under way: nobody waits for them any more."""
        for assembly in self._assemblies.values():
            assembly.drop()
        self._assemblies.clear()
        self._last_snapshot.clear()

    # -- questions and work

    def standings(self) -> list[SlotStanding]:
        """Of the checkpoints that are under way here."""
        return [self._standing(checkpoint, assembly) for checkpoint, assembly in self._assemblies.items()]

    def storage_speed(self) -> StorageSpeed:
        """How fast storage took the last upload."""
        return self._storage_speed

    def waiting_for_outputs(self) -> list[tuple[CheckpointId, TaskId]]:
        return [
            (checkpoint, task)
            for checkpoint, assembly in self._assemblies.items()
            for task, part in assembly.parts.items()
            if part.held is None
        ]

    def has_work(self) -> bool:
        return any(assembly.encoding is not None for assembly in self._assemblies.values())

    def encode_some(self, until_ms: float) -> None:
        """Encode sections until the time is up, oldest checkpoint first; what is complete goes to the store."""
        for checkpoint, assembly in list(self._assemblies.items()):
            while assembly.encoding is not None:
                since_ms = self._clock.monotonic_ms()
                try:
                    is_encoded = next(assembly.encoding, _DONE) is _DONE
                except DidNotHappen as error:
                    # The disk is full, for instance: the stream goes on without this checkpoint.
                    self._assemblies.pop(checkpoint).drop()
                    reason = f"{type(error).__name__}: {error}"
                    self._send(Decline(self._generation, checkpoint, reason, is_upload=False))
                    break
                assembly.encoded_for_ms += self._clock.monotonic_ms() - since_ms
                if is_encoded:
                    assembly.encoding = None
                    self._upload(checkpoint, assembly)
                if self._clock.monotonic_ms() >= until_ms:
                    return

    # -- inside

    def _assembly(self, checkpoint: CheckpointId) -> _Assembly:
        if checkpoint not in self._assemblies:
            self._assemblies[checkpoint] = _Assembly(opened_at_ms=self._clock.monotonic_ms())
        return self._assemblies[checkpoint]

    def _standing(self, checkpoint: CheckpointId, assembly: _Assembly) -> SlotStanding:
        heard_ms, upload = assembly.triggered_at_ms, assembly.upload
        tasks, steps = self._task_standings(checkpoint, assembly.opened_at_ms if heard_ms is None else heard_ms)
        return SlotStanding(
            checkpoint=checkpoint,
            triggered_at_ms=heard_ms,
            encoding_at_ms=assembly.encoding_at_ms,
            queued_at_ms=assembly.queued_at_ms,
            uploading_at_ms=upload.began_at_ms,
            sink_ms=upload.sink_ms,
            storing_ms=upload.storing_ms,
            stored_bytes=upload.stored_bytes,
            tasks=tasks,
            long_steps=steps,
            # With the driver's storage no slot stores anything itself: what it measured is no store.
            storage=self._storage_speed if self._storage is CheckpointStorage.FILES else UNKNOWN_SPEED,
            encoded_for_ms=assembly.encoded_for_ms,
        )

    def _go_on(self, checkpoint: CheckpointId, assembly: _Assembly) -> None:
        for task in self._finished - assembly.parts.keys():
            assembly.parts[task] = _TaskPart(_as_of(checkpoint, self._last_snapshot[task]), (), [])
        if self._tasks != assembly.parts.keys():
            return
        if not assembly.has_told_taken:
            assembly.has_told_taken = True
            self._send(SnapshotsTaken(self._generation, checkpoint))
        # Not before the coordinator's own word: it says where to, and on its connection it comes behind the news of
        # earlier checkpoints, without which this one could refer to what is about to be deleted.
        is_complete = assembly.is_triggered and all(part.is_complete() for part in assembly.parts.values())
        if is_complete and assembly.encoding is None and not assembly.is_uploading:
            assembly.encoding = self._encode(checkpoint, assembly)
            assembly.encoding_at_ms = self._clock.monotonic_ms()

    def _encode(self, checkpoint: CheckpointId, assembly: _Assembly) -> Iterator[None]:
        """Each step encodes one section, so that the stream goes on in between."""
        is_alone = assembly.savepoint is not None or self._storage is CheckpointStorage.DRIVER
        if not is_alone:
            assembly.known_files = self.known_files
            if self._ahead is not None:
                assembly.known_files = {**self._ahead.files_of(checkpoint), **self.known_files}
                assembly.kept_files = self._ahead.kept_by(checkpoint)
        for task, part in assembly.parts.items():
            snapshot = part.snapshot
            assembly.writer.add(SectionKey(task, -1, "task", "progress"), encode_task(snapshot.progress))
            if snapshot.source_state is not None:
                assembly.writer.add(SectionKey(task, -1, "source", "reader"), snapshot.source_state)
            for number, (operator, section) in enumerate(snapshot.sections):
                # Numbered: an operator may give its state in several sections of one name.
                name = f"{section.name}{PART_MARK}{number}"
                key = SectionKey(task, operator, _kind_of(section), name, section.key_groups)
                if section.steps is not None:
                    yield from section.steps()
                if section.files is not None:
                    assembly.with_files.append((key, section))
                    continue
                assembly.writer.add(key, *section.pieces())
                yield
        captures = CaptureWriter(
            [capture for task, part in assembly.parts.items() for capture in _captured(task, part)],
            known=None if is_alone else self.known,
            inline_below_bytes=self._inline_below_bytes,
        )
        yield from captures.encode()
        assembly.captures = captures.finish()
        for capture, stored in assembly.captures.sections:
            key = SectionKey(capture.task, -1, "channel", section_name(capture.side, capture.channel))
            assembly.writer.add(key, encode_section(stored))
            yield

    def _upload(self, checkpoint: CheckpointId, assembly: _Assembly) -> None:
        assembly.is_uploading = True
        started_ms = assembly.queued_at_ms = self._clock.monotonic_ms()
        times = assembly.upload
        uploaded: list[Uploaded] = []
        to_commit = {task: self._to_commit(task, checkpoint) for task in assembly.parts}
        upload = self._upload_of(checkpoint, assembly, started_ms)

        def work() -> None:
            if assembly.is_dropped:
                return  # else uploads that nobody waits for would hold up the next one until that expires, too
            times.began_at_ms = self._clock.monotonic_ms()
            for prepared in to_commit.values():
                for epoch in prepared:
                    epoch.make_durable()
            times.sink_ms = self._clock.monotonic_ms() - times.began_at_ms
            times.is_storing = True
            assembly.raise_if_dropped()
            uploaded.append(upload.run())

        def then(error: BaseException | None) -> None:
            if self._assemblies.pop(checkpoint, None) is None:
                return  # aborted while it was uploaded
            if error is not None:
                reason = f"{type(error).__name__}: {error}"
                self._send(Decline(self._generation, checkpoint, reason, is_upload=times.is_storing))
                return
            if uploaded[0].stored_bytes:
                self._storage_speed = StorageSpeed(uploaded[0].stored_bytes, uploaded[0].storing_ms)
                self._measured_at_ms = uploaded[0].ended_at_ms
            self._acknowledge(checkpoint, assembly, to_commit, uploaded[0])

        self._background.submit(work, then)

    def _upload_of(self, checkpoint: CheckpointId, assembly: _Assembly, now_ms: float) -> Upload:
        folder = layout.CheckpointFolder(checkpoint, self._generation)
        savepoint, captures = assembly.savepoint, assembly.captures
        assert captures is not None, "encoded before it is uploaded"
        path = layout.state_file(folder, self._slot) if savepoint is None else layout.savepoint_state_file(self._slot)
        # Somebody else's to look at and to carry elsewhere: a savepoint has the same files whatever its size.
        may_be_in_manifest = savepoint is None and now_ms < self._measured_at_ms + _MEASURE_STORAGE_EVERY_MS
        return Upload(
            folder=folder,
            slot=self._slot,
            path=path,
            storage=self._storage,
            open_store=lambda: self._store if savepoint is None else self._open_location(savepoint),
            writer=assembly.writer,
            captures=captures,
            with_files=assembly.with_files,
            known_files=assembly.known_files,
            kept_files=assembly.kept_files,
            inline_below_bytes=self._inline_below_bytes,
            in_manifest_below_bytes=self._in_manifest_below_bytes if may_be_in_manifest else 0,
            copies=self._copies if savepoint is None else None,
            clock=self._clock,
            times=assembly.upload,
            raise_if_dropped=assembly.raise_if_dropped,
        )

    def _to_commit(self, task: TaskId, checkpoint: CheckpointId) -> list[Prepared]:
        return [prepared for epoch, prepared in self._unsettled.get(task, {}).items() if epoch <= checkpoint]

    def _acknowledge(
        self,
        checkpoint: CheckpointId,
        assembly: _Assembly,
        to_commit: dict[TaskId, list[Prepared]],
        uploaded: Uploaded,
    ) -> None:
        assert assembly.queued_at_ms is not None, "queued before it is uploaded"
        async_ms = uploaded.ended_at_ms - assembly.queued_at_ms
        captures = assembly.captures
        assert captures is not None
        held_elements: list[StoredChannel] = []
        references: list[tuple[ChannelId, Sequence, StoredAt]] = []
        for capture, section in captures.sections:
            references += referable(capture.channel, section.elements, uploaded.captured)
            if capture.side == HELD and uploaded.captured:
                held_elements.append(StoredChannel(capture.channel, section.elements))
        self._acknowledged[checkpoint] = references
        self._acknowledged_files[checkpoint] = uploaded.state_files
        shared = [*uploaded.captured, *uploaded.state_files.values()]
        if self._copies is not None:
            self._copies.on_acknowledged(checkpoint, frozenset([uploaded.path, *(file.path for file in shared)]))
        received: list[ChannelCapture] = []
        held: list[ChannelCapture] = []
        for part in assembly.parts.values():
            ranges = [capture.range for capture in part.received or ()]
            received += [
                ChannelCapture(r.channel, r.held_from, r.before, first=r.first, row=r.row, phases=r.phases)
                for r in ranges
            ]
            held += [ChannelCapture(k.channel, k.cut.held_from, k.cut.before) for k in part.held or ()]
        self._send(
            Acknowledge(
                generation=self._generation,
                checkpoint=checkpoint,
                path=uploaded.path,
                length=uploaded.file.length_bytes,
                crc32=uploaded.file.crc32,
                parts=[
                    _task_part(part.snapshot, captures, to_commit[task], async_ms)
                    for task, part in assembly.parts.items()
                ],
                received=received,
                held=held,
                shared=shared,
                held_elements=held_elements,
                standing=self._standing(checkpoint, assembly),
                now_ms=self._clock.monotonic_ms(),
                content=uploaded.content,
            )
        )


def _ignored(error: BaseException | None) -> None:
    """A copy that could not be removed is in nobody's way: the next checkpoint tries again."""


def _kind_of(section: Section) -> SectionKind:
    return KIND_OF[section.redistribution] if section.files is None else "files"


def _as_of(checkpoint: CheckpointId, last: TaskSnapshot) -> TaskSnapshot:
    """A finished task's part of a later checkpoint: the same content, and nothing had to be done for it."""
    return replace(
        last,
        checkpoint=checkpoint,
        kind=CheckpointKind.ALIGNED,
        start_delay_ms=0.0,
        alignment_ms=0.0,
        sync_ms=0.0,
    )


def _task_part(
    snapshot: TaskSnapshot, captures: EncodedCaptures, to_commit: list[Prepared], async_ms: float
) -> TaskPart:
    return TaskPart(
        task=snapshot.task,
        kind=snapshot.kind.value,
        start_delay_ms=snapshot.start_delay_ms,
        alignment_ms=snapshot.alignment_ms,
        sync_ms=snapshot.sync_ms,
        async_ms=async_ms,
        state_bytes=snapshot.state_bytes,
        inflight_bytes=captures.full_bytes.get(snapshot.task, 0),
        new_inflight_bytes=captures.new_bytes.get(snapshot.task, 0),
        committables=[committable for prepared in to_commit for committable in prepared.committables],
        position=snapshot.position,
    )


def _captured(task: TaskId, part: _TaskPart) -> Iterator[CapturedChannel]:
    for received in part.received or ():
        yield CapturedChannel(task, RECEIVED, received.range.channel, received.elements)
    for held in part.held or ():
        elements = tuple(CapturedElement(sealed.sequence, sealed.element) for sealed in held.elements)
        yield CapturedChannel(task, HELD, held.channel, elements)
