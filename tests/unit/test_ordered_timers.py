"""Timers of which only a few are in memory: which, how many, and what is asked of state for the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.timers_by_backend import BACKENDS, NAME, Backends, backends_of, popped
from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange, range_of
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state import ordered_timers
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.ordered_timers import (
    LEAST_OF_A_KEY_GROUP,
    MOST_CACHED_TIMERS,
    MOST_OF_A_KEY_GROUP,
    MOST_WRITTEN_KNOWN,
    STALE_HEADS_KEPT,
    OrderedTimers,
    by_key_name,
)
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.subkeys import entry_key
from tidegate.state.timer_entries import Timer, encode_timer
from tidegate.state.timers import Timers, timers_over
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 8)


@pytest.fixture
def backends() -> Iterator[Backends]:
    with backends_of("rocksdb") as made:
        yield made


@contextmanager
def cached_at_most(most: int) -> Iterator[None]:
    """Of each key group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_timers, "MOST_OF_A_KEY_GROUP", most)
        patch.setattr(ordered_timers, "LEAST_OF_A_KEY_GROUP", most)
        patch.setattr(ordered_timers, "MOST_WRITTEN_KNOWN", 4 * most)
        yield


def opened(backend: StateBackend, key_groups: KeyGroupRange = ALL) -> OrderedTimers:
    timers = timers_over(backend, NAME, key_groups)
    assert isinstance(timers, OrderedTimers)
    return timers


# -- what is in memory


@pytest.mark.parametrize("group_count", [1, 8, 100, 5_000])
def test_only_the_first_of_each_key_group_are_in_memory_however_many_there_are(
    backends: Backends, group_count: int
) -> None:
    own = KeyGroupRange(0, group_count)
    backend = backends.new(own)
    timers = opened(backend, own)
    most = min(group_count * MOST_OF_A_KEY_GROUP, max(MOST_CACHED_TIMERS, group_count * LEAST_OF_A_KEY_GROUP))
    total = 3 * most + group_count
    for number in range(total):
        timers.register(number % group_count, b"%d" % number, number * 7_919 % total)
        if number % 1_000 == 0:
            assert timers.cached_count <= most
            assert len(timers._written) <= MOST_WRITTEN_KNOWN
    assert most // 2 < timers.cached_count <= most
    again = opened(backends.new(own, restored_from(backend.snapshot())), own)
    assert most // 2 < again.cached_count <= most
    assert popped(again, total) == sorted(
        Timer(number * 7_919 % total, number % group_count, b"%d" % number) for number in range(total)
    )
    assert again.cached_count == 0


def test_moving_a_timer_again_and_again_does_not_fill_memory(backends: Backends) -> None:
    timers = opened(backends.new(ALL))
    timers.register(5, b"first", -1)
    timers.register(3, b"k", 0)
    for at_ms in range(1, 3 * STALE_HEADS_KEPT):
        timers.delete(3, b"k", at_ms - 1)
        timers.register(3, b"k", at_ms)
    assert len(timers._heads) <= STALE_HEADS_KEPT + 2 * 8
    assert popped(timers, MAX_WATERMARK_MS) == [Timer(-1, 5, b"first"), Timer(3 * STALE_HEADS_KEPT - 1, 3, b"k")]


class CountingState:
    """Of `OrderedState`; counts what is asked of it."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.starts: list[bytes] = []
        self.writes: list[bytes] = []

    def first_keys(self, key_group: int, start: bytes, most: int) -> list[bytes]:
        self.starts.append(start)
        found: list[bytes] = self._state.first_keys(key_group, start, most)
        return found

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        self.writes.append(key)
        self._state.put(key_group, key, value)

    def delete(self, key_group: int, key: bytes) -> None:
        self.writes.append(key)
        self._state.delete(key_group, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


ONE = KeyGroupRange(3, 4)


def counted(backends: Backends) -> tuple[OrderedTimers, CountingState, CountingState]:
    backend = backends.new(ONE)
    state, by_key = CountingState(backend.keyed(NAME)), CountingState(backend.keyed(by_key_name(NAME)))
    return OrderedTimers(state, by_key, ONE), state, by_key


def test_state_is_read_from_where_memory_ended_and_never_from_its_beginning_again(backends: Backends) -> None:
    with cached_at_most(4):
        timers, state, _ = counted(backends)
        for at_ms in range(20):
            timers.register(3, b"k", at_ms)
        assert state.starts == [b""], "at the start"
        assert len(popped(timers, 100)) == 20
    assert state.starts[1] == encode_timer(4, b"k")
    assert state.starts == sorted(set(state.starts)) and len(state.starts) <= 20 // 4 + 2


@pytest.mark.parametrize("at_ms", [1, 19])
def test_a_timer_that_is_known_to_be_there_is_not_written_again(backends: Backends, at_ms: int) -> None:
    with cached_at_most(4):
        timers, state, _ = counted(backends)
        for time_ms in range(20):
            timers.register(3, b"k", time_ms)
        written = len(state.writes)
        timers.register(3, b"k", at_ms)
    assert len(state.writes) == written == 20


def test_a_timer_that_is_written_again_is_still_one(backends: Backends) -> None:
    with cached_at_most(1):
        timers, state, _ = counted(backends)
        for at_ms in [*range(20), *range(20)]:
            timers.register(3, b"k", at_ms)
        assert len(state.writes) > 20, "more than are known to be there"
        assert timers.of(3, b"k") == list(range(20))
        assert [timer.at_ms for timer in popped(timers, 100)] == list(range(20))


def test_a_timer_beyond_those_in_memory_may_be_deleted_and_registered_again(backends: Backends) -> None:
    with cached_at_most(1):
        timers, _, _ = counted(backends)
        for at_ms in (10, 20, 30):
            timers.register(3, b"k", at_ms)
        for at_ms in (20, 30):
            timers.delete(3, b"k", at_ms)
        timers.register(3, b"k", 30)
        assert [timer.at_ms for timer in popped(timers, 100)] == [10, 30]


def test_who_never_asks_for_the_timers_of_a_key_does_not_pay_for_the_answer(backends: Backends) -> None:
    timers, _, by_key = counted(backends)
    timers.register(3, b"k", 10)
    assert timers.pop_due(10) is not None
    assert by_key.writes == []
    timers.register(3, b"k", 20)
    assert timers.of(3, b"k") == [20]
    assert by_key.writes == [entry_key(b"k", encode_timer(20, b"")), b""]


# -- the times of a key, from states that do not have them yet


# Of each key group more than are read at a time.
TOTAL = 8 * 1_100


def test_timers_of_the_form_without_times_by_key_are_found_by_key_too(backends: Backends) -> None:
    """As RocksDB kept them before, and as the heap does."""
    old, heap = backends.new(ALL), HeapBackend(ALL)
    for backend in (old, heap):
        for number in range(TOTAL):
            backend.keyed(NAME).put(number % 8, encode_timer(number, b"k%d" % (number % 16)), b"")
    for backend in (old, heap):
        timers = opened(backends.new(ALL, restored_from(backend.snapshot())))
        assert timers.of(3, b"k3") == list(range(3, TOTAL, 16))
        assert timers.of(3, b"k4") == []
        timers.delete(4, b"k4", 4)
        timers.register(4, b"k4", 5)
        assert timers.of(4, b"k4") == [5, *range(20, TOTAL, 16)]
        assert len(popped(timers, MAX_WATERMARK_MS)) == TOTAL


def test_key_groups_with_and_without_times_by_key_come_together(backends: Backends) -> None:
    low, high = KeyGroupRange(0, 4), KeyGroupRange(4, 8)
    olds = [backends.new(low), backends.new(high)]
    asked, never_asked = opened(olds[0], low), opened(olds[1], high)
    assert asked.of(1, b"k") == []
    for key_group, timers in ((1, asked), (2, asked), (5, never_asked)):
        timers.register(key_group, b"k", 10)
    sections = [section for old in olds for section in restored_from(old.snapshot())]
    together = opened(backends.new(ALL, sections))
    for key_group in (1, 2, 5):
        together.register(key_group, b"k", 20)
    assert [together.of(key_group, b"k") for key_group in (1, 2, 5, 6)] == [[10, 20], [10, 20], [10, 20], []]


def test_a_stored_time_of_a_key_that_cannot_be_one_is_damage(backends: Backends) -> None:
    backend = backends.new(ALL)
    timers = opened(backend)
    assert timers.of(3, b"k") == []
    backend.keyed(by_key_name(NAME)).put(3, entry_key(b"k", b"short"), b"")
    with pytest.raises(Damaged, match="wrong length"):
        timers.of(3, b"k")


# -- against a model


def in_the_making(backend: StateBackend) -> None:
    """A snapshot whose files stay in the making, so that what is written is held, and read from there."""
    sections = backend.snapshot()
    if isinstance(backend, RocksBackend) and sections:
        assert backend._making is not None
        backend._making.wait()
        backend._making.is_made = False


class Job:
    """The subtasks of an operator, and in `expected` what they must hold together."""

    def __init__(self, backends: Backends, parallelism: int, floors_ms: list[int], old: "Job | None" = None) -> None:
        self.ranges = [range_of(subtask, parallelism=parallelism, max_parallelism=8) for subtask in range(parallelism)]
        self.floors_ms = floors_ms
        self.expected: set[Timer] = set() if old is None else old.expected
        stored = [] if old is None else [restored_from(backend.snapshot()) for backend in old.backends]
        self.backends: list[StateBackend] = []
        self.timers: list[Timers] = []
        for own in self.ranges:
            meeting = [
                section
                for sections, theirs in zip(stored, () if old is None else old.ranges, strict=True)
                for section in sections
                if max(own.first, theirs.first) < min(own.last, theirs.last)
            ]
            self.backends.append(backends.new(own, meeting))
            self.timers.append(timers_over(self.backends[-1], NAME, own, floor_ms_of=floors_ms.__getitem__))

    def owner(self, key_group: int) -> Timers:
        return next(timers for timers, own in zip(self.timers, self.ranges, strict=True) if key_group in own)

    def check(self, due_ms: int) -> None:
        for timers, own in zip(self.timers, self.ranges, strict=True):
            here = sorted(timer for timer in self.expected if timer.key_group in own)
            first = next((timer for timer in here if timer.at_ms <= max(due_ms, self.floors_ms[timer.key_group])), None)
            assert timers.first_due(due_ms) == first
            assert timers.has_due(due_ms) is (first is not None)
            assert timers.next_ms() == (here[0].at_ms if here else None)

    def times_of(self, timer: Timer) -> list[int]:
        return sorted(each.at_ms for each in self.expected if each[1:] == timer[1:])


times_ms = st.integers(-2, 5) | st.sampled_from([MIN_WATERMARK_MS, MAX_WATERMARK_MS])
some_timer = st.builds(Timer, times_ms, st.sampled_from([0, 1, 5]), st.sampled_from([b"", b"\x00", b"a"]))
step = st.one_of(
    st.tuples(st.just("register"), st.lists(some_timer, min_size=1, max_size=12)),
    st.tuples(st.just("delete"), st.lists(some_timer, min_size=1, max_size=6)),
    st.tuples(st.just("of"), some_timer),
    st.tuples(st.just("pop"), st.tuples(times_ms, st.integers(1, 10))),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("rescale"), st.tuples(st.integers(1, 3), st.lists(times_ms, min_size=8, max_size=8))),
)


@pytest.mark.parametrize("kind", BACKENDS)
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(step, max_size=25), due_ms=times_ms, most=st.integers(1, 4))
def test_whatever_is_done_to_them_timers_are_those_of_a_sorted_set(
    kind: str, steps: list[tuple[str, Any]], due_ms: int, most: int
) -> None:
    with cached_at_most(most), backends_of(kind) as backends:
        job = Job(backends, 2, [MIN_WATERMARK_MS] * 8)
        for what, given_ in steps:
            match what:
                case "register":
                    for timer in given_:
                        job.owner(timer.key_group).register(timer.key_group, timer.key, timer.at_ms)
                        job.expected.add(timer)
                case "delete":
                    for timer in given_:
                        job.owner(timer.key_group).delete(timer.key_group, timer.key, timer.at_ms)
                        job.expected.discard(timer)
                case "of":
                    found = job.owner(given_.key_group).of(given_.key_group, given_.key)
                    assert found == job.times_of(given_)
                case "pop":
                    pop_some(job, *given_)
                case "snapshot":
                    for backend in job.backends:
                        in_the_making(backend)
                case _:
                    parallelism, floors_ms = given_
                    job = Job(backends, parallelism, floors_ms, old=job)
            job.check(due_ms)
            for timers in job.timers:
                assert not isinstance(timers, OrderedTimers) or timers.cached_count <= most * 8
        for timer in list(job.expected):
            assert job.owner(timer.key_group).of(timer.key_group, timer.key) == job.times_of(timer)
        assert sorted(timer for timers in job.timers for timer in popped(timers, MAX_WATERMARK_MS)) == sorted(
            job.expected
        )


def pop_some(job: Job, due_ms: int, count: int) -> None:
    for timers, own in zip(job.timers, job.ranges, strict=True):
        for _ in range(count):
            due = [
                timer
                for timer in job.expected
                if timer.key_group in own and timer.at_ms <= max(due_ms, job.floors_ms[timer.key_group])
            ]
            popped_one = timers.pop_due(due_ms)
            assert popped_one == min(due, default=None)
            if popped_one is not None:
                job.expected.discard(popped_one)
