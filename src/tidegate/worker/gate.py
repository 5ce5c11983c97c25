"""The receiving side of a task: its channels' queues, and the barrier machine that says what may be consumed.

Consumption goes row by row through a batch, so that a snapshot can fall between two slices of it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, Sequence
from tidegate.protocol.barriers import (
    CaptureArrival,
    CloseCapture,
    Cut,
    DropCapture,
    GateAction,
    GateBarriers,
    TakeSnapshot,
    TrimCapture,
)
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.windows import ReceiveWindow


@dataclass(frozen=True, slots=True)
class Arrived:
    sequence: Sequence
    epoch: CheckpointId
    element: NumberedElement
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecoveredChannel:
    """A channel as it was when the checkpoint was taken: what was in flight stands before anything new."""

    elements: tuple[Arrived, ...]
    next_sequence: Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    channel: ChannelId
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class ReceivedCapture:
    """What the receiver stores of one channel for one checkpoint; the first element without its processed rows."""

    range: ReceiverRange
    elements: tuple[tuple[Sequence, NumberedElement], ...]


@dataclass(frozen=True, slots=True)
class ClosedCapture:
    checkpoint: CheckpointId
    captures: tuple[ReceivedCapture, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """To be told to the sender: everything below `consumed` is processed."""

    channel: ChannelId
    consumed: Sequence


@dataclass(slots=True)
class _Channel:
    window: ReceiveWindow
    queue: deque[Arrived]
    next_sequence: Sequence
    rows_done: int = 0  # of the head element
    queued_bytes: int = 0
    has_ended: bool = False

    def position(self) -> Sequence:
        return self.queue[0].sequence if self.queue else self.next_sequence


@dataclass(slots=True)
class _OpenCapture:
    first: Sequence
    row: int
    elements: list[tuple[Sequence, NumberedElement]] = field(default_factory=list)


class Gate:
    """Events return what the task must do: take a snapshot, or note that a capture is complete."""

    def __init__(
        self,
        channels: Iterable[tuple[ChannelId, RecoveredChannel]],
        *,
        window_bytes: int,
        switch_after_ms: float | None,
    ) -> None:
        self._channels: dict[ChannelId, _Channel] = {}
        for channel, recovered in channels:
            queue = deque(recovered.elements)
            self._channels[channel] = _Channel(
                ReceiveWindow(window_bytes),
                queue,
                recovered.next_sequence,
                queued_bytes=sum(arrived.size_bytes for arrived in queue),
            )
        self._barriers = GateBarriers(
            ((channel, state.next_sequence, state.position()) for channel, state in self._channels.items()),
            switch_after_ms=switch_after_ms,
        )
        self._captures: dict[CheckpointId, dict[ChannelId, _OpenCapture]] = {}
        self._turn: deque[ChannelId] = deque(self._channels)
        self.grants: list[Grant] = []

    # -- events

    def on_arrival(self, channel: ChannelId, arrived: Arrived, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
        state = self._channels[channel]
        # Queued before the machine hears of it: a snapshot that this very arrival sets off must see it in flight.
        state.queue.append(arrived)
        state.next_sequence = Sequence(arrived.sequence + 1)
        state.queued_bytes += arrived.size_bytes
        return self._perform(self._barriers.on_arrival(channel, arrived.sequence, now_ms=now_ms), arrived)

    def on_barrier(
        self, channel: ChannelId, checkpoint: CheckpointId, *, before: Sequence, age_ms: float, now_ms: float
    ) -> "list[TakeSnapshot | ClosedCapture]":
        actions = self._barriers.on_barrier(channel, checkpoint, before=before, age_ms=age_ms, now_ms=now_ms)
        return self._perform(actions)

    def on_cut(
        self, channel: ChannelId, checkpoint: CheckpointId, cut: Cut, now_ms: float
    ) -> "list[TakeSnapshot | ClosedCapture]":
        return self._perform(self._barriers.on_cut(channel, checkpoint, cut, now_ms=now_ms))

    def on_time(self, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
        return self._perform(self._barriers.on_time(now_ms))

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._perform(self._barriers.on_abort(checkpoint))

    # -- consumption

    def next_slice(self, max_rows: int) -> Slice | None:
        """Up to `max_rows` rows of the next channel in turn that may be consumed; nothing is consumed yet."""
        channel = self._next_consumable()
        if channel is None:
            return None
        state = self._channels[channel]
        head = state.queue[0].element
        assert isinstance(head, Batch), "markers are consumed by skip_markers"
        return Slice(channel, head.rows.slice(state.rows_done, max_rows))

    def consumed(self, consumed: Slice, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
        """The slice is processed: only now does the position move past it."""
        state = self._channels[consumed.channel]
        head = state.queue[0].element
        assert isinstance(head, Batch)
        state.rows_done += consumed.rows.num_rows
        self._turn.rotate(-1)
        if state.rows_done < head.rows.num_rows:
            return []
        return self._pop_head(consumed.channel, state, now_ms)

    def skip_markers(self, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
        """Consume end marks and empty batches at the heads, as far as they may be."""
        results: list[TakeSnapshot | ClosedCapture] = []
        for channel, state in self._channels.items():
            while state.queue and self._is_marker(state.queue[0].element):
                if not self._barriers.may_consume(channel, epoch=state.queue[0].epoch):
                    break
                if isinstance(state.queue[0].element, EndOfInput):
                    state.has_ended = True
                results += self._pop_head(channel, state, now_ms)
        return results

    # -- questions

    def has_input(self) -> bool:
        return self._next_consumable() is not None

    def has_ended(self) -> bool:
        return all(state.has_ended for state in self._channels.values())

    def is_empty(self) -> bool:
        return not any(state.queue for state in self._channels.values())

    def queued_bytes(self) -> int:
        return sum(state.queued_bytes for state in self._channels.values())

    def next_deadline_ms(self) -> float | None:
        return self._barriers.next_deadline_ms()

    # -- inside

    @staticmethod
    def _is_marker(element: NumberedElement) -> bool:
        return not isinstance(element, Batch) or element.rows.num_rows == 0

    def _next_consumable(self) -> ChannelId | None:
        for _ in range(len(self._turn)):
            channel = self._turn[0]
            state = self._channels[channel]
            has_rows = state.queue and not self._is_marker(state.queue[0].element)
            if has_rows and self._barriers.may_consume(channel, epoch=state.queue[0].epoch):
                return channel
            self._turn.rotate(-1)
        return None

    def _pop_head(self, channel: ChannelId, state: _Channel, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
        head = state.queue.popleft()
        state.rows_done = 0
        state.queued_bytes -= head.size_bytes
        if state.window.is_grant_due(head.size_bytes, channel_is_empty=not state.queue):
            self.grants.append(Grant(channel, state.position()))
        return self._perform(self._barriers.on_consumed(channel, state.position(), now_ms=now_ms))

    def _perform(
        self, actions: list[GateAction], arrived: Arrived | None = None
    ) -> "list[TakeSnapshot | ClosedCapture]":
        results: list[TakeSnapshot | ClosedCapture] = []
        for action in actions:
            match action:
                case TakeSnapshot(checkpoint, kind):
                    if kind is not CheckpointKind.ALIGNED:
                        self._captures[checkpoint] = {c: self._open_capture(s) for c, s in self._channels.items()}
                    results.append(action)
                case CaptureArrival(checkpoint, channel):
                    assert arrived is not None
                    self._captures[checkpoint][channel].elements.append((arrived.sequence, arrived.element))
                case TrimCapture(checkpoint, channel, sequence):
                    capture = self._captures[checkpoint][channel]
                    capture.elements = [(s, element) for s, element in capture.elements if s < sequence]
                case CloseCapture(checkpoint, cuts):
                    results.append(self._close_capture(checkpoint, dict(cuts)))
                case DropCapture(checkpoint):
                    self._captures.pop(checkpoint, None)
        return results

    @staticmethod
    def _open_capture(state: _Channel) -> _OpenCapture:
        elements: list[tuple[Sequence, NumberedElement]] = [(a.sequence, a.element) for a in state.queue]
        if elements and state.rows_done:
            sequence, head = elements[0]
            assert isinstance(head, Batch)
            # The half-done batch is split: its processed rows are in the state, the rest is in flight.
            elements[0] = (sequence, Batch(head.rows.slice(state.rows_done)))
        return _OpenCapture(state.position(), state.rows_done, elements)

    def _close_capture(self, checkpoint: CheckpointId, cuts: dict[ChannelId, Cut]) -> ClosedCapture:
        captures = []
        for channel, capture in self._captures.pop(checkpoint, {}).items():
            cut = cuts[channel]
            if capture.first == cut.before:
                continue  # nothing of this channel was in flight
            position = ReceiverRange(
                channel=channel, first=capture.first, row=capture.row, held_from=cut.held_from, before=cut.before
            )
            captures.append(ReceivedCapture(position, tuple(capture.elements)))
        return ClosedCapture(checkpoint, tuple(captures))


def element_bytes(element: NumberedElement) -> int:
    match element:
        case Batch(rows):
            return int(rows.nbytes)
        case Watermark() | EndOfInput():
            return 0
