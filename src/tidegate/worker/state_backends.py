"""Opens the state backend that a job asks for, for the tasks of one slot in one generation.

Backends on disk get a folder of their own, which is gone once the generation is. Must never import a package that the
job's backend does not need.
"""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidegate.model.errors import OptionError
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.row_log import RowLog
from tidegate.state.row_store import RowMemory, RowStore
from tidegate.state.sst_files import Folder
from tidegate.worker.settings import STATE_MEMORY_BYTES, STATE_ROWS_MEMORY_BYTES

if TYPE_CHECKING:
    from tidegate.state.rocksdb import RocksBackend

NEEDS_ROCKSDICT = (
    "state.backend=rocksdb needs the package rocksdict on the driver and on the executors: "
    "pip install 'tidegate[rocksdb]', or leave state.backend at heap."
)


class StateBackends(Protocol):
    def open(self, key_groups: KeyGroupRange) -> StateBackend:
        """An empty one, for one operator of a task."""
        ...

    def open_rows(self, key_groups: KeyGroupRange) -> RowStore | None:
        """For a vectorised operator; None if it is to keep its rows in memory."""
        ...

    def close(self) -> None:
        """All that is left of them."""
        ...


def open_backends(
    name: str, *, memory_bytes: int = STATE_MEMORY_BYTES, rows_memory_bytes: int = STATE_ROWS_MEMORY_BYTES
) -> StateBackends:
    """`memory_bytes`: what backends on disk may have in memory together; `rows_memory_bytes`: for rows in use."""
    match name:
        case "heap":
            return HeapBackends()
        case "rocksdb":
            return RocksBackends(local_folder(), memory_bytes=memory_bytes, rows_memory_bytes=rows_memory_bytes)
        case _:
            raise OptionError(f"Option 'state.backend' is {name!r}: use heap or rocksdb.")


class HeapBackends:
    def open(self, key_groups: KeyGroupRange) -> StateBackend:
        return HeapBackend(key_groups)

    def open_rows(self, key_groups: KeyGroupRange) -> RowStore | None:
        return None

    def close(self) -> None:
        return


class RocksBackends:
    """In a new folder below `folder`, with one bound of memory for all of them."""

    def __init__(self, folder: Path, *, memory_bytes: int, rows_memory_bytes: int = STATE_ROWS_MEMORY_BYTES) -> None:
        try:
            from tidegate.state.rocksdb_options import RocksMemory
        except ImportError as error:
            raise OptionError(NEEDS_ROCKSDICT) from error
        self._folder: Folder | None = Folder(Path(tempfile.mkdtemp(prefix="tidegate-state-", dir=folder)))
        self._memory = RocksMemory(memory_bytes)
        self._opened: list[RocksBackend] = []
        self._logs: list[RowLog] = []
        self.rows_memory = RowMemory(rows_memory_bytes)

    def open(self, key_groups: KeyGroupRange) -> StateBackend:
        from tidegate.state.rocksdb import RocksBackend

        assert self._folder is not None, "not closed"
        backend = RocksBackend(key_groups, folder=self._folder, memory=self._memory)
        self._opened.append(backend)
        return backend

    def open_rows(self, key_groups: KeyGroupRange) -> RowStore | None:
        assert self._folder is not None, "not closed"
        log = RowLog(key_groups, self._folder)
        self._logs.append(log)
        self.rows_memory.operators += 1
        return RowStore(log, self.open(key_groups), self.rows_memory)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        for log in self._logs:
            log.close()
        # Goes with the last snapshot that is being stored.
        self._folder = None


def local_folder() -> Path:
    """The executor's own, on this machine."""
    # Spark names its own folders to Python workers, and removes them with the application, whatever became of a worker.
    return Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
