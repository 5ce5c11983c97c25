"""Where the parts of a checkpoint go when it is restored, at the same parallelism or at another one.

Owns the shape of edges and the answer to "who takes what over" for captured elements, operator state and watermarks.
It never looks into elements: both ends of a channel work out from counts alone where recovered data ends.
"""

from collections import abc
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TypeVar, assert_never

from tidegate.model.errors import IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import ChannelId, EdgeId, KeyGroupRange, Sequence, key_groups_with_keys_of, range_of

T = TypeVar("T")


class EdgeKind(Enum):
    HASH = "hash"
    REBALANCE = "rebalance"
    POINTWISE = "pointwise"
    BROADCAST = "broadcast"
    FORWARD = "forward"


# Any receiver may take over a whole channel of these: their rows belong to no receiver in particular.
_MOVED_WHOLE = (EdgeKind.REBALANCE, EdgeKind.POINTWISE, EdgeKind.FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeShape:
    """`key_groups`: how many there are on a hash edge, whose rows go to the receiver that owns theirs."""

    edge: EdgeId
    kind: EdgeKind
    senders: int
    receivers: int
    key_groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A channel's captured elements: from `row` of element `first` up to `before` (excluded)."""

    channel: ChannelId
    first: Sequence
    row: int
    before: Sequence

    @property
    def count(self) -> int:
        return self.before - self.first


@dataclass(frozen=True, slots=True)
class Piece:
    """An old channel's captured elements: all their rows, or only the rows of some key groups.

    Rows that were processed before (below `InFlight.row`) are cut off before the rest is filtered.
    """

    channel: ChannelId
    key_groups: KeyGroupRange | None


def connections(shape: EdgeShape) -> list[tuple[int, int]]:
    """The (sender, receiver) pairs that have a channel, sorted."""
    senders, receivers = shape.senders, shape.receivers
    match shape.kind:
        case EdgeKind.HASH | EdgeKind.REBALANCE | EdgeKind.BROADCAST:
            return [(sender, receiver) for sender in range(senders) for receiver in range(receivers)]
        case EdgeKind.POINTWISE if senders <= receivers:
            return [(receiver * senders // receivers, receiver) for receiver in range(receivers)]
        case EdgeKind.POINTWISE:
            return [(sender, sender * receivers // senders) for sender in range(senders)]
        case EdgeKind.FORWARD:
            if senders != receivers:
                raise ProtocolViolation(
                    f"Forward edge {shape.edge} joins {senders} senders to {receivers} receivers: "
                    f"it needs as many of one as of the other."
                )
            return [(subtask, subtask) for subtask in range(senders)]
        case _:
            assert_never(shape.kind)


# -- captured elements


def keeps_channels(old: EdgeShape, new: EdgeShape) -> bool:
    """Every channel is taken over as it is; its numbering goes on at `InFlight.before`."""
    return replace(old, edge=new.edge) == new


def recovered_channels(
    old: EdgeShape,
    new: EdgeShape,
    in_flight: abc.Iterable[InFlight],
    *,
    broadcast_from: int | None = None,
) -> dict[ChannelId, tuple[Piece, ...]]:
    """For every new channel that receives recovered data: the old channels it delivers before anything new, in order.

    Of `in_flight` only the channels of `old.edge` are looked at. `broadcast_from`, on a broadcast edge, is the old
    receiver whose broadcast state every new one takes; None stands for the most advanced one on this edge, or for
    receivers that take their own, if the channels are kept.

    If the channels are kept, each has itself as its only piece. Otherwise a new channel numbers its elements from 0
    over all its pieces, and goes on at `recovered_count`. An element keeps its place in that count even if no row of
    it is left, and so does a mark (watermark, idle, end). But a mark has no effect any more: it speaks for one old
    sender, while the new channel has rows of several, and believing it would make the others' rows late.
    Rows of one old channel keep their order; on a hash edge, over several restores, those of one key group do.
    """
    captured = sorted((part for part in in_flight if part.channel.edge == old.edge), key=lambda part: part.channel)
    if keeps_channels(old, new) and broadcast_from is None:
        return {part.channel._replace(edge=new.edge): (Piece(part.channel, None),) for part in captured}
    moving = [part.channel for part in captured if part.count > 0]
    if not moving:
        return {}
    match new.kind:
        case EdgeKind.HASH if old.kind is EdgeKind.HASH:
            placed = _by_key_group(old, new, moving)
        case EdgeKind.BROADCAST if old.kind is EdgeKind.BROADCAST:
            chosen = most_advanced(old, captured) if broadcast_from is None else broadcast_from
            placed = _to_everyone(new, [channel for channel in moving if channel.receiver == chosen])
        case EdgeKind.REBALANCE | EdgeKind.POINTWISE | EdgeKind.FORWARD if old.kind in _MOVED_WHOLE:
            placed = _by_old_receiver(new, moving)
        case _:
            raise IncompatibleCheckpoint(
                f"Edge {old.edge} of the checkpoint is a {old.kind.value} edge with rows in flight and the query has "
                f"a {new.kind.value} edge there: go back to the old query or use a new checkpointLocation."
            )
    pieces: dict[ChannelId, list[Piece]] = {}
    # In the order of `moving`, so that a new channel has its pieces by old sender, then by old receiver.
    for channel, piece in placed:
        pieces.setdefault(channel, []).append(piece)
    return {channel: tuple(pieces[channel]) for channel in sorted(pieces)}


def recovered_count(pieces: abc.Iterable[Piece], in_flight: abc.Mapping[ChannelId, InFlight]) -> Sequence:
    """How many elements a new channel's pieces have: the number of its first new element."""
    return Sequence(sum(in_flight[piece.channel].count for piece in pieces))


def most_advanced(old: EdgeShape, in_flight: abc.Iterable[InFlight]) -> int:
    """The receiver of one broadcast edge that has the least left to apply."""
    return most_advanced_of([old], in_flight)


def most_advanced_of(old: abc.Sequence[EdgeShape], in_flight: abc.Iterable[InFlight]) -> int:
    """The receiver that has the least left over all broadcast edges of its input: fewest elements, then most rows done.

    A union may bring several edges into one input: state and captured elements must then come from one and the same
    subtask, whichever the edge.
    """
    assert old and len({shape.receivers for shape in old}) == 1, "the edges of one input have the same receivers"
    edges = {shape.edge for shape in old}
    elements_left = [0] * old[0].receivers
    rows_done = [0] * old[0].receivers
    for part in in_flight:
        if part.channel.edge in edges and part.count > 0:
            elements_left[part.channel.receiver] += part.count
            rows_done[part.channel.receiver] += part.row
    return min(range(old[0].receivers), key=lambda subtask: (elements_left[subtask], -rows_done[subtask], subtask))


_Placed = abc.Iterator[tuple[ChannelId, Piece]]


def _by_key_group(old: EdgeShape, new: EdgeShape, moving: list[ChannelId]) -> _Placed:
    assert old.key_groups is not None and new.key_groups is not None, "a hash edge has key groups"
    for channel in moving:
        before = range_of(channel.receiver, parallelism=old.receivers, max_parallelism=old.key_groups)
        among = key_groups_with_keys_of(before, old.key_groups, among=new.key_groups)
        for receiver in _owners(among, parallelism=new.receivers, max_parallelism=new.key_groups):
            own = range_of(receiver, parallelism=new.receivers, max_parallelism=new.key_groups)
            taken = _overlap(among, own)
            target = ChannelId(new.edge, channel.sender % new.senders, receiver)
            yield target, Piece(channel, None if taken == among else taken)


def _to_everyone(new: EdgeShape, moving: list[ChannelId]) -> _Placed:
    for channel in moving:
        for receiver in range(new.receivers):
            yield ChannelId(new.edge, channel.sender % new.senders, receiver), Piece(channel, None)


def _by_old_receiver(new: EdgeShape, moving: list[ChannelId]) -> _Placed:
    """A whole channel goes to one receiver, through its old sender's successor if that one is connected to it."""
    senders_of: dict[int, list[int]] = {}
    for sender, receiver in connections(new):
        senders_of.setdefault(receiver, []).append(sender)
    for channel in moving:
        receiver = channel.receiver % new.receivers
        connected = senders_of[receiver]
        successor = channel.sender % new.senders
        sender = successor if successor in connected else connected[0]
        yield ChannelId(new.edge, sender, receiver), Piece(channel, None)


# -- state


def overlapping(subtask: int, *, parallelism: int, old_parallelism: int, max_parallelism: int) -> range:
    """The old subtasks that own a key group which `subtask` owns now."""
    own = range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism)
    return _owners(own, parallelism=old_parallelism, max_parallelism=max_parallelism)


def split_items(items_by_subtask: abc.Sequence[abc.Sequence[T]], parallelism: int) -> list[list[T]]:
    """The items of all old subtasks dealt out in turn: each to one new subtask, as evenly as can be."""
    items = [item for items in items_by_subtask for item in items]
    return [items[subtask::parallelism] for subtask in range(parallelism)]


# -- watermarks


def key_group_floors(
    old: abc.Iterable[tuple[KeyGroupRange, int]], own: KeyGroupRange
) -> list[tuple[KeyGroupRange, int]]:
    """How far event time had come for each of the key groups that a new subtask owns.

    `old`: ranges with the watermark they have been handled at. Where several cover a key group (an old subtask's own
    watermark, and a floor from a restore before), the furthest counts: what it fired must not fire again.
    """
    clipped = [(_overlap(key_groups, own), watermark) for key_groups, watermark in old]
    clipped = [(key_groups, watermark) for key_groups, watermark in clipped if key_groups.first < key_groups.last]
    borders = sorted({border for key_groups, _ in clipped for border in key_groups})
    floors: list[tuple[KeyGroupRange, int]] = []
    for first, last in pairwise(borders):
        watermarks = [watermark for key_groups, watermark in clipped if first in key_groups]
        if not watermarks:
            continue
        floor = max(watermarks)
        if floors and floors[-1] == (KeyGroupRange(floors[-1][0].first, first), floor):
            floors[-1] = (KeyGroupRange(floors[-1][0].first, last), floor)
        else:
            floors.append((KeyGroupRange(first, last), floor))
    return floors


def regrouped_floors(
    old: abc.Iterable[tuple[KeyGroupRange, int]], *, before: int, now: int
) -> list[tuple[KeyGroupRange, int]] | None:
    """How far event time had come for each of `now` key groups, from what `before` had come to (`old` as above).

    None if it had come further for some keys of one than for others: they cannot share it.
    """
    known = key_group_floors(old, KeyGroupRange(0, before))
    floors: list[tuple[KeyGroupRange, int]] = []
    for group in range(now):
        shared = key_groups_with_keys_of(KeyGroupRange(group, group + 1), now, among=before)
        reached = {
            watermark
            for key_groups, watermark in known
            if key_groups.first < shared.last and shared.first < key_groups.last
        }
        if len(reached) != 1:
            return None
        (watermark,) = reached
        if floors and floors[-1][1] == watermark:
            floors[-1] = (KeyGroupRange(floors[-1][0].first, group + 1), watermark)
        else:
            floors.append((KeyGroupRange(group, group + 1), watermark))
    return floors


def restored_watermark(old_watermarks: abc.Sequence[int]) -> int:
    """What a new subtask may claim towards downstream: it may have taken over rows of the slowest old one."""
    assert old_watermarks, "a checkpoint has at least one subtask of every vertex"
    return min(old_watermarks)


def _overlap(left: KeyGroupRange, right: KeyGroupRange) -> KeyGroupRange:
    return KeyGroupRange(max(left.first, right.first), min(left.last, right.last))


def _owners(key_groups: KeyGroupRange, *, parallelism: int, max_parallelism: int) -> range:
    """The subtasks that own one of them."""
    if key_groups.first >= key_groups.last:
        return range(0)
    first = key_groups.first * parallelism // max_parallelism
    last = (key_groups.last - 1) * parallelism // max_parallelism
    return range(first, last + 1)
