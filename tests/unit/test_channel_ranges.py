"""The two sides of a captured channel meet, or the first that does not is named."""

from tidegate.model.ids import ChannelId, EdgeId, Sequence
from tidegate.protocol.channel_ranges import ReceiverRange, SenderRange, find_gap

A = ChannelId(EdgeId(0), 0, 1)
B = ChannelId(EdgeId(2), 1, 1)


def received(first: int, held_from: int, before: int, *, channel: ChannelId = A, row: int = 0) -> ReceiverRange:
    return ReceiverRange(
        channel=channel, first=Sequence(first), row=row, held_from=Sequence(held_from), before=Sequence(before)
    )


def sent(held_from: int, before: int, *, channel: ChannelId = A) -> SenderRange:
    return SenderRange(channel=channel, held_from=Sequence(held_from), before=Sequence(before))


def test_no_channel_has_no_gap() -> None:
    assert find_gap([], []) is None


def test_sides_that_meet_have_no_gap() -> None:
    assert find_gap([received(2, 5, 7, row=3), received(0, 4, 4, channel=B)], [sent(5, 7)]) is None


def test_a_receiver_that_has_processed_everything_up_to_the_cut_has_no_gap() -> None:
    assert find_gap([received(5, 5, 7)], [sent(5, 7)]) is None


def test_what_nobody_stored_is_a_gap() -> None:
    assert find_gap([received(2, 5, 7)], []) == "Channel e0:0->1: nobody stored [5, 7)."


def test_a_sender_whose_receiver_knows_of_no_cut_is_a_gap() -> None:
    found = find_gap([], [sent(5, 7)])
    assert found is not None
    assert found.startswith("Channel e0:0->1: the sender stored [5, 7)")


def test_a_sender_that_held_nothing_needs_no_receiver() -> None:
    assert find_gap([], [sent(7, 7)]) is None


def test_an_element_that_was_processed_and_is_stored_by_the_sender_is_an_overlap() -> None:
    found = find_gap([received(6, 5, 7)], [sent(5, 7)])
    assert found == "Channel e0:0->1: element 5 is stored by the sender but was processed already."


def test_sides_that_cut_at_different_elements_are_told() -> None:
    found = find_gap([received(2, 5, 7)], [sent(6, 7)])
    assert found == "Channel e0:0->1: the sender cut at [6, 7), the receiver at [5, 7)."


def test_sides_that_place_the_barrier_differently_are_told() -> None:
    assert find_gap([received(2, 5, 7)], [sent(5, 8)]) is not None


def test_the_channel_with_the_gap_is_named_among_sound_ones() -> None:
    found = find_gap([received(0, 1, 2), received(0, 1, 2, channel=B)], [sent(1, 2)])
    assert found == "Channel e2:1->1: nobody stored [1, 2)."
