"""Whole queries on Spark, as a user writes them."""

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tests.chaos import job
from tidegate.model.errors import JobFailure, UserCodeFailure

pytestmark = pytest.mark.spark

PATIENCE_S = 90.0
_names = itertools.count()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def add_file(folder: Path, first: int, rows: int) -> None:
    """As careful writers do: the file appears under its name when it is complete."""
    folder.mkdir(exist_ok=True)
    values = range(first, first + rows)
    table = pa.table({"k": [v % job.KEYS for v in values], "v": list(values), "s": [str(v) for v in values]})
    draft = folder / f".{first}"
    pq.write_table(table, draft)
    draft.rename(folder / f"{first:08d}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(job.INPUT).parquet(str(folder))


def parquet_writer(df: DataFrame, folder: Path, **options: Any) -> tg.DataStreamWriter:
    writer = tg.writeStream(df).format("parquet").option("parallelism", 2).option("checkpoint.interval", "100ms")
    writer.option("checkpointLocation", folder / "chk").option("path", folder / "out")
    return writer.option("restart.delay", "50ms").options(**options)


def rate(spark: SparkSession, rows_per_second: int = 1000) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()


def committed(query: tg.StreamingQuery) -> int:
    return query._coordinator.view().committed_checkpoints


def generation(query: tg.StreamingQuery) -> int:
    return query._coordinator.view().generation


def pids(query: tg.StreamingQuery) -> list[int]:
    progress = query.lastProgress
    return [] if progress is None else [slot["pid"] for slot in progress["slots"]]


def counted(spark: SparkSession, folder: Path) -> bool:
    """Whether the committed rows are those of Spark's own batch over the same input."""
    return job.committed_rows(spark, folder) == job.sparks_answer(spark, folder)


# -- running and stopping


def test_an_endless_query_runs_until_it_is_stopped_which_is_soon(spark: SparkSession) -> None:
    query = tg.writeStream(rate(spark).where("value % 2 = 0")).format("noop").option("checkpoint.interval", "100ms")
    query = query.option("parallelism", 2).start()
    until(lambda: committed(query) >= 2)
    assert query.isActive and query in tg.queries(spark)
    started = time.monotonic()
    query.stop()
    assert time.monotonic() - started < 8.0, "slots that do not leave by themselves are ended after ten seconds"
    assert not query.isActive and query.exception() is None and tg.queries() == []
    assert query.status["message"] == "stopped"
    query.stop()  # once more is fine


def test_await_termination_with_a_timeout_says_whether_the_query_has_ended(spark: SparkSession) -> None:
    query = tg.writeStream(rate(spark)).format("noop").option("parallelism", 1).start()
    assert query.awaitTermination(0.2) is False
    query.stop()
    assert query.awaitTermination(PATIENCE_S) is True
    assert query.awaitTermination() is None


def test_the_query_tells_what_it_does(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_file(tmp_path / "in", 0, 100)
    writer = parquet_writer(stream(spark, tmp_path / "in").where("v > 10"), tmp_path).queryName("watched")
    query = writer.start()
    until(lambda: committed(query) >= 3)
    status, last, recent, checkpoints = query.status, query.lastProgress, query.recentProgress, query.checkpoints

    assert query.name == "watched" and re.fullmatch(r"[0-9a-f-]{36}", query.id) and query.id != query.runId
    assert status["message"] == "running" and status["isDataAvailable"] is True
    assert last is not None and last["name"] == "watched" and last["id"] == query.id
    assert last["numInputRows"] == 100 and len(last["slots"]) == 2
    assert [p["batchId"] for p in recent] == sorted(p["batchId"] for p in recent) and len(recent) >= 2
    done = [c for c in checkpoints if c.status == "completed"]
    assert [c.id for c in checkpoints] == sorted((c.id for c in checkpoints), reverse=True), "newest first"
    assert all(c.duration_ms > 0 and c.path is not None and c.failure_reason is None for c in done)
    assert {task.task for task in done[0].tasks} == {"v0.0", "v0.1"}
    assert query.exception() is None

    query.explain()
    shown = capsys.readouterr().out
    assert "Spark's optimised plan" in shown and "Tidegate runs" in shown and "every 100 ms" in shown
    writer.explain()
    shown = capsys.readouterr().out
    assert "2 slots" in shown and "Warning" not in shown
    writer.option("source.activeBackpressure", "false").explain()
    assert "Warning: While checkpoints are late, sources read on" in capsys.readouterr().out
    query.stop()
    assert query.checkpoints, "the history can be read after the end"


def test_the_newest_checkpoints_are_kept_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    options = {"checkpointLocation": tmp_path / "chk", "checkpoint.interval": "50ms", "checkpoint.retained": 2}
    query = tg.writeStream(rate(spark)).format("noop").option("parallelism", 2).options(**options).start()
    until(lambda: committed(query) >= 6)
    query.stop()
    completed = sorted((c.id for c in query.checkpoints if c.status == "completed"), reverse=True)
    folders = {int(folder.name.split("-")[0]) for folder in (tmp_path / "chk" / "checkpoints").iterdir()}
    complete = {id for id in folders if (tmp_path / "chk" / "checkpoints" / f"{id}-g1" / "manifest.json").exists()}
    # The newest may have been logged while the query stopped, before the older one was let go.
    assert len(complete) in (2, 3) and complete <= set(range(completed[0] - 2, completed[0] + 2))


# -- files that come while the query runs


def test_process_all_available_covers_files_added_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    add_file(source, 0, 500)
    query = parquet_writer(job.pipeline(stream(spark, source)), tmp_path).start()
    for first in (500, 1000, 1500):
        query.processAllAvailable()
        assert len(job.committed_rows(spark, tmp_path)) == first * 4 // 5
        add_file(source, first, 500)
    query.processAllAvailable()
    query.stop()
    assert counted(spark, tmp_path)


def test_a_stopped_query_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for first in range(0, 4000, 200):
        add_file(source, first, 200)
    options = {"checkpoint.unaligned": "true", "network.window": "4kb"}
    generations = []
    for _ in range(3):
        query = parquet_writer(job.pipeline(stream(spark, source), row_cost_s=0.0005), tmp_path, **options).start()
        until(lambda query=query: committed(query) >= 2)
        query.stop()
        generations.append(generation(query))
    before = len(job.committed_rows(spark, tmp_path))
    query = parquet_writer(job.pipeline(stream(spark, source)), tmp_path, **options).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert generations == [1, 2, 3]
    assert 0 < before < 3200, "each run did a part"
    assert counted(spark, tmp_path)


def test_available_now_over_nothing_new_ends_at_once_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 300)
    for _ in range(3):
        query = parquet_writer(job.pipeline(stream(spark, tmp_path / "in")), tmp_path).trigger(availableNow=True)
        assert query.start().awaitTermination(PATIENCE_S)
    assert counted(spark, tmp_path)


# -- failures of the user's code


def failing_once(marker: Path, rows_before: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if max(batch.column(1).to_pylist()) >= rows_before and not marker.exists():
                marker.touch()
                raise ValueError("the moon is too bright")
            print("seen", batch.num_rows)  # noqa: T201 - users do that
            yield batch

    return function


def test_an_error_of_the_users_code_restarts_in_place_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for first in range(0, 4000, 200):
        add_file(source, first, 200)
    function = failing_once(tmp_path / "failed", rows_before=2000)
    rows = stream(spark, source).mapInArrow(function, job.INPUT)
    options = {"checkpoint.unaligned": "true", "network.window": "4kb"}
    query = parquet_writer(job.pipeline(rows, row_cost_s=0.0005), tmp_path, **options).trigger(availableNow=True)
    query = query.start()
    until(lambda: pids(query))
    first_pids = pids(query)
    until(lambda: generation(query) == 2 and pids(query))
    assert pids(query) == first_pids, "the processes are the same"
    assert "the moon is too bright" in query._coordinator.view().last_failure
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    assert counted(spark, tmp_path)


def test_an_error_of_the_users_code_is_shown_with_its_message_and_place(spark: SparkSession, tmp_path: Path) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"cannot stand the columns {batch.schema.names}")
        yield from ()

    add_file(tmp_path / "in", 0, 10)
    df = stream(spark, tmp_path / "in").mapInArrow(broken, job.INPUT)
    query = parquet_writer(df, tmp_path, **{"restart.strategy": "none"}).start()
    with pytest.raises(UserCodeFailure, match="cannot stand the columns") as caught:
        query.awaitTermination(PATIENCE_S)
    assert "'broken'" in str(caught.value) and "test_end_to_end.py" in str(caught.value)
    assert query.exception() is caught.value and query.status["message"].startswith("failed: ")
    with pytest.raises(UserCodeFailure, match="cannot stand the columns"):
        query.processAllAvailable()
    query.stop()


def test_a_query_that_always_fails_gives_up_after_its_attempts(spark: SparkSession, tmp_path: Path) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise KeyError("nothing works")

    add_file(tmp_path / "in", 0, 10)
    df = stream(spark, tmp_path / "in").mapInArrow(broken, job.INPUT)
    options = {"restart.strategy": "fixed", "restart.attempts": 2, "restart.delay": "10ms"}
    query = parquet_writer(df, tmp_path, **options).start()
    with pytest.raises(UserCodeFailure, match="nothing works"):
        query.awaitTermination(PATIENCE_S)
    assert generation(query) == 3


def test_a_function_that_ends_its_process_is_a_lost_slot(spark: SparkSession, tmp_path: Path) -> None:
    def leaving(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(1)

    add_file(tmp_path / "in", 0, 10)
    df = stream(spark, tmp_path / "in").mapInArrow(leaving, job.INPUT)
    query = parquet_writer(df, tmp_path, **{"restart.strategy": "none"}).start()
    with pytest.raises(JobFailure):
        query.awaitTermination(PATIENCE_S)


def test_a_function_that_calls_sys_exit_is_named(spark: SparkSession, tmp_path: Path) -> None:
    def leaving(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sys.exit("enough")

    add_file(tmp_path / "in", 0, 10)
    df = stream(spark, tmp_path / "in").mapInArrow(leaving, job.INPUT)
    query = parquet_writer(df, tmp_path, **{"restart.strategy": "none"}).start()
    with pytest.raises(UserCodeFailure, match="'leaving' raised SystemExit: enough"):
        query.awaitTermination(PATIENCE_S)


# -- checkpoints that fail


def test_rows_of_an_expired_checkpoint_are_committed_with_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """The sink hands out what it prepared only once: it must ride with a later checkpoint."""
    for first in range(0, 3000, 250):
        add_file(tmp_path / "in", first, 250)
    options = {
        "checkpoint.unaligned": "false",
        "checkpoint.interval": "50ms",
        "checkpoint.timeout": "60ms",
        "checkpoint.tolerableFailures": 100_000,
        "network.window": "8kb",
    }
    df = job.pipeline(stream(spark, tmp_path / "in"), row_cost_s=0.0005)
    query = parquet_writer(df, tmp_path, **options).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    expired = [c for c in query.checkpoints if c.failure_reason is not None and c.failure_reason.startswith("expired")]
    assert expired, "the checkpoints were too quick to expire"
    assert counted(spark, tmp_path)


def test_several_checkpoints_at_once_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for first in range(0, 3000, 250):
        add_file(tmp_path / "in", first, 250)
    options = {"checkpoint.interval": "20ms", "checkpoint.maxConcurrent": 3, "checkpoint.unaligned": "true"}
    df = job.pipeline(stream(spark, tmp_path / "in"), row_cost_s=0.0003)
    query = parquet_writer(df, tmp_path, **options).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert counted(spark, tmp_path)


def test_a_failed_checkpoint_that_is_not_tolerated_restarts_the_job(spark: SparkSession, tmp_path: Path) -> None:
    for first in range(0, 2000, 250):
        add_file(tmp_path / "in", first, 250)
    options = {
        "checkpoint.unaligned": "false",
        "checkpoint.timeout": "1ms",
        "checkpoint.tolerableFailures": 0,
        "restart.attempts": 1,
    }
    df = job.pipeline(stream(spark, tmp_path / "in"), row_cost_s=0.001)
    query = parquet_writer(df, tmp_path, **options).start()
    with pytest.raises(JobFailure, match="expired"):
        query.awaitTermination(PATIENCE_S)


# -- sinks that pass


def test_the_memory_sink_shows_what_is_committed_as_a_view(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 100)
    name = f"seen_{next(_names)}"
    query = tg.writeStream(stream(spark, tmp_path / "in").select("v")).format("memory").queryName(name)
    query = query.option("parallelism", 2).start()
    query.processAllAvailable()
    assert spark.table(name).count() == 100
    add_file(tmp_path / "in", 100, 50)
    query.processAllAvailable()
    assert sorted(row.v for row in spark.table(name).collect()) == list(range(150))
    query.stop()
    spark.catalog.dropTempView(name)
