"""Every store keeps the promises of `Store`."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from obstore.store import LocalStore, MemoryStore
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tests.hdfs_rules import hdfs_in
from tests.s3_server import S3Server, s3_server
from tidegate.storage.access import StoreAccess
from tidegate.storage.hadoop_files import HadoopFiles
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


class TestHadoopFilesByThemselves(StoreSuite):
    """Here a rename onto a folder that is there fails, as on a local disk."""

    def make_store(self, folder: Path) -> Store:
        return HadoopFiles("hdfs://test", SubTreeFileSystem(str(folder), LocalFileSystem()), "/chk")


class TestHadoopFilesByTheRulesOfHdfs(StoreSuite):
    """Here it moves into that folder."""

    def make_store(self, folder: Path) -> Store:
        return HadoopFiles("hdfs://test/some/chk", hdfs_in(folder), "/some/chk")


@pytest.fixture(scope="module")
def served() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket("tests")
        yield server


class S3Suite(StoreSuite):
    scheme: str
    server: S3Server

    @pytest.fixture(autouse=True)
    def _served(self, served: S3Server) -> None:
        self.server = served

    def make_store(self, folder: Path) -> Store:
        location = f"{self.scheme}://tests/{uuid4().hex}/chk"
        return open_store(location, StoreAccess(self.server.settings()))


class TestS3(S3Suite):
    scheme = "s3"


class TestS3a(S3Suite):
    scheme = "s3a"
