"""Queries of the Nexmark benchmark in plain PySpark. Each takes `tables`, a function from a table's name to its rows.

Nothing here knows who runs them: the same functions serve a batch, Structured Streaming and Tidegate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Tables: TypeAlias = Callable[[str], DataFrame]

_LATE = "4 seconds"


@dataclass(frozen=True)
class Query:
    """`mode`: the output mode that it needs. `keys`: in update mode, the leading columns that tell its groups."""

    name: str
    question: str
    build: Callable[[Tables], DataFrame]
    mode: str = "append"
    keys: int = 0


def pass_through(tables: Tables) -> DataFrame:
    return tables("bids").select("auction", "bidder", "price", "date_time", "extra")


def currency(tables: Tables) -> DataFrame:
    euros = (F.col("price") * F.lit(0.908)).alias("price")
    return tables("bids").select("auction", "bidder", euros, "date_time", "extra")


def selection(tables: Tables) -> DataFrame:
    return tables("bids").where("auction % 123 = 0").select("auction", "price")


def local_items(tables: Tables) -> DataFrame:
    people = tables("persons").where("state IN ('OR', 'ID', 'CA')").withWatermark("date_time", _LATE)
    auctions = tables("auctions").where("category = 10").withWatermark("date_time", _LATE)
    seller = F.col("a.seller") == F.col("p.id")
    return people.alias("p").join(auctions.alias("a"), seller).select("p.name", "p.city", "p.state", "a.id")


def hot_items(tables: Tables) -> DataFrame:
    bids = tables("bids").withWatermark("date_time", _LATE)
    window = F.window("date_time", "10 seconds", "2 seconds")
    counts = bids.groupBy(window, "auction").agg(F.count("*").alias("bids"))
    # Of auctions with equally many bids the newest.
    rank = F.col("bids") * 1_000_000_000 + F.col("auction")
    return counts.groupBy("window").agg(F.max_by("auction", rank).alias("auction"), F.max("bids").alias("bids"))


def highest_bids(tables: Tables) -> DataFrame:
    bids = tables("bids").withWatermark("date_time", _LATE)
    return bids.groupBy(F.window("date_time", "10 seconds")).agg(F.max("price").alias("price"), F.count("*"))


def new_users(tables: Tables) -> DataFrame:
    people = tables("persons").withWatermark("date_time", _LATE).withColumn("w", F.window("date_time", "10 seconds"))
    auctions = tables("auctions").withWatermark("date_time", _LATE).withColumn("w", F.window("date_time", "10 seconds"))
    same = (F.col("p.id") == F.col("a.seller")) & (F.col("p.w") == F.col("a.w"))
    return people.alias("p").join(auctions.alias("a"), same).select("p.id", "p.name", "p.w.start", "a.reserve")


def log(tables: Tables) -> DataFrame:
    """To be written with `partitionBy("day", "minute")`."""
    bids = tables("bids").select("auction", "bidder", "price", "date_time", "extra", _day())
    return bids.withColumn("minute", F.date_format("date_time", "HH:mm"))


def user_sessions(tables: Tables) -> DataFrame:
    bids = tables("bids").withWatermark("date_time", _LATE)
    return bids.groupBy(F.session_window("date_time", "10 seconds"), "bidder").agg(F.count("*").alias("bids"))


def side_input(tables: Tables) -> DataFrame:
    bids = tables("bids")
    side = bids.sparkSession.range(100).select(
        F.col("id").alias("key"), F.format_string("side %d", "id").alias("value")
    )
    return bids.join(side, F.col("auction") % 100 == F.col("key")).select(
        "auction", "bidder", "price", "date_time", "value"
    )


def calculation(tables: Tables) -> DataFrame:
    euros = F.col("price") * 0.908
    time = F.hour("date_time")
    kind = F.when((time >= 8) & (time <= 18), "day").when((time <= 6) | (time >= 20), "night").otherwise("other")
    bids = tables("bids").where((euros > 1_000_000) & (euros < 50_000_000))
    return bids.select("auction", "bidder", euros.alias("price"), kind.alias("bid_time"), "date_time", "extra")


def bidding_by_day(tables: Tables) -> DataFrame:
    return tables("bids").groupBy(_day()).agg(*_bidding())


def bidding_by_channel(tables: Tables) -> DataFrame:
    last_minute = F.max(F.date_format("date_time", "HH:mm")).alias("minute")
    return tables("bids").groupBy("channel", _day()).agg(last_minute, *_bidding())


def _day() -> Column:
    return F.date_format("date_time", "yyyy-MM-dd").alias("day")


def _bidding() -> list[Column]:
    """Bids, who made them and on what: all of them, and by the size of the price."""
    counted = {"bids": "*", "bidders": "DISTINCT bidder", "auctions": "DISTINCT auction"}
    sizes = {
        "total": "true",
        "small": "price < 10000",
        "middle": "price >= 10000 AND price < 1000000",
        "large": "price >= 1000000",
    }
    return [
        F.expr(f"count({what}) FILTER (WHERE {where})").alias(f"{size}_{name}")
        for name, what in counted.items()
        for size, where in sizes.items()
    ]


def statistics(tables: Tables) -> DataFrame:
    price = F.col("price")
    return (
        tables("bids")
        .groupBy("auction", _day())
        .agg(
            F.count("*").alias("total"),
            F.count(F.when(price < 10_000, 1)).alias("small"),
            F.count(F.when((price >= 10_000) & (price < 1_000_000), 1)).alias("middle"),
            F.count(F.when(price >= 1_000_000, 1)).alias("large"),
            F.min("price").alias("min_price"),
            F.max("price").alias("max_price"),
            F.avg("price").alias("avg_price"),
            F.sum("price").alias("sum_price"),
        )
    )


def last_bids(tables: Tables) -> DataFrame:
    newest = [F.max_by(name, "date_time").alias(name) for name in ("price", "channel", "url")]
    return tables("bids").groupBy("bidder", "auction").agg(F.max("date_time").alias("date_time"), *newest)


def bids_with_auctions(tables: Tables) -> DataFrame:
    bids = tables("bids").withWatermark("date_time", _LATE).alias("b")
    auctions = tables("auctions").where("category = 10").withWatermark("date_time", _LATE).alias("a")
    # No auction lasts longer than 40 seconds: without this Spark would let one go before it has expired, because it
    # takes the bound on `expires` for one on the watermark's column.
    lasts = "b.date_time <= a.expires AND b.date_time <= a.date_time + INTERVAL 40 SECONDS"
    meets = F.expr(f"b.auction = a.id AND b.date_time >= a.date_time AND {lasts}")
    return bids.join(auctions, meets).select("b.auction", "b.bidder", "b.price", "a.item_name", "a.category")


def channels(tables: Tables) -> DataFrame:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    channel = F.lower("channel")
    identity = F.coalesce(*[F.when(channel == name, number) for name, number in known.items()])
    return (
        tables("bids").where(channel.isin(*known)).select("auction", "bidder", "price", "channel", identity.alias("id"))
    )


def directories(tables: Tables) -> DataFrame:
    parts = [F.split("url", "/").getItem(at).alias(f"dir{at + 1}") for at in range(3)]
    return tables("bids").select("auction", "bidder", "price", "channel", *parts)


QUERIES = [
    Query("q0", "What does passing every bid on cost?", pass_through),
    Query("q1", "Bids in another currency", currency),
    Query("q2", "Bids on certain auctions", selection),
    Query("q3", "Who sells in certain states and categories?", local_items),
    Query("q5", "Which auction has had the most bids in ten seconds, every two seconds?", hot_items),
    Query("q7", "The highest price of every ten seconds", highest_bids),
    Query("q8", "Who came and opened an auction within ten seconds?", new_users),
    Query("q10", "All bids as a log, by day and minute", log),
    Query("q11", "How many bids has a user made in each session?", user_sessions),
    Query("q13", "Bids with what a table knows of their auctions", side_input),
    Query("q14", "Bids of certain prices, and when they were made", calculation),
    Query("q15", "How many bids, bidders and auctions has every day?", bidding_by_day, mode="update", keys=1),
    Query("q16", "How many of them has every channel and day?", bidding_by_channel, mode="update", keys=2),
    Query("q17", "Statistics of every auction and day", statistics, mode="update", keys=2),
    Query("q18", "The last bid of every bidder on every auction", last_bids, mode="update", keys=2),
    Query("q20", "Bids with their auctions", bids_with_auctions),
    Query("q21", "Bids by channel", channels),
    Query("q22", "The directories of a bid's address", directories),
]
