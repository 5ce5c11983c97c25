"""The tasks of one slot in one generation: what they are told, what they leave behind, their snapshots.

Knows links but no connection, and never waits: `slot` drives it over sockets, the simulation over lanes of its own.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.frames import DataFrame
from tidegate.network.messages import (
    AbortCheckpoint,
    Acknowledge,
    AssignSplits,
    BarrierEverywhere,
    BarrierSent,
    ChannelFinished,
    CheckpointDone,
    CutSent,
    Decline,
    FromSlot,
    Granted,
    InputEnded,
    LongStep,
    PeerMessage,
    Progress,
    Run,
    SnapshotsTaken,
    TaskProgress,
    TaskStanding,
    TriggerCheckpoint,
)
from tidegate.operators.contract import OpenCalls, UserCode
from tidegate.protocol.barriers import Cut
from tidegate.storage.store import Store
from tidegate.worker.barrier_watch import longest
from tidegate.worker.build import TaskBuilder, channel_table
from tidegate.worker.captured import from_frame
from tidegate.worker.gate import Arrived
from tidegate.worker.hurry import Hurry
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.mailbox import Background
from tidegate.worker.output import Link, OutputChannel
from tidegate.worker.restoring import SlotRestore
from tidegate.worker.settings import SlotSettings
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.state_backends import ChangelogBackends, StateBackends, local_folder, open_backends
from tidegate.worker.stored_ahead import StoredAhead
from tidegate.worker.task import Task
from tidegate.worker.task_reports import TaskListener

_PROGRESS_EVERY_MS = 200.0
# A step that kept the slot from hearing of a checkpoint ended just before it heard.
_BEFORE_TRIGGER_MS = 100.0
_LONGEST_STEPS = 4


class SlotTasks:
    """`links` leads to every slot, this one included."""

    def __init__(
        self,
        *,
        settings: SlotSettings,
        slot: SlotIndex,
        generation: Generation,
        restore: SlotRestore,
        links: Mapping[SlotIndex, Link],
        store: Store,
        open_location: Callable[[str], Store],
        background: Background,
        clock: Clock,
        user_code: UserCode,
        open_calls: OpenCalls,
        wake: Callable[[], None],
        send: Callable[[FromSlot], None],
        copies: LocalCopies | None = None,
    ) -> None:
        self._generation = generation
        self._links = links
        self._clock = clock
        self._send = send
        self._hurry = Hurry(settings.checkpoint_interval_ms)
        self._table = channel_table(settings.plan)
        self._index_of = {channel: index for index, channel in enumerate(self._table)}
        self._schemas: dict[int, pa.Schema] = {edge.id: edge.schema for edge in settings.plan.edges}
        self._ahead = StoredAhead(slot=slot, generation=generation, store=store, background=background, clock=clock)
        self._state = _open_state(settings, slot, self._ahead, clock)
        with ExitStack() as undo:
            undo.callback(self._state.close)
            self.tasks = TaskBuilder(
                settings=settings,
                slot=slot,
                generation=generation,
                restore=restore,
                links=links,
                clock=clock,
                user_code=user_code,
                open_calls=open_calls,
                hurry=self._hurry,
                table=self._table,
                state=self._state,
                listener=TaskListener(
                    on_snapshot=lambda snapshot: self._snapshots.on_snapshot(snapshot),
                    on_closed=lambda task, closed: self._snapshots.on_received(
                        task, closed.checkpoint, closed.captures
                    ),
                    on_finished=lambda task: self._snapshots.on_finished(task),
                ),
                wake=wake,
                undo=undo,
            ).build()
            undo.pop_all()
        self._snapshots = SlotSnapshots(
            slot=slot,
            generation=generation,
            tasks=[task.id for task in self.tasks],
            store=store,
            open_location=open_location,
            background=background,
            clock=clock,
            inline_below_bytes=settings.inline_below_bytes,
            send=self._send_of_checkpoint,
            standings=self._task_standings,
            copies=copies,
            storage=settings.checkpoint_storage,
            ahead=self._ahead,
            in_manifest_below_bytes=settings.in_manifest_below_bytes(),
        )
        self._snapshots.known.replace(restore.known)
        self._snapshots.start_with(restore.known_files)
        self._task_of = {task.id.vertex: task for task in self.tasks}
        self._receiving = {
            edge.id: self._task_of[edge.receiver] for edge in settings.plan.edges if edge.receiver in self._task_of
        }
        self.outputs: list[OutputChannel] = [c for t in self.tasks if t.output is not None for c in t.output.channels]
        self._output_of = {self._index_of[output.channel]: output for output in self.outputs}
        self._splits_received = 0
        self._input_ended_said = False
        self._next_progress_ms = 0.0
        self._first_row_said = False
        self._late_rows_said = 0

    # -- what the coordinator says

    def on_run(self, message: Run) -> None:
        self._ahead.on_run(message.next_checkpoint)

    def on_splits(self, message: AssignSplits) -> None:
        self._splits_received += len(message.splits)
        self._task_of[message.vertex].add_splits(message.splits, is_last=message.is_last)

    def on_trigger(self, message: TriggerCheckpoint) -> None:
        if message.switch_after_ms == 0:
            now_ms = self._clock.monotonic_ms()
            self._hurry.begin(message.checkpoint, now_ms)
            if message.savepoint is None:
                self._hurry.on_periodic_trigger(now_ms)
        self._snapshots.on_trigger(message.checkpoint, savepoint=message.savepoint)
        for task in self.tasks:
            task.trigger(message.checkpoint, switch_after_ms=message.switch_after_ms, suspends=message.suspends)

    def on_barrier_everywhere(self, message: BarrierEverywhere) -> None:
        for task in self.tasks:
            task.on_barrier_everywhere(message.checkpoint)

    def note_unbegun(self, message: TriggerCheckpoint) -> None:
        """Its abort follows, and with that what the slot did in the meantime."""
        self._snapshots.on_trigger(message.checkpoint, savepoint=message.savepoint)

    def on_abort(self, message: AbortCheckpoint) -> None:
        self._hurry.end(message.checkpoint)
        for task in self.tasks:
            task.on_abort(message.checkpoint)
        self._snapshots.on_abort(message.checkpoint)

    def on_done(self, message: CheckpointDone) -> None:
        self._snapshots.on_done(message)
        for task in self.tasks:
            task.on_done(message.checkpoint)

    # -- what other slots say

    def on_peer_message(self, message: PeerMessage) -> None:
        now_ms = self._clock.monotonic_ms()
        match message:
            case BarrierSent(channel, checkpoint, before, age_ms, switch_after_ms):
                task = self._receiving[self._table[channel].edge]
                assert task.gate is not None
                task.note_barrier(checkpoint, now_ms, self._table[channel])
                task.perform(
                    task.gate.on_barrier(
                        self._table[channel],
                        checkpoint,
                        before=before,
                        age_ms=age_ms,
                        switch_after_ms=switch_after_ms,
                        now_ms=now_ms,
                    )
                )
            case CutSent(channel, checkpoint, held_from, before):
                task = self._receiving[self._table[channel].edge]
                assert task.gate is not None
                task.perform(task.gate.on_cut(self._table[channel], checkpoint, Cut(held_from, before), now_ms))
            case ChannelFinished(channel):
                task = self._receiving[self._table[channel].edge]
                assert task.gate is not None
                task.perform(task.gate.on_finished(self._table[channel], now_ms))
            case Granted(channel, consumed, window_bytes):
                self._output_of[channel].on_granted(consumed, window_bytes, now_ms)

    def on_frame(self, frame: DataFrame) -> None:
        header = frame.header
        element = from_frame(frame, self._schemas[self._table[header.channel].edge])
        self.on_element(header.channel, Arrived(header.sequence, header.epoch, element, frame.payload.size))

    def on_element(self, channel: int, arrived: Arrived) -> None:
        task = self._receiving[self._table[channel].edge]
        assert task.gate is not None
        task.perform(task.gate.on_arrival(self._table[channel], arrived, self._clock.monotonic_ms()))

    # -- work

    def on_time(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._state.on_time(now_ms)
        for task in self.tasks:
            task.on_time(now_ms, storage=self._snapshots.storage_speed())

    def send_grants(self) -> None:
        for task in self.tasks:
            if task.gate is not None and task.gate.grants:
                grants, task.gate.grants = task.gate.grants, []
                for grant in grants:
                    link = self._links[SlotIndex(grant.channel.sender)]
                    link.send_message(Granted(self._index_of[grant.channel], grant.consumed, grant.window_bytes))

    def collect_held(self) -> None:
        """Give the snapshots what outputs captured, as soon as an output is decided."""
        for checkpoint, task_id in self._snapshots.waiting_for_outputs():
            output = self._task_of[task_id.vertex].output
            if output is None:
                self._snapshots.on_held(task_id, checkpoint, [])
            elif output.is_decided(checkpoint):
                self._snapshots.on_held(task_id, checkpoint, output.take_held(checkpoint))

    def send_elements(self) -> None:
        """One element of each channel in turn, until no link takes any more."""
        sending = self.outputs
        while sending:
            sending = [output for output in sending if output.send_one()]

    def encode_some(self, until_ms: float) -> None:
        self._snapshots.encode_some(until_ms)

    def report(self) -> None:
        if not self._input_ended_said and all(task.has_ended for task in self.tasks):
            self._input_ended_said = True
            self._send(InputEnded(self._generation))
        now_ms = self._clock.monotonic_ms()
        has_first_row = not self._first_row_said and any(task.counters.rows_in for task in self.tasks)
        late_rows = sum(task.late_rows.count for task in self.tasks)
        # What was dropped must be known when the query has ended, however soon that is.
        is_last_word = self._input_ended_said and late_rows != self._late_rows_said
        if now_ms < self._next_progress_ms and not has_first_row and not is_last_word:
            return
        self._first_row_said |= has_first_row
        self._late_rows_said = late_rows
        self._next_progress_ms = now_ms + _PROGRESS_EVERY_MS
        self.report_now()

    def report_now(self) -> None:
        self._send(
            Progress(
                self._generation,
                self._is_idle(),
                self._splits_received,
                [_progress(task, self._state.unstored_bytes(task.id)) for task in self.tasks],
                self._snapshots.standings(),
                self._clock.monotonic_ms(),
            )
        )

    def close(self) -> None:
        """Every task, whatever the user's code in one of them raises; the first error is raised at the end."""
        with ExitStack() as stack:
            stack.callback(self._state.close)
            stack.callback(self._snapshots.close)
            for task in reversed(self.tasks):
                stack.callback(task.close)

    # -- questions

    def lets_wait(self, task: Task) -> bool:
        """Whether its next step would keep a checkpoint waiting for longer than it is worth."""
        return self._waits_until_ms(task, self._clock.monotonic_ms()) is not None

    def has_work(self) -> bool:
        """Whether snapshots wait to be encoded."""
        return self._snapshots.has_work()

    def next_deadline_ms(self) -> float | None:
        now_ms = self._clock.monotonic_ms()
        deadlines = [self._state.next_deadline_ms(), *(task.next_deadline_ms() for task in self.tasks)]
        deadlines += [self._waits_until_ms(task, now_ms) for task in self.tasks]
        return min((deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None)

    def _send_of_checkpoint(self, message: Acknowledge | Decline | SnapshotsTaken) -> None:
        if not isinstance(message, SnapshotsTaken):
            self._hurry.end(message.checkpoint)
        self._send(message)

    def _task_standings(self, checkpoint: CheckpointId, since_ms: float) -> tuple[list[TaskStanding], list[LongStep]]:
        steps = [step for task in self.tasks for step in task.watch.long_steps]
        longest_steps = longest(steps, ended_after_ms=since_ms - _BEFORE_TRIGGER_MS, most=_LONGEST_STEPS)
        return [task.standing(checkpoint) for task in self.tasks if not task.is_finished], longest_steps

    def _waits_until_ms(self, task: Task, now_ms: float) -> float | None:
        return self._hurry.waits_until_ms(now_ms, step_ms=task.sizer.hurried_ms)

    def _is_idle(self) -> bool:
        return all(task.is_waiting() for task in self.tasks) and not any(o.in_flight_bytes() for o in self.outputs)


def _open_state(settings: SlotSettings, slot: SlotIndex, ahead: StoredAhead, clock: Clock) -> StateBackends:
    interval_ms = settings.changelog_image_interval_ms
    backends = open_backends(
        settings.state_backend,
        memory_bytes=settings.state_memory_bytes,
        rows_memory_bytes=settings.state_rows_memory_bytes,
        whole_up_to_bytes=settings.heap_whole_up_to_bytes() if interval_ms is None else None,
        rows_whole_up_to_bytes=settings.rows_whole_up_to_bytes(),
    )
    if interval_ms is None:
        return backends
    return ChangelogBackends(backends, local_folder(), ahead=ahead, clock=clock, interval_ms=interval_ms, slot=slot)


def _progress(task: Task, unstored_bytes: int) -> TaskProgress:
    counters = task.counters
    queued_bytes = 0 if task.gate is None else task.gate.queued_bytes()
    return TaskProgress(
        task=task.id,
        rows_in=counters.rows_in,
        rows_out=counters.rows_out,
        queued_bytes=queued_bytes,
        busy_ms=counters.busy_ms,
        backpressured_ms=task.backpressured_ms(),
        paused_ms=task.paused_ms(),
        watermark_ms=task.watermark_ms(),
        late_rows=task.late_rows.count,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        window_bytes=0 if task.gate is None else task.gate.window_bytes(),
        lag_ms=None if task.source is None else task.source.lag_ms(),
        unstored_bytes=unstored_bytes,
    )
