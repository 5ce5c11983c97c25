"""Timers over keyed state: when they are due, in which order, and what a restore finds of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.heap import HeapBackend
from tidegate.state.timers import STALE_ENTRIES_KEPT, Timer, Timers
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)
NAME = "timers/event"

times_ms = st.integers(MIN_WATERMARK_MS, MAX_WATERMARK_MS) | st.integers(-5, 20)
some_timers = st.lists(
    st.builds(
        Timer, times_ms, st.integers(0, 3).map(lambda group: group * 40), st.sampled_from([b"", b"a", b"b", b"bb"])
    ),
    max_size=30,
)


def timers_over(backend: HeapBackend) -> Timers:
    return Timers(backend.keyed(NAME))


def registered(*timers: Timer) -> Timers:
    made = timers_over(HeapBackend(ALL))
    for timer in timers:
        made.register(timer.key_group, timer.key, timer.at_ms)
    return made


def restored(backend: HeapBackend, key_groups: KeyGroupRange = ALL) -> Timers:
    """From a snapshot of the backend, by a new owner of those key groups."""
    again = HeapBackend(key_groups)
    again.restore(restored_from(backend.snapshot()))
    timers = timers_over(again)
    timers.load(key_groups)
    return timers


def popped(timers: Timers, due_ms: int) -> list[Timer]:
    found = []
    while (timer := timers.pop_due(due_ms)) is not None:
        found.append(timer)
    return found


def test_a_timer_is_due_from_its_own_time_on() -> None:
    timers = registered(Timer(10, 3, b"k"))
    assert not timers.has_due(9)
    assert timers.pop_due(9) is None
    assert timers.has_due(10)
    assert timers.pop_due(10) == Timer(10, 3, b"k")
    assert timers.pop_due(10) is None


def test_the_same_time_twice_for_a_key_is_one_timer() -> None:
    timers = registered(Timer(10, 3, b"k"), Timer(10, 3, b"k"))
    assert len(timers) == 1
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_times_of_a_key_are_its_own_and_sorted() -> None:
    timers = registered(Timer(30, 3, b"k"), Timer(-10, 3, b"k"), Timer(20, 3, b"l"), Timer(20, 4, b"k"))
    assert timers.of(3, b"k") == [-10, 30]
    assert timers.of(5, b"k") == []


def test_a_deleted_timer_does_not_fire_and_may_be_deleted_again() -> None:
    timers = registered(Timer(10, 3, b"k"), Timer(20, 3, b"k"))
    timers.delete(3, b"k", 10)
    timers.delete(3, b"k", 10)
    timers.delete(3, b"other", 10)
    assert popped(timers, 100) == [Timer(20, 3, b"k")]


def test_a_timer_deleted_and_registered_again_fires_once() -> None:
    timers = registered(Timer(10, 3, b"k"))
    timers.delete(3, b"k", 10)
    timers.register(3, b"k", 10)
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_a_timer_that_fired_may_be_registered_again() -> None:
    timers = registered(Timer(10, 3, b"k"))
    popped(timers, 10)
    timers.register(3, b"k", 10)
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_a_timer_registered_between_two_pops_takes_its_place_in_the_order() -> None:
    timers = registered(Timer(10, 3, b"k"), Timer(30, 3, b"k"))
    assert timers.pop_due(100) == Timer(10, 3, b"k")
    timers.register(9, b"z", 20)
    assert popped(timers, 100) == [Timer(20, 9, b"z"), Timer(30, 3, b"k")]


def test_the_next_time_passes_over_deleted_timers() -> None:
    timers = registered(Timer(10, 3, b"k"), Timer(20, 3, b"k"))
    assert timers.next_ms() == 10
    timers.delete(3, b"k", 10)
    assert timers.next_ms() == 20
    timers.delete(3, b"k", 20)
    assert timers.next_ms() is None


def test_a_fired_timer_is_gone_from_state() -> None:
    backend = HeapBackend(ALL)
    timers = timers_over(backend)
    timers.register(3, b"k", 10)
    timers.register(3, b"k", 20)
    timers.pop_due(10)
    assert popped(restored(backend), 100) == [Timer(20, 3, b"k")]
    timers.pop_due(20)
    assert backend.size_bytes() == 0


def test_timers_come_back_by_half_of_the_key_groups() -> None:
    backend = HeapBackend(ALL)
    timers = timers_over(backend)
    for key_group in range(128):
        timers.register(key_group, b"k", 1000 - key_group)
    low, high = restored(backend, KeyGroupRange(0, 64)), restored(backend, KeyGroupRange(64, 128))
    assert popped(low, 2000) == [Timer(1000 - group, group, b"k") for group in reversed(range(64))]
    assert popped(high, 2000) == [Timer(1000 - group, group, b"k") for group in reversed(range(64, 128))]


def test_a_key_group_that_was_further_ahead_fires_up_to_there_at_once() -> None:
    floors_ms = {7: 50}
    timers = Timers(HeapBackend(ALL).keyed(NAME), floor_ms_of=lambda group: floors_ms.get(group, MIN_WATERMARK_MS))
    for key_group in (3, 7):
        for at_ms in (10, 50, 60):
            timers.register(key_group, b"k", at_ms)
    assert popped(timers, 5) == [Timer(10, 7, b"k"), Timer(50, 7, b"k")]
    assert popped(timers, 60) == [Timer(10, 3, b"k"), Timer(50, 3, b"k"), Timer(60, 3, b"k"), Timer(60, 7, b"k")]


def test_timers_below_a_floor_stand_in_time_order_with_the_others() -> None:
    timers = Timers(HeapBackend(ALL).keyed(NAME), floor_ms_of=lambda group: 50 if group == 7 else MIN_WATERMARK_MS)
    for key_group, at_ms in ((7, 40), (3, 30), (3, 45)):
        timers.register(key_group, b"k", at_ms)
    assert [timer.at_ms for timer in popped(timers, 45)] == [30, 40, 45]


def test_moving_a_timer_again_and_again_does_not_fill_memory() -> None:
    timers = registered(Timer(0, 3, b"k"))
    for at_ms in range(1, 10 * STALE_ENTRIES_KEPT):
        timers.delete(3, b"k", at_ms - 1)
        timers.register(3, b"k", at_ms)
    assert len(timers) == 1
    assert len(timers._ahead) <= STALE_ENTRIES_KEPT + 3
    assert popped(timers, MAX_WATERMARK_MS) == [Timer(10 * STALE_ENTRIES_KEPT - 1, 3, b"k")]


def test_a_stored_timer_that_cannot_be_one_is_damage() -> None:
    backend = HeapBackend(ALL)
    backend.keyed(NAME).put(3, b"short", b"")
    with pytest.raises(Damaged, match="timer.*5 bytes"):
        timers_over(backend).load(ALL)


@settings(max_examples=100, deadline=None)
@given(some_timers, st.randoms(use_true_random=False), times_ms)
def test_due_timers_come_in_order_whatever_the_order_of_registration(
    wanted: list[Timer], random: object, due_ms: int
) -> None:
    shuffled = list(wanted)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    timers = registered(*shuffled)
    assert popped(timers, due_ms) == sorted({timer for timer in wanted if timer.at_ms <= due_ms})
    assert popped(timers, MAX_WATERMARK_MS) == sorted({timer for timer in wanted if timer.at_ms > due_ms})
    assert len(timers) == 0


@settings(max_examples=100, deadline=None)
@given(some_timers, st.integers(0, 30), some_timers)
def test_a_snapshot_amid_firing_restores_each_remaining_timer_exactly_once(
    wanted: list[Timer], fired_count: int, deleted: list[Timer]
) -> None:
    backend = HeapBackend(ALL)
    timers = timers_over(backend)
    for timer in wanted:
        timers.register(timer.key_group, timer.key, timer.at_ms)
    for timer in deleted:
        timers.delete(timer.key_group, timer.key, timer.at_ms)
    fired = list(filter(None, (timers.pop_due(MAX_WATERMARK_MS) for _ in range(fired_count))))
    after_restore = restored(backend)
    assert len(after_restore) == len(timers)
    assert fired + popped(after_restore, MAX_WATERMARK_MS) == sorted(set(wanted) - set(deleted))
    assert fired + popped(timers, MAX_WATERMARK_MS) == sorted(set(wanted) - set(deleted))
