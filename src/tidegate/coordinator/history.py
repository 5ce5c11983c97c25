"""The checkpoints of a job in numbers: gathers acknowledgements into manifests and views."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate.coordinator.views import CheckpointView, TaskCheckpointView
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import Acknowledge, ChannelCapture, TaskPart
from tidegate.protocol.channel_ranges import ReceiverRange, SenderRange, find_gap
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.kinds import CheckpointKind, combined
from tidegate.storage.manifests import ChannelRange, Manifest, SlotFile, TaskCommittables

# Enough to see a bad hour at the default interval; the log has the rest.
_REMEMBERED = 200


@dataclass(slots=True)
class Underway:
    checkpoint: CheckpointId
    triggered_at_ms: float
    triggered_wall_ms: int
    acknowledged: dict[SlotIndex, Acknowledge] = field(default_factory=dict)

    def parts(self) -> list[TaskPart]:
        return [part for _, ack in sorted(self.acknowledged.items()) for part in ack.parts]

    def find_gap(self) -> str | None:
        return find_gap(self._received(), self._held())

    def manifest(
        self,
        *,
        generation: Generation,
        now_ms: float,
        fingerprint: Sequence[str],
        parallelism: int,
        max_parallelism: int,
    ) -> Manifest:
        parts = self.parts()
        return Manifest(
            checkpoint=self.checkpoint,
            generation=generation,
            kind=_kind(parts).value,
            is_savepoint=False,
            triggered_at_ms=self.triggered_wall_ms,
            duration_ms=now_ms - self.triggered_at_ms,
            plan_fingerprint=list(fingerprint),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            slots=[SlotFile(slot, a.path, a.length, a.crc32) for slot, a in sorted(self.acknowledged.items())],
            channels=[ChannelRange(r.channel, r.first, r.row, r.held_from, r.before) for r in self._received()],
            committables=[TaskCommittables(p.task, list(p.committables)) for p in parts if p.committables],
            tasks={str(part.task): _numbers(part) for part in parts},
        )

    def _received(self) -> list[ReceiverRange]:
        captures: list[ChannelCapture] = [c for ack in self.acknowledged.values() for c in ack.received]
        ranges = []
        for c in captures:
            assert c.first is not None, "a receiver says where its part begins"
            ranges.append(
                ReceiverRange(channel=c.channel, first=c.first, row=c.row, held_from=c.held_from, before=c.before)
            )
        return ranges

    def _held(self) -> list[SenderRange]:
        captures = [c for ack in self.acknowledged.values() for c in ack.held]
        return [SenderRange(channel=c.channel, held_from=c.held_from, before=c.before) for c in captures]


class History:
    """Newest last inside, newest first outside."""

    def __init__(self) -> None:
        self._views: deque[CheckpointView] = deque(maxlen=_REMEMBERED)

    def views(self) -> tuple[CheckpointView, ...]:
        return tuple(reversed(self._views))

    def completed(self, underway: Underway, *, path: str, duration_ms: float) -> None:
        parts = underway.parts()
        stored_bytes = sum(ack.length for ack in underway.acknowledged.values())
        inflight_bytes = sum(part.inflight_bytes for part in parts)
        self._views.append(
            CheckpointView(
                id=underway.checkpoint,
                status="completed",
                kind=_kind(parts).value,
                triggered_at=_datetime(underway.triggered_wall_ms),
                duration_ms=duration_ms,
                state_bytes=sum(part.state_bytes for part in parts),
                new_state_bytes=stored_bytes - inflight_bytes,
                inflight_bytes=inflight_bytes,
                new_inflight_bytes=inflight_bytes,
                path=path,
                tasks=tuple(_task_view(part) for part in parts),
            )
        )

    def failed(self, underway: Underway, *, reason: FailureReason, detail: str | None, now_ms: float) -> None:
        parts = underway.parts()
        self._views.append(
            CheckpointView(
                id=underway.checkpoint,
                status="failed",
                kind=_kind(parts).value,
                triggered_at=_datetime(underway.triggered_wall_ms),
                duration_ms=now_ms - underway.triggered_at_ms,
                failure_reason=reason.value if detail is None else f"{reason.value}: {detail}",
                tasks=tuple(_task_view(part) for part in parts),
            )
        )


def in_progress_view(underway: Underway, now_ms: float) -> CheckpointView:
    parts = underway.parts()
    return CheckpointView(
        id=underway.checkpoint,
        status="in_progress",
        kind=_kind(parts).value,
        triggered_at=_datetime(underway.triggered_wall_ms),
        duration_ms=now_ms - underway.triggered_at_ms,
        tasks=tuple(_task_view(part) for part in parts),
    )


def _kind(parts: list[TaskPart]) -> CheckpointKind:
    return combined([CheckpointKind(part.kind) for part in parts])


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


def _task_view(part: TaskPart) -> TaskCheckpointView:
    return TaskCheckpointView(
        task=str(part.task),
        start_delay_ms=part.start_delay_ms,
        alignment_ms=part.alignment_ms,
        sync_ms=part.sync_ms,
        async_ms=part.async_ms,
        state_bytes=part.state_bytes,
        inflight_bytes=part.inflight_bytes,
    )
