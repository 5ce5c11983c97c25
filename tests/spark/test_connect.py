"""tg.connect: two streams into one processor, keyed or with a broadcast side, as a DataFrame that composes further."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import OptionError, UnsupportedPlan, UserCodeFailure, UserError

pytestmark = pytest.mark.spark

_names = itertools.count()


def put(spark: SparkSession, folder: Path, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").parquet(str(folder))
    return spark.readStream.schema(schema).parquet(str(folder))


def rows_of(df: DataFrame, **options: Any) -> Counter[tuple[Any, ...]]:
    name = f"connected_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).option("parallelism", 2)
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return Counter(tuple(row.values()) for row in read_memory_table(name).to_pylist())


class Pairs(tg.ConnectProcessor):
    """Each order with each payment of its user, whichever came first."""

    def init(self, handle: Any) -> None:
        self.orders = handle.getListState("orders", "n long")
        self.payments = handle.getListState("payments", "cents long")

    def handleLeft(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.orders.appendValue((row.n,))
            for (cents,) in self.payments.get():
                yield Row(user=key[0], n=row.n, cents=cents)

    def handleRight(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.payments.appendValue((row.cents,))
            for (n,) in self.orders.get():
                yield Row(user=key[0], n=n, cents=row.cents)


OUTPUT = "user string, n long, cents long"


def test_two_keyed_sides_share_the_state_of_a_key_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    orders = [(f"u{n % 3}", n) for n in range(12)]
    payments = [(100 + n, f"u{n % 4}") for n in range(8)]

    def connected() -> DataFrame:
        left = put(spark, tmp_path / "orders", [], "user string, n long")
        right = put(spark, tmp_path / "payments", [], "cents long, user string")
        pairs = tg.connect(left, right, Pairs(), OUTPUT, by="user")
        return pairs.where("n >= 0").select("user", "n", (F.col("cents") + 1).alias("cents"))

    chk = {"checkpointLocation": str(tmp_path / "chk")}
    put(spark, tmp_path / "orders", orders[:6], "user string, n long")
    put(spark, tmp_path / "payments", payments, "cents long, user string")
    first = rows_of(connected(), parallelism=1, **chk)
    put(spark, tmp_path / "orders", orders[6:], "user string, n long")
    second = rows_of(connected(), parallelism=2, **chk)
    expected = [(user, n, cents + 1) for user, n in orders for cents, other in payments if user == other]
    assert first and second
    assert first + second == Counter(expected)


class Rules(tg.ConnectProcessor):
    """Rules come first here: a row waits in a list until there is one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.factors = handle.getBroadcastState("factors", "name string", "factor long")
        self.waiting = handle.getListState("waiting", "n long")

    def handleLeft(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.waiting.appendValue((row.n,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from ()

    def handleRight(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
        assert key == ()
        for row in rows:
            self.factors.updateValue((row.name,), (row.factor,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        if len(list(self.factors.iterator())) < 2:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5)
            return
        for (n,) in list(self.waiting.get()):
            yield Row(user=key[0], n=n, cents=n * sum(factor for _, (factor,) in self.factors.iterator()))
        self.waiting.clear()


def test_a_broadcast_right_side_is_known_to_every_key(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(f"u{n % 5}", n) for n in range(20)]
    left = put(spark, tmp_path / "rows", rows, "user string, n long")
    right = put(spark, tmp_path / "rules", [("a", 2), ("b", 5)], "name string, factor long")
    df = tg.connect(left, right, Rules(), OUTPUT, leftBy="user", timeMode="ProcessingTime")
    name = f"connected_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).option("parallelism", 2)
    query = writer.option("checkpoint.interval", "100ms").start()
    expected = Counter((user, n, 7 * n) for user, n in rows)
    deadline = 600
    while Counter(tuple(row.values()) for row in read_memory_table(name).to_pylist()) != expected:
        query.awaitTermination(0.1)
        deadline -= 1
        assert deadline, read_memory_table(name).to_pylist()
    query.stop()


class Giving(Rules):
    def handleRight(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        return [Row(user="x", n=1, cents=1)]


def test_a_broadcast_side_that_gives_rows_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    left = put(spark, tmp_path / "rows", [("a", 1)], "user string, n long")
    right = put(spark, tmp_path / "rules", [("a", 2)], "name string, factor long")
    df = tg.connect(left, right, Giving(), OUTPUT, leftBy="user", timeMode="ProcessingTime")
    writer = tg.writeStream(df).format("noop").option("restart.strategy", "none").trigger(availableNow=True)
    with pytest.raises(UserCodeFailure, match="broadcast side may change broadcast state only"):
        writer.start().awaitTermination(90)


class DeclaresTwice(Pairs):
    def init(self, handle: Any) -> None:
        handle.getListState("orders", "n long")
        handle.getValueState("orders", "n long")


def test_mistakes_are_told_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    left = put(spark, tmp_path / "a", [("a", 1)], "user string, n long")
    right = put(spark, tmp_path / "b", [(1, "a")], "cents long, user string")
    with pytest.raises(OptionError, match="needs a tg.ConnectProcessor"):
        tg.connect(left, right, object(), OUTPUT, by="user")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not both"):
        tg.connect(left, right, Pairs(), OUTPUT, by="user", leftBy="user")
    with pytest.raises(OptionError, match="timeMode 'never'"):
        tg.connect(left, right, Pairs(), OUTPUT, by="user", timeMode="never")
    with pytest.raises(UserError, match="'orders' is declared twice"):
        tg.writeStream(tg.connect(left, right, DeclaresTwice(), OUTPUT, by="user")).format("noop").explain()
    own = left.groupBy("user").cogroup(right.groupBy("user")).applyInArrow(lambda a, b: a, "user string, n long")
    with pytest.raises(UnsupportedPlan, match="use tg.connect"):
        tg.writeStream(own).format("noop").explain()
