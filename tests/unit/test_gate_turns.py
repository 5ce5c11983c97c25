"""No channel of a gate is passed over: whatever may be consumed is found, however barriers, cuts and aborts fall."""

from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.elements import Batch, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import Cut
from tidegate.worker.gate import Arrived, Gate, RecoveredChannel

CHANNELS = [ChannelId(EdgeId(0), sender, 0) for sender in range(3)]
LAST_CHECKPOINT = 3
NONE = CheckpointId(0)
ELEMENTS: dict[str, NumberedElement] = {
    "rows": Batch(pa.record_batch([pa.array([1, 2, 3], pa.int64())], names=["v"])),
    "no rows": Batch(pa.record_batch([pa.array([], pa.int64())], names=["v"])),
    "watermark": Watermark(0),
}

channels = st.sampled_from(CHANNELS)
events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(ELEMENTS)), channels),
        st.tuples(st.sampled_from(["barrier", "cut"]), channels),
        st.tuples(st.just("abort"), st.integers(1, LAST_CHECKPOINT)),
        st.tuples(st.just("step"), st.integers(1, 4)),
    ),
    max_size=40,
)


@dataclass
class Sender:
    """It sends all it has before each barrier, so that it cuts there; the word of it may take its time."""

    next_sequence: int
    newest_barrier: int = 0
    cuts_on_the_way: list[tuple[CheckpointId, Cut]] = field(default_factory=list)


class Link:
    """A gate, and what its senders have done."""

    def __init__(self, recovered: dict[ChannelId, int], switch_after_ms: float | None) -> None:
        stored = {c: tuple(_arrived(n, ELEMENTS["rows"], NONE) for n in range(recovered[c])) for c in CHANNELS}
        self.gate = Gate([(c, RecoveredChannel(stored[c], Sequence(recovered[c]))) for c in CHANNELS], window_bytes=1)
        self.senders = {c: Sender(recovered[c]) for c in CHANNELS}
        self.switch_after_ms = switch_after_ms

    def happen(self, what: str, where: ChannelId | int) -> None:
        if what == "step" and isinstance(where, int):
            self.step(max_rows=where)
        elif what == "abort" and isinstance(where, int):
            self.gate.on_abort(CheckpointId(where))
        elif isinstance(where, ChannelId):
            {"barrier": self.barrier, "cut": self.cut}.get(what, lambda c: self.send(c, ELEMENTS[what]))(where)

    def send(self, channel: ChannelId, element: NumberedElement) -> None:
        sender = self.senders[channel]
        epoch = CheckpointId(sender.newest_barrier)
        self.gate.on_arrival(channel, _arrived(sender.next_sequence, element, epoch), 0.0)
        sender.next_sequence += 1

    def barrier(self, channel: ChannelId) -> None:
        sender = self.senders[channel]
        if sender.newest_barrier == LAST_CHECKPOINT:
            return
        sender.newest_barrier += 1
        checkpoint, before = CheckpointId(sender.newest_barrier), Sequence(sender.next_sequence)
        self.gate.on_barrier(
            channel, checkpoint, before=before, age_ms=0.0, switch_after_ms=self.switch_after_ms, now_ms=0.0
        )
        sender.cuts_on_the_way.append((checkpoint, Cut(before, before)))

    def cut(self, channel: ChannelId) -> None:
        on_the_way = self.senders[channel].cuts_on_the_way
        if on_the_way:
            checkpoint, cut = on_the_way.pop(0)
            self.gate.on_cut(channel, checkpoint, cut, 0.0)

    def step(self, *, max_rows: int) -> bool:
        """As a task does it; checks that it moves exactly if some head may be consumed."""
        before = self.waiting()
        may_move = self.may_consume()
        self.gate.skip_markers(0.0)
        piece = self.gate.next_slice(max_rows)
        if piece is not None:
            self.gate.consumed(piece, 0.0, elapsed_ms=1.0)
        has_moved = piece is not None or self.waiting() < before
        assert has_moved == may_move
        return has_moved

    def may_consume(self) -> bool:
        """By looking at every channel."""
        queues = {channel: state.queue for channel, state in self.gate._channels.items()}
        return any(queue and self.gate._may_consume(channel, queue[0]) for channel, queue in queues.items())

    def waiting(self) -> int:
        return sum(len(state.queue) for state in self.gate._channels.values())


def _arrived(sequence: int, element: NumberedElement, epoch: CheckpointId) -> Arrived:
    return Arrived(Sequence(sequence), epoch, element, 1)


@settings(max_examples=300, deadline=None)
@given(
    recovered=st.fixed_dictionaries({channel: st.integers(0, 2) for channel in CHANNELS}),
    switch_after_ms=st.sampled_from([None, 0.0]),
    happening=events,
)
def test_a_step_moves_exactly_if_a_channel_may_be_consumed(
    recovered: dict[ChannelId, int],
    switch_after_ms: float | None,
    happening: list[tuple[str, ChannelId | int]],
) -> None:
    link = Link(recovered, switch_after_ms)
    for what, where in happening:
        link.happen(what, where)
        assert link.gate.is_empty() == (link.waiting() == 0)
    for channel in CHANNELS:
        while link.senders[channel].newest_barrier < LAST_CHECKPOINT:
            link.barrier(channel)
        for _ in range(LAST_CHECKPOINT):
            link.cut(channel)
    while link.step(max_rows=2):
        pass
    assert link.gate.is_empty()


def test_a_channel_with_much_does_not_keep_the_others_waiting() -> None:
    link = Link(dict.fromkeys(CHANNELS, 0), None)
    for _ in range(5):
        link.send(CHANNELS[0], ELEMENTS["rows"])
    for channel in CHANNELS[1:]:
        link.send(channel, ELEMENTS["rows"])
    turns = []
    while (piece := link.gate.next_slice(3)) is not None:
        turns.append(piece.channel)
        link.gate.consumed(piece, 0.0, elapsed_ms=1.0)
    assert turns == [*CHANNELS, *[CHANNELS[0]] * 4]


def test_what_was_sent_after_a_cut_moves_on_when_the_cut_is_known() -> None:
    link = Link(dict.fromkeys(CHANNELS, 0), 0.0)
    for channel in CHANNELS:
        link.barrier(channel)
    link.send(CHANNELS[0], ELEMENTS["rows"])
    assert not link.step(max_rows=3)
    link.cut(CHANNELS[0])
    assert link.step(max_rows=3)


def test_what_an_aborted_checkpoint_held_back_moves_on() -> None:
    link = Link(dict.fromkeys(CHANNELS, 0), None)
    link.barrier(CHANNELS[0])
    link.cut(CHANNELS[0])
    link.send(CHANNELS[0], ELEMENTS["rows"])
    assert not link.step(max_rows=3)
    link.gate.on_abort(CheckpointId(1))
    assert link.step(max_rows=3)
