from itertools import pairwise

import msgspec
import pytest

from tidegate.model.errors import Damaged, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import SECTION_TARGET_BYTES, HeapBackend
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)


def test_only_the_first_write_to_a_key_group_after_a_snapshot_copies_it() -> None:
    state = HeapBackend(ALL).keyed("s")
    for key_group in (1, 2):
        for key in range(10):
            state.put(key_group, b"%d" % key, b"v")
    before = dict(state._groups)
    state.snapshot()
    assert all(state._groups[group] is before[group] for group in (1, 2))
    state.put(1, b"new", b"v")
    copied = state._groups[1]
    state.put(1, b"newer", b"v")
    assert copied is not before[1]
    assert state._groups[1] is copied
    assert state._groups[2] is before[2]


def test_deleting_what_is_not_there_copies_nothing() -> None:
    state = HeapBackend(ALL).keyed("s")
    state.put(1, b"k", b"v")
    before = state._groups[1]
    state.snapshot()
    state.delete(1, b"absent")
    assert state._groups[1] is before


def test_sections_are_cut_at_about_their_target_size_into_ranges_that_do_not_overlap() -> None:
    backend = HeapBackend(ALL)
    for key_group in range(0, 128, 2):
        backend.keyed("s").put(key_group, b"k", bytes(SECTION_TARGET_BYTES // 4))
    sections = backend.snapshot()
    assert len(sections) == 16
    ranges = [section.key_groups for section in sections]
    assert all(left.last <= right.first for left, right in pairwise(ranges))
    assert all(len(section.encode()) < 2 * SECTION_TARGET_BYTES for section in sections)


def test_a_small_state_is_one_section() -> None:
    backend = HeapBackend(ALL)
    for key_group in range(128):
        backend.keyed("s").put(key_group, b"k", b"v")
    (section,) = backend.snapshot()
    assert (section.name, section.key_groups) == ("keyed/s", ALL)


def test_a_key_group_of_another_subtask_is_refused() -> None:
    state = HeapBackend(KeyGroupRange(0, 64)).keyed("s")
    with pytest.raises(ProtocolViolation, match="key group 64"):
        state.put(64, b"k", b"v")


def test_size_counts_keys_and_values_once_whatever_is_overwritten() -> None:
    backend = HeapBackend(ALL)
    state = backend.keyed("s")
    for _ in range(3):
        state.put(1, b"key", b"value")
    assert backend.size_bytes() == 8
    restored = HeapBackend(ALL)
    restored.restore(restored_from(backend.snapshot()))
    assert restored.size_bytes() == 8
    state.delete(1, b"key")
    assert backend.size_bytes() == 0


def test_restoring_steps_over_key_groups_of_others_without_reading_them() -> None:
    unreadable = msgspec.msgpack.encode({100: b"\xff not entries"})
    backend = HeapBackend(KeyGroupRange(0, 64))
    backend.restore([RestoredSection("keyed/s", KeyGroupRange(100, 101), memoryview(unreadable))])
    assert backend.size_bytes() == 0


def test_a_section_that_cannot_be_read_is_damage_and_names_the_state() -> None:
    with pytest.raises(Damaged, match="'s'"):
        HeapBackend(ALL).restore([RestoredSection("keyed/s", ALL, memoryview(b"\xff\x00"))])


def test_a_section_of_another_kind_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="'timers'"):
        HeapBackend(ALL).restore([RestoredSection("timers", ALL, memoryview(b""))])
