"""What Tidegate cannot read or compute itself, Structured Streaming ingests: exactly once, across failures too."""

import contextlib
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.model.errors import EnvironmentProblem, IncompatibleCheckpoint, UnsupportedPlan

pytestmark = pytest.mark.spark

# XML is nothing that Tidegate will ever read itself.
SIX_TIMES = "xpath_long('<a>' || v || '</a>', 'a') * 6 as w"


@pytest.fixture(autouse=True)
def no_query_survives_its_test(spark: SparkSession) -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()
    assert spark.streams.active == []


def add_file(folder: Path, first: int, rows: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    draft = folder / "in" / f".{first}"
    values = list(range(first, first + rows))
    times = pa.array([v * 1_000_000 - 13 * 10**15 for v in values], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"v": values, "t": times}), draft)
    draft.rename(folder / "in" / f"{first:08d}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("v long, t timestamp").parquet(str(folder / "in"))


def writer(df: DataFrame, folder: Path) -> tg.DataStreamWriter:
    options = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms"}
    writer = tg.writeStream(df).option("checkpointLocation", folder / "chk").options(**options)
    return writer.format("parquet").option("path", folder / "out")


def written(folder: Path, out: str = "out") -> list[tuple[Any, ...]]:
    tables = [pq.read_table(path) for path in (folder / out).glob("*.parquet")]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def staging(folder: Path) -> Path:
    return folder / "chk" / "staging" / "source-0"


def staged_bytes(folder: Path) -> int:
    """What is staged right now; a file that is cleaned up while it is looked at counts for nothing."""
    sizes = []
    for path in staging(folder).glob("data/*/*.parquet"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def test_a_prefix_without_kernels_is_ingested_and_resumed_where_it_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first in (0, 100):
        add_file(tmp_path, first, 100)
    df = stream(spark, tmp_path).selectExpr("v", SIX_TIMES, "t").where("v % 2 = 0")
    writer(df, tmp_path).explain()
    assert "== Spark ingests ==\nsource-0: Tidegate has no kernel for" in capsys.readouterr().out
    for _ in range(2):
        writer(df, tmp_path).trigger(availableNow=True).start().awaitTermination()
        assert [(v, w) for v, w, _ in written(tmp_path)] == [(v, 6 * v) for v in range(0, 200, 2)]
    add_file(tmp_path, 200, 100)
    query = writer(df, tmp_path).start()
    query.processAllAvailable()
    query.stop()
    assert [(v, w) for v, w, _ in written(tmp_path)] == [(v, 6 * v) for v in range(0, 300, 2)]
    assert {int(t.timestamp()) for v, _, t in written(tmp_path)} == {v - 13 * 10**9 for v in range(0, 300, 2)}


def test_native_ingest_refuses_what_it_cannot_do_itself(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path, 0, 1)
    df = stream(spark, tmp_path).selectExpr(SIX_TIMES)
    with pytest.raises(UnsupportedPlan, match="Tidegate has no kernel for"):
        writer(df, tmp_path).option("ingest", "native").start()
    with pytest.raises(EnvironmentProblem, match="needs 4 slots and 1 core for Spark's jobs"):
        writer(df, tmp_path).option("parallelism", 4).start()
    assert not (tmp_path / "chk").exists()


def test_a_source_without_a_connector_waits_while_too_much_is_staged_and_what_is_covered_goes(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5000).option("numPartitions", 1).load()
    counted = df.selectExpr("value % 7 as k", "value").groupBy("k").sum("value")
    query = writer(counted, tmp_path).outputMode("update").format("noop").option("path", None)
    query = query.option("ingest.maxStaged", "64KiB").option("checkpoint.retained", 1)
    running = query.option("maxRowsPerSecond", 1_000_000).start()  # commits reach the staging behind the limit too
    batches = staging(tmp_path) / "batches"
    sizes = []

    def look() -> bool:
        sizes.append(staged_bytes(tmp_path))
        newest = [int(path.stem) for path in batches.glob("*.json")]
        return len(newest) > 0 and max(newest) >= 12 and min(newest) > 3

    until(look)
    progress = running.lastProgress
    running.stop()
    assert progress is not None
    (ingest,) = progress["ingest"]
    assert ingest["name"].endswith("source-0") and ingest["stagedBytes"] >= 0 and ingest["pausedMs"] >= 0
    # Three batches of some 40 KiB: two may be needed by what is retained, one is on its way.
    assert max(sizes) < 8 * 64 * 1024


def test_spark_waits_for_a_checkpoint_that_is_late_although_little_is_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.5)  # a barrier waits for it, five intervals long
            yield batch

    df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).option("numPartitions", 1).load()
    overloaded = df.repartition(2).mapInArrow(slow, df.schema)
    options = {"checkpoint.unaligned": "false", "ingest.maxStaged": "1GiB", "ui.port": "0"}
    query = writer(overloaded, tmp_path).format("noop").option("path", None).options(**options).start()

    def ingested() -> dict[str, Any]:
        return ((query.lastProgress or {}).get("ingest") or [{"pausedMs": 0}])[0]

    def metrics() -> dict[str, float]:
        with urllib.request.urlopen(f"{query.url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = re.findall(r'^tidegate_ingest_(\w+)\{name="[\w-]+-source-0",query="[\w-]+"\} (\S+)$', text, re.M)
        return {name: float(value) for name, value in found}

    until(lambda: ingested()["pausedMs"] > 0)
    assert ingested()["stagedBytes"] < 16 << 20, "far from the limit: it was not for that"
    # What is staged and not read gets older meanwhile.
    until(lambda: max(task["lagMs"] or 0 for task in (query.lastProgress or {})["tidegate"]["tasks"]) > 100)
    until(lambda: metrics()["staged_bytes"] > 0)
    assert metrics()["paused_seconds_total"] > 0


def test_with_ingest_spark_a_failing_query_commits_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    for first in range(0, 500, 100):
        add_file(tmp_path, first, 100)
    df = stream(spark, tmp_path).selectExpr("v % 10 as k", "v").where("v > 0")
    failures = iter([True, False, True])
    seen: dict[int, list[int]] = {}

    def take(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(row.v for row in batch.collect())
        assert seen.setdefault(batch_id, rows) == rows
        if next(failures, False):
            raise RuntimeError("once more")

    options = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms", "ingest": "spark"}
    query = tg.writeStream(df).option("checkpointLocation", tmp_path / "chk").options(**options).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(v for rows in seen.values() for v in rows) == list(range(1, 500))


def test_a_savepoint_takes_along_what_spark_has_ingested_and_nobody_has_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    for first in range(0, 200, 50):
        add_file(tmp_path, first, 50)

    def slowly_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not (tmp_path / "fast").exists():
                time.sleep(0.2 * batch.num_rows)
            yield batch

    files = spark.readStream.schema("v long, t timestamp").option("maxFilesPerTrigger", 1)
    rows = files.parquet(str(tmp_path / "in")).selectExpr("v", SIX_TIMES)
    df = rows.mapInArrow(slowly_at_first, "v long, w long").selectExpr("v")
    query = writer(df, tmp_path).option("source.activeBackpressure", "false").start()
    until(lambda: len(list(staging(tmp_path).glob("batches/*.json"))) >= 3)
    savepoint = Path(query.stop(savepoint=True))
    (tmp_path / "fast").touch()
    assert len(list(savepoint.glob("staging/v0/batches/*.json"))) >= 3
    assert len(written(tmp_path)) < 200
    # It is whole without its old place, and wherever it lies.
    moved = savepoint.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "chk")
    add_file(tmp_path, 200, 50)
    other = writer(df, tmp_path).option("checkpointLocation", tmp_path / "other")
    resumed = other.option("restore.from", moved).trigger(availableNow=True).start()
    assert resumed.awaitTermination(120)
    assert written(tmp_path) == [(v,) for v in range(250)], "each row once"


def test_a_query_and_its_copy_go_on_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would stop the older one of two queries that it takes for the same."""
    add_file(tmp_path, 0, 10)
    df = stream(spark, tmp_path).selectExpr("v")
    query = writer(df, tmp_path).option("ingest", "spark").option("parallelism", 1).start()
    query.processAllAvailable()
    copied = writer(df, tmp_path).option("checkpointLocation", tmp_path / "other").option("path", tmp_path / "copy")
    copy = copied.options(parallelism=1, ingest="spark").option("restore.from", query.savepoint()).start()
    add_file(tmp_path, 10, 10)
    for each in (query, copy):
        each.processAllAvailable()
    again = copy.stop(savepoint=True)
    add_file(tmp_path, 20, 10)
    query.processAllAvailable()
    assert written(tmp_path) == [(v,) for v in range(30)]
    assert written(tmp_path, "copy") == [(v,) for v in range(10, 20)]
    query.stop()
    third = copied.option("checkpointLocation", tmp_path / "third").option("restore.from", again)
    assert third.trigger(availableNow=True).start().awaitTermination(120)
    assert written(tmp_path, "copy") == [(v,) for v in range(10, 30)], "a copy of a copy knows both"


def test_a_checkpoint_of_what_was_staged_elsewhere_is_refused_before_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path, 0, 10)
    df = stream(spark, tmp_path).selectExpr("v")
    query = writer(df, tmp_path).option("ingest", "spark").start()
    query.processAllAvailable()
    checkpoint = query.checkpoints[0].path
    query.stop()
    other = writer(df, tmp_path).option("ingest", "spark").option("checkpointLocation", tmp_path / "other")
    with pytest.raises(IncompatibleCheckpoint, match="in its own checkpointLocation, or from a savepoint in a new one"):
        other.option("restore.from", checkpoint).start()
    assert not list((tmp_path / "other").rglob("*.json")), "nothing was begun"


def until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_no_row_is_late_by_another_of_the_same_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads large files first, and here those hold the newest rows."""
    (tmp_path / "in").mkdir()
    for number in range(8):
        values = list(range(1000 * number, 1000 * number + 40 * (number + 1)))
        times = pa.array([1_700_000_000_000_000 + v * 1_000_000 for v in values], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"v": values, "t": times}), tmp_path / "in" / f"{number}.parquet")
    rows = stream(spark, tmp_path).selectExpr("v", SIX_TIMES, "t").withWatermark("t", "1 minute")
    counted = rows.groupBy(F.window("t", "100 seconds").alias("w")).agg(F.count("w").alias("n"))
    query = writer(counted.selectExpr("w.start", "n"), tmp_path).option("parallelism", 1)
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(90)
    given = {number: 40 * (number + 1) for number in range(8)}
    assert sum(n for _, n in written(tmp_path)) == sum(given.values()) - open_at_the_end(given[7])


def open_at_the_end(rows: int) -> int:
    """Of the last file: those in windows that the last event time, less a minute, has not passed."""
    times = [1_700_000_000 + 7000 + v for v in range(rows)]
    return sum(time // 100 * 100 + 100 > times[-1] - 60 for time in times)
