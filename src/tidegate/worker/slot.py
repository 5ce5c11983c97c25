"""One generation of one slot: tasks, channels and connections, driven turn by turn by one thread.

A turn reads what came in, lets every runnable task do a step, sends what is ready. Control connections are looked at
after every step, so a barrier waits for one slice and never for a queue.
"""

import select
from collections.abc import Callable, Mapping

import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.model.ids import ChannelId, Generation, SlotIndex, TaskId
from tidegate.network.frames import DataFrame
from tidegate.network.mesh import PeerLinks
from tidegate.network.messages import (
    AbortCheckpoint,
    AssignSplits,
    BarrierSent,
    CutSent,
    FromSlot,
    Granted,
    InputEnded,
    PeerMessage,
    Progress,
    TaskProgress,
    TriggerCheckpoint,
    decode_peer,
)
from tidegate.operators.contract import UserCode
from tidegate.protocol.barriers import Cut
from tidegate.storage.store import Store
from tidegate.worker.build import TaskBuilder, channel_table
from tidegate.worker.captured import from_frame
from tidegate.worker.gate import Arrived, ClosedCapture
from tidegate.worker.links import LocalLink, RemoteLink
from tidegate.worker.mailbox import Background
from tidegate.worker.output import OutputChannel
from tidegate.worker.restoring import SlotRestore
from tidegate.worker.settings import SlotSettings
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.task import Task, TaskSnapshot

# What one connection may deliver in a turn, so that none starves the others.
_READ_BUDGET_BYTES = 4 << 20
# Encoding snapshots shares the turn with the stream.
_ENCODE_BUDGET_MS = 3.0
_PROGRESS_EVERY_MS = 200.0
# The longest sleep: a missed wake-up then costs this much, no more.
_LONGEST_WAIT_MS = 50.0


class SlotRun:
    def __init__(
        self,
        *,
        settings: SlotSettings,
        slot: SlotIndex,
        generation: Generation,
        peers: Mapping[SlotIndex, PeerLinks],
        restore: SlotRestore,
        store: Store,
        background: Background,
        clock: Clock,
        user_code: UserCode,
        send: Callable[[FromSlot], None],
    ) -> None:
        self._generation = generation
        self._peers = peers
        self._clock = clock
        self._send = send
        self._table = channel_table(settings.plan)
        self._schemas: dict[int, pa.Schema] = {edge.id: edge.schema for edge in settings.plan.edges}
        self._local = LocalLink(self._deliver)
        links = {peer: RemoteLink(connections) for peer, connections in peers.items()}
        builder = TaskBuilder(
            settings=settings,
            slot=slot,
            generation=generation,
            restore=restore,
            links={**links, slot: self._local},
            clock=clock,
            user_code=user_code,
            on_snapshot=self._on_snapshot,
            on_closed=self._on_closed,
        )
        self._tasks = builder.build()
        self._snapshots = SlotSnapshots(
            slot=slot,
            generation=generation,
            tasks=[task.id for task in self._tasks],
            store=store,
            background=background,
            clock=clock,
            send=send,
        )
        self._receiving = {edge.id: self._task(edge.receiver) for edge in settings.plan.edges}
        self._outputs: list[OutputChannel] = [c for t in self._tasks if t.output is not None for c in t.output.channels]
        self._output_of = {self._table.index(output.channel): output for output in self._outputs}
        self._splits_received = 0
        self._input_ended_said = False
        self._next_progress_ms = 0.0
        self._poll = select.poll()
        self._control_of = {p.control.fileno(): p for p in peers.values()}
        self._data_of = {p.data.fileno(): p for p in peers.values()}

    # -- what the coordinator says

    def on_splits(self, message: AssignSplits) -> None:
        self._splits_received += len(message.splits)
        self._task(message.vertex).add_splits(message.splits, is_last=message.is_last)

    def on_trigger(self, message: TriggerCheckpoint) -> None:
        for task in self._tasks:
            if task.source is not None:
                task.trigger(message.checkpoint)
        self._after_step()

    def on_abort(self, message: AbortCheckpoint) -> None:
        for task in self._tasks:
            task.on_abort(message.checkpoint)
        self._snapshots.on_abort(message.checkpoint)

    # -- the turn

    def turn(self, extra_fds: "list[int]") -> set[int]:
        """One turn of the loop; gives the descriptors of `extra_fds` that have something to read."""
        moved = self._step_tasks()
        self._send_elements()
        self._snapshots.encode_some(self._clock.monotonic_ms() + _ENCODE_BUDGET_MS)
        self._report()
        is_busy = moved or self._snapshots.has_work() or bool(self._local.messages)
        return self._receive(0.0 if is_busy else self._wait_ms(), extra_fds)

    def close(self) -> None:
        for task in self._tasks:
            task.close()
        for peer in self._peers.values():
            peer.control.close()
            peer.data.close()

    def _step_tasks(self) -> bool:
        moved = False
        # Downstream first: room that it makes can be used in the same turn.
        for task in reversed(self._tasks):
            if task.step():
                moved = True
                self._after_step()
                self._look_at_control()
        now_ms = self._clock.monotonic_ms()
        for task in self._tasks:
            task.on_time(now_ms)
        self._after_step()
        return moved

    def _after_step(self) -> None:
        """Pass on what tasks left behind: grants, messages between tasks of this slot, outputs that are decided."""
        for task in self._tasks:
            if task.gate is not None and task.gate.grants:
                grants, task.gate.grants = task.gate.grants, []
                for grant in grants:
                    message = Granted(self._table.index(grant.channel), grant.consumed)
                    self._link_to_sender(grant.channel).send_message(message)
        while self._local.messages:
            self._on_peer_message(self._local.messages.popleft())
        self._collect_held()

    def _link_to_sender(self, channel: ChannelId) -> RemoteLink | LocalLink:
        peer = self._peers.get(SlotIndex(channel.sender))
        return self._local if peer is None else RemoteLink(peer)

    def _collect_held(self) -> None:
        for checkpoint, task_id in self._snapshots.waiting_for_outputs():
            output = self._task(task_id.vertex).output
            if output is None:
                self._snapshots.on_held(task_id, checkpoint, [])
            elif output.is_decided(checkpoint):
                self._snapshots.on_held(task_id, checkpoint, output.take_held(checkpoint))

    def _send_elements(self) -> None:
        """One element of each channel in turn, until no link takes any more."""
        sending = self._outputs
        while sending:
            sending = [output for output in sending if output.send_one()]
        for peer in self._peers.values():
            peer.data.flush()
            peer.control.flush()
        self._after_step()

    # -- what comes in

    def _receive(self, wait_ms: float, extra_fds: "list[int]") -> set[int]:
        for fd in extra_fds:
            self._poll.register(fd, select.POLLIN)
        for peer in self._peers.values():
            for connection in (peer.control, peer.data):
                writable = select.POLLOUT if connection.wants_write else 0
                self._poll.register(connection.fileno(), select.POLLIN | writable)
        ready = {fd for fd, _ in self._poll.poll(wait_ms)}
        # Control first: a grant or a barrier is worth more than another batch.
        for fd in ready & self._control_of.keys():
            self._read_control(self._control_of[fd])
        for fd in ready & self._data_of.keys():
            peer = self._data_of[fd]
            peer.data.flush()
            for frame in peer.data.receive(_READ_BUDGET_BYTES):
                self._on_frame(frame)
        self._after_step()
        return ready.intersection(extra_fds)

    def _look_at_control(self) -> None:
        for peer in self._peers.values():
            self._read_control(peer)

    def _read_control(self, peer: PeerLinks) -> None:
        peer.control.flush()
        for data in peer.control.receive():
            self._on_peer_message(decode_peer(data))

    def _on_peer_message(self, message: PeerMessage) -> None:
        now_ms = self._clock.monotonic_ms()
        match message:
            case BarrierSent(channel, checkpoint, before, age_ms):
                task = self._receiving[self._table[channel].edge]
                assert task.gate is not None
                task.note_barrier(checkpoint, now_ms)
                task.perform(
                    task.gate.on_barrier(self._table[channel], checkpoint, before=before, age_ms=age_ms, now_ms=now_ms)
                )
            case CutSent(channel, checkpoint, held_from, before):
                task = self._receiving[self._table[channel].edge]
                assert task.gate is not None
                task.perform(task.gate.on_cut(self._table[channel], checkpoint, Cut(held_from, before), now_ms))
            case Granted(channel, consumed):
                self._output_of[channel].on_granted(consumed)

    def _on_frame(self, frame: DataFrame) -> None:
        header = frame.header
        channel = self._table[header.channel]
        element = from_frame(frame, self._schemas[channel.edge])
        self._deliver(header.channel, Arrived(header.sequence, header.epoch, element, frame.payload.size))

    def _deliver(self, channel: int, arrived: Arrived) -> None:
        task = self._receiving[self._table[channel].edge]
        assert task.gate is not None
        task.perform(task.gate.on_arrival(self._table[channel], arrived, self._clock.monotonic_ms()))

    # -- snapshots and reports

    def _on_snapshot(self, snapshot: TaskSnapshot) -> None:
        self._snapshots.on_snapshot(snapshot)

    def _on_closed(self, task: TaskId, closed: ClosedCapture) -> None:
        self._snapshots.on_received(task, closed.checkpoint, closed.captures)

    def _report(self) -> None:
        if not self._input_ended_said and all(task.has_ended for task in self._tasks):
            self._input_ended_said = True
            self._send(InputEnded(self._generation))
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_progress_ms:
            return
        self._next_progress_ms = now_ms + _PROGRESS_EVERY_MS
        self._send(Progress(self._generation, self._is_idle(), self._splits_received, [*map(_progress, self._tasks)]))

    def _is_idle(self) -> bool:
        return all(task.is_waiting() for task in self._tasks) and not any(o.in_flight_bytes() for o in self._outputs)

    def _wait_ms(self) -> float:
        now_ms = self._clock.monotonic_ms()
        deadlines = [d for task in self._tasks if (d := task.next_deadline_ms()) is not None]
        return max(0.0, min([_LONGEST_WAIT_MS, *(deadline_ms - now_ms for deadline_ms in deadlines)]))

    def _task(self, vertex: int) -> Task:
        return next(task for task in self._tasks if task.id.vertex == vertex)


def _progress(task: Task) -> TaskProgress:
    counters = task.counters
    queued_bytes = 0 if task.gate is None else task.gate.queued_bytes()
    return TaskProgress(
        task.id, counters.rows_in, counters.rows_out, queued_bytes, counters.busy_ms, counters.backpressured_ms
    )
