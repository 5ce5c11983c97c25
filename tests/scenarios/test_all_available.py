"""`processAllAvailable` over real sockets, with more ranges than may wait for a checkpoint and none due for long."""

import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conformance.test_range_source import SCHEMA, Numbers
from tidegate.connectors import range_source
from tidegate.coordinator.coordinator import Coordinator
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Scan, Sink
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import NamedUserCode, ThreadLauncher
from tidegate.worker.settings import SlotSettings

HOUR_MS = 3_600_000.0
ROWS, ROWS_PER_RANGE = 60, 10


def test_ranges_that_wait_for_a_checkpoint_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_source, "_MOST_OPEN_RANGES", 4)
    source = Scan("python", {"format": "numbers"}, SCHEMA, pickle.dumps(Numbers(total=ROWS, step=ROWS_PER_RANGE)))
    sink = Sink("parquet", {"path": str(tmp_path / "out")}, SCHEMA)
    plan = lower(source, sink, parallelism=2, max_parallelism=8)
    location = str(tmp_path / "chk")
    settings = SlotSettings(plan=plan, checkpoint_location=location, window_bytes=1 << 16, state_backend="heap")
    spec = local_job("scenario", settings, interval_ms=HOUR_MS, switch_after_ms=None)
    coordinator = Coordinator(spec, open_store(location), ThreadLauncher(NamedUserCode()), versions={})
    coordinator.start()
    try:
        assert coordinator.process_all_available().wait(60), coordinator.view()
        assert sorted(pq.read_table(tmp_path / "out").column("v").to_pylist()) == list(range(ROWS))
    finally:
        coordinator.stop()
        assert coordinator.wait(60)
