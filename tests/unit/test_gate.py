"""The receiving side of a task: what is consumed, granted and captured, with real rows."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.exchanges import Exchange, history
from tidegate.model.elements import Batch, EndOfInput, Idle, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import Cut, TakeSnapshot
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.debloat import PART_OF_TARGET, PERIOD_MS, Debloat, WindowBounds
from tidegate.protocol.kinds import CheckpointKind, Guarantee
from tidegate.protocol.switching import KNOWN_AFTER_MS, UNKNOWN_SPEED, StorageSpeed
from tidegate.protocol.watermarks import Advance, BecomeIdle, ChannelWatermark
from tidegate.worker.gate import (
    Arrived,
    CapturedElement,
    ClosedCapture,
    Grant,
    RecoveredChannel,
    RecoveredWatermarks,
    Slice,
    element_bytes,
)
from tidegate.worker.gate import Gate as PlainGate

A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)
NEW = RecoveredChannel((), Sequence(0))
ONE = CheckpointId(1)
QUICK = StorageSpeed(stored_bytes=1000, storing_ms=1.0)
SLOW = StorageSpeed(stored_bytes=10, storing_ms=1000.0)


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], names=["v"]))


class Gate(PlainGate):
    """Its barriers have one `switch_after_ms`, so that a test names it once."""

    switch_after_ms: float | None = None


def make(
    switch_after_ms: float | None,
    *channels: ChannelId,
    window_bytes: int = 1,
    recovered: RecoveredChannel = NEW,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    debloat: Debloat | None = None,
) -> Gate:
    gate = Gate([(c, recovered) for c in channels], window_bytes=window_bytes, guarantee=guarantee, debloat=debloat)
    gate.switch_after_ms = switch_after_ms
    return gate


def arrived(sequence: int, element: NumberedElement, epoch: int = 0) -> Arrived:
    return Arrived(Sequence(sequence), CheckpointId(epoch), element, element_bytes(element))


def arrive(
    gate: PlainGate, channel: ChannelId, sequence: int, element: NumberedElement, epoch: int = 0
) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_arrival(channel, arrived(sequence, element, epoch), 0.0)


def barrier(gate: Gate, channel: ChannelId, before: int) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_barrier(
        channel, ONE, before=Sequence(before), age_ms=0.0, switch_after_ms=gate.switch_after_ms, now_ms=0.0
    )


def barrier_at(gate: Gate, channel: ChannelId, before: int, *, now_ms: float) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_barrier(
        channel, ONE, before=Sequence(before), age_ms=0.0, switch_after_ms=gate.switch_after_ms, now_ms=now_ms
    )


def cut(gate: Gate, channel: ChannelId, held_from: int, before: int) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_cut(channel, ONE, Cut(Sequence(held_from), Sequence(before)), 0.0)


def values(piece: Slice | Batch) -> list[int]:
    return list(piece.rows.column(0).to_pylist())


def consume(gate: PlainGate, max_rows: int = 100) -> tuple[ChannelId, list[int]] | None:
    piece = gate.next_slice(max_rows)
    if piece is None:
        return None
    gate.consumed(piece, 0.0, elapsed_ms=1.0)
    return piece.channel, values(piece)


def captured(closed: "TakeSnapshot | ClosedCapture") -> dict[ChannelId, tuple[ReceiverRange, list[tuple[int, object]]]]:
    assert isinstance(closed, ClosedCapture)
    return {c.range.channel: (c.range, [(e.sequence, what_is_left(e)) for e in c.elements]) for c in closed.captures}


def what_is_left(captured: CapturedElement) -> object:
    element = captured.element
    return values(element)[captured.done_rows :] if isinstance(element, Batch) else element


def test_a_batch_is_consumed_slice_by_slice_and_counts_when_it_is_done() -> None:
    gate = make(None, A)
    arrive(gate, A, 0, rows(1, 2, 3))
    assert consume(gate, 2) == (A, [1, 2])
    assert gate.grants == []
    assert consume(gate, 2) == (A, [3])
    assert gate.grants == [Grant(A, Sequence(1), 1)]
    assert gate.is_empty()
    assert gate.queued_bytes() == 0


def test_a_slice_that_was_only_looked_at_is_still_there() -> None:
    gate = make(None, A)
    arrive(gate, A, 0, rows(1, 2))
    assert gate.next_slice(1) == gate.next_slice(1)
    assert consume(gate, 1) == (A, [1])


def test_channels_take_turns() -> None:
    gate = make(None, A, B)
    for sequence in range(2):
        arrive(gate, A, sequence, rows(sequence))
        arrive(gate, B, sequence, rows(10 + sequence))
    assert [consume(gate) for _ in range(5)] == [(A, [0]), (B, [10]), (A, [1]), (B, [11]), None]


def test_grants_wait_for_a_quarter_of_the_window_unless_the_channel_is_dry() -> None:
    gate = make(None, A, window_bytes=1 << 20)
    arrive(gate, A, 0, rows(1))
    arrive(gate, A, 1, rows(2))
    consume(gate)
    assert gate.grants == []
    consume(gate)
    assert gate.grants == [Grant(A, Sequence(2), 1 << 20)]


def test_end_marks_and_empty_batches_are_passed_over() -> None:
    gate = make(None, A, B)
    arrive(gate, A, 0, rows())
    arrive(gate, A, 1, EndOfInput())
    assert gate.next_slice(1) is None
    assert gate.skip_markers(0.0) == []
    assert gate.is_empty()
    assert not gate.has_ended()
    arrive(gate, B, 0, EndOfInput())
    gate.skip_markers(0.0)
    assert gate.has_ended()
    assert gate.grants == [Grant(A, Sequence(2), 1), Grant(B, Sequence(1), 1)]


def test_an_end_mark_behind_a_barrier_waits_for_the_snapshot() -> None:
    gate = make(None, A, B)
    barrier(gate, A, 0)
    cut(gate, A, 0, 0)
    arrive(gate, A, 0, EndOfInput(), epoch=1)
    assert gate.skip_markers(0.0) == []
    assert not gate.is_empty()
    barrier(gate, B, 0)
    taken, closed = cut(gate, B, 0, 0)
    assert taken == TakeSnapshot(ONE, CheckpointKind.ALIGNED, 0.0)
    assert closed == ClosedCapture(ONE, ())
    gate.skip_markers(0.0)
    assert gate.is_empty()


def test_an_element_whose_cut_is_not_known_yet_is_not_offered() -> None:
    gate = make(0.0, A)
    arrive(gate, A, 0, rows(1), epoch=1)
    assert gate.next_slice(1) is None
    barrier(gate, A, 0)
    cut(gate, A, 0, 0)
    assert consume(gate) == (A, [1])


def test_what_is_queued_and_what_arrives_until_the_cut_is_captured() -> None:
    gate = make(0.0, A, B)
    arrive(gate, A, 0, rows(1))
    arrive(gate, B, 0, rows(10))
    assert barrier(gate, A, 1) == [TakeSnapshot(ONE, CheckpointKind.UNALIGNED, 0.0, 0.0)]
    assert consume(gate) == (A, [1])
    assert consume(gate) == (B, [10])
    arrive(gate, B, 1, rows(11))
    cut(gate, A, 1, 1)
    barrier(gate, B, 3)
    cut(gate, B, 3, 3)
    (closed,) = arrive(gate, B, 2, rows(12))
    a, b = captured(closed)[A], captured(closed)[B]
    at = Sequence
    assert a == (ReceiverRange(channel=A, first=at(0), row=0, held_from=at(1), before=at(1)), [(0, [1])])
    assert b[0] == ReceiverRange(channel=B, first=at(0), row=0, held_from=at(3), before=at(3))
    assert b[1] == [(0, [10]), (1, [11]), (2, [12])]


def test_of_a_half_done_batch_the_rest_is_captured() -> None:
    gate = make(0.0, A)
    arrive(gate, A, 0, rows(1, 2, 3))
    consume(gate, 2)
    barrier(gate, A, 1)
    (closed,) = cut(gate, A, 1, 1)
    found, elements = captured(closed)[A]
    assert (found.first, found.row) == (0, 2)
    assert elements == [(0, [3])]
    assert consume(gate) == (A, [3])


def test_what_the_sender_stores_is_not_in_the_receivers_capture() -> None:
    gate = make(0.0, A)
    for sequence in range(3):
        arrive(gate, A, sequence, rows(sequence), epoch=0 if sequence < 2 else 1)
    barrier(gate, A, 3)
    (closed,) = cut(gate, A, 2, 3)
    found, elements = captured(closed)[A]
    assert (found.held_from, found.before) == (2, 3)
    assert elements == [(0, [0]), (1, [1])]


def test_a_channel_with_nothing_in_flight_is_left_out() -> None:
    gate = make(0.0, A)
    arrive(gate, A, 0, rows(1))
    consume(gate)
    barrier(gate, A, 1)
    assert cut(gate, A, 1, 1) == [ClosedCapture(ONE, ())]


def test_the_element_that_sets_off_the_snapshot_is_in_its_capture_once() -> None:
    gate = make(50.0, A, B)
    barrier(gate, B, 0)
    taken = gate.on_arrival(A, arrived(0, rows(1)), 60.0)
    assert taken == [TakeSnapshot(ONE, CheckpointKind.SWITCHED, 60.0, 50.0)]
    cut(gate, B, 0, 0)
    barrier(gate, A, 1)
    (closed,) = cut(gate, A, 1, 1)
    assert captured(closed)[A][1] == [(0, [1])]


def test_an_aborted_capture_is_forgotten_and_its_rows_go_on() -> None:
    gate = make(0.0, A, B)
    arrive(gate, A, 0, rows(1))
    barrier(gate, A, 1)
    gate.on_abort(ONE)
    assert barrier(gate, B, 0) == []
    assert cut(gate, A, 1, 1) == []
    assert cut(gate, B, 0, 0) == []
    assert consume(gate) == (A, [1])


def test_recovered_rows_come_first_and_new_ones_go_on_behind_them() -> None:
    gate = make(None, A, recovered=RecoveredChannel((arrived(4, rows(1)), arrived(5, rows(2))), Sequence(6)))
    arrive(gate, A, 6, rows(3))
    assert [consume(gate) for _ in range(3)] == [(A, [1]), (A, [2]), (A, [3])]
    assert gate.grants[-1] == Grant(A, Sequence(7), 1)


def test_a_checkpoint_during_replay_captures_what_is_not_replayed_yet() -> None:
    recovered = RecoveredChannel((arrived(4, rows(1)), arrived(5, rows(2, 3))), Sequence(6))
    gate = make(0.0, A, recovered=recovered)
    consume(gate)
    consume(gate, 1)
    barrier(gate, A, 6)
    (closed,) = cut(gate, A, 6, 6)
    found, elements = captured(closed)[A]
    assert (found.first, found.row, found.before) == (5, 1, 6)
    assert elements == [(5, [3])]


# -- recovered


def test_what_any_channel_recovered_comes_before_anything_new() -> None:
    gate = PlainGate(
        [(A, RecoveredChannel((arrived(4, rows(1)), arrived(5, rows(2))), Sequence(6))), (B, NEW)], window_bytes=1
    )
    arrive(gate, B, 0, rows(10))
    arrive(gate, B, 1, EndOfInput())
    arrive(gate, A, 6, rows(3))
    assert consume(gate) == (A, [1])
    assert gate.skip_markers(0.0) == []
    assert consume(gate) == (A, [2])
    assert sorted(consume(gate) or () for _ in range(2)) == [(A, [3]), (B, [10])]


def test_a_marker_on_a_new_channel_waits_for_what_was_recovered() -> None:
    recovered = RecoveredChannel((arrived(4, rows(1)),), Sequence(5))
    gate = PlainGate([(A, recovered), (B, NEW)], window_bytes=1)
    arrive(gate, B, 0, Watermark(100))
    gate.skip_markers(0.0)
    assert gate.channel_watermarks() == {}
    consume(gate)
    gate.skip_markers(0.0)
    assert gate.channel_watermarks() == {B: ChannelWatermark(100, is_idle=False)}


def test_of_a_recovered_batch_that_was_half_done_before_rows_are_counted_from_its_first() -> None:
    half = Arrived(Sequence(4), CheckpointId(0), rows(30, 40, 50), 24, first_row=3)
    gate = make(0.0, A, recovered=RecoveredChannel((half,), Sequence(5)))
    consume(gate, 1)
    barrier(gate, A, 5)
    (closed,) = cut(gate, A, 5, 5)
    assert isinstance(closed, ClosedCapture)
    (capture,) = closed.captures
    assert (capture.range.first, capture.range.row) == (4, 4)
    assert capture.elements == (CapturedElement(Sequence(4), half.element, first_row=3, done_rows=1),)


def test_a_restored_gate_goes_on_from_its_watermarks() -> None:
    watermarks = RecoveredWatermarks({A: ChannelWatermark(50, False), B: ChannelWatermark(70, False)}, current_ms=50)
    gate = PlainGate([(A, NEW), (B, NEW)], window_bytes=1, watermarks=watermarks)
    assert gate.watermark_ms == 50
    gate.on_arrival(A, arrived(0, Watermark(90)), 0.0)
    gate.skip_markers(0.0)
    assert gate.watermark_actions == [Advance(70)]


# -- event time


def test_a_watermark_is_noted_before_the_snapshot_that_its_consumption_sets_off() -> None:
    gate = make(None, A)
    arrive(gate, A, 0, Watermark(100))
    barrier(gate, A, 1)
    cut(gate, A, 1, 1)
    taken, _ = gate.skip_markers(0.0)
    assert taken == TakeSnapshot(ONE, CheckpointKind.ALIGNED, 0.0)
    assert gate.channel_watermarks() == {A: ChannelWatermark(100, is_idle=False)}
    assert gate.watermark_actions == [Advance(100)]


def test_no_marker_behind_the_barrier_is_consumed_before_the_snapshot_is_taken() -> None:
    """Else the snapshot would hold an event time whose rows it does not."""
    gate = make(None, A, B)
    barrier(gate, B, 0)
    cut(gate, B, 0, 0)
    arrive(gate, B, 0, Watermark(500), epoch=1)
    arrive(gate, A, 0, Watermark(100))
    barrier(gate, A, 1)
    cut(gate, A, 1, 1)
    arrive(gate, A, 1, Watermark(600), epoch=1)
    assert [type(result) for result in gate.skip_markers(0.0)] == [TakeSnapshot, ClosedCapture]
    assert gate.channel_watermarks() == {A: ChannelWatermark(100, is_idle=False)}
    assert gate.skip_markers(0.0) == []
    assert gate.watermark_ms == 500


def test_idle_channels_do_not_hold_back_event_time_until_rows_come() -> None:
    gate = make(None, A, B)
    arrive(gate, A, 0, Watermark(100))
    arrive(gate, B, 0, Idle())
    gate.skip_markers(0.0)
    assert gate.watermark_actions == [Advance(100)]
    arrive(gate, A, 1, Idle())
    gate.skip_markers(0.0)
    assert gate.watermark_actions == [Advance(100), BecomeIdle()]
    assert gate.is_idle()
    arrive(gate, B, 1, rows(1))
    assert consume(gate) == (B, [1])
    assert not gate.is_idle()


# -- other modes


def test_at_least_once_rows_behind_a_barrier_are_consumed_before_the_snapshot() -> None:
    gate = make(None, A, B, guarantee=Guarantee.AT_LEAST_ONCE)
    barrier(gate, A, 0)
    cut(gate, A, 0, 0)
    arrive(gate, A, 0, rows(1), epoch=1)
    assert consume(gate) == (A, [1])
    barrier(gate, B, 0)
    taken, closed = cut(gate, B, 0, 0)
    assert taken == TakeSnapshot(ONE, CheckpointKind.ALIGNED, 0.0)
    assert closed == ClosedCapture(ONE, ())


def test_a_capture_beside_a_finished_channel_holds_the_live_one_only() -> None:
    gate = make(0.0, A, B)
    arrive(gate, B, 0, rows(10))
    consume(gate)
    assert gate.on_finished(B, 0.0) == []
    arrive(gate, A, 0, rows(1))
    barrier(gate, A, 1)
    (closed,) = cut(gate, A, 1, 1)
    assert list(captured(closed)) == [A]


def test_the_trigger_takes_the_snapshot_of_a_gate_whose_senders_have_finished() -> None:
    gate = make(0.0, A)
    gate.on_finished(A, 0.0)
    taken, closed = gate.on_triggered(ONE, age_ms=3.0, switch_after_ms=0.0, now_ms=0.0)
    assert taken == TakeSnapshot(ONE, CheckpointKind.ALIGNED, 3.0, 0.0)
    assert closed == ClosedCapture(ONE, ())


# -- windows


def test_debloating_changes_the_window_and_tells_the_sender() -> None:
    most_bytes = 1 << 20
    bounds = WindowBounds(least_bytes=1000, start_bytes=most_bytes, most_bytes=most_bytes, most_total_bytes=most_bytes)
    debloat = Debloat(target_ms=1000.0, bounds=bounds, channels=[A], now_ms=0.0)
    gate = make(None, A, window_bytes=most_bytes, debloat=debloat)
    arrive(gate, A, 0, rows(*range(1000)))
    arrive(gate, A, 1, rows(*range(1000)))
    consume(gate, 2000)
    gate.on_time(PERIOD_MS - 1, storage=UNKNOWN_SPEED)
    assert gate.grants == []
    gate.on_time(PERIOD_MS, storage=UNKNOWN_SPEED)
    (grant,) = gate.grants
    expected_bytes = grant.window_bytes
    assert expected_bytes == pytest.approx(8000 / PERIOD_MS * 1000 * PART_OF_TARGET, rel=0.2)
    assert gate.grants == [Grant(A, Sequence(1), expected_bytes)]
    gate.grants.clear()
    consume(gate, 2000)
    assert gate.grants == [Grant(A, Sequence(2), expected_bytes)]


# -- dear waiting


def _waiting_gate(switch_after_ms: float | None, *, behind_the_barrier: bool) -> Gate:
    """B waits for its barrier; 800 bytes are queued and drain at 0.08 bytes per ms."""
    gate = make(switch_after_ms, A, B)
    arrive(gate, A, 0, rows(1))
    piece = gate.next_slice(1)
    assert piece is not None
    gate.consumed(piece, 0.0, elapsed_ms=KNOWN_AFTER_MS)
    barrier(gate, A, 1)
    cut(gate, A, 1, 1)
    barrier(gate, B, 1)
    arrive(gate, A if behind_the_barrier else B, 1 if behind_the_barrier else 0, rows(*range(100)))
    return gate


def test_a_checkpoint_switches_early_when_its_queue_cannot_drain_in_time_and_storage_is_quick() -> None:
    gate = _waiting_gate(1000.0, behind_the_barrier=False)
    assert gate.on_time(1.0, storage=UNKNOWN_SPEED) == []
    assert gate.on_time(1.0, storage=SLOW) == []
    assert gate.on_time(1.0, storage=QUICK) == [TakeSnapshot(ONE, CheckpointKind.SWITCHED, 1.0, 1000.0)]


@pytest.mark.parametrize(("before", "switches"), [(2, False), (50, True)])
def test_what_stands_before_the_barrier_and_is_not_here_yet_counts_like_what_is(before: int, switches: bool) -> None:
    """80 bytes are here, and drain at 0.8 bytes per ms: all that is missing does not make it in time."""
    gate = make(1000.0, A)
    for sequence in range(2):
        arrive(gate, A, sequence, rows(*range(10)))
    piece = gate.next_slice(10)
    assert piece is not None
    gate.consumed(piece, 0.0, elapsed_ms=KNOWN_AFTER_MS)
    barrier(gate, A, before)
    assert bool(gate.on_time(1.0, storage=QUICK)) is switches


def test_time_behind_other_tasks_and_for_room_in_the_output_counts_as_draining() -> None:
    """Each batch takes a millisecond of work, and a hundred to get its turn: ten of them do not make it."""
    gate = make(1000.0, A)
    for sequence in range(30):
        arrive(gate, A, sequence, rows(*range(10)))
    for turn in range(1, 6):
        piece = gate.next_slice(10)
        assert piece is not None
        gate.consumed(piece, turn * 100.0, elapsed_ms=1.0)
    barrier(gate, A, 30)
    assert gate.on_time(501.0, storage=QUICK) == [TakeSnapshot(ONE, CheckpointKind.SWITCHED, 501.0, 1000.0)]


def test_time_without_input_does_not_count_as_draining() -> None:
    gate = make(1000.0, A)
    for turn in range(5):
        gate.on_arrival(A, arrived(turn, rows(*range(10))), turn * 1000.0)
        piece = gate.next_slice(10)
        assert piece is not None
        gate.consumed(piece, turn * 1000.0 + 20.0, elapsed_ms=20.0)
    for sequence in range(5, 25):
        gate.on_arrival(A, arrived(sequence, rows(*range(10))), 5000.0)
    assert barrier_at(gate, A, 25, now_ms=5000.0) == []
    assert gate.on_time(5001.0, storage=QUICK) == [], "20 batches of 20 ms drain within the second"


def test_a_checkpoint_that_must_stay_aligned_does_not_switch_however_dear_waiting_is() -> None:
    gate = _waiting_gate(None, behind_the_barrier=False)
    assert gate.on_time(1.0, storage=QUICK) == []


@pytest.mark.parametrize("now_ms", [1.0, 400.0])
def test_what_waits_behind_the_barrier_does_not_make_waiting_dear(now_ms: float) -> None:
    gate = _waiting_gate(1000.0, behind_the_barrier=True)
    assert gate.on_time(now_ms, storage=QUICK) == []


# -- any interleaving


def sent_as(sequence: int) -> NumberedElement:
    """Every third element is a mark, the others have two rows that name the element."""
    return Watermark(sequence) if sequence % 3 == 2 else rows(10 * sequence, 10 * sequence + 1)


def rows_of(sequences: range) -> list[int]:
    return [value for s in sequences if isinstance(element := sent_as(s), Batch) for value in values(element)]


class GateExchange(Exchange):
    """A whole gate that is consumed row by row, with something recovered on its first channel."""

    def __init__(self, count: int, recovered: int) -> None:
        super().__init__(count)
        first = self.senders[0]
        first.sealed = first.sent = recovered
        first.cuts.on_sent(Sequence(recovered))
        elements = tuple(arrived(sequence, sent_as(sequence)) for sequence in range(recovered))
        self.gate = PlainGate(
            [(s.channel, RecoveredChannel(elements, Sequence(recovered)) if s is first else NEW) for s in self.senders],
            window_bytes=1,
        )
        self.processed: dict[ChannelId, list[int]] = {sender.channel: [] for sender in self.senders}
        self.taken: dict[int, dict[ChannelId, list[int]]] = {}
        self.captures: dict[int, dict[ChannelId, list[int]]] = {}

    def arrive(self, channel: ChannelId, sequence: Sequence, epoch: CheckpointId) -> None:
        self.perform(self.gate.on_arrival(channel, arrived(sequence, sent_as(sequence), epoch), self.now_ms))

    def barrier(self, channel: ChannelId, id: CheckpointId, at: Sequence, switch_after_ms: float | None) -> None:
        self.perform(
            self.gate.on_barrier(
                channel, id, before=at, age_ms=0.0, switch_after_ms=switch_after_ms, now_ms=self.now_ms
            )
        )

    def cut(self, channel: ChannelId, id: CheckpointId, cut: Cut) -> None:
        self.perform(self.gate.on_cut(channel, id, cut, self.now_ms))

    def finished(self, channel: ChannelId) -> None:
        self.perform(self.gate.on_finished(channel, self.now_ms))

    def trigger(self, id: CheckpointId, switch_after_ms: float | None) -> None:
        self.perform(self.gate.on_triggered(id, age_ms=0.0, switch_after_ms=switch_after_ms, now_ms=self.now_ms))

    def abort(self, id: CheckpointId) -> None:
        self.gate.on_abort(id)

    def pass_time(self) -> None:
        self.perform(self.gate.on_time(self.now_ms, storage=UNKNOWN_SPEED))

    def consume(self, channel: ChannelId) -> None:
        """Whatever channel is asked for: the gate has an order of its own."""
        self.perform(self.gate.skip_markers(self.now_ms))
        piece = self.gate.next_slice(1)
        if piece is not None:
            self.processed[piece.channel] += values(piece)
            self.perform(self.gate.consumed(piece, self.now_ms, elapsed_ms=1.0))

    def consumed(self, channel: ChannelId) -> int:
        return self.gate._channels[channel].position()

    def perform(self, results: "list[TakeSnapshot | ClosedCapture]") -> None:
        for result in results:
            match result:
                case TakeSnapshot(checkpoint):
                    assert checkpoint not in self.taken
                    self.taken[checkpoint] = {channel: list(done) for channel, done in self.processed.items()}
                case ClosedCapture(checkpoint):
                    self.closed.append(checkpoint)
                    self.captures[checkpoint] = {
                        channel: [value for _, left in elements if isinstance(left, list) for value in left]
                        for channel, (_, elements) in captured(result).items()
                    }


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.integers(0, 5), st.integers(0, 1 << 32))
def test_whatever_the_order_each_row_is_consumed_once_and_is_in_each_checkpoint_once(
    count: int, recovered: int, seed: int
) -> None:
    exchange = GateExchange(count, recovered)
    for event, number in history(seed):
        exchange.act(event, number)
    exchange.drain()
    for sender in exchange.senders:
        assert exchange.processed[sender.channel] == rows_of(range(sender.sealed))
    assert exchange.gate.is_empty()
    assert exchange.gate.queued_bytes() == 0
    whole = exchange.whole()
    assert [checkpoint for checkpoint in exchange.taken if checkpoint in whole] == whole
    assert sorted(checkpoint for checkpoint in exchange.closed if checkpoint in whole) == whole
    for checkpoint in whole:
        for sender in exchange.senders:
            done = exchange.taken[checkpoint][sender.channel]
            left = exchange.captures[checkpoint].get(sender.channel, [])
            held = rows_of(sender.held.get(checkpoint, range(0)))
            below = rows_of(range(exchange.before(sender, checkpoint)))
            assert done + left + held == below, f"checkpoint {checkpoint} on {sender.channel}"
