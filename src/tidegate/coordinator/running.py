"""The generation that runs: its checkpoints, its splits, what its slots report; and what the job remembers of them all.

Decides nothing about the job's life: that the input has ended, that the last checkpoint is committed or that the
generation cannot go on is told to the listener.
"""

import threading
from typing import Protocol, TypeAlias, assert_never

from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.coordinator.draining import Draining
from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.coordinator.heap_watch import HeapWatch
from tidegate.coordinator.history import History
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.members import Members
from tidegate.coordinator.rates import TaskRates
from tidegate.coordinator.savepoints import Savepoints, SavepointWish, fail
from tidegate.coordinator.slot_clocks import SlotClocks
from tidegate.coordinator.splits import Splits
from tidegate.coordinator.views import CheckpointView, TaskView, task_views
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.network.messages import Acknowledge, Decline, InputEnded, Progress, SnapshotsTaken
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.protocol.checkpoints import Checkpoints, FailureReason
from tidegate.protocol.statistics import StatisticsView
from tidegate.worker.mailbox import Background

WhileRunning: TypeAlias = Progress | InputEnded | SnapshotsTaken | Acknowledge | Decline


class RunListener(Protocol):
    def on_input_ended(self) -> None: ...
    def on_last_committed(self) -> None: ...
    def on_suspending_committed(self) -> None: ...
    def on_suspending_failed(self) -> None: ...
    def on_generation_failed(self, failure: TidegateError) -> None: ...


class Running:
    def __init__(
        self,
        spec: JobSpec,
        *,
        durable: DurableJob,
        members: Members,
        storing: Background,
        clock: Clock,
        listener: RunListener,
        heap_watch: HeapWatch,
    ) -> None:
        self._spec = spec
        self._plan = spec.slot_settings.plan
        self._durable = durable
        self._members = members
        self._storing = storing
        self._clock = clock
        self._listener = listener
        self._heap_watch = heap_watch
        self._history = History()
        self._draining = Draining()
        self._savepoints = Savepoints()
        self._current: tuple[Checkpointing, Splits] | None = None
        self._next_checkpoint = CheckpointId(1)
        self._last_from: CheckpointId | None = None
        self._ended: set[SlotIndex] = set()
        self._progress: dict[SlotIndex, Progress] = {}
        self._rates = TaskRates()
        self._clocks = SlotClocks()
        self._started_at_ms = clock.monotonic_ms()
        self.committed = 0
        self.first_row_after_ms: float | None = None

    # -- events

    def begin_again(self, spec: JobSpec) -> None:
        """Another generation comes up: what the one before reported does not hold for it."""
        self._spec = spec
        self._plan = spec.slot_settings.plan
        self._last_from = None
        self._ended.clear()
        self._progress.clear()
        self._rates = TaskRates()
        self._clocks.clear()
        self._draining.begin_again()

    def begin(self, basis: GenerationBasis, splits: Splits) -> None:
        # An id that was triggered and never stored is unknown to the log; it is not used again.
        self._next_checkpoint = max(self._next_checkpoint, basis.next_checkpoint)
        checkpoints = Checkpointing(
            generation=basis.generation,
            spec=self._spec,
            machine=Checkpoints(
                self._spec.checkpoints,
                slots=[SlotIndex(i) for i in range(self._plan.parallelism)],
                next_id=self._next_checkpoint,
                now_ms=self._clock.monotonic_ms(),
            ),
            durable=self._durable,
            storing=self._storing,
            clock=self._clock,
            history=self._history,
            savepoints=self._savepoints,
            tell=self._members.tell,
            listener=self,
            tell_sources=splits.on_committed,
            clocks=self._clocks,
        )
        self._current = checkpoints, splits

    def on_message(self, slot: SlotIndex, message: WhileRunning) -> None:
        match message:
            case Progress():
                self._clocks.on_word(slot, said_at_ms=message.now_ms, now_ms=self._clock.monotonic_ms())
                if self._current is not None:
                    self._current[0].on_standings(slot, message.standings)
                self._rates.on_progress(slot, message)
                self._progress[slot] = message
                self._draining.on_progress(slot, message)
                if self._current is not None:
                    self._current[1].on_received(slot, message.splits_received)
                if self.first_row_after_ms is None and any(t.rows_in for t in message.tasks if t.task.vertex == 0):
                    self.first_row_after_ms = self._clock.monotonic_ms() - self._started_at_ms
            case InputEnded():
                self._ended.add(slot)
                if len(self._ended) == self._plan.parallelism:
                    self._take_last_checkpoint()
            case SnapshotsTaken():
                if self._current is not None:
                    self._current[0].on_snapshots_taken(slot, message)
            case Acknowledge():
                self._clocks.on_word(slot, said_at_ms=message.now_ms, now_ms=self._clock.monotonic_ms())
                if self._current is not None:
                    self._current[0].on_acknowledge(slot, message)
            case Decline():
                if self._current is not None:
                    self._current[0].on_decline(slot, message)
            case unreachable:
                assert_never(unreachable)

    def on_time(self, now_ms: float) -> None:
        if self._current is None:
            return
        checkpoints, splits = self._current
        splits.on_time(now_ms)
        checkpoints.on_time()
        # The line before may have ended the generation.
        if self._current is not None and self._draining.wants_checkpoint(
            self._progress, splits, slots=self._plan.parallelism
        ):
            self._draining.checkpoint_from = checkpoints.request()

    def end(self, reason: FailureReason, detail: str | None = None) -> None:
        """`detail`: what ended it, for the checkpoints that end with it."""
        if self._current is not None:
            (checkpoints, _), self._current = self._current, None
            self._next_checkpoint = checkpoints.machine.next_id
            checkpoints.close(reason, detail)

    def ask_for_savepoint(self, wish: SavepointWish) -> None:
        """Answers the wish sooner or later, whatever happens to the job."""
        if self._current is None:
            fail(wish.answer, "the query is not running")
        else:
            self._current[0].request_savepoint(self._savepoints.request(wish))

    def ask_to_drain(self, done: threading.Event) -> None:
        self._draining.ask(done)

    def withdraw(self, done: threading.Event) -> None:
        self._draining.withdraw(done)

    def release_waiting(self) -> None:
        self._draining.release_all()
        self._savepoints.release_all("the query has ended")

    # -- from the checkpoints

    def on_checkpoint_committed(self, checkpoint: CheckpointId) -> None:
        self.committed += 1
        completed = next((view for view in self._history.views() if view.id == checkpoint), None)
        if completed is not None:
            self._heap_watch.on_completed(completed.tasks)
        self._draining.on_committed(checkpoint, inflight_bytes=0 if completed is None else completed.inflight_bytes)
        if self._last_from is not None and checkpoint >= self._last_from:
            self._listener.on_last_committed()

    def on_checkpointing_failed(self, failure: TidegateError) -> None:
        self._listener.on_generation_failed(failure)

    def on_suspending_committed(self) -> None:
        self._listener.on_suspending_committed()

    def on_suspending_failed(self) -> None:
        self._listener.on_suspending_failed()

    # -- questions

    @property
    def next_checkpoint(self) -> CheckpointId:
        """Of a generation that has just begun, the first one that it will trigger."""
        return self._next_checkpoint

    def statistics(self) -> StatisticsView:
        return self._history.statistics()

    def next_deadline_ms(self) -> float:
        return float("inf") if self._current is None else min(part.next_deadline_ms() for part in self._current)

    def checkpoint_views(self) -> tuple[CheckpointView, ...]:
        in_progress = () if self._current is None else self._current[0].in_progress()
        return in_progress + self._history.views()

    def task_views(self) -> tuple[TaskView, ...]:
        return task_views(self._plan, self._progress, self._rates)

    def facts(self) -> tuple[CheckpointFacts, ...]:
        """Of the newest checkpoints, newest first."""
        in_progress = () if self._current is None else self._current[0].facts_in_progress()
        return tuple(reversed((*self._history.facts(), *in_progress)))

    def ended_facts(self) -> tuple[CheckpointFacts, ...]:
        return tuple(reversed(self._history.facts()))

    # -- inside

    def _take_last_checkpoint(self) -> None:
        assert self._current is not None
        self._listener.on_input_ended()
        self._last_from = self._current[0].request()
