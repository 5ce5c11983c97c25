"""Every state backend against the one suite."""

from pathlib import Path

import pytest

from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.state_suite import StateBackendSuite


class TestHeap(StateBackendSuite):
    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return HeapBackend(key_groups)


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
