"""A slot's part of each checkpoint: gathers snapshots, encodes between steps, uploads behind, acknowledges."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tidegate.connectors.contract import Prepared
from tidegate.model.clock import Clock
from tidegate.model.ids import CheckpointId, Generation, SlotIndex, TaskId
from tidegate.network.messages import Acknowledge, ChannelCapture, Decline, TaskPart
from tidegate.storage import layout
from tidegate.storage.state_file import FileSum, SectionKey, StateFileWriter, sum_of
from tidegate.storage.store import Store
from tidegate.worker.captured import HELD, RECEIVED, encode_elements, section_name
from tidegate.worker.gate import ReceivedCapture
from tidegate.worker.mailbox import Background
from tidegate.worker.output import HeldCapture
from tidegate.worker.task import TaskSnapshot


@dataclass(slots=True)
class _TaskPart:
    snapshot: TaskSnapshot
    received: tuple[ReceivedCapture, ...] | None = None
    held: list[HeldCapture] | None = None

    def is_complete(self) -> bool:
        return self.received is not None and self.held is not None


@dataclass(slots=True)
class _Assembly:
    parts: dict[TaskId, _TaskPart] = field(default_factory=dict)
    inflight_bytes: dict[TaskId, int] = field(default_factory=dict)
    writer: StateFileWriter = field(default_factory=StateFileWriter)
    encoding: Iterator[None] | None = None
    is_uploading: bool = False
    is_dropped: bool = False


class SlotSnapshots:
    """`send` takes the acknowledgement or the refusal of a checkpoint."""

    def __init__(
        self,
        *,
        slot: SlotIndex,
        generation: Generation,
        tasks: Iterable[TaskId],
        store: Store,
        background: Background,
        clock: Clock,
        send: Callable[[Acknowledge | Decline], None],
    ) -> None:
        self._slot = slot
        self._generation = generation
        self._tasks = frozenset(tasks)
        self._store = store
        self._background = background
        self._clock = clock
        self._send = send
        self._assemblies: dict[CheckpointId, _Assembly] = {}
        self._aborted: set[CheckpointId] = set()
        # What sinks prepared for checkpoints that are not known to be complete. Each later checkpoint carries it too:
        # if an earlier one fails, its rows are still committed, and committing them twice changes nothing.
        self._unsettled: dict[TaskId, dict[CheckpointId, Prepared]] = {}

    # -- events

    def on_snapshot(self, snapshot: TaskSnapshot) -> None:
        if snapshot.prepared is not None:
            self._unsettled.setdefault(snapshot.task, {})[snapshot.checkpoint] = snapshot.prepared
        if snapshot.checkpoint in self._aborted:
            return
        assembly = self._assemblies.setdefault(snapshot.checkpoint, _Assembly())
        assembly.parts[snapshot.task] = _TaskPart(snapshot)

    def on_received(self, task: TaskId, checkpoint: CheckpointId, captures: tuple[ReceivedCapture, ...]) -> None:
        if (assembly := self._assemblies.get(checkpoint)) is not None:
            assembly.parts[task].received = captures
            self._encode_if_complete(checkpoint, assembly)

    def on_held(self, task: TaskId, checkpoint: CheckpointId, captures: list[HeldCapture]) -> None:
        if (assembly := self._assemblies.get(checkpoint)) is not None:
            assembly.parts[task].held = captures
            self._encode_if_complete(checkpoint, assembly)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        if (assembly := self._assemblies.pop(checkpoint, None)) is not None:
            assembly.is_dropped = True
        self._aborted = {aborted for aborted in self._aborted if aborted > checkpoint - _REMEMBERED_ABORTS}
        self._aborted.add(checkpoint)

    def on_done(self, checkpoint: CheckpointId) -> None:
        for task, prepared in self._unsettled.items():
            self._unsettled[task] = {later: p for later, p in prepared.items() if later > checkpoint}

    # -- questions and work

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
                if next(assembly.encoding, _DONE) is _DONE:
                    assembly.encoding = None
                    self._upload(checkpoint, assembly)
                if self._clock.monotonic_ms() >= until_ms:
                    return

    # -- inside

    def _encode_if_complete(self, checkpoint: CheckpointId, assembly: _Assembly) -> None:
        complete = self._tasks == assembly.parts.keys() and all(part.is_complete() for part in assembly.parts.values())
        if complete and assembly.encoding is None and not assembly.is_uploading:
            assembly.encoding = _encode(assembly)

    def _upload(self, checkpoint: CheckpointId, assembly: _Assembly) -> None:
        assembly.is_uploading = True
        path = layout.state_file(layout.CheckpointFolder(checkpoint, self._generation), self._slot)
        started_ms = self._clock.monotonic_ms()
        sums: list[FileSum] = []
        to_commit = {task: self._to_commit(task, checkpoint) for task in assembly.parts}

        def work() -> None:
            if assembly.is_dropped:
                return  # else uploads that nobody waits for would hold up the next one until that expires, too
            for prepared in to_commit.values():
                for epoch in prepared:
                    epoch.make_durable()
            pieces = assembly.writer.finish()
            sums.append(sum_of(pieces))
            self._store.put(path, pieces)

        def then(error: BaseException | None) -> None:
            if self._assemblies.pop(checkpoint, None) is None:
                return  # aborted while it was uploaded
            if error is not None:
                self._send(Decline(self._generation, checkpoint, f"{type(error).__name__}: {error}"))
                return
            async_ms = self._clock.monotonic_ms() - started_ms
            self._send(self._acknowledgement(checkpoint, assembly, to_commit, path, sums[0], async_ms))

        self._background.submit(work, then)

    def _to_commit(self, task: TaskId, checkpoint: CheckpointId) -> list[Prepared]:
        return [prepared for epoch, prepared in self._unsettled.get(task, {}).items() if epoch <= checkpoint]

    def _acknowledgement(
        self,
        checkpoint: CheckpointId,
        assembly: _Assembly,
        to_commit: dict[TaskId, list[Prepared]],
        path: str,
        file: FileSum,
        async_ms: float,
    ) -> Acknowledge:
        parts: list[TaskPart] = []
        received: list[ChannelCapture] = []
        held: list[ChannelCapture] = []
        for task, part in assembly.parts.items():
            snapshot = part.snapshot
            parts.append(
                TaskPart(
                    task=task,
                    kind=snapshot.kind.value,
                    start_delay_ms=snapshot.start_delay_ms,
                    alignment_ms=snapshot.alignment_ms,
                    sync_ms=snapshot.sync_ms,
                    async_ms=async_ms,
                    state_bytes=snapshot.state_bytes,
                    inflight_bytes=assembly.inflight_bytes.get(task, 0),
                    committables=[committable for p in to_commit[task] for committable in p.committables],
                )
            )
            for capture in part.received or ():
                r = capture.range
                received.append(ChannelCapture(r.channel, r.held_from, r.before, first=r.first, row=r.row))
            held += [ChannelCapture(k.channel, k.cut.held_from, k.cut.before) for k in part.held or ()]
        return Acknowledge(
            generation=self._generation,
            checkpoint=checkpoint,
            path=path,
            length=file.length_bytes,
            crc32=file.crc32,
            parts=parts,
            received=received,
            held=held,
        )


PART_MARK = "#"
_DONE = object()
# A late snapshot of an aborted checkpoint is recognised as long as its id is within this many of the newest abort.
_REMEMBERED_ABORTS = 1000


def _encode(assembly: _Assembly) -> Iterator[None]:
    """Each step encodes one section, so that the stream goes on in between."""
    for task, part in assembly.parts.items():
        snapshot = part.snapshot
        if snapshot.source_state is not None:
            assembly.writer.add(SectionKey(task, -1, "source", "reader"), snapshot.source_state)
        for number, (operator, section) in enumerate(snapshot.sections):
            # Numbered: an operator may give its state in several sections of one name.
            name = f"{section.name}{PART_MARK}{number}"
            key = SectionKey(task, operator, "state", name, section.key_groups)
            assembly.writer.add(key, section.encode())
            yield
        captured = [(RECEIVED, c.range.channel, list(c.elements)) for c in part.received or ()]
        captured += [(HELD, c.channel, [(s.sequence, s.element) for s in c.elements]) for c in part.held or ()]
        for side, channel, elements in captured:
            data = encode_elements(elements)
            assembly.inflight_bytes[task] = assembly.inflight_bytes.get(task, 0) + len(data)
            assembly.writer.add(SectionKey(task, -1, "channel", section_name(side, channel)), data)
            yield
