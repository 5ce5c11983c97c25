"""Every state backend against the one suite."""

from pathlib import Path

import pytest

from tests.ahead_by_hand import AheadByHand
from tidegate.model.ids import KeyGroupRange
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import IncrementalHeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import StateBackendSuite


class TestHeap(StateBackendSuite):
    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return HeapBackend(key_groups)


class TestIncrementalHeap(StateBackendSuite):
    """Also the smallest state is in files here."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self._folder = Folder(tmp_path / "slot")

    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return IncrementalHeapBackend(key_groups, folder=self._folder, whole_up_to_bytes=0)


class TestChangelogOverHeap(StateBackendSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self._folder = Folder(tmp_path / "slot")

    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return with_changelog(HeapBackend(key_groups), key_groups, self._folder)


class TestRocksDb(StateBackendSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self._folder = Folder(tmp_path / "slot")
        self._memory = RocksMemory(memory_bytes=8 << 20)

    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return RocksBackend(key_groups, folder=self._folder, memory=self._memory)

    def settle(self, backend: StateBackend) -> None:
        assert isinstance(backend, RocksBackend)
        for family in backend._instance.families.values():
            family.flush()
            family.compact_range(None, None)


class TestChangelogOverRocksDb(TestRocksDb):
    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return with_changelog(super().make_backend(key_groups), key_groups, self._folder)

    def settle(self, backend: StateBackend) -> None:
        assert isinstance(backend, ChangelogBackend)
        super().settle(backend._state)


def with_changelog(backend: StateBackend, key_groups: KeyGroupRange, folder: Folder) -> ChangelogBackend:
    return ChangelogBackend(
        backend,
        key_groups,
        folder=folder,
        ahead=AheadByHand(),
        clock=ManualClock(),
        interval_ms=1_000,
        first_image_at_ms=0,
    )
