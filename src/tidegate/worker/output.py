"""The sending side of a task: rows are split over channels, gathered, sealed and numbered, then handed to links.

Holds what is not yet handed over, and what a checkpoint captured of it.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, assert_never

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, Idle, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, Sequence
from tidegate.network.messages import BarrierSent, ChannelFinished, CutSent, PeerMessage
from tidegate.plan.key_groups import partition
from tidegate.plan.physical import (
    BroadcastPartitioning,
    ForwardPartitioning,
    HashPartitioning,
    Partitioning,
    PointwisePartitioning,
    RebalancePartitioning,
)
from tidegate.protocol.barriers import Cut
from tidegate.protocol.cuts import ChannelCuts, SendCut
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import RATE_HALF_LIFE_MS, DrainRate, SteadyRate, StorageSpeed, should_switch_now
from tidegate.protocol.windows import LEAST_ROOM, MostAhead, SendWindow

# Small pieces wait for company up to this size or this long: a frame costs some 20 us whatever is in it, and a slice at
# the receiver, which takes no more than a frame, some 300 us.
GATHER_BYTES = 128 << 10
GATHER_MS = 20.0
# A grant comes for a whole frame: with two frames to a window of 1 MiB both sides waited for each other a third of the
# time, with eight a tenth. And what refills a window at once is new at once to the checkpoint that captures it.
_FRAMES_PER_WINDOW = 8
# What an element without rows counts for, so that nothing is free.
MARKER_BYTES = 32
# When so much was emitted, half of it is forgotten: keys change, and with them the channels' shares.
_SHARE_MEMORY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Sealed:
    sequence: Sequence
    element: NumberedElement
    size_bytes: int


class Link(Protocol):
    """The way to one receiver's slot: elements on one lane, messages on another that never waits behind it."""

    def can_accept(self) -> bool: ...
    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None: ...
    def send_message(self, message: PeerMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldCapture:
    """What the sender stores of one channel for one checkpoint."""

    channel: ChannelId
    cut: Cut
    elements: tuple[Sealed, ...]


class OutputChannel:
    def __init__(
        self,
        channel: ChannelId,
        index: int,
        link: Link,
        *,
        window_bytes: int,
        next_sequence: Sequence,
        ahead: MostAhead | None = None,
    ) -> None:
        self.channel = channel
        self._index = index
        self._link = link
        self.window_bytes = window_bytes
        self._ahead = ahead
        self._window = SendWindow(window_bytes)
        self._cuts = ChannelCuts(first_unsent=next_sequence)
        self._next = next_sequence
        self._epoch = CheckpointId(0)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._gathered_since_ms = 0.0
        self._unsent: deque[Sealed] = deque()
        self._undecided: set[CheckpointId] = set()
        self._held: dict[CheckpointId, HeldCapture] = {}
        self._drain = DrainRate()
        # A swing of a second, times an interval of many, would let the source rush ahead and then stop.
        self._pace = None if ahead is None else SteadyRate(half_life_ms=max(RATE_HALF_LIFE_MS, ahead.most_ms))
        self._drained_at_ms: float | None = None
        self._gather_bytes = _gather_bytes(int(self._limit_bytes()))
        self.emitted_bytes = 0.0  # the past fading, see `TaskOutput.room_bytes`

    # -- rows

    def has_room(self) -> bool:
        return self._window.has_room(gathered_bytes=self._gathered_bytes, most_bytes=self._limit_bytes())

    def in_flight_bytes(self) -> int:
        return self._window.in_flight_bytes + self._gathered_bytes

    def room_bytes(self) -> float:
        """What the next slice may put in; at least what makes it begin."""
        limit_bytes = self._limit_bytes()
        return max(limit_bytes * LEAST_ROOM, limit_bytes - self.in_flight_bytes())

    def _limit_bytes(self) -> float:
        if self._ahead is None or self._pace is None:
            return self.window_bytes
        return min(self.window_bytes, self._ahead.limit_bytes(self._pace.bytes_per_ms))

    def gather(self, rows: pa.RecordBatch, now_ms: float) -> None:
        if not self._gathered:
            self._gathered_since_ms = now_ms
        self._gathered.append(rows)
        size_bytes = rows.nbytes
        self._gathered_bytes += size_bytes
        self.emitted_bytes += size_bytes
        if self._gathered_bytes >= self._gather_bytes:
            self.seal()

    def watermark(self, event_time_ms: int) -> None:
        self.seal()
        self._enqueue(Watermark(event_time_ms), MARKER_BYTES)

    def idle(self) -> None:
        self.seal()
        self._enqueue(Idle(), MARKER_BYTES)

    def end(self) -> None:
        self.seal()
        self._enqueue(EndOfInput(), MARKER_BYTES)

    def finish(self) -> None:
        """Its task takes part in no further checkpoint: the end of the channel stands for every barrier to come."""
        self._link.send_message(ChannelFinished(self._index))

    def seal(self) -> None:
        if not self._gathered:
            return
        pieces, self._gathered = self._gathered, []
        size_bytes, self._gathered_bytes = self._gathered_bytes, 0
        if not self._window.in_flight_bytes:
            self._drained_at_ms = self._gathered_since_ms  # from here on the receiver has something to do
        rows = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        for frame in _frames(rows, size_bytes, frame_bytes=self._gather_bytes):
            self._enqueue(Batch(frame), size_bytes * frame.num_rows // rows.num_rows + MARKER_BYTES)

    def seal_if_due(self, now_ms: float) -> None:
        if self._gathered and now_ms - self._gathered_since_ms >= GATHER_MS:
            self.seal()

    def gather_deadline_ms(self) -> float | None:
        return self._gathered_since_ms + GATHER_MS if self._gathered else None

    def on_granted(self, consumed: Sequence, window_bytes: int, now_ms: float) -> None:
        before_bytes = self._window.in_flight_bytes
        self._window.granted(consumed)
        self._note_drain(before_bytes - self._window.in_flight_bytes, now_ms)
        if window_bytes != self.window_bytes:
            self.window_bytes = window_bytes
            self._window.resize(window_bytes)
        self._gather_bytes = _gather_bytes(int(self._limit_bytes()))

    def send_one(self) -> bool:
        """Hand over the next element if the link takes it; true if it did."""
        if not self._unsent or not self._link.can_accept():
            return False
        sealed = self._unsent.popleft()
        self._link.send_element(self._index, sealed, self._epoch)
        self._perform(self._cuts.on_sent(Sequence(sealed.sequence + 1)))
        return True

    # -- checkpoints

    def barrier(
        self,
        checkpoint: CheckpointId,
        kind: CheckpointKind,
        *,
        age_ms: float,
        switch_after_ms: float | None,
        switch_at_ms: float | None,
    ) -> None:
        self.seal()
        self._undecided.add(checkpoint)
        self._link.send_message(BarrierSent(self._index, checkpoint, self._next, age_ms, switch_after_ms))
        self._perform(self._cuts.on_snapshot(checkpoint, kind, before=self._next, switch_at_ms=switch_at_ms))

    def on_time(self, now_ms: float, *, storage: StorageSpeed) -> None:
        self._perform(self._cuts.on_time(now_ms))
        for checkpoint, before, switch_at_ms in self._cuts.switchable():
            if should_switch_now(
                queued_bytes=sum(sealed.size_bytes for sealed in self._unsent if sealed.sequence < before),
                drain_bytes_per_ms=self._drain.bytes_per_ms,
                storage=storage,
                left_ms=switch_at_ms - now_ms,
            ):
                self._perform(self._cuts.switch_now(checkpoint))

    def switch_deadline_ms(self) -> float | None:
        return self._cuts.next_deadline_ms()

    def is_decided(self, checkpoint: CheckpointId) -> bool:
        return checkpoint not in self._undecided

    def take_held(self, checkpoint: CheckpointId) -> HeldCapture | None:
        """What this side stores for the checkpoint, once; None if nothing was held."""
        return self._held.pop(checkpoint, None)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._cuts.on_abort(checkpoint)
        self._undecided.discard(checkpoint)
        self._held.pop(checkpoint, None)

    def _note_drain(self, granted_bytes: int, now_ms: float) -> None:
        """How fast the receiver takes what it has: the time since its last grant counts while something was here."""
        if self._drained_at_ms is not None:
            elapsed_ms = now_ms - self._drained_at_ms
            self._drain.on_consumed(granted_bytes, elapsed_ms)
            if self._pace is not None:
                self._pace.on_consumed(granted_bytes, elapsed_ms)
        self._drained_at_ms = now_ms if self._window.in_flight_bytes else None

    def _enqueue(self, element: NumberedElement, size_bytes: int) -> None:
        self._unsent.append(Sealed(self._next, element, size_bytes))
        self._window.spend(self._next, size_bytes)
        self._next = Sequence(self._next + 1)

    def _perform(self, cuts: list[SendCut]) -> None:
        for send in cuts:
            cut = send.cut
            self._undecided.discard(send.checkpoint)
            if cut.held_from < cut.before:
                held = tuple(sealed for sealed in self._unsent if sealed.sequence < cut.before)
                self._held[send.checkpoint] = HeldCapture(self.channel, cut, held)
            self._link.send_message(CutSent(self._index, send.checkpoint, cut.held_from, cut.before))
            self._epoch = max(self._epoch, send.checkpoint)


class EdgeOutput:
    """All channels of one outgoing edge of one task, in the order of the receiving subtasks."""

    def __init__(self, channels: Items[OutputChannel], partitioning: Partitioning, *, max_parallelism: int) -> None:
        self.channels = tuple(channels)
        self._partitioning = partitioning
        self._max_parallelism = max_parallelism
        # Each sender begins with another receiver, so that few batches do not all go to the same one.
        self._turn = self.channels[0].channel.sender % len(self.channels)

    def emit(self, rows: pa.RecordBatch, now_ms: float) -> None:
        match self._partitioning:
            case HashPartitioning(key_count):
                pieces = partition(
                    rows,
                    key_count=key_count,
                    parallelism=len(self.channels),
                    max_parallelism=self._max_parallelism,
                )
                for channel, piece in zip(self.channels, pieces, strict=True):
                    if piece is not None and piece.num_rows:
                        channel.gather(piece, now_ms)
            case RebalancePartitioning() | PointwisePartitioning():
                self.channels[self._turn].gather(rows, now_ms)
                self._turn = (self._turn + 1) % len(self.channels)
            case BroadcastPartitioning():
                for channel in self.channels:
                    channel.gather(rows, now_ms)
            case ForwardPartitioning():
                self.channels[0].gather(rows, now_ms)
            case unreachable:
                assert_never(unreachable)

    def room_bytes(self, total_bytes: float) -> float:
        """What the task may emit in all, of which `total_bytes` were emitted lately, by the room of this edge."""
        match self._partitioning:
            case RebalancePartitioning() | PointwisePartitioning():
                emitted_bytes = sum(channel.emitted_bytes for channel in self.channels)
                next_room_bytes = self.channels[self._turn].room_bytes()  # all of a slice goes there
                return next_room_bytes * total_bytes / emitted_bytes if emitted_bytes else next_room_bytes
            case HashPartitioning() | BroadcastPartitioning() | ForwardPartitioning():
                emitting = (channel for channel in self.channels if channel.emitted_bytes)
                rooms = (channel.room_bytes() * total_bytes / channel.emitted_bytes for channel in emitting)
                return min(rooms, default=float("inf"))
            case unreachable:
                assert_never(unreachable)


class TaskOutput:
    """Where a task's rows go: every outgoing edge gets all of them."""

    def __init__(self, edges: Items[EdgeOutput]) -> None:
        self._edges = tuple(edges)
        self.channels = tuple(channel for edge in self._edges for channel in edge.channels)

    def emit(self, rows: pa.RecordBatch, now_ms: float) -> None:
        if rows.num_rows:
            for edge in self._edges:
                edge.emit(rows, now_ms)

    def has_room(self) -> bool:
        return all(channel.has_room() for channel in self.channels)

    def room_bytes(self) -> float:
        """What a slice may emit in all, so that no channel gets more than its room by the share it had lately."""
        total_bytes = sum(channel.emitted_bytes for channel in self.channels)
        if not total_bytes:
            return sum(channel.room_bytes() for channel in self.channels)
        if total_bytes > _SHARE_MEMORY_BYTES:
            for channel in self.channels:
                channel.emitted_bytes /= 2
            total_bytes /= 2
        return min(edge.room_bytes(total_bytes) for edge in self._edges)

    def in_flight_bytes(self) -> int:
        return sum(channel.in_flight_bytes() for channel in self.channels)

    def is_decided(self, checkpoint: CheckpointId) -> bool:
        return all(channel.is_decided(checkpoint) for channel in self.channels)

    def take_held(self, checkpoint: CheckpointId) -> list[HeldCapture]:
        held = (channel.take_held(checkpoint) for channel in self.channels)
        return [capture for capture in held if capture is not None]

    def deadlines_ms(self) -> Iterator[float]:
        for channel in self.channels:
            for deadline_ms in (channel.gather_deadline_ms(), channel.switch_deadline_ms()):
                if deadline_ms is not None:
                    yield deadline_ms


def _gather_bytes(window_bytes: int) -> int:
    """A part of a small window, so that it is not overdrawn by what was gathered for it."""
    return min(GATHER_BYTES, max(1, window_bytes // _FRAMES_PER_WINDOW))


def _frames(rows: pa.RecordBatch, size_bytes: int, *, frame_bytes: int) -> Iterator[pa.RecordBatch]:
    """In equal parts of a frame's size or more: as many as make a window, also of what overdraws it."""
    count = min(max(1, size_bytes // frame_bytes), _FRAMES_PER_WINDOW, rows.num_rows)
    for number in range(count):
        first, end = (rows.num_rows * at // count for at in (number, number + 1))
        yield rows.slice(first, end - first)
