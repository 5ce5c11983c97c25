"""Senders, channels and receivers in virtual time: production outputs, gates and debloating, one tick a millisecond.

With an interval checkpoints go through as well, one after the other; what they would store is thrown away.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import pyarrow as pa

from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence
from tidegate.network.messages import AbortCheckpoint, BarrierSent, CutSent, PeerMessage
from tidegate.plan.physical import HashPartitioning
from tidegate.protocol.barriers import Cut, TakeSnapshot
from tidegate.protocol.debloat import Debloat
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import UNKNOWN_SPEED
from tidegate.protocol.windows import MostAhead
from tidegate.worker.gate import Arrived, ClosedCapture, Gate, GateResult, RecoveredChannel, Slice
from tidegate.worker.output import EdgeOutput, OutputChannel, Sealed, TaskOutput
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slices import SliceSizer
from tidegate.worker.task import SLICE_TARGET_MS

ROW_BYTES = 200
WIRE_MS = 2.0
_MOST_ROWS = 1 << 16
_ROWS = pa.RecordBatch.from_arrays(
    [
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(ROW_BYTES), _MOST_ROWS, [None, pa.py_buffer(bytes(ROW_BYTES * _MOST_ROWS))]
        )
    ],
    ["v"],
)


@dataclass(slots=True)
class Wire:
    """Elements, messages and grants arrive `WIRE_MS` later."""

    arriving: deque[tuple[float, int, Arrived]] = field(default_factory=deque)
    messages: deque[tuple[float, PeerMessage | AbortCheckpoint]] = field(default_factory=deque)
    now_ms: float = 0.0

    def can_accept(self) -> bool:
        return True

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        arrived = Arrived(sealed.sequence, epoch, sealed.element, sealed.size_bytes)
        self.arriving.append((self.now_ms + WIRE_MS, channel, arrived))

    def send_message(self, message: PeerMessage | AbortCheckpoint) -> None:
        self.messages.append((self.now_ms + WIRE_MS, message))


@dataclass(slots=True)
class Sender:
    """A source. `rows_per_ms`: what there is to send at a time. `shares`: of it, for each receiver."""

    output: TaskOutput
    rows_per_ms: Callable[[float], float]
    shares: tuple[float, ...]
    waiting_rows: float = 0.0
    sent_rows: int = 0

    def step(self, now_ms: float) -> None:
        self.waiting_rows = min(self.waiting_rows + self.rows_per_ms(now_ms), 1e9)
        while self.waiting_rows >= 1 and self.output.has_room():
            rows = max(1, int(min(self.waiting_rows, _MOST_ROWS, self.output.room_bytes() / ROW_BYTES)))
            for channel, share in zip(self.output.channels, self.shares, strict=True):
                if count := round(rows * share):
                    channel.gather(_ROWS.slice(0, count), now_ms)
            self.waiting_rows -= rows
            self.sent_rows += rows


@dataclass(slots=True)
class Receiver:
    """`ms_per_row`: what a row costs at a time. `taken_part`: in which checkpoints, and when."""

    gate: Gate
    channels: list[ChannelId]
    wire: Wire
    ms_per_row: Callable[[float], float]
    sizer: SliceSizer = field(default_factory=lambda: SliceSizer(SLICE_TARGET_MS))
    work: tuple[float, float, Slice] | None = None
    worked_ms: float = 0.0
    rows: int = 0
    taken_part: dict[CheckpointId, float] = field(default_factory=dict)

    def note(self, results: Iterable[GateResult], now_ms: float) -> None:
        for result in results:
            if isinstance(result, TakeSnapshot) and result.kind is not CheckpointKind.ALIGNED:
                continue
            if isinstance(result, TakeSnapshot | ClosedCapture):
                self.taken_part.setdefault(result.checkpoint, now_ms)

    def hear(self, now_ms: float) -> None:
        """Between two slices, as in a slot."""
        while self.wire.messages and self.wire.messages[0][0] <= now_ms:
            message = self.wire.messages.popleft()[1]
            if isinstance(message, BarrierSent):
                channel = self.channels[message.channel]
                self.note(
                    self.gate.on_barrier(
                        channel,
                        message.checkpoint,
                        before=message.before,
                        age_ms=message.age_ms + WIRE_MS,
                        switch_after_ms=message.switch_after_ms,
                        now_ms=now_ms,
                    ),
                    now_ms,
                )
            elif isinstance(message, CutSent):
                cut = Cut(held_from=message.held_from, before=message.before)
                heard = self.gate.on_cut(self.channels[message.channel], message.checkpoint, cut, now_ms)
                self.note(heard, now_ms)
            elif isinstance(message, AbortCheckpoint):
                self.gate.on_abort(message.checkpoint)

    def step(self, now_ms: float) -> None:
        begins_ms = now_ms
        while self.work is None or self.work[1] <= now_ms:
            if self.work is not None:
                began_ms, done_ms, piece = self.work
                self.note(self.gate.consumed(piece, done_ms, elapsed_ms=done_ms - began_ms), done_ms)
                self.sizer.observe(rows=piece.rows.num_rows, elapsed_ms=done_ms - began_ms)
                self.rows += piece.rows.num_rows
                self.worked_ms += done_ms - began_ms
                self.work, begins_ms = None, done_ms
            self.hear(now_ms)
            following = self.gate.next_slice(self.sizer.rows)
            if following is None:
                return
            cost_ms = self.ms_per_row(begins_ms) * following.rows.num_rows
            self.work = (begins_ms, begins_ms + cost_ms, following)


class Flow:
    """All senders to all receivers; `seen` keeps what each receiver had in flight, every 10 ms.

    `interval_ms`: of checkpoints, which last until each receiver has taken its part, or expire after `timeout_ms`.
    `lasted_ms`: those that are complete. `expired`: which are not. `silent`: senders whose barriers do not come.
    """

    def __init__(
        self,
        settings: SlotSettings,
        *,
        supplies: list[Callable[[float], float]],
        costs: list[Callable[[float], float]],
        shares: tuple[float, ...] = (1.0,),
        ahead: MostAhead | None = None,
        interval_ms: float | None = None,
        timeout_ms: float = inf,
        switch_after_ms: float | None = None,
        silent: frozenset[int] = frozenset(),
    ) -> None:
        self.now_ms = 0.0
        self.lasted_ms: list[float] = []
        self.expired: list[CheckpointId] = []
        self.under_way: tuple[CheckpointId, float] | None = None
        self._interval_ms, self._timeout_ms, self._switch_after_ms = interval_ms, timeout_ms, switch_after_ms
        self._next_trigger_ms, self._silent = 0.0, silent
        self.wires = [Wire() for _ in costs]
        bounds = settings.window_bounds(gate_channels=len(supplies), slot_channels=len(supplies))
        self.channels = {
            (s, r): OutputChannel(
                ChannelId(EdgeId(0), s, r),
                s,
                self.wires[r],
                window_bytes=bounds.start_bytes,
                next_sequence=Sequence(0),
                ahead=ahead,
            )
            for s in range(len(supplies))
            for r in range(len(costs))
        }
        self.senders = []
        for s, supply in enumerate(supplies):
            edge = EdgeOutput([self.channels[s, r] for r in range(len(costs))], HashPartitioning(1), max_parallelism=8)
            self.senders.append(Sender(TaskOutput([edge]), supply, shares))
        self.receivers = []
        for r, cost in enumerate(costs):
            ids = [self.channels[s, r].channel for s in range(len(supplies))]
            debloat = None
            if settings.debloat_target_ms is not None:
                debloat = Debloat(target_ms=settings.debloat_target_ms, bounds=bounds, channels=ids, now_ms=0.0)
            new = RecoveredChannel((), Sequence(0))
            gate = Gate([(id, new) for id in ids], window_bytes=bounds.start_bytes, debloat=debloat)
            self.receivers.append(Receiver(gate, ids, self.wires[r], cost))
        self._granted: deque[tuple[float, int, int, Sequence, int]] = deque()
        self.seen: list[list[int]] = [[] for _ in costs]
        self.windows: list[list[int]] = [[] for _ in costs]

    def run(self, until_ms: float) -> None:
        while self.now_ms < until_ms:
            self.now_ms += 1.0
            self._tick()

    def in_flight_bytes(self, receiver: int, *, from_ms: float) -> list[int]:
        return self.seen[receiver][int(from_ms / 10) :]

    def direction_changes(self, receiver: int, *, from_ms: float) -> int:
        """How often the gate's windows together turned from growing to shrinking or back."""
        sizes = self.windows[receiver][int(from_ms / 10) :]
        steps = [later - earlier for earlier, later in pairwise(sizes) if later != earlier]
        return sum((one > 0) != (two > 0) for one, two in pairwise(steps))

    def _tick(self) -> None:
        now_ms = self.now_ms
        while self._granted and self._granted[0][0] <= now_ms:
            _, s, r, consumed, window_bytes = self._granted.popleft()
            self.channels[s, r].on_granted(consumed, window_bytes, now_ms)
        for sender in self.senders:
            sender.step(now_ms)
        for channel in self.channels.values():
            channel.seal_if_due(now_ms)
            channel.on_time(now_ms, storage=UNKNOWN_SPEED)
        for wire in self.wires:
            wire.now_ms = now_ms
        self._checkpoint(now_ms)
        for r, (wire, receiver) in enumerate(zip(self.wires, self.receivers, strict=True)):
            for s in range(len(self.senders)):
                while self.channels[s, r].send_one():
                    pass
            while wire.arriving and wire.arriving[0][0] <= now_ms:
                _, s, arrived = wire.arriving.popleft()
                receiver.note(receiver.gate.on_arrival(self.channels[s, r].channel, arrived, now_ms), now_ms)
            receiver.step(now_ms)
            receiver.note(receiver.gate.on_time(now_ms, storage=UNKNOWN_SPEED), now_ms)
            for grant in receiver.gate.grants:
                due = (now_ms + WIRE_MS, grant.channel.sender, r, grant.consumed, grant.window_bytes)
                self._granted.append(due)
            receiver.gate.grants.clear()
        if now_ms % 10 == 0:
            for r in range(len(self.receivers)):
                mine = [channel for (_, to), channel in self.channels.items() if to == r]
                self.seen[r].append(sum(channel.in_flight_bytes() for channel in mine))
                self.windows[r].append(sum(channel.window_bytes for channel in mine))

    def _checkpoint(self, now_ms: float) -> None:
        if self._interval_ms is None:
            return
        if self.under_way is not None and all(self.under_way[0] in one.taken_part for one in self.receivers):
            checkpoint, began_ms = self.under_way
            self.lasted_ms.append(max(one.taken_part[checkpoint] for one in self.receivers) - began_ms)
            self.under_way = None
        if self.under_way is not None and now_ms - self.under_way[1] >= self._timeout_ms:
            self._expire(self.under_way[0])
            self.under_way = None
        if self.under_way is None and now_ms >= self._next_trigger_ms:
            after_ms = self._switch_after_ms
            checkpoint = CheckpointId(len(self.lasted_ms) + len(self.expired) + 1)
            self.under_way, self._next_trigger_ms = (checkpoint, now_ms), now_ms + self._interval_ms
            for channel in (channel for (s, _), channel in self.channels.items() if s not in self._silent):
                channel.barrier(
                    checkpoint,
                    CheckpointKind.UNALIGNED if after_ms == 0 else CheckpointKind.ALIGNED,
                    age_ms=0.0,
                    switch_after_ms=after_ms,
                    switch_at_ms=None if after_ms is None else now_ms + after_ms,
                )
                channel.take_held(checkpoint)

    def _expire(self, checkpoint: CheckpointId) -> None:
        self.expired.append(checkpoint)
        for channel in self.channels.values():
            channel.on_abort(checkpoint)
        for wire in self.wires:
            wire.send_message(AbortCheckpoint(Generation(1), checkpoint))
