"""Barriers that are aborted, that senders disagree about, or that a finished sender never sends."""

import pytest

from tests.unit.barrier_events import ALIGNED, UNALIGNED, A, B, Gate, capture, close, cut, take, trim
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Sequence
from tidegate.protocol.barriers import CaptureArrival, DropCapture, GateBarriers

# -- aborts


def test_an_aborted_alignment_unblocks_its_channels() -> None:
    gate = Gate(None)
    gate.barrier(A, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert not gate.may_consume(A, epoch=1)
    assert gate.abort(1) == [DropCapture(CheckpointId(1))]
    assert gate.may_consume(A, epoch=1)


def test_an_abort_that_comes_before_the_barriers_keeps_the_checkpoint_from_opening() -> None:
    gate = Gate(0.0)
    assert gate.abort(1) == []
    assert gate.barrier(A, 1, before=0) == []
    assert gate.barrier(B, 1, before=0) == []
    assert gate.barrier(A, 2, before=0) == [take(2, UNALIGNED, switch_after_ms=0.0), trim(2, A, 0)]


def test_a_late_barrier_does_not_reopen_an_aborted_checkpoint() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    gate.abort(1)
    assert gate.barrier(B, 1, before=0) == []
    assert gate.cut(B, 1, 0, 0) == []
    assert gate.arrive(B, 0) == []


def test_a_late_barrier_of_a_skipped_checkpoint_does_not_open_it_behind_a_newer_one() -> None:
    gate = Gate(None)
    gate.barrier(A, 2, before=0)
    assert gate.barrier(B, 1, before=0) == []
    assert gate.machine.waiting_for(CheckpointId(1)) == frozenset()


def test_an_abort_after_the_capture_has_closed_asks_for_nothing() -> None:
    gate = Gate(0.0, (A,))
    gate.barrier(A, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert gate.abort(1) == []
    assert gate.barrier(A, 1, before=0) == []


def test_aborting_one_checkpoint_leaves_the_others_alone() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    gate.barrier(A, 2, before=0)
    assert gate.abort(1) == [DropCapture(CheckpointId(1))]
    assert gate.arrive(B, 0) == [capture(2, B)]


def test_aborts_of_checkpoints_whose_barriers_never_come_are_not_remembered_for_ever() -> None:
    gate = Gate(None)
    for checkpoint in range(1, 3000):
        gate.abort(checkpoint)
    assert len(gate.machine._aborted_ahead) <= 1000
    assert gate.barrier(A, 2999, before=0) == []
    assert gate.machine.waiting_for(CheckpointId(2999)) == frozenset()


# -- disagreement


def test_a_cut_that_names_another_barrier_is_a_violation() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=3)
    with pytest.raises(ProtocolViolation, match="checkpoint 1 on e0:0->0 names 2"):
        gate.cut(A, 1, 2, 2)


def test_a_cut_without_its_barrier_is_a_violation() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    with pytest.raises(ProtocolViolation):
        gate.cut(B, 1, 0, 0)


def test_an_element_out_of_order_is_a_violation() -> None:
    gate = Gate(None)
    gate.arrive(A, 0)
    with pytest.raises(ProtocolViolation, match="Element 2 arrived on e0:0->0, expected 1"):
        gate.arrive(A, 2)


def test_a_recovered_channel_counts_what_it_holds_as_arrived_but_not_consumed() -> None:
    machine = GateBarriers([(A, Sequence(7), Sequence(5))])
    gate = Gate(None, (A,))
    gate.machine = machine
    gate.barrier(A, 9, before=7)
    gate.cut(A, 9, 7, 7)
    assert gate.may_consume(A)
    assert gate.consume(A, 6) == []
    assert gate.consume(A, 7) == [take(9, ALIGNED), close(9, (A, cut(7, 7)))]


# -- finished channels


def test_the_end_of_a_finished_channel_counts_as_its_barrier_in_an_open_checkpoint() -> None:
    gate = Gate(None)
    gate.barrier(A, 1, before=0)
    assert gate.cut(A, 1, 0, 0) == []
    assert gate.finish(B) == [take(1, ALIGNED), close(1, (A, cut(0, 0)), (B, cut(0, 0)))]


def test_the_end_of_a_finished_channel_counts_as_its_barrier_in_every_later_checkpoint() -> None:
    gate = Gate(0.0)
    assert gate.finish(B) == []
    for checkpoint in (1, 2):
        taken = take(checkpoint, UNALIGNED, switch_after_ms=0.0)
        assert gate.barrier(A, checkpoint, before=1) == [taken, trim(checkpoint, A, 1)]
        assert gate.cut(A, checkpoint, 0, 1) == [trim(checkpoint, A, 0), close(checkpoint, (A, cut(0, 1)))]


def test_what_was_captured_of_a_channel_that_finishes_without_a_barrier_is_kept() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert gate.arrive(B, 0) == [CaptureArrival(CheckpointId(1), B)], "in flight when the snapshot was taken"
    gate.consume(B, 1)
    assert gate.finish(B) == [close(1, (A, cut(0, 0)), (B, cut(1, 1)))]


def test_a_channel_that_finishes_closes_all_open_checkpoints_in_order() -> None:
    gate = Gate(None)
    for checkpoint in (1, 2):
        gate.barrier(A, checkpoint, before=0)
        gate.cut(A, checkpoint, 0, 0)
    first, second = (close(checkpoint, (A, cut(0, 0)), (B, cut(0, 0))) for checkpoint in (1, 2))
    assert gate.finish(B) == [take(1, ALIGNED), first, take(2, ALIGNED), second]


def test_a_channel_that_finishes_keeps_the_barrier_that_it_has_sent() -> None:
    gate = Gate(None)
    gate.arrive(B, 0)
    gate.barrier(B, 1, before=1)
    gate.cut(B, 1, 1, 1)
    gate.consume(B, 1)
    assert gate.finish(B) == []
    gate.barrier(A, 1, before=0)
    assert gate.cut(A, 1, 0, 0) == [take(1, ALIGNED), close(1, (B, cut(1, 1)), (A, cut(0, 0)))]


def test_when_every_sender_has_finished_the_trigger_opens_the_checkpoint() -> None:
    gate = Gate(0.0)
    gate.finish(A)
    gate.finish(B)
    gate.now_ms = 10.0
    assert gate.trigger(1, age_ms=4.0) == [take(1, ALIGNED, age_ms=4.0, switch_after_ms=0.0), close(1)]
    assert gate.trigger(1) == []


def test_a_trigger_that_comes_before_the_last_sender_finishes_opens_the_checkpoint_then() -> None:
    gate = Gate(None)
    gate.finish(A)
    assert gate.trigger(1) == []
    assert gate.trigger(2) == []
    gate.now_ms = 5.0
    assert gate.finish(B) == [take(1, ALIGNED, age_ms=5.0), close(1), take(2, ALIGNED, age_ms=5.0), close(2)]


def test_a_trigger_alone_opens_nothing_while_a_sender_lives() -> None:
    gate = Gate(0.0)
    gate.finish(A)
    assert gate.trigger(1) == []
    assert gate.barrier(B, 1, before=0) == [take(1, UNALIGNED, switch_after_ms=0.0), trim(1, B, 0)]
    gate.cut(B, 1, 0, 0)
    assert gate.finish(B) == []


def test_a_trigger_opens_nothing_that_was_aborted() -> None:
    gate = Gate(None)
    gate.trigger(1)
    gate.abort(1)
    gate.abort(2)
    gate.finish(A)
    assert gate.finish(B) == []
    assert gate.trigger(2) == []
    assert gate.trigger(3) == [take(3, ALIGNED), close(3)]
