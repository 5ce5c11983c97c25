"""Whatever is done to them, heap and RocksDB hold the same state, and give it to any number of subtasks."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.in_memory import folder_in_memory
from tidegate.model.ids import KeyGroupRange, range_of
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.state_suite import restored_from

KEY_GROUPS = 8
MEMORY = RocksMemory(memory_bytes=8 << 20)

Change: TypeAlias = tuple[str, int, bytes, bytes | None]
Entries: TypeAlias = dict[tuple[str, int, bytes], bytes]

names = st.sampled_from(["a", "b?ttl"])
# Few and much alike, with those that could be taken for another key group's.
keys = st.sampled_from([b"", b"\x00", b"\x00\x01", b"k", b"kk", b"\xff\xff", b"\xff\xff\xff"])
changes = st.lists(
    st.tuples(names, st.integers(0, KEY_GROUPS - 1), keys, st.none() | st.binary(max_size=4)), max_size=30
)


class Job:
    """The subtasks of one operator, each with a backend of either kind."""

    def __init__(self, folder: Folder, parallelism: int) -> None:
        self.ranges = [
            range_of(subtask, parallelism=parallelism, max_parallelism=KEY_GROUPS) for subtask in range(parallelism)
        ]
        self.heap = [HeapBackend(key_groups) for key_groups in self.ranges]
        self.rocks = [RocksBackend(key_groups, folder=folder, memory=MEMORY) for key_groups in self.ranges]

    def change(self, changes: Sequence[Change], entries: Entries) -> None:
        for name, key_group, key, value in changes:
            subtask = next(at for at, key_groups in enumerate(self.ranges) if key_group in key_groups)
            for backend in (self.heap[subtask], self.rocks[subtask]):
                if value is None:
                    backend.keyed(name).delete(key_group, key)
                else:
                    backend.keyed(name).put(key_group, key, value)
            if value is None:
                entries.pop((name, key_group, key), None)
            else:
                entries[name, key_group, key] = value

    def take_over(self, old: "Job", *, meanwhile: Sequence[Change], entries: Entries) -> None:
        """From snapshots of the old one, which goes on for a while before they are stored."""
        both: list[tuple[Sequence[StateBackend], Sequence[StateBackend]]] = [
            (self.heap, old.heap),
            (self.rocks, old.rocks),
        ]
        sections = [[backend.snapshot() for backend in old_backends] for _, old_backends in both]
        old.change(meanwhile, entries)
        for (new_backends, old_backends), of_kind in zip(both, sections, strict=True):
            snapshots = [restored_from(of_subtask) for of_subtask in of_kind]
            assert entries_of(old_backends) == entries
            for own, backend in zip(self.ranges, new_backends, strict=True):
                overlapping = [at for at, stored in enumerate(old.ranges) if _meet(own, stored)]
                backend.restore([section for at in overlapping for section in snapshots[at]])

    def close(self) -> None:
        for heap, rocks in zip(self.heap, self.rocks, strict=True):
            heap.close()
            rocks.close()


@contextmanager
def jobs(parallelisms: Sequence[int]) -> Iterator[list[Job]]:
    with ExitStack() as stack:
        folder = Folder(stack.enter_context(folder_in_memory()))
        made = [Job(folder, parallelism) for parallelism in parallelisms]
        for job in made:
            stack.callback(job.close)
        yield made


def _meet(one: KeyGroupRange, other: KeyGroupRange) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


def entries_of(backends: Sequence[StateBackend]) -> Entries:
    found: Entries = {}
    for backend in backends:
        for name in ("a", "b?ttl"):
            for key_group in range(KEY_GROUPS):
                for key, value in backend.keyed(name).scan(key_group):
                    assert backend.keyed(name).get(key_group, key) == value
                    assert (name, key_group, key) not in found
                    found[name, key_group, key] = value
    return found


@settings(max_examples=30, deadline=None)
@given(
    before=changes,
    meanwhile=changes,
    between=changes,
    after=changes,
    parallelisms=st.lists(st.integers(1, 4), min_size=3, max_size=3),
)
def test_both_hold_the_same_entries_through_any_changes_and_rescales(
    before: list[Change],
    meanwhile: list[Change],
    between: list[Change],
    after: list[Change],
    parallelisms: list[int],
) -> None:
    expected: Entries = {}
    with jobs(parallelisms) as (first, second, third):
        first.change(before, expected)
        second.take_over(first, meanwhile=meanwhile, entries=dict(expected))
        second.change(between, expected)
        third.take_over(second, meanwhile=after, entries=dict(expected))
        third.change(after, expected)
        assert entries_of(third.heap) == expected
        assert entries_of(third.rocks) == expected


beginnings = st.sampled_from([b"", b"\x00", b"k", b"\xff", b"\xff\xff"])
# What is asked between two snapshots falls, as it happens, into the making of the first one's files or behind it.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=4)),
        st.tuples(st.just("delete"), keys, st.just(b"")),
        st.tuples(st.just("get"), keys, st.just(b"")),
        st.tuples(st.just("from"), beginnings, st.just(b"")),
        st.tuples(st.just("first"), keys, st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("snapshot"), st.just(b""), st.just(b"")),
        st.tuples(st.just("settle"), st.just(b""), st.just(b"")),
    ),
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(steps=steps)
def test_whatever_is_asked_while_snapshots_are_made_is_answered_from_what_was_written(
    steps: list[tuple[str, bytes, bytes]],
) -> None:
    with folder_in_memory() as folder:
        backend = RocksBackend(KeyGroupRange(0, KEY_GROUPS), folder=Folder(folder), memory=MEMORY)
        state, expected = backend.keyed("a"), dict[bytes, bytes]()
        state.put(4, b"k of another key group", b"")
        for step, key, value in steps:
            match step:
                case "put":
                    state.put(3, key, value)
                    expected[key] = value
                case "delete":
                    state.delete(3, key)
                    expected.pop(key, None)
                case "get":
                    assert state.get(3, key) == expected.get(key)
                case "from":
                    found = sorted(each for each in expected if each.startswith(key))
                    assert state.keys_from(3, key) == found
                    assert state.last_key_from(3, key) == (found[-1] if found else None)
                case "first":
                    not_below = sorted(each for each in expected if each >= key)
                    assert state.first_keys(3, key, len(value)) == not_below[: len(value)]
                case "snapshot":
                    backend.snapshot()
                case _:
                    backend.settle()
        assert dict(state.scan(3)) == expected
        backend.close()
