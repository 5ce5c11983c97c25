"""Where the state of a simulated job lives, and what of it a checkpoint stores: by the seed's dice, start by start.

Limits are so small that all that is done bit by bit, or for much state only, shows with the few keys of a run. Only
what is on the local disk is real: each run has a folder of its own there, in memory if the system offers one.
"""

import errno
import gc
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from random import Random
from unittest.mock import patch

from tidegate.state import changelog, entry_files, logged, rows_ahead
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker import stored_ahead
from tidegate.worker.settings import INLINE_BELOW_BYTES, HeapSnapshots

_IN_MEMORY = Path("/dev/shm")


class StateKind(Enum):
    """`state.backend`, and how it is stored."""

    HEAP_WHOLE = "heap, whole"
    HEAP = "heap, by what changed"
    HEAP_CHANGELOG = "heap with a changelog"
    ROCKSDB = "rocksdb"
    ROCKSDB_CHANGELOG = "rocksdb with a changelog"

    @property
    def backend(self) -> str:
        return "rocksdb" if self in ROCKSDB_KINDS else "heap"

    @property
    def has_changelog(self) -> bool:
        return self in (StateKind.HEAP_CHANGELOG, StateKind.ROCKSDB_CHANGELOG)

    @property
    def heap_snapshots(self) -> HeapSnapshots:
        return HeapSnapshots.WHOLE if self is StateKind.HEAP_WHOLE else HeapSnapshots.INCREMENTAL


HEAP_KINDS = (StateKind.HEAP_WHOLE, StateKind.HEAP, StateKind.HEAP_CHANGELOG)
ROCKSDB_KINDS = (StateKind.ROCKSDB, StateKind.ROCKSDB_CHANGELOG)


class StateDice(Enum):
    """What a seed may choose from."""

    MIXED = "mixed"
    HEAP = "heap"  # in memory at every start, with the limits of real jobs
    ROCKSDB = "rocksdb"  # the same in RocksDB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of what is done at one go, in place of those of real jobs."""

    batch_ms: float = changelog.BATCH_MS
    waiting_files: int = changelog.MOST_WAITING_FILES
    frame_bytes: int = entry_files.FRAME_BYTES
    small_file_bytes: int = entry_files.SMALL_FILE_BYTES
    merged_files: int = entry_files.MERGED_FILES
    image_file_bytes: int = entry_files.IMAGE_FILE_BYTES
    unwritten_changes: int = logged.MOST_UNWRITTEN_CHANGES
    unstored_bytes: int = stored_ahead.MOST_UNSTORED_BYTES
    at_once_bytes: int = stored_ahead._MOST_AT_ONCE_BYTES
    retry_after_ms: float = stored_ahead._RETRY_AFTER_MS
    rows_look_ms: float = rows_ahead.LOOK_MS
    rows_wait_ms: float = rows_ahead.WAIT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class StateScenario:
    """Each start chooses one of `first`, from the start of that number on one of `later`."""

    first: tuple[StateKind, ...] = (StateKind.HEAP,)
    later: tuple[StateKind, ...] = (StateKind.HEAP,)
    later_from_start: int = 1
    image_interval_ms: float = 0.0
    inline_below_bytes: int | None = None
    disk_flaky_rate: float = 0.0
    limits: Limits = Limits()

    def kind_of(self, start: int, random: Random) -> StateKind:
        return random.choice(self.first if start < self.later_from_start else self.later)


def states_of(seed: int, dice: StateDice) -> StateScenario:
    match dice:
        case StateDice.HEAP:
            return StateScenario()
        case StateDice.ROCKSDB:
            return StateScenario(first=(StateKind.ROCKSDB,), later=(StateKind.ROCKSDB,))
        case StateDice.MIXED:
            disk_flaky_rate = Random(f"disk:{seed}").choice([0.0, 0.0, 0.0, 0.0, 0.002, 0.05])
            waiting_files = Random(f"waiting:{seed}").choice([0, 0, changelog.MOST_WAITING_FILES])
            mixed = _mixed(Random(f"state:{seed}"))
            limits = replace(mixed.limits, waiting_files=waiting_files)
            return replace(mixed, disk_flaky_rate=disk_flaky_rate, limits=limits)


def _mixed(random: Random) -> StateScenario:
    first, later = random.choice(
        [
            (HEAP_KINDS, HEAP_KINDS),
            (HEAP_KINDS, HEAP_KINDS),
            ((StateKind.HEAP,), (StateKind.HEAP,)),
            ((StateKind.HEAP_CHANGELOG,), (StateKind.HEAP_CHANGELOG,)),
            ((StateKind.HEAP_CHANGELOG,), (StateKind.HEAP_CHANGELOG,)),
            ((StateKind.HEAP_CHANGELOG,), (StateKind.HEAP_CHANGELOG,)),
            # The other way round is refused: what RocksDB stored, only RocksDB reads.
            (HEAP_KINDS, ROCKSDB_KINDS),
            (ROCKSDB_KINDS, ROCKSDB_KINDS),
            ((StateKind.ROCKSDB_CHANGELOG,), (StateKind.ROCKSDB_CHANGELOG,)),
        ]
    )
    return StateScenario(
        first=first,
        later=later,
        later_from_start=random.randint(2, 4),
        image_interval_ms=random.choice([4.0, 12.0, 40.0]),
        inline_below_bytes=random.choice([0, 0, 0, 60, 600, INLINE_BELOW_BYTES]),
        limits=Limits(
            batch_ms=random.choice([0.5, 2.0, 10.0]),
            frame_bytes=random.choice([60, 300, entry_files.FRAME_BYTES]),
            small_file_bytes=random.choice([1, 150, entry_files.SMALL_FILE_BYTES]),
            merged_files=random.choice([2, 3, entry_files.MERGED_FILES]),
            image_file_bytes=random.choice([1, 150, entry_files.IMAGE_FILE_BYTES]),
            unwritten_changes=random.choice([2, logged.MOST_UNWRITTEN_CHANGES]),
            unstored_bytes=random.choice([100, 1000, stored_ahead.MOST_UNSTORED_BYTES]),
            at_once_bytes=random.choice([1, 300, stored_ahead._MOST_AT_ONCE_BYTES]),
            retry_after_ms=random.choice([1.0, 20.0]),
            rows_look_ms=random.choice([0.2, 1.0, 5.0]),
            rows_wait_ms=random.choice([0.2, 2.0, 20.0]),
        ),
    )


@contextmanager
def limits_in_place(states: StateScenario, seed: int) -> Iterator[None]:
    """And names of files that follow from the seed: in whatever order files are deleted, it is the same one again."""
    limits, names = states.limits, Random(f"names:{seed}")
    disk, write = Random(f"local disk:{seed}"), StepwiseFile._write

    def write_or_fail(file: StepwiseFile, pieces: Pieces | None) -> None:
        if disk.random() < states.disk_flaky_rate:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, pieces)

    with ExitStack() as stack:
        for owner, name, value in (
            (changelog, "BATCH_MS", limits.batch_ms),
            (changelog, "MOST_WAITING_FILES", limits.waiting_files),
            (entry_files, "FRAME_BYTES", limits.frame_bytes),
            (entry_files, "SMALL_FILE_BYTES", limits.small_file_bytes),
            (entry_files, "MERGED_FILES", limits.merged_files),
            (logged, "IMAGE_FILE_BYTES", limits.image_file_bytes),
            (logged, "MOST_UNWRITTEN_CHANGES", limits.unwritten_changes),
            (stored_ahead, "MOST_UNSTORED_BYTES", limits.unstored_bytes),
            (stored_ahead, "_MOST_AT_ONCE_BYTES", limits.at_once_bytes),
            (stored_ahead, "_RETRY_AFTER_MS", limits.retry_after_ms),
            (rows_ahead, "_RETRY_AFTER_MS", limits.retry_after_ms),
            (rows_ahead, "LOOK_MS", limits.rows_look_ms),
            (rows_ahead, "LONGEST_LOOK_MS", 8 * limits.rows_look_ms),
            (rows_ahead, "WAIT_MS", limits.rows_wait_ms),
            (StepwiseFile, "_write", write_or_fail),
            (secrets, "token_hex", lambda bytes_: names.randbytes(bytes_).hex()),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


@contextmanager
def local_disk() -> Iterator[None]:
    """All slots' machine has one; whatever they wrote there must be gone when they are."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as folder:
        with patch.dict(os.environ, SPARK_LOCAL_DIRS=folder):
            yield
        if os.listdir(folder):
            gc.collect()
        if left := [str(path.relative_to(folder)) for path in Path(folder).rglob("*")]:
            raise SimulationFailed(f"all slots are gone, and there is still on the local disk: {sorted(left)[:5]}")
