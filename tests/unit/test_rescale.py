"""Who takes over what is stored: every captured row once, at its owner, over channels that exist, in its order."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import ChannelId, EdgeId, KeyGroupRange, Sequence, range_of
from tidegate.protocol.rescale import (
    EdgeKind,
    EdgeShape,
    InFlight,
    Piece,
    connections,
    keeps_channels,
    key_group_floors,
    most_advanced,
    most_advanced_of,
    overlapping,
    recovered_channels,
    recovered_count,
    regrouped_floors,
    restored_watermark,
    split_items,
)

HASH, REBALANCE, POINTWISE = EdgeKind.HASH, EdgeKind.REBALANCE, EdgeKind.POINTWISE
BROADCAST, FORWARD = EdgeKind.BROADCAST, EdgeKind.FORWARD
EDGE = EdgeId(3)
MAX_PARALLELISM = 16


def shape(
    kind: EdgeKind, senders: int, receivers: int, edge: int = EDGE, key_groups: int = MAX_PARALLELISM
) -> EdgeShape:
    return EdgeShape(
        edge=EdgeId(edge),
        kind=kind,
        senders=senders,
        receivers=receivers,
        key_groups=key_groups if kind is HASH else None,
    )


def channel(sender: int, receiver: int, edge: int = EDGE) -> ChannelId:
    return ChannelId(EdgeId(edge), sender, receiver)


def in_flight(at: ChannelId, first: int, before: int, row: int = 0) -> InFlight:
    return InFlight(channel=at, first=Sequence(first), row=row, before=Sequence(before))


def everywhere(kind: EdgeKind, senders: int, receivers: int) -> list[InFlight]:
    """One element on every channel."""
    return [in_flight(channel(s, r), 0, 1) for s, r in connections(shape(kind, senders, receivers))]


def recovered(
    old: EdgeShape, new: EdgeShape, parts: list[InFlight], broadcast_from: int | None = None
) -> dict[ChannelId, tuple[Piece, ...]]:
    return recovered_channels(old, new, parts, broadcast_from=broadcast_from)


# -- which channels there are


@pytest.mark.parametrize("kind", [HASH, REBALANCE, BROADCAST])
def test_everybody_is_connected_to_everybody(kind: EdgeKind) -> None:
    assert connections(shape(kind, 2, 3)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_forward_edge_connects_equals() -> None:
    assert connections(shape(FORWARD, 3, 3)) == [(0, 0), (1, 1), (2, 2)]


def test_a_forward_edge_needs_as_many_senders_as_receivers() -> None:
    with pytest.raises(ProtocolViolation, match="Forward edge 3 joins 2 senders to 3 receivers"):
        connections(shape(FORWARD, 2, 3))


def test_pointwise_gives_every_sender_neighbouring_receivers() -> None:
    assert connections(shape(POINTWISE, 2, 5)) == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)]


def test_pointwise_gives_every_receiver_neighbouring_senders() -> None:
    assert connections(shape(POINTWISE, 5, 2)) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]


@given(st.integers(1, 12), st.integers(1, 12))
def test_pointwise_leaves_nobody_out_and_is_balanced(senders: int, receivers: int) -> None:
    pairs = connections(shape(POINTWISE, senders, receivers))
    assert pairs == sorted(pairs)
    assert {s for s, _ in pairs} == set(range(senders))
    assert {r for _, r in pairs} == set(range(receivers))
    assert len(pairs) == max(senders, receivers)
    fewer = [s for s, _ in pairs] if senders <= receivers else [r for _, r in pairs]
    counts = [fewer.count(subtask) for subtask in set(fewer)]
    assert max(counts) - min(counts) <= 1


# -- captured elements, by example


@pytest.mark.parametrize("kind", list(EdgeKind))
def test_with_the_same_shape_every_channel_is_its_own(kind: EdgeKind) -> None:
    same = shape(kind, 2, 2)
    parts = everywhere(kind, 2, 2)
    assert keeps_channels(same, shape(kind, 2, 2, edge=9))
    assert recovered(same, same, parts) == {part.channel: (Piece(part.channel, None),) for part in parts}


def test_a_kept_channel_with_nothing_in_flight_is_there_since_its_numbering_goes_on() -> None:
    same = shape(HASH, 1, 1)
    assert recovered(same, same, [in_flight(channel(0, 0), 7, 7)]) == {
        channel(0, 0): (Piece(channel(0, 0), None),),
    }


def test_a_kept_channel_follows_its_edge_to_another_number() -> None:
    old, new = shape(FORWARD, 1, 1), shape(FORWARD, 1, 1, edge=8)
    assert recovered(old, new, [in_flight(channel(0, 0), 0, 1)]) == {
        channel(0, 0, edge=8): (Piece(channel(0, 0), None),),
    }


@pytest.mark.parametrize(
    "other", [shape(HASH, 3, 2), shape(HASH, 2, 3), shape(HASH, 2, 2, key_groups=32), shape(REBALANCE, 2, 2)]
)
def test_another_shape_keeps_no_channels(other: EdgeShape) -> None:
    assert not keeps_channels(shape(HASH, 2, 2), other)


def test_hash_from_two_to_three_splits_by_key_groups() -> None:
    old, new = shape(HASH, 2, 2), shape(HASH, 3, 3)
    # Old ranges: [0, 8) [8, 16). New ones: [0, 6) [6, 11) [11, 16).
    assert recovered(old, new, everywhere(HASH, 2, 2)) == {
        channel(0, 0): (Piece(channel(0, 0), KeyGroupRange(0, 6)),),
        channel(0, 1): (Piece(channel(0, 0), KeyGroupRange(6, 8)), Piece(channel(0, 1), KeyGroupRange(8, 11))),
        channel(0, 2): (Piece(channel(0, 1), KeyGroupRange(11, 16)),),
        channel(1, 0): (Piece(channel(1, 0), KeyGroupRange(0, 6)),),
        channel(1, 1): (Piece(channel(1, 0), KeyGroupRange(6, 8)), Piece(channel(1, 1), KeyGroupRange(8, 11))),
        channel(1, 2): (Piece(channel(1, 1), KeyGroupRange(11, 16)),),
    }


def test_hash_to_one_gathers_whole_channels_by_old_sender_then_old_receiver() -> None:
    shuffled = list(reversed(everywhere(HASH, 2, 2)))
    assert recovered(shape(HASH, 2, 2), shape(HASH, 1, 1), shuffled) == {
        channel(0, 0): tuple(Piece(channel(s, r), None) for s, r in [(0, 0), (0, 1), (1, 0), (1, 1)]),
    }


def test_rebalance_goes_on_at_the_old_receivers_successor() -> None:
    assert recovered(shape(REBALANCE, 3, 3), shape(REBALANCE, 2, 2), everywhere(REBALANCE, 3, 3)) == {
        channel(0, 0): tuple(Piece(channel(s, r), None) for s, r in [(0, 0), (0, 2), (2, 0), (2, 2)]),
        channel(0, 1): tuple(Piece(channel(s, r), None) for s, r in [(0, 1), (2, 1)]),
        channel(1, 0): tuple(Piece(channel(s, r), None) for s, r in [(1, 0), (1, 2)]),
        channel(1, 1): (Piece(channel(1, 1), None),),
    }


def test_pointwise_goes_through_a_sender_that_the_receiver_has() -> None:
    # The successor of a sender is not always connected to the successor of its receiver.
    assert connections(shape(POINTWISE, 3, 2)) == [(0, 0), (1, 0), (2, 1)]
    assert recovered(shape(POINTWISE, 2, 4), shape(POINTWISE, 3, 2), everywhere(POINTWISE, 2, 4)) == {
        channel(0, 0): (Piece(channel(0, 0), None),),
        channel(1, 0): (Piece(channel(1, 2), None),),
        channel(2, 1): (Piece(channel(0, 1), None), Piece(channel(1, 3), None)),
    }


def test_broadcast_gives_everybody_what_the_most_advanced_one_had_left() -> None:
    parts = [in_flight(channel(0, 0), 2, 9), in_flight(channel(0, 1), 7, 9), in_flight(channel(1, 1), 4, 5)]
    assert recovered(shape(BROADCAST, 2, 2), shape(BROADCAST, 1, 3), parts) == {
        channel(0, receiver): (Piece(channel(0, 1), None), Piece(channel(1, 1), None)) for receiver in range(3)
    }


def test_broadcast_gives_what_the_named_subtask_had_left() -> None:
    parts = [in_flight(channel(0, 0), 2, 9), in_flight(channel(0, 1), 7, 9)]
    assert recovered(shape(BROADCAST, 1, 2), shape(BROADCAST, 1, 1), parts, broadcast_from=0) == {
        channel(0, 0): (Piece(channel(0, 0), None),),
    }


def test_nobody_gets_anything_if_the_most_advanced_one_had_applied_all() -> None:
    parts = [in_flight(channel(0, 0), 2, 9), in_flight(channel(0, 1), 9, 9)]
    assert recovered(shape(BROADCAST, 1, 2), shape(BROADCAST, 1, 3), parts) == {}


@pytest.mark.parametrize(
    ("parts", "chosen"),
    [
        ([], 0),
        ([in_flight(channel(0, 0), 0, 1)], 1),
        ([in_flight(channel(0, r), 0, 2) for r in range(3)], 0),
        ([in_flight(channel(0, 0), 0, 2), in_flight(channel(0, 1), 1, 2), in_flight(channel(0, 2), 1, 2, row=5)], 2),
        # Ahead on one channel, but further behind on the other.
        (
            [in_flight(channel(s, r), first, 9) for s, r, first in [(0, 0, 9), (1, 0, 0), (0, 1, 7), (1, 1, 7)]]
            + [in_flight(channel(0, 2), 0, 9)],
            1,
        ),
    ],
)
def test_the_most_advanced_has_the_fewest_elements_left_then_the_most_rows_done(
    parts: list[InFlight], chosen: int
) -> None:
    assert most_advanced(shape(BROADCAST, 2, 3), parts) == chosen


def test_one_subtask_is_the_most_advanced_over_all_edges_of_a_union() -> None:
    edges = [shape(BROADCAST, 1, 2, edge=1), shape(BROADCAST, 1, 2, edge=2)]
    parts = [
        in_flight(channel(0, 0, edge=1), 0, 1),
        in_flight(channel(0, 1, edge=1), 0, 2),
        in_flight(channel(0, 0, edge=2), 0, 5),
        in_flight(channel(0, 1, edge=2), 0, 1),
    ]
    assert most_advanced(edges[0], parts) == 0
    assert most_advanced_of(edges, parts) == 1


def test_other_edges_and_empty_channels_are_left_out() -> None:
    parts = [in_flight(channel(0, 0, edge=4), 0, 9), in_flight(channel(0, 0), 5, 5), in_flight(channel(1, 0), 0, 1)]
    assert recovered(shape(REBALANCE, 2, 1), shape(REBALANCE, 1, 1), parts) == {
        channel(0, 0): (Piece(channel(1, 0), None),),
    }


def test_rows_that_belong_to_nobody_cannot_become_keyed_ones() -> None:
    with pytest.raises(IncompatibleCheckpoint, match="rebalance edge with rows in flight.* a hash edge"):
        recovered(shape(REBALANCE, 1, 1), shape(HASH, 1, 1), [in_flight(channel(0, 0), 0, 1)])


def test_with_nothing_in_flight_an_edge_may_change_its_kind() -> None:
    assert recovered(shape(REBALANCE, 1, 1), shape(HASH, 1, 1), [in_flight(channel(0, 0), 3, 3)]) == {}


def test_new_data_is_numbered_after_all_recovered_elements() -> None:
    parts = {channel(0, 0): in_flight(channel(0, 0), 4, 9, row=3), channel(0, 1): in_flight(channel(0, 1), 7, 8)}
    pieces = (Piece(channel(0, 0), None), Piece(channel(0, 1), KeyGroupRange(0, 1)))
    assert recovered_count(pieces, parts) == 6


# -- captured elements, whatever the numbers


class Row(NamedTuple):
    key_group: int
    origin: ChannelId
    number: int


Elements = dict[ChannelId, list[list[Row]]]
parallelisms = st.integers(1, 6)


@st.composite
def captures(draw: st.DrawFn, edge: EdgeShape) -> Elements:
    """Elements of several rows on every channel of an edge; on a hash edge only rows that belong to the receiver."""
    elements: Elements = {}
    for sender, receiver in connections(edge):
        at = ChannelId(edge.edge, sender, receiver)
        own = range_of(receiver, parallelism=edge.receivers, max_parallelism=MAX_PARALLELISM)
        groups = st.integers(own.first, own.last - 1) if edge.kind is HASH else st.integers(0, MAX_PARALLELISM - 1)
        sizes = draw(st.lists(st.lists(groups, max_size=3), max_size=3))
        numbers = iter(range(100))
        elements[at] = [[Row(group, at, next(numbers)) for group in size] for size in sizes]
    return elements


def deliver(old: EdgeShape, new: EdgeShape, elements: Elements, rows_done: Mapping[ChannelId, int]) -> Elements:
    """What a shell does with the pieces: cut off what was processed, filter, put one after the other."""
    parts = [in_flight(at, 10, 10 + len(found), rows_done.get(at, 0)) for at, found in elements.items()]
    by_channel = {part.channel: part for part in parts}
    delivered: Elements = {}
    for target, pieces in recovered(old, new, parts).items():
        delivered[target] = []
        for piece in pieces:
            left = remaining(elements[piece.channel], rows_done.get(piece.channel, 0))
            groups = piece.key_groups
            delivered[target] += [[row for row in rows if groups is None or row.key_group in groups] for rows in left]
        if not keeps_channels(old, new):
            assert len(delivered[target]) == recovered_count(pieces, by_channel)
    return delivered


def remaining(elements: list[list[Row]], rows_done: int) -> list[list[Row]]:
    return [elements[0][rows_done:], *elements[1:]] if elements else []


def rows_of(elements: Elements) -> list[Row]:
    return [row for batches in elements.values() for rows in batches for row in rows]


def check_uses_connected_channels_in_order(new: EdgeShape, delivered: Elements) -> None:
    pairs = set(connections(new))
    for target, elements in delivered.items():
        assert target.edge == new.edge and (target.sender, target.receiver) in pairs
        # Rows of different key groups may part in one restore and meet in the next: only those of one keep their order.
        streams: dict[tuple[ChannelId, int | None], list[int]] = {}
        for row in (row for rows in elements for row in rows):
            stream = (row.origin, row.key_group if new.kind is HASH else None)
            streams.setdefault(stream, []).append(row.number)
        for numbers in streams.values():
            assert all(earlier < later for earlier, later in pairwise(numbers))


def check_rows_are_at_their_owners(new: EdgeShape, delivered: Elements) -> None:
    for target, elements in delivered.items():
        own = range_of(target.receiver, parallelism=new.receivers, max_parallelism=MAX_PARALLELISM)
        assert all(row.key_group in own for rows in elements for row in rows)


def draw_rows_done(data: st.DataObject, elements: Elements) -> dict[ChannelId, int]:
    return {at: data.draw(st.integers(0, len(found[0]))) for at, found in elements.items() if found}


def draw_shape(data: st.DataObject, kind: EdgeKind) -> EdgeShape:
    senders = data.draw(parallelisms)
    return shape(kind, senders, senders if kind is FORWARD else data.draw(parallelisms))


@settings(max_examples=100)
@given(st.data(), st.sampled_from([HASH, REBALANCE, POINTWISE, FORWARD]))
def test_every_captured_row_is_delivered_once_and_in_order(data: st.DataObject, kind: EdgeKind) -> None:
    old, new = draw_shape(data, kind), draw_shape(data, kind)
    elements = data.draw(captures(old))
    rows_done = draw_rows_done(data, elements)
    delivered = deliver(old, new, elements, rows_done)
    left = {at: remaining(found, rows_done.get(at, 0)) for at, found in elements.items()}
    assert sorted(rows_of(delivered)) == sorted(rows_of(left))
    check_uses_connected_channels_in_order(new, delivered)
    if kind is HASH:
        check_rows_are_at_their_owners(new, delivered)


@settings(max_examples=100)
@given(st.data(), st.integers(1, 40), st.integers(1, 40))
def test_rows_that_were_sent_by_other_key_groups_go_to_the_owners_of_theirs(
    data: st.DataObject, before: int, now: int
) -> None:
    senders, receivers = data.draw(parallelisms), data.draw(parallelisms)
    old = shape(HASH, senders, receivers, key_groups=before)
    new = shape(HASH, data.draw(parallelisms), data.draw(parallelisms), key_groups=now)
    hashes = {channel(s, r): data.draw(hashes_of(r, receivers, before)) for s, r in connections(old)}
    parts = [in_flight(at, 0, 1 if rows else 0) for at, rows in hashes.items()]
    delivered = []
    for target, pieces in recovered(old, new, parts).items():
        own = range_of(target.receiver, parallelism=new.receivers, max_parallelism=now)
        for piece in pieces:
            rows = [
                row for row in hashes[piece.channel] if piece.key_groups is None or row * now >> 32 in piece.key_groups
            ]
            assert all(row * now >> 32 in own for row in rows)
            delivered += [(piece.channel, row) for row in rows]
    assert sorted(delivered) == sorted((at, row) for at, rows in hashes.items() for row in rows)


def hashes_of(receiver: int, receivers: int, key_groups: int) -> st.SearchStrategy[list[int]]:
    """Such that the receiver has their key groups, of which each is a range of hashes; many at the ends of ranges."""
    own = range_of(receiver, parallelism=receivers, max_parallelism=key_groups)
    first, behind = (-(-(group << 32) // key_groups) for group in own)
    if first >= behind:
        return st.just([])
    return st.lists(st.integers(first, behind - 1) | st.sampled_from([first, behind - 1]), max_size=4)


@settings(max_examples=100)
@given(st.data(), st.sampled_from([REBALANCE, POINTWISE, FORWARD]))
def test_an_unkeyed_channel_goes_whole_to_one_receiver(data: st.DataObject, kind: EdgeKind) -> None:
    old, new = draw_shape(data, kind), draw_shape(data, kind)
    parts = everywhere(kind, old.senders, old.receivers)
    pieces = [piece for found in recovered(old, new, parts).values() for piece in found]
    assert sorted(piece.channel for piece in pieces) == [part.channel for part in parts]
    assert all(piece.key_groups is None for piece in pieces)


@settings(max_examples=100)
@given(st.data())
def test_every_receiver_of_a_broadcast_gets_all_that_one_old_receiver_had_left(data: st.DataObject) -> None:
    old, new = draw_shape(data, BROADCAST), draw_shape(data, BROADCAST)
    elements = data.draw(captures(old))
    rows_done = draw_rows_done(data, elements)
    delivered = deliver(old, new, elements, rows_done)
    check_uses_connected_channels_in_order(new, delivered)
    if keeps_channels(old, new):
        assert delivered == {at: remaining(found, rows_done.get(at, 0)) for at, found in elements.items()}
        return
    parts = [in_flight(at, 10, 10 + len(found), rows_done.get(at, 0)) for at, found in elements.items()]
    chosen = most_advanced(old, parts)
    left = {at: remaining(e, rows_done.get(at, 0)) for at, e in elements.items() if at.receiver == chosen}
    for receiver in range(new.receivers):
        got = {at: found for at, found in delivered.items() if at.receiver == receiver}
        assert sorted(rows_of(got)) == sorted(rows_of(left))


@settings(max_examples=100)
@given(st.data(), st.sampled_from([HASH, REBALANCE, POINTWISE, FORWARD]))
def test_two_restores_in_a_row_still_deliver_once(data: st.DataObject, kind: EdgeKind) -> None:
    first, second, third = (draw_shape(data, kind) for _ in range(3))
    elements = data.draw(captures(first))
    delivered = deliver(first, second, elements, {})
    processed: list[Row] = []
    rest: Elements = {}
    # The second run processes some elements of each channel, and of the next one some rows, before its checkpoint.
    for target, found in delivered.items():
        done = data.draw(st.integers(0, len(found)))
        processed += [row for rows in found[:done] for row in rows]
        rest[target] = found[done:]
    rows_done = draw_rows_done(data, rest)
    processed += [row for at, count in rows_done.items() for row in rest[at][0][:count]]
    again = deliver(second, third, rest, rows_done)
    assert sorted(processed + rows_of(again)) == sorted(rows_of(elements))
    check_uses_connected_channels_in_order(third, again)
    if kind is HASH:
        check_rows_are_at_their_owners(third, again)


# -- state


@pytest.mark.parametrize(
    ("subtask", "parallelism", "old_parallelism", "old"),
    [(0, 3, 2, [0]), (1, 3, 2, [0, 1]), (2, 3, 2, [1]), (0, 1, 4, [0, 1, 2, 3]), (3, 4, 1, [0]), (2, 4, 4, [2])],
)
def test_a_new_subtask_reads_the_old_ones_that_had_its_key_groups(
    subtask: int, parallelism: int, old_parallelism: int, old: list[int]
) -> None:
    found = overlapping(
        subtask, parallelism=parallelism, old_parallelism=old_parallelism, max_parallelism=MAX_PARALLELISM
    )
    assert list(found) == old


@given(st.integers(1, 20), st.data())
def test_overlapping_is_what_the_ranges_say(max_parallelism: int, data: st.DataObject) -> None:
    parallelism, old_parallelism = (data.draw(st.integers(1, max_parallelism)) for _ in range(2))
    for subtask in range(parallelism):
        own = range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism)
        expected = []
        for old in range(old_parallelism):
            before = range_of(old, parallelism=old_parallelism, max_parallelism=max_parallelism)
            if set(range(*own)) & set(range(*before)):
                expected.append(old)
        found = overlapping(
            subtask, parallelism=parallelism, old_parallelism=old_parallelism, max_parallelism=max_parallelism
        )
        assert list(found) == expected


def test_items_are_dealt_out_in_turn() -> None:
    assert split_items([["a", "b", "c"], [], ["d"]], 3) == [["a", "d"], ["b"], ["c"]]


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=5), st.integers(1, 6))
def test_each_item_goes_to_one_subtask_and_none_has_two_more_than_another(
    items: list[list[int]], parallelism: int
) -> None:
    dealt = split_items(items, parallelism)
    assert len(dealt) == parallelism
    assert sorted(item for part in dealt for item in part) == sorted(item for part in items for item in part)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


# -- watermarks


def test_floors_are_clipped_to_the_own_range_and_equal_neighbours_are_one() -> None:
    old = [(KeyGroupRange(8, 12), 5), (KeyGroupRange(0, 4), 5), (KeyGroupRange(4, 8), 5), (KeyGroupRange(12, 16), 9)]
    assert key_group_floors(old, KeyGroupRange(2, 14)) == [(KeyGroupRange(2, 12), 5), (KeyGroupRange(12, 14), 9)]


def test_equal_floors_that_do_not_meet_stay_apart() -> None:
    old = [(KeyGroupRange(0, 2), 5), (KeyGroupRange(4, 6), 5)]
    assert key_group_floors(old, KeyGroupRange(0, 8)) == old


def test_of_two_floors_for_a_key_group_the_further_one_counts() -> None:
    old = [(KeyGroupRange(0, 8), 10), (KeyGroupRange(2, 4), 30), (KeyGroupRange(4, 6), 5)]
    assert key_group_floors(old, KeyGroupRange(0, 8)) == [
        (KeyGroupRange(0, 2), 10),
        (KeyGroupRange(2, 4), 30),
        (KeyGroupRange(4, 8), 10),
    ]


def test_a_range_that_nobody_had_has_no_floor() -> None:
    assert key_group_floors([(KeyGroupRange(0, 4), 1)], KeyGroupRange(4, 8)) == []


ranges = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: KeyGroupRange(min(pair), max(pair)))


@given(st.lists(st.tuples(ranges, st.integers(0, 3)), max_size=6), ranges)
def test_every_key_group_keeps_the_furthest_watermark_it_was_handled_at(
    old: list[tuple[KeyGroupRange, int]], own: KeyGroupRange
) -> None:
    floors = key_group_floors(old, own)
    for group in range(12):
        handled_at = [watermark for key_groups, watermark in old if group in key_groups and group in own]
        assert [floor for key_groups, floor in floors if group in key_groups] == (
            [max(handled_at)] if handled_at else []
        )
    for (left, left_floor), (right, right_floor) in pairwise(floors):
        assert left.last < right.first or (left.last == right.first and left_floor != right_floor)


@given(
    st.lists(st.tuples(ranges, st.integers(0, 3)), max_size=6),
    st.sampled_from([(12, 24), (12, 6), (12, 5), (12, 18), (1, 7), (12, 1)]),
)
def test_other_key_groups_have_the_event_time_of_their_keys(
    old: list[tuple[KeyGroupRange, int]], numbers: tuple[int, int]
) -> None:
    before, now = numbers
    old = [(KeyGroupRange(0, before), 0), *old]
    known = key_group_floors(old, KeyGroupRange(0, before))
    # Of hashes that are everywhere in every key group of either number.
    times: dict[int, set[int]] = {}
    for at in range(before * now):
        times.setdefault(at // before, set()).update(floor for groups, floor in known if at // now in groups)
    floors = regrouped_floors(old, before=before, now=now)
    if any(len(found) > 1 for found in times.values()):
        assert floors is None
        return
    assert floors is not None
    assert {group: {floor for groups, floor in floors if group in groups} for group in range(now)} == times
    assert all(left[0].last == right[0].first and left[1] != right[1] for left, right in pairwise(floors))


def test_downstream_is_told_no_more_than_the_slowest_had_come() -> None:
    assert restored_watermark([30, 10, 20]) == 10
