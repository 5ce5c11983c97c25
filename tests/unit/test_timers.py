"""Timers over keyed state: when they are due, in which order, and what a restore finds of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.timers_by_backend import BACKENDS, MEMORY, NAME, Backends, backends_of, popped, with_changelog
from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.sst_files import Folder
from tidegate.state.timer_entries import Timer, no_floor
from tidegate.state.timers import STALE_ENTRIES_KEPT, HeapTimers, Timers, timers_over
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)

times_ms = st.integers(MIN_WATERMARK_MS, MAX_WATERMARK_MS) | st.integers(-5, 20)
some_timers = st.lists(
    st.builds(
        Timer, times_ms, st.integers(0, 3).map(lambda group: group * 40), st.sampled_from([b"", b"a", b"b", b"bb"])
    ),
    max_size=30,
)


@pytest.fixture(params=BACKENDS)
def backends(request: pytest.FixtureRequest) -> Iterator[Backends]:
    with backends_of(request.param) as made:
        yield made


@pytest.fixture
def backend(backends: Backends) -> StateBackend:
    return backends.new(ALL)


def registered(backend: StateBackend, *timers: Timer, floor_ms_of: Callable[[int], int] = no_floor) -> Timers:
    made = timers_over(backend, NAME, ALL, floor_ms_of=floor_ms_of)
    for timer in timers:
        made.register(timer.key_group, timer.key, timer.at_ms)
    return made


def test_a_timer_is_due_from_its_own_time_on(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"))
    assert not timers.has_due(9)
    assert timers.pop_due(9) is None
    assert timers.has_due(10)
    assert timers.pop_due(10) == Timer(10, 3, b"k")
    assert timers.pop_due(10) is None


def test_times_by_key_that_nobody_keeps_true_are_forgotten(tmp_path: Path) -> None:
    """The heap can read what the changelog over RocksDB stored, changes it, and may give it back."""
    rocksdb, heap, rocksdb_again = (tmp_path / name for name in ("rocksdb", "heap", "again"))
    with ExitStack() as stack:
        first = changelog_over(RocksBackend(ALL, folder=Folder(rocksdb), memory=MEMORY), rocksdb, stack)
        registered(first, Timer(10, 3, b"k")).of(3, b"k")
        second = changelog_over(HeapBackend(ALL), heap, stack)
        second.restore(restored_from(first.snapshot()))
        timers = registered(second, Timer(20, 3, b"k"))
        timers.delete(3, b"k", 10)
        third = changelog_over(RocksBackend(ALL, folder=Folder(rocksdb_again), memory=MEMORY), rocksdb_again, stack)
        third.restore(restored_from(second.snapshot()))
        assert timers_over(third, NAME, ALL).of(3, b"k") == [20]


def changelog_over(backend: StateBackend, folder: Path, stack: ExitStack) -> StateBackend:
    made = with_changelog(backend, ALL, Folder(folder))
    stack.callback(made.close)
    return made


def test_the_same_time_twice_for_a_key_is_one_timer(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"), Timer(10, 3, b"k"))
    assert timers.of(3, b"k") == [10]
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_times_of_a_key_are_its_own_and_sorted(backend: StateBackend) -> None:
    timers = registered(backend, Timer(30, 3, b"k"), Timer(-10, 3, b"k"), Timer(20, 3, b"l"), Timer(20, 4, b"k"))
    assert timers.of(3, b"k") == [-10, 30]
    assert timers.of(5, b"k") == []


def test_a_deleted_timer_does_not_fire_and_may_be_deleted_again(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"), Timer(20, 3, b"k"))
    timers.delete(3, b"k", 10)
    timers.delete(3, b"k", 10)
    timers.delete(3, b"other", 10)
    assert popped(timers, 100) == [Timer(20, 3, b"k")]


def test_a_timer_deleted_and_registered_again_fires_once(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"))
    timers.delete(3, b"k", 10)
    timers.register(3, b"k", 10)
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_a_timer_that_fired_may_be_registered_again(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"))
    popped(timers, 10)
    timers.register(3, b"k", 10)
    assert popped(timers, 10) == [Timer(10, 3, b"k")]


def test_a_timer_registered_between_two_pops_takes_its_place_in_the_order(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"), Timer(30, 3, b"k"))
    assert timers.pop_due(100) == Timer(10, 3, b"k")
    timers.register(9, b"z", 20)
    assert popped(timers, 100) == [Timer(20, 9, b"z"), Timer(30, 3, b"k")]


def test_the_next_time_passes_over_deleted_timers(backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"), Timer(20, 3, b"k"))
    assert timers.next_ms() == 10
    timers.delete(3, b"k", 10)
    assert timers.next_ms() == 20
    timers.delete(3, b"k", 20)
    assert timers.next_ms() is None


def test_a_fired_timer_is_gone_from_state(backends: Backends, backend: StateBackend) -> None:
    timers = registered(backend, Timer(10, 3, b"k"), Timer(20, 3, b"k"))
    timers.pop_due(10)
    assert popped(backends.restored_from(backend, ALL), 100) == [Timer(20, 3, b"k")]
    timers.pop_due(20)
    assert list(backend.keyed(NAME).scan(3)) == []


def test_timers_come_back_by_half_of_the_key_groups(backends: Backends, backend: StateBackend) -> None:
    registered(backend, *(Timer(1000 - group, group, b"k") for group in range(128)))
    for half in (KeyGroupRange(0, 64), KeyGroupRange(64, 128)):
        expected = [Timer(1000 - group, group, b"k") for group in reversed(range(half.first, half.last))]
        assert popped(backends.restored_from(backend, half), 2000) == expected


def test_a_key_group_that_was_further_ahead_fires_up_to_there_at_once(backend: StateBackend) -> None:
    some = [Timer(at_ms, key_group, b"k") for key_group in (3, 7) for at_ms in (10, 50, 60)]
    timers = registered(backend, *some, floor_ms_of=lambda group: 50 if group == 7 else MIN_WATERMARK_MS)
    assert popped(timers, 5) == [Timer(10, 7, b"k"), Timer(50, 7, b"k")]
    assert popped(timers, 60) == [Timer(10, 3, b"k"), Timer(50, 3, b"k"), Timer(60, 3, b"k"), Timer(60, 7, b"k")]


def test_timers_below_a_floor_stand_in_time_order_with_the_others(backend: StateBackend) -> None:
    some = [Timer(40, 7, b"k"), Timer(30, 3, b"k"), Timer(45, 3, b"k")]
    timers = registered(backend, *some, floor_ms_of=lambda group: 50 if group == 7 else MIN_WATERMARK_MS)
    assert [timer.at_ms for timer in popped(timers, 45)] == [30, 40, 45]


def test_moving_a_timer_again_and_again_does_not_fill_memory() -> None:
    timers = HeapTimers(HeapBackend(ALL).keyed(NAME))
    timers.register(3, b"k", 0)
    for at_ms in range(1, 10 * STALE_ENTRIES_KEPT):
        timers.delete(3, b"k", at_ms - 1)
        timers.register(3, b"k", at_ms)
    assert len(timers._heaps) <= STALE_ENTRIES_KEPT + 3
    assert popped(timers, MAX_WATERMARK_MS) == [Timer(10 * STALE_ENTRIES_KEPT - 1, 3, b"k")]


def test_a_stored_timer_that_cannot_be_one_is_damage(backend: StateBackend) -> None:
    backend.keyed(NAME).put(3, b"short", b"")
    with pytest.raises(Damaged, match="timer.*5 bytes"):
        timers_over(backend, NAME, ALL)


@pytest.mark.parametrize("kind", BACKENDS)
@settings(max_examples=50, deadline=None)
@given(some_timers, st.randoms(use_true_random=False), times_ms)
def test_due_timers_come_in_order_whatever_the_order_of_registration(
    kind: str, wanted: list[Timer], random: object, due_ms: int
) -> None:
    shuffled = list(wanted)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    with backends_of(kind) as backends:
        timers = registered(backends.new(ALL), *shuffled)
        assert popped(timers, due_ms) == sorted({timer for timer in wanted if timer.at_ms <= due_ms})
        assert popped(timers, MAX_WATERMARK_MS) == sorted({timer for timer in wanted if timer.at_ms > due_ms})
        assert timers.next_ms() is None


@pytest.mark.parametrize("kind", BACKENDS)
@settings(max_examples=50, deadline=None)
@given(some_timers, st.integers(0, 30), some_timers)
def test_a_snapshot_amid_firing_restores_each_remaining_timer_exactly_once(
    kind: str, wanted: list[Timer], fired_count: int, deleted: list[Timer]
) -> None:
    with backends_of(kind) as backends:
        backend = backends.new(ALL)
        timers = registered(backend, *wanted)
        for timer in deleted:
            timers.delete(timer.key_group, timer.key, timer.at_ms)
        fired = list(filter(None, (timers.pop_due(MAX_WATERMARK_MS) for _ in range(fired_count))))
        after_restore = backends.restored_from(backend, ALL)
        assert fired + popped(after_restore, MAX_WATERMARK_MS) == sorted(set(wanted) - set(deleted))
        assert fired + popped(timers, MAX_WATERMARK_MS) == sorted(set(wanted) - set(deleted))
