"""A zone's rules as read from the JVM give, around every change of its offset, the times that Spark gives."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.kernels.zones import S_PER_DAY, Zone, zone
from tidegate.spark.catalyst import read_plan
from tidegate.spark.zones import zone_rules

pytestmark = pytest.mark.spark

logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)

# Half hours, changes at midnight, a day that was left out, summer time that is negative or ended, seconds, fixed ones.
ODD = [
    "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Europe/Dublin",
    "Africa/Casablanca", "Asia/Gaza", "Africa/Monrovia", "America/St_Johns", "Asia/Tehran", "Europe/Amsterdam",
    "Antarctica/Troll", "Asia/Kolkata", "Asia/Tokyo", "UTC", "+05:30", "-11:00", "GMT+3", "America/Havana",
    "Asia/Beirut", "Africa/Cairo", "America/Asuncion", "Chile/Continental", "Atlantic/Azores",
]  # fmt: skip
# All 600 zones take some minutes.
ZONES = None if os.environ.get("TIDEGATE_ALL_ZONES") else ODD
FIRST_S, LAST_S = -62_000_000_000, 253_000_000_000


@pytest.fixture
def utc(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def names(spark: SparkSession) -> list[str]:
    return ZONES or [str(name) for name in spark._jvm.java.time.ZoneId.getAvailableZoneIds()]  # type: ignore[union-attr]


def telling_seconds(name: str) -> list[int]:
    """Around its changes, also as they are written locally, and anywhere."""
    choose = random.Random(name)
    rules = zone_rules(name)
    changes = [instant for instant, _ in rules.changes[:20] + rules.changes[-40:]]
    offsets = {rules.first_offset_s, *(offset for _, offset in rules.changes)}
    near = [change + step for change in changes for step in (-1, 0, 1, *offsets, *(each - 1 for each in offsets))]
    far = [choose.randrange(1_700_000_000, LAST_S) for _ in range(40)] + [FIRST_S, LAST_S]
    yearly = [int(instant) for instant in zone(rules)._instants[::37]]
    return sorted(set(choose.sample(near, min(200, len(near))) + far + yearly))


def test_local_times_and_instants_are_javas(spark: SparkSession, utc: None, tmp_path: Path) -> None:
    seconds = {name: telling_seconds(name) for name in names(spark)}
    columns = [
        pa.array([name for name, times in seconds.items() for _ in times]),
        pa.array([each * 1_000_000 for times in seconds.values() for each in times], pa.timestamp("us", "UTC")),
    ]
    pq.write_table(pa.Table.from_arrays(columns, names=["zone", "ts"]), tmp_path / "rows.parquet")
    rows = spark.read.parquet(str(tmp_path))
    wanted = rows.selectExpr(
        "zone",
        "unix_seconds(ts) s",
        "unix_seconds(from_utc_timestamp(ts, zone)) local",
        "unix_seconds(to_utc_timestamp(ts, zone)) instant",
    ).toArrow()
    for name, times in seconds.items():
        expected = wanted.filter(pc.equal(wanted["zone"], name))
        rules, stamps = zone(zone_rules(name)), np.array(times, np.int64)
        assert expected["s"].to_pylist() == times
        assert dict(zip(times, rules.to_local(stamps).tolist(), strict=True)) == dict(
            zip(times, expected["local"].to_pylist(), strict=True)
        ), name
        assert dict(zip(times, rules.to_instant(stamps).tolist(), strict=True)) == dict(
            zip(times, expected["instant"].to_pylist(), strict=True)
        ), name


@pytest.mark.parametrize("name", ["America/Sao_Paulo", "Pacific/Apia", "America/Havana", "Asia/Beirut", "Asia/Gaza"])
def test_days_start_as_in_java_where_midnight_is_left_out(spark: SparkSession, utc: None, name: str) -> None:
    days = sorted({(instant + hour) // S_PER_DAY for instant, _ in zone_rules(name).changes for hour in (0, 40_000)})
    jvm = spark._jvm
    assert jvm is not None
    java_zone = jvm.java.time.ZoneId.of(name)
    expected = [jvm.java.time.LocalDate.ofEpochDay(day).atStartOfDay(java_zone).toEpochSecond() for day in days]
    assert dict(zip(days, zone(zone_rules(name)).day_start(np.array(days)).tolist(), strict=True)) == dict(
        zip(days, expected, strict=True)
    )


def test_a_year_of_the_next_cycle_has_the_changes_of_this_one(spark: SparkSession) -> None:
    berlin = Zone(zone_rules("Europe/Berlin"))
    summer_s, cycle_s = 1_720_000_000, 146_097 * S_PER_DAY
    assert berlin.offset_at(np.array([summer_s, summer_s + 700 * cycle_s])).tolist() == [7200, 7200]
    assert berlin.offset_at(np.array([summer_s + S_PER_DAY * 180 + 20 * cycle_s])).tolist() == [3600]


def test_an_unknown_zone_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC"))}), tmp_path / "rows.parquet")
    rows = spark.readStream.schema("ts TIMESTAMP").parquet(str(tmp_path))
    with pytest.raises(UnsupportedPlan, match="no time zone 'Mars/Olympus'"):
        read_plan(rows.selectExpr("from_utc_timestamp(ts, 'Mars/Olympus') AS x"))


@pytest.mark.parametrize("function", ["date_format(ts, 'yyyy')", "unix_timestamp(cast(ts as date), 'yyyy')"])
def test_an_older_formatter_is_refused(spark: SparkSession, tmp_path: Path, function: str) -> None:
    pq.write_table(pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC"))}), tmp_path / "rows.parquet")
    rows = spark.readStream.schema("ts TIMESTAMP").parquet(str(tmp_path))
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        with pytest.raises(UnsupportedPlan, match="timeParserPolicy=LEGACY"):
            read_plan(rows.selectExpr(f"{function} AS x"))
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
