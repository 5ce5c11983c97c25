"""`foreachBatch` and `foreach`: each committed epoch once, under an id that never stands for other rows."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.model.errors import EnvironmentProblem, OptionError, UnsupportedPlan, UserCodeFailure, UserError

pytestmark = pytest.mark.spark


def add_file(folder: Path, first: int, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    draft = folder / f".{first}"
    pq.write_table(pa.table({"v": list(range(first, first + rows))}), draft)
    draft.rename(folder / f"{first:08d}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("v long").parquet(str(folder / "in"))


def writer(df: DataFrame, folder: Path) -> tg.DataStreamWriter:
    options = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms"}
    return tg.writeStream(df).option("checkpointLocation", folder / "chk").options(**options)


class Epochs:
    """A `foreachBatch` function that keeps what it gets; `before` and `after` may raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[Any]]] = []
        self.before: Callable[[int], None] = lambda batch_id: None
        self.after: Callable[[int], None] = lambda batch_id: None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.before(batch_id)
        self.calls.append((batch_id, sorted(row.v for row in df.collect())))
        self.after(batch_id)

    @property
    def ids(self) -> list[int]:
        return [batch_id for batch_id, _ in self.calls]

    def rows(self) -> list[Any]:
        """As a sink that is idempotent by batch id would hold them."""
        return sorted(value for values in dict(self.calls).values() for value in values)


def staged(folder: Path) -> list[Path]:
    return sorted((folder / "chk" / "staging").rglob("*.parquet"))


def test_each_committed_epoch_comes_once_and_epochs_without_rows_do_not_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, 1000)
    epochs = Epochs()
    query = writer(stream(spark, tmp_path).where("v % 2 = 0"), tmp_path).foreachBatch(epochs).start()
    query.processAllAvailable()
    add_file(tmp_path / "in", 1000, 1000)
    query.processAllAvailable()
    query.processAllAvailable()
    query.stop()
    assert epochs.rows() == list(range(0, 2000, 2))
    assert epochs.ids == sorted(set(epochs.ids)), "each id once, in order"
    assert all(values for _, values in epochs.calls)
    assert staged(tmp_path) == []


def test_the_frame_has_the_querys_own_schema_and_can_be_used_as_any_other(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 4)
    df = stream(spark, tmp_path).select(
        F.col("v").alias("a b"), F.lit(1).alias("one"), F.col("v").cast("string").alias("one"),
        F.timestamp_micros(F.lit(-13 * 10**15)).alias("t"), F.lit("1.50").cast("decimal(10,2)").alias("d"),
    )  # fmt: skip
    expected = spark.range(4).select(
        F.col("id").alias("a b"), F.lit(1).alias("one"), F.col("id").cast("string").alias("one"),
        F.timestamp_micros(F.lit(-13 * 10**15)).alias("t"), F.lit("1.50").cast("decimal(10,2)").alias("d"),
    )  # fmt: skip
    seen: list[Any] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("append").format("noop").save()
        seen.extend([batch.schema, batch.isStreaming, *sorted(batch.collect())])

    writer(df, tmp_path).foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
    assert seen == [df.schema, False, *sorted(expected.collect())]


def test_an_epoch_whose_function_failed_comes_again_with_the_same_id_and_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, 500)
    epochs = Epochs()
    failures = iter([True, True])

    def fail_twice(batch_id: int) -> None:
        if next(failures, False):
            raise RuntimeError("the database is away")

    epochs.after = fail_twice
    query = writer(stream(spark, tmp_path), tmp_path).foreachBatch(epochs).trigger(availableNow=True).start()
    query.awaitTermination()
    assert epochs.rows() == list(range(500))
    again = [values for batch_id, values in epochs.calls if batch_id == epochs.ids[0]]
    assert len(again) == 3 and again[0] == again[1] == again[2] != []


def test_a_new_driver_first_gives_the_epoch_that_the_old_one_did_not_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, 500)
    first, second = Epochs(), Epochs()

    def fail(batch_id: int) -> None:
        raise RuntimeError("killed")

    first.after = fail
    query = writer(stream(spark, tmp_path), tmp_path).foreachBatch(first).option("restart.strategy", "none").start()
    with pytest.raises(UserCodeFailure, match=r"The foreachBatch function, in batch \d+, raised RuntimeError: killed"):
        query.awaitTermination()
    assert first.calls and set(first.ids) == {first.ids[0]}, "no epoch overtakes one that was not recorded"
    assert staged(tmp_path) != []
    add_file(tmp_path / "in", 500, 500)
    df = stream(spark, tmp_path)
    writer(df, tmp_path).foreachBatch(second).trigger(availableNow=True).start().awaitTermination()
    assert second.calls[0] == first.calls[0]
    assert second.rows() == list(range(1000))
    assert second.ids == sorted(set(second.ids))
    assert staged(tmp_path) == []


def test_a_slow_function_holds_the_stream_back_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 1000)
    epochs, leave = Epochs(), threading.Event()

    def wait(batch_id: int) -> None:
        assert leave.wait(60)

    epochs.before = wait
    query = writer(stream(spark, tmp_path), tmp_path).foreachBatch(epochs).start()
    add_file(tmp_path / "in", 1000, 1000)
    leave.set()
    query.processAllAvailable()
    query.stop()
    assert epochs.rows() == list(range(2000))


def test_the_function_can_stop_its_query_and_is_told_what_it_cannot_wait_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, 500)
    epochs, refused = Epochs(), []

    def wait_and_stop(batch_id: int) -> None:
        waiting = (query.awaitTermination, query.processAllAvailable, query.savepoint, lambda: query.stop(True))
        for wait in waiting:
            with pytest.raises(UserError, match="call it from another thread") as error:
                wait()
            refused.append(str(error.value))
        assert query.stop() is None

    epochs.after = wait_and_stop
    ready = threading.Event()
    epochs.before = lambda batch_id: assert_set(ready)
    query = writer(stream(spark, tmp_path), tmp_path).foreachBatch(epochs).start()
    ready.set()
    assert query.awaitTermination(60), "it ends by itself"
    assert len(epochs.calls) == 1 and len(refused) == 4
    first, second = epochs.rows(), Epochs()
    writer(stream(spark, tmp_path), tmp_path).foreachBatch(second).trigger(availableNow=True).start().awaitTermination()
    assert sorted(first + second.rows()) == list(range(500)), "the epoch in which it was stopped is committed"


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def test_without_a_core_for_sparks_own_jobs_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 1)
    whole = writer(stream(spark, tmp_path), tmp_path).foreachBatch(Epochs()).option("parallelism", 4)
    with pytest.raises(EnvironmentProblem, match=r"needs 4 slots and 1 core for Spark's jobs .*'parallelism', 3\)"):
        whole.start()
    assert not (tmp_path / "chk").exists()


def test_a_function_that_is_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 1)
    with pytest.raises(OptionError, match="foreachBatch needs a function"):
        writer(stream(spark, tmp_path), tmp_path).foreachBatch("f")
    with pytest.raises(OptionError, match="foreach needs a function of a row"):
        writer(stream(spark, tmp_path), tmp_path).foreach(3)
    with pytest.raises(OptionError, match="write .foreachBatch"):
        writer(stream(spark, tmp_path), tmp_path).format("foreachBatch").start()


# -- foreach


class Lines:
    """Writes what happened to it as lines of a file per call."""

    def __init__(self, folder: Path, fail_once: bool = False) -> None:
        self.folder = folder
        self.fail_once = fail_once

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.name = f"{epoch_id}-{partition_id}"
        self.rows: list[int] = []
        return not (self.folder / self.name).exists()

    def process(self, row: Row) -> None:
        self.rows.append(row.v)

    def close(self, error: Exception | None) -> None:
        if error is None and not (self.folder / self.name).exists():
            (self.folder / self.name).write_text(json.dumps(self.rows))
        marker = self.folder / "failed"
        if self.fail_once and not marker.exists():
            marker.write_text("")
            raise RuntimeError("after the work")


def lines(folder: Path) -> list[int]:
    return sorted(v for path in folder.glob("*-*") for v in json.loads(path.read_text()))


def test_foreach_calls_a_function_for_every_row(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 100)
    out = tmp_path / "out"
    out.mkdir()

    def touch(row: Row) -> None:
        (out / str(row.v)).touch()

    writer(stream(spark, tmp_path), tmp_path).foreach(touch).trigger(availableNow=True).start().awaitTermination()
    assert sorted(int(path.name) for path in out.iterdir()) == list(range(100))


def test_foreach_opens_a_repeated_epoch_with_the_same_ids_so_that_it_can_be_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, 300)
    add_file(tmp_path / "in", 300, 300)
    out = tmp_path / "out"
    out.mkdir()
    query = writer(stream(spark, tmp_path), tmp_path).foreach(Lines(out, fail_once=True)).trigger(availableNow=True)
    query.start().awaitTermination()
    assert (out / "failed").exists()
    assert lines(out) == list(range(600))


def test_an_error_in_foreach_names_it(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 3)

    def fail(row: Row) -> None:
        raise ValueError(f"row {row.v} is wrong")

    query = writer(stream(spark, tmp_path), tmp_path).foreach(fail).option("restart.strategy", "none").start()
    with pytest.raises(UserCodeFailure, match=r"The foreach writer, in batch \d+, raised[\s\S]*is wrong"):
        query.awaitTermination()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_each_group_comes_once_per_epoch_and_in_complete_mode_all_of_them(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    for first in range(0, 600, 20):
        add_file(tmp_path / "in", first, 20)
    calls: list[dict[int, int]] = []

    def take(df: DataFrame, batch_id: int) -> None:
        rows = df.collect()
        assert len({row.k for row in rows}) == len(rows), "no group twice"
        calls.append({row.k: row.n for row in rows})

    limited = stream(spark, tmp_path).groupBy((F.col("v") % 7).alias("k")).agg(F.count("*").alias("n"))
    options = {"maxRowsPerSecond": 400}
    query = writer(limited, tmp_path).options(**options).foreachBatch(take).outputMode(mode)
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert len(calls) > 2, "epochs come while it runs"
    expected = {k: len(range(k, 600, 7)) for k in range(7)}
    shown: dict[int, int] = {}
    for call in calls:
        if mode == "complete":
            assert call.keys() >= shown.keys()
        assert all(n >= shown.get(k, 0) for k, n in call.items())
        shown |= call
    assert shown == expected


def test_in_complete_mode_a_result_that_has_become_empty_is_given_as_a_frame_without_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As in Structured Streaming, whose every batch has the whole result, also one without rows."""
    (tmp_path / "in").mkdir()
    epochs = Epochs()
    once = stream(spark, tmp_path).groupBy("v").count().where("count = 1")
    for name in (0, 1):
        add_file(tmp_path / "in", 0, 3)
        (tmp_path / "in" / "00000000.parquet").rename(tmp_path / "in" / f"again-{name}.parquet")
        query = writer(once, tmp_path).foreachBatch(epochs).outputMode("complete")
        assert query.trigger(availableNow=True).start().awaitTermination(120)
        assert epochs.calls[-1][1] == ([0, 1, 2] if name == 0 else [])
    assert epochs.ids == sorted(epochs.ids)


def test_rows_of_groups_must_stay_in_their_task_behind_the_aggregation(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, 1)
    counts = stream(spark, tmp_path).groupBy("v").count().repartition(2)
    with pytest.raises(UnsupportedPlan, match="repartition or union behind an aggregation in update mode"):
        writer(counts, tmp_path).foreachBatch(lambda df, batch_id: None).outputMode("update").start()
