"""A query of Spark whose checkpoints are on S3: what the session says about S3 reaches the slots, and no log."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
        .options(**{"ui.enabled": "false", "restart.strategy": "none"})
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
