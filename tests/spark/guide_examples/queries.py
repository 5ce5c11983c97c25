"""The queries of Spark's Structured Streaming programming guide, with folders of files for its sources.

Each is what the guide shows in Python up to the writer's line, and knows nothing of who runs it. Columns of event time
are named by text: by the frame from before `withWatermark`, as the guide writes them, Spark 4.3 finds no watermark.
"""

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr, session_window, when, window, window_time

from tests.spark.guide_examples.user_code import STATE, Downtime
from tests.spark.same_answers.engines import Against, Pipeline, Tables


def selection(tables: Tables) -> DataFrame:
    return tables("devices").select("device").where("signal > 10")


def running_count(tables: Tables) -> DataFrame:
    return tables("devices").groupBy("deviceType").count()


def streaming_view(tables: Tables) -> DataFrame:
    df = tables("devices")
    df.createOrReplaceTempView("updates")
    return df.sparkSession.sql("select count(*) from updates")


def windowed_counts(tables: Tables) -> DataFrame:
    words = tables("words")
    return words.groupBy(window(words.timestamp, "10 minutes", "5 minutes"), words.word).count()


def windowed_counts_with_watermark(tables: Tables) -> DataFrame:
    words = tables("words")
    return (
        words.withWatermark("timestamp", "10 minutes")
        .groupBy(window("timestamp", "10 minutes", "5 minutes"), words.word)
        .count()
    )


def sessions(tables: Tables) -> DataFrame:
    events = tables("events")
    return (
        events.withWatermark("eventTime", "10 seconds")
        .groupBy(session_window("eventTime", "5 seconds"), events.userId)
        .count()
    )


def sessions_with_a_gap_of_their_own(tables: Tables) -> DataFrame:
    events = tables("events")
    gap = session_window("eventTime", when(events.userId == "ann", "5 seconds").otherwise("1 seconds"))
    return events.withWatermark("eventTime", "10 seconds").groupBy(gap, events.userId).count()


def window_of_window(tables: Tables) -> DataFrame:
    words = tables("words").withWatermark("timestamp", "1 minute")
    counts = words.groupBy(window(words.timestamp, "10 minutes", "5 minutes"), words.word).count()
    return counts.groupBy(window(counts.window, "1 hour"), counts.word).count()


def window_by_window_time(tables: Tables) -> DataFrame:
    words = tables("words").withWatermark("timestamp", "1 minute")
    counts = words.groupBy(window(words.timestamp, "10 minutes", "5 minutes"), words.word).count()
    return counts.groupBy(window(window_time(counts.window), "1 hour"), counts.word).count()


def _types(tables: Tables) -> DataFrame:
    spark = tables("devices").sparkSession
    return spark.createDataFrame([("door", "hall"), ("lamp", "attic")], "deviceType string, room string")


def static_inner_join(tables: Tables) -> DataFrame:
    return tables("devices").join(_types(tables), "deviceType")


def static_left_outer_join(tables: Tables) -> DataFrame:
    return tables("devices").join(_types(tables), "deviceType", "left_outer")


_WITHIN_AN_HOUR = """
    clickAdId = impressionAdId AND
    clickTime >= impressionTime AND
    clickTime <= impressionTime + interval 1 hour
"""


def inner_join(tables: Tables) -> DataFrame:
    impressions = tables("impressions").withWatermark("impressionTime", "2 hours")
    return impressions.join(tables("clicks").withWatermark("clickTime", "3 hours"), expr(_WITHIN_AN_HOUR))


def left_outer_join(tables: Tables) -> DataFrame:
    # Less patience than in the guide, so that rows without a partner come out.
    impressions = tables("impressions").withWatermark("impressionTime", "2 minutes")
    clicks = tables("clicks").withWatermark("clickTime", "3 minutes")
    return impressions.join(clicks, expr(_WITHIN_AN_HOUR), "leftOuter")


def left_semi_join(tables: Tables) -> DataFrame:
    impressions = tables("impressions").withWatermark("impressionTime", "2 hours")
    return impressions.join(tables("clicks").withWatermark("clickTime", "3 hours"), expr(_WITHIN_AN_HOUR), "leftSemi")


def join_then_window(tables: Tables) -> DataFrame:
    # Less patience than in the guide, as above.
    impressions = tables("impressions").withWatermark("impressionTime", "2 minutes")
    clicks = tables("clicks").withWatermark("clickTime", "3 minutes")
    joined = impressions.join(clicks, expr(_WITHIN_AN_HOUR), "inner")
    return joined.groupBy(window("clickTime", "30 minutes")).count()


def unique_events(tables: Tables) -> DataFrame:
    return tables("events").dropDuplicates(["guid"]).select("guid")


def unique_events_with_watermark(tables: Tables) -> DataFrame:
    return tables("events").withWatermark("eventTime", "10 seconds").dropDuplicates(["guid", "eventTime"])


def unique_events_within_watermark(tables: Tables) -> DataFrame:
    events = tables("events").withWatermark("eventTime", "10 hours")
    return events.dropDuplicatesWithinWatermark(["guid"]).select("guid")


def downtime(tables: Tables) -> DataFrame:
    """The guide's StatefulProcessor: says of each device how often it has been seen, by the clock of events."""
    devices = tables("devices").withWatermark("time", "10 seconds")
    return devices.groupBy("device").transformWithStateInPandas(
        statefulProcessor=Downtime(), outputStructType=STATE, outputMode="Update", timeMode="EventTime"
    )


_STREAMING = Against.STREAMING
EXAMPLES = [
    Pipeline("selection and projection", selection),
    Pipeline("running count", running_count, mode="update", keys=1),
    Pipeline("sql on a streaming view", streaming_view, mode="complete"),
    Pipeline("windowed counts", windowed_counts, mode="complete"),
    Pipeline("windowed counts with a watermark", windowed_counts_with_watermark, against=_STREAMING),
    Pipeline("windowed counts, updated", windowed_counts_with_watermark, mode="update", keys=2),
    Pipeline("session windows", sessions, against=_STREAMING),
    Pipeline("session windows with a gap of their own", sessions_with_a_gap_of_their_own, against=_STREAMING),
    Pipeline("a window of a window", window_of_window, against=_STREAMING),
    Pipeline("a window of window_time", window_by_window_time, against=_STREAMING),
    Pipeline("stream-static inner join", static_inner_join),
    Pipeline("stream-static left outer join", static_left_outer_join),
    Pipeline("stream-stream inner join", inner_join),
    Pipeline("stream-stream left outer join", left_outer_join, against=_STREAMING),
    Pipeline("stream-stream left semi join", left_semi_join),
    Pipeline("a window behind a join", join_then_window, against=_STREAMING),
    Pipeline("dropDuplicates", unique_events),
    Pipeline("dropDuplicates with a watermark", unique_events_with_watermark),
    Pipeline("dropDuplicatesWithinWatermark", unique_events_within_watermark, against=_STREAMING),
    Pipeline("transformWithStateInPandas", downtime, mode="update", against=_STREAMING, keys=1),
]
