"""A restore has one section of state in memory at a time, whatever takes it: all of them may be as much again."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.unit.test_deduplicate import BY_KEY_AND_TIME
from tests.unit.test_deduplicate import Harness as Deduplication
from tidegate.model.ids import KeyGroupRange
from tidegate.operators import stored_rows
from tidegate.state import heap
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import open_backends

ALL = KeyGroupRange(0, 128)


class Read(bytearray):
    """What was read of a section; counted as long as anything refers to it."""

    alive = 0
    most_alive = 0

    def __init__(self, data: memoryview) -> None:
        super().__init__(data)
        Read.alive += 1
        Read.most_alive = max(Read.most_alive, Read.alive)

    def __del__(self) -> None:
        Read.alive -= 1


def read_late(sections: Sequence[RestoredSection]) -> list[RestoredSection]:
    def read(data: memoryview) -> memoryview:
        return memoryview(Read(data))

    return [RestoredSection(each.name, each.key_groups, partial(read, each.data)) for each in sections]


def most_in_memory(take: Callable[[list[RestoredSection]], None], sections: Sequence[RestoredSection]) -> int:
    assert len(sections) > 10
    Read.alive = Read.most_alive = 0
    take(read_late(sections))
    assert Read.most_alive > 0
    return Read.most_alive


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_backends_take_one_section_after_the_other(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(heap, "SECTION_TARGET_BYTES", 1)
    before = HeapBackend(ALL)
    for key_group in range(128):
        before.keyed("count").put(key_group, b"key", b"%d" % key_group)
    backends = open_backends(name)
    try:
        backend = backends.open(ALL)
        assert most_in_memory(backend.restore, restored_from(before.snapshot())) == 1
        assert [backend.keyed("count").get(group, b"key") for group in range(128)] == [b"%d" % g for g in range(128)]
    finally:
        backends.close()


def test_operators_by_columns_take_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 7)
    before = Deduplication(BY_KEY_AND_TIME)
    before.process(*[(f"k{at}", 100 + at, at) for at in range(100)])
    # The last rows of one may still be in use while the next is read.
    assert most_in_memory(partial(_restored, before), before.sections()) <= 2


def _restored(before: Deduplication, sections: list[RestoredSection]) -> None:
    assert Deduplication(before.spec, sections).process(("k1", 101, 1), ("new", 200, 1)) == [("new", 200, 1)]
