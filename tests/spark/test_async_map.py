"""tg.async_map: rows through a function that waits, as a DataFrame that composes further."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import OptionError, UnsupportedPlan, UserCodeFailure

pytestmark = pytest.mark.spark

_names = itertools.count()
ROWS = 600


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """In two files, so that two slots read."""
    spark.range(ROWS).selectExpr("id", "concat('u', id % 7) as user").repartition(2).write.parquet(str(tmp_path / "in"))
    return spark.readStream.schema("id long, user string").parquet(str(tmp_path / "in"))


def rows_of(df: DataFrame, **options: Any) -> list[tuple[Any, ...]]:
    name = f"waited_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).option("parallelism", 2)
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return [tuple(row.values()) for row in read_memory_table(name).to_pylist()]


def looked_up(row: Row) -> Row:
    time.sleep(0.001 * (row.id % 5))
    return Row(name=row.user.upper(), id=row.id, twice=row.id * 2)


async def awaited(row: Row) -> Row:
    return Row(name=row.user.upper(), id=row.id, twice=row.id * 2)


SCHEMA = "id long, name string, twice long"
EXPECTED = [(n, f"U{n % 7}", 2 * n) for n in range(ROWS)]


def test_the_rows_are_those_of_a_plain_function_in_the_order_of_their_partition(numbers: DataFrame) -> None:
    def plain(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame.assign(name=frame["user"].str.upper(), twice=frame["id"] * 2)[["id", "name", "twice"]]

    expected = rows_of(numbers.mapInPandas(plain, SCHEMA), parallelism=1)
    found = rows_of(tg.async_map(numbers, looked_up, SCHEMA, capacity=20), parallelism=1)
    assert sorted(found) == EXPECTED
    assert found == expected


def test_it_composes_with_what_stands_before_and_behind(numbers: DataFrame) -> None:
    waited = tg.async_map(numbers.where("id % 2 = 0"), looked_up, SCHEMA, capacity=8, ordered=False)
    found = rows_of(waited.where("twice > 100").select("id"))
    assert sorted(found) == [(n,) for n in range(ROWS) if n % 2 == 0 and 2 * n > 100]


def test_who_says_how_the_function_is_called_gets_the_same(numbers: DataFrame) -> None:
    in_threads = tg.async_map(numbers.where("id < 20"), looked_up, SCHEMA, capacity=5, blocking=True)
    on_a_loop = tg.async_map(numbers.where("id < 20"), awaited, SCHEMA, capacity=5, blocking=False)
    assert sorted(rows_of(in_threads)) == sorted(rows_of(on_a_loop)) == EXPECTED[:20]


def test_a_row_may_give_none_or_several(numbers: DataFrame) -> None:
    def some(row: Row) -> Any:
        if row.id % 3 == 0:
            return None
        return (Row(id=row.id) for _ in range(row.id % 3))

    found = rows_of(tg.async_map(numbers, some, "id long"))
    assert sorted(found) == sorted((n,) for n in range(ROWS) for _ in range(n % 3))


class AllInside:
    """Answers only while so many calls are inside together."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, row: Row) -> Row:
        # Made in the slot: a barrier cannot travel. Both threads that find none make the same one.
        barrier = self.__dict__.setdefault("barrier", threading.Barrier(self._count))
        barrier.wait(60)
        return Row(id=row.id)


def test_as_many_plain_calls_as_its_capacity_wait_at_once(numbers: DataFrame) -> None:
    few = numbers.where("id < 80").coalesce(1)
    found = rows_of(tg.async_map(few, AllInside(8), "id long", capacity=8))
    assert sorted(found) == [(n,) for n in range(80)]


def test_coroutines_wait_at_once(numbers: DataFrame) -> None:
    seen: list[int] = []

    async def counted(row: Row) -> Row:
        seen.append(row.id)
        while len(seen) < 40:
            await asyncio.sleep(0.001)
        return Row(id=row.id)

    found = rows_of(tg.async_map(numbers.where("id < 200").coalesce(1), counted, "id long", capacity=50))
    assert sorted(found) == [(n,) for n in range(200)]


@pytest.mark.parametrize("unaligned", ["true", "false"])
def test_a_failure_amid_calls_loses_and_doubles_nothing(numbers: DataFrame, tmp_path: Path, unaligned: str) -> None:
    mark = tmp_path / "failed"

    def fails_once(row: Row) -> Row:
        time.sleep(0.005)
        if row.id == 400 and not mark.exists():
            mark.touch()
            raise ConnectionError("the service is gone")
        return Row(id=row.id, user=row.user)

    waited = tg.async_map(numbers, fails_once, "id long, user string", capacity=4)
    counted = waited.groupBy("user").count()
    name = f"waited_{next(_names)}"
    query = (
        tg.writeStream(counted)
        .format("memory")
        .outputMode("complete")
        .queryName(name)
        .options(parallelism=2, checkpointLocation=str(tmp_path / "chk"))
        .option("checkpoint.interval", "50ms")
        .option("checkpoint.unaligned", unaligned)
        .option("restart.delay", "10ms")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    assert mark.exists()
    table = read_memory_table(name).to_pylist()
    assert sum(row["count"] for row in table) == ROWS
    assert len([view for view in query.checkpoints if view.status == "completed"]) > 1


def test_what_a_call_raises_is_named_with_its_row(numbers: DataFrame) -> None:
    def fails(row: Row) -> Row:
        raise ConnectionError("the service is gone")

    with pytest.raises(UserCodeFailure, match=r"'fails', for the row \(id=.*raised ConnectionError: the service is g"):
        rows_of(tg.async_map(numbers, fails, "id long"), **{"restart.strategy": "none"})


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """While this file is there, calls hang; Spark keeps its workers, and other tests are not to find such calls."""
    path = tmp_path / "hanging"
    path.touch()
    yield path
    path.unlink()


def test_a_call_that_hangs_is_named_and_ends_nothing_else(numbers: DataFrame, hanging: Path) -> None:
    def hangs(row: Row) -> Row:
        while hanging.exists():
            time.sleep(0.1)
        return row

    with pytest.raises(UserCodeFailure, match="'hangs' has not answered within 200 ms for the row"):
        rows_of(tg.async_map(numbers, hangs, "id long", 4, timeout="200ms"), **{"restart.strategy": "none"})


def test_a_query_is_stopped_while_calls_hang(numbers: DataFrame, tmp_path: Path, hanging: Path) -> None:
    mark = tmp_path / "called"

    def hangs(row: Row) -> Row:
        mark.touch()
        while hanging.exists():
            time.sleep(0.1)
        return row

    query = (
        tg.writeStream(tg.async_map(numbers, hangs, "id long", 4))
        .format("noop")
        .options(parallelism=2, checkpointLocation=str(tmp_path / "chk"))
        .option("checkpoint.interval", "100ms")
        .start()
    )

    def completed() -> int:
        return sum(view.status == "completed" for view in query.checkpoints)

    deadline_s = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    # A checkpoint needs no answer: what waits is stored.
    before = completed()
    while completed() == before and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert completed() > before
    query.stop()
    assert not query.isActive


def test_explain_names_it(numbers: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    tg.writeStream(tg.async_map(numbers, looked_up, SCHEMA, capacity=7)).format("noop").explain()
    assert "AsyncMap(looked_up) up to 7 at once, in order" in capsys.readouterr().out


def test_behind_an_aggregation_in_update_mode_it_is_refused(numbers: DataFrame, tmp_path: Path) -> None:
    waited = tg.async_map(numbers.groupBy("user").count(), lambda row: row, "user string, count long")
    writer = (
        tg.writeStream(waited).format("noop").outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    )
    with pytest.raises(UnsupportedPlan, match="tg.async_map behind an aggregation"):
        writer.start()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "from 1 to 1000, or up to 100000 with an async def"),
        ({"capacity": 5000}, "from 1 to 1000"),
        ({"timeout": "soon"}, "not a quantity"),
        ({"timeout": 0}, "timeout 0"),
        ({"fn": 5}, "needs a function"),
        ({"blocking": False}, "blocking=False, and 'looked_up' is a plain function, which is called in threads: leave"),
        ({"blocking": True, "fn": awaited}, "blocking=True, and 'awaited' is an async def, which is awaited: leave"),
        ({"blocking": 1}, "blocking=1: write True or False"),
    ],
)
def test_wrong_arguments_are_named(numbers: DataFrame, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"fn": looked_up, "schema": SCHEMA, **change}
    with pytest.raises(OptionError, match=message):
        tg.async_map(numbers, **given)
