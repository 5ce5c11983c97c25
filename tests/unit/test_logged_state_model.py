"""Whatever is put, deleted, snapshotted, aborted and restored, backends with a log hold what a dictionary does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.ahead_by_hand import AheadByHand
from tests.in_memory import folder_in_memory
from tidegate.model.ids import KeyGroupRange, range_of
from tidegate.state import changelog, entry_files, logged
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import RestoredSection, Section, StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import IncrementalHeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

KEY_GROUPS = 8
NAMES = ("a", "b?ttl")

keys = st.sampled_from([b"", b"\x00", b"k", b"kk", b"\xff\xff"])
groups = st.integers(0, KEY_GROUPS - 1)
Entries = dict[tuple[str, int, bytes], bytes]


@contextmanager
def everything_small() -> Iterator[Path]:
    """So that a few entries make frames, images, merged files and a backlog."""
    sizes = [
        patch.object(entry_files, "FRAME_BYTES", 150),
        patch.object(entry_files, "SMALL_FILE_BYTES", 200),
        patch.object(entry_files, "MERGED_FILES", 3),
        patch.object(entry_files, "MOST_FILES", 6),
        patch.object(changelog, "LEAST_OUTGROWN_BYTES", 300),
        patch.object(logged, "IMAGE_FILE_BYTES", 20),
        patch.object(logged, "MOST_UNWRITTEN_CHANGES", 8),
    ]
    with folder_in_memory() as folder:
        for size in sizes:
            size.start()
        try:
            yield folder
        finally:
            for size in sizes:
                size.stop()


class Model(RuleBasedStateMachine):
    """The subtasks of one operator; `stored` is a checkpoint that is complete, with what it must give back."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: Entries = {}
        self.stored: list[tuple[KeyGroupRange, list[RestoredSection]]] = []
        self.stored_entries: Entries = {}
        self.under_way: list[tuple[list[tuple[KeyGroupRange, list[Section]]], Entries]] = []
        self._sizes = everything_small()
        self.slot = Folder(self._sizes.__enter__() / "slot")
        self.backends: list[tuple[KeyGroupRange, StateBackend]] = []
        self.clock, self.ahead = ManualClock(), AheadByHand()

    @initialize(parallelism=st.integers(1, 3), kind=st.integers(0, 2))
    def start(self, parallelism: int, kind: int) -> None:
        self.backends = [(own, self.new(own, kind)) for own in ranges(parallelism)]

    def new(self, own: KeyGroupRange, kind: int) -> StateBackend:
        match kind:
            case 0:
                return HeapBackend(own)
            case 1:
                return IncrementalHeapBackend(own, folder=self.slot, whole_up_to_bytes=5)
            case _:
                return self.with_changelog(HeapBackend(own), own)

    def with_changelog(self, backend: StateBackend, own: KeyGroupRange) -> ChangelogBackend:
        return ChangelogBackend(
            backend, own, folder=self.slot, ahead=self.ahead, clock=self.clock, interval_ms=150, first_image_at_ms=50
        )

    @rule(
        changes=st.lists(
            st.tuples(st.sampled_from(NAMES), groups, keys, st.none() | st.binary(max_size=4)), min_size=1, max_size=12
        )
    )
    def change(self, changes: list[tuple[str, int, bytes, bytes | None]]) -> None:
        for name, group, key, value in changes:
            (backend,) = [backend for own, backend in self.backends if group in own]
            if value is None:
                backend.keyed(name).delete(group, key)
                self.entries.pop((name, group, key), None)
            else:
                backend.keyed(name).put(group, key, value)
                self.entries[name, group, key] = value

    @rule()
    def take(self) -> None:
        self.under_way.append(([(own, backend.snapshot()) for own, backend in self.backends], dict(self.entries)))

    @rule()
    def abort(self) -> None:
        if self.under_way:
            self.under_way.pop()

    @rule(steps=st.integers(1, 5))
    def write_some(self, steps: int) -> None:
        for taken, _ in self.under_way[:1]:
            for _, sections in taken:
                for section in sections:
                    if section.steps is not None:
                        for _ in zip(range(steps), section.steps(), strict=False):
                            pass

    @rule()
    def complete(self) -> None:
        if self.under_way:
            taken, self.stored_entries = self.under_way.pop(0)
            self.stored = [(own, restored_from(sections)) for own, sections in taken]

    @rule(ms=st.sampled_from([1, 99, 200]), steps=st.sampled_from([1, 2, 20]))
    def let_time_pass(self, ms: int, steps: int) -> None:
        self.clock.advance(ms)
        for _, backend in self.backends:
            if isinstance(backend, ChangelogBackend):
                for _ in range(steps):
                    backend.on_time(self.clock.monotonic_ms())

    @rule(error=st.sampled_from([None, None, OSError("full")]))
    def finish_storing(self, error: BaseException | None) -> None:
        self.ahead.stored.update(self.ahead.changes)
        self.ahead.finish_images(error)

    @rule(parallelism=st.integers(1, 4), kind=st.integers(0, 2))
    def restart(self, parallelism: int, kind: int) -> None:
        for _, backend in self.backends:
            backend.close()
        self.under_way.clear()
        self.backends = []
        for own in ranges(parallelism):
            backend = self.new(own, kind)
            backend.restore([section for stored, each in self.stored if meet(own, stored) for section in each])
            self.backends.append((own, backend))
        self.entries = dict(self.stored_entries)

    @invariant()
    def holds_what_was_put(self) -> None:
        found = {
            (name, group, key): value
            for _, backend in self.backends
            for name in NAMES
            for group in range(KEY_GROUPS)
            for key, value in backend.keyed(name).scan(group)
        }
        assert found == self.entries

    def teardown(self) -> None:
        for _, backend in self.backends:
            backend.close()
        self.under_way.clear()
        self._sizes.__exit__(None, None, None)


def ranges(parallelism: int) -> list[KeyGroupRange]:
    return [range_of(at, parallelism=parallelism, max_parallelism=KEY_GROUPS) for at in range(parallelism)]


def meet(one: KeyGroupRange, other: KeyGroupRange) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


class RocksModel(Model):
    """Nothing on the heap can read what this one stores."""

    memory = RocksMemory(memory_bytes=8 << 20)

    def new(self, own: KeyGroupRange, kind: int) -> StateBackend:
        rocks = RocksBackend(own, folder=self.slot, memory=self.memory)
        return rocks if kind == 0 else self.with_changelog(rocks, own)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestRocksModel = RocksModel.TestCase
TestRocksModel.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
