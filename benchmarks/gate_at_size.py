"""One checkpoint through a gate of as many channels as asked for: the barrier machine alone, and the gate with rows.

Each function drives production code event by event, as a slot does, and gives how many channels the checkpoint closed
over or how many events there were. Never measures anything itself.
"""

from collections.abc import Iterable

import pyarrow as pa

from tidegate.model.elements import Batch, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import CloseCapture, Cut, GateAction, GateBarriers, TakeSnapshot
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import UNKNOWN_SPEED
from tidegate.protocol.watermarks import Advance, GateWatermarks
from tidegate.protocol.windows import SendWindow
from tidegate.worker.gate import Arrived, ClosedCapture, Gate, GateResult, RecoveredChannel, element_bytes

CHECKPOINT = CheckpointId(1)
BEFORE_ALL = CheckpointId(0)
SWITCH_AT_MS = 100.0
_WINDOW_BYTES = 1 << 20
_ROWS = Batch(pa.record_batch([pa.array([1, 2, 3, 4], pa.int64())], names=["v"]))
_SWITCH_AFTER_MS = {
    CheckpointKind.ALIGNED: None,
    CheckpointKind.UNALIGNED: 0.0,
    CheckpointKind.SWITCHED: SWITCH_AT_MS,
}


def channels_of(count: int) -> list[ChannelId]:
    return [ChannelId(EdgeId(0), sender, 0) for sender in range(count)]


# -- the barrier machine alone


def barrier_machine(count: int) -> GateBarriers:
    return GateBarriers([(channel, Sequence(0), Sequence(0)) for channel in channels_of(count)])


def pass_machine(machine: GateBarriers, count: int, kind: CheckpointKind) -> int:
    """Elements 0 and 1 stand before the barrier; unless aligned, 1 comes behind it and the sender still holds 2."""
    channels = channels_of(count)
    before = Sequence(2 if kind is CheckpointKind.ALIGNED else 3)
    actions: list[GateAction] = []
    for channel in channels:
        actions += machine.on_arrival(channel, Sequence(0), now_ms=0.0)
        if kind is CheckpointKind.ALIGNED:
            actions += machine.on_arrival(channel, Sequence(1), now_ms=0.0)
    for channel in channels:
        actions += machine.on_barrier(
            channel, CHECKPOINT, before=before, age_ms=0.0, switch_after_ms=_SWITCH_AFTER_MS[kind], now_ms=0.0
        )
    if kind is CheckpointKind.SWITCHED:
        actions += machine.on_time(SWITCH_AT_MS)
    for channel in channels:
        if kind is not CheckpointKind.ALIGNED:
            actions += machine.on_arrival(channel, Sequence(1), now_ms=SWITCH_AT_MS)
        actions += machine.on_cut(channel, CHECKPOINT, Cut(Sequence(2), before), now_ms=SWITCH_AT_MS)
    if kind is CheckpointKind.ALIGNED:
        for consumed in (Sequence(1), Sequence(2)):
            for channel in channels:
                actions += machine.on_consumed(channel, consumed, now_ms=SWITCH_AT_MS)
    taken = [action.kind for action in actions if isinstance(action, TakeSnapshot)]
    assert taken == [kind], f"the checkpoint was to be {kind.value}, taken were {taken}"
    closed = [action for action in actions if isinstance(action, CloseCapture)]
    return sum(len(close.cuts) for close in closed)


# -- the gate with rows


def gate(count: int) -> Gate:
    return Gate([(c, RecoveredChannel((), Sequence(0))) for c in channels_of(count)], window_bytes=_WINDOW_BYTES)


def pass_gate(gate: Gate, count: int, kind: CheckpointKind) -> int:
    """Rows, a watermark and rows before the barrier; an aligned one holds back what stands behind it."""
    channels = channels_of(count)
    _arrive(gate, channels, [(0, _ROWS), (1, Watermark(1))], BEFORE_ALL)
    results: list[GateResult] = []
    before = Sequence(3 if kind is CheckpointKind.ALIGNED else 4)
    if kind is CheckpointKind.ALIGNED:
        _arrive(gate, channels, [(2, _ROWS)], BEFORE_ALL)
    for channel in channels:
        results += gate.on_barrier(
            channel, CHECKPOINT, before=before, age_ms=0.0, switch_after_ms=_SWITCH_AFTER_MS[kind], now_ms=0.0
        )
    if kind is CheckpointKind.SWITCHED:
        results += gate.on_time(SWITCH_AT_MS, storage=UNKNOWN_SPEED)
    if kind is not CheckpointKind.ALIGNED:
        results += _arrive(gate, channels, [(2, _ROWS)], BEFORE_ALL)
    for channel in channels:
        results += gate.on_cut(channel, CHECKPOINT, Cut(Sequence(3), before), SWITCH_AT_MS)
    if kind is CheckpointKind.ALIGNED:
        # Half of them watermarks: both kinds of head must be cheap to pass over while they are held back.
        results += _arrive(gate, channels[::2], [(3, _ROWS)], CHECKPOINT)
        results += _arrive(gate, channels[1::2], [(3, Watermark(2))], CHECKPOINT)
        while not any(isinstance(result, ClosedCapture) for result in results):
            results += _step(gate)
    taken = [result.kind for result in results if isinstance(result, TakeSnapshot)]
    assert taken == [kind], f"the checkpoint was to be {kind.value}, taken were {taken}"
    captures = [capture for result in results if isinstance(result, ClosedCapture) for capture in result.captures]
    return sum(len(capture.elements) for capture in captures)


def steps_of_one_busy_channel(gate: Gate, count: int, *, steps: int) -> int:
    """The other channels are empty, as most of a wide shuffle are between two flushes."""
    busy = channels_of(count)[-1]
    for sequence in range(steps):
        _arrive(gate, [busy], [(sequence, _ROWS)], BEFORE_ALL)
        _step(gate)
    assert gate.is_empty()
    return steps


def _arrive(
    gate: Gate, channels: Iterable[ChannelId], elements: list[tuple[int, NumberedElement]], epoch: CheckpointId
) -> list[GateResult]:
    results: list[GateResult] = []
    for channel in channels:
        for sequence, element in elements:
            arrived = Arrived(Sequence(sequence), epoch, element, element_bytes(element))
            results += gate.on_arrival(channel, arrived, 0.0)
    return results


def _step(gate: Gate) -> list[GateResult]:
    """What a task does with its gate in one step."""
    results = gate.skip_markers(0.0)
    if results:
        return results
    piece = gate.next_slice(1000)
    if piece is None:
        assert not gate.is_empty(), "the checkpoint never closed"
        return []
    gate.grants.clear()
    gate.watermark_actions.clear()
    return gate.consumed(piece, 0.0, elapsed_ms=0.1)


# -- event time and flow control


def pass_watermarks(count: int, *, rounds: int) -> int:
    """Every channel advances in turn: the gate's watermark follows once per round."""
    channels = channels_of(count)
    watermarks = GateWatermarks(channels)
    actions = [
        action
        for event_time_ms in range(rounds)
        for channel in channels
        for action in watermarks.on_watermark(channel, event_time_ms)
    ]
    assert actions == [Advance(event_time_ms) for event_time_ms in range(rounds)]
    return rounds * count


def pass_window(elements: int, *, in_flight: int) -> int:
    """As many elements in flight as given, then each one sent is granted when it is that far behind."""
    window = SendWindow(in_flight)
    for sequence in range(elements):
        window.spend(Sequence(sequence), 1)
        window.granted(Sequence(sequence - in_flight + 1))
    assert window.in_flight_bytes == min(elements, in_flight)
    return elements
