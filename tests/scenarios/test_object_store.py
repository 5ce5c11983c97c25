"""A whole job over sockets whose checkpoints and savepoints are on S3, reached with Hadoop's settings."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.s3_server import KEY, SECRET, S3Server, s3_server
from tidegate.coordinator.coordinator import Coordinator
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Project, Scan, Sink, TransformWithState
from tidegate.protocol.requests import SavepointAlignment
from tidegate.protocol.restart import FixedDelay
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker.settings import SlotSettings

KEYS, ROWS = 7, 600


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as served:
        served.make_bucket("jobs")
        served.make_bucket("kept")
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    add_rows(tmp_path, first=0)
    return tmp_path


def add_rows(folder: Path, *, first: int) -> None:
    for file in range(3):
        ids = range(first + file * ROWS // 3, first + (file + 1) * ROWS // 3)
        table = pa.table({"k": [i % KEYS for i in ids], "v": list(ids)})
        pq.write_table(table, folder / "in" / f"{first}-{file}.parquet")


class Stumbles:
    """Slow enough for checkpoints on the way; raises at the given row, once."""

    def __init__(self, at_row: int | None = None) -> None:
        self._at_row = at_row
        self._seen = 0

    def __call__(self) -> None:
        time.sleep(0.001)
        self._seen += 1
        if self._seen == self._at_row:
            raise ValueError("this row is odd")


def job(
    folder: Path, location: str, access: StoreAccess, before_row: Callable[[], None], restore_from: str | None = None
) -> Coordinator:
    number = pa.int64()
    k, v = Column(0, "k", number), Column(1, "v", number)
    scan = Scan("parquet", {"path": str(folder / "in")}, pa.schema([("k", number), ("v", number)]))
    keyed = Project(scan, (k, k, v), pa.schema([("k", number), ("k", number), ("v", number)]))
    counted = pa.schema([("k", number), ("n", number)])
    sink = Sink("parquet", {"path": str(folder / "out"), "checkpointLocation": location}, counted)
    settings = SlotSettings(
        plan=lower(TransformWithState(keyed, 1, b"count", counted), sink, parallelism=2, max_parallelism=16),
        checkpoint_location=location,
        window_bytes=4096,
        state_backend="heap",
        inline_below_bytes=0,
        access=access,
    )
    spec = local_job(
        "on-s3", settings, interval_ms=50, switch_after_ms=0.0, restart=FixedDelay(3, delay_ms=10), available_now=True
    )
    code = NamedUserCode(processors={"count": lambda: CountingProcessor(before_row=before_row)})
    started = replace(spec, restore_from=restore_from)
    return Coordinator(started, open_store(location, access), ThreadLauncher(code), versions={})


def run(coordinator: Coordinator) -> None:
    coordinator.start()
    assert coordinator.wait(60), f"still {coordinator.view().state}"
    assert coordinator.view().state == "finished", coordinator.failure()


def committed(folder: Path) -> Counter[tuple[int, int]]:
    return Counter((row["k"], row["n"]) for row in pq.read_table(folder / "out").to_pylist())


def counted_once(rows: int) -> Counter[tuple[int, int]]:
    per_key = Counter(i % KEYS for i in range(rows))
    return Counter((k, n) for k, count in per_key.items() for n in range(1, count + 1))


def test_a_job_on_s3_survives_a_failure_and_goes_on_later_and_shows_its_keys_nowhere(
    folder: Path, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = StoreAccess(server.settings())
    location = "s3a://jobs/survives/chk"
    first = job(folder, location, access, Stumbles(at_row=200))
    run(first)
    assert first.view().generation == 2
    assert committed(folder) == counted_once(ROWS)

    add_rows(folder, first=ROWS)
    run(job(folder, location, access, Stumbles()))
    assert committed(folder) == counted_once(2 * ROWS)

    store = open_store(location, access)
    paths = store.list()
    assert {path.split("/")[0] for path in paths} >= {"log", "checkpoints"}
    written = [(path, store.read(path)) for path in paths]
    written += [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path, data in written if KEY.encode() in data or SECRET.encode() in data]
    assert KEY not in caplog.text and SECRET not in caplog.text
    assert SECRET not in repr(first._spec)


def test_a_savepoint_goes_to_another_bucket_and_a_job_starts_from_it(folder: Path, server: S3Server) -> None:
    access = StoreAccess(server.settings())
    coordinator = job(folder, "s3://jobs/first/chk", access, Stumbles())
    coordinator.start()
    while not coordinator.view().checkpoints:
        assert not coordinator.wait(0.02), coordinator.failure()
    path = coordinator.savepoint("s3a://kept/savepoints", alignment=SavepointAlignment.ALIGNED).result(30)
    assert path.startswith("s3a://kept/savepoints/")
    assert coordinator.wait(60)
    assert committed(folder) == counted_once(ROWS)

    (folder / "out").rename(folder / "out of the first")
    run(job(folder, "s3a://jobs/second/chk", access, Stumbles(), restore_from=path))
    rest = committed(folder)
    assert 0 < sum(rest.values()) < ROWS
    assert rest <= counted_once(ROWS)
