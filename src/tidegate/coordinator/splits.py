"""Finds the sources' splits on the driver and hands each to its reader."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.connectors.contract import (
    Assignment,
    CommittedPositions,
    FollowsCommits,
    HoldsResources,
    SplitEnumerator,
    Withheld,
)
from tidegate.connectors.registry import open_source
from tidegate.coordinator.handing_out import HandingOut
from tidegate.model.ids import Generation, SlotIndex, TaskId, VertexId
from tidegate.network.messages import AssignSplits
from tidegate.plan.physical import JobPlan
from tidegate.worker.mailbox import Background

log = logging.getLogger("tidegate")

# As often as Structured Streaming looks when it is idle would load a large folder; this is soon enough for people.
LOOK_EVERY_MS = 500.0


@dataclass(slots=True)
class _Source:
    """`gave_all_in`: the newest round in which it withheld nothing of what it found."""

    vertex: VertexId
    enumerator: SplitEnumerator
    withheld: Withheld = Withheld.NOTHING
    gave_all_in: int = 0
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    source: _Source
    assignments: Sequence[Assignment]
    withheld: Withheld
    is_complete: bool


@dataclass(slots=True)
class Splits:
    """One generation's enumerators. `assigned` counts what was handed out, for `processAllAvailable`."""

    generation: Generation
    plan: JobPlan
    background: Background
    tell: Callable[[SlotIndex, AssignSplits], None]
    on_error: Callable[[BaseException], None]
    assigned: int = 0
    rounds: int = 0
    _handing_out: HandingOut = field(init=False)
    _sources: list[_Source] = field(default_factory=list)
    _next_look_ms: float = 0.0
    _is_looking: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._handing_out = HandingOut(self.generation, self.tell)

    def open(self, source_states: Mapping[TaskId, bytes], *, available_now: bool) -> None:
        """Blocking: lists storage. `source_states` are the readers' positions in the restored checkpoint."""
        for vertex in self.plan.vertices:
            if vertex.source is None:
                continue
            source = open_source(vertex.source)
            enumerator = source.enumerator(parallelism=self.plan.parallelism_of(vertex.id), available_now=available_now)
            enumerator.restore([state for task, state in source_states.items() if task.vertex == vertex.id])
            self._sources.append(_Source(vertex.id, enumerator))

    def on_time(self, now_ms: float) -> None:
        if self._is_looking or self._is_closed or now_ms < self._next_look_ms:
            return
        if self.are_complete():
            return
        self._is_looking = True
        self._next_look_ms = now_ms + LOOK_EVERY_MS
        found: list[_Found] = []

        def look() -> None:
            for source in self._sources:
                if not source.is_complete:
                    assignments = source.enumerator.discover()
                    withheld, is_complete = source.enumerator.withheld(), source.enumerator.is_complete()
                    found.append(_Found(source, assignments, withheld, is_complete))

        def then(error: BaseException | None) -> None:
            self._is_looking = False
            self.rounds += 1
            if self._is_closed:
                return
            if error is not None:
                self.on_error(error)
                return
            for one in found:
                one.source.withheld = one.withheld
                if one.withheld is Withheld.NOTHING:
                    one.source.gave_all_in = self.rounds
                self._hand_out(one.source, one.assignments, is_complete=one.is_complete)

        self.background.submit(look, then)

    def on_committed(self, vertex: VertexId, committed: CommittedPositions) -> None:
        for source in self._sources:
            if source.vertex == vertex and isinstance(source.enumerator, FollowsCommits) and not self._is_closed:
                self._tell(source.enumerator, committed)

    def on_received(self, slot: SlotIndex, count: int) -> None:
        """What a slot has reported: so many splits it has by now, and may be told of more."""
        if not self._is_closed:
            self._handing_out.on_received(slot, count)

    def look_now(self) -> None:
        self._next_look_ms = 0.0

    def are_complete(self) -> bool:
        """No source will have more."""
        return all(source.is_complete for source in self._sources)

    def have_given_all(self, *, since_round: int) -> bool:
        """Each source has, in that round or later, given all that was there; more may have come since."""
        return all(source.is_complete or source.gave_all_in >= since_round for source in self._sources)

    def wait_for_commit(self) -> bool:
        """A source gives no more until a checkpoint is committed."""
        return any(source.withheld is Withheld.UNTIL_COMMITTED for source in self._sources)

    def next_deadline_ms(self) -> float:
        idle = self._is_looking or self.are_complete()
        return float("inf") if idle or self._is_closed else self._next_look_ms

    def close(self) -> None:
        self._is_closed = True
        for source in self._sources:
            if isinstance(source.enumerator, HoldsResources):
                self.background.submit(source.enumerator.close, _warn)

    def _tell(self, enumerator: FollowsCommits, committed: CommittedPositions) -> None:
        def then(error: BaseException | None) -> None:
            if error is not None and not self._is_closed:
                self.on_error(error)

        # Where it is also asked for splits, so that it is never called from two threads.
        self.background.submit(lambda: enumerator.on_committed(committed), then)

    def _hand_out(self, source: _Source, assignments: Sequence[Assignment], *, is_complete: bool) -> None:
        source.is_complete = is_complete
        self.assigned += len(assignments)
        by_subtask: dict[int, list[bytes]] = {}
        for assignment in assignments:
            by_subtask.setdefault(assignment.subtask, []).append(assignment.split)
        for subtask in range(self.plan.parallelism_of(source.vertex)):
            splits = by_subtask.get(subtask, [])
            self._handing_out.give(source.vertex, SlotIndex(subtask), splits, is_last=is_complete)


def _warn(error: BaseException | None) -> None:
    if error is not None:
        log.warning("A source was not closed in order: %s", error)
