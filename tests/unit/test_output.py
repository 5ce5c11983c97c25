"""The sending side of a task: sealing, numbering, windows, and what a checkpoint captures of what is unsent."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tidegate.model.elements import Batch, EndOfInput, Idle, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.network.messages import BarrierSent, ChannelFinished, CutSent, PeerMessage
from tidegate.plan.physical import (
    BroadcastPartitioning,
    ForwardPartitioning,
    HashPartitioning,
    Partitioning,
    PointwisePartitioning,
    RebalancePartitioning,
)
from tidegate.protocol.barriers import Cut
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import UNKNOWN_SPEED, StorageSpeed
from tidegate.protocol.windows import LEAST_ROOM, MostAhead
from tidegate.worker.output import (
    GATHER_BYTES,
    GATHER_MS,
    MARKER_BYTES,
    EdgeOutput,
    OutputChannel,
    Sealed,
    TaskOutput,
)

CHANNEL = ChannelId(EdgeId(3), 0, 1)
INDEX = 7
ONE, TWO = CheckpointId(1), CheckpointId(2)
ALIGNED, UNALIGNED = CheckpointKind.ALIGNED, CheckpointKind.UNALIGNED


@dataclass
class Recorder:
    """A link that notes what it gets, in one list for both lanes."""

    accepts: int = 1000
    sent: list[tuple[int, int, object] | PeerMessage] = field(default_factory=list)

    def can_accept(self) -> bool:
        return self.accepts > 0

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        assert channel == INDEX
        self.accepts -= 1
        self.sent.append((sealed.sequence, epoch, values(sealed)))

    def send_message(self, message: PeerMessage) -> None:
        self.sent.append(message)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], names=["v"])


def values(sealed: Sealed) -> object:
    return sealed.element.rows.column(0).to_pylist() if isinstance(sealed.element, Batch) else sealed.element


def make(
    link: Recorder, *, window_bytes: int = 1 << 20, next_sequence: int = 0, ahead: MostAhead | None = None
) -> OutputChannel:
    sequence = Sequence(next_sequence)
    return OutputChannel(CHANNEL, INDEX, link, window_bytes=window_bytes, next_sequence=sequence, ahead=ahead)


def sealed_rows(output: OutputChannel, *numbers: int) -> None:
    for number in numbers:
        output.gather(rows(number), 0.0)
        output.seal()


def send_all(output: OutputChannel) -> None:
    while output.send_one():
        pass


def barrier(output: OutputChannel, checkpoint: CheckpointId, kind: CheckpointKind, switch_at_ms: float | None) -> None:
    output.barrier(checkpoint, kind, age_ms=5.0, switch_after_ms=30.0, switch_at_ms=switch_at_ms)


def edge(channels: list[OutputChannel], partitioning: Partitioning) -> EdgeOutput:
    return EdgeOutput(channels, partitioning, max_parallelism=16)


def test_small_pieces_are_gathered_into_one_element() -> None:
    link = Recorder()
    output = make(link)
    output.gather(rows(1), 0.0)
    output.gather(rows(2, 3), 10.0)
    send_all(output)
    assert link.sent == []
    assert output.gather_deadline_ms() == GATHER_MS
    output.seal_if_due(GATHER_MS - 1)
    send_all(output)
    assert link.sent == []
    output.seal_if_due(GATHER_MS)
    send_all(output)
    assert link.sent == [(0, 0, [1, 2, 3])]
    assert output.gather_deadline_ms() is None


def test_enough_bytes_are_sealed_without_waiting() -> None:
    link = Recorder()
    output = make(link)
    output.gather(rows(*range(GATHER_BYTES // 8)), 0.0)
    send_all(output)
    assert len(link.sent) == 1


def test_what_fills_a_window_at_once_becomes_several_elements() -> None:
    link = Recorder()
    output = make(link, window_bytes=640)
    output.gather(rows(*range(35)), 0.0)
    assert output.in_flight_bytes() == 35 * 8 + 3 * MARKER_BYTES
    send_all(output)
    assert link.sent == [(0, 0, list(range(11))), (1, 0, list(range(11, 23))), (2, 0, list(range(23, 35)))]
    output.on_granted(Sequence(3), 640, 0.0)
    assert output.in_flight_bytes() == 0


def test_what_is_far_larger_than_a_window_does_not_become_a_thousand_elements() -> None:
    link = Recorder()
    output = make(link, window_bytes=8)
    output.gather(rows(*range(10_000)), 0.0)
    send_all(output)
    assert [len(part) for _, _, part in link.sent] == [1250] * 8
    sealed_rows(output, 7)
    send_all(output)
    assert link.sent[8:] == [(8, 0, [7])]


def test_the_end_comes_behind_what_was_gathered() -> None:
    link = Recorder()
    output = make(link, next_sequence=4)
    output.gather(rows(1), 0.0)
    output.end()
    send_all(output)
    assert link.sent == [(4, 0, [1]), (5, 0, EndOfInput())]


def test_what_the_link_does_not_take_stays() -> None:
    link = Recorder(accepts=1)
    output = make(link)
    sealed_rows(output, 1, 2)
    assert output.send_one()
    assert not output.send_one()
    link.accepts = 1
    assert output.send_one()
    assert link.sent == [(0, 0, [1]), (1, 0, [2])]


def test_the_window_is_spent_by_sealing_and_comes_back_by_grants() -> None:
    link = Recorder()
    output = make(link, window_bytes=80)
    output.gather(rows(1), 0.0)
    assert output.in_flight_bytes() == 8
    assert link.sent == []
    output.seal()
    assert output.in_flight_bytes() == 8 + MARKER_BYTES
    assert output.has_room()
    sealed_rows(output, 2)
    assert not output.has_room()
    send_all(output)
    assert not output.has_room()
    output.on_granted(Sequence(1), 80, 0.0)
    assert output.has_room()
    output.on_granted(Sequence(2), 80, 0.0)
    assert output.in_flight_bytes() == 0


def test_an_unaligned_barrier_seals_overtakes_and_captures_what_is_unsent() -> None:
    link = Recorder(accepts=1)
    output = make(link)
    sealed_rows(output, 1, 2)
    output.send_one()
    output.gather(rows(3), 0.0)
    barrier(output, ONE, UNALIGNED, None)
    at = Sequence
    assert link.sent[1:] == [BarrierSent(INDEX, ONE, at(3), 5.0, 30.0), CutSent(INDEX, ONE, at(1), at(3))]
    assert output.is_decided(ONE)
    held = output.take_held(ONE)
    assert held is not None
    assert (held.channel, held.cut) == (CHANNEL, Cut(at(1), at(3)))
    assert [(s.sequence, values(s)) for s in held.elements] == [(1, [2]), (2, [3])]
    assert output.take_held(ONE) is None


def test_what_was_captured_is_still_sent_and_carries_the_new_epoch() -> None:
    link = Recorder(accepts=0)
    output = make(link)
    sealed_rows(output, 1)
    barrier(output, ONE, UNALIGNED, None)
    link.accepts, link.sent = 10, []
    sealed_rows(output, 2)
    send_all(output)
    assert link.sent == [(0, 1, [1]), (1, 1, [2])]


def test_an_aligned_barrier_is_decided_once_everything_before_it_is_sent() -> None:
    link = Recorder(accepts=0)
    output = make(link)
    sealed_rows(output, 1, 2)
    barrier(output, ONE, ALIGNED, None)
    sealed_rows(output, 3)
    assert not output.is_decided(ONE)
    link.accepts, link.sent = 10, []
    send_all(output)
    cut = CutSent(INDEX, ONE, Sequence(2), Sequence(2))
    assert link.sent == [(0, 0, [1]), (1, 0, [2]), cut, (2, 1, [3])]
    assert output.is_decided(ONE)
    assert output.take_held(ONE) is None


def test_an_aligned_barrier_switches_at_its_deadline_and_captures_what_is_left_before_it() -> None:
    link = Recorder(accepts=1)
    output = make(link)
    sealed_rows(output, 1, 2)
    barrier(output, ONE, ALIGNED, 80.0)
    sealed_rows(output, 3)
    output.send_one()
    assert output.switch_deadline_ms() == 80.0
    output.on_time(79.0, storage=UNKNOWN_SPEED)
    assert not output.is_decided(ONE)
    output.on_time(80.0, storage=UNKNOWN_SPEED)
    assert link.sent[-1] == CutSent(INDEX, ONE, Sequence(1), Sequence(2))
    held = output.take_held(ONE)
    assert held is not None
    assert [values(s) for s in held.elements] == [[2]]


@pytest.mark.parametrize(
    ("storage", "is_cut"), [(StorageSpeed(1000, 1.0), True), (UNKNOWN_SPEED, False), (StorageSpeed(1, 1e9), False)]
)
def test_an_aligned_barrier_switches_early_if_the_receiver_is_slow_and_storage_can_take_what_waits(
    storage: StorageSpeed, is_cut: bool
) -> None:
    output = make(Recorder(accepts=3))
    sealed_rows(output, *range(40))
    send_all(output)
    for consumed in (1, 2):
        output.on_granted(Sequence(consumed), 1 << 20, 1000.0 * consumed)
    barrier(output, ONE, ALIGNED, 4000.0)
    output.on_time(2001.0, storage=storage)
    assert output.is_decided(ONE) is is_cut


def test_what_comes_behind_the_barrier_is_in_the_next_capture_only() -> None:
    link = Recorder(accepts=0)
    output = make(link)
    sealed_rows(output, 1)
    barrier(output, ONE, UNALIGNED, None)
    sealed_rows(output, 2)
    barrier(output, TWO, UNALIGNED, None)
    first, second = output.take_held(ONE), output.take_held(TWO)
    assert first is not None
    assert second is not None
    assert [values(s) for s in first.elements] == [[1]]
    assert [values(s) for s in second.elements] == [[1], [2]]


def test_an_aborted_checkpoint_leaves_nothing_behind() -> None:
    link = Recorder(accepts=0)
    output = make(link)
    sealed_rows(output, 1)
    barrier(output, ONE, ALIGNED, 50.0)
    barrier(output, TWO, UNALIGNED, None)
    output.on_abort(TWO)
    assert output.take_held(TWO) is None
    output.on_abort(ONE)
    assert output.is_decided(ONE)
    assert output.switch_deadline_ms() is None


def test_rows_of_one_key_always_go_to_the_same_channel_and_none_is_lost() -> None:
    links = [Recorder(), Recorder(), Recorder()]
    output = edge([make(link) for link in links], HashPartitioning(1))
    for start in range(0, 60, 20):
        output.emit(rows(*(n % 13 for n in range(start, start + 20))), 0.0)
    for channel in output.channels:
        channel.end()
        send_all(channel)
    per_channel = [
        Counter(key for _, _, keys in _elements(link) if isinstance(keys, list) for key in keys) for link in links
    ]
    assert sum(per_channel, Counter()) == Counter(n % 13 for n in range(60))
    assert all(sum(key in counts for counts in per_channel) == 1 for key in range(13))


def _elements(link: Recorder) -> "list[tuple[int, int, object]]":
    return [item for item in link.sent if isinstance(item, tuple)]


def test_a_slice_may_emit_what_every_channel_has_room_for_by_its_share() -> None:
    hot, cold = make(Recorder(), window_bytes=1000), make(Recorder(), window_bytes=100_000)
    output = TaskOutput([edge([hot, cold], HashPartitioning(1))])
    hot.gather(rows(*range(90)), 0.0)
    cold.gather(rows(*range(10)), 0.0)
    hot.on_granted(Sequence(9), 1000, 0.0)
    assert output.room_bytes() == pytest.approx((1000 - hot.in_flight_bytes()) / 0.9)


def test_a_slice_to_channels_in_turn_may_emit_what_the_next_one_has_room_for() -> None:
    full, empty = make(Recorder(), window_bytes=1000), make(Recorder(), window_bytes=1000)
    output = TaskOutput([edge([full, empty], RebalancePartitioning())])
    output.emit(rows(*range(50)), 0.0)
    assert output.room_bytes() == 1000
    output.emit(rows(*range(50)), 0.0)
    assert output.room_bytes() == 1000 - full.in_flight_bytes()


def test_a_sender_that_may_be_so_far_ahead_has_no_room_when_the_receiver_has_as_much_work() -> None:
    output = make(Recorder(), ahead=MostAhead(1000.0, unknown_bytes=150))
    sealed_rows(output, *range(3))
    assert output.has_room(), "120 bytes"
    sealed_rows(output, 4)
    assert not output.has_room()
    send_all(output)
    for consumed in range(1, 4):
        output.on_granted(Sequence(consumed), 1 << 20, 100.0 * consumed)
    sealed_rows(output, *range(7))
    assert output.has_room(), "40 bytes take the receiver 100 ms: eight elements are in flight, and a slice has room"
    sealed_rows(output, 4)
    assert not output.has_room()


def test_how_far_a_sender_may_be_ahead_follows_the_receiver_over_an_interval_and_not_each_of_its_swings() -> None:
    output = make(Recorder(), ahead=MostAhead(10_000.0, unknown_bytes=1 << 20))
    sealed_rows(output, *range(1200))
    send_all(output)
    # Elements of 40 bytes: one in 100 ms, which is 4,000 bytes in an interval; then two.
    slow = [(consumed, 100.0 * consumed) for consumed in range(1, 101)]
    fast = [(100 + 2 * tenth, 10_000.0 + 100.0 * tenth) for tenth in range(1, 501)]
    limits_bytes = []
    for consumed, now_ms in [*slow, *fast]:
        output.on_granted(Sequence(consumed), 1 << 20, now_ms)
        limits_bytes.append(output.room_bytes() / LEAST_ROOM)
    assert limits_bytes[99] == pytest.approx(4000, rel=0.01)
    assert limits_bytes[109] == pytest.approx(4000, rel=0.15), "a second later"
    assert limits_bytes[499] == pytest.approx(8000, rel=0.1), "four intervals later"


def test_how_far_a_sender_may_be_ahead_is_the_same_while_the_receiver_is_nearly_as_quick() -> None:
    output = make(Recorder(), ahead=MostAhead(10_000.0, unknown_bytes=1 << 20))
    sealed_rows(output, *range(1200))
    send_all(output)
    limits_bytes, now_ms = [], 0.0
    for consumed in range(1, 801):
        # Twenty elements a little slower than 100 ms each, twenty a little quicker.
        now_ms += 110.0 if consumed // 20 % 2 else 90.0
        output.on_granted(Sequence(consumed), 1 << 20, now_ms)
        limits_bytes.append(output.room_bytes() / LEAST_ROOM)
    assert len(set(limits_bytes[100:])) == 1
    assert limits_bytes[-1] == pytest.approx(4000, rel=0.13)


def test_what_is_gathered_takes_room_too_and_the_last_slice_must_fit() -> None:
    output = make(Recorder(), window_bytes=8000)
    output.gather(rows(*range(500)), 0.0)
    send_all(output)
    output.gather(rows(*range(346)), 0.0)
    assert (output.in_flight_bytes() < 7000, output.has_room()) == (True, True)
    output.gather(rows(*range(10)), 0.0)
    assert (output.in_flight_bytes() > 7000, output.has_room()) == (True, False)


def test_a_full_window_still_lets_slices_of_some_size_through() -> None:
    output = make(Recorder(), window_bytes=800)
    output.gather(rows(*range(99)), 0.0)
    assert output.room_bytes() == 100


def test_a_task_has_room_when_every_channel_has() -> None:
    full, empty = make(Recorder(), window_bytes=1), make(Recorder(), window_bytes=1)
    output = TaskOutput([edge([full, empty], HashPartitioning(1))])
    assert output.has_room()
    sealed_rows(full, 1)
    assert not output.has_room()


# -- windows that change


def test_a_grant_carries_the_window_and_a_smaller_one_has_room_only_when_enough_is_consumed() -> None:
    output = make(Recorder(), window_bytes=1000)
    sealed_rows(output, 1, 2)
    assert output.has_room()
    output.on_granted(Sequence(0), 50, 0.0)
    assert output.window_bytes == 50
    assert not output.has_room()
    output.on_granted(Sequence(1), 50, 0.0)
    assert output.has_room()
    output.on_granted(Sequence(1), 2000, 0.0)
    assert output.window_bytes == 2000


def test_not_more_than_an_eighth_of_a_window_is_gathered() -> None:
    link = Recorder()
    output = make(link)
    output.on_granted(Sequence(0), 256, 0.0)
    output.gather(rows(1, 2, 3), 0.0)
    send_all(output)
    assert link.sent == []
    output.gather(rows(4), 0.0)
    send_all(output)
    assert link.sent == [(0, 0, [1, 2, 3, 4])]


# -- marks


def test_watermarks_and_idleness_come_behind_the_rows_before_them() -> None:
    link = Recorder()
    output = make(link)
    output.gather(rows(1), 0.0)
    output.watermark(50)
    output.gather(rows(2), 0.0)
    output.idle()
    send_all(output)
    assert link.sent == [(0, 0, [1]), (1, 0, Watermark(50)), (2, 0, [2]), (3, 0, Idle())]


def test_a_mark_is_captured_like_rows() -> None:
    output = make(Recorder(accepts=0))
    output.watermark(50)
    barrier(output, ONE, UNALIGNED, None)
    held = output.take_held(ONE)
    assert held is not None
    assert [values(sealed) for sealed in held.elements] == [Watermark(50)]


def test_a_finished_channel_tells_its_receiver() -> None:
    link = Recorder()
    make(link).finish()
    assert link.sent == [ChannelFinished(INDEX)]


# -- partitionings


def emitted(partitioning: Partitioning, receivers: int, batches: list[pa.RecordBatch]) -> list[list[object]]:
    """What each receiver gets."""
    links = [Recorder() for _ in range(receivers)]
    output = TaskOutput([edge([make(link) for link in links], partitioning)])
    for batch in batches:
        output.emit(batch, 0.0)
    for channel in output.channels:
        channel.seal()
        send_all(channel)
    return [[number for _, _, numbers in _elements(link) for number in _numbers(numbers)] for link in links]


def _numbers(values: object) -> list[object]:
    assert isinstance(values, list)
    return values


@pytest.mark.parametrize("partitioning", [RebalancePartitioning(), PointwisePartitioning()])
def test_whole_batches_go_to_the_receivers_in_turn(partitioning: Partitioning) -> None:
    batches = [rows(number, number) for number in range(6)]
    found = emitted(partitioning, 3, batches)
    assert sorted(map(tuple, found)) == [(0, 0, 3, 3), (1, 1, 4, 4), (2, 2, 5, 5)]


def test_broadcast_rows_go_to_every_receiver() -> None:
    assert emitted(BroadcastPartitioning(), 3, [rows(1, 2), rows(3)]) == [[1, 2, 3]] * 3


def test_forward_rows_go_to_the_one_receiver() -> None:
    assert emitted(ForwardPartitioning(), 1, [rows(1, 2), rows(3)]) == [[1, 2, 3]]


def test_a_batch_without_rows_is_not_sent_anywhere() -> None:
    assert emitted(BroadcastPartitioning(), 2, [rows()]) == [[], []]


# -- several edges


def test_every_edge_of_a_task_gets_all_its_rows() -> None:
    links = [Recorder() for _ in range(3)]
    first = edge([make(links[0])], ForwardPartitioning())
    second = edge([make(links[1]), make(links[2])], BroadcastPartitioning())
    output = TaskOutput([first, second])
    output.emit(rows(1, 2), 0.0)
    for channel in output.channels:
        channel.seal()
        send_all(channel)
    assert [link.sent for link in links] == [[(0, 0, [1, 2])]] * 3


def test_a_task_is_decided_and_has_room_only_if_every_edge_is() -> None:
    stuck, free = Recorder(accepts=0), Recorder()
    one, other = make(stuck, window_bytes=1), make(free, window_bytes=1000)
    output = TaskOutput([edge([one], ForwardPartitioning()), edge([other], ForwardPartitioning())])
    assert output.room_bytes() == 1001
    output.emit(rows(1), 0.0)
    assert not output.has_room()
    assert output.in_flight_bytes() == 8 + MARKER_BYTES + 8
    for channel in output.channels:
        barrier(channel, ONE, ALIGNED, 80.0)
    send_all(other)
    assert not output.is_decided(ONE)
    assert list(output.deadlines_ms()) == [80.0]
    one.on_time(80.0, storage=UNKNOWN_SPEED)
    assert output.is_decided(ONE)
    (held,) = output.take_held(ONE)
    assert [values(sealed) for sealed in held.elements] == [[1]]
