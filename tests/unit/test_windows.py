"""Byte windows: nothing is lost between spending and granting, and an element may overdraw."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import Sequence
from tidegate.protocol.windows import ReceiveWindow, SendWindow


def test_there_is_room_until_an_eighth_of_the_window_is_left() -> None:
    window = SendWindow(100)
    window.spend(Sequence(0), 87)
    assert window.has_room()
    window.spend(Sequence(1), 1)
    assert not window.has_room()


def test_what_waits_to_be_sent_takes_room_and_a_lower_limit_counts() -> None:
    window = SendWindow(100)
    window.spend(Sequence(0), 40)
    assert window.has_room(gathered_bytes=47)
    assert not window.has_room(gathered_bytes=48)
    assert window.has_room(most_bytes=46.0)
    assert not window.has_room(most_bytes=45.0)


def test_one_element_may_overdraw_the_window_and_then_waits_for_its_grant() -> None:
    window = SendWindow(100)
    window.spend(Sequence(0), 5000)
    assert window.in_flight_bytes == 5000
    assert not window.has_room()
    window.granted(Sequence(1))
    assert window.has_room()
    assert window.in_flight_bytes == 0


def test_a_grant_covers_what_lies_below_it_and_no_more() -> None:
    window = SendWindow(100)
    for sequence in range(3):
        window.spend(Sequence(sequence), 10)
    window.granted(Sequence(2))
    assert window.in_flight_bytes == 10


def test_a_repeated_or_older_grant_changes_nothing() -> None:
    window = SendWindow(100)
    window.spend(Sequence(5), 10)
    window.granted(Sequence(6))
    window.spend(Sequence(6), 10)
    window.granted(Sequence(6))
    window.granted(Sequence(3))
    assert window.in_flight_bytes == 10


def test_a_grant_for_recovered_elements_that_were_never_spent_changes_nothing() -> None:
    window = SendWindow(100)
    window.spend(Sequence(7), 10)
    window.granted(Sequence(5))
    assert window.in_flight_bytes == 10


def test_grants_are_gathered_to_a_quarter_of_the_window() -> None:
    window = ReceiveWindow(100)
    assert [window.is_grant_due(10, channel_is_empty=False, now_ms=0.0) for _ in range(6)] == [False, False, True] * 2


def test_however_large_the_window_a_grant_is_not_put_off_for_long() -> None:
    window = ReceiveWindow(1 << 20)
    times_ms = [100.0, 249.0, 250.0, 400.0, 500.0]
    due = [window.is_grant_due(10, channel_is_empty=False, now_ms=now_ms) for now_ms in times_ms]
    assert due == [False, False, True, False, True]


def test_a_channel_that_ran_dry_grants_at_once() -> None:
    window = ReceiveWindow(1 << 20)
    assert window.is_grant_due(1, channel_is_empty=True, now_ms=0.0)


def test_the_smallest_window_still_grants() -> None:
    window = ReceiveWindow(1)
    assert window.is_grant_due(1, channel_is_empty=False, now_ms=0.0)


def test_a_smaller_window_keeps_what_is_in_flight_and_has_no_room_until_it_drained() -> None:
    window = SendWindow(100)
    for sequence in range(4):
        window.spend(Sequence(sequence), 20)
    window.resize(40)
    assert window.in_flight_bytes == 80
    assert not window.has_room()
    window.granted(Sequence(2))
    assert not window.has_room()
    window.granted(Sequence(3))
    assert window.has_room()


def test_a_larger_window_has_room_at_once() -> None:
    window = SendWindow(100)
    window.spend(Sequence(0), 100)
    window.resize(115)
    assert window.has_room()


def test_a_resized_receiver_grants_by_quarters_of_its_new_window() -> None:
    window = ReceiveWindow(100)
    window.resize(200)
    assert [window.is_grant_due(10, channel_is_empty=False, now_ms=0.0) for _ in range(5)] == [False] * 4 + [True]


def test_what_is_owed_survives_a_resize_and_may_then_be_due() -> None:
    window = ReceiveWindow(100)
    assert not window.is_grant_due(20, channel_is_empty=False, now_ms=0.0)
    window.resize(84)
    assert window.is_grant_due(1, channel_is_empty=False, now_ms=0.0)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 200), st.integers(1, 200)), max_size=60), st.integers(1, 200)
)
def test_windows_that_change_at_any_moment_and_differ_never_block_for_ever(
    elements: list[tuple[int, int, int]], window_bytes: int
) -> None:
    """The two sides hear of a new size at different times: a sender without room always gets its grant."""
    sender, receiver = SendWindow(window_bytes), ReceiveWindow(window_bytes)
    queue: list[tuple[int, int]] = []
    for next_sequence, (size, sender_bytes, receiver_bytes) in enumerate(elements):
        sender.resize(sender_bytes)
        while not sender.has_room():
            assert queue, "a sender without room has something for the receiver to consume"
            sequence, consumed_bytes = queue.pop(0)
            if receiver.is_grant_due(consumed_bytes, channel_is_empty=not queue, now_ms=0.0):
                sender.granted(Sequence(sequence + 1))
        assert sender.in_flight_bytes >= sum(queued for _, queued in queue)
        receiver.resize(receiver_bytes)
        sender.spend(Sequence(next_sequence), size)
        queue.append((next_sequence, size))


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 90), st.booleans()), max_size=60))
def test_bytes_are_conserved_between_sender_and_receiver(window_bytes: int, elements: list[tuple[int, bool]]) -> None:
    """Whatever the receiver's rhythm: once it has consumed everything, nothing is left in flight."""
    sender, receiver = SendWindow(window_bytes), ReceiveWindow(window_bytes)
    queue: list[tuple[int, int]] = []
    unspent = [(sequence, size) for sequence, (size, _) in enumerate(elements)]
    spent_bytes = granted_bytes = 0
    while unspent or queue:
        if unspent and sender.has_room():
            sequence, size = unspent.pop(0)
            sender.spend(Sequence(sequence), size)
            queue.append((sequence, size))
            spent_bytes += size
            if elements[sequence][1]:
                continue
        assert queue, "a sender without room has something for the receiver to consume"
        sequence, size = queue.pop(0)
        if receiver.is_grant_due(size, channel_is_empty=not queue, now_ms=0.0):
            before_bytes = sender.in_flight_bytes
            sender.granted(Sequence(sequence + 1))
            granted_bytes += before_bytes - sender.in_flight_bytes
        assert sender.in_flight_bytes == spent_bytes - granted_bytes
    assert sender.in_flight_bytes == 0
