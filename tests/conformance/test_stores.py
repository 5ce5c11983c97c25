"""Every store keeps the promises of `Store`."""

from pathlib import Path

from obstore.store import LocalStore, MemoryStore

from tidegate.storage.object_store import ObjectStore
from tidegate.storage.store import Store, open_store
from tidegate.testing.store_suite import StoreSuite


class TestLocalFiles(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return open_store(str(folder / "store"))


class TestObjectStoreInMemory(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return ObjectStore("memory://test", MemoryStore())


class TestObjectStoreOnObstoresLocalStore(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return ObjectStore(f"file://{folder}", LocalStore(folder, mkdir=True))
