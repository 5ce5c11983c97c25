"""The receiving side of barriers: one machine per gate, for every mode and any number of checkpoints at once.

`switch_after_ms` is the one parameter: None stays aligned, 0 is unaligned at once, more starts aligned and switches.

Two facts reach the gate per channel and checkpoint, on the control connection:
the barrier says N, the sequence number it stands before; the cut says H, the first element below N that the sender
still held when it captured. The sender stores [H, N), this side what it has not processed below H. Elements handed to
the wire after a cut carry the checkpoint's id as their epoch, and are not consumed before that cut is known: a
connection of its own may bring the cut later than the data, and an element at or above H that is processed
before the snapshot would be counted twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import ChannelId, CheckpointId, Sequence
from tidegate.protocol.kinds import CheckpointKind


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Snapshot the task now and forward the barrier; unless aligned, start to capture every channel."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    age_ms: float


@dataclass(frozen=True, slots=True)
class CaptureArrival:
    """The element that just arrived belongs to this checkpoint's capture too."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class TrimCapture:
    """Drop what is at or above `sequence` from the capture: the sender stores it, or it is behind the barrier."""

    checkpoint: CheckpointId
    channel: ChannelId
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class CloseCapture:
    """Everything this gate contributes to the checkpoint is here."""

    checkpoint: CheckpointId
    cuts: "tuple[tuple[ChannelId, Cut], ...]"


@dataclass(frozen=True, slots=True)
class DropCapture:
    """The checkpoint was aborted: forget its capture."""

    checkpoint: CheckpointId


GateAction: TypeAlias = TakeSnapshot | CaptureArrival | TrimCapture | CloseCapture | DropCapture


@dataclass(frozen=True, slots=True)
class Cut:
    """Who stores what below the barrier: the sender [held_from, before), the receiver the rest."""

    held_from: Sequence
    before: Sequence


@dataclass(slots=True)
class _Active:
    """One checkpoint between its first barrier here and the close of its capture."""

    kind: CheckpointKind
    triggered_at_ms: float
    switch_at_ms: float | None
    snapshot_taken: bool = False
    before: dict[ChannelId, Sequence] = field(default_factory=dict)
    cuts: dict[ChannelId, Cut] = field(default_factory=dict)

    @property
    def is_capturing(self) -> bool:
        return self.snapshot_taken and self.kind is not CheckpointKind.ALIGNED


@dataclass(slots=True)
class _Channel:
    arrived: Sequence  # the next sequence number to arrive
    consumed: Sequence  # everything below is fully processed
    newest_cut: CheckpointId


class GateBarriers:
    def __init__(
        self,
        channels: Iterable[tuple[ChannelId, Sequence, Sequence]],
        *,
        switch_after_ms: float | None,
    ) -> None:
        """`channels`: each with the next sequence number to arrive and the next one to consume."""
        self._switch_after_ms = switch_after_ms
        self._channels = {
            channel: _Channel(arrived, consumed, CheckpointId(0)) for channel, arrived, consumed in channels
        }
        self._active: dict[CheckpointId, _Active] = {}
        self._newest_seen = CheckpointId(0)
        self._aborted_ahead: set[CheckpointId] = set()

    # -- events

    def on_barrier(
        self, channel: ChannelId, checkpoint: CheckpointId, *, before: Sequence, age_ms: float, now_ms: float
    ) -> list[GateAction]:
        active = self._open(checkpoint, age_ms=age_ms, now_ms=now_ms)
        if active is None:
            return []
        active.before[channel] = before
        return self._trim(checkpoint, active, channel) + self._settle(now_ms)

    def on_cut(self, channel: ChannelId, checkpoint: CheckpointId, cut: Cut, *, now_ms: float) -> list[GateAction]:
        state = self._channels[channel]
        state.newest_cut = max(state.newest_cut, checkpoint)
        active = self._active.get(checkpoint)
        if active is None:
            return []
        if active.before.get(channel) != cut.before:
            raise ProtocolViolation(f"Cut of checkpoint {checkpoint} on {channel} names {cut.before}, not its barrier.")
        active.cuts[channel] = cut
        return self._trim(checkpoint, active, channel) + self._settle(now_ms)

    def on_arrival(self, channel: ChannelId, sequence: Sequence, *, now_ms: float) -> list[GateAction]:
        state = self._channels[channel]
        if sequence != state.arrived:
            raise ProtocolViolation(f"Element {sequence} arrived on {channel}, expected {state.arrived}.")
        state.arrived = Sequence(sequence + 1)
        if not self._active:
            return []
        captures: list[GateAction] = [
            CaptureArrival(checkpoint, channel)
            for checkpoint, active in self._active.items()
            if active.is_capturing and sequence < self._capture_end(active, channel)
        ]
        return captures + self._settle(now_ms)

    def on_consumed(self, channel: ChannelId, consumed: Sequence, *, now_ms: float) -> list[GateAction]:
        """Everything below `consumed` is fully processed."""
        self._channels[channel].consumed = consumed
        return self._settle(now_ms) if self._active else []

    def on_time(self, now_ms: float) -> list[GateAction]:
        return self._settle(now_ms) if self._active else []

    def on_abort(self, checkpoint: CheckpointId) -> list[GateAction]:
        if checkpoint > self._newest_seen:
            self._aborted_ahead.add(checkpoint)
        if self._active.pop(checkpoint, None) is None:
            return []
        return [DropCapture(checkpoint)]

    # -- questions

    def may_consume(self, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        """Whether the channel's next element, sent in `epoch`, may be processed now."""
        state = self._channels[channel]
        if epoch > state.newest_cut:
            return False
        # Blocked until all barriers arrived: a later batch must not enter this snapshot.
        return not any(
            not active.snapshot_taken and active.before.get(channel) == state.consumed
            for active in self._active.values()
        )

    def next_deadline_ms(self) -> float | None:
        deadlines = [
            a.switch_at_ms for a in self._active.values() if a.switch_at_ms is not None and not a.snapshot_taken
        ]
        return min(deadlines, default=None)

    def waiting_for(self, checkpoint: CheckpointId) -> frozenset[ChannelId]:
        """Channels whose barrier has not been reached yet; empty once the snapshot is taken."""
        active = self._active.get(checkpoint)
        if active is None or active.snapshot_taken:
            return frozenset()
        return frozenset(channel for channel in self._channels if not self._is_aligned(active, channel))

    # -- decisions

    def _open(self, checkpoint: CheckpointId, *, age_ms: float, now_ms: float) -> _Active | None:
        active = self._active.get(checkpoint)
        if active is not None:
            return active
        if checkpoint <= self._newest_seen:
            return None  # finished or aborted here: a late barrier never reopens it
        self._newest_seen = checkpoint
        was_aborted = checkpoint in self._aborted_ahead
        self._aborted_ahead = {ahead for ahead in self._aborted_ahead if ahead > checkpoint}
        if was_aborted:
            return None
        triggered_at_ms = now_ms - age_ms
        switch_at_ms = None if self._switch_after_ms is None else triggered_at_ms + self._switch_after_ms
        active = _Active(CheckpointKind.ALIGNED, triggered_at_ms, switch_at_ms)
        self._active[checkpoint] = active
        return active

    def _settle(self, now_ms: float) -> list[GateAction]:
        """Draw the consequences of what is known now, oldest checkpoint first."""
        actions: list[GateAction] = []
        newest_to_switch = max((id for id, a in self._active.items() if self._must_switch(a, now_ms)), default=None)
        for checkpoint in sorted(self._active):
            active = self._active[checkpoint]
            if not active.snapshot_taken:
                if all(self._is_aligned(active, channel) for channel in self._channels):
                    actions.append(self._take(checkpoint, active, CheckpointKind.ALIGNED, now_ms))
                elif newest_to_switch is not None and checkpoint <= newest_to_switch:
                    # An older one switches with it: its barriers stand before those that overtake now.
                    kind = CheckpointKind.UNALIGNED if self._switch_after_ms == 0 else CheckpointKind.SWITCHED
                    actions.append(self._take(checkpoint, active, kind, now_ms))
                    for channel in self._channels:
                        actions += self._trim(checkpoint, active, channel)
            if active.snapshot_taken and all(self._is_closed(active, channel) for channel in self._channels):
                del self._active[checkpoint]
                actions.append(CloseCapture(checkpoint, tuple(active.cuts.items())))
        return actions

    @staticmethod
    def _must_switch(active: _Active, now_ms: float) -> bool:
        if active.snapshot_taken:
            return False
        if active.switch_at_ms is not None and active.switch_at_ms <= now_ms:
            return True
        # The sender has captured: this side must not process what it captured into its own snapshot.
        return any(cut.held_from < cut.before for cut in active.cuts.values())

    @staticmethod
    def _take(checkpoint: CheckpointId, active: _Active, kind: CheckpointKind, now_ms: float) -> TakeSnapshot:
        active.kind = kind
        active.snapshot_taken = True
        return TakeSnapshot(checkpoint, kind, age_ms=now_ms - active.triggered_at_ms)

    def _trim(self, checkpoint: CheckpointId, active: _Active, channel: ChannelId) -> list[GateAction]:
        end = self._capture_end(active, channel)
        if not active.is_capturing or end == float("inf"):
            return []
        return [TrimCapture(checkpoint, channel, Sequence(int(end)))]

    def _is_aligned(self, active: _Active, channel: ChannelId) -> bool:
        cut = active.cuts.get(channel)
        return cut is not None and cut.held_from == cut.before and self._channels[channel].consumed >= cut.before

    def _is_closed(self, active: _Active, channel: ChannelId) -> bool:
        cut = active.cuts.get(channel)
        return cut is not None and self._channels[channel].arrived >= cut.held_from

    @staticmethod
    def _capture_end(active: _Active, channel: ChannelId) -> float:
        cut = active.cuts.get(channel)
        if cut is not None:
            return cut.held_from
        return active.before.get(channel, float("inf"))
