"""The checkpoints of a job in numbers: gathers acknowledgements into manifests and views."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from tidegate.coordinator.facts import Heard, StoringTimes
from tidegate.coordinator.views import CheckpointView, TaskCheckpointView
from tidegate.model.ids import CheckpointId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.network.messages import (
    Acknowledge,
    ChannelCapture,
    SlotStanding,
    StoredChannel,
    StoredElement,
    TaskPart,
)
from tidegate.plan.naming import names_in
from tidegate.plan.physical import JobPlan
from tidegate.protocol.channel_ranges import ReceiverRange, SenderRange, find_gap
from tidegate.protocol.checkpoint_facts import CheckpointFacts, InputBefore, TaskFacts
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.kinds import CheckpointKind, combined
from tidegate.protocol.requests import SavepointRequest
from tidegate.protocol.statistics import CheckpointStatistics, Owner, StatisticsView
from tidegate.storage import layout
from tidegate.storage.manifests import ChannelRange, Manifest, SharedFile, SlotFile, TaskCommittables

# Enough to see a bad hour at the default interval; the log has the rest.
_REMEMBERED = 200
# Of these the newest also by task.
_DETAILED = 50


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """What senders in other slots stored of channels to one slot, and the files that hold it."""

    files: list[SharedFile] = field(default_factory=list)
    channels: list[StoredChannel] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlotPart:
    """What views show of one slot's acknowledgement."""

    tasks: tuple[TaskCheckpointView, ...]
    state_bytes: int
    new_state_bytes: int
    inflight_bytes: int
    new_inflight_bytes: int
    processed_bytes: int


@dataclass(slots=True)
class Underway:
    """`names`: of the plan's vertices, for who looks before the facts are put together."""

    checkpoint: CheckpointId
    triggered_at_ms: float
    triggered_wall_ms: int
    acknowledged: dict[SlotIndex, Acknowledge] = field(default_factory=dict)
    taken: set[SlotIndex] = field(default_factory=set)
    savepoint: SavepointRequest | None = None
    location: str | None = None
    acknowledged_at_ms: dict[SlotIndex, float] = field(default_factory=dict)
    standings: dict[SlotIndex, SlotStanding] = field(default_factory=dict)
    failed_slot: SlotIndex | None = None
    is_upload_failure: bool = False
    inputs_before: Mapping[TaskId, InputBefore] = field(default_factory=dict)
    storing: StoringTimes | None = None
    before: tuple[StoringTimes, ...] = ()
    paused_ms: dict[TaskId, float] = field(default_factory=dict)
    ingest_paused_ms: float = 0.0
    ingest_paused_before_ms: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[VertexId, str] = field(default_factory=dict)
    _paused_before_ms: dict[TaskId, float] = field(default_factory=dict)
    # Made once per slot: the job is looked at in every turn of the loop.
    _slot_parts: dict[SlotIndex, SlotPart] = field(default_factory=dict)

    def parts(self) -> list[TaskPart]:
        return [part for _, ack in sorted(self.acknowledged.items()) for part in ack.parts]

    def positions(self) -> dict[VertexId, tuple[bytes, ...]]:
        """Of the sources that tell one."""
        told = [(part.task.vertex, part.position) for part in self.parts() if part.position is not None]
        return {vertex: tuple(position for of, position in told if of == vertex) for vertex, _ in told}

    def task_views(self) -> tuple[TaskCheckpointView, ...]:
        return tuple(view for part in self.slot_parts() for view in part.tasks)

    def slot_parts(self) -> list[SlotPart]:
        for slot, ack in self.acknowledged.items():
            if slot not in self._slot_parts:
                self._slot_parts[slot] = _slot_part(ack, self.names)
        return [part for _, part in sorted(self._slot_parts.items())]

    def unacknowledged(self) -> list[SlotStanding]:
        """What slots have said that have not acknowledged."""
        return [said for slot, said in self.standings.items() if slot not in self.acknowledged]

    def heard(self, last_words_ms: Mapping[SlotIndex, float]) -> Heard:
        return Heard(
            checkpoint=self.checkpoint,
            is_savepoint=self.savepoint is not None,
            kind=self.kind().value,
            triggered_at_ms=self.triggered_at_ms,
            triggered_wall_ms=self.triggered_wall_ms,
            acknowledged=self.acknowledged,
            acknowledged_at_ms=self.acknowledged_at_ms,
            standings=self.standings,
            last_words_ms=last_words_ms,
            inputs_before=self.inputs_before,
            paused_ms=self.paused_ms,
            ingest_paused_ms=self.ingest_paused_ms,
            storing=self.storing,
            before=self.before,
        )

    def note_pauses(self, totals_ms: Mapping[TaskId, float], last_words_ms: Mapping[SlotIndex, float]) -> None:
        """`totals_ms`: how long sources have paused in all, as their slots reported last.

        An acknowledgement tells of the pauses up to itself; what comes after it is told by these totals alone.
        """
        for task, total_ms in totals_ms.items():
            if task not in self._paused_before_ms:
                paused_ms = self._paused_at_report_ms(task, last_words_ms)
                if paused_ms is None:
                    continue
                self._paused_before_ms[task] = total_ms - paused_ms
            self.paused_ms[task] = total_ms - self._paused_before_ms[task]

    def note_ingest_pauses(self, totals_ms: Mapping[str, float]) -> None:
        """As `note_pauses`, of what Spark ingests: the driver knows it at any moment."""
        pauses_ms = (total_ms - self.ingest_paused_before_ms.get(name, 0.0) for name, total_ms in totals_ms.items())
        self.ingest_paused_ms = max(pauses_ms, default=0.0)

    def _paused_at_report_ms(self, task: TaskId, last_words_ms: Mapping[SlotIndex, float]) -> float | None:
        """For this checkpoint, when the slot made its last report; None if that came before what it says of it."""
        slot = SlotIndex(task.subtask)
        said = self.standings.get(slot)
        if slot in self.acknowledged:
            # What it paused between its acknowledgement and the report is lost: a fifth of a second at most.
            has_reported = last_words_ms.get(slot, 0.0) > self.acknowledged_at_ms[slot]
            said = self.acknowledged[slot].standing if has_reported else None
        if said is None:
            return None
        return next((one.paused_ms for one in said.tasks if one.task == task), None)

    def kind(self) -> CheckpointKind:
        """Also by what tasks said whose slot has not acknowledged."""
        told = {task.kind for said in self.standings.values() for task in said.tasks if task.kind is not None}
        return combined([CheckpointKind(kind) for kind in told | {part.kind for part in self.parts()}])

    def find_gap(self) -> str | None:
        receivers = (
            ReceiverRange(channel=c.channel, first=first, row=c.row, held_from=c.held_from, before=c.before)
            for first, c in self._received()
        )
        return find_gap(receivers, self._held())

    def manifest(
        self,
        *,
        generation: Generation,
        now_ms: float,
        fingerprint: Iterable[str],
        plan: JobPlan,
        state_backend: str,
    ) -> Manifest:
        parts = self.parts()
        return Manifest(
            checkpoint=self.checkpoint,
            generation=generation,
            kind=_kind(parts).value,
            is_savepoint=self.savepoint is not None,
            triggered_at_ms=self.triggered_wall_ms,
            duration_ms=now_ms - self.triggered_at_ms,
            plan_fingerprint=list(fingerprint),
            operator_names=names_in(plan),
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            vertex_parallelism=[plan.parallelism_of(vertex.id) for vertex in plan.vertices],
            slots=[
                SlotFile(slot, a.path, a.length, a.crc32, a.shared, a.content)
                for slot, a in sorted(self.acknowledged.items())
            ],
            channels=[
                ChannelRange(c.channel, first, c.row, c.held_from, c.before, c.phases) for first, c in self._received()
            ],
            committables=[TaskCommittables(p.task, list(p.committables)) for p in parts if p.committables],
            tasks={str(part.task): _numbers(part) for part in parts},
            state_backend=state_backend,
        )

    def held_by_receiver(self) -> dict[SlotIndex, HeldElsewhere]:
        """By the slot that it is for: what senders in other slots stored; who is not in it has nothing elsewhere."""
        by_receiver: dict[SlotIndex, HeldElsewhere] = {}
        for sender, ack in self.acknowledged.items():
            for receiver, stored in _by_receiver(ack.held_elements).items():
                if receiver == sender:
                    continue
                held = by_receiver.setdefault(receiver, HeldElsewhere())
                first = len(held.files)
                # They come first, and have the numbers that elements speak of; the rest is state.
                held.files.extend(file for file in ack.shared if layout.parse_channel_file(file.path) is not None)
                held.channels.extend(
                    StoredChannel(s.channel, [_renumbered(e, first) for e in s.elements]) for s in stored
                )
        return by_receiver

    def _received(self) -> Iterator[tuple[Sequence, ChannelCapture]]:
        """Each with the first element that its receiver had not processed."""
        for ack in self.acknowledged.values():
            for capture in ack.received:
                assert capture.first is not None, "a receiver says where its part begins"
                yield capture.first, capture

    def _held(self) -> list[SenderRange]:
        captures = [c for ack in self.acknowledged.values() for c in ack.held]
        return [SenderRange(channel=c.channel, held_from=c.held_from, before=c.before) for c in captures]


class History:
    """Newest last inside, newest first outside."""

    def __init__(self) -> None:
        self._views: deque[CheckpointView] = deque(maxlen=_REMEMBERED)
        self._facts: dict[int, CheckpointFacts] = {}
        self._statistics = CheckpointStatistics()

    def _remember(self, view: CheckpointView, facts: CheckpointFacts | None) -> None:
        self._views.append(view)
        if facts is not None:
            self._facts[view.id] = facts
        while len(self._facts) > _DETAILED:
            del self._facts[next(iter(self._facts))]
        if len(self._views) > _DETAILED:
            # One view of thousands of tasks takes megabytes.
            self._views[-1 - _DETAILED] = replace(self._views[-1 - _DETAILED], tasks=())

    def views(self) -> tuple[CheckpointView, ...]:
        return tuple(reversed(self._views))

    def facts(self) -> tuple[CheckpointFacts, ...]:
        """Of the newest, in the order in which they ended."""
        return tuple(self._facts.values())

    def statistics(self) -> StatisticsView:
        return self._statistics.snapshot()

    def triggered(self, underway: Underway) -> None:
        self._statistics.on_triggered(_owner(underway))

    def refused(self, reason: FailureReason) -> None:
        self._statistics.on_refused(reason)

    def completed(self, underway: Underway, *, path: str, duration_ms: float, facts: CheckpointFacts) -> None:
        view = replace(
            in_progress_view(underway, underway.triggered_at_ms + duration_ms),
            status="completed",
            kind=_kind(underway.parts()).value,
            duration_ms=duration_ms,
            processed_bytes=sum(task.processed_bytes for task in facts.tasks),
            path=path,
            tasks=with_facts(underway.task_views(), facts),
        )
        self._statistics.on_completed(
            _owner(underway),
            duration_ms=duration_ms,
            state_bytes=view.state_bytes,
            inflight_bytes=view.inflight_bytes,
        )
        self._remember(view, facts)

    def failed(
        self, underway: Underway, *, reason: FailureReason, detail: str | None, now_ms: float, facts: CheckpointFacts
    ) -> None:
        """With the numbers of those who had answered, and who had not."""
        self._statistics.on_failed(reason, now_ms - underway.triggered_at_ms)
        view = replace(
            in_progress_view(underway, now_ms),
            status="failed",
            failure_reason=reason.value if detail is None else f"{reason.value}: {detail}",
        )
        self._remember(failed_with_facts(view, facts), facts)

    def failed_later_known(self, facts: CheckpointFacts) -> None:
        """A slot told how far it had been, once it heard that the checkpoint was given up."""
        if facts.checkpoint not in self._facts:
            return
        self._facts[facts.checkpoint] = facts
        for at, view in enumerate(self._views):
            if view.id == facts.checkpoint and view.tasks + view.unreported:
                self._views[at] = failed_with_facts(view, facts)


def in_progress_view(underway: Underway, now_ms: float) -> CheckpointView:
    """With the numbers of those who have answered, and what the others say that they processed."""
    parts = underway.slot_parts()
    others_processed_bytes = sum(map(_processed_bytes, underway.unacknowledged()))
    return CheckpointView(
        id=underway.checkpoint,
        status="in_progress",
        kind=underway.kind().value,
        is_savepoint=underway.savepoint is not None,
        triggered_at=_datetime(underway.triggered_wall_ms),
        duration_ms=now_ms - underway.triggered_at_ms,
        state_bytes=sum(part.state_bytes for part in parts),
        new_state_bytes=sum(part.new_state_bytes for part in parts),
        inflight_bytes=sum(part.inflight_bytes for part in parts),
        new_inflight_bytes=sum(part.new_inflight_bytes for part in parts),
        processed_bytes=sum(part.processed_bytes for part in parts) + others_processed_bytes,
        tasks=underway.task_views(),
    )


def failed_with_facts(view: CheckpointView, facts: CheckpointFacts) -> CheckpointView:
    """What is known of a failed one, the same from the running query and from storage, which has nothing but facts.

    Of a very wide job facts hold the slots that answered last; of the others it stays what `view` has of their tasks.
    """
    told = {str(task.task) for task in facts.tasks}
    others = tuple(task for task in view.tasks if task.task not in told)
    tasks = (*with_facts((), facts), *others)
    return replace(
        view,
        kind=facts.kind,
        state_bytes=sum(task.state_bytes for task in tasks),
        new_state_bytes=_uploaded_state_bytes(facts),
        inflight_bytes=sum(task.inflight_bytes for task in tasks),
        new_inflight_bytes=sum(task.new_inflight_bytes for task in tasks),
        processed_bytes=sum(task.processed_bytes for task in facts.tasks)
        + sum(task.processed_bytes for task in others),
        tasks=tasks,
        unreported=tuple(str(task.task) for task in facts.tasks if not _has_snapshot(task)),
    )


def _owner(underway: Underway) -> Owner:
    return Owner.JOB if underway.savepoint is None else Owner.USER


def new_state_bytes(
    checkpoint: CheckpointId, *, file_bytes: int, shared: Iterable[SharedFile], new_inflight_bytes: int
) -> int:
    """What a slot stored beside captured data, which lies in the state file as long as it is small."""
    written = [file for file in shared if _is_written_by(checkpoint, layout.parse_shared_file(file.path))]
    of_state = [file for file in written if layout.parse_channel_file(file.path) is None]
    captured_bytes = new_inflight_bytes if len(of_state) == len(written) else 0
    return file_bytes - captured_bytes + sum(file.length for file in of_state)


def _new_state_bytes(ack: Acknowledge) -> int:
    return new_state_bytes(
        ack.checkpoint,
        file_bytes=ack.length,
        shared=ack.shared,
        new_inflight_bytes=sum(part.new_inflight_bytes for part in ack.parts),
    )


def _uploaded_state_bytes(facts: CheckpointFacts) -> int:
    """Of slots that had acknowledged: of the others nobody knows how much of it were captured rows."""
    captured_bytes: dict[int, int] = {}
    for task in facts.tasks:
        slot = task.task.subtask
        captured_bytes[slot] = captured_bytes.get(slot, 0) + task.new_inflight_bytes
    # What was to be part of the manifest was never written, be it state or captured rows.
    return sum(
        max(0, slot.stored_bytes - captured_bytes.get(slot.slot, 0))
        for slot in facts.slots
        if slot.acknowledged_ms is not None
    )


def _is_written_by(checkpoint: CheckpointId, folder: layout.CheckpointFolder | None) -> bool:
    return folder is not None and folder.checkpoint == checkpoint


def _by_receiver(stored: Iterable[StoredChannel]) -> dict[SlotIndex, list[StoredChannel]]:
    by_receiver: dict[SlotIndex, list[StoredChannel]] = {}
    for one in stored:
        by_receiver.setdefault(SlotIndex(one.channel.receiver), []).append(one)
    return by_receiver


def _renumbered(element: StoredElement, first: int) -> StoredElement:
    return element if element.file < 0 else msgspec.structs.replace(element, file=element.file + first)


def _kind(parts: list[TaskPart]) -> CheckpointKind:
    return combined([CheckpointKind(kind) for kind in {part.kind for part in parts}])


def _datetime(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _numbers(part: TaskPart) -> dict[str, float]:
    return {
        "start_delay_ms": part.start_delay_ms,
        "alignment_ms": part.alignment_ms,
        "sync_ms": part.sync_ms,
        "async_ms": part.async_ms,
        "state_bytes": part.state_bytes,
        "inflight_bytes": part.inflight_bytes,
    }


def _has_snapshot(task: TaskFacts) -> bool:
    """Also if that seems to have come after the end, or nobody knows when: then it is in what its slot acknowledged."""
    return task.snapshot_ms is not None or task.async_ms is not None


def with_facts(views: tuple[TaskCheckpointView, ...], facts: CheckpointFacts | None) -> tuple[TaskCheckpointView, ...]:
    """What slots acknowledged, completed by what is known besides: names, and tasks whose slot had not acknowledged."""
    if facts is None:
        return views
    known = {view.task: view for view in views}
    merged: list[TaskCheckpointView] = []
    for task in facts.tasks:
        view = known.pop(str(task.task), None)
        if view is None and not _has_snapshot(task):
            continue
        view = _view_of(task) if view is None else view
        merged.append(replace(view, name=task.name, processed_bytes=task.processed_bytes))
    return (*merged, *known.values())


def _view_of(task: TaskFacts) -> TaskCheckpointView:
    return TaskCheckpointView(
        task=str(task.task),
        start_delay_ms=task.start_delay_ms or 0.0,
        alignment_ms=task.alignment_ms,
        sync_ms=task.sync_ms,
        async_ms=task.async_ms or 0.0,
        state_bytes=task.state_bytes,
        inflight_bytes=task.inflight_bytes,
        new_inflight_bytes=task.new_inflight_bytes,
    )


def _slot_part(ack: Acknowledge, names: Mapping[VertexId, str]) -> SlotPart:
    standings = () if ack.standing is None else ack.standing.tasks
    processed_bytes = {said.task: said.processed_bytes for said in standings}
    return SlotPart(
        tasks=tuple(_task_view(part, names.get(part.task.vertex, ""), processed_bytes) for part in ack.parts),
        state_bytes=sum(part.state_bytes for part in ack.parts),
        new_state_bytes=_new_state_bytes(ack),
        inflight_bytes=sum(part.inflight_bytes for part in ack.parts),
        new_inflight_bytes=sum(part.new_inflight_bytes for part in ack.parts),
        processed_bytes=sum(processed_bytes.values()),
    )


def _processed_bytes(said: SlotStanding) -> int:
    return sum(task.processed_bytes for task in said.tasks)


def _task_view(part: TaskPart, name: str, processed_bytes: Mapping[TaskId, int]) -> TaskCheckpointView:
    return TaskCheckpointView(
        task=str(part.task),
        start_delay_ms=part.start_delay_ms,
        alignment_ms=part.alignment_ms,
        sync_ms=part.sync_ms,
        async_ms=part.async_ms,
        state_bytes=part.state_bytes,
        inflight_bytes=part.inflight_bytes,
        new_inflight_bytes=part.new_inflight_bytes,
        processed_bytes=processed_bytes.get(part.task, 0),
        name=name,
    )
