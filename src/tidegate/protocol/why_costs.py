"""What a checkpoint cost the stream, and what one of the other kind would have cost: estimates, each with its basis."""

from dataclasses import dataclass
from typing import Final

from tidegate.model.units import format_bytes, format_ms
from tidegate.protocol.checkpoint_facts import CheckpointFacts, SlotFacts, TaskFacts
from tidegate.protocol.critical_path import Phase, PhaseKind
from tidegate.protocol.switching import StorageSpeed

# Smaller uploads say how long a call takes, not how fast storage is.
_MEASURED_FROM_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMode:
    """`duration_ms` is None where a rate that it needs was not measured; `basis` says what it rests on.

    `least_ms` is less than `duration_ms` where what was measured leaves a range.
    """

    mode: str
    duration_ms: float | None
    inflight_bytes: int
    basis: str
    least_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostToStream:
    """`sync_ms`: the slot whose tasks stood still longest for their snapshots; `encoding_ms`: the slot whose tasks took
    turns longest with encoding them, None if no slot told. `blocked_ms`: over all tasks, the time in which one had a
    barrier, waited for others, and neither worked nor lacked room; also of one that switched in the end. `paused_ms`:
    the source that paused longest for it, as far as its slot had reported at the end, or what Spark ingests.
    """

    sync_ms: float
    encoding_ms: float | None
    blocked_ms: float
    paused_ms: float


def cost_to_stream(facts: CheckpointFacts) -> CostToStream:
    per_slot = [sum(task.sync_ms for task in facts.tasks_of(slot.slot)) for slot in facts.slots]
    return CostToStream(
        sync_ms=max(per_slot, default=0.0),
        encoding_ms=max((s.encoded_for_ms for s in facts.slots if s.encoded_for_ms is not None), default=None),
        blocked_ms=sum(_blocked_ms(task) for task in facts.tasks),
        paused_ms=max([facts.ingest_paused_ms, *(task.paused_ms for task in facts.tasks)]),
    )


def other_mode(facts: CheckpointFacts, path: tuple[Phase, ...]) -> OtherMode | None:
    """None where nothing was in flight that the kinds treat differently, as far as is known."""
    if not any(task.first is not None for task in facts.tasks):
        return None
    return _as_unaligned(facts, path) if facts.kind == "aligned" else _as_aligned(facts)


def _as_unaligned(facts: CheckpointFacts, path: tuple[Phase, ...]) -> OtherMode:
    """Each slot would have stored what stood in its queues, beside the others."""
    queued_bytes = sum(_queued_bytes(task) for task in facts.tasks)
    aligning_ms = sum(phase.duration_ms for phase in path if phase.kind in (PhaseKind.ALIGNING, PhaseKind.WAITING))
    without_ms = facts.duration_ms - aligning_ms
    basis = f"{format_bytes(queued_bytes)} queued at the first barriers, and no wait behind data"
    if not queued_bytes:
        return OtherMode(mode="unaligned", duration_ms=without_ms, inflight_bytes=0, basis=basis)
    estimates = _storing_estimates(facts)
    if not estimates:
        basis += "; no upload has told how fast the store is"
        return OtherMode(mode="unaligned", duration_ms=None, inflight_bytes=queued_bytes, basis=basis)
    slowest = max(estimates, key=lambda estimate: estimate.most_ms)
    return OtherMode(
        mode="unaligned",
        duration_ms=without_ms + slowest.most_ms,
        inflight_bytes=queued_bytes,
        basis=f"{basis}; {slowest.basis}",
        least_ms=without_ms + max(estimate.least_ms for estimate in estimates),
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


@dataclass(frozen=True, slots=True)
class _Storing:
    least_ms: float
    most_ms: float
    basis: str


def _storing_estimates(facts: CheckpointFacts) -> list[_Storing]:
    """For each slot that had rows queued, what storing them would have taken; none if no slot knows the store."""
    known = [(slot, speed) for slot in facts.slots if (speed := _known_speed(slot)) is not None]
    if not known:
        return []
    own = {slot.slot: (slot, speed) for slot, speed in known}
    # Slots write to the same store, and the largest upload tells most of it.
    best = max(known, key=lambda measured: measured[1].stored_bytes)
    return [
        _storing(size_bytes, *own.get(slot.slot, best))
        for slot in facts.slots
        if (size_bytes := sum(_queued_bytes(task) for task in facts.tasks_of(slot.slot)))
    ]


def _storing(size_bytes: int, measured_by: SlotFacts, speed: StorageSpeed) -> _Storing:
    is_of_this_one = (speed.stored_bytes, speed.storing_ms) == (measured_by.stored_bytes, measured_by.storing_ms)
    basis = (
        f"slot {measured_by.slot} stored {format_bytes(speed.stored_bytes)} of "
        f"{'this checkpoint' if is_of_this_one else 'an earlier checkpoint'} in {format_ms(speed.storing_ms)}"
    )
    most_ms = speed.storing_ms * size_bytes / speed.stored_bytes
    if speed.stored_bytes >= _MEASURED_FROM_BYTES:
        return _Storing(most_ms, most_ms, basis)
    # More takes no less, and longer by no more than it is more.
    basis += ", too little to tell the store's speed from what a call takes"
    return _Storing(speed.storing_ms, max(speed.storing_ms, most_ms), basis)


def _known_speed(slot: SlotFacts) -> StorageSpeed | None:
    """What its newest upload told; where that was not noted, this checkpoint's own, if it was large enough to tell."""
    if slot.storage is not None:
        return slot.storage if slot.storage.stored_bytes else None
    is_measured = slot.stored_bytes >= _MEASURED_FROM_BYTES and slot.storing_ms > 0
    return StorageSpeed(slot.stored_bytes, slot.storing_ms) if is_measured else None


def _queued_bytes(task: TaskFacts) -> int:
    return max(task.queued_bytes, task.left_bytes)


def _blocked_ms(task: TaskFacts) -> float:
    if task.kind == "unaligned":
        return 0.0  # it waits for no other barrier, only for the slice that it is in
    return max(0.0, task.alignment_ms - task.busy_ms - task.backpressured_ms)
