"""The receiving side of barriers: what the machine asks of its gate, event by event."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.barrier_events import ALIGNED, SWITCHED, UNALIGNED, A, B, Gate, capture, close, cut, take, trim
from tests.unit.exchanges import Exchange, history
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
from tidegate.protocol.kinds import Guarantee

# -- aligned


def test_aligned_a_channel_at_its_barrier_waits_until_all_have_reached_theirs() -> None:
    gate = Gate(None)
    gate.arrive(A, 0)
    gate.arrive(B, 0)
    assert gate.barrier(A, 1, before=0) == []
    assert gate.cut(A, 1, 0, 0) == []
    assert not gate.may_consume(A)
    assert gate.may_consume(B)
    assert gate.barrier(B, 1, before=1) == []
    assert gate.cut(B, 1, 1, 1) == []
    assert gate.machine.waiting_for(CheckpointId(1)) == {B}
    assert gate.consume(B, 1) == [take(1, ALIGNED), close(1, (A, cut(0, 0)), (B, cut(1, 1)))]
    assert gate.may_consume(A)
    assert gate.may_consume(B)


def test_aligned_a_channel_goes_on_up_to_its_barrier() -> None:
    gate = Gate(None)
    gate.arrive(A, 0)
    gate.arrive(A, 1)
    gate.barrier(A, 1, before=2)
    assert gate.may_consume(A)
    assert gate.consume(A, 1) == []
    assert gate.may_consume(A)
    assert gate.consume(A, 2) == []
    assert not gate.may_consume(A)


def test_aligned_never_captures_however_long_it_waits() -> None:
    gate = Gate(None)
    gate.barrier(A, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert gate.at(1e9) == []
    assert gate.arrive(A, 0) == []
    assert gate.machine.next_deadline_ms() is None


def test_aligned_waits_for_the_cut_even_when_everything_is_consumed() -> None:
    gate = Gate(None, (A,))
    gate.arrive(A, 0)
    assert gate.barrier(A, 1, before=1) == []
    assert gate.consume(A, 1) == []
    assert not gate.may_consume(A)
    assert gate.cut(A, 1, 1, 1) == [take(1, ALIGNED), close(1, (A, cut(1, 1)))]


def test_the_snapshot_carries_the_age_of_the_checkpoint() -> None:
    gate = Gate(None, (A,))
    gate.now_ms = 100.0
    gate.barrier(A, 1, before=0, age_ms=30.0)
    gate.now_ms = 112.0
    assert gate.cut(A, 1, 0, 0) == [take(1, ALIGNED, age_ms=42.0), close(1, (A, cut(0, 0)))]


# -- unaligned


def test_unaligned_takes_at_the_first_barrier_and_closes_when_every_channel_is_cut() -> None:
    gate = Gate(0.0)
    gate.arrive(A, 0)
    gate.arrive(B, 0)
    assert gate.barrier(A, 1, before=1) == [take(1, UNALIGNED, switch_after_ms=0.0), trim(1, A, 1)]
    assert gate.may_consume(A)
    assert gate.may_consume(B)
    assert gate.cut(A, 1, 1, 1) == [trim(1, A, 1)]
    assert gate.arrive(B, 1) == [capture(1, B)]
    assert gate.barrier(B, 1, before=2) == [trim(1, B, 2)]
    assert gate.cut(B, 1, 2, 2) == [trim(1, B, 2), close(1, (A, cut(1, 1)), (B, cut(2, 2)))]


def test_a_capture_closes_only_when_the_cut_is_known_and_all_below_it_has_arrived() -> None:
    gate = Gate(0.0, (A,))
    gate.arrive(A, 0)
    assert gate.barrier(A, 1, before=4) == [take(1, UNALIGNED, switch_after_ms=0.0), trim(1, A, 4)]
    assert gate.cut(A, 1, 3, 4) == [trim(1, A, 3)]
    assert gate.arrive(A, 1) == [capture(1, A)]
    assert gate.arrive(A, 2) == [capture(1, A), close(1, (A, cut(3, 4)))]


def test_without_its_cut_a_capture_stays_open_although_all_below_the_barrier_has_arrived() -> None:
    gate = Gate(0.0, (A,))
    gate.barrier(A, 1, before=1)
    assert gate.arrive(A, 0) == [capture(1, A)]
    assert gate.at(1e6) == []
    assert gate.cut(A, 1, 1, 1) == [trim(1, A, 1), close(1, (A, cut(1, 1)))]


def test_what_stands_behind_the_barrier_is_not_captured() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=1)
    assert gate.arrive(A, 0) == [capture(1, A)]
    assert gate.arrive(A, 1) == []


def test_what_the_sender_holds_is_trimmed_and_not_captured_again_when_it_arrives() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=3)
    assert gate.arrive(A, 0) == [capture(1, A)]
    assert gate.cut(A, 1, 1, 3) == [trim(1, A, 1)]
    assert gate.arrive(A, 1) == []


def test_a_channel_whose_barrier_is_unknown_is_captured_as_far_as_it_comes_and_trimmed_later() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    assert [gate.arrive(B, 0), gate.arrive(B, 1)] == [[capture(1, B)], [capture(1, B)]]
    assert gate.barrier(B, 1, before=1) == [trim(1, B, 1)]


# -- switching


def test_switching_starts_aligned_and_becomes_unaligned_in_place_at_its_deadline() -> None:
    gate = Gate(50.0)
    gate.arrive(A, 0)
    gate.now_ms = 100.0
    assert gate.barrier(A, 1, before=0, age_ms=20.0) == []
    assert gate.machine.next_deadline_ms() == 130.0
    assert not gate.may_consume(A)
    assert gate.at(129.0) == []
    assert gate.at(130.0) == [take(1, SWITCHED, age_ms=50.0, switch_after_ms=50.0), trim(1, A, 0)]
    assert gate.may_consume(A)
    assert gate.machine.next_deadline_ms() is None


def test_switching_that_makes_it_in_time_stays_aligned() -> None:
    gate = Gate(50.0)
    for channel in (A, B):
        gate.barrier(channel, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert gate.cut(B, 1, 0, 0) == [take(1, ALIGNED, switch_after_ms=50.0), close(1, (A, cut(0, 0)), (B, cut(0, 0)))]


def test_a_barrier_that_is_older_than_the_deadline_switches_at_once() -> None:
    gate = Gate(50.0, (A,))
    assert gate.barrier(A, 1, before=1, age_ms=60.0) == [
        take(1, SWITCHED, age_ms=60.0, switch_after_ms=50.0),
        trim(1, A, 1),
    ]


@pytest.mark.parametrize("switch_after_ms", [None, 1000.0])
def test_a_cut_below_its_barrier_forces_the_receiver_to_switch(switch_after_ms: float | None) -> None:
    gate = Gate(switch_after_ms)
    gate.arrive(A, 0)
    gate.barrier(A, 1, before=2)
    assert gate.cut(A, 1, 1, 2) == [take(1, SWITCHED, switch_after_ms=switch_after_ms), trim(1, A, 1)]


# -- epochs


def test_an_element_of_a_newer_epoch_is_not_consumed_before_its_cut_is_known() -> None:
    gate = Gate(None, (A,))
    gate.arrive(A, 0)
    assert not gate.may_consume(A, epoch=1)
    gate.barrier(A, 1, before=0)
    assert not gate.may_consume(A, epoch=1)
    assert gate.cut(A, 1, 0, 0) == [take(1, ALIGNED), close(1, (A, cut(0, 0)))]
    assert gate.may_consume(A, epoch=1)
    assert not gate.may_consume(A, epoch=2)


def test_the_cut_of_an_aborted_checkpoint_still_opens_its_epoch() -> None:
    gate = Gate(None, (A,))
    gate.abort(1)
    gate.barrier(A, 1, before=0)
    assert not gate.may_consume(A, epoch=1)
    assert gate.cut(A, 1, 0, 0) == []
    assert gate.may_consume(A, epoch=1)


# -- several at once


def test_aligned_checkpoints_follow_one_another() -> None:
    gate = Gate(None)
    gate.arrive(A, 0)
    for checkpoint, before in ((1, 0), (2, 1)):
        gate.barrier(A, checkpoint, before=before)
        gate.cut(A, checkpoint, before, before)
    assert not gate.may_consume(A, epoch=1)
    gate.barrier(B, 1, before=0)
    assert gate.cut(B, 1, 0, 0) == [take(1, ALIGNED), close(1, (A, cut(0, 0)), (B, cut(0, 0)))]
    assert gate.may_consume(A, epoch=1)
    assert gate.consume(A, 1) == []
    assert not gate.may_consume(A, epoch=2)
    gate.barrier(B, 2, before=0)
    assert gate.cut(B, 2, 0, 0) == [take(2, ALIGNED), close(2, (A, cut(1, 1)), (B, cut(0, 0)))]


def test_an_element_that_stands_before_two_unaligned_barriers_is_captured_for_both() -> None:
    gate = Gate(0.0)
    gate.barrier(A, 1, before=0)
    gate.barrier(A, 2, before=0)
    assert gate.arrive(B, 0) == [capture(1, B), capture(2, B)]
    gate.barrier(B, 1, before=1)
    assert gate.arrive(B, 1) == [capture(2, B)]


def test_an_older_aligning_checkpoint_switches_together_with_a_newer_one() -> None:
    gate = Gate(1000.0)
    gate.barrier(A, 1, before=1)
    gate.barrier(A, 2, before=2)
    gate.cut(A, 1, 1, 1)
    assert gate.cut(A, 2, 1, 2) == [
        take(1, SWITCHED, switch_after_ms=1000.0),
        trim(1, A, 1),
        take(2, SWITCHED, switch_after_ms=1000.0),
        trim(2, A, 1),
    ]


def test_a_newer_aligning_checkpoint_does_not_switch_with_an_older_one() -> None:
    gate = Gate(1000.0)
    gate.barrier(A, 1, before=1)
    gate.barrier(A, 2, before=2)
    assert gate.cut(A, 1, 0, 1) == [take(1, SWITCHED, switch_after_ms=1000.0), trim(1, A, 0)]
    assert gate.machine.waiting_for(CheckpointId(2)) == {A, B}


# -- at least once


def test_at_least_once_never_waits_and_never_captures() -> None:
    gate = Gate(None, guarantee=Guarantee.AT_LEAST_ONCE)
    gate.arrive(A, 0)
    gate.arrive(B, 0)
    gate.barrier(A, 1, before=0)
    gate.cut(A, 1, 0, 0)
    assert gate.may_consume(A)
    assert gate.consume(A, 1) == []
    assert gate.arrive(A, 1) == []
    assert gate.may_consume(A, epoch=1)
    gate.barrier(B, 1, before=1)
    assert gate.cut(B, 1, 1, 1) == []
    assert gate.at(1e9) == []
    assert gate.consume(B, 1) == [take(1, ALIGNED, age_ms=1e9), close(1, (A, cut(0, 0)), (B, cut(1, 1)))]


# -- dear waiting


def test_only_an_adaptive_checkpoint_switches_when_waiting_is_dear() -> None:
    gate = Gate(None)
    gate.barrier(A, 1, before=0)
    assert gate.machine.switchable() == []
    assert gate.switch_now(1) == []
    gate = Gate(50.0)
    gate.barrier(A, 1, before=0)
    assert gate.machine.switchable() == [(CheckpointId(1), 50.0)]
    gate.now_ms = 7.0
    assert gate.switch_now(1) == [take(1, SWITCHED, age_ms=7.0, switch_after_ms=50.0), trim(1, A, 0)]
    assert gate.machine.switchable() == []
    assert gate.switch_now(1) == []


def test_an_aligned_savepoint_is_switched_by_a_newer_unaligned_checkpoint_that_overtakes_it() -> None:
    gate = Gate(None)
    gate.arrive(A, 0)
    gate.barrier_of(None, A, 1, before=1)
    assert gate.barrier_of(0.0, A, 2, before=2) == [
        take(1, SWITCHED),
        trim(1, A, 1),
        take(2, UNALIGNED, switch_after_ms=0.0),
        trim(2, A, 2),
    ]


def test_an_aligned_savepoint_waits_on_behind_an_older_unaligned_checkpoint() -> None:
    gate = Gate(None)
    gate.barrier_of(0.0, A, 1, before=1)
    assert gate.barrier_of(None, A, 2, before=1) == []
    assert gate.machine.waiting_for(CheckpointId(2)) == {A, B}


# -- any interleaving


class MachineExchange(Exchange):
    """The bare machine, and what it makes of every checkpoint."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        start = Sequence(0)
        self.machine = GateBarriers([(sender.channel, start, start) for sender in self.senders])
        self.queues: dict[ChannelId, list[tuple[int, int]]] = {sender.channel: [] for sender in self.senders}
        self.positions = {sender.channel: 0 for sender in self.senders}
        self.taken: dict[int, dict[ChannelId, int]] = {}
        self.captures: dict[int, dict[ChannelId, list[int]]] = {}

    def arrive(self, channel: ChannelId, sequence: Sequence, epoch: CheckpointId) -> None:
        self.queues[channel].append((sequence, epoch))
        self.perform(self.machine.on_arrival(channel, sequence, now_ms=self.now_ms), sequence)

    def barrier(self, channel: ChannelId, id: CheckpointId, at: Sequence, switch_after_ms: float | None) -> None:
        self.perform(
            self.machine.on_barrier(
                channel, id, before=at, age_ms=0.0, switch_after_ms=switch_after_ms, now_ms=self.now_ms
            )
        )

    def cut(self, channel: ChannelId, id: CheckpointId, cut: Cut) -> None:
        self.perform(self.machine.on_cut(channel, id, cut, now_ms=self.now_ms))

    def finished(self, channel: ChannelId) -> None:
        self.perform(self.machine.on_finished(channel, now_ms=self.now_ms))

    def trigger(self, id: CheckpointId, switch_after_ms: float | None) -> None:
        self.perform(self.machine.on_triggered(id, age_ms=0.0, switch_after_ms=switch_after_ms, now_ms=self.now_ms))

    def abort(self, id: CheckpointId) -> None:
        self.perform(self.machine.on_abort(id))

    def pass_time(self) -> None:
        self.perform(self.machine.on_time(self.now_ms))

    def consume(self, channel: ChannelId) -> None:
        queue = self.queues[channel]
        if queue and self.machine.may_consume(channel, epoch=CheckpointId(queue[0][1])):
            queue.pop(0)
            self.positions[channel] += 1
            position = Sequence(self.positions[channel])
            self.perform(self.machine.on_consumed(channel, position, now_ms=self.now_ms))

    def consumed(self, channel: ChannelId) -> int:
        return self.positions[channel]

    def perform(self, actions: list[GateAction], arrived: int | None = None) -> None:
        for action in actions:
            match action:
                case TakeSnapshot(checkpoint, kind):
                    assert checkpoint not in self.taken
                    self.taken[checkpoint] = dict(self.positions)
                    if kind is not ALIGNED:
                        self.captures[checkpoint] = {
                            channel: [sequence for sequence, _ in queue] for channel, queue in self.queues.items()
                        }
                case CaptureArrival(checkpoint, channel):
                    assert arrived is not None
                    self.captures[checkpoint][channel].append(arrived)
                case TrimCapture(checkpoint, channel, sequence):
                    kept = [captured for captured in self.captures[checkpoint][channel] if captured < sequence]
                    self.captures[checkpoint][channel] = kept
                case CloseCapture(checkpoint):
                    self.closed.append(checkpoint)
                case DropCapture(checkpoint):
                    self.captures.pop(checkpoint, None)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.integers(0, 1 << 32))
def test_whatever_the_order_each_element_below_a_barrier_is_processed_or_captured_once(count: int, seed: int) -> None:
    exchange = MachineExchange(count)
    for event, number in history(seed):
        exchange.act(event, number)
    exchange.drain()
    whole = exchange.whole()
    assert [checkpoint for checkpoint in exchange.taken if checkpoint in whole] == whole
    assert sorted(checkpoint for checkpoint in exchange.closed if checkpoint in whole) == whole
    assert len(exchange.closed) == len(set(exchange.closed))
    for checkpoint in whole:
        for sender in exchange.senders:
            processed = list(range(exchange.taken[checkpoint][sender.channel]))
            captured = exchange.captures.get(checkpoint, {}).get(sender.channel, [])
            held = list(sender.held.get(checkpoint, ()))
            below = list(range(exchange.before(sender, checkpoint)))
            assert processed + captured + held == below, f"checkpoint {checkpoint} on {sender.channel}"
