"""What every state backend must do. Subclass `StateBackendSuite` in a test module and say how to make a backend."""

import random
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import RestoredSection, Section, StateBackend
from tidegate.state.timer_entries import Timer
from tidegate.state.timers import Timers, timers_over


def restored_from(sections: Iterable[Section]) -> list[RestoredSection]:
    """Encodes sections as the snapshotting shell does, and hands them back as a restore gets them."""
    taken = list(sections)
    for each in taken:
        if each.steps is not None:
            deque(each.steps(), maxlen=0)
    return [
        RestoredSection(
            each.name,
            each.key_groups,
            memoryview(each.encode()),
            {
                file.name: partial(_write, file.path.read_bytes())
                for file in (each.files() if each.files is not None else ())
            },
        )
        for each in taken
    ]


class StateBackendSuite:
    all_groups = KeyGroupRange(0, 128)

    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        raise NotImplementedError("A conformance test says here how its backend is made.")

    def settle(self, backend: StateBackend) -> None:
        """Does at once what the backend may put off, such as removing what was overwritten; by default nothing."""

    @pytest.fixture(autouse=True)
    def opened_backends(self) -> Iterable[None]:
        self._opened: list[StateBackend] = []
        yield
        for backend in self._opened:
            backend.close()

    @pytest.fixture
    def backend(self, opened_backends: None) -> StateBackend:
        return self.opened(self.all_groups)

    def opened(self, key_groups: KeyGroupRange) -> StateBackend:
        """Closed with the test."""
        backend = self.make_backend(key_groups)
        self._opened.append(backend)
        return backend

    def reopened(self, sections: Iterable[RestoredSection], key_groups: KeyGroupRange | None = None) -> StateBackend:
        backend = self.opened(key_groups or self.all_groups)
        backend.restore(sections)
        return backend

    def test_a_key_that_was_never_written_is_absent(self, backend: StateBackend) -> None:
        assert backend.keyed("count").get(3, b"k") is None

    def test_the_last_put_wins(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"k", b"1")
        state.put(3, b"k", b"2")
        assert state.get(3, b"k") == b"2"

    def test_a_deleted_key_is_absent_and_may_be_deleted_again(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"k", b"1")
        state.delete(3, b"k")
        state.delete(3, b"k")
        assert state.get(3, b"k") is None
        assert list(state.scan(3)) == []

    def test_an_empty_value_is_not_an_absent_one(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"", b"")
        assert state.get(3, b"") == b""

    def test_a_scan_gives_the_entries_of_one_key_group_alone(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"a", b"1")
        state.put(3, b"b", b"2")
        state.put(4, b"c", b"3")
        assert dict(state.scan(3)) == {b"a": b"1", b"b": b"2"}
        assert list(state.scan(5)) == []

    def test_a_scan_allows_writes_while_it_runs(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        for key in (b"a", b"b", b"c"):
            state.put(3, key, b"1")
        for key, _ in state.scan(3):
            state.delete(3, key)
            state.put(3, key + b"'", b"2")
        assert dict(state.scan(3)) == {b"a'": b"2", b"b'": b"2", b"c'": b"2"}

    def test_many_keys_are_put_got_and_deleted_at_once(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put_many([3, 3, 4], [b"a", b"", b"a"], [b"1", b"2", b""])
        assert state.get_many([3, 4, 5, 3], [b"a", b"a", b"a", b""]) == [b"1", b"", None, b"2"]
        state.delete_many([3, 5], [b"a", b"a"])
        assert (state.get(3, b"a"), dict(state.scan(3)), dict(state.scan(4))) == (None, {b"": b"2"}, {b"a": b""})
        assert state.get_many([], []) == []

    def test_many_keys_that_are_written_after_a_snapshot_are_seen_and_not_in_it(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put_many([3, 4], [b"a", b"b"], [b"1", b"2"])
        sections = backend.snapshot()
        state.put_many([3, 3], [b"a", b"c"], [b"new", b"new"])
        state.delete_many([4], [b"b"])
        assert state.get_many([3, 3, 4], [b"a", b"c", b"b"]) == [b"new", b"new", None]
        assert state.entries_from(3, b"", 9) == [(b"a", b"new"), (b"c", b"new")]
        restored = self.reopened(restored_from(sections)).keyed("count")
        assert restored.get_many([3, 3, 4], [b"a", b"c", b"b"]) == [b"1", None, b"2"]

    def test_many_keys_of_others_are_refused(self, backend: StateBackend) -> None:
        with pytest.raises(ProtocolViolation, match="key group 200"):
            backend.keyed("count").put_many([3, 200], [b"a", b"b"], [b"1", b"2"])

    def test_the_first_entries_of_a_key_group_come_in_order_from_a_key_on(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put_many([3, 3, 3, 4], [b"c", b"a", b"b", b"a"], [b"3", b"1", b"2", b"4"])
        assert state.entries_from(3, b"", 2) == [(b"a", b"1"), (b"b", b"2")]
        assert state.entries_from(3, b"aa", 9) == [(b"b", b"2"), (b"c", b"3")]
        assert state.entries_from(5, b"", 9) == []

    def test_the_first_entries_end_with_the_one_that_brings_them_to_so_many_bytes(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        entries = [(b"a", b"1234"), (b"b", b"12"), (b"c", b""), (b"d", b"1234")]
        state.put_many([3] * 4, [key for key, _ in entries], [value for _, value in entries])
        for most_bytes, count in ((1, 1), (4, 1), (5, 2), (6, 2), (7, 4), (100, 4)):
            assert state.entries_from(3, b"", 9, most_bytes=most_bytes) == entries[:count]
        assert state.entries_from(3, b"", 3, most_bytes=100) == entries[:3]
        assert state.entries_from(3, b"b", 9, end=b"d", most_bytes=100) == entries[1:3]

    def test_states_of_different_names_do_not_see_each_other(self, backend: StateBackend) -> None:
        backend.keyed("one").put(3, b"k", b"1")
        assert backend.keyed("two").get(3, b"k") is None

    def test_asking_for_a_state_again_gives_the_same_state(self, backend: StateBackend) -> None:
        backend.keyed("one").put(3, b"k", b"1")
        assert backend.keyed("one").get(3, b"k") == b"1"

    def test_a_snapshot_holds_the_moment_it_was_taken_whatever_is_written_later(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"kept", b"old")
        state.put(3, b"removed", b"old")
        state.put(4, b"other", b"old")
        sections = backend.snapshot()
        state.put(3, b"kept", b"new")
        state.delete(3, b"removed")
        state.put(3, b"added", b"new")
        state.put(9, b"added", b"new")
        restored = self.reopened(restored_from(sections)).keyed("count")
        assert dict(restored.scan(3)) == {b"kept": b"old", b"removed": b"old"}
        assert dict(restored.scan(4)) == {b"other": b"old"}
        assert list(restored.scan(9)) == []

    def test_writes_after_a_snapshot_are_seen_by_readers(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        state.put(3, b"a", b"old")
        state.put(3, b"b", b"old")
        kept = backend.snapshot()
        state.put(3, b"a", b"new")
        state.delete(3, b"b")
        assert dict(state.scan(3)) == {b"a": b"new"}
        assert kept

    def test_several_snapshots_under_way_each_hold_their_own_moment(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        taken: list[list[Section]] = []
        for value in (b"1", b"2", b"3"):
            state.put(3, b"k", value)
            taken.append(backend.snapshot())
        state.delete(3, b"k")
        found = [self.reopened(restored_from(sections)).keyed("count").get(3, b"k") for sections in reversed(taken)]
        assert found == [b"3", b"2", b"1"]

    def test_a_section_encoded_twice_gives_the_same_state(self, backend: StateBackend) -> None:
        backend.keyed("count").put(3, b"k", b"1")
        sections = backend.snapshot()
        restored_from(sections)
        backend.keyed("count").put(3, b"k", b"2")
        assert self.reopened(restored_from(sections)).keyed("count").get(3, b"k") == b"1"

    def test_a_restored_backend_can_be_changed_and_snapshot_again(self, backend: StateBackend) -> None:
        backend.keyed("count").put(3, b"k", b"1")
        second = self.reopened(restored_from(backend.snapshot()))
        second.keyed("count").put(3, b"k", b"2")
        second.keyed("count").put(4, b"l", b"3")
        third = self.reopened(restored_from(second.snapshot())).keyed("count")
        assert (third.get(3, b"k"), third.get(4, b"l")) == (b"2", b"3")

    def test_a_new_range_takes_its_key_groups_from_two_old_ranges(self) -> None:
        low, high = self.opened(KeyGroupRange(0, 64)), self.opened(KeyGroupRange(64, 128))
        for key_group in range(128):
            owner = low if key_group < 64 else high
            owner.keyed("count").put(key_group, b"k", b"%d" % key_group)
            owner.keyed("other").put(key_group, b"k", b"other")
        sections = restored_from([*low.snapshot(), *high.snapshot()])
        middle = self.reopened(sections, KeyGroupRange(40, 90))
        found = [key_group for key_group in range(128) if middle.keyed("count").get(key_group, b"k") is not None]
        assert found == list(range(40, 90))
        assert middle.keyed("count").get(63, b"k") == b"63"
        assert middle.keyed("other").get(64, b"k") == b"other"

    def test_the_sections_of_a_snapshot_cover_the_key_groups_that_have_entries(self, backend: StateBackend) -> None:
        for key_group in (5, 70, 127):
            backend.keyed("count").put(key_group, b"k", b"v")
        ranges = [section.key_groups for section in backend.snapshot()]
        for key_group in (5, 70, 127):
            assert any(covered is None or key_group in covered for covered in ranges)

    def test_an_empty_state_restores_as_an_empty_state(self, backend: StateBackend) -> None:
        backend.keyed("count")
        restored = self.reopened(restored_from(backend.snapshot()))
        assert list(restored.keyed("count").scan(0)) == []

    def test_a_larger_state_comes_back_whole(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        expected = {(number % 128, b"key-%d" % number): bytes(number % 300) for number in range(20_000)}
        for (key_group, key), value in expected.items():
            state.put(key_group, key, value)
        restored = self.reopened(restored_from(backend.snapshot())).keyed("count")
        found = {(group, key): value for group in range(128) for key, value in restored.scan(group)}
        assert found == expected

    def test_size_grows_with_what_is_put_and_shrinks_with_what_is_deleted(self, backend: StateBackend) -> None:
        state = backend.keyed("count")
        # No backend may find a shorter way to write them.
        values = random.Random(7)
        sizes_bytes = [backend.size_bytes()]
        for length_bytes in (10_000, 1_000):
            state.put(3, b"k", values.randbytes(length_bytes))
            self.settle(backend)
            sizes_bytes.append(backend.size_bytes())
        state.delete(3, b"k")
        self.settle(backend)
        empty_bytes, full_bytes, smaller_bytes = sizes_bytes
        assert empty_bytes <= smaller_bytes < full_bytes
        assert full_bytes - empty_bytes >= 10_000
        assert backend.size_bytes() < smaller_bytes

    def test_timers_survive_a_snapshot_taken_amid_firing(self, backend: StateBackend) -> None:
        timers = timers_over(backend, "timers/event", self.all_groups)
        for at_ms, key_group, key in ((30, 3, b"k"), (-10, 3, b"k"), (20, 90, b""), (20, 3, b"l")):
            timers.register(key_group, key, at_ms)
        timers.delete(3, b"l", 20)
        assert timers.pop_due(0) == Timer(-10, 3, b"k")
        sections = backend.snapshot()
        assert _all_of(timers) == [Timer(20, 90, b""), Timer(30, 3, b"k")]
        restored = self.restored_timers(restored_from(sections), self.all_groups)
        assert _all_of(restored) == [Timer(20, 90, b""), Timer(30, 3, b"k")]

    def test_timers_restored_by_two_halves_of_the_key_groups_are_each_at_one_of_them(
        self, backend: StateBackend
    ) -> None:
        timers = timers_over(backend, "timers/event", self.all_groups)
        for key_group in range(128):
            timers.register(key_group, b"k", 1000 - key_group)
        sections = restored_from(backend.snapshot())
        for half in (KeyGroupRange(0, 64), KeyGroupRange(64, 128)):
            expected = [Timer(1000 - group, group, b"k") for group in reversed(range(half.first, half.last))]
            assert _all_of(self.restored_timers(sections, half)) == expected

    def restored_timers(self, sections: Iterable[RestoredSection], key_groups: KeyGroupRange) -> Timers:
        return timers_over(self.reopened(sections, key_groups), "timers/event", key_groups)


def _write(data: bytes, target: Path) -> None:
    target.write_bytes(data)


def _all_of(timers: Timers) -> list[Timer]:
    """Takes them out, in their order."""
    found: list[Timer] = []
    while (timer := timers.pop_due(1 << 62)) is not None:
        found.append(timer)
    return found
