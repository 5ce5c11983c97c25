"""The receiving side of a task: its channels' queues, and the barrier machine that says what may be consumed.

Consumption goes row by row through a batch, so that a snapshot can fall between two slices of it. What was recovered
from a checkpoint is consumed before anything new: an old row must not come behind a newer one of its key.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, Idle, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
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
from tidegate.protocol.debloat import Debloat
from tidegate.protocol.input_watermarks import InputWatermarks
from tidegate.protocol.kinds import CheckpointKind, Guarantee
from tidegate.protocol.phases import RecoveryPhases
from tidegate.protocol.switching import DrainRate, StorageSpeed, should_switch_now
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, ChannelWatermark, GateWatermarks, WatermarkAction
from tidegate.protocol.windows import ReceiveWindow

# Of the channels that a checkpoint waits for, as many are named.
_MISSING_SHOWN = 4
# What a step takes is averaged over some ten of them: single ones are cut short by the ends of batches.
_SLICE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Arrived:
    """`first_row`: how many rows of the element were processed before the checkpoint it was recovered from."""

    sequence: Sequence
    epoch: CheckpointId
    element: NumberedElement
    size_bytes: int
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class RecoveredChannel:
    """A channel as it was when the checkpoint was taken: what was in flight stands before anything new.

    `phases`: where parts of it end that come before the rest on every channel; see `protocol.phases`.
    """

    elements: tuple[Arrived, ...]
    next_sequence: Sequence
    phases: tuple[Sequence, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveredWatermarks:
    channels: Mapping[ChannelId, ChannelWatermark]
    current_ms: int


NO_WATERMARKS = RecoveredWatermarks({}, MIN_WATERMARK_MS)


@dataclass(frozen=True, slots=True)
class Slice:
    channel: ChannelId
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class CapturedElement:
    """An element in flight; its first `done_rows` rows are processed and need not be stored.

    `first_row` numbers the first row of `element` among those that were sent under this sequence number.
    """

    sequence: Sequence
    element: NumberedElement
    first_row: int = 0
    done_rows: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedCapture:
    """What the receiver stores of one channel for one checkpoint."""

    range: ReceiverRange
    elements: tuple[CapturedElement, ...]


@dataclass(frozen=True, slots=True)
class ClosedCapture:
    checkpoint: CheckpointId
    captures: tuple[ReceivedCapture, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """To be told to the sender: everything below `consumed` is processed, and so much may be in flight."""

    channel: ChannelId
    consumed: Sequence
    window_bytes: int


GateResult: TypeAlias = TakeSnapshot | ClosedCapture


@dataclass(slots=True)
class _Channel:
    window: ReceiveWindow
    window_bytes: int
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
    phases: tuple[Sequence, ...]
    elements: list[CapturedElement] = field(default_factory=list)


class Gate:
    """Events return what the task must do: take a snapshot, or note that a capture is complete.

    `grants` and `watermark_actions` are left behind for the task to take.
    """

    def __init__(
        self,
        channels: Iterable[tuple[ChannelId, RecoveredChannel]],
        *,
        window_bytes: int,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        watermarks: RecoveredWatermarks = NO_WATERMARKS,
        debloat: Debloat | None = None,
        waiting_inputs: Mapping[EdgeId, int] | None = None,
        event_time_of: Mapping[EdgeId, EdgeId] = {},
    ) -> None:
        """`waiting_inputs`: which input each edge feeds, if event time of each input waits for the others.

        `event_time_of`: the edge that stands for all whose event time begins in the same place.
        """
        given = list(channels)
        self._channels: dict[ChannelId, _Channel] = {}
        for channel, recovered in given:
            queue = deque(recovered.elements)
            self._channels[channel] = _Channel(
                ReceiveWindow(window_bytes),
                window_bytes,
                queue,
                recovered.next_sequence,
                queued_bytes=sum(arrived.size_bytes for arrived in queue),
            )
        self._barriers = GateBarriers(
            ((channel, state.next_sequence, state.position()) for channel, state in self._channels.items()),
            guarantee=guarantee,
        )
        self._watermarks = _watermarks(self._channels, waiting_inputs, watermarks, event_time_of)
        self._debloat = debloat
        # How fast the gate is emptied while there is input, whoever it is that holds the task up meanwhile.
        self._drain = DrainRate()
        self._input_since_ms: float | None = None  # from when on time counts that has not been counted yet
        self._slice_bytes = 0.0
        self._phases = RecoveryPhases(
            (channel, self._channels[channel].position(), recovered.phases, recovered.next_sequence)
            for channel, recovered in given
        )
        self._captures: dict[CheckpointId, dict[ChannelId, _OpenCapture]] = {}
        # Every channel that has a head is in exactly one of these, so that a step costs the same at any width.
        self._turn: deque[ChannelId] = deque()  # rows
        self._markers: dict[ChannelId, None] = {}  # in order, as in `_held_back`
        self._held_back: dict[ChannelId, None] = {}  # not to be consumed until something happens
        self.grants: list[Grant] = []
        self.watermark_actions: list[WatermarkAction] = []
        for channel, state in self._channels.items():
            self._line_up(channel, state)

    # -- events

    def on_arrival(self, channel: ChannelId, arrived: Arrived, now_ms: float) -> list[GateResult]:
        state = self._channels[channel]
        # Queued before the machine hears of it: a snapshot that this very arrival sets off must see it in flight.
        state.queue.append(arrived)
        if len(state.queue) == 1:
            self._line_up(channel, state)
        if self._input_since_ms is None and self._turn:
            self._input_since_ms = now_ms
        state.next_sequence = Sequence(arrived.sequence + 1)
        state.queued_bytes += arrived.size_bytes
        return self._perform(self._barriers.on_arrival(channel, arrived.sequence, now_ms=now_ms), arrived)

    def on_barrier(
        self,
        channel: ChannelId,
        checkpoint: CheckpointId,
        *,
        before: Sequence,
        age_ms: float,
        switch_after_ms: float | None,
        now_ms: float,
    ) -> list[GateResult]:
        actions = self._barriers.on_barrier(
            channel, checkpoint, before=before, age_ms=age_ms, switch_after_ms=switch_after_ms, now_ms=now_ms
        )
        return self._perform(actions)

    def on_cut(self, channel: ChannelId, checkpoint: CheckpointId, cut: Cut, now_ms: float) -> list[GateResult]:
        actions = self._barriers.on_cut(channel, checkpoint, cut, now_ms=now_ms)
        # What was sent after the cut waited for it.
        self._release([channel])
        return self._perform(actions)

    def on_finished(self, channel: ChannelId, now_ms: float) -> list[GateResult]:
        return self._perform(self._barriers.on_finished(channel, now_ms=now_ms))

    def on_triggered(
        self, checkpoint: CheckpointId, *, age_ms: float, switch_after_ms: float | None, now_ms: float
    ) -> list[GateResult]:
        return self._perform(
            self._barriers.on_triggered(checkpoint, age_ms=age_ms, switch_after_ms=switch_after_ms, now_ms=now_ms)
        )

    def on_time(self, now_ms: float, *, storage: StorageSpeed) -> list[GateResult]:
        results = self._perform(self._barriers.on_time(now_ms))
        if switchable := self._barriers.switchable():
            self._note_drained(0, now_ms)
            for checkpoint, switch_at_ms in switchable:
                if should_switch_now(
                    queued_bytes=self._bytes_before(checkpoint),
                    drain_bytes_per_ms=self._drain.bytes_per_ms,
                    storage=storage,
                    left_ms=switch_at_ms - now_ms,
                ):
                    results += self._perform(self._barriers.switch_now(checkpoint, now_ms=now_ms))
        if self._debloat is not None and now_ms >= self._debloat.next_deadline_ms():
            self._note_drained(0, now_ms)
            self._resize(self._debloat, now_ms)
        return results

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._perform(self._barriers.on_abort(checkpoint))
        self._release(list(self._held_back))

    # -- consumption

    def next_slice(self, max_rows: int) -> Slice | None:
        """Up to `max_rows` rows of the next channel in turn that may be consumed; nothing is consumed yet."""
        channel = self._next_consumable()
        if channel is None:
            return None
        state = self._channels[channel]
        head = state.queue[0].element
        assert isinstance(head, Batch), "markers are consumed by skip_markers"
        self.watermark_actions += self._watermarks.on_rows(channel)
        return Slice(channel, head.rows.slice(state.rows_done, max_rows))

    def consumed(self, consumed: Slice, now_ms: float, *, elapsed_ms: float) -> list[GateResult]:
        """The slice is processed: only now does the position move past it."""
        state = self._channels[consumed.channel]
        arrived = state.queue[0]
        head = arrived.element
        assert isinstance(head, Batch)
        size_bytes = arrived.size_bytes * consumed.rows.num_rows // head.rows.num_rows
        self._slice_bytes += (size_bytes - self._slice_bytes) * _SLICE_WEIGHT
        if self._debloat is not None:
            self._debloat.on_consumed(consumed.channel, size_bytes)
        state.rows_done += consumed.rows.num_rows
        assert self._turn[0] == consumed.channel, "the slice is of the channel whose turn it is"
        self._turn.popleft()
        results: list[GateResult] = []
        if state.rows_done < head.rows.num_rows:
            self._line_up(consumed.channel, state)
        else:
            results = self._pop_head(consumed.channel, state, now_ms)
        self._note_drained(size_bytes, now_ms, least_ms=elapsed_ms)
        return results

    def skip_markers(self, now_ms: float) -> list[GateResult]:
        """Consume watermarks, end marks and empty batches at the heads, as far as they may be.

        Stops at the first one that sets something off: what stands behind a barrier must not enter the snapshot.
        """
        for channel in list(self._markers):
            state = self._channels[channel]
            while channel in self._markers:
                del self._markers[channel]
                if not self._may_consume(channel, state.queue[0]):
                    self._held_back[channel] = None
                    break
                # Before the position moves past it, because the snapshot that this may set off holds what it says.
                self._note_marker(channel, state, state.queue[0].element)
                if results := self._pop_head(channel, state, now_ms):
                    return results
        return []

    # -- questions

    def has_ended(self) -> bool:
        return all(state.has_ended for state in self._channels.values())

    def is_empty(self) -> bool:
        return not (self._turn or self._markers or self._held_back)

    def queued_bytes(self) -> int:
        return sum(state.queued_bytes for state in self._channels.values())

    def window_bytes(self) -> int:
        """What all its channels together may have in flight."""
        return sum(state.window_bytes for state in self._channels.values())

    def bytes_before(self, checkpoint: CheckpointId) -> int:
        return self._bytes_before(checkpoint)

    def missing_barriers(self, checkpoint: CheckpointId) -> list[ChannelId]:
        """Some of the channels whose barrier has not come, once any has."""
        ahead = self._barriers.barriers_ahead(checkpoint).items()
        return sorted(channel for channel, before in ahead if before is None)[:_MISSING_SHOWN]

    @property
    def drain_bytes_per_ms(self) -> float | None:
        return self._drain.bytes_per_ms

    def next_deadline_ms(self) -> float | None:
        return self._barriers.next_deadline_ms()

    @property
    def watermark_ms(self) -> int:
        return self._watermarks.current_ms

    def is_idle(self) -> bool:
        return self._watermarks.is_idle

    def channel_watermarks(self) -> dict[ChannelId, ChannelWatermark]:
        return self._watermarks.snapshot()

    # -- inside

    def _note_drained(self, size_bytes: int, now_ms: float, *, least_ms: float = 0.0) -> None:
        """Time counts while rows wait that may be consumed: in work, behind other tasks or for room in the output."""
        since_ms = self._input_since_ms
        elapsed_ms = max(least_ms, 0.0 if since_ms is None else now_ms - since_ms)
        if size_bytes or elapsed_ms:
            self._drain.on_consumed(size_bytes, elapsed_ms)
        self._input_since_ms = now_ms if self._turn else None

    def _resize(self, debloat: Debloat, now_ms: float) -> None:
        drain = self._drain.bytes_per_ms
        for change in debloat.on_time(now_ms, drain_bytes_per_ms=drain, slice_bytes=int(self._slice_bytes)):
            state = self._channels[change.channel]
            state.window_bytes = change.window_bytes
            state.window.resize(change.window_bytes)
            self.grants.append(Grant(change.channel, state.position(), change.window_bytes))

    @staticmethod
    def _is_marker(element: NumberedElement) -> bool:
        return not isinstance(element, Batch) or element.rows.num_rows == 0

    def _note_marker(self, channel: ChannelId, state: _Channel, element: NumberedElement) -> None:
        match element:
            case Watermark(event_time_ms):
                self.watermark_actions += self._watermarks.on_watermark(channel, event_time_ms)
            case Idle():
                self.watermark_actions += self._watermarks.on_idle(channel)
            case EndOfInput():
                state.has_ended = True
                self.watermark_actions += self._watermarks.on_end(channel)
            case Batch():
                return

    def _may_consume(self, channel: ChannelId, head: Arrived) -> bool:
        return self._phases.may_consume(channel) and self._barriers.may_consume(channel, epoch=head.epoch)

    def _bytes_before(self, checkpoint: CheckpointId) -> int:
        """What has to be processed before the checkpoint is aligned."""
        ahead = self._barriers.barriers_ahead(checkpoint).items()
        return sum(_bytes_before(self._channels[channel], before) for channel, before in ahead)

    def _next_consumable(self) -> ChannelId | None:
        while self._turn:
            channel = self._turn[0]
            if self._may_consume(channel, self._channels[channel].queue[0]):
                return channel
            self._held_back[self._turn.popleft()] = None
        return None

    def _line_up(self, channel: ChannelId, state: _Channel) -> None:
        if not state.queue:
            return
        if self._is_marker(state.queue[0].element):
            self._markers[channel] = None
        else:
            self._turn.append(channel)

    def _release(self, channels: Iterable[ChannelId]) -> None:
        """Something happened that may let these be consumed again."""
        for channel in channels:
            if channel in self._held_back:
                del self._held_back[channel]
                self._line_up(channel, self._channels[channel])

    def _pop_head(self, channel: ChannelId, state: _Channel, now_ms: float) -> list[GateResult]:
        head = state.queue.popleft()
        state.rows_done = 0
        state.queued_bytes -= head.size_bytes
        self._line_up(channel, state)
        if self._phases.on_consumed(channel, state.position()):
            self._release(list(self._held_back))
        if state.window.is_grant_due(head.size_bytes, channel_is_empty=not state.queue, now_ms=now_ms):
            self.grants.append(Grant(channel, state.position(), state.window_bytes))
        return self._perform(self._barriers.on_consumed(channel, state.position(), now_ms=now_ms))

    def _perform(self, actions: list[GateAction], arrived: Arrived | None = None) -> list[GateResult]:
        results: list[GateResult] = []
        for action in actions:
            match action:
                case TakeSnapshot(checkpoint, kind):
                    if kind is not CheckpointKind.ALIGNED:
                        self._captures[checkpoint] = {
                            channel: self._open_capture(channel, state) for channel, state in self._channels.items()
                        }
                    self._release(list(self._held_back))
                    results.append(action)
                case CaptureArrival(checkpoint, channel):
                    assert arrived is not None
                    self._captures[checkpoint][channel].elements.append(_captured(arrived))
                case TrimCapture(checkpoint, channel, sequence):
                    capture = self._captures[checkpoint][channel]
                    capture.elements = [element for element in capture.elements if element.sequence < sequence]
                case CloseCapture(checkpoint, cuts):
                    results.append(self._close_capture(checkpoint, dict(cuts)))
                case DropCapture(checkpoint):
                    self._captures.pop(checkpoint, None)
        return results

    def _open_capture(self, channel: ChannelId, state: _Channel) -> _OpenCapture:
        elements = [_captured(arrived) for arrived in state.queue]
        phases = self._phases.left(channel)
        if not elements:
            return _OpenCapture(state.position(), 0, phases, elements)
        # The half-done batch is split: its processed rows are in the state, the rest is in flight.
        head = state.queue[0]
        elements[0] = _captured(head, done_rows=state.rows_done)
        return _OpenCapture(state.position(), head.first_row + state.rows_done, phases, elements)

    def _close_capture(self, checkpoint: CheckpointId, cuts: dict[ChannelId, Cut]) -> ClosedCapture:
        captures = []
        for channel, capture in self._captures.pop(checkpoint, {}).items():
            cut = cuts.get(channel)
            if cut is None or capture.first == cut.before:
                continue  # its sender has finished, or nothing of this channel was in flight
            position = ReceiverRange(
                channel=channel,
                first=capture.first,
                row=capture.row,
                held_from=cut.held_from,
                before=cut.before,
                phases=capture.phases,
            )
            captures.append(ReceivedCapture(position, tuple(capture.elements)))
        return ClosedCapture(checkpoint, tuple(captures))


def _watermarks(
    channels: Iterable[ChannelId],
    waiting_inputs: Mapping[EdgeId, int] | None,
    recovered: RecoveredWatermarks,
    event_time_of: Mapping[EdgeId, EdgeId],
) -> GateWatermarks | InputWatermarks:
    stored, current_ms = recovered.channels, recovered.current_ms
    if waiting_inputs is None:
        return GateWatermarks(channels, restored=stored, current_ms=current_ms, event_time_of=event_time_of)
    return InputWatermarks(
        channels, waiting_inputs, restored=stored, current_ms=current_ms, event_time_of=event_time_of
    )


def _bytes_before(state: _Channel, before: Sequence | None) -> int:
    """What is not here yet, at the sender or on its way, is taken to be like what is."""
    queue = state.queue
    if not queue:
        return 0
    if before is None:
        return state.queued_bytes
    missing = max(0, before - state.next_sequence)
    here_bytes = sum(arrived.size_bytes for arrived in queue if arrived.sequence < before)
    return here_bytes + missing * state.queued_bytes // len(queue)


def _captured(arrived: Arrived, *, done_rows: int = 0) -> CapturedElement:
    return CapturedElement(arrived.sequence, arrived.element, arrived.first_row, done_rows)


def element_bytes(element: NumberedElement) -> int:
    match element:
        case Batch(rows):
            return int(rows.nbytes)
        case Watermark() | Idle() | EndOfInput():
            return 0
