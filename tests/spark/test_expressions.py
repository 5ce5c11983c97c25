"""Every expression gives what Spark gives, or is refused: never a different answer."""

import datetime
import logging
import math
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.kernel_answers import by_kernels, by_spark, differences, offer, printed, run
from tidegate.model.errors import UnsupportedPlan
from tidegate.spark.catalyst import read_plan

pytestmark = pytest.mark.spark

# PySpark logs every error that a test provokes, with the JVM's stack.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)

NAN, INF = math.nan, math.inf
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

SCHEMA = pa.schema(
    [
        ("l", pa.int64()),
        ("m", pa.int64()),
        ("i", pa.int32()),
        ("j", pa.int32()),
        ("h", pa.int16()),
        ("y", pa.int8()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("s", pa.string()),
        ("t", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("dt", pa.date32()),
        ("n", pa.timestamp("us")),
        ("dec", pa.decimal128(10, 2)),
    ]
)


def instant(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


CALM = {
    "l": [1, None, 7, -7, 0, 12, -3, 5],
    "m": [2, 3, None, 3, 5, -4, -2, 5],
    "i": [1, 2, None, -4, 0, 100, 7, -8],
    "j": [3, None, 2, -3, 6, 7, 8, 1],
    "h": [1, -2, 3, None, 0, 50, 6, 7],
    "y": [1, -2, 3, None, 0, 5, 6, 7],
    "d": [1.5, -2.5, None, 0.25, 0.0, 100.75, 3.0, -3.9],
    "e": [2.0, None, 1.0, -0.5, 4.0, 3.0, 3.0, 1.1],
    "f": [1.5, -2.5, None, 0.1, 0.0, 9.75, 3.0, -3.9],
    "b": [True, False, None, True, False, None, True, False],
    "c": [True, None, None, False, True, False, None, False],
    "s": ["1", " 2 ", None, "-3", "+4", "007", "5", "0"],
    "t": ["true", "f", None, "NO", " yes ", "0", "1", "T"],
    "ts": [instant("2020-01-01"), None, *[instant("1969-12-31T23:59:59.5")] * 6],
    "dt": [datetime.date(2020, 1, 1), None, *[datetime.date(1960, 2, 29)] * 6],
    "n": [datetime.datetime(2020, 1, 1, 12), None, *[datetime.datetime(1969, 12, 31, 23)] * 6],
    "dec": [Decimal("1.50"), None, *[Decimal("-2.25")] * 6],
}
EXTREMES = {
    "l": [LONG_MAX, LONG_MIN, LONG_MIN, None, 0, 2**31, 2**53 + 1, -129, 3],
    "m": [0, -1, 1, 0, None, LONG_MAX, LONG_MIN, 2, 3],
    "i": [INT_MAX, INT_MIN, INT_MIN, None, 0, 128, -32769, 1, 3],
    "j": [1, -1, 0, 0, None, INT_MAX, INT_MIN, 7, None],
    "h": [32767, -32768, -1, None, 0, 300, 128, 2, None],
    "y": [127, -128, -1, None, 0, 100, -100, 2, None],
    "d": [NAN, INF, -INF, -0.0, 0.0, None, 1e300, -2147483648.9, NAN],
    "e": [NAN, 0.0, -0.0, 0.0, -0.0, 1.0, NAN, None, 1.5],
    "f": [NAN, INF, -INF, -0.0, 0.0, None, 3.4e38, 2147483648.0, 1.0],
    "b": [True, True, True, False, False, False, None, None, None],
    "c": [True, False, None, True, False, None, True, None, False],
    "s": [
        "9223372036854775808",
        "abc",
        "",
        "1.9",
        ".",
        " \t12\n",
        "+",
        "99999999999999999999999999999999999999999",
        "-0",
    ],
    "t": ["maybe", "", "é", "\U0001f30aß", "aBc", None, "abc", "a", "y"],
    "ts": [instant("0001-01-01"), instant("9999-12-31T23:59:59.999999"), None, *[instant("1970-01-01")] * 6],
    "dt": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None, *[datetime.date(1970, 1, 1)] * 6],
    "n": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), None, *[datetime.datetime(1970, 1, 1)] * 6],
    "dec": [Decimal("99999999.99"), Decimal("-99999999.99"), None, *[Decimal("0.00")] * 6],
}
TABLES = {
    name: pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )
    for name, columns in (("calm", CALM), ("extremes", EXTREMES))
}  # fmt: skip

SUPPORTED = [
    "l + m", "l - m", "l * m", "i + j", "i - j", "i * j", "h + h", "h * h", "y + y", "y - cast(1 as byte)", "y * y",
    "d + e", "d - e", "d * e", "f + f", "f * f", "d / e", "l / m", "f / f", "i div j", "l div m", "l div 7", "l div -1",
    "l % m", "l % 10", "l % -1", "i % j", "h % y", "y % y", "d % e", "f % f", "d % 2.5D", "l % 0", "l / 0",
    "pmod(l, m)", "pmod(l, -3)", "pmod(i, j)", "pmod(y, y)", "pmod(y, cast(-128 as byte))", "pmod(d, e)", "pmod(f, f)",
    "-l", "-i", "-h", "-y", "-d", "-f", "abs(l)", "abs(i)", "abs(y)", "abs(d)", "+l",
    "l & m", "i | j", "l ^ m", "~i",
    "l = m", "d = e", "f = f", "s = t", "b = c", "ts = timestamp'1970-01-01 00:00:00'", "dt = date'1970-01-01'",
    "n = timestamp_ntz'1970-01-01 00:00:00'", "dec = cast(1.5 as decimal(10,2))",
    "l <=> m", "d <=> e", "s <=> t", "b <=> c", "l <=> null",
    "l < m", "l <= m", "l > m", "l >= m", "d < e", "d <= e", "d > e", "d >= e", "f > 0", "s < t", "b < c", "ts > dt",
    "d = double('nan')", "d < double('nan')", "d >= double('nan')", "l <> m", "d <> e", "dec < 2.00", "i = l", "h < d",
    "b and c", "b or c", "not b", "b and l > 0", "b is null or not c", "not (b and c)",
    "l is null", "l is not null", "isnan(d)", "nanvl(d, e)",
    "l in (1, 7, 12)", "l in (1, null, 12)", "l not in (1, 7)", "s in ('1', 'abc')", "d in (0.0D, double('nan'), 1.5D)",
    "l in (m, i, 5)",
    "l in (1,2,3,4,5,6,7,8,9,10,11,12,13)", "s in ('1','b','c','d','e','f','g','h','i','j','k','abc')",
    "l in (1,2,3,4,5,6,7,8,9,10,11,12,null)", "ts in (timestamp'1970-01-01 00:00:00')", "null in (l)",
    "coalesce(l, m, 0)", "coalesce(s, t)", "coalesce(l, 10 / m)", "nvl(d, -1.0D)", "nullif(l, m)", "ifnull(b, c)",
    "if(l > 0, m, i)", "if(b, d, e)", "if(m <> 0, l div m, 0)", "if(m is null or m = 0, -1, l % m)",
    "case when b then l when c then m else 0 end", "case when l > 5 then 'big' when l < 0 then 'small' end",
    "case when m = 0 then 0 when m > 0 then l div m else i end", "case when m <> 0 then l / m end",
    "m <> 0 and l div m > 1", "m = 0 or l % m = 1", "m <> 0 and (m = 1 or l div m > 1)", "l is null or l + 1 > 0",
    "l in (m, l + 1)", "coalesce(if(m = 0, null, l div m), -1)", "(l + 1) / m", "m + (l + 1)", "m = l + 1",
    "cast(l as int)", "cast(l as short)", "cast(l as byte)", "cast(i as long)", "cast(y as int)", "cast(i as byte)",
    "cast(l as double)", "cast(l as float)", "cast(i as float)", "cast(d as float)", "cast(f as double)",
    "cast(d as long)", "cast(d as int)", "cast(d as short)", "cast(d as byte)", "cast(f as int)", "cast(f as long)",
    "cast(f as byte)", "cast(b as int)", "cast(b as double)", "cast(b as string)", "cast(l as boolean)",
    "cast(d as boolean)", "cast(l as string)", "cast(y as string)", "cast(s as int)", "cast(s as long)",
    "cast(s as byte)", "cast(s as boolean)", "cast(t as boolean)", "cast(t as int)", "cast(ts as long)",
    "cast(l as timestamp)", "cast(i as timestamp)", "cast(ts as date)", "cast(dt as timestamp)",
    "cast(ts as timestamp_ntz)", "cast(n as timestamp)", "cast(n as date)", "cast(dt as timestamp_ntz)",
    "cast(l as decimal(20,0))", "cast(i as decimal(12,2))", "cast(dec as decimal(12,4))", "cast(s as binary)",
    "greatest(l, m)", "least(i, j)", "greatest(l, 3, m)",
    "s || t", "concat(s, '-', t)", "length(t)", "t like 'a%'", "t like '%c'", "t like '%b%'", "startswith(t, '')",
    "contains(t, '')", "contains(t, 'ß')",
    "1", "'x'", "cast(null as int)", "1.5D", "float('nan')", "timestamp'2020-01-01 10:00:00.123456'", "1.25",
    "date'2020-02-29'", "X'00FF'", "true", "-0.0D", "l", "s", "dec", "n",
    "timestamp_ntz'1960-01-01 10:00:00'", "timestamp'0001-01-01 00:00:00'", "date'0001-01-01'", "'ünïcode \\' \" x'",
]  # fmt: skip

FILTERS = [
    "l > 0", "b", "not b", "b and c", "b or c", "l is not null and m <> 0 and l div m > 0", "m <> 0 and l % m = 0",
    "l in (1, 7)", "d > e", "isnan(d) or d > 1", "s is not null and cast(i as string) <> s", "l > 0 or m > 0",
    "coalesce(l, m) > 0", "(l > 0 or null) and i < 100", "c and if(m = 0, true, l / m > 0)",
    "b is not null and cast(l as string) is not null", "l div m > 0 and m <> 0",
]  # fmt: skip

REFUSED = {
    "rand()": "Rand",
    "cast(d as timestamp)": "Cast",
    "collate(t, 'UTF8_LCASE') = 'a'": "Collat",
    "concat(s, cast(l + 1 as string))": "Concat",
    "t like s": "Like",
    "null": "void",
    "make_interval(1)": "interval",
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("expressions")
    for name, rows in TABLES.items():
        offer(spark, root / name, name, rows)


@pytest.mark.parametrize("table", TABLES)
def test_an_expression_gives_what_spark_gives(spark: SparkSession, tables: None, mode: str, table: str) -> None:
    assert differences(spark, SUPPORTED, table, TABLES[table]) == {}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_keeps_what_spark_keeps(
    spark: SparkSession, tables: None, mode: str, condition: str, table: str
) -> None:
    expected = by_spark(spark, f"SELECT * FROM {table} WHERE {condition}")
    actual = by_kernels(spark, f"SELECT * FROM stream_{table} WHERE {condition}", TABLES[table])
    assert printed(actual) == printed(expected)


@pytest.mark.parametrize(("expression", "named"), REFUSED.items())
def test_what_has_no_kernel_is_refused_by_name(spark: SparkSession, tables: None, expression: str, named: str) -> None:
    with pytest.raises(UnsupportedPlan, match=re.escape(named)):
        read_plan(spark.sql(f"SELECT {expression} AS x FROM stream_calm"))


@pytest.mark.parametrize("how", ["any", "all"])
def test_dropna_counts_nan_as_missing(spark: SparkSession, tables: None, how: str) -> None:
    subset = ["l", "d", "s"]
    expected = spark.table("extremes").dropna(how, subset=subset).toArrow()
    plan = read_plan(spark.table("stream_extremes").dropna(how, subset=subset))
    assert printed(pa.Table.from_batches([run(plan, TABLES["extremes"])])) == printed(expected)
