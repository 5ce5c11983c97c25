"""What is compared, over all plan nodes: each entry is plain PySpark, and knows nothing of who runs it."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tests.spark.same_answers.engines import Against, Pipeline, Tables
from tests.spark.same_answers.user_code import (
    Alarms,
    Items,
    Totals,
    count_in_pandas,
    halved,
    ids_twice,
    longest_notes,
    shout,
)


def orders(build: Callable[[DataFrame], DataFrame]) -> Callable[[Tables], DataFrame]:
    return lambda tables: build(tables("orders"))


def timed(build: Callable[[DataFrame], DataFrame]) -> Callable[[Tables], DataFrame]:
    return lambda tables: build(tables("orders").withWatermark("ts", "10 seconds"))


def both(build: Callable[[DataFrame, DataFrame], DataFrame]) -> Callable[[Tables], DataFrame]:
    def built(tables: Tables) -> DataFrame:
        left = tables("orders").withWatermark("ts", "10 seconds").alias("o")
        return build(left, tables("clicks").withWatermark("ts", "20 seconds").alias("c"))

    return built


def from_sql(text: str) -> Callable[[Tables], DataFrame]:
    def build(tables: Tables) -> DataFrame:
        df = tables("orders")
        df.createOrReplaceTempView("v")
        return df.sparkSession.sql(text)

    return build


_STATELESS = [
    Pipeline("select and where", orders(lambda df: df.where("item > 3 and amount is not null").select("id", "user"))),
    Pipeline("arithmetic", orders(lambda df: df.select("id", (F.col("id") * 3 % 7).alias("m"), F.col("amount") / 2))),
    Pipeline("conditionals", orders(lambda df: df.selectExpr("id", "case when item > 5 then 'hi' else user end as w"))),
    Pipeline("sql on a view", from_sql("select id, item + 1 as next from v where user <=> null or item = 2")),
    Pipeline(
        "strings", orders(lambda df: df.select(F.upper("user"), F.trim("note"), F.concat_ws("-", "user", "note")))
    ),
    Pipeline("patterns", orders(lambda df: df.where("note like 'n%' or note rlike '[xy],'").select("id", "note"))),
    Pipeline("decimals", orders(lambda df: df.select("id", (F.col("price") * 3 + 1).alias("p"), F.round("price", 1)))),
    Pipeline("dates", orders(lambda df: df.select("id", F.to_date("ts"), F.hour("ts"), F.date_trunc("minute", "ts")))),
    Pipeline("structs", orders(lambda df: df.select("id", "address.city", F.struct("id", "user").alias("s")))),
    Pipeline(
        "arrays", orders(lambda df: df.select("id", F.size("tags"), F.array_contains("tags", "a"), F.col("tags")))
    ),
    Pipeline("maps", orders(lambda df: df.select("id", F.col("extras")["x"], F.map_keys("extras")))),
    Pipeline(
        "lambdas",
        orders(lambda df: df.select("id", F.transform("tags", lambda tag: F.concat(tag, F.lit("."))))),
    ),
    Pipeline("hashes", orders(lambda df: df.select("id", F.hash("id", "user"), F.xxhash64("note"), F.md5("user")))),
    Pipeline("explode", orders(lambda df: df.select("id", F.explode("tags").alias("tag")))),
    Pipeline("explode outer", orders(lambda df: df.select("id", F.posexplode_outer("tags")))),
    Pipeline("explode a map", orders(lambda df: df.select("id", F.explode("extras")))),
    Pipeline(
        "json",
        orders(lambda df: df.select("id", F.from_json(F.to_json(F.struct("id", "user")), "id long, user string"))),
    ),
    Pipeline("by Spark's ingest", orders(lambda df: df.select("id", F.soundex("user").alias("s")))),
    Pipeline("a python udf", orders(lambda df: df.select("id", shout("user").alias("s")))),
    Pipeline("a pandas udf", orders(lambda df: df.select("id", halved("amount").alias("h")))),
    Pipeline("mapInPandas", orders(lambda df: df.mapInPandas(longest_notes, "id long, note string"))),
    Pipeline("mapInArrow", orders(lambda df: df.mapInArrow(ids_twice, "id long").where("id % 3 = 0"))),
    Pipeline("union", lambda t: t("orders").select("id", "user").union(t("clicks").select("id", "page"))),
    Pipeline("union by name", lambda t: t("orders").select("id", "user").unionByName(t("clicks").select("user", "id"))),
    Pipeline("union of three", lambda t: _three(t)),
    Pipeline("repartition", orders(lambda df: df.repartition(2).select("id", "user"))),
    Pipeline("repartition by key", orders(lambda df: df.repartition("user").selectExpr("id * 2 as d", "user"))),
    Pipeline("coalesce", orders(lambda df: df.coalesce(1).select("id", "note"))),
]


def _three(tables: Tables) -> DataFrame:
    return tables("orders").select("id").union(tables("clicks").select("id")).union(tables("orders").select("item"))


def grouped(name: str, calls: Callable[[], tuple[Column, ...]], by: tuple[str, ...] = ("user",)) -> Pipeline:
    """`calls` is a function because columns need a session."""
    return Pipeline(name, orders(lambda df: df.groupBy(*by).agg(*calls())), mode="update", keys=len(by))


_AGGREGATES = [
    grouped(
        "count and sum",
        lambda: (
            F.count("*"),
            F.count("item"),
            F.sum("item"),
            F.sum("amount"),
        ),
    ),
    grouped(
        "least and most",
        lambda: (
            F.min("amount"),
            F.max("note"),
            F.min("ts"),
            F.max("price"),
        ),
    ),
    grouped(
        "averages",
        lambda: (
            F.avg("item"),
            F.avg("amount"),
            F.sum("price"),
        ),
    ),
    grouped(
        "statistics",
        lambda: (
            F.stddev("amount"),
            F.var_pop("item"),
            F.corr("item", "amount"),
        ),
    ),
    grouped(
        "sets",
        lambda: (
            F.sort_array(F.collect_set("item")),
            F.approx_count_distinct("note"),
        ),
    ),
    grouped(
        "by another column",
        lambda: (
            F.max_by("note", "id"),
            F.min_by("amount", "id"),
        ),
    ),
    grouped(
        "with a filter",
        lambda: (
            F.expr("count(*) filter (where item > 3)"),
            F.expr("sum(id) filter (where user = 'ann')"),
        ),
    ),
    grouped(
        "two keys",
        lambda: (
            F.count("*").alias("n"),
            F.sum("id"),
        ),
        by=("user", "item"),
    ),
    Pipeline(
        "rollup",
        orders(lambda df: df.rollup("user", "item").agg(F.count("*"), F.grouping_id())),
        mode="complete",
    ),
    Pipeline("no keys", orders(lambda df: df.agg(F.count("*"), F.sum("id"))), mode="complete"),
    Pipeline(
        "aggregate of a union",
        lambda t: t("orders").select("user").union(t("clicks").select("user")).groupBy("user").count(),
        mode="update",
        keys=1,
    ),
    Pipeline("complete mode", orders(lambda df: df.groupBy("item").count()), mode="complete"),
]


def _minute() -> Column:
    return F.window("ts", "1 minute")


def windowed(name: str, build: Callable[[DataFrame], DataFrame]) -> Pipeline:
    return Pipeline(name, timed(build), against=Against.STREAMING)


_WINDOWS = [
    windowed("tumbling windows", lambda df: df.groupBy(_minute(), "user").agg(F.count("*"), F.sum("item"))),
    windowed("sliding windows", lambda df: df.groupBy(F.window("ts", "1 minute", "20 seconds")).agg(F.sum("id"))),
    windowed("sessions", lambda df: df.groupBy(F.session_window("ts", "5 seconds"), "user").agg(F.count("*"))),
    windowed("a timestamp as key", lambda df: df.groupBy("ts").agg(F.count("*"))),
    windowed(
        "windows over windows",
        lambda df: (
            df.groupBy(_minute(), "user")
            .agg(F.count("*").alias("n"))
            .groupBy(F.window(F.window_time("window"), "2 minutes"))
            .agg(F.sum("n"))
        ),
    ),
    Pipeline(
        "windows in update mode",
        timed(lambda df: df.groupBy(_minute()).agg(F.count("*").alias("n"), F.max("id"))),
        mode="update",
        keys=1,
    ),
]

_TIMED_WINDOWS = "window.end <= timestamp'2026-03-01 12:07:00'"

# Spark starts no streaming query with these, but a batch of the same DataFrame tells what they mean.
_DISTINCT = [
    grouped(
        "distinct values",
        lambda: (
            F.count_distinct("item"),
            F.sum_distinct("item"),
            F.expr("avg(distinct item)"),
            F.count("*"),
        ),
    ),
    grouped(
        "several distinct sets",
        lambda: (
            F.count_distinct("item", "note"),
            F.expr("count(distinct note) filter (where item > 2)"),
            F.expr("sum(distinct price)"),
            F.expr("count(distinct address)"),
            F.expr("max(distinct item)"),
        ),
    ),
    Pipeline(
        "distinct values without keys",
        orders(lambda df: df.agg(F.count_distinct("user"), F.expr("avg(distinct amount)"), F.sum("id"))),
        mode="complete",
    ),
    Pipeline(
        "distinct values in windows",
        timed(lambda df: df.groupBy(_minute(), "user").agg(F.count_distinct("item")).where(_TIMED_WINDOWS)),
    ),
    Pipeline(
        "distinct values in windows, update mode",
        timed(lambda df: df.groupBy(_minute()).agg(F.count_distinct("user", "item"), F.count_distinct("note"))),
        mode="update",
        keys=1,
    ),
    Pipeline(
        "distinct values in sessions",
        timed(
            lambda df: df.groupBy(F.session_window("ts", "5 seconds"), "user").agg(
                F.count_distinct("item"), F.sum_distinct("item"), F.max("id")
            )
        ),
        mode="complete",
    ),
]

_DEDUPLICATION = [
    Pipeline("distinct", orders(lambda df: df.select("user", "item").distinct())),
    Pipeline("dropDuplicates", orders(lambda df: df.select("user", "item").dropDuplicates())),
    Pipeline("dropDuplicates in event time", timed(lambda df: df.select("user", "ts").dropDuplicates())),
    Pipeline(
        "dropDuplicatesWithinWatermark",
        timed(lambda df: df.select("id", "ts").dropDuplicatesWithinWatermark(["id"])),
        against=Against.STREAMING,
    ),
]

_NEAR = "o.user = c.user and c.ts between o.ts - interval 10 seconds and o.ts + interval 10 seconds"


def joined(name: str, how: str) -> Pipeline:
    columns = ["o.id", "o.user"] if how == "left_semi" else ["o.id", "c.id", "o.user", "c.page"]
    build = both(lambda left, right: left.join(right, F.expr(_NEAR), how).select(*columns))
    return Pipeline(name, build, against=Against.STREAMING)


_JOINS = [
    Pipeline("join by key alone", lambda t: _by_id(t, "inner")),
    joined("inner join", "inner"),
    joined("left outer join", "left_outer"),
    joined("right outer join", "right_outer"),
    joined("full outer join", "full_outer"),
    joined("semi join", "left_semi"),
]


def _by_id(tables: Tables, how: str) -> DataFrame:
    return tables("orders").select("id", "item").join(tables("clicks").select("id", "page"), "id", how)


def _country(tables: Tables) -> DataFrame:
    spark = tables("orders").sparkSession
    rows = [("ann", "it"), ("bob", None), ("zoe", "fr")]
    return spark.createDataFrame(rows, "user string, country string")


_TABLES = [
    Pipeline("join with a table", lambda t: t("orders").select("id", "user").join(_country(t), "user")),
    Pipeline("left join with a table", lambda t: t("orders").select("id", "user").join(_country(t), "user", "left")),
    Pipeline(
        "semi join with a table", lambda t: t("orders").select("id", "user").join(_country(t), "user", "left_semi")
    ),
    Pipeline(
        "anti join with a table", lambda t: t("orders").select("id", "user").join(_country(t), "user", "left_anti")
    ),
    Pipeline("cross join with a table", lambda t: t("orders").select("id").crossJoin(_country(t))),
]

_USER_STATE = [
    Pipeline(
        "transformWithState",
        orders(lambda df: df.groupBy("user").transformWithState(Totals(), "user string, n long", "Append", "None")),
    ),
    Pipeline(
        "lists and maps",
        orders(lambda df: df.groupBy("user").transformWithState(Items(), "user string, item int", "Append", "None")),
    ),
    Pipeline(
        "event-time timers",
        timed(
            lambda df: df.groupBy("user").transformWithState(
                Alarms(), "user string, at long, n long", "Append", "EventTime"
            )
        ),
        against=Against.STREAMING,
    ),
    Pipeline(
        "applyInPandasWithState",
        orders(
            lambda df: df.groupBy("user").applyInPandasWithState(
                count_in_pandas, "user string, n long", "n long", "update", "NoTimeout"
            )
        ),
        mode="update",
        against=Against.STREAMING,
        keys=1,
    ),
    Pipeline(
        "an aggregate behind a deduplication",
        timed(lambda df: df.dropDuplicates(["id", "ts"]).groupBy(_minute(), "user").agg(F.count("*"))),
        against=Against.STREAMING,
    ),
]

PIPELINES = [*_STATELESS, *_AGGREGATES, *_WINDOWS, *_DISTINCT, *_DEDUPLICATION, *_JOINS, *_TABLES, *_USER_STATE]
