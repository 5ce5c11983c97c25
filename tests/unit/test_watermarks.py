"""Watermarks: the minimum over live channels, never back; idle channels do not count, ended ones as a whole edge."""

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import ChannelId, EdgeId, KeyGroupRange
from tidegate.protocol.watermarks import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    Advance,
    BecomeActive,
    BecomeIdle,
    ChannelWatermark,
    GateWatermarks,
    KeyGroupFloors,
    WatermarkAction,
)


def channel(sender: int, *, edge: int = 0) -> ChannelId:
    return ChannelId(EdgeId(edge), sender, 0)


A, B, C = channel(0), channel(1), channel(2)


def test_the_gate_waits_for_the_first_watermark_of_every_channel() -> None:
    gate = GateWatermarks([A, B])
    assert gate.on_watermark(A, 10) == []
    assert gate.current_ms == MIN_WATERMARK_MS
    assert gate.on_watermark(B, 20) == [Advance(10)]
    assert gate.current_ms == 10


def test_the_slowest_channel_holds_the_gate() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(A, 10)
    gate.on_watermark(B, 10)
    assert gate.on_watermark(B, 50) == []
    assert gate.on_watermark(A, 30) == [Advance(30)]
    assert gate.on_watermark(A, 90) == [Advance(50)]


def test_a_smaller_watermark_of_a_channel_is_ignored() -> None:
    gate = GateWatermarks([A])
    gate.on_watermark(A, 10)
    assert gate.on_watermark(A, 5) == []
    assert gate.snapshot() == {A: ChannelWatermark(10, is_idle=False)}


def test_an_idle_channel_no_longer_holds_the_gate() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(A, 10)
    assert gate.on_idle(B) == [Advance(10)]
    assert gate.on_watermark(A, 20) == [Advance(20)]


def test_when_every_channel_is_idle_nothing_advances_and_it_is_said_once() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(A, 10)
    gate.on_watermark(B, 30)
    assert gate.on_idle(A) == [Advance(30)]
    assert gate.on_idle(B) == [BecomeIdle()]
    assert gate.on_idle(B) == []
    assert gate.is_idle
    assert gate.current_ms == 30


def test_an_idle_gate_is_active_again_with_the_first_rows() -> None:
    gate = GateWatermarks([A, B])
    gate.on_idle(A)
    gate.on_idle(B)
    assert gate.on_rows(A) == (BecomeActive(),)
    assert gate.on_rows(B) == ()
    assert not gate.is_idle


def test_an_idle_gate_is_active_before_it_advances() -> None:
    gate = GateWatermarks([A])
    assert gate.on_idle(A) == [BecomeIdle()]
    assert gate.on_watermark(A, 7) == [BecomeActive(), Advance(7)]


def test_rows_of_an_active_channel_change_nothing() -> None:
    gate = GateWatermarks([A, B])
    assert gate.on_rows(A) == ()
    assert gate.on_rows(A) is gate.on_rows(B)


def test_a_channel_that_is_active_again_behind_the_gate_holds_it_but_does_not_pull_it_back() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(B, 5)
    gate.on_idle(B)
    gate.on_watermark(A, 100)
    assert gate.on_rows(B) == ()
    assert gate.current_ms == 100
    assert gate.on_watermark(A, 200) == []
    assert gate.on_watermark(B, 60) == []
    assert gate.on_watermark(B, 150) == [Advance(150)]


def test_the_end_of_the_slowest_channel_lets_the_gate_go_on() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(A, 10)
    assert gate.on_end(B) == [Advance(10)]


def test_the_end_of_the_last_channel_is_not_idleness() -> None:
    gate = GateWatermarks([A, B])
    gate.on_watermark(A, 10)
    gate.on_watermark(B, 20)
    assert gate.on_end(A) == [Advance(20)]
    assert gate.on_end(B) == []
    assert not gate.is_idle
    assert gate.current_ms == 20


def test_an_edge_that_has_ended_has_come_as_far_as_the_furthest_of_its_channels() -> None:
    gate = GateWatermarks([A, B, C])
    gate.on_watermark(A, 30)
    gate.on_watermark(B, 20)
    assert gate.on_end(C) == [Advance(20)]
    assert gate.on_end(A) == []
    assert gate.on_end(B) == [Advance(30)]


def test_an_edge_that_has_ended_goes_on_holding_back_the_others() -> None:
    other = channel(0, edge=1)
    gate = GateWatermarks([A, B, other])
    gate.on_watermark(A, 30)
    gate.on_watermark(B, 20)
    gate.on_watermark(other, 100)
    gate.on_end(B)
    assert gate.on_end(A) == []
    assert gate.current_ms == 30
    assert gate.on_watermark(other, 200) == []
    assert gate.on_end(other) == []


def test_edges_whose_event_time_begins_in_one_place_end_as_one() -> None:
    other, third = channel(0, edge=1), channel(0, edge=2)
    gate = GateWatermarks([A, other, third], event_time_of={EdgeId(1): EdgeId(0)})
    gate.on_watermark(A, 30)
    gate.on_watermark(other, 100)
    assert gate.on_watermark(third, 70) == [Advance(30)]
    assert gate.on_end(A) == [Advance(70)], "an ended part of a union holds nothing back while another part goes on"
    assert gate.on_watermark(third, 200) == [Advance(100)]
    assert gate.on_end(other) == []
    assert gate.on_end(third) == [], "of two places the least counts"
    assert gate.current_ms == 100


def test_an_edge_that_ended_without_event_time_holds_back_nothing() -> None:
    other = channel(0, edge=1)
    gate = GateWatermarks([A, other])
    gate.on_watermark(A, 30)
    assert gate.on_end(other) == [Advance(30)]
    assert gate.on_end(A) == []


def test_a_gate_whose_only_active_channel_ends_is_idle() -> None:
    gate = GateWatermarks([A, B])
    gate.on_idle(A)
    assert gate.on_end(B) == [BecomeIdle()]
    assert gate.on_end(A) == []


def test_the_largest_watermark_passes() -> None:
    gate = GateWatermarks([A])
    assert gate.on_watermark(A, MAX_WATERMARK_MS) == [Advance(MAX_WATERMARK_MS)]


def test_whatever_comes_after_the_end_of_a_channel_is_a_violation() -> None:
    gate = GateWatermarks([A, B])
    gate.on_end(A)
    for kind in ("watermark", "rows", "idle", "end"):
        with pytest.raises(ProtocolViolation, match="e0:0->0 has ended"):
            applied(gate, kind, A, 1)


def test_a_snapshot_holds_the_channels_that_left_their_initial_value() -> None:
    gate = GateWatermarks([A, B, C])
    gate.on_watermark(A, 10)
    gate.on_idle(B)
    assert gate.snapshot() == {
        A: ChannelWatermark(10, is_idle=False),
        B: ChannelWatermark(MIN_WATERMARK_MS, is_idle=True),
    }


def test_a_restored_gate_does_not_say_again_what_downstream_knows() -> None:
    restored = {A: ChannelWatermark(10, is_idle=True), B: ChannelWatermark(20, is_idle=True)}
    gate = GateWatermarks([A, B], restored=restored, current_ms=20)
    assert gate.is_idle
    assert gate.on_idle(A) == []
    assert gate.on_rows(B) == (BecomeActive(),)
    assert gate.current_ms == 20


def test_a_restored_gate_that_lags_behind_its_channels_catches_up_with_the_next_event() -> None:
    restored = {A: ChannelWatermark(10, is_idle=False), B: ChannelWatermark(20, is_idle=False)}
    gate = GateWatermarks([A, B], restored=restored)
    assert gate.on_watermark(B, 20) == [Advance(10)]


def test_a_snapshot_of_a_channel_that_the_gate_does_not_read_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="e0:1->0"):
        GateWatermarks([A], restored={B: ChannelWatermark(1, is_idle=False)})


class Naive:
    """The rule itself: the whole minimum for every event."""

    def __init__(self, channels: list[ChannelId]) -> None:
        self.times = dict.fromkeys(channels, MIN_WATERMARK_MS)
        self.idle: set[ChannelId] = set()
        self.ended: set[ChannelId] = set()
        self.current_ms = MIN_WATERMARK_MS
        self.is_idle = False

    def settle(self) -> list[WatermarkAction]:
        active = [time for c, time in self.times.items() if c not in self.idle | self.ended]
        all_ended = len(self.ended) == len(self.times)
        if not active and not all_ended:
            was_idle, self.is_idle = self.is_idle, True
            return [] if was_idle else [BecomeIdle()]
        actions: list[WatermarkAction] = [BecomeActive()] if self.is_idle and not all_ended else []
        self.is_idle = self.is_idle and all_ended
        lowest = min([*active, *self.ended_edges()], default=self.current_ms)
        if lowest > self.current_ms:
            self.current_ms = lowest
            actions.append(Advance(self.current_ms))
        return actions

    def ended_edges(self) -> Iterator[int]:
        for edge in {c.edge for c in self.times}:
            channels = {c for c in self.times if c.edge == edge}
            furthest = max(self.times[c] for c in channels)
            if channels <= self.ended and furthest > MIN_WATERMARK_MS:
                yield furthest

    def apply(self, kind: str, at: ChannelId, time: int) -> list[WatermarkAction]:
        if kind == "watermark":
            self.times[at] = max(self.times[at], time)
        if kind == "idle":
            self.idle.add(at)
        elif kind == "end":
            self.ended.add(at)
        else:
            self.idle.discard(at)
        return self.settle()


def applied(gate: GateWatermarks, kind: str, at: ChannelId, time: int) -> Sequence[WatermarkAction]:
    match kind:
        case "watermark":
            return gate.on_watermark(at, time)
        case "rows":
            return gate.on_rows(at)
        case "idle":
            return gate.on_idle(at)
        case _:
            return gate.on_end(at)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["watermark", "watermark", "watermark", "rows", "idle", "end"]),
        st.integers(0, 4),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(EVENTS, st.integers(0, 60))
def test_every_event_gives_what_the_whole_minimum_gives_also_after_a_restore(
    events: list[tuple[str, int, int]], restore_at: int
) -> None:
    channels = [channel(sender, edge=sender // 3) for sender in range(5)]
    gate, naive = GateWatermarks(channels), Naive(channels)
    for at, (kind, sender, time) in enumerate(events):
        if at == restore_at and not naive.ended:
            gate = GateWatermarks(channels, restored=gate.snapshot(), current_ms=gate.current_ms)
        if channels[sender] in naive.ended:
            continue
        before_ms = gate.current_ms
        actions = list(applied(gate, kind, channels[sender], time))
        assert actions == naive.apply(kind, channels[sender], time)
        assert (gate.current_ms, gate.is_idle) == (naive.current_ms, naive.is_idle)
        assert gate.current_ms >= before_ms


def test_a_gate_of_a_thousand_channels_does_not_grow_with_its_events() -> None:
    """Each channel has one heap entry at most, whatever happens to it."""
    chance = random.Random(7)
    channels = [channel(sender) for sender in range(1000)]
    gate = GateWatermarks(channels)
    for turn in range(20_000):
        at = channels[chance.randrange(1000)]
        if turn % 10 == 0:
            gate.on_idle(at)
        else:
            gate.on_watermark(at, turn)
    assert len(gate._heap) <= 1000
    assert gate.current_ms > MIN_WATERMARK_MS


# -- key-group floors


def test_a_key_group_goes_by_the_later_of_its_old_owner_and_its_task() -> None:
    floors = KeyGroupFloors([(KeyGroupRange(0, 4), 100), (KeyGroupRange(4, 8), 50)])
    assert [floors.of(group, 60) for group in (0, 3, 4, 7)] == [100, 100, 60, 60]
    assert floors.of(0, 200) == 200


def test_a_key_group_without_a_floor_goes_by_its_task() -> None:
    floors = KeyGroupFloors([(KeyGroupRange(2, 4), 100), (KeyGroupRange(6, 8), 100)])
    assert [floors.of(group, 1) for group in (1, 4, 5, 8)] == [1, 1, 1, 1]
    assert KeyGroupFloors([]).of(0, MIN_WATERMARK_MS) == MIN_WATERMARK_MS


def test_floors_are_pending_until_the_task_has_reached_the_highest() -> None:
    floors = KeyGroupFloors([(KeyGroupRange(0, 4), 100), (KeyGroupRange(4, 8), 50)])
    assert floors.pending(99)
    assert not floors.pending(100)
    assert not KeyGroupFloors([]).pending(MIN_WATERMARK_MS)


def test_the_next_snapshot_keeps_the_floors_above_the_task() -> None:
    floors = KeyGroupFloors([(KeyGroupRange(4, 8), 50), (KeyGroupRange(0, 4), 100)])
    assert floors.above(20) == ((KeyGroupRange(0, 4), 100), (KeyGroupRange(4, 8), 50))
    assert floors.above(50) == ((KeyGroupRange(0, 4), 100),)
    assert floors.above(100) == ()


def test_neighbours_with_the_same_floor_are_joined() -> None:
    floors = KeyGroupFloors([(KeyGroupRange(0, 4), 50), (KeyGroupRange(4, 8), 50)])
    assert floors.above(0) == ((KeyGroupRange(0, 8), 50),)


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(-5, 20)), max_size=8),
    st.integers(-6, 21),
)
def test_overlapping_floors_give_each_key_group_its_highest(spans: list[tuple[int, int, int]], task_ms: int) -> None:
    given_floors = [(KeyGroupRange(first, last), floor_ms) for first, last, floor_ms in spans]
    floors = KeyGroupFloors(given_floors)
    kept = KeyGroupFloors(floors.above(task_ms))
    for group in range(16):
        expected_ms = max([task_ms, *(floor_ms for key_groups, floor_ms in given_floors if group in key_groups)])
        assert floors.of(group, task_ms) == expected_ms
        assert kept.of(group, task_ms) == expected_ms
    assert floors.pending(task_ms) == bool(floors.above(task_ms))
