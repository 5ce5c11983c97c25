"""Opens the state backend that a job asks for, for the tasks of one slot in one generation.

Backends on disk get a folder of their own, which is gone once the generation is. Must never import a package that the
job's backend does not need.
"""

import os
import secrets
import tempfile
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidegate.model.clock import Clock
from tidegate.model.errors import OptionError
from tidegate.model.ids import KeyGroupRange, TaskId
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import IncrementalHeapBackend
from tidegate.state.row_log import RowLog
from tidegate.state.row_store import RowMemory, RowStore, RunStore
from tidegate.state.rows_ahead import RowsAhead
from tidegate.state.scratch_files import ScratchFiles
from tidegate.state.sst_files import Folder
from tidegate.worker.settings import STATE_MEMORY_BYTES, STATE_ROWS_MEMORY_BYTES
from tidegate.worker.stored_ahead import StoredAhead

if TYPE_CHECKING:
    from tidegate.state.rocksdb import RocksBackend

# Multiples of the golden ratio lie far apart, however many there are. The share between operators was searched for: in
# up to 16 slots with 8 operators each, no two images are closer than a fifth of what lies between evenly spread ones.
_BETWEEN_SLOTS = 0.6180339887
_BETWEEN_OPERATORS = 0.445
# Of those that keep all rows in theirs.
_NO_MEMORY = RowMemory(0)
NEEDS_ROCKSDICT = (
    "state.backend=rocksdb needs the package rocksdict on the driver and on the executors: "
    "pip install rocksdict, or leave state.backend at heap."
)


class StateBackends(Protocol):
    def open(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> StateBackend:
        """An empty one, for one operator of a task."""
        ...

    def open_rows(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RowStore:
        """For a vectorised operator."""
        ...

    def open_runs(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RunStore:
        """For one whose rows never change."""
        ...

    def has_room(self) -> bool:
        """False while too many changes wait to be stored: tasks then take no input."""
        ...

    def on_time(self, now_ms: float) -> None:
        """Between steps of the stream; takes a few ms at the most."""
        ...

    def next_deadline_ms(self) -> float | None: ...
    def unstored_bytes(self, task: TaskId) -> int:
        """Of changes of its state that are to be stored ahead of checkpoints."""
        ...

    def close(self) -> None:
        """All that is left of them."""
        ...


def open_backends(
    name: str,
    *,
    memory_bytes: int = STATE_MEMORY_BYTES,
    rows_memory_bytes: int = STATE_ROWS_MEMORY_BYTES,
    whole_up_to_bytes: int | None = None,
    rows_whole_up_to_bytes: float = inf,
) -> StateBackends:
    """`memory_bytes`: what backends on disk may have in memory together; `rows_memory_bytes`: for rows in use.

    `whole_up_to_bytes`: larger state in memory is snapshotted by what changed; None if none is.
    `rows_whole_up_to_bytes`: the same of each vectorised operator.
    """
    match name:
        case "heap":
            return HeapBackends(
                local_folder(), whole_up_to_bytes=whole_up_to_bytes, rows_whole_up_to_bytes=rows_whole_up_to_bytes
            )
        case "rocksdb":
            return RocksBackends(local_folder(), memory_bytes=memory_bytes, rows_memory_bytes=rows_memory_bytes)
        case _:
            raise OptionError(f"Option 'state.backend' is {name!r}: use heap or rocksdb.")


class _WithoutChangelog:
    """Nothing is stored ahead of a checkpoint."""

    def has_room(self) -> bool:
        return True

    def on_time(self, now_ms: float) -> None:
        return

    def next_deadline_ms(self) -> float | None:
        return None

    def unstored_bytes(self, task: TaskId) -> int:
        return 0


class HeapBackends(_WithoutChangelog):
    """With a new folder below `folder` for the files of snapshots, made with the first of them."""

    def __init__(
        self, folder: Path, *, whole_up_to_bytes: int | None = None, rows_whole_up_to_bytes: float = inf
    ) -> None:
        self._folder: Folder | None = Folder(folder / f"tidegate-state-{secrets.token_hex(8)}")
        self._whole_up_to_bytes = whole_up_to_bytes
        self._rows_whole_up_to_bytes = rows_whole_up_to_bytes
        self._opened: list[StateBackend | RowLog] = []

    def open(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> StateBackend:
        folder, up_to_bytes = self._open_folder(), self._whole_up_to_bytes
        backend: StateBackend
        if up_to_bytes is None:
            backend = HeapBackend(key_groups, files_in=folder.path.parent)
        else:
            backend = IncrementalHeapBackend(key_groups, folder=folder, whole_up_to_bytes=up_to_bytes)
        self._opened.append(backend)
        return backend

    def open_rows(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RowStore:
        return RowStore(self._open_log(key_groups), None, _NO_MEMORY)

    def _open_log(self, key_groups: KeyGroupRange) -> RowLog:
        log = RowLog(key_groups, self._open_folder(), whole_up_to_bytes=self._rows_whole_up_to_bytes)
        self._opened.append(log)
        return log

    def open_runs(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RunStore:
        return RunStore(self._open_log(key_groups), None, _NO_MEMORY)

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        # Goes with the last snapshot that is being stored.
        self._folder = None

    def _open_folder(self) -> Folder:
        assert self._folder is not None, "not closed"
        return self._folder


class RocksBackends(_WithoutChangelog):
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
        self._scratch: list[ScratchFiles] = []
        self.rows_memory = RowMemory(rows_memory_bytes)

    def open(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> StateBackend:
        from tidegate.state.rocksdb import RocksBackend

        assert self._folder is not None, "not closed"
        backend = RocksBackend(key_groups, folder=self._folder, memory=self._memory)
        self._opened.append(backend)
        return backend

    def open_rows(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RowStore:
        self.rows_memory.operators += 1
        return RowStore(self._open_log(key_groups), self.open(key_groups), self.rows_memory)

    def _open_log(self, key_groups: KeyGroupRange) -> RowLog:
        assert self._folder is not None, "not closed"
        log = RowLog(key_groups, self._folder)
        self._logs.append(log)
        return log

    def open_runs(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RunStore:
        assert self._folder is not None, "not closed"
        files = ScratchFiles(self._folder)
        self._scratch.append(files)
        self.rows_memory.operators += 1
        return RunStore(self._open_log(key_groups), files, self.rows_memory)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        for log in self._logs:
            log.close()
        for files in self._scratch:
            files.close()
        # Goes with the last snapshot that is being stored.
        self._folder = None


class ChangelogBackends:
    """Over those of `backends`; the logs of vectorised operators are theirs, and stored ahead as well.

    `slot` and how many were opened before spread the images of the job over the interval.
    """

    def __init__(
        self, backends: StateBackends, folder: Path, *, ahead: StoredAhead, clock: Clock, interval_ms: float, slot: int
    ) -> None:
        self._backends = backends
        self._folder: Folder | None = Folder(folder / f"tidegate-state-{secrets.token_hex(8)}")
        self._ahead = ahead
        self._clock = clock
        self._interval_ms = interval_ms
        self._slot = slot
        self._opened: list[ChangelogBackend | RowsAhead] = []
        self._opened_by: dict[TaskId | None, list[ChangelogBackend | RowsAhead]] = {}
        self._images = 0

    def open(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> StateBackend:
        assert self._folder is not None, "not closed"
        backend = ChangelogBackend(
            self._backends.open(key_groups),
            key_groups,
            folder=self._folder,
            ahead=self._ahead,
            clock=self._clock,
            interval_ms=self._interval_ms,
            first_image_at_ms=self._clock.monotonic_ms() + self._first_after_ms(),
        )
        self._images += 1
        self._look_after(backend, task)
        return backend

    def open_rows(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RowStore:
        store = self._backends.open_rows(key_groups)
        return replace(store, ahead=self._rows_ahead(store.log, task))

    def open_runs(self, key_groups: KeyGroupRange, task: TaskId | None = None) -> RunStore:
        store = self._backends.open_runs(key_groups)
        return replace(store, ahead=self._rows_ahead(store.log, task))

    def _rows_ahead(self, log: RowLog, task: TaskId | None) -> RowsAhead:
        ahead = RowsAhead(log, ahead=self._ahead, clock=self._clock)
        self._look_after(ahead, task)
        return ahead

    def _look_after(self, opened: ChangelogBackend | RowsAhead, task: TaskId | None) -> None:
        self._opened.append(opened)
        self._opened_by.setdefault(task, []).append(opened)

    def has_room(self) -> bool:
        return self._ahead.has_room()

    def on_time(self, now_ms: float) -> None:
        self._ahead.on_time(now_ms)
        for opened in self._opened:
            opened.on_time(now_ms)

    def next_deadline_ms(self) -> float | None:
        deadlines = [self._ahead.next_deadline_ms(), *(opened.next_deadline_ms() for opened in self._opened)]
        return min((deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None)

    def unstored_bytes(self, task: TaskId) -> int:
        return sum(opened.unstored_bytes() for opened in self._opened_by.get(task, []))

    def close(self) -> None:
        self._ahead.close()
        for opened in self._opened:
            opened.close()
        self._backends.close()
        # Goes with the last snapshot that is being stored.
        self._folder = None

    def _first_after_ms(self) -> float:
        share = (self._slot * _BETWEEN_SLOTS + self._images * _BETWEEN_OPERATORS) % 1.0
        return self._interval_ms * (0.5 + share / 2)


def local_folder() -> Path:
    """The executor's own, on this machine."""
    # Spark names its own folders to Python workers, and removes them with the application, whatever became of a worker.
    return Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
