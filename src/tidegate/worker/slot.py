"""One generation of one slot over its connections, driven turn by turn by one thread.

A turn reads what came in, lets every runnable task do a step, sends what is ready. Control connections are looked at
after every step, so a barrier waits for one slice and never for a queue.
"""

import select
from collections.abc import Callable, Mapping

from tidegate.model.clock import Clock
from tidegate.model.ids import Generation, SlotIndex
from tidegate.network.mesh import PeerLinks
from tidegate.network.messages import (
    AbortCheckpoint,
    AssignSplits,
    BarrierEverywhere,
    BarrierSent,
    CheckpointDone,
    FromSlot,
    PeerMessage,
    Run,
    TriggerCheckpoint,
    decode_peer,
)
from tidegate.operators.contract import OpenCalls, UserCode
from tidegate.storage.store import Store
from tidegate.worker.gate import Arrived
from tidegate.worker.links import LocalLink, RemoteLink
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.mailbox import Background
from tidegate.worker.restoring import SlotRestore
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slot_tasks import SlotTasks

# What one connection may deliver in a turn, so that none starves the others.
_READ_BUDGET_BYTES = 4 << 20
# Encoding snapshots shares the turn with the stream.
_ENCODE_BUDGET_MS = 3.0
# The longest sleep: a missed wake-up then costs this much, no more.
_LONGEST_WAIT_MS = 50.0


def close_links(peers: Mapping[SlotIndex, PeerLinks]) -> None:
    for peer in peers.values():
        peer.control.close()
        peer.data.close()


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
        open_location: Callable[[str], Store],
        background: Background,
        clock: Clock,
        user_code: UserCode,
        open_calls: OpenCalls,
        wake: Callable[[], None],
        send: Callable[[FromSlot], None],
        listen: Callable[[], bool] = lambda: False,
        copies: LocalCopies | None = None,
    ) -> None:
        """`listen` hears what of the coordinator counts at once, and says whether more waits for the turn's end."""
        self._peers = peers
        self._listen = listen
        self._clock = clock
        self._has_delivered = False
        self._is_told_more = False
        self._local = LocalLink(self._deliver)
        links = {peer: RemoteLink(connections) for peer, connections in peers.items()}
        self._tasks = SlotTasks(
            settings=settings,
            slot=slot,
            generation=generation,
            restore=restore,
            links={**links, slot: self._local},
            store=store,
            open_location=open_location,
            background=background,
            clock=clock,
            user_code=user_code,
            open_calls=open_calls,
            wake=wake,
            send=send,
            copies=copies,
        )
        self._poll = select.poll()
        self._between_steps = select.poll()
        self._control_of = {p.control.fileno(): p for p in peers.values()}
        self._data_of = {p.data.fileno(): p for p in peers.values()}

    # -- what the coordinator says

    def on_splits(self, message: AssignSplits) -> None:
        self._tasks.on_splits(message)

    def on_run(self, message: Run) -> None:
        self._tasks.on_run(message)

    def on_trigger(self, message: TriggerCheckpoint) -> None:
        self._tasks.on_trigger(message)
        self._after_step()

    def on_barrier_everywhere(self, message: BarrierEverywhere) -> None:
        self._tasks.on_barrier_everywhere(message)

    def note_unbegun(self, message: TriggerCheckpoint) -> None:
        self._tasks.note_unbegun(message)

    def on_abort(self, message: AbortCheckpoint) -> None:
        # How far it had come is worth knowing just now; afterwards nobody here knows it any more.
        self._tasks.report_now()
        self._tasks.on_abort(message)

    def on_done(self, message: CheckpointDone) -> None:
        self._tasks.on_done(message)

    # -- the turn

    def turn(self, extra_fds: "list[int]") -> set[int]:
        """One turn of the loop; gives the descriptors of `extra_fds` that have something to read."""
        self._is_told_more = False
        moved = self._step_tasks(extra_fds)
        self._has_delivered = False
        self._send_elements()
        self._tasks.encode_some(self._clock.monotonic_ms() + _ENCODE_BUDGET_MS)
        self._tasks.report()
        is_busy = moved or self._is_told_more or self._tasks.has_work()
        is_busy = is_busy or bool(self._local.messages) or self._has_delivered
        return self._receive(0.0 if is_busy else self._wait_ms(), extra_fds)

    def close(self) -> None:
        try:
            self._tasks.close()
        finally:
            # Whatever user code does when it is closed: peers must see that this generation is gone.
            close_links(self._peers)

    def _step_tasks(self, extra_fds: "list[int]") -> bool:
        moved = False
        # Downstream first: room that it makes can be used in the same turn.
        for task in reversed(self._tasks.tasks):
            if not self._tasks.lets_wait(task) and task.step():
                moved = True
                self._after_step()
                self._look_at_control()
                if self._is_told_more or self._is_anything_readable(extra_fds):
                    break  # a trigger or an upload that is done waits for one step too, not for one of each task
        self._tasks.on_time()
        self._after_step()
        return moved

    def _is_anything_readable(self, fds: "list[int]") -> bool:
        for fd in fds:
            self._between_steps.register(fd, select.POLLIN)
        return bool(self._between_steps.poll(0))

    def _after_step(self) -> None:
        """Pass on what tasks left behind: grants, messages between tasks of this slot, outputs that are decided."""
        self._tasks.send_grants()
        while self._local.messages:
            self._on_peer_message(self._local.messages.popleft())
        self._tasks.collect_held()

    def _send_elements(self) -> None:
        self._tasks.send_elements()
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
                self._tasks.on_frame(frame)
        self._after_step()
        return ready.intersection(extra_fds)

    def _look_at_control(self) -> None:
        heard = sum(self._read_control(peer) for peer in self._peers.values())
        if heard:
            # A barrier that came goes on to this slot's other tasks at once, not behind the next one's step.
            self._after_step()

    def _read_control(self, peer: PeerLinks) -> int:
        peer.control.flush()
        messages = peer.control.receive()
        for data in messages:
            self._on_peer_message(decode_peer(data))
        return len(messages)

    def _on_peer_message(self, message: PeerMessage) -> None:
        if isinstance(message, BarrierSent):
            # It may begin a snapshot, of a checkpoint that was aborted while the last one was taken.
            self._is_told_more |= self._listen()
        self._tasks.on_peer_message(message)

    def _deliver(self, channel: int, arrived: Arrived) -> None:
        # To a task of this slot, whose turn may be over.
        self._has_delivered = True
        self._tasks.on_element(channel, arrived)

    def _wait_ms(self) -> float:
        deadline_ms = self._tasks.next_deadline_ms()
        if deadline_ms is None:
            return _LONGEST_WAIT_MS
        return max(0.0, min(_LONGEST_WAIT_MS, deadline_ms - self._clock.monotonic_ms()))
