"""What was recovered is consumed phase by phase over all channels, then what is new."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import ChannelId, EdgeId, Sequence
from tidegate.protocol.phases import RecoveryPhases, phase_of

A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)


def phases(*channels: tuple[ChannelId, int, tuple[int, ...], int]) -> RecoveryPhases:
    return RecoveryPhases(
        (channel, Sequence(first), tuple(Sequence(end) for end in ends), Sequence(new_from))
        for channel, first, ends, new_from in channels
    )


def test_without_anything_recovered_every_channel_may_be_consumed() -> None:
    machine = phases((A, 0, (), 0), (B, 0, (), 0))
    assert machine.may_consume(A) and machine.may_consume(B)
    assert machine.left(A) == ()


def test_new_elements_wait_for_what_was_recovered_on_other_channels() -> None:
    machine = phases((A, 3, (), 5), (B, 0, (), 0))
    assert machine.may_consume(A) and not machine.may_consume(B)
    assert not machine.on_consumed(A, Sequence(4))
    assert machine.on_consumed(A, Sequence(5))
    assert machine.may_consume(B)


def test_what_was_recovered_first_comes_first_after_a_second_restore() -> None:
    machine = phases((A, 3, (Sequence(4),), 6), (B, 0, (Sequence(0),), 2))
    assert machine.may_consume(A) and not machine.may_consume(B)
    assert machine.left(A) == (4, 6) and machine.left(B) == (0, 2)
    assert machine.on_consumed(A, Sequence(4))
    assert machine.may_consume(A) and machine.may_consume(B)
    assert machine.left(A) == (6,) and machine.left(B) == (2,)


def test_who_has_fewer_phases_has_nothing_in_the_first() -> None:
    machine = phases((A, 0, (1,), 3), (B, 7, (), 9))
    assert machine.may_consume(A) and not machine.may_consume(B)
    assert machine.on_consumed(A, Sequence(1))
    assert machine.may_consume(B)


def test_elements_are_dealt_to_phases_from_the_last_one_back() -> None:
    assert [phase_of(Sequence(n), (Sequence(2),), of_phases=2) for n in (0, 1, 2, 3)] == [0, 0, 1, 1]
    assert [phase_of(Sequence(n), (), of_phases=3) for n in (0, 5)] == [2, 2]
    assert [phase_of(Sequence(n), (Sequence(2),), of_phases=3) for n in (1, 2)] == [1, 2]


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4)), min_size=1, max_size=4), st.randoms())
def test_whatever_the_order_of_channels_no_element_is_consumed_before_an_earlier_phase_is_over(
    counts: "list[tuple[list[int]]]", random: Random
) -> None:
    channels = [ChannelId(EdgeId(0), sender, 0) for sender in range(len(counts))]
    ends: dict[ChannelId, list[int]] = {}
    for channel, (sizes,) in zip(channels, counts, strict=True):
        ends[channel] = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    of_phases = max(len(each) for each in ends.values())
    machine = phases(*[(c, 0, tuple(each[:-1]), each[-1]) for c, each in ends.items()])
    position = dict.fromkeys(channels, 0)
    consumed: list[int] = []
    while left := [c for c in channels if position[c] < ends[c][-1]]:
        ready = [c for c in left if machine.may_consume(c)]
        assert ready, "somebody may always be consumed"
        channel = random.choice(ready)
        earlier = tuple(Sequence(end) for end in ends[channel][:-1])
        consumed.append(phase_of(Sequence(position[channel]), earlier, of_phases=of_phases))
        position[channel] += 1
        machine.on_consumed(channel, Sequence(position[channel]))
    assert consumed == sorted(consumed)
    assert all(machine.may_consume(c) for c in channels)
