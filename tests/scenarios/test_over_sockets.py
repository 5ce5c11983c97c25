"""Whole jobs over real sockets, each slot a thread: coordinator, worker, storage and sink, without Spark."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.job import CheckpointFollower
from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import CheckpointId
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Project, Scan, Sink, TransformWithState
from tidegate.protocol.restart import FixedDelay, RestartStrategy
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker.settings import INLINE_BELOW_BYTES, HeapSnapshots, SlotSettings
from tidegate.worker.slot import SlotRun

KEYS = 37
ROWS = 3000
FILES = 6
ALIGNED, UNALIGNED, SWITCHING = None, 0.0, 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        ids = range(file * ROWS // FILES, (file + 1) * ROWS // FILES)
        table = pa.table({"k": [i % KEYS for i in ids], "v": list(ids)})
        pq.write_table(table, tmp_path / "in" / f"{file}.parquet")
    return tmp_path


def job(
    folder: Path,
    *,
    before_row: Callable[[], None] = lambda: None,
    switch_after_ms: float | None = UNALIGNED,
    slots: int = 2,
    interval_ms: float = 30,
    timeout_ms: float = 60_000,
    max_concurrent: int = 1,
    tolerable_failures: int = 0,
    restart: RestartStrategy | None = None,
    state_backend: str = "heap",
    inline_below_bytes: int = INLINE_BELOW_BYTES,
    location: str = "chk",
    restore_from: str | None = None,
    heap_snapshots: HeapSnapshots = HeapSnapshots.INCREMENTAL,
    changelog_image_interval_ms: float | None = None,
    followers: tuple[CheckpointFollower, ...] = (),
) -> Coordinator:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    k, v = Column(0, "k", pa.int64()), Column(1, "v", pa.int64())
    keyed = Project(
        Scan("parquet", {"path": str(folder / "in")}, schema),
        (k, k, v),
        pa.schema([("k", pa.int64()), ("k", pa.int64()), ("v", pa.int64())]),
    )
    counted = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    sink = Sink("parquet", {"path": str(folder / "out")}, counted)
    plan = lower(TransformWithState(keyed, 1, b"count", counted), sink, parallelism=slots, max_parallelism=128)
    spec = local_job(
        "scenario",
        SlotSettings(
            plan=plan,
            checkpoint_location=str(folder / location),
            window_bytes=4096,
            state_backend=state_backend,
            inline_below_bytes=inline_below_bytes,
            heap_snapshots=heap_snapshots,
            changelog_image_interval_ms=changelog_image_interval_ms,
        ),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        max_concurrent=max_concurrent,
        tolerable_failures=tolerable_failures,
        switch_after_ms=switch_after_ms,
        keep=2,
        restart=restart,
        available_now=True,
    )
    code = NamedUserCode(processors={"count": lambda: CountingProcessor(before_row=before_row)})
    started = replace(spec, restore_from=restore_from, followers=followers)
    return Coordinator(started, open_store(str(folder / location)), ThreadLauncher(code), versions={})


def run(coordinator: Coordinator, *, timeout_s: float = 60) -> None:
    coordinator.start()
    assert coordinator.wait(timeout_s), f"still {coordinator.view().state}"


def committed(folder: Path) -> Counter[tuple[int, int]]:
    rows = pq.read_table(folder / "out").to_pylist()
    return Counter((row["k"], row["n"]) for row in rows)


def golden() -> Counter[tuple[int, int]]:
    per_key = Counter(i % KEYS for i in range(ROWS))
    return Counter((k, n) for k, count in per_key.items() for n in range(1, count + 1))


def slow(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


class FailsOnce:
    """Raises at the given row, once in the life of the test."""

    def __init__(self, row: int) -> None:
        self._row = row
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        time.sleep(0.0005)
        with self._lock:
            self._seen += 1
            if self._seen == self._row:
                raise ValueError("the thousandth row is odd")


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED, SWITCHING])
def test_every_row_is_committed_once(folder: Path, slots: int, switch_after_ms: float | None) -> None:
    coordinator = job(folder, slots=slots, switch_after_ms=switch_after_ms, before_row=slow(0.0003))
    run(coordinator)
    assert coordinator.view().state == "finished"
    assert committed(folder) == golden()


def test_unaligned_checkpoints_store_what_is_in_flight_and_aligned_ones_nothing(folder: Path) -> None:
    unaligned = job(folder, switch_after_ms=UNALIGNED, before_row=slow(0.0005))
    run(unaligned)
    assert max(c.inflight_bytes for c in unaligned.view().checkpoints) > 0
    aligned = job(folder, switch_after_ms=ALIGNED, before_row=slow(0.0005))
    run(aligned)
    assert all(c.inflight_bytes == 0 and c.kind == "aligned" for c in aligned.view().checkpoints)


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED, SWITCHING])
def test_an_error_in_user_code_restarts_in_place_and_loses_nothing(folder: Path, switch_after_ms: float | None) -> None:
    coordinator = job(
        folder, switch_after_ms=switch_after_ms, before_row=FailsOnce(1000), restart=FixedDelay(3, delay_ms=10)
    )
    run(coordinator)
    view = coordinator.view()
    assert (view.state, view.generation) == ("finished", 2)
    assert committed(folder) == golden()


def test_without_a_restart_the_users_error_is_what_the_query_ends_with(folder: Path) -> None:
    coordinator = job(folder, before_row=FailsOnce(1000))
    run(coordinator)
    assert coordinator.view().state == "failed"
    failure = coordinator.failure()
    assert isinstance(failure, UserCodeFailure)
    assert "the thousandth row is odd" in str(failure)


def test_whatever_would_end_a_slot_is_what_the_query_ends_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word it could only be said that the slot is gone."""

    def leave(slot: SlotRun, own_fds: Sequence[int]) -> None:
        sys.exit("enough")

    monkeypatch.setattr(SlotRun, "turn", leave)
    coordinator = job(folder)
    run(coordinator)
    assert str(coordinator.failure()) == "SystemExit: enough"


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED])
def test_a_stopped_job_goes_on_where_its_last_checkpoint_was(folder: Path, switch_after_ms: float | None) -> None:
    first = job(folder, switch_after_ms=switch_after_ms, before_row=slow(0.001))
    first.start()
    while first.view().committed_checkpoints < 2:
        assert not first.wait(0.01), "it ended before it could be stopped"
    first.stop()
    assert first.wait(60)
    assert first.view().state == "stopped"
    second = job(folder, switch_after_ms=switch_after_ms)
    run(second)
    assert second.view().generation == 2
    assert committed(folder) == golden()


@dataclass
class Together:
    """How many checkpoints were under way with each one that was triggered, itself included."""

    under_way: set[CheckpointId] = field(default_factory=set)
    counts: list[int] = field(default_factory=list)

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        self.under_way.add(checkpoint)
        self.counts.append(len(self.under_way))

    def on_reached_all(self, checkpoint: CheckpointId) -> None: ...

    def on_settled(self, checkpoint: CheckpointId) -> None:
        self.under_way.remove(checkpoint)

    def paused_ms(self) -> dict[str, float]:
        return {}


def test_several_unaligned_checkpoints_at_once(folder: Path) -> None:
    together = Together()
    coordinator = job(folder, interval_ms=5, max_concurrent=3, before_row=slow(0.0005), followers=(together,))
    run(coordinator)
    assert 2 <= max(together.counts) <= 3 and together.under_way == set()
    assert any(c.kind == "unaligned" for c in coordinator.view().checkpoints)
    assert committed(folder) == golden()


def test_rows_of_an_expired_checkpoint_are_committed_with_a_later_one(folder: Path) -> None:
    """Aligned under load takes longer than the timeout, so most expire after the sink has closed its epoch."""
    coordinator = job(
        folder,
        switch_after_ms=ALIGNED,
        interval_ms=10,
        timeout_ms=25,
        tolerable_failures=10_000,
        before_row=slow(0.0005),
    )
    run(coordinator)
    assert any(c.status == "failed" and c.failure_reason == "expired" for c in coordinator.view().checkpoints)
    assert committed(folder) == golden()


def test_retention_keeps_so_many_checkpoints_and_no_more(folder: Path) -> None:
    coordinator = job(folder, interval_ms=10, before_row=slow(0.0005))
    run(coordinator)
    assert len([c for c in coordinator.view().checkpoints if c.status == "completed"]) > 2
    assert len(list((folder / "chk" / "checkpoints").iterdir())) == 2


def test_nothing_unfinished_is_left_beside_the_output(folder: Path) -> None:
    run(job(folder, before_row=FailsOnce(1000), restart=FixedDelay(3, delay_ms=10)))
    assert [path.name for path in (folder / "out").iterdir() if not path.name.startswith("part-")] == []


def test_a_bounded_job_shorter_than_the_interval_ends_with_one_checkpoint(folder: Path) -> None:
    coordinator = job(folder, interval_ms=60_000)
    run(coordinator)
    assert [c.status for c in coordinator.view().checkpoints] == ["completed"]
    assert committed(folder) == golden()
