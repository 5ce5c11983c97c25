"""`tg.named` on Spark's plans: a name stays with its operator, whatever the optimiser does around it."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.plan.lower import lower
from tidegate.plan.naming import names_in
from tidegate.plan.nodes import OutputMode, Sink
from tidegate.plan.physical import JobPlan
from tidegate.spark.catalyst import read_plan

pytestmark = pytest.mark.spark


def stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.withColumn("k", F.col("value") % 10).withWatermark("timestamp", "1 minute")


def planned(df: DataFrame) -> JobPlan:
    root = read_plan(df)
    return lower(root, Sink("noop", {}, root.schema, OutputMode.APPEND), parallelism=2, max_parallelism=128)


def named_kinds(df: DataFrame) -> dict[str, str]:
    """The kind of operator that bears each name."""
    plan = planned(df)
    kinds: dict[str, str] = {}
    for place, name in names_in(plan).items():
        vertex, at = place.split()
        spec = plan.vertices[int(vertex[1:])]
        kinds[name] = "source" if at == "source" else type(spec.operators[int(at[2:])]).__name__
    return kinds


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("timestamp", "1 minute"), "k").agg(F.count("*").alias("n"), F.sum("value").alias("s"))


def test_a_name_stays_when_columns_are_pruned_and_filters_are_pushed_through(spark: SparkSession) -> None:
    df = tg.named(totals(stream(spark)), "totals").where("k > 3").select("k", "n")
    assert named_kinds(df) == {"totals": "AggregateSpec"}


def test_a_name_goes_to_the_last_operator_with_state(spark: SparkSession) -> None:
    selected = tg.named(totals(stream(spark)).select("k", "n").where("n > 1"), "totals")
    assert named_kinds(selected) == {"totals": "AggregateSpec"}
    assert named_kinds(tg.named(stream(spark), "time").select("k")) == {"time": "WatermarkSpec"}
    source = spark.readStream.format("rate").load()
    assert named_kinds(tg.named(source.select("value"), "orders").where("value > 3")) == {"orders": "source"}


def test_two_named_frames_of_one_source_are_joined_under_a_third_name(spark: SparkSession) -> None:
    one, other = (tg.named(stream(spark).dropDuplicates(["value"]), name).alias(name) for name in ("one", "other"))
    on = "one.value = other.value and one.timestamp >= other.timestamp"
    joined = tg.named(one.join(other, F.expr(f"{on} and one.timestamp <= other.timestamp + interval 1 minute")), "both")
    kinds = named_kinds(joined.select("one.value", "other.k"))
    assert kinds == {"one": "DeduplicateSpec", "other": "DeduplicateSpec", "both": "StreamJoinSpec"}


def test_a_name_goes_through_a_view(spark: SparkSession) -> None:
    tg.named(totals(stream(spark)), "totals").createOrReplaceTempView("named_totals")
    assert named_kinds(spark.sql("select k, n + 1 as m from named_totals where k > 2")) == {"totals": "AggregateSpec"}


def test_the_last_name_counts_and_the_frame_that_was_given_has_none(spark: SparkSession) -> None:
    plain = totals(stream(spark))
    assert named_kinds(tg.named(tg.named(plain, "a").select("n"), "b")) == {"b": "AggregateSpec"}
    assert named_kinds(plain) == {}


def test_names_that_cannot_be_are_refused_in_a_sentence(spark: SparkSession) -> None:
    for name in ("", "a#1", "a/b"):
        with pytest.raises(OptionError, match="The operator's name is"):
            tg.named(stream(spark), name)
    two = stream(spark).select("k").union(stream(spark).select("k"))
    with pytest.raises(OptionError, match="df is a union: name its parts"):
        tg.named(two, "both")
    with pytest.raises(OptionError, match="names an operator of a stream"):
        tg.named(spark.range(3), "table")
    once = tg.named(stream(spark).dropDuplicates(["value"]), "once")
    with pytest.raises(UnsupportedPlan, match="The name 'once' is on 2 operators"):
        planned(once.select("k").union(once.select("k")))
