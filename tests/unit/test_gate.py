"""The receiving side of a task: what is consumed, granted and captured, with real rows."""

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, NumberedElement
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import Cut, TakeSnapshot
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.kinds import CheckpointKind
from tidegate.worker.gate import Arrived, ClosedCapture, Gate, Grant, RecoveredChannel, Slice, element_bytes

A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)
NEW = RecoveredChannel((), Sequence(0))
ONE = CheckpointId(1)


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], names=["v"]))


def make(
    switch_after_ms: float | None, *channels: ChannelId, window_bytes: int = 1, recovered: RecoveredChannel = NEW
) -> Gate:
    return Gate([(c, recovered) for c in channels], window_bytes=window_bytes, switch_after_ms=switch_after_ms)


def arrived(sequence: int, element: NumberedElement, epoch: int = 0) -> Arrived:
    return Arrived(Sequence(sequence), CheckpointId(epoch), element, element_bytes(element))


def arrive(
    gate: Gate, channel: ChannelId, sequence: int, element: NumberedElement, epoch: int = 0
) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_arrival(channel, arrived(sequence, element, epoch), 0.0)


def barrier(gate: Gate, channel: ChannelId, before: int) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_barrier(channel, ONE, before=Sequence(before), age_ms=0.0, now_ms=0.0)


def cut(gate: Gate, channel: ChannelId, held_from: int, before: int) -> "list[TakeSnapshot | ClosedCapture]":
    return gate.on_cut(channel, ONE, Cut(Sequence(held_from), Sequence(before)), 0.0)


def values(piece: Slice | Batch) -> list[int]:
    return list(piece.rows.column(0).to_pylist())


def consume(gate: Gate, max_rows: int = 100) -> tuple[ChannelId, list[int]] | None:
    piece = gate.next_slice(max_rows)
    if piece is None:
        return None
    gate.consumed(piece, 0.0)
    return piece.channel, values(piece)


def captured(closed: "TakeSnapshot | ClosedCapture") -> dict[ChannelId, tuple[ReceiverRange, list[tuple[int, object]]]]:
    assert isinstance(closed, ClosedCapture)
    return {
        c.range.channel: (c.range, [(s, values(e) if isinstance(e, Batch) else e) for s, e in c.elements])
        for c in closed.captures
    }


def test_a_batch_is_consumed_slice_by_slice_and_counts_when_it_is_done() -> None:
    gate = make(None, A)
    arrive(gate, A, 0, rows(1, 2, 3))
    assert consume(gate, 2) == (A, [1, 2])
    assert gate.grants == []
    assert consume(gate, 2) == (A, [3])
    assert gate.grants == [Grant(A, Sequence(1))]
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
    assert gate.grants == [Grant(A, Sequence(2))]


def test_end_marks_and_empty_batches_are_passed_over() -> None:
    gate = make(None, A, B)
    arrive(gate, A, 0, rows())
    arrive(gate, A, 1, EndOfInput())
    assert not gate.has_input()
    assert gate.skip_markers(0.0) == []
    assert gate.is_empty()
    assert not gate.has_ended()
    arrive(gate, B, 0, EndOfInput())
    gate.skip_markers(0.0)
    assert gate.has_ended()
    assert gate.grants == [Grant(A, Sequence(2)), Grant(B, Sequence(1))]


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
    assert not gate.has_input()
    barrier(gate, A, 0)
    cut(gate, A, 0, 0)
    assert consume(gate) == (A, [1])


def test_what_is_queued_and_what_arrives_until_the_cut_is_captured() -> None:
    gate = make(0.0, A, B)
    arrive(gate, A, 0, rows(1))
    arrive(gate, B, 0, rows(10))
    assert barrier(gate, A, 1) == [TakeSnapshot(ONE, CheckpointKind.UNALIGNED, 0.0)]
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
    assert taken == [TakeSnapshot(ONE, CheckpointKind.SWITCHED, 60.0)]
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
    assert gate.grants[-1] == Grant(A, Sequence(7))


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
