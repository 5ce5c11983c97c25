"""Overloaded jobs over real sockets, without Spark: what checkpoints cost, who waits for whom. A slot is a thread."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.views import CheckpointView
from tidegate.plan.lower import lower
from tidegate.plan.nodes import MapInArrow, Scan, Sink, TransformWithState
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import Data, LocalFiles, Store, open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker import main
from tidegate.worker.settings import INLINE_BELOW_BYTES, START_WINDOW_BYTES, SlotSettings

PATIENCE_S = 90.0
PAYLOAD = "x" * 200
KEYED = pa.schema([("k", pa.int64()), ("k", pa.int64()), ("payload", pa.string())])
COUNTED = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def with_payload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = pa.array([value % 100 for value in batch.column(0).to_pylist()], pa.int64())
        yield pa.RecordBatch.from_arrays([keys, keys, pa.repeat(pa.scalar(PAYLOAD), batch.num_rows)], schema=KEYED)


def job(
    folder: Path,
    *,
    rows_per_s: int,
    row_s: float,
    switch_after_ms: float | None,
    interval_ms: float,
    window_bytes: int,
    timeout_ms: float = 60_000,
    tolerable_failures: int = 0,
    backpressure: ActiveBackpressure = ActiveBackpressure.OFF,
    debloat_target_ms: float | None = None,
    inline_below_bytes: int = INLINE_BELOW_BYTES,
) -> Coordinator:
    scan = Scan("rate", {"rowsPerSecond": str(rows_per_s)}, pa.schema([("value", pa.int64())]))
    counted = TransformWithState(MapInArrow(scan, b"payload", "payload", KEYED), 1, b"slow", COUNTED)
    plan = lower(counted, Sink("noop", {}, COUNTED), parallelism=2, max_parallelism=128)
    spec = local_job(
        "backpressure",
        SlotSettings(
            plan=plan,
            checkpoint_location=str(folder / "chk"),
            window_bytes=window_bytes,
            state_backend="heap",
            active_backpressure=backpressure,
            checkpoint_interval_ms=interval_ms,
            debloat_target_ms=debloat_target_ms,
            inline_below_bytes=inline_below_bytes,
        ),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        tolerable_failures=tolerable_failures,
        switch_after_ms=switch_after_ms,
        keep=2,
    )

    def slow() -> CountingProcessor:
        """While it sleeps, other slots of this process run."""
        return CountingProcessor(before_row=lambda: time.sleep(row_s))

    code = NamedUserCode(functions={"payload": with_payload}, processors={"slow": slow})
    return Coordinator(spec, open_store(str(folder / "chk")), ThreadLauncher(code), versions={})


@pytest.fixture
def running() -> Iterator[list[Coordinator]]:
    """Whatever is put in is stopped at the end."""
    started: list[Coordinator] = []
    yield started
    for coordinator in started:
        coordinator.stop()
        assert coordinator.wait(PATIENCE_S)


def completed(coordinator: Coordinator, count: int) -> list[CheckpointView]:
    """The first so many, oldest first."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        view = coordinator.view()
        assert view.state in ("starting", "restoring", "running", "created", "deploying"), view
        done = [c for c in reversed(view.checkpoints) if c.status == "completed"]
        if len(done) >= count:
            return done[:count]
        time.sleep(0.02)
    raise AssertionError(f"{coordinator.view().checkpoints}")


def paused_ms(coordinator: Coordinator) -> float:
    return sum(task.paused_ms for task in coordinator.view().tasks)


def test_a_switching_checkpoint_does_not_wait_for_its_deadline_once_queue_and_storage_are_known(
    tmp_path: Path, running: list[Coordinator]
) -> None:
    """In flight are two seconds of work: the first one switches at its deadline, the others see it coming."""
    overloaded = job(
        tmp_path, rows_per_s=100_000, row_s=0.001, switch_after_ms=1000.0, interval_ms=100, window_bytes=256 << 10
    )
    running.append(overloaded)
    overloaded.start()
    first, *others = completed(overloaded, 6)
    assert first.kind == "switched"
    quick = sorted(c.duration_ms for c in others)
    assert quick[len(quick) // 2] < 900, quick
    assert {c.kind for c in others} == {"switched"}


def test_under_steady_backpressure_a_checkpoint_writes_a_small_part_of_what_is_in_flight(
    tmp_path: Path, running: list[Coordinator]
) -> None:
    overloaded = job(
        tmp_path, rows_per_s=100_000, row_s=0.001, switch_after_ms=0.0, interval_ms=200, window_bytes=512 << 10
    )
    running.append(overloaded)
    overloaded.start()
    views = completed(overloaded, 16)
    steady = views[8:]
    assert sum(c.new_inflight_bytes for c in steady) < 0.25 * sum(c.inflight_bytes for c in steady), [
        (c.new_inflight_bytes, c.inflight_bytes) for c in views
    ]


class SlowFiles(LocalFiles):
    """Takes half a second for each file."""

    def put(self, path: str, data: Data) -> None:
        time.sleep(0.5)
        LocalFiles.put(self, path, data)


@pytest.mark.parametrize(("mode", "waits"), [(ActiveBackpressure.ON, False), (ActiveBackpressure.STRICT, True)])
def test_a_slow_store_throttles_a_healthy_stream_only_if_backpressure_is_strict(
    mode: ActiveBackpressure,
    waits: bool,
    tmp_path: Path,
    running: list[Coordinator],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_slowly(location: str, _: StoreAccess) -> Store:
        opened = open_store(location)
        assert isinstance(opened, LocalFiles)
        return SlowFiles(opened.root)

    monkeypatch.setattr(main, "open_shared", open_slowly)
    healthy = job(
        tmp_path,
        rows_per_s=500,
        row_s=0.0001,
        switch_after_ms=1000.0,
        interval_ms=100,
        window_bytes=64 << 10,
        backpressure=mode,
        inline_below_bytes=0,
    )
    running.append(healthy)
    healthy.start()
    views = completed(healthy, 3)
    assert min(c.duration_ms for c in views) > 400, "else storage was not slow"
    assert (paused_ms(healthy) > 500) is waits, paused_ms(healthy)


def test_active_backpressure_keeps_what_stands_before_a_barrier_to_about_one_interval(
    tmp_path: Path, running: list[Coordinator]
) -> None:
    """Windows take more than a second of work, an interval is a tenth of one."""

    def median_ms(folder: str, mode: ActiveBackpressure) -> float:
        overloaded = job(
            tmp_path / folder,
            rows_per_s=2_000,
            row_s=0.002,
            switch_after_ms=None,
            interval_ms=100,
            window_bytes=64 << 10,
            backpressure=mode,
        )
        running.append(overloaded)
        overloaded.start()
        durations = sorted(c.duration_ms for c in completed(overloaded, 5)[2:])
        overloaded.stop()
        return durations[len(durations) // 2]

    with_it = median_ms("on", ActiveBackpressure.ON)
    without = median_ms("off", ActiveBackpressure.OFF)
    assert with_it < without / 2, (with_it, without)


@pytest.mark.parametrize(("target_ms", "grows"), [(10_000.0, True), (10.0, False)])
def test_with_debloating_the_windows_of_a_slow_task_follow_what_it_does_in_the_target(
    target_ms: float, grows: bool, tmp_path: Path, running: list[Coordinator]
) -> None:
    overloaded = job(
        tmp_path,
        rows_per_s=100_000,
        row_s=0.001,
        switch_after_ms=0.0,
        interval_ms=500,
        window_bytes=1 << 20,
        debloat_target_ms=target_ms,
    )
    running.append(overloaded)
    overloaded.start()
    begins_with_bytes = 2 * START_WINDOW_BYTES  # from each of the slots
    deadline = time.monotonic() + PATIENCE_S
    while True:
        windows = [task.window_bytes for task in overloaded.view().tasks if not task.is_source]
        done = [w > 2 * begins_with_bytes if grows else w < begins_with_bytes / 2 for w in windows]
        if done and all(done):
            break
        assert time.monotonic() < deadline, windows
        time.sleep(0.05)


def test_the_stream_is_hardly_slower_while_one_checkpoint_after_another_expires(
    tmp_path: Path, running: list[Coordinator]
) -> None:
    """With all that a slot does besides; the gates alone are in `tests/unit/test_flow.py`, to the row."""

    def overloaded(folder: str, *, interval_ms: float, timeout_ms: float) -> Coordinator:
        made = job(
            tmp_path / folder,
            rows_per_s=100_000,
            row_s=0.001,
            switch_after_ms=None,
            interval_ms=interval_ms,
            timeout_ms=timeout_ms,
            window_bytes=128 << 10,
            tolerable_failures=1000,
        )
        running.append(made)
        made.start()
        return made

    undisturbed = overloaded("undisturbed", interval_ms=600_000, timeout_ms=600_000)
    deadline = time.monotonic() + PATIENCE_S
    alone: list[float] = []
    while len(alone) < 30 or not all(alone[-30:]):
        assert time.monotonic() < deadline, alone
        time.sleep(0.1)
        alone.append(_rows_per_s(undisturbed))
    undisturbed.stop()
    expiring = overloaded("expiring", interval_ms=50, timeout_ms=100)
    deadline = time.monotonic() + PATIENCE_S
    seen: list[float] = []
    # One good second is enough: several expire in each of them, and a busy machine may spoil some.
    while _expired(expiring) < 20 or max(seen) < 0.75 * max(alone):
        assert time.monotonic() < deadline, (max(alone), max(seen), _expired(expiring))
        time.sleep(0.1)
        seen.append(_rows_per_s(expiring))
    assert expiring.view().state == "running"


def _expired(coordinator: Coordinator) -> int:
    return sum(checkpoint.failure_reason == "expired" for checkpoint in coordinator.view().checkpoints)


def _rows_per_s(coordinator: Coordinator) -> float:
    """In the last second or so; 0 before the first one is over."""
    return sum(task.rates.rows_in_per_s for task in coordinator.view().tasks if not task.is_source)
