"""The machine of one gate's barriers with plain numbers, and its actions in a word each."""

from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import (
    CaptureArrival,
    CloseCapture,
    Cut,
    GateAction,
    GateBarriers,
    TakeSnapshot,
    TrimCapture,
)
from tidegate.protocol.kinds import CheckpointKind, Guarantee

A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)
ALIGNED, UNALIGNED, SWITCHED = CheckpointKind.ALIGNED, CheckpointKind.UNALIGNED, CheckpointKind.SWITCHED


class Gate:
    """The machine with plain numbers; time stands still unless a test moves it.

    Every checkpoint has the gate's `switch_after_ms` unless a barrier says otherwise.
    """

    def __init__(
        self,
        switch_after_ms: float | None,
        channels: tuple[ChannelId, ...] = (A, B),
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        start = Sequence(0)
        self.machine = GateBarriers([(c, start, start) for c in channels], guarantee=guarantee)
        self.switch_after_ms = switch_after_ms
        self.now_ms = 0.0

    def barrier(self, channel: ChannelId, checkpoint: int, before: int, age_ms: float = 0.0) -> list[GateAction]:
        return self.barrier_of(self.switch_after_ms, channel, checkpoint, before, age_ms)

    def barrier_of(
        self, switch_after_ms: float | None, channel: ChannelId, checkpoint: int, before: int, age_ms: float = 0.0
    ) -> list[GateAction]:
        return self.machine.on_barrier(
            channel,
            CheckpointId(checkpoint),
            before=Sequence(before),
            age_ms=age_ms,
            switch_after_ms=switch_after_ms,
            now_ms=self.now_ms,
        )

    def trigger(self, checkpoint: int, age_ms: float = 0.0) -> list[GateAction]:
        return self.machine.on_triggered(
            CheckpointId(checkpoint), age_ms=age_ms, switch_after_ms=self.switch_after_ms, now_ms=self.now_ms
        )

    def finish(self, channel: ChannelId) -> list[GateAction]:
        return self.machine.on_finished(channel, now_ms=self.now_ms)

    def switch_now(self, checkpoint: int) -> list[GateAction]:
        return self.machine.switch_now(CheckpointId(checkpoint), now_ms=self.now_ms)

    def cut(self, channel: ChannelId, checkpoint: int, held_from: int, before: int) -> list[GateAction]:
        return self.machine.on_cut(channel, CheckpointId(checkpoint), cut(held_from, before), now_ms=self.now_ms)

    def arrive(self, channel: ChannelId, sequence: int) -> list[GateAction]:
        return self.machine.on_arrival(channel, Sequence(sequence), now_ms=self.now_ms)

    def consume(self, channel: ChannelId, consumed: int) -> list[GateAction]:
        return self.machine.on_consumed(channel, Sequence(consumed), now_ms=self.now_ms)

    def at(self, now_ms: float) -> list[GateAction]:
        self.now_ms = now_ms
        return self.machine.on_time(now_ms)

    def abort(self, checkpoint: int) -> list[GateAction]:
        return self.machine.on_abort(CheckpointId(checkpoint))

    def may_consume(self, channel: ChannelId, epoch: int = 0) -> bool:
        return self.machine.may_consume(channel, epoch=CheckpointId(epoch))


def cut(held_from: int, before: int) -> Cut:
    return Cut(Sequence(held_from), Sequence(before))


def take(
    checkpoint: int, kind: CheckpointKind, age_ms: float = 0.0, *, switch_after_ms: float | None = None
) -> TakeSnapshot:
    return TakeSnapshot(CheckpointId(checkpoint), kind, age_ms, switch_after_ms)


def close(checkpoint: int, *cuts: tuple[ChannelId, Cut]) -> CloseCapture:
    return CloseCapture(CheckpointId(checkpoint), cuts)


def capture(checkpoint: int, channel: ChannelId) -> CaptureArrival:
    return CaptureArrival(CheckpointId(checkpoint), channel)


def trim(checkpoint: int, channel: ChannelId, sequence: int) -> TrimCapture:
    return TrimCapture(CheckpointId(checkpoint), channel, Sequence(sequence))
