"""Expressions of every family over generated rows: the kernels give what Spark gives, raise where it raises, or refuse.

For each generated table one Spark query evaluates all expressions that the kernels run, each on the rows where they do
not raise; if Spark raises there, or gives anything else, the test fails. Of the rows where they do raise, some are
given to Spark one by one. TIDEGATE_EXPRESSION_EXAMPLES=50 generates more tables.
"""

import datetime
import logging
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.expression_families import FIXED_WHEN_PLANNED, FLAT, NESTED, WINDOWS
from tests.spark.kernel_answers import run
from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan import kernels
from tidegate.plan.expressions import Expression
from tidegate.plan.nodes import Node
from tidegate.spark import catalyst
from tidegate.spark.catalyst import read_plan
from tidegate.spark.catalyst_expressions import read_expression
from tidegate.spark.catalyst_trees import plan_tree

pytestmark = pytest.mark.spark

# PySpark logs every error that a test provokes, with the JVM's stack.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)

EXAMPLES = int(os.environ.get("TIDEGATE_EXPRESSION_EXAMPLES", "2"))
ROWS = 32
# How many of the rows that a kernel raises on are given to Spark, for each table: each is a query of its own.
RAISING_ROWS_ASKED = 8
# Support must not get lost: raise these when more is supported.
LEAST_SUPPORTED = {"flat": 445, "nested": 78}
SUPPORTED_WINDOWS = frozenset(WINDOWS[:2])
FAMILIES = {"flat": FLAT, "nested": NESTED}


@dataclass(frozen=True)
class Session:
    ansi: bool
    zone: str


SESSIONS = [Session(True, "America/Los_Angeles"), Session(False, "Australia/Lord_Howe")]

# -- rows: for each column some values that are drawn and all those that are known to matter


def instants(*texts: str) -> list[datetime.datetime]:
    return [datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) for text in texts]


# Around changes of summer time in Los Angeles, Berlin and Lord Howe (half an hour), and of local mean time.
CHANGES = instants(
    "2024-03-10T09:59:59.999999", "2024-03-10T10:00:00", "2024-11-03T08:30:00", "2024-11-03T09:30:00.5",
    "2024-03-31T01:00:00", "2024-10-27T00:30:00", "2024-10-27T01:30:00", "2024-04-06T15:15:00", "2024-10-05T15:30:00",
    "1883-11-18T20:07:02", "1969-12-31T23:59:59.5", "1970-01-01T00:00:00", "2024-02-29T12:00:00", "2037-12-31T23:59:59",
    "2500-07-01T12:00:00", "0001-01-03T00:00:00", "9999-12-29T23:59:59.999999", "1582-10-10T01:02:03.000001",
)  # fmt: skip
TIMES = st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29))
DATES = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29),
         datetime.date(2024, 12, 30), datetime.date(1969, 12, 31), datetime.date(2021, 1, 3)]  # fmt: skip
WORDS = ["", "a", "abc", "aBc", "é", "\U0001f30aß", "a_c", "b\n", "x" * 33, "ǅ", "İ", "ab1"]
NUMERALS = [
    "1",
    " 2 ",
    "-3",
    "+4",
    "1.9",
    ".",
    "9223372036854775808",
    "true",
    "no",
    "1e3",
    "NaN",
    "Infinity",
    "0x1",
    "007",
]
TIME_TEXTS = [
    "2024-03-10 02:30:00", "2024-11-03 01:30:00", "2024-02-30", "2023-02-28", "2024-1-1", "1/2/2024", "0000-01-01",
    "2024-03-10T02:30", "+12345-01-01", "-0001-01-01", "-0000-01-01", "20240310", "2024-01-01 24:00:00", "2024",
    " 2024-01-01 ", "2024-01-01 00:00:00 ", "1969-12-31 23:59:59", "2024-3-1", "+2024-01-01", "2024-03-10t02:30",
]  # fmt: skip
JSON_TEXTS = ['{"a": 1}', '{"a": "x", "b": [1, 2]}', "{", "[1, 2]", "null", "", '{"a": 1.0}', '{"b": [1]}', " {} "]


def integers(bits: int) -> tuple[st.SearchStrategy[Any], list[Any]]:
    limit = 2 ** (bits - 1)
    known = [0, 1, -1, 2, 3, 5, 7, 12, 23, -7, limit - 1, -limit, limit // 2]
    return st.integers(-limit, limit - 1) | st.integers(-100, 100), known


FLOATS = [0.0, -0.0, 1.5, -2.5, 0.1, math.nan, math.inf, -math.inf, 1e18, -2147483648.9, 1e-320, 123456789.125]
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], list[Any]]] = {
    "l": (pa.int64(), *integers(64)),
    "m": (pa.int64(), *integers(64)),
    "i": (pa.int32(), *integers(32)),
    "j": (pa.int32(), *integers(32)),
    "h": (pa.int16(), *integers(16)),
    "y": (pa.int8(), *integers(8)),
    "d": (pa.float64(), st.floats(), FLOATS),
    "e": (pa.float64(), st.floats(), FLOATS),
    "f": (pa.float32(), st.floats(width=32), [0.0, -0.0, 1.5, math.nan, math.inf, 0.1]),
    "b": (pa.bool_(), st.booleans(), []),
    "c": (pa.bool_(), st.booleans(), []),
    "s": (pa.string(), st.text(max_size=6), NUMERALS),
    "t": (pa.string(), st.text("abcAB12 _-é", max_size=8), WORDS),
    "w": (pa.string(), st.dates().map(str) | st.datetimes().map(lambda time: str(time)[:19]), TIME_TEXTS),
    "long_text": (pa.string(), st.text(min_size=30, max_size=80), ["x" * 31, "y" * 32, "z" * 67]),
    "ts": (pa.timestamp("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=datetime.UTC)), CHANGES),
    "ts2": (pa.timestamp("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=datetime.UTC)), CHANGES),
    "dt": (pa.date32(), st.dates(), DATES),
    "dt2": (pa.date32(), st.dates(), DATES),
    "n": (pa.timestamp("us"), TIMES, [time.replace(tzinfo=None) for time in CHANGES]),
    "n2": (pa.timestamp("us"), TIMES, [time.replace(tzinfo=None) for time in CHANGES]),
    "dec": (pa.decimal128(10, 2), st.decimals(-99999999, 99999999, places=2), [Decimal("0.00"), Decimal("60.00")]),
    "dec2": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4), [Decimal("0.0000"), Decimal("99.9950")]),
    "bin": (pa.binary(), st.binary(max_size=40), [b"", b"\xff\xfe", b"abc"]),
}  # fmt: skip
ENTRIES = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9)).map(lambda each: list(each.items()))
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
NESTED_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], list[Any]]] = {
    **{name: COLUMNS[name] for name in ("l", "t", "ts")},
    "arr": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-3, 3), max_size=4), [[], [1], [None, 3]]),
    "words": (pa.list_(pa.string()), st.lists(st.none() | st.sampled_from(WORDS), max_size=3), [[], [""]]),
    "st": (STRUCT, st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9), "b": st.sampled_from(WORDS)}), []),
    "mp": (pa.map_(pa.string(), pa.int64()), ENTRIES, [[]]),
    "js": (pa.string(), st.text(max_size=5), JSON_TEXTS),
}  # fmt: skip
TABLES = {"flat": COLUMNS, "nested": NESTED_COLUMNS}


@st.composite
def generated_rows(draw: Callable[[st.SearchStrategy[Any]], Any], table: str) -> pa.RecordBatch:
    """Rows in which the known and the drawn values of all columns meet by chance."""
    columns = TABLES[table]
    drawn = {name: draw(st.lists(values, min_size=4, max_size=8)) for name, (_, values, _) in columns.items()}
    choose = random.Random(draw(st.integers(0, 2**32)))
    arrays = [
        pa.array([choose.choice([None, *known, *known, *drawn[name]]) for _ in range(ROWS)], type_)
        for name, (type_, _, known) in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(table))


def schema_of(table: str) -> pa.Schema:
    return pa.schema([(name, type_) for name, (type_, _, _) in TABLES[table].items()])


def stream(spark: SparkSession, folder: Path, table: str) -> None:
    """A streaming read with the table's columns, for the planner's eyes only."""
    empty = folder / "empty"
    empty.mkdir()
    pq.write_table(schema_of(table).empty_table(), empty / "rows.parquet")
    schema = spark.read.parquet(str(empty)).schema
    spark.readStream.schema(schema).parquet(str(empty)).createOrReplaceTempView("stream")


def batch(spark: SparkSession, folder: Path, table: pa.Table) -> None:
    folder.mkdir()
    pq.write_table(table, folder / "rows.parquet")
    spark.read.parquet(str(folder)).createOrReplaceTempView("rows")


# -- both sides


@dataclass(frozen=True)
class Bound:
    """An expression over the columns of a node, which has rows of the table below it."""

    expression: Expression
    child: Node

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        return kernels.compile_expression(self.expression)(run(self.child, rows))


class Judge:
    """Knows, for one session and table, which expressions the kernels run; asks both sides about rows."""

    def __init__(self, spark: SparkSession, folder: Path, table: str) -> None:
        self._spark, self._folder = spark, folder
        self._asked = 0
        self.refused: dict[str, str] = {}
        self._expressions: dict[str, Bound] = {}
        stream(spark, folder, table)
        for family in FAMILIES[table].values():
            self._read(family)

    def _read(self, family: list[str]) -> None:
        """As `read_plan` does, for many columns at once: most of its time is Spark's, for the query."""
        named = ", ".join(f"{expression} AS x{at}" for at, expression in enumerate(family))
        query = self._spark.sql(f"SELECT {named} FROM stream")._jdf.queryExecution()
        project = plan_tree(self._spark._jsparkSession.sessionState().optimizer().execute(query.analyzed()))
        assert project.name == "Project", f"{project.name} in place of a projection of {family}"
        if project.children[0].name == "Project" and len(family) > 1:
            # Catalyst computes what one of them uses twice in a projection below, where it would raise for all.
            for expression in family:
                self._read([expression])
            return
        try:
            child = catalyst._read(project.children[0])
        except UnsupportedPlan as refusal:
            self.refused |= dict.fromkeys(family, str(refusal))
            return
        for expression, tree in zip(family, project.expressions("projectList"), strict=True):
            try:
                self._expressions[expression] = Bound(read_expression(tree, child.scope()), child.node)
            except UnsupportedPlan as refusal:
                self.refused[expression] = str(refusal)

    def supported(self) -> list[str]:
        return list(self._expressions)

    def counts(self, table: str) -> str:
        """How many of each family are refused, and which."""
        lines = []
        for name, family in FAMILIES[table].items():
            refused = [expression for expression in family if expression in self.refused]
            lines.append(f"  {name}: {len(refused)} of {len(family)} refused {', '.join(refused)}\n")
        return "".join(lines)

    def check(self, rows: pa.RecordBatch, choose: random.Random) -> None:
        raising = {expression: self._raising_rows(bound, rows) for expression, bound in self._expressions.items()}
        answers = self._answers_of_spark(rows, raising)
        for at, (expression, bound) in enumerate(self._expressions.items()):
            fine = [row for row in range(ROWS) if row not in raising[expression]]
            actual = bound(rows.take(pa.array(fine, pa.int32())))
            expected = answers.column(at).combine_chunks().take(pa.array(fine, pa.int32()))
            assert nullable(actual.type) == nullable(expected.type), expression
            for row, mine, sparks in zip(fine, printed(actual), printed(expected), strict=True):
                assert mine == sparks, f"{expression} of {inputs(expression, rows, row)}"
        self._check_raising(rows, raising, choose)

    def _raising_rows(self, bound: Bound, rows: pa.RecordBatch) -> list[int]:
        if not raises(bound, rows):
            return []
        return [row for row in range(ROWS) if raises(bound, rows.slice(row, 1))]

    def _answers_of_spark(self, rows: pa.RecordBatch, raising: dict[str, list[int]]) -> pa.Table:
        """One query for all expressions: `ok_7` says for which rows the seventh is to be evaluated."""
        oks = [pa.array([row not in raising[expression] for row in range(ROWS)]) for expression in self._expressions]
        names = [*rows.schema.names, *(f"ok_{at}" for at in range(len(oks)))]
        self._write(pa.Table.from_arrays([*rows.columns, *oks], names=names))
        selected = [f"IF(ok_{at}, {expression}, NULL) AS x{at}" for at, expression in enumerate(self._expressions)]
        try:
            return self._spark.sql(f"SELECT {', '.join(selected)} FROM rows").toArrow()
        except Exception:
            for one, expression in zip(selected, self._expressions, strict=True):
                self._ask_alone(one, expression)
            raise

    def _ask_alone(self, selected: str, expression: str) -> None:
        error = error_of(self._spark, f"SELECT {selected} FROM rows")
        assert error is None, f"Spark raises for {expression} where its kernel does not: {error}"

    def _check_raising(self, rows: pa.RecordBatch, raising: dict[str, list[int]], choose: random.Random) -> None:
        pairs = [(expression, row) for expression, raised in raising.items() for row in raised]
        for expression, row in choose.sample(pairs, min(RAISING_ROWS_ASKED, len(pairs))):
            self._write(pa.Table.from_batches([rows.slice(row, 1)]))
            error = error_of(self._spark, f"SELECT {expression} AS x FROM rows")
            assert error is not None, f"only the kernel raises: {expression} of {inputs(expression, rows, row)}"
            assert not isinstance(error, AnalysisException), expression

    def _write(self, table: pa.Table) -> None:
        self._asked += 1
        batch(self._spark, self._folder / f"rows-{self._asked}", table)


def plan_or_refusal(spark: SparkSession, query: str) -> Node | str:
    try:
        return read_plan(spark.sql(query))
    except UnsupportedPlan as refusal:
        return str(refusal)


def error_of(spark: SparkSession, query: str) -> Exception | None:
    try:
        spark.sql(query).toArrow()
    except Exception as error:
        return error
    return None


def raises(bound: Bound, rows: pa.RecordBatch) -> bool:
    try:
        bound(rows)
    except UserCodeFailure:
        return True
    return False


def printed(column: pa.Array) -> list[str]:
    """Comparable: NaN equals itself and -0.0 differs from 0.0, as the bits do."""
    if pa.types.is_struct(column.type):
        fields = [printed(field) for field in column.flatten()] or [[""] * len(column)]
        return [f"{valid.as_py()}{values}" for valid, *values in zip(column.is_valid(), *fields, strict=True)]
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())  # Spark's strings need not be UTF-8
    # Python's datetime ends at the year 9999; Spark's timestamps do not.
    is_time = pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type)
    plain = column.cast(pa.int64()) if is_time else column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    return [repr(value) for value in plain.to_pylist()]


def nullable(type_: pa.DataType) -> pa.DataType:
    """Spark knows of some elements and fields that they are never null; Tidegate's types do not say so."""
    if pa.types.is_map(type_):
        return pa.map_(nullable(type_.key_type), nullable(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", nullable(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in type_])
    return type_


def inputs(expression: str, rows: pa.RecordBatch, row: int) -> dict[str, Any]:
    names = [name for name in rows.schema.names if re.search(rf"\b{name}\b", expression)]
    return {name: rows.column(name)[row].as_py() for name in names}


# -- the tests


@pytest.fixture(params=SESSIONS, ids=lambda session: f"{'ansi' if session.ansi else 'legacy'}-{session.zone}")
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Session]:
    wanted: Session = request.param
    settings_of = {"spark.sql.ansi.enabled": str(wanted.ansi).lower(), "spark.sql.session.timeZone": wanted.zone}
    before = {name: spark.conf.get(name) for name in settings_of}
    for name, value in settings_of.items():
        spark.conf.set(name, value)
    yield wanted
    for name, value in before.items():
        spark.conf.set(name, value)
    for view in ("stream", "rows"):
        spark.catalog.dropTempView(view)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints past pytest's capture."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)

    return write


@pytest.mark.parametrize("table", TABLES)
def test_every_expression_gives_what_spark_gives_or_is_refused(
    spark: SparkSession, session: Session, table: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    judge = Judge(spark, tmp_path, table)
    say(f"\n{table} in {session}:\n{judge.counts(table)}")

    @settings(
        max_examples=EXAMPLES,
        # Shrinking asks Spark hundreds of times: the message names the expression and the row as it is.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(rows=generated_rows(table), seed=st.integers(0, 2**32))
    def check(rows: pa.RecordBatch, seed: int) -> None:
        judge.check(rows, random.Random(seed))

    if judge.supported():
        check()
    assert len(judge.supported()) >= LEAST_SUPPORTED[table], "what was supported is now refused"


@pytest.mark.parametrize("expression", WINDOWS)
def test_windows_are_what_spark_gives_or_refused(spark: SparkSession, tmp_path: Path, expression: str) -> None:
    stream(spark, tmp_path, "flat")
    plan = plan_or_refusal(spark, f"SELECT {expression} AS x FROM stream")
    if isinstance(plan, str):
        assert expression not in SUPPORTED_WINDOWS, plan
        return
    times = [None, *CHANGES]
    columns = {"ts": times, "n": [time and time.replace(tzinfo=None) for time in times]}
    rows = pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [None] * len(times)), field.type) for field in schema_of("flat")],
        schema=schema_of("flat"),
    )
    batch(spark, tmp_path / "rows", pa.Table.from_batches([rows]))
    expected = spark.sql(f"SELECT {expression} AS x FROM rows").toArrow().column(0).combine_chunks()
    actual = run(plan, rows).column(0)
    assert nullable(actual.type) == nullable(expected.type)
    assert printed(actual) == printed(expected)


@pytest.mark.parametrize("expression", FIXED_WHEN_PLANNED)
def test_what_would_be_fixed_when_planned_is_refused(spark: SparkSession, tmp_path: Path, expression: str) -> None:
    stream(spark, tmp_path, "flat")
    with pytest.raises(UnsupportedPlan, match="would be fixed at the time of planning"):
        read_plan(spark.sql(f"SELECT {expression} AS x FROM stream"))
