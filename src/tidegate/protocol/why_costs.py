"""What a checkpoint cost the stream, and what one of the other kind would have cost: estimates, each with its basis."""

from dataclasses import dataclass
from typing import Final

from tidegate.model.units import format_bytes
from tidegate.protocol.checkpoint_facts import CheckpointFacts, TaskFacts
from tidegate.protocol.critical_path import Phase, PhaseKind

# Smaller uploads say how long a call takes, not how fast storage is.
_MEASURED_FROM_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMode:
    """`duration_ms` is None where a rate that it needs was not measured; `basis` says what it rests on."""

    mode: str
    duration_ms: float | None
    inflight_bytes: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostToStream:
    """`sync_ms`: the slot whose tasks stood still longest for their snapshots. `blocked_ms`: over all tasks, the time
    in which one had a barrier, waited for others, and neither worked nor lacked room; also of one that switched in the
    end. `paused_ms`: the source that paused longest for it, as far as its slot had reported at the end, or what Spark
    ingests. What encoding took from the stream is not measured.
    """

    sync_ms: float
    blocked_ms: float
    paused_ms: float


def cost_to_stream(facts: CheckpointFacts) -> CostToStream:
    per_slot = [sum(task.sync_ms for task in facts.tasks_of(slot.slot)) for slot in facts.slots]
    return CostToStream(
        sync_ms=max(per_slot, default=0.0),
        blocked_ms=sum(_blocked_ms(task) for task in facts.tasks),
        paused_ms=max([facts.ingest_paused_ms, *(task.paused_ms for task in facts.tasks)]),
    )


def other_mode(facts: CheckpointFacts, path: tuple[Phase, ...]) -> OtherMode | None:
    """None where nothing was in flight that the kinds treat differently, as far as is known."""
    if not any(task.first is not None for task in facts.tasks):
        return None
    return _as_unaligned(facts, path) if facts.kind == "aligned" else _as_aligned(facts)


def _as_unaligned(facts: CheckpointFacts, path: tuple[Phase, ...]) -> OtherMode:
    queued_bytes = sum(max(task.queued_bytes, task.left_bytes) for task in facts.tasks)
    aligning_ms = sum(phase.duration_ms for phase in path if phase.kind in (PhaseKind.ALIGNING, PhaseKind.WAITING))
    without_ms = facts.duration_ms - aligning_ms
    speed = storage_bytes_per_ms(facts)
    queued = f"{format_bytes(queued_bytes)} queued at the first barriers"
    if speed is None:
        is_known = queued_bytes == 0
        basis = f"{queued}; the uploads were too small to tell how fast the store is"
        return OtherMode(
            mode="unaligned",
            duration_ms=without_ms if is_known else None,
            inflight_bytes=queued_bytes,
            basis=basis,
        )
    slots = max(1, len(facts.slots))
    return OtherMode(
        mode="unaligned",
        duration_ms=without_ms + queued_bytes / slots / speed,
        inflight_bytes=queued_bytes,
        basis=f"{queued}, stored at {format_bytes(speed * 1000)}/s by each slot, and no wait behind data",
    )


def _as_aligned(facts: CheckpointFacts) -> OtherMode:
    """Each vertex in turn would have had to process what was stored of its input."""
    slowest: dict[int, float] = {}
    for task in facts.tasks:
        if not task.inflight_bytes:
            continue
        takers = (task,) if task.drain_bytes_per_ms is not None else facts.receivers(task.task)
        rates = [taker.drain_bytes_per_ms for taker in takers if taker.drain_bytes_per_ms]
        if not rates:
            basis = f"{format_bytes(task.inflight_bytes)} at {task.task}, whose rate was not measured"
            return OtherMode(mode="aligned", duration_ms=None, inflight_bytes=0, basis=basis)
        drain_ms = task.inflight_bytes / min(rates)
        slowest[task.task.vertex] = max(slowest.get(task.task.vertex, 0.0), drain_ms)
    captured_bytes = sum(task.inflight_bytes for task in facts.tasks)
    return OtherMode(
        mode="aligned",
        duration_ms=facts.duration_ms + sum(slowest.values()),
        inflight_bytes=0,
        basis=f"{format_bytes(captured_bytes)} were in flight, at the rates at which the tasks took them",
    )


def storage_bytes_per_ms(facts: CheckpointFacts) -> float | None:
    """How fast one slot's upload was, if it was large enough to tell."""
    speeds = [
        slot.stored_bytes / slot.storing_ms
        for slot in facts.slots
        if slot.stored_bytes >= _MEASURED_FROM_BYTES and slot.storing_ms > 0
    ]
    return sum(speeds) / len(speeds) if speeds else None


def _blocked_ms(task: TaskFacts) -> float:
    if task.kind == "unaligned":
        return 0.0  # it waits for no other barrier, only for the slice that it is in
    return max(0.0, task.alignment_ms - task.busy_ms - task.backpressured_ms)
