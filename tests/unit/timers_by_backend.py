"""Timers over every backend, made and restored in one way, for tests that must not know which it is."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tests.ahead_by_hand import AheadByHand
from tests.in_memory import folder_in_memory
from tidegate.model.ids import KeyGroupRange
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import RestoredSection, StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.state.timer_entries import Timer, no_floor
from tidegate.state.timers import Timers, timers_over
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

BACKENDS = ("heap", "rocksdb", "rocksdb with changelog")
NAME = "timers/event"
MEMORY = RocksMemory(memory_bytes=8 << 20)


class Backends:
    def __init__(self, stack: ExitStack, kind: str) -> None:
        self._stack = stack
        self._kind = kind
        self._folder: Folder | None = None

    def new(self, key_groups: KeyGroupRange, restored: Iterable[RestoredSection] = ()) -> StateBackend:
        if self._kind == "heap":
            backend: StateBackend = HeapBackend(key_groups)
        else:
            if self._folder is None:
                self._folder = Folder(self._stack.enter_context(folder_in_memory()))
            backend = RocksBackend(key_groups, folder=self._folder, memory=MEMORY)
            if self._kind != "rocksdb":
                backend = with_changelog(backend, key_groups, self._folder)
        self._stack.callback(backend.close)
        backend.restore(restored)
        return backend

    def restored_from(
        self, backend: StateBackend, key_groups: KeyGroupRange, floor_ms_of: Callable[[int], int] = no_floor
    ) -> Timers:
        """By a new owner of those key groups, from a snapshot."""
        restored = self.new(key_groups, restored_from(backend.snapshot()))
        return timers_over(restored, NAME, key_groups, floor_ms_of=floor_ms_of)


def with_changelog(backend: StateBackend, key_groups: KeyGroupRange, folder: Folder) -> ChangelogBackend:
    clock, ahead = ManualClock(), AheadByHand()
    return ChangelogBackend(
        backend, key_groups, folder=folder, ahead=ahead, clock=clock, interval_ms=1_000, first_image_at_ms=0
    )


@contextmanager
def backends_of(kind: str) -> Iterator[Backends]:
    with ExitStack() as stack:
        yield Backends(stack, kind)


def popped(timers: Timers, due_ms: int) -> list[Timer]:
    found = []
    while (timer := timers.pop_due(due_ms)) is not None:
        found.append(timer)
    return found
