"""Savepoints on Spark: taken while a query runs, to stop with, to start from, at another parallelism."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg
from tests.chaos import job
from tidegate.cli import check, running
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, JobFailure, OptionError, TidegateError

pytestmark = pytest.mark.spark
# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_S = 60.0
ROWS, FILES = 8000, 32
ROW_COST_S = 0.001  # seconds of work for each slot: it is stopped long before its end
ADAPTIVE = {"checkpoint.unaligned": "auto", "checkpoint.alignedTimeout": "20ms"}
TWO_UNALIGNED = {"checkpoint.unaligned": "true", "checkpoint.maxConcurrent": 2, "checkpoint.interval": "10ms"}


@dataclass(frozen=True)
class Rows:
    """The input, and what Spark says about it."""

    spark: SparkSession
    folder: Path
    answer: list[tuple[int, ...]]

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(job.INPUT).parquet(str(self.folder / "in"))

    def writer(self, folder: Path, *, slots: int, row_cost_s: float = 0.0, **options: Any) -> tg.DataStreamWriter:
        return self.writer_of(job.pipeline(self.stream(), row_cost_s=row_cost_s), folder, slots=slots, **options)

    def writer_of(self, df: DataFrame, folder: Path, *, slots: int, **options: Any) -> tg.DataStreamWriter:
        writer = tg.writeStream(df).format("parquet").option("path", folder / "out").option("parallelism", slots)
        writer.option("checkpointLocation", folder / "chk").option("checkpoint.interval", "100ms")
        return writer.option("network.window", "8kb").options(**options)

    def finish(self, folder: Path, *, slots: int, **options: Any) -> None:
        """Runs what is left of the input."""
        query = self.writer(folder, slots=slots, **options).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), query.status

    def committed(self, *folders: Path) -> list[tuple[int, ...]]:
        return sorted(row for folder in folders for row in job.committed_rows(self.spark, folder))


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("rows")
    job.make_input(spark, folder, rows=ROWS, files=FILES)
    return Rows(spark, folder, job.sparks_answer(spark, folder))


@dataclass(frozen=True)
class Taken:
    """A query that was stopped with a savepoint, in the middle of its input."""

    folder: Path
    savepoint: str


@pytest.fixture(scope="module")
def taken(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    folder = tmp_path_factory.mktemp("taken")
    query = rows.writer(folder, slots=2, row_cost_s=ROW_COST_S, **ADAPTIVE).start()
    until(lambda: completed(query) >= 2)
    savepoint = query.stop(savepoint=folder / "mine")
    assert savepoint is not None
    return Taken(folder, savepoint)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def completed(query: tg.StreamingQuery) -> int:
    assert query.isActive, f"it ended: {query.status}"
    return len([c for c in query.checkpoints if c.status == "completed"])


def last_completed(query: tg.StreamingQuery, count: int) -> list[tg.CheckpointView]:
    until(lambda: completed(query) >= count)
    return [c for c in query.checkpoints if c.status == "completed"][:count]


def rows_read(query: tg.StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else progress["numInputRows"]


def under_way(query: tg.StreamingQuery) -> int:
    return len([c for c in query.checkpoints if c.status == "in_progress"])


def sentence_of(kind: type[TidegateError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


# -- taking one


@pytest.mark.parametrize(
    ("options", "at_once"), [(ADAPTIVE, 1), (TWO_UNALIGNED, 2)], ids=["adaptive", "two unaligned at once"]
)
def test_a_savepoint_beside_checkpoints_then_a_stop_with_one_then_on_at_another_parallelism(
    rows: Rows, tmp_path: Path, options: dict[str, Any], at_once: int
) -> None:
    query = rows.writer(tmp_path, slots=2, row_cost_s=ROW_COST_S, **options).start()
    until(lambda: completed(query) >= 2 and under_way(query) == at_once)
    path = query.savepoint(unaligned=True)
    assert query.isActive
    assert Path(path).parent == tmp_path / "chk" / "savepoints"
    assert sorted(file.name for file in Path(path).iterdir()) == ["0.state", "1.state", "manifest.json"]
    until(lambda: [(c.status, c.path) for c in query.checkpoints if c.is_savepoint] == [("completed", path)])

    stopped_with = query.stop(savepoint=True)
    assert stopped_with is not None and stopped_with != path
    assert query.status["message"] == "stopped" and query.exception() is None
    before = len(rows.committed(tmp_path))
    assert 0 < before < len(rows.answer), "stopped too early or too late to say anything"

    rows.finish(tmp_path, slots=3, **options)
    assert rows.committed(tmp_path) == rows.answer
    assert Path(path, "manifest.json").exists() and Path(stopped_with, "manifest.json").exists()


def test_a_query_that_takes_no_savepoint_in_time_goes_on_running(rows: Rows, tmp_path: Path) -> None:
    options = {"checkpoint.unaligned": "true", "checkpoint.timeout": "150ms", "checkpoint.tolerableFailures": 100_000}
    options |= {"network.debloat": "false", "source.activeBackpressure": "false"}
    query = rows.writer(tmp_path, slots=2, row_cost_s=0.002, **options).start()
    until(lambda: rows_read(query) > ROWS / 4)
    said = sentence_of(JobFailure, lambda: query.stop(savepoint=tmp_path / "mine"))
    assert said.startswith("The query was not stopped and goes on running: the savepoint was not taken: expired")
    assert not [*(tmp_path / "mine").rglob("manifest.json")], "nothing is left that could be taken for a savepoint"
    assert query.isActive
    read = rows_read(query)
    assert read < ROWS, "nothing is left to see that it goes on"
    until(lambda: rows_read(query) > read)
    query.stop()
    rows.finish(tmp_path, slots=2)
    assert rows.committed(tmp_path) == rows.answer


def test_a_query_without_a_place_of_its_own_needs_a_path(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    query = tg.writeStream(source).format("noop").option("parallelism", 1).start()
    said = sentence_of(OptionError, query.savepoint)
    assert "no checkpointLocation" in said and "query.savepoint('a/folder')" in said
    path = query.savepoint(tmp_path / "mine")
    assert Path(path, "manifest.json").exists() and Path(path).parent == tmp_path / "mine"
    query.stop()
    assert Path(path, "manifest.json").exists()


def test_commands_take_a_savepoint_of_a_running_query_and_stop_it(
    rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = rows.writer(tmp_path, slots=2, row_cost_s=ROW_COST_S, **ADAPTIVE, **{"ui.port": 0}).start()
    until(lambda: completed(query) >= 1)
    location = str(tmp_path / "chk")
    assert running.savepoint(location, None, unaligned=False) == 0
    taken = capsys.readouterr().out.strip()
    assert Path(taken, "manifest.json").exists() and query.isActive
    assert running.stop_with_savepoint(location, str(tmp_path / "mine"), unaligned=False) == 0
    assert Path(capsys.readouterr().out.strip(), "manifest.json").exists()
    assert query.awaitTermination(PATIENCE_S) and query.status["message"] == "stopped"
    assert not (tmp_path / "chk" / "running").exists(), "it is not found any more"
    with pytest.raises(TidegateError, match="No query runs on"):
        running.stop(location)
    rows.finish(tmp_path, slots=2)
    assert rows.committed(tmp_path) == rows.answer


def test_a_savepoint_that_cannot_be_taken_is_refused_and_the_query_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    writer = tg.writeStream(source).format("noop").option("parallelism", 1)
    query = writer.option("checkpoint.mode", "at_least_once").start()
    (tmp_path / "file").touch()
    assert "is a file" in sentence_of(OptionError, lambda: query.savepoint(tmp_path / "file"))
    assert "is a file" in sentence_of(OptionError, lambda: query.stop(savepoint=tmp_path / "file"))
    assert "write a path" in sentence_of(OptionError, lambda: query.savepoint(""))
    assert "unknown scheme" in sentence_of(OptionError, lambda: query.savepoint("ftp://somewhere"))
    assert "at_least_once" in sentence_of(OptionError, lambda: query.savepoint(tmp_path / "mine", unaligned=True))
    assert query.isActive
    query.stop()
    for call in (lambda: query.savepoint(tmp_path / "mine"), lambda: query.stop(savepoint=tmp_path / "mine")):
        assert "the query is stopped" in sentence_of(JobFailure, call)
    assert not (tmp_path / "mine").exists()


# -- starting from one


@pytest.mark.parametrize("slots", [1, 3])
def test_a_second_query_starts_from_a_savepoint_at_another_parallelism(
    rows: Rows, taken: Taken, tmp_path: Path, slots: int
) -> None:
    rows.finish(tmp_path, slots=slots, **{"restore.from": taken.savepoint})
    assert 0 < len(rows.committed(tmp_path)) < len(rows.answer)
    assert rows.committed(taken.folder, tmp_path) == rows.answer
    assert not (tmp_path / "chk" / "savepoints").exists(), "what it started from stays where it is"


def test_a_query_with_checkpoints_of_its_own_does_not_go_back_to_where_it_started(
    rows: Rows, taken: Taken, tmp_path: Path
) -> None:
    for _ in range(2):
        rows.finish(tmp_path, slots=2, **{"restore.from": taken.savepoint})
    assert rows.committed(taken.folder, tmp_path) == rows.answer


def test_what_cannot_be_started_from_is_refused_before_anything_starts(
    rows: Rows, taken: Taken, tmp_path: Path
) -> None:
    def start(options: dict[str, Any], df: DataFrame | None = None) -> Callable[[], Any]:
        from_it = {"restore.from": taken.savepoint} | options
        df = job.pipeline(rows.stream()) if df is None else df
        return rows.writer_of(df, tmp_path, slots=2, **from_it).trigger(availableNow=True).outputMode("update").start

    nowhere = tmp_path / "not" / "there"
    said = sentence_of(Damaged, start({"restore.from": nowhere}))
    assert f"{nowhere}/manifest.json is missing" in said
    said = sentence_of(OptionError, start({"restore.from": taken.folder / "chk"}))
    assert "is a checkpointLocation" in said
    said = sentence_of(IncompatibleCheckpoint, start({"maxParallelism": 64}))
    assert "maxParallelism 128 and the query 64" in said
    other = rows.stream().groupBy("k").agg(F.sum("v").alias("total"))
    said = sentence_of(IncompatibleCheckpoint, start({}, other))
    assert "which this query lacks" in said
    said = sentence_of(OptionError, start({"checkpoint.mode": "at_least_once", "checkpoint.unaligned": "true"}))
    assert "'checkpoint.mode' is at_least_once, which is never unaligned" in said
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_check_says_what_would_go_where_and_starts_nothing(
    rows: Rows, taken: Taken, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(query: str, **options: object) -> tuple[int, str]:
        program = tmp_path / "program.py"
        lines = [
            "from pyspark.sql import SparkSession",
            "import tidegate as tg",
            "from tests.chaos import job",
            "spark = SparkSession.builder.getOrCreate()",
            f"stream = spark.readStream.schema(job.INPUT).parquet({str(rows.folder / 'in')!r})",
            f"writer = tg.writeStream({query}).format('parquet').option('parallelism', 3).outputMode('append')",
            f"writer.options(**{options})",
            f"writer.option('checkpointLocation', {str(tmp_path / 'chk')!r}).start({str(tmp_path / 'out')!r})",
            "raise AssertionError('it was started')",
        ]
        program.write_text("\n".join(lines))
        code = check.run(taken.savepoint, str(program))
        assert [path.name for path in tmp_path.iterdir()] == ["program.py"], "nothing is written"
        return code, capsys.readouterr().out

    code, said = checked("job.pipeline(stream.where('v >= 0'))")
    assert code == 0 and "It can be restored." in said
    assert "TransformWithState#1 (TransformWithState): v1 op0 -> v1 op0, 2 -> 3 subtasks" in said
    assert "Source#1 (Source): v0 source -> v0 source, 2 -> 3 subtasks" in said
    assert not tg.queries(rows.spark)
    code, said = checked("stream.dropDuplicates(['v'])")
    assert code == 1 and "It cannot be restored" in said and "TransformWithState#1" in said
    other = {"checkpoint.recoverWithoutChannelState": 999}
    code, said = checked("job.pipeline(stream)", **other)
    assert code == 1 and "names checkpoint 999" in said, "what the query's options say of a restore counts"


def test_rows_in_flight_go_on_with_other_key_groups(rows: Rows, tmp_path: Path) -> None:
    # A source is at most an interval ahead: with a shorter one nothing may be in flight when it is stopped.
    options = TWO_UNALIGNED | {"checkpoint.interval": "100ms"}
    query = rows.writer(tmp_path / "before", slots=2, row_cost_s=ROW_COST_S, **options).start()
    until(lambda: all(c.inflight_bytes for c in last_completed(query, 5)) and rows_read(query) > ROWS / 8)
    stopped_with = query.stop(savepoint=True, unaligned=True)
    assert stopped_with is not None
    inflight = rows.spark.read.format("tidegate").option("path", stopped_with).option("table", "inflight").load()
    assert inflight.count() > 0
    path = tg.savepoints.from_dataframe(path=tmp_path / "seven", based_on=stopped_with, max_parallelism=7)
    rows.finish(tmp_path / "after", slots=3, maxParallelism=7, **{"restore.from": path})
    assert rows.committed(tmp_path / "before", tmp_path / "after") == rows.answer


def test_totals_by_key_go_on_at_another_parallelism(rows: Rows, tmp_path: Path) -> None:
    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))

    def writer(slots: int) -> tg.DataStreamWriter:
        df = totals(rows.stream().mapInArrow(slowly, job.INPUT))
        options = TWO_UNALIGNED | {"checkpoint.interval": "50ms"}  # each epoch makes files
        return rows.writer_of(df, tmp_path, slots=slots, **options).outputMode("update")

    query = writer(2).start()
    until(lambda: completed(query) >= 2 and rows_read(query))
    query.stop(savepoint=True, unaligned=True)
    (stopped_with,) = [c for c in query.checkpoints if c.is_savepoint]
    assert stopped_with.status == "completed"
    query = writer(3).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    newest: dict[int, tuple[int, ...]] = {}
    for row in rows.committed(tmp_path):  # each change is a row, with a higher count than the one before
        newest[row[0]] = row
    batch = totals(rows.spark.read.schema(job.INPUT).parquet(str(rows.folder / "in"))).collect()
    assert sorted(newest.values()) == sorted(tuple(row) for row in batch)
    assert len(rows.committed(tmp_path)) > len(batch), "the first run has committed something"


def test_totals_by_name_go_on_in_a_changed_query(rows: Rows, tmp_path: Path) -> None:
    """A filter and a projection more, an operator in front and one behind: each has another place in the plan."""

    def totals(df: DataFrame) -> DataFrame:
        return tg.named(df.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total")), "totals")

    def writer(df: DataFrame, slots: int, **options: Any) -> tg.DataStreamWriter:
        return rows.writer_of(df, tmp_path, slots=slots, **ADAPTIVE | options).outputMode("update")

    query = writer(totals(tg.named(rows.stream(), "orders").mapInArrow(slowly, job.INPUT)), 2).start()
    until(lambda: completed(query) >= 2 and rows_read(query))
    query.stop(savepoint=True)
    assert len(rows.committed(tmp_path)) > 0

    unnamed = rows.stream().groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    said = sentence_of(IncompatibleCheckpoint, writer(unnamed, 2).start)
    assert "'totals' (Aggregate keys=[int64]" in said and "restore.allowNonRestored" in said
    once = tg.named(rows.stream().select("*", F.lit(1).alias("one")).where("v is not null"), "orders").dropDuplicates()
    changed = totals(once).select((F.col("total") + 0).alias("total"), "n", "k").where("k >= 0")
    query = writer(changed.select("k", "n", "total"), 3).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    newest: dict[int, tuple[int, ...]] = {}
    for row in rows.committed(tmp_path):  # each change is a row, with a higher count than the one before
        newest[row[0]] = row
    batch = rows.spark.read.schema(job.INPUT).parquet(str(rows.folder / "in")).groupBy("k")
    assert sorted(newest.values()) == sorted(tuple(row) for row in batch.agg(F.count("*"), F.sum("v")).collect())


def test_state_of_an_operator_that_is_gone_is_dropped_only_with_the_option(rows: Rows, tmp_path: Path) -> None:
    def totals(df: DataFrame) -> DataFrame:
        return tg.named(df.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total")), "totals")

    def writer(df: DataFrame, slots: int, **options: Any) -> tg.DataStreamWriter:
        return rows.writer_of(totals(df), tmp_path, slots=slots, **ADAPTIVE | options).outputMode("update")

    def operators() -> set[str]:
        """Those that have state in the newest checkpoint."""
        plan = find_checkpoint(str(tmp_path / "chk")).read_manifest().plan
        assert plan is not None
        return {operator.name for operator in plan.operators}

    stream = tg.named(rows.stream(), "orders")
    query = writer(tg.named(stream.mapInArrow(slowly, job.INPUT).dropDuplicates(["v"]), "once"), 2).start()
    until(lambda: completed(query) >= 2 and rows_read(query))
    query.stop(savepoint=True)
    assert operators() == {"once", "totals"}
    before = rows.committed(tmp_path)
    assert before, "stopped too early to say anything"

    said = sentence_of(IncompatibleCheckpoint, writer(stream, 2).start)
    assert "has state of 'once' (Deduplicate" in said and "which this query lacks" in said
    assert ".option('restore.allowNonRestored', 'true')" in said
    assert rows.committed(tmp_path) == before and operators() == {"once", "totals"}, "nothing has changed"

    query = writer(stream, 3, **{"restore.allowNonRestored": "true"}).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    assert operators() == {"totals"}
    newest: dict[int, tuple[int, ...]] = {}
    for row in rows.committed(tmp_path):  # each change is a row, with a higher count than the one before
        newest[row[0]] = row
    batch = rows.spark.read.schema(job.INPUT).parquet(str(rows.folder / "in")).groupBy("k")
    assert sorted(newest.values()) == sorted(tuple(row) for row in batch.agg(F.count("*"), F.sum("v")).collect())


class Growing(StatefulProcessor):
    """Counts rows; of a schema with more than the count it also keeps how it was called then."""

    def __init__(self, schema: str, row_cost_s: float = 0.0) -> None:
        self._schema = schema
        self._row_cost_s = row_cost_s

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", self._schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, *before = self._state.get() if self._state.exists() else (0,)
        for _ in rows:
            time.sleep(self._row_cost_s)
            n += 1
        self._state.update((n, *["grown" for _ in self._schema.split(",")[1:]]))
        yield Row(k=key[0], n=n, before=str(before))


def test_a_state_whose_schema_has_grown_goes_on_with_null_in_the_new_fields(rows: Rows, tmp_path: Path) -> None:
    def writer(schema: str, row_cost_s: float = 0.0) -> tg.DataStreamWriter:
        processor = Growing(schema, row_cost_s)
        grouped = rows.stream().groupBy("k")
        df = grouped.transformWithState(processor, "k long, n long, before string", "Append", "None")
        return rows.writer_of(df, tmp_path, slots=2, **ADAPTIVE)

    query = writer("n long", ROW_COST_S).start()
    until(lambda: completed(query) >= 2 and rows_read(query))
    query.stop(savepoint=True)
    for schema, said in (("n int", "(n: int32)"), ("m long", "(m: int64)"), ("n long, l string not null", "NOT NULL")):
        assert said in sentence_of(IncompatibleCheckpoint, writer(schema).start)
    query = writer("n long, last string").trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    committed = rows.committed(tmp_path)
    counts = {row[0]: max(each[1] for each in committed if each[0] == row[0]) for row in committed}
    batch = rows.spark.read.schema(job.INPUT).parquet(str(rows.folder / "in")).groupBy("k").count().collect()
    assert sorted(counts.items()) == sorted(tuple(row) for row in batch)
    assert {row[2] for row in committed} >= {"[None]", "['grown']"}, "old values have null there, new ones have not"


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.0005 * batch.num_rows)
        yield batch


# -- the other promises


def test_an_at_least_once_query_that_does_not_fail_gives_each_row_once(rows: Rows, tmp_path: Path) -> None:
    rows.finish(tmp_path, slots=2, **{"checkpoint.mode": "at_least_once", "source.activeBackpressure": "strict"})
    assert rows.committed(tmp_path) == rows.answer
