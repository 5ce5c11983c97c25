"""Entries that expire: what readers see of them, and how they are removed a few at a time, on every backend."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_list_and_map_state import _backends, backend
from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import StateBackend
from tidegate.state.ttl import KEY_GROUPS_PER_CALL, LOOKS_PER_REMOVAL, TtlState, ttl_name
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)

__all__ = ["backend"]  # every test with each: entries must not expire otherwise


class Fixture:
    def __init__(self, *, ttl_ms: int = 100, key_groups: KeyGroupRange = ALL) -> None:
        self.clock = ManualClock()
        self.backend = _backends[-1].open(key_groups)
        self.ttl_ms = ttl_ms
        self.key_groups = key_groups
        self.state = self.over(self.backend)

    def over(self, backend: StateBackend) -> TtlState:
        name = ttl_name("seen")
        return TtlState(backend.keyed(name), ttl_ms=self.ttl_ms, clock=self.clock, key_groups=self.key_groups)

    def stored(self) -> set[tuple[int, bytes]]:
        """What lies in the state below, expired or not."""
        below = self.backend.keyed(ttl_name("seen"))
        return {
            (group, key) for group in range(self.key_groups.first, self.key_groups.last) for key, _ in below.scan(group)
        }


def test_an_entry_reads_as_absent_from_its_expiry_on() -> None:
    fixture = Fixture(ttl_ms=100)
    fixture.state.put(3, b"k", b"v")
    fixture.clock.advance(99)
    assert fixture.state.get(3, b"k") == b"v"
    assert list(fixture.state.scan(3)) == [(b"k", b"v")]
    fixture.clock.advance(1)
    assert fixture.state.get(3, b"k") is None
    assert list(fixture.state.scan(3)) == []


def test_a_put_starts_the_time_anew_and_a_get_does_not() -> None:
    fixture = Fixture(ttl_ms=100)
    fixture.state.put(3, b"put", b"1")
    fixture.state.put(3, b"read", b"1")
    fixture.clock.advance(60)
    fixture.state.put(3, b"put", b"2")
    assert fixture.state.get(3, b"read") == b"1"
    fixture.clock.advance(60)
    assert fixture.state.get(3, b"put") == b"2"
    assert fixture.state.get(3, b"read") is None


def test_an_empty_value_and_a_deleted_entry_are_told_apart() -> None:
    fixture = Fixture()
    fixture.state.put(3, b"k", b"")
    assert fixture.state.get(3, b"k") == b""
    fixture.state.delete(3, b"k")
    assert fixture.state.get(3, b"k") is None
    assert fixture.stored() == set()


def test_an_entry_keeps_its_expiry_across_a_restore_whatever_the_setting_is_now() -> None:
    fixture = Fixture(ttl_ms=100)
    fixture.state.put(3, b"k", b"v")
    again = _backends[-1].open(ALL)
    again.restore(restored_from(fixture.backend.snapshot()))
    fixture.ttl_ms = 10_000
    restored = fixture.over(again)
    fixture.clock.advance(99)
    assert restored.get(3, b"k") == b"v"
    fixture.clock.advance(1)
    assert restored.get(3, b"k") is None


def test_no_more_than_the_budget_is_removed_in_one_call() -> None:
    fixture = Fixture()
    for number in range(10):
        fixture.state.put(0, b"%d" % number, b"v")
    fixture.clock.advance(100)
    assert [fixture.state.expire_some(4) for _ in range(3)] == [4, 4, 2]
    assert fixture.stored() == set()


def test_one_call_looks_at_a_bounded_number_of_entries() -> None:
    fixture = Fixture(key_groups=KeyGroupRange(0, 1))
    for number in range(100):
        fixture.state.put(0, b"%03d" % number, b"v")
    fixture.clock.advance(50)
    for number in range(99):
        fixture.state.put(0, b"%03d" % number, b"v")
    fixture.clock.advance(50)
    calls = 1
    while fixture.state.expire_some(5) == 0:
        calls += 1
    assert calls == 100 // (5 * LOOKS_PER_REMOVAL)
    assert len(fixture.stored()) == 99


def test_the_cursor_comes_round_all_key_groups() -> None:
    fixture = Fixture()
    for key_group in range(128):
        fixture.state.put(key_group, b"k", b"v")
    fixture.clock.advance(100)
    removed = [fixture.state.expire_some(1000) for _ in range(128 // KEY_GROUPS_PER_CALL)]
    assert removed == [KEY_GROUPS_PER_CALL] * (128 // KEY_GROUPS_PER_CALL)
    fixture.state.put(0, b"k", b"again")
    fixture.clock.advance(100)
    assert fixture.state.expire_some(1000) == 1


def test_an_entry_written_again_after_the_cursor_saw_it_stays() -> None:
    fixture = Fixture(key_groups=KeyGroupRange(0, 1))
    for key in (b"a", b"b"):
        fixture.state.put(0, key, b"old")
    fixture.clock.advance(100)
    assert fixture.state.expire_some(1) == 1  # The cursor now stands in the key group, before the other entry.
    (left,) = fixture.stored()
    fixture.state.put(0, left[1], b"new")
    assert fixture.state.expire_some(10) == 0
    assert fixture.state.get(0, left[1]) == b"new"


def test_the_name_tells_state_with_a_ttl_from_state_without() -> None:
    fixture = Fixture()
    fixture.state.put(3, b"k", b"v")
    assert fixture.backend.keyed("seen").get(3, b"k") is None


def test_a_value_without_an_expiry_is_damage() -> None:
    fixture = Fixture()
    fixture.backend.keyed(ttl_name("seen")).put(3, b"k", b"short")
    with pytest.raises(Damaged, match="TTL.*5 bytes"):
        fixture.state.get(3, b"k")


steps = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "wait", "expire"]), st.integers(0, 3), st.integers(0, 40)), max_size=60
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_readers_cannot_tell_whether_expired_entries_were_removed(steps: list[tuple[str, int, int]]) -> None:
    fixture = Fixture(ttl_ms=50, key_groups=KeyGroupRange(0, 4))
    expected: dict[int, tuple[bytes, int]] = {}
    for what, number, amount in steps:
        key = b"%d" % number
        if what == "put":
            fixture.state.put(number, key, b"%d" % amount)
            expected[number] = (b"%d" % amount, fixture.clock.wall_ms() + 50)
        elif what == "delete":
            fixture.state.delete(number, key)
            expected.pop(number, None)
        elif what == "wait":
            fixture.clock.advance(amount)
        else:
            fixture.state.expire_some(1 + amount)
        for group in range(4):
            value, expiry_ms = expected.get(group, (b"", 0))
            alive = value if expiry_ms > fixture.clock.wall_ms() else None
            assert fixture.state.get(group, b"%d" % group) == alive
    fixture.backend.close()
