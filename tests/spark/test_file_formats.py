"""Files of text: Tidegate's rows are those of Spark's own reader, and Spark reads what the sinks wrote."""

import gzip
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tests.spark.json_texts import texts
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import OptionError, UserError

pytestmark = pytest.mark.spark

SCHEMA = (
    "a long, i int, by byte, s string, d double, f float, b boolean, ts timestamp, dt date, dec decimal(10,2), "
    "_corrupt_record string"
)
WORDS = [
    "1", "-1", "0", "127", "200", "2147483648", "99999999999999999999", "1.0", "1.5", "1e2", "-0", "0.1", "1e400",
    "1.005", "true", "False", "null", "NaN", "Infinity", "-Inf", "x", "2024-01-02", "2024-01-02T03:04:05",
    "2024-01-02 03:04:05.123456", "2024-01-02T03:04:05.1234567Z", "2024-1-2", "2024-02-30", "1,000.5", " 1 ", "",
    "2024-01-02T03:04:05+01:00", "2024-01-02T03:04:05 Europe/Paris", "12345-01-02", "123", "2024-01-02T",
]  # fmt: skip


def run(df: DataFrame, folder: Path, format_: str = "parquet", **options: Any) -> None:
    """Everything that is there, into `folder/out`."""
    writer = tg.writeStream(df).format(format_).option("parallelism", 2).option("checkpointLocation", folder / "chk")
    writer.options(**options).trigger(availableNow=True).start(str(folder / "out")).awaitTermination(90)


def text_of(value: Any) -> str:
    return "nan" if value != value else repr(value)


def rows_of(df: DataFrame) -> Counter[tuple[str, ...]]:
    """Times as numbers: Python has no dates of the year 12345."""
    shown = {"ts": "unix_micros(ts) ts", "dt": "unix_date(dt) dt"}
    selected = df.selectExpr(*(shown.get(name, f"`{name}`") for name in df.columns))
    return Counter(tuple(text_of(value) for value in row) for row in selected.collect())


def json_line(random_: random.Random) -> str:
    quoted = [f'"{word}"' for word in WORDS]
    values = [*WORDS[:15], *quoted, "null", "{}", '[1, {"x":2}]', "'q'", '"\\u00e9\\ud83d\\ude00\\n"', "-INF"]
    names = random_.sample(["a", "i", "by", "s", "d", "f", "b", "ts", "dt", "dec", "other"], random_.randint(0, 5))
    line = "{" + ", ".join(f'"{name}": {random_.choice(values)}' for name in names) + "}"
    return damaged(line, random_)


def csv_line(random_: random.Random) -> str:
    words = [f'"{word}"' if "," in word else word for word in WORDS] + ['"a,b"', '"q""r"', '"e\\"f"', '""', "é"]
    line = ",".join(random_.choice(words) for _ in range(10))
    return damaged(line, random_)


def damaged(line: str, random_: random.Random) -> str:
    at, what = random_.randrange(len(line)), random_.random()
    if what < 0.1:
        return line[:at] + line[at + 1 :]
    if what < 0.2:
        return line[:at]
    return line + random_.choice([" x", ",", " "]) if what < 0.25 else line


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("seed", [1])
def test_json_lines_of_any_kind_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    write_lines(tmp_path / "in" / "a.json", [json_line(random_) for _ in range(600)])
    write_lines(tmp_path / "in" / "b.json.gz", [json_line(random_) for _ in range(50)])
    run(spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")), tmp_path)
    expected = rows_of(spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
    assert sum(expected.values()) > 600, f"seed {seed}"
    assert rows_of(spark.read.schema(SCHEMA).parquet(str(tmp_path / "out"))) == expected, f"seed {seed}"


@pytest.mark.parametrize(("seed", "options"), [(1, {}), (2, {"escape": '"', "nullValue": "x", "header": "true"})])
def test_csv_lines_of_any_kind_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, seed: int, options: dict[str, str]
) -> None:
    random_ = random.Random(seed)
    # A quote behind a quoted word is refused, so lines with one are left out.
    lines = [line for line in (csv_line(random_) for _ in range(600)) if '"\\' not in line and '" x' not in line]
    write_lines(tmp_path / "in" / "a.csv", ["header,line", *lines])
    run(spark.readStream.schema(SCHEMA).options(**options).csv(str(tmp_path / "in")), tmp_path)
    expected = rows_of(spark.read.schema(SCHEMA).options(**options).csv(str(tmp_path / "in")))
    assert sum(expected.values()) > 400, f"seed {seed}"
    assert rows_of(spark.read.schema(SCHEMA).parquet(str(tmp_path / "out"))) == expected, f"seed {seed}"


def test_malformed_records_are_dropped_by_what_the_query_reads(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.csv", ["1,x,1.5", "2,y,bad", "3,z", "bad,u,2.5", "4,v,3.5,more", "5,w,4.5"])
    for number, columns in enumerate((["a", "s", "d"], ["a"], ["s"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = {"schema": "a long, s string, d double", "mode": "DROPMALFORMED"}
        run(spark.readStream.csv(str(tmp_path / "in"), **source).select(*columns), folder)
        expected = rows_of(spark.read.csv(str(tmp_path / "in"), **source).select(*columns))
        assert rows_of(spark.read.parquet(str(folder / "out"))) == expected, columns


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_malformed_records_count_where_the_query_reads_no_column(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    lines = {
        "csv": ["1,x,1.5", "2,y,bad", "", "3,z", "bad,u,2.5", "4,v,3.5,more", "5,w,4.5"],
        "json": ['{"a": 1}', '{"a": "x"}', "", '[{"a": 1}, {"d": "y"}]', '{"a": 1', "{}", '{"s": 1}', "null", "7"],
    }
    write_lines(tmp_path / "in" / "day=1" / f"a.{format_}", lines[format_])
    counts: dict[str, Callable[[DataFrame], DataFrame]] = {
        "all": lambda df: df.groupBy().agg(F.count("*").alias("n")),
        "behind a filter": lambda df: df.where("d is null").groupBy().agg(F.count("*").alias("n")),
        "by folder": lambda df: df.groupBy("day").agg(F.count("*").alias("n")),
    }
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        for name, counted in counts.items():
            path, table = str(tmp_path / "in"), f"counted_{format_}_{mode}_{name.replace(' ', '_')}"
            schema, options = "a long, s string, d double, day int", {"mode": mode}
            stream = spark.readStream.schema(schema).options(**options).format(format_).load(path)
            writer = tg.writeStream(counted(stream)).format("memory").queryName(table).outputMode("complete")
            assert writer.trigger(availableNow=True).start().awaitTermination(60)
            expected = counted(spark.read.schema(schema).options(**options).format(format_).load(path)).collect()
            found = [tuple(row.values()) for row in read_memory_table(table).to_pylist()]
            assert found == [tuple(row) for row in expected], (mode, name)


def test_text_lines_and_partition_folders_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "day=2024-01-02" / "n=1" / "a.txt", ["one", "", "  two ", "é"])
    (tmp_path / "in" / "day=2024-01-03" / "n=__HIVE_DEFAULT_PARTITION__").mkdir(parents=True)
    (tmp_path / "in" / "day=2024-01-03" / "n=__HIVE_DEFAULT_PARTITION__" / "b.txt").write_bytes(b"r\r\nn\rlast")
    schema = "value string, day date, n int"
    run(spark.readStream.schema(schema).text(str(tmp_path / "in")), tmp_path)
    expected = rows_of(spark.read.schema(schema).text(str(tmp_path / "in")).selectExpr("value", "day dt", "n"))
    assert sum(expected.values()) == 7
    assert rows_of(spark.read.parquet(str(tmp_path / "out")).selectExpr("value", "day dt", "n")) == expected


ROWS = [
    (1, "plain", 0.1, 1.5, True, datetime(2024, 1, 2, 3, 4, 5, 123456, UTC), date(2024, 1, 2), Decimal("12.50")),
    (2, 'quote " comma , back \\ slash', float("nan"), 0.0, False, datetime(2024, 1, 2, tzinfo=UTC), None, None),
    (3, "", float("-inf"), 1e20, None, None, date(1900, 2, 28), Decimal("-0.01")),
    (4, None, None, None, None, None, None, None),
    (5, " é 😀 \t end ", 1e-300, 3.25, True, datetime(1969, 12, 31, 23, 59, 59, 1000, UTC), None, Decimal("0")),
    (6, "/=%:#{}^'", -0.0, 16777216.0, None, None, None, None),
]
ROW_SCHEMA = "id long, s string, d double, f float, b boolean, t timestamp, day date, dec decimal(10,2)"


def stream_of_rows(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.createDataFrame(ROWS, ROW_SCHEMA)
    frame.coalesce(1).write.parquet(str(folder))
    return spark.readStream.schema(ROW_SCHEMA).parquet(str(folder))


def plain(frame: DataFrame) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text_of(value) for value in row) for row in frame.collect())


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("json", {}),
        ("json", {"compression": "gzip"}),
        ("csv", {"header": "true"}),
        ("csv", {"escape": '"', "sep": "|", "compression": "bzip2"}),
    ],
)
def test_spark_reads_back_what_the_sinks_wrote(
    spark: SparkSession, tmp_path: Path, format_: str, options: dict[str, str]
) -> None:
    run(stream_of_rows(spark, tmp_path / "in"), tmp_path, format_, **options)
    reader = spark.read.schema(ROW_SCHEMA).options(**{k: v for k, v in options.items() if k != "compression"})
    if format_ == "csv":
        # By default Spark reads an empty string as null; a null word of its own keeps the two apart.
        reader = reader.option("nullValue", "\x02")
    assert plain(reader.format(format_).load(str(tmp_path / "out"))) == plain(spark.createDataFrame(ROWS, ROW_SCHEMA))


@pytest.mark.parametrize("format_", ["parquet", "json", "csv"])
def test_partition_folders_are_named_as_spark_names_them(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    df = stream_of_rows(spark, tmp_path / "in")
    writer = tg.writeStream(df.select("id", "s", "t", "day")).format(format_).option("parallelism", 2)
    writer = writer.option("checkpointLocation", tmp_path / "chk").partitionBy("s", "t", "day")
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(90)
    batch = spark.createDataFrame(ROWS, ROW_SCHEMA).select("id", "s", "t", "day")
    batch.write.format(format_).partitionBy("s", "t", "day").save(str(tmp_path / "spark"))
    assert folders(tmp_path / "out") == folders(tmp_path / "spark")
    schema = "id long, s string, t timestamp, day date"
    read = [spark.read.schema(schema).format(format_).load(str(tmp_path / at)) for at in ("out", "spark")]
    assert plain(read[0]) == plain(read[1])


def folders(root: Path) -> set[str]:
    files = [path for path in root.rglob("part-*") if "_tidegate" not in path.parts]
    return {path.parent.relative_to(root).as_posix() for path in files}


def test_a_resumed_query_goes_on_in_the_middle_of_its_files(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        write_lines(tmp_path / "in" / f"{number}.json", [f'{{"a": {number * 100_000 + i}}}' for i in range(20_000)])
    df = spark.readStream.schema("a long").json(str(tmp_path / "in"))
    writer = tg.writeStream(df).format("json").option("parallelism", 2).option("checkpointLocation", tmp_path / "chk")
    writer = writer.option("checkpoint.interval", "200ms").option("maxRowsPerSecond", 10_000)
    query = writer.start(str(tmp_path / "out"))
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("part-*")):
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.02)
    query.stop()
    some = spark.read.schema("a long").json(str(tmp_path / "out")).count()
    run(df, tmp_path, "json")
    assert 0 < some < 60_000
    assert rows_of(spark.read.schema("a long").json(str(tmp_path / "out"))) == rows_of(
        spark.read.schema("a long").json(str(tmp_path / "in"))
    )


def test_one_reader_feeds_all_slots(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        write_lines(tmp_path / "in" / f"{number}.txt", [f"{number} {i}" for i in range(1000)])
    df = spark.readStream.text(str(tmp_path / "in"))
    run(df, tmp_path, **{"source.parallelism": 1})
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == rows_of(spark.read.text(str(tmp_path / "in")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multiLine": "true"}, "multiLine"),
        ({"encoding": "UTF-16"}, "encoding"),
        ({"dateFormat": "dd/MM/yyyy"}, "dateFormat"),
        ({"mode": "PERMISIVE"}, "mode"),
        ({"comment": "#"}, "comment"),
        ({"sep": "||"}, "sep"),
        ({"ignoreLeadingWhiteSpace": "true"}, "ignoreLeadingWhiteSpace"),
    ],
)
def test_what_would_not_be_sparks_answer_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    (tmp_path / "in").mkdir()
    df = spark.readStream.schema("a long").options(**options).csv(str(tmp_path / "in"))
    with pytest.raises(UserError, match=message):
        run(df, tmp_path, ingest="native")


NESTED = (
    "a STRUCT<a: INT, b: STRING, c: ARRAY<INT>>, b ARRAY<STRUCT<a: INT, t: DATE>>, c MAP<STRING, STRING>, "
    "m STRUCT<x: MAP<STRING, INT>>, e ARRAY<ARRAY<STRING>>, x STRING, _corrupt_record STRING"
)


def test_nested_json_lines_of_any_kind_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    lines = [text for text in texts(7, 600) if text and not {"\n", "\r"} & set(text)]
    write_lines(tmp_path / "in" / "a.json", lines)
    without_maps = "a STRUCT<a: INT, b: STRING>, b ARRAY<STRUCT<a: INT, t: DATE>>, e INT, _corrupt_record STRING"
    for number, schema in enumerate((NESTED, without_maps)):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(spark.readStream.schema(schema).json(str(tmp_path / "in")), folder, ingest="native")
        expected = rows_of(spark.read.schema(schema).json(str(tmp_path / "in")))
        assert sum(expected.values()) > 300
        assert rows_of(spark.read.schema(schema).parquet(str(folder / "out"))) == expected


def test_what_only_sparks_readers_can_do_is_left_to_them(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('[{"a": 1,\n "t": "02/01/2024"},\n {"a": 2}]')
    options = {"multiLine": "true", "dateFormat": "dd/MM/yyyy"}
    df = spark.readStream.schema("a long, t date").options(**options).json(str(tmp_path / "in"))
    tg.writeStream(df).format("noop").explain()
    assert "source-0: Option 'multiLine' of the json source" in capsys.readouterr().out
    run(df, tmp_path)
    expected = [(1, date(2024, 1, 2)), (2, None)]
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == expected


def test_columns_that_a_format_cannot_write_are_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    df = spark.readStream.schema("a binary, d double").parquet(str(tmp_path / "in"))
    with pytest.raises(OptionError, match="json sink does not write column 'a'"):
        run(df, tmp_path, "json")
    with pytest.raises(OptionError, match="partitionBy names 'd', a double"):
        tg.writeStream(df).format("parquet").partitionBy("d").option("checkpointLocation", tmp_path / "chk").start("x")


@pytest.mark.parametrize("is_sensitive", ["true", "false"])
def test_columns_of_parquet_files_are_matched_by_case_as_the_session_says(
    spark: SparkSession, tmp_path: Path, is_sensitive: str
) -> None:
    """Of a session of its own, beside one that says otherwise; a folder names a column as well."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", is_sensitive)
    stored = "named_struct('b', id, 'other', id) AS nested"
    session.range(3).selectExpr("id AS a", "id + 10 AS Name", stored).write.parquet(str(tmp_path / "in" / "K=7"))
    schema = "A long, Name long, nested struct<B: long, other: long>, k long"
    shown = ("A AS first", "Name AS second", "nested.B AS third", "nested.other AS fourth", "k AS fifth")

    run(session.readStream.schema(schema).parquet(str(tmp_path / "in")).selectExpr(*shown), tmp_path, ingest="native")

    expected = plain(session.read.schema(schema).parquet(str(tmp_path / "in")).selectExpr(*shown))
    assert plain(spark.read.parquet(str(tmp_path / "out"))) == expected
    assert (("None", "10", "None", "0", "None") in expected) == (is_sensitive == "true")


def test_columns_that_differ_only_in_case_are_two_where_the_session_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    rows = session.range(3).selectExpr("id AS a", "id + 10 AS A", "named_struct('b', id, 'B', id + 20) AS nested")
    rows.write.parquet(str(tmp_path / "in" / "n=1" / "N=2"))
    schema = "a long, A long, nested struct<b: long, B: long>"
    shown = ("a AS c1", "A AS c2", "nested.b AS c3", "nested.B AS c4", "n AS c5", "N AS c6")

    run(session.readStream.schema(schema).parquet(str(tmp_path / "in")).selectExpr(*shown), tmp_path, ingest="native")

    expected = plain(session.read.schema(schema).parquet(str(tmp_path / "in")).selectExpr(*shown))
    assert ("2", "12", "2", "22", "1", "2") in expected
    assert plain(spark.read.parquet(str(tmp_path / "out"))) == expected


def test_a_pattern_takes_the_files_that_sparks_stream_takes(spark: SparkSession, tmp_path: Path) -> None:
    """Of a folder that fits the pattern Spark does not ask whether its name is hidden, of what is in it it does."""
    for name in ("a.txt", "_b.txt", "plain/c.txt", "plain/_d.txt", "_hidden/e.txt", "_hidden/_f.txt", ".dot/g.txt",
                 "_hidden/below/h.txt", "plain/below/i.txt", "_spark_metadata/0"):  # fmt: skip
        write_lines(tmp_path / "in" / name, [name])
    df = spark.readStream.text(str(tmp_path / "in" / "*"))
    run(df, tmp_path, ingest="native")
    theirs = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "spark chk"))
    theirs.trigger(availableNow=True).start(str(tmp_path / "spark out")).awaitTermination(90)
    expected = plain(spark.read.parquet(str(tmp_path / "spark out")))
    assert set(expected) == {(repr(name),) for name in ("a.txt", "plain/c.txt", "_hidden/e.txt", ".dot/g.txt")}
    assert plain(spark.read.parquet(str(tmp_path / "out"))) == expected
