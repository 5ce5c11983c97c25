"""Whole jobs whose aggregations have a log of their groups, with room for next to none or for all in memory."""

import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios.test_over_sockets import ALIGNED, UNALIGNED, FailsOnce, folder, slow
from tests.scenarios.test_state_in_rocksdb import local_folder, retained, stop_after
from tidegate.coordinator.coordinator import Coordinator
from tidegate.operators import log_book, rows_on_disk
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    Project,
    Scan,
    Sink,
    StreamJoin,
    TransformWithState,
)
from tidegate.protocol.restart import FixedDelay, RestartStrategy
from tidegate.storage import layout
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker.settings import HeapSnapshots, SlotSettings

__all__ = ["folder", "local_folder"]

ROWS = 3000
STATES: Mapping[str, Mapping[str, Any]] = {
    "mostly on disk": {"rows_memory_bytes": 1},
    "room for all": {"rows_memory_bytes": 1 << 30},
    "heap": {"state_backend": "heap"},
}
INT64 = pa.int64()


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_on_disk, "_LEAST_WRITTEN", 8)


def counted(folder: Path) -> TransformWithState:
    """The n-th row of each key, by user code that may be slow or fail."""
    k, v = Column(0, "k", INT64), Column(1, "v", INT64)
    keyed = Project(scanned(folder), (k, k, v), pa.schema([("k", INT64), ("k", INT64), ("v", INT64)]))
    return TransformWithState(keyed, 1, b"count", pa.schema([("k", INT64), ("n", INT64)]))


def scanned(folder: Path) -> Scan:
    return Scan("parquet", {"path": str(folder / "in")}, pa.schema([("k", INT64), ("v", INT64)]))


def job(folder: Path, *, slots: int = 2, **how: Any) -> Coordinator:
    """Sum and count by group; each shown whenever it changed."""
    k, n = Column(0, "k", INT64), Column(1, "n", INT64)
    calls = (
        AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, True),
        AggregateCall(AggregateFunction.SUM, (k,), INT64, True),
    )
    schema = pa.schema([("n", INT64), ("rows", INT64), ("total", INT64)])
    results = tuple(Column(at, field.name, field.type) for at, field in enumerate(schema))
    return coordinator_of(Aggregate(counted(folder), (n,), calls, results, schema), folder, slots=slots, **how)


def coordinator_of(
    node: Aggregate | StreamJoin,
    folder: Path,
    *,
    slots: int = 2,
    switch_after_ms: float | None = ALIGNED,
    before_row: Callable[[], None] = lambda: None,
    restart: RestartStrategy | None = None,
    interval_ms: float = 30,
    rows_memory_bytes: int = 1,
    state_backend: str = "rocksdb",
    heap_snapshots: HeapSnapshots = HeapSnapshots.INCREMENTAL,
) -> Coordinator:
    sink = Sink("parquet", {"path": str(folder / "out")}, node.schema)
    spec = local_job(
        "scenario",
        SlotSettings(
            plan=lower(node, sink, parallelism=slots, max_parallelism=128),
            checkpoint_location=str(folder / "chk"),
            window_bytes=4096,
            state_backend=state_backend,
            state_rows_memory_bytes=rows_memory_bytes,
            heap_snapshots=heap_snapshots,
            heap_rows_whole_up_to_bytes=0,
            inline_below_bytes=0,
        ),
        interval_ms=interval_ms,
        timeout_ms=60_000,
        switch_after_ms=switch_after_ms,
        keep=2,
        restart=restart,
        available_now=True,
    )
    code = NamedUserCode(processors={"count": lambda: CountingProcessor(before_row=before_row)})
    return Coordinator(spec, open_store(str(folder / "chk")), ThreadLauncher(code), versions={})


def run(coordinator: Coordinator) -> None:
    coordinator.start()
    assert coordinator.wait(60), f"still {coordinator.view().state}"
    assert coordinator.view().state == "finished", coordinator.failure()


def newest(folder: Path) -> dict[int, tuple[int, int]]:
    """Counts only grow, so that the newest of a group is the one with the greatest."""
    rows = sorted((row["rows"], row["n"], row["total"]) for row in pq.read_table(folder / "out").to_pylist())
    return {n: (count, total) for count, n, total in rows}


def golden() -> dict[int, tuple[int, int]]:
    """The n-th row of each key."""
    keys_with: dict[int, list[int]] = {}
    for v in range(ROWS):
        keys_with.setdefault(v // 37 + 1, []).append(v % 37)
    return {n: (len(keys), sum(keys)) for n, keys in keys_with.items()}


def log_files(folder: Path) -> set[str]:
    return {path for path in open_store(str(folder / "chk")).list(layout.SHARED) if path.endswith(".rows")}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED])
def test_every_row_counts_once_through_an_error(
    folder: Path, local_folder: Path, switch_after_ms: float | None, state: str
) -> None:
    run(
        job(
            folder,
            switch_after_ms=switch_after_ms,
            before_row=FailsOnce(1000),
            restart=FixedDelay(3, delay_ms=10),
            **STATES[state],
        )
    )
    assert newest(folder) == golden()
    # The slots end a little later than the query.
    deadline_s = time.monotonic() + 60
    while list(local_folder.iterdir()) and time.monotonic() < deadline_s:
        gc.collect()
        time.sleep(0.1)
    assert list(local_folder.iterdir()) == []


@pytest.mark.parametrize("slots", [(2, 2, 2), (1, 3, 2)])
@pytest.mark.parametrize("state", STATES)
def test_a_stopped_job_goes_on_with_any_number_of_slots(folder: Path, slots: tuple[int, int, int], state: str) -> None:
    for number in slots[:2]:
        stop_after(job(folder, slots=number, before_row=slow(0.001), switch_after_ms=UNALIGNED, **STATES[state]), 2)
    run(job(folder, slots=slots[2], **STATES[state]))
    assert newest(folder) == golden()


@pytest.mark.parametrize("state", ["room for all", "heap"])
def test_checkpoints_share_files_of_rows_and_keep_none_that_no_checkpoint_needs(
    folder: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 1)
    run(job(folder, interval_ms=20, before_row=slow(0.0005), **STATES[state]))
    older, newer = (
        {file.path for slot in manifest.slots for file in slot.shared if file.path.endswith(".rows")}
        for manifest in retained(folder)
    )
    assert older & newer, "what did not change between them is stored once"
    assert log_files(folder) == older | newer


@pytest.mark.parametrize("snapshots", HeapSnapshots)
def test_a_job_on_the_heap_goes_on_with_its_groups_on_disk(folder: Path, snapshots: HeapSnapshots) -> None:
    stop_after(job(folder, before_row=slow(0.001), state_backend="heap", heap_snapshots=snapshots), 2)
    assert bool(log_files(folder)) == (snapshots is HeapSnapshots.INCREMENTAL)
    stop_after(job(folder, before_row=slow(0.001)), 2)
    run(job(folder))
    assert newest(folder) == golden()


def test_a_job_on_the_heap_goes_on_when_it_is_to_store_all_again(folder: Path) -> None:
    stop_after(job(folder, before_row=slow(0.001), state_backend="heap"), 2)
    assert log_files(folder)
    whole = {"state_backend": "heap", "heap_snapshots": HeapSnapshots.WHOLE}
    stop_after(job(folder, before_row=slow(0.001), **whole), 3)
    assert not log_files(folder)
    run(job(folder, **whole))
    assert newest(folder) == golden()
