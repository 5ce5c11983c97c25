"""A job under load goes from 2 slots to 4 and on to 3, each time from rows in flight on every kind of edge."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.model.ids import TaskId, VertexId
from tidegate.operators.broadcast_state import decode_states
from tidegate.state.codec import decode
from tidegate.state.contract import ROCKSDB_SECTION
from tidegate.storage.job_log import JobLog, newest_completed
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import open_store
from tidegate.worker.restoring import StoredFiles, stored_sections

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 1200
KEYS = 13
MARKS = 7
EDGES = {"rebalance", "pointwise", "broadcast", "hash"}
PATIENCE_S = 90.0
OPTIONS = {
    "checkpoint.unaligned": "true",
    "checkpoint.interval": "150ms",
    # Narrow, and no wider than that: rows wait in front of every task.
    "network.window": "2kb",
    "network.debloat": "false",
    "source.activeBackpressure": "false",
}
# There is no memory for a slot's few groups: they leave it while the job runs, and come back with their next row.
BACKENDS = {"heap": {}, "rocksdb": {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "64b"}}


class Marks(tg.ConnectProcessor):
    """Each row of the first side comes out once; how many marks of the other side have come is state of every slot."""

    def init(self, handle: Any) -> None:
        self.marks = handle.getBroadcastState("marks", "mark long", "n long")

    def handleLeft(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            time.sleep(0.0005)
            yield Row(id=row.id, k=row.k)

    def handleRight(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            time.sleep(0.0005)
            mark = (row.mark % MARKS,)
            before = self.marks.getValue(mark) if self.marks.containsKey(mark) else (0,)
            self.marks.updateValue(mark, (before[0] + 1,))
        return iter(())

    def close(self) -> None:
        return


def paced(seconds: float) -> Callable[[Any], Any]:
    """The later a task stands the slower it is, so that rows wait in front of all."""

    def wait(value: int) -> int:
        time.sleep(seconds)
        return value

    return F.udf(wait, "long")


def job(spark: SparkSession, folder: Path) -> DataFrame:
    orders = spark.readStream.schema("id long, k long").parquet(str(folder / "orders"))
    marks = spark.readStream.schema("mark long").parquet(str(folder / "marks"))
    dealt = orders.repartition(2).select("id", paced(0.0003)("k").alias("k"))
    marked = tg.connect(dealt, marks, Marks(), "id long, k long", by=None)
    numbered = marked.repartition("k").select(paced(0.002)("id").alias("id"), "k")
    return numbered.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("total"))


def start(df: DataFrame, folder: Path, slots: int, backend: str) -> tg.StreamingQuery:
    writer = tg.writeStream(df).format("parquet").outputMode("update").options(**OPTIONS, **BACKENDS[backend])
    writer = writer.option("checkpointLocation", str(folder / "chk")).option("parallelism", slots)
    return writer.trigger(availableNow=True).start(str(folder / "out"))


def newest(folder: Path) -> Manifest | None:
    store = open_store(str(folder / "chk"))
    completed = newest_completed(JobLog(store, driver="a test").read())
    return None if completed is None else decode_manifest(store.read(completed.manifest), name=completed.manifest)


def has_rows_on_disk(folder: Path) -> bool:
    manifest = newest(folder)
    assert manifest is not None
    return any(name == ROCKSDB_SECTION for _, name in stored_sections(open_store(str(folder / "chk")), manifest))


def marks_of_each_subtask(folder: Path) -> list[dict[int, int]]:
    """How many of each there were, as its broadcast state has it at the end."""
    manifest = newest(folder)
    assert manifest is not None and manifest.plan is not None
    files = StoredFiles(open_store(str(folder / "chk")), manifest)
    (operator,) = [each for each in manifest.plan.operators if any(state.name == "marks" for state in each.states)]
    found = []
    for subtask in range(manifest.vertex_parallelism[operator.vertex]):
        task = TaskId(VertexId(operator.vertex), subtask)
        (section,) = files.sections_of(task, "broadcast", operator=operator.position)
        found.append({decode(mark)[0]: decode(n)[0] for mark, n in decode_states(section)["marks"].items()})
    return found


def kinds_in_flight(manifest: Manifest) -> set[str]:
    """Of the edges that the checkpoint has captured rows of."""
    edges = {f"e{channel.channel.edge}" for channel in manifest.channels if channel.first < channel.n}
    lines = [line.split(" ") for line in manifest.plan_fingerprint]
    return {kind for words in lines if words[0] in edges for kind in EDGES if kind in " ".join(words).lower()}


def stop_with_rows_in_flight(query: tg.StreamingQuery, folder: Path, *, slots: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert query.isActive and time.monotonic() < deadline_s, "no checkpoint had rows in flight on every edge"
        manifest = newest(folder)
        if manifest is not None and manifest.parallelism == slots and kinds_in_flight(manifest) == EDGES:
            break
        time.sleep(0.02)
    query.stop()
    stopped = newest(folder)
    assert stopped is not None and kinds_in_flight(stopped) == EDGES, "what is restored has rows on every edge"


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_to_four_to_three_slots_with_rows_in_flight_on_every_kind_of_edge(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    orders = {"id": list(range(ROWS)), "k": [i * 7 % KEYS for i in range(ROWS)]}
    for name, columns in (("orders", orders), ("marks", {"mark": list(range(ROWS))})):
        (tmp_path / name).mkdir()
        table = pa.table(columns)
        for number in range(12):
            part = table.slice(number * ROWS // 12, ROWS // 12)
            pq.write_table(part, tmp_path / name / f"{number:02d}.parquet")
    df = job(spark, tmp_path)
    for slots in (2, 4):
        stop_with_rows_in_flight(start(df, tmp_path, slots, backend), tmp_path, slots=slots)
    last = start(df, tmp_path, 3, backend)
    assert last.awaitTermination(PATIENCE_S)
    assert has_rows_on_disk(tmp_path) == (backend == "rocksdb")
    assert marks_of_each_subtask(tmp_path) == [{mark: len(range(mark, ROWS, MARKS)) for mark in range(MARKS)}] * 3
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist()]
    assert len({row[:2] for row in rows}) == len(rows), "a group is given with the same count once"
    expected = {k: [i for i in range(ROWS) if i * 7 % KEYS == k] for k in range(KEYS)}
    assert {k: max((n, total) for key, n, total in rows if key == k) for k in range(KEYS)} == {
        k: (len(ids), sum(ids)) for k, ids in expected.items()
    }
