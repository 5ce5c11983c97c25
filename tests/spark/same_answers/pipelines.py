"""What is compared, over all plan nodes: each entry is plain PySpark, and knows nothing of who runs it."""

from pyspark.sql import functions as F

from tests.spark.same_answers.engines import Pipeline

_STATELESS = [
    Pipeline("select and where", lambda t: t("orders").where("item > 3 and amount is not null").select("id", "user")),
    Pipeline("arithmetic", lambda t: t("orders").select("id", (F.col("id") * 3 % 7).alias("m"), F.col("amount") / 2)),
    Pipeline("conditionals", lambda t: t("orders").selectExpr("id", "case when item > 5 then 'hi' else user end as w")),
    Pipeline("sql on a view", lambda t: _sql(t, "select id, item + 1 as next from v where user <=> null or item = 2")),
    Pipeline("union", lambda t: t("orders").select("id", "user").union(t("clicks").select("id", "page"))),
    Pipeline("union by name", lambda t: t("orders").select("id", "user").unionByName(t("clicks").select("user", "id"))),
    Pipeline(
        "union of three",
        lambda t: t("orders").select("id").union(t("clicks").select("id")).union(t("orders").select("item")),
    ),
    Pipeline("repartition", lambda t: t("orders").repartition(2).select("id", "user")),
    Pipeline("repartition by key", lambda t: t("orders").repartition("user").selectExpr("id * 2 as d", "user")),
    Pipeline("coalesce", lambda t: t("orders").coalesce(1).select("id", "note")),
]

_AGGREGATES = [
    Pipeline(
        "count and sum",
        lambda t: t("orders").groupBy("user").agg(F.count("*"), F.count("item"), F.sum("item"), F.sum("amount")),
        mode="update",
        keys=1,
    ),
    Pipeline(
        "two keys",
        lambda t: t("orders").groupBy("user", "item").agg(F.count("*").alias("n"), F.sum("id")).where("n > 1"),
        mode="update",
        keys=2,
    ),
    Pipeline(
        "aggregate of a union",
        lambda t: t("orders").select("user").union(t("clicks").select("user")).groupBy("user").count(),
        mode="update",
        keys=1,
    ),
]

PIPELINES = [*_STATELESS, *_AGGREGATES]


def _sql(tables, text):  # type: ignore[no-untyped-def]
    df = tables("orders")
    df.createOrReplaceTempView("v")
    return df.sparkSession.sql(text)
