"""The receiving side of barriers: one machine per gate, for every mode and any number of checkpoints at once.

`switch_after_ms` is the one parameter of a checkpoint, carried by its barriers: None stays aligned, 0 is unaligned at
once, more starts aligned and switches when that time has passed, or sooner when `switch_now` says that waiting is dear.

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
from tidegate.protocol.kinds import CheckpointKind, Guarantee

# A barrier that comes behind the abort of its checkpoint is recognised within so many of the newest abort.
_REMEMBERED_ABORTS = 1000


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Snapshot the task now and forward the barrier; unless aligned, start to capture every channel."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    age_ms: float
    switch_after_ms: float | None = None


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
    """One checkpoint between its first barrier here and the close of its capture.

    `unaligned` and `unclosed` are the channels that it still waits for; both only shrink.
    """

    kind: CheckpointKind
    triggered_at_ms: float
    switch_after_ms: float | None
    switch_at_ms: float | None
    unaligned: set[ChannelId]
    unclosed: set[ChannelId]
    snapshot_taken: bool = False
    sender_has_captured: bool = False
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


@dataclass(frozen=True, slots=True)
class _Triggered:
    triggered_at_ms: float
    switch_after_ms: float | None


class GateBarriers:
    def __init__(
        self,
        channels: Iterable[tuple[ChannelId, Sequence, Sequence]],
        *,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        """`channels`: each with the next sequence number to arrive and the next one to consume."""
        self._guarantee = guarantee
        self._channels = {
            channel: _Channel(arrived, consumed, CheckpointId(0)) for channel, arrived, consumed in channels
        }
        self._live = set(self._channels)
        self._active: dict[CheckpointId, _Active] = {}
        self._triggered: dict[CheckpointId, _Triggered] = {}
        self._newest_seen = CheckpointId(0)
        self._aborted_ahead: set[CheckpointId] = set()

    # -- events

    def on_barrier(
        self,
        channel: ChannelId,
        checkpoint: CheckpointId,
        *,
        before: Sequence,
        age_ms: float,
        switch_after_ms: float | None,
        now_ms: float,
    ) -> list[GateAction]:
        if self._guarantee is Guarantee.AT_LEAST_ONCE and switch_after_ms is not None:
            raise ProtocolViolation(f"Checkpoint {checkpoint} may switch, but at-least-once checkpoints are aligned.")
        active = self._open(checkpoint, triggered_at_ms=now_ms - age_ms, switch_after_ms=switch_after_ms)
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
        active.sender_has_captured |= cut.held_from < cut.before
        self._look_at(channel, active)
        return self._trim(checkpoint, active, channel) + self._settle(now_ms)

    def on_arrival(self, channel: ChannelId, sequence: Sequence, *, now_ms: float) -> list[GateAction]:
        state = self._channels[channel]
        if sequence != state.arrived:
            raise ProtocolViolation(f"Element {sequence} arrived on {channel}, expected {state.arrived}.")
        state.arrived = Sequence(sequence + 1)
        if not self._active:
            return []
        captures: list[GateAction] = []
        for checkpoint, active in self._active.items():
            if active.is_capturing and sequence < self._capture_end(active, channel):
                captures.append(CaptureArrival(checkpoint, channel))
            self._look_at(channel, active)
        return captures + self._settle(now_ms)

    def on_consumed(self, channel: ChannelId, consumed: Sequence, *, now_ms: float) -> list[GateAction]:
        """Everything below `consumed` is fully processed."""
        self._channels[channel].consumed = consumed
        if not self._active:
            return []
        for active in self._active.values():
            self._look_at(channel, active)
        return self._settle(now_ms)

    def on_finished(self, channel: ChannelId, *, now_ms: float) -> list[GateAction]:
        """Its sender has ended, all it sent is processed, and it takes part in no further checkpoint.

        From now on the end of the channel counts as its barrier.
        """
        self._live.discard(channel)
        end = self._channels[channel].arrived
        for active in self._active.values():
            if channel not in active.before:
                # A snapshot that was taken meanwhile has captured what was in flight then: it is kept.
                active.before[channel] = end
                active.cuts[channel] = Cut(held_from=end, before=end)
                self._look_at(channel, active)
        self._open_triggered()
        return self._settle(now_ms)

    def on_triggered(
        self, checkpoint: CheckpointId, *, age_ms: float, switch_after_ms: float | None, now_ms: float
    ) -> list[GateAction]:
        """The coordinator's word that it has started: what makes up for barriers when every sender has finished."""
        if checkpoint > self._newest_seen:
            self._triggered[checkpoint] = _Triggered(now_ms - age_ms, switch_after_ms)
        self._open_triggered()
        return self._settle(now_ms)

    def on_time(self, now_ms: float) -> list[GateAction]:
        return self._settle(now_ms) if self._active else []

    def switch_now(self, checkpoint: CheckpointId, *, now_ms: float) -> list[GateAction]:
        """Waiting longer costs more than capturing: as if its time had passed."""
        active = self._active.get(checkpoint)
        if active is None or active.switch_at_ms is None:
            return []
        active.switch_at_ms = min(active.switch_at_ms, now_ms)
        return self._settle(now_ms)

    def on_abort(self, checkpoint: CheckpointId) -> list[GateAction]:
        self._triggered.pop(checkpoint, None)
        if checkpoint > self._newest_seen:
            # Only the newest ones: where no barrier comes any more, nothing else would make room.
            kept = {ahead for ahead in self._aborted_ahead if ahead > checkpoint - _REMEMBERED_ABORTS}
            self._aborted_ahead = kept | {checkpoint}
        if self._active.pop(checkpoint, None) is None:
            return []
        return [DropCapture(checkpoint)]

    # -- questions

    def may_consume(self, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        """Whether the channel's next element, sent in `epoch`, may be processed now."""
        state = self._channels[channel]
        if epoch > state.newest_cut:
            return False
        if not self._active or self._guarantee is Guarantee.AT_LEAST_ONCE:
            return True
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
        return frozenset() if active is None or active.snapshot_taken else frozenset(active.unaligned)

    def barriers_ahead(self, checkpoint: CheckpointId) -> dict[ChannelId, Sequence | None]:
        """The channels it waits for, each with what its barrier stands before; None while that is not known."""
        active = self._active.get(checkpoint)
        return {channel: active.before.get(channel) for channel in self.waiting_for(checkpoint)} if active else {}

    def switchable(self) -> list[tuple[CheckpointId, float]]:
        """Checkpoints that are aligning and may still switch, each with the time at which it will."""
        return [
            (checkpoint, active.switch_at_ms)
            for checkpoint, active in self._active.items()
            if active.switch_at_ms is not None and not active.snapshot_taken
        ]

    # -- decisions

    def _open(
        self, checkpoint: CheckpointId, *, triggered_at_ms: float, switch_after_ms: float | None
    ) -> _Active | None:
        active = self._active.get(checkpoint)
        if active is not None:
            return active
        if checkpoint <= self._newest_seen:
            return None  # finished or aborted here: a late barrier never reopens it
        self._newest_seen = checkpoint
        self._triggered = {id: triggered for id, triggered in self._triggered.items() if id > checkpoint}
        was_aborted = checkpoint in self._aborted_ahead
        self._aborted_ahead = {ahead for ahead in self._aborted_ahead if ahead > checkpoint}
        if was_aborted:
            return None
        active = _Active(
            kind=CheckpointKind.ALIGNED,
            triggered_at_ms=triggered_at_ms,
            switch_after_ms=switch_after_ms,
            switch_at_ms=None if switch_after_ms is None else triggered_at_ms + switch_after_ms,
            unaligned=set(self._live),
            unclosed=set(self._live),
        )
        self._active[checkpoint] = active
        return active

    def _open_triggered(self) -> None:
        if not self._live:
            for checkpoint, triggered in sorted(self._triggered.items()):
                self._open(
                    checkpoint,
                    triggered_at_ms=triggered.triggered_at_ms,
                    switch_after_ms=triggered.switch_after_ms,
                )

    def _settle(self, now_ms: float) -> list[GateAction]:
        """Draw the consequences of what is known now, oldest checkpoint first."""
        actions: list[GateAction] = []
        newest_to_switch = max((id for id, a in self._active.items() if _must_switch(a, now_ms)), default=None)
        for checkpoint in sorted(self._active):
            active = self._active[checkpoint]
            if not active.snapshot_taken:
                if not active.unaligned:
                    actions.append(_take(checkpoint, active, CheckpointKind.ALIGNED, now_ms))
                elif newest_to_switch is not None and checkpoint <= newest_to_switch:
                    # An older one switches with it: its barriers stand before those that overtake now.
                    kind = CheckpointKind.UNALIGNED if active.switch_after_ms == 0 else CheckpointKind.SWITCHED
                    actions.append(_take(checkpoint, active, kind, now_ms))
                    for channel in self._channels:
                        actions += self._trim(checkpoint, active, channel)
            if active.snapshot_taken and not active.unclosed:
                del self._active[checkpoint]
                actions.append(CloseCapture(checkpoint, tuple(active.cuts.items())))
        return actions

    def _look_at(self, channel: ChannelId, active: _Active) -> None:
        """Whether this channel is one that the checkpoint still has to wait for."""
        cut = active.cuts.get(channel)
        if cut is None:
            return
        state = self._channels[channel]
        if cut.held_from == cut.before and state.consumed >= cut.before:
            active.unaligned.discard(channel)
        if state.arrived >= cut.held_from:
            active.unclosed.discard(channel)

    def _trim(self, checkpoint: CheckpointId, active: _Active, channel: ChannelId) -> list[GateAction]:
        end = self._capture_end(active, channel)
        if not active.is_capturing or end == float("inf"):
            return []
        return [TrimCapture(checkpoint, channel, Sequence(int(end)))]

    @staticmethod
    def _capture_end(active: _Active, channel: ChannelId) -> float:
        cut = active.cuts.get(channel)
        if cut is not None:
            return cut.held_from
        return active.before.get(channel, float("inf"))


def _must_switch(active: _Active, now_ms: float) -> bool:
    if active.snapshot_taken:
        return False
    if active.switch_at_ms is not None and active.switch_at_ms <= now_ms:
        return True
    # The sender has captured: this side must not process what it captured into its own snapshot.
    return active.sender_has_captured


def _take(checkpoint: CheckpointId, active: _Active, kind: CheckpointKind, now_ms: float) -> TakeSnapshot:
    active.kind = kind
    active.snapshot_taken = True
    age_ms = now_ms - active.triggered_at_ms
    return TakeSnapshot(checkpoint, kind, age_ms=age_ms, switch_after_ms=active.switch_after_ms)
