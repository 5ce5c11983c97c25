"""A query of Spark whose checkpoints are on S3: what the session says about S3 reaches the slots, and no log."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg
from tests.s3_server import KEY, SECRET, S3Server, s3_server
from tidegate.model.errors import OptionError
from tidegate.spark.hadoop_conf import store_access
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import open_store

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as served:
        served.make_bucket("spark")
        yield served


@pytest.fixture
def session(spark: SparkSession, server: S3Server) -> SparkSession:
    own = spark.newSession()
    for name, value in server.settings().items():
        own.conf.set(name, value)
    own.conf.set("fs.s3a.encryption.algorithm", "SSE-S3")
    return own


def run(session: SparkSession, folder: Path, location: str) -> None:
    rows = session.readStream.schema("v long").json(str(folder / "in"))
    writer = tg.writeStream(rows.groupBy("v").count()).outputMode("update").trigger(availableNow=True)
    query = (
        writer.format("parquet")
        .options(path=str(folder / "out"), checkpointLocation=location, parallelism="1")
        .options(**{"ui.port": "0", "restart.strategy": "none"})
        .start()
    )
    assert query.awaitTermination(60)


def test_a_query_keeps_its_checkpoints_on_s3_and_names_what_it_does_not_use(
    session: SparkSession, server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Not of every logger: at that level py4j writes down whatever Python and Java say to each other.
    caplog.set_level(logging.DEBUG, logger="tidegate")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"v": 1}\n{"v": 1}\n')
    run(session, tmp_path, "s3a://spark/chk")
    assert [row["count"] for row in session.read.parquet(str(tmp_path / "out")).collect()] == [2]
    assert open_store("s3a://spark/chk", StoreAccess(server.settings())).list("log")
    warned = [record.getMessage() for record in caplog.records if "Hadoop settings" in record.getMessage()]
    assert [text.rsplit(": ", 1)[-1] for text in warned] == ["fs.s3a.encryption.algorithm."]
    assert "cannot be found by its location" not in caplog.text
    assert KEY not in caplog.text and SECRET not in caplog.text


def test_a_bucket_that_is_not_there_is_said_before_anything_starts(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(OptionError, match=r"'s3a://no-such-bucket/chk' cannot be used .*: make the bucket"):
        run(session, tmp_path, "s3a://no-such-bucket/chk")
    assert not (tmp_path / "out").exists()


def test_what_was_set_for_all_sessions_counts_and_hadoops_defaults_do_not(spark: SparkSession) -> None:
    of_context = spark._jsc.hadoopConfiguration()
    of_context.set("fs.s3a.session.token", "a-token")
    of_context.set("fs.s3a.assumed.role.arn", "a-role")
    try:
        assert store_access(spark, ["/a/folder"]).settings == {"fs.s3a.session.token": "a-token"}
    finally:
        of_context.unset("fs.s3a.session.token")
        of_context.unset("fs.s3a.assumed.role.arn")


def test_a_session_reads_its_checkpoints_on_s3_as_tables_with_its_own_settings(
    session: SparkSession, spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"v": 1}\n{"v": 1}\n{"v": 2}\n')
    run(session, tmp_path, "s3a://spark/tables")

    def groups(of: SparkSession, **settings: str) -> list[tuple[int, int]]:
        read = of.read.format("tidegate").options(path="s3a://spark/tables", table="state", **settings)
        return sorted((row["v"], row["count"]) for row in read.load().collect())

    assert groups(session) == [(1, 2), (2, 1)]
    checkpoints = session.read.format("tidegate").options(path="s3a://spark/tables", table="checkpoints").load()
    assert checkpoints.where("status = 'completed'").count()
    # Another session knows nothing of S3 unless it is told.
    other = spark.newSession()
    assert groups(other, **server.settings()) == [(1, 2), (2, 1)]
    with pytest.raises(AnalysisException) as refused:
        groups(other, **{**server.settings(), "fs.s3a.secret.key": "", "fs.s3a.assumed.role.arn": "a-role"})
    assert "has no option 'fs.s3a.assumed.role.arn'" in str(refused.value) and KEY not in str(refused.value)


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(v=key[0], count=count)

    def close(self) -> None:
        return


def test_a_savepoint_is_written_to_s3_with_the_settings_of_the_session(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = session.readStream.schema("v long").json(str(tmp_path / "in"))
    counted = rows.groupBy("v").transformWithState(Counting(), "v long, count long", "append", "none")
    query = tg.writeStream(counted).format("noop").option("parallelism", 2)
    known = session.createDataFrame([(1, 10), (2, 20)], "v long, count long")
    first = tg.savepoints.from_dataframe(known, path="s3a://spark/first", state="count", query=query)
    second = tg.savepoints.from_dataframe(
        known.where("v = 1"), path="s3a://spark/second", state="count", based_on=first
    )
    run_nothing(query, second, "s3a://spark/resumed")
    kept = session.read.format("tidegate").options(path="s3a://spark/resumed", table="state").load()
    assert [(row["v"], row["count"]) for row in kept.collect()] == [(1, 10)]


def run_nothing(writer: tg.DataStreamWriter, restored: str, location: str) -> None:
    options = {"checkpointLocation": location, "restore.from": restored, "ui.enabled": "false"}
    query = writer.options(**options, **{"restart.strategy": "none"}).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
