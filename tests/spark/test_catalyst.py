"""Plans of every supported shape are read as Spark meant them; everything else is refused by Spark's name for it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from tidegate.model.errors import EnvironmentProblem, OptionError, UnsupportedPlan, UserError
from tidegate.operators.contract import Times
from tidegate.plan.expressions import Call, Cast, Column, Literal
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    Filter,
    MapInArrow,
    Project,
    Scan,
    Sink,
    TransformWithState,
)
from tidegate.spark.catalyst import check_output_mode, read_plan
from tidegate.spark.stateful import output_values
from tidegate.spark.types import to_arrow_schema
from tidegate.spark.user_code import PySparkUserCode

pytestmark = pytest.mark.spark

COLUMNS = "k long, v int, d double, s string, ts timestamp, dec decimal(8,2)"
INT64, FLOAT64 = pa.int64(), pa.float64()
NOW = Times(processing_time_ms=0, watermark_ms=0)


class Counter(StatefulProcessor):
    closed = 0

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        assert timerValues.getCurrentProcessingTimeInMs() == -1
        state = self.count.get()
        n = (state[0] if state else 0) + sum(row.v for row in rows)
        self.count.update((n,))
        yield Row(n=n, k=key[0])

    def close(self) -> None:
        Counter.closed += 1


class EarlyReader(Counter):
    def init(self, handle: Any) -> None:
        handle.getValueState("seen", "n long").get()


class Broken(Counter):
    def init(self, handle: Any) -> None:
        raise ValueError("no license")


def copy_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("in"))


@pytest.fixture
def stream(spark: SparkSession, directory: str) -> DataFrame:
    return spark.readStream.schema(COLUMNS).parquet(directory)


@pytest.fixture
def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", "7").load()


def test_a_rate_source_keeps_its_options_and_columns(rate: DataFrame) -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", INT64)])
    assert read_plan(rate) == Scan("rate", {"rowspersecond": "7"}, schema)


@pytest.mark.parametrize("how", ["parquet", "load", "option", "class"])
def test_a_parquet_directory_has_its_path_however_it_is_given(spark: SparkSession, directory: str, how: str) -> None:
    reader = spark.readStream.schema("k long").option("maxFilesPerTrigger", 3)
    class_name = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
    df = {
        "parquet": lambda: reader.parquet(directory),
        "load": lambda: reader.format("parquet").load(directory),
        "option": lambda: reader.format("PARQUET").option("Path", directory).load(),
        "class": lambda: reader.format(class_name).load(directory),
    }[how]()
    options = {"maxfilespertrigger": "3", "path": directory, "sessiontimezone": "UTC"}
    assert read_plan(df) == Scan("parquet", options, pa.schema([("k", INT64)]))


def test_a_relative_path_becomes_absolute_because_slots_run_elsewhere(spark: SparkSession) -> None:
    # Relative to the JVM's directory, which is where the session was started.
    scan = read_plan(spark.readStream.schema("k long").parquet("."))
    assert isinstance(scan, Scan)
    assert Path(scan.options["path"]).is_absolute()


def test_select_and_where_become_project_and_filter_with_resolved_types(rate: DataFrame) -> None:
    plan = read_plan(rate.where("value > 3").select((F.col("value") % 10).alias("k"), F.col("value").cast("double")))
    value = Column(1, "value", INT64)
    assert isinstance(plan, Project)
    assert plan.schema == pa.schema([("k", INT64), ("value", FLOAT64)])
    assert plan.columns == (
        Call("Remainder", (value, Literal(10, INT64)), INT64, ansi=True),
        Cast(value, FLOAT64, ansi=True, zone="UTC"),
    )
    assert isinstance(plan.child, Filter)
    assert plan.child.condition == Call(
        "And",
        (
            Call("IsNotNull", (value,), pa.bool_(), ansi=False),
            Call("GreaterThan", (value, Literal(3, INT64)), pa.bool_(), ansi=False),
        ),
        pa.bool_(),
        ansi=False,
    )
    assert isinstance(plan.child.child, Scan)


def test_a_condition_that_is_never_true_is_still_a_filter(stream: DataFrame) -> None:
    plan = read_plan(stream.where("false"))
    assert isinstance(plan, Filter)
    assert plan.condition == Literal(False, pa.bool_())


def test_sql_on_a_temp_view_works_too(spark: SparkSession, stream: DataFrame) -> None:
    stream.createOrReplaceTempView("a_stream")
    plan = read_plan(spark.sql("SELECT k + 1 AS x FROM a_stream WHERE s = 'a'"))
    assert isinstance(plan, Project)
    assert plan.schema.names == ["x"]


def test_legacy_arithmetic_is_not_taken_for_ansi(spark: SparkSession, stream: DataFrame) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        plan = read_plan(stream.selectExpr("k + 1 AS x", "-k AS y"))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
    assert isinstance(plan, Project)
    assert [column.ansi for column in plan.columns if isinstance(column, Call)] == [False, False]


def test_map_in_arrow_carries_the_users_function(stream: DataFrame) -> None:
    plan = read_plan(stream.select("k", "v").mapInArrow(copy_rows, "k long, v int"))
    assert isinstance(plan, MapInArrow)
    assert plan.function_name == "copy_rows"
    assert plan.schema == pa.schema([("k", INT64), ("v", pa.int32())])
    assert plan.child.schema == pa.schema([("k", INT64), ("v", pa.int32())])
    rows = pa.RecordBatch.from_pydict({"k": [1], "v": [2]})
    assert list(PySparkUserCode().map_function(plan.function)(iter([rows]))) == [rows]


def test_an_aggregate_separates_keys_calls_and_results(stream: DataFrame) -> None:
    counted = stream.groupBy((F.col("k") % 10).alias("bucket"), "s").agg(
        (F.sum("v") + 1).alias("more"), F.count("*").alias("rows"), F.count("v").alias("some"), F.sum("v").alias("same")
    )
    plan = read_plan(counted)
    assert isinstance(plan, Aggregate)
    assert [key.type for key in plan.keys] == [INT64, pa.string()]
    (total, rows, some) = plan.calls
    assert (total.function, total.type, total.ansi) == (AggregateFunction.SUM, INT64, True)
    assert isinstance(total.arguments[0], Cast)
    assert rows == AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, ansi=False)
    assert some.function is AggregateFunction.COUNT
    assert [getattr(result, "index", None) for result in plan.results] == [0, 1, None, 3, 4, 2]
    assert plan.schema == pa.schema(
        [("bucket", INT64), ("s", pa.string()), ("more", INT64), ("rows", INT64), ("some", INT64), ("same", INT64)]
    )


def test_a_float_key_is_normalised_so_that_zeros_and_nans_group_together(stream: DataFrame) -> None:
    plan = read_plan(stream.groupBy("d").count())
    assert isinstance(plan, Aggregate)
    assert isinstance(plan.keys[0], Call)
    assert plan.keys[0].function == "NormalizeNaNAndZero"


def test_transform_with_state_gets_keys_before_all_columns(stream: DataFrame) -> None:
    closed = Counter.closed
    rows = stream.select("k", "v", "s")
    plan = read_plan(rows.groupBy("s", "k").transformWithState(Counter(), "k string, n long", "Update", "None"))
    assert isinstance(plan, TransformWithState)
    assert plan.key_count == 2
    assert plan.child.schema.names == ["s", "k", "k", "v", "s"]
    assert plan.schema == pa.schema([("k", pa.string()), ("n", INT64)])
    assert Counter.closed == closed + 1, "the trial run of init ends with close, as Spark's does"


def test_the_whole_way_from_a_dataframe_to_vertices(stream: DataFrame) -> None:
    plan = lower(
        read_plan(stream.groupBy("k").agg(F.sum("v"))),
        Sink("noop", {}, pa.schema([])),
        parallelism=2,
        max_parallelism=128,
    )
    assert [vertex.name for vertex in plan.vertices] == [
        "Source[parquet] -> Project -> Project -> PartialAggregate(sum)",
        "Aggregate(sum) -> Sink[noop]",
    ]


REFUSALS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "existence": (
        lambda df: df.where(F.expr("v > 3 or k in (select id from range(3))")),
        "Join of type ExistenceJoin",
    ),
    "limit": (lambda df: df.limit(3), "GlobalLimit"),
    "sort": (lambda df: df.orderBy("k"), "Sort"),
    "sample": (lambda df: df.sample(0.5), "Sample"),
    "json tuple": (lambda df: df.select(F.expr("json_tuple(s, s)")), "field that is not a constant"),
    "cogroup": (
        lambda df: df.groupBy("k").cogroup(df.groupBy("k")).applyInArrow(lambda a, b: a, "k long"),
        "FlatMapCoGroupsInArrow",
    ),
    "map in arrow barrier": (lambda df: df.mapInArrow(copy_rows, "k long", barrier=True), "barrier=True"),
    "median": (lambda df: df.groupBy("k").agg(F.median("v")), "Percentile"),
    "set of doubles": (lambda df: df.groupBy("k").agg(F.collect_set("d")), "collect_set over double"),
    "try_sum": (lambda df: df.groupBy("k").agg(F.expr("try_sum(v)")), "Sum in TRY mode"),
    "current time": (lambda df: df.withColumn("now", F.current_timestamp()), "CurrentTimestamp"),
    "current date": (lambda df: df.where("ts > current_date()"), "CurrentDate"),
    "no columns": (lambda df: df.select(), "Project without columns"),
    "scalar subquery": (lambda df: df.where("k = (SELECT max(id) FROM range(3))"), "ScalarSubquery"),
    "float state key": (
        lambda df: df.groupBy("d").transformWithState(Counter(), "k double, n long", "Update", "None"),
        "floating point",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_tidegate_does_not_run_is_refused_by_sparks_name(stream: DataFrame, case: str) -> None:
    build, named = REFUSALS[case]
    with pytest.raises(UnsupportedPlan, match=re.escape(named)) as refusal:
        read_plan(build(stream))
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("processor", [EarlyReader, Broken])
def test_a_processor_whose_init_fails_is_refused_before_the_job_starts(
    stream: DataFrame, processor: type[Counter]
) -> None:
    df = stream.groupBy("k").transformWithState(processor(), "k long, n long", "Update", "None")
    with pytest.raises(UserError, match=r"no key yet|no license"):
        read_plan(df)


@pytest.mark.parametrize("source", ["orc", "rate-micro-batch"])
def test_other_sources_are_refused_by_format(spark: SparkSession, directory: str, source: str) -> None:
    reader = spark.readStream.format(source).option("rowsPerBatch", "1")
    df = reader.load() if source.startswith("rate") else reader.schema("k long").load(directory)
    with pytest.raises(UnsupportedPlan, match=source):
        read_plan(df)


@pytest.mark.parametrize(
    "column",
    [
        "x array<string collate UTF8_LCASE>",
        "x struct<a: map<int, variant>>",
        "x struct<a: string collate UTF8_LCASE>",
        "x string collate UTF8_LCASE",
    ],
)
def test_a_column_of_another_type_is_refused_by_its_name(spark: SparkSession, directory: str, column: str) -> None:
    with pytest.raises(UnsupportedPlan, match="Column 'x'"):
        read_plan(spark.readStream.schema(f"k long, {column}").parquet(directory).select("k"))


def test_broadcast_variables_beyond_the_limit_are_refused(
    spark: SparkSession, stream: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = spark.sparkContext.broadcast(bytes(2 << 20))

    def lookup(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert table.value
        yield from batches

    mapped = stream.select("k").mapInArrow(lookup, "k long")
    monkeypatch.setattr("tidegate.spark.commands.MAX_BROADCAST_BYTES", 1 << 20)
    with pytest.raises(UnsupportedPlan, match="more than 1 MiB of broadcast variables"):
        read_plan(mapped)


def test_an_initial_state_beyond_the_limit_is_refused(
    spark: SparkSession, stream: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial = spark.range(5).toDF("k").groupBy("k")
    started = stream.groupBy("k").transformWithState(Counter(), "k long, n long", "Update", "None", initial)
    monkeypatch.setattr("tidegate.spark.catalyst_user_code.MAX_INITIAL_STATE_ROWS", 4)
    with pytest.raises(UnsupportedPlan, match="initial state of transformWithState has more than 4 rows"):
        read_plan(started)


def test_a_connect_dataframe_is_refused() -> None:
    class ConnectDataFrame(DataFrame):
        def __new__(cls) -> "ConnectDataFrame":
            return object.__new__(cls)

    with pytest.raises(EnvironmentProblem, match="Connect"):
        read_plan(ConnectDataFrame())


def test_anything_else_is_no_dataframe() -> None:
    with pytest.raises(OptionError, match="not list"):
        read_plan([])  # type: ignore[arg-type]


def test_output_modes_are_judged_by_spark(stream: DataFrame) -> None:
    check_output_mode(stream, "append")
    check_output_mode(stream, "Update")
    check_output_mode(stream.groupBy("k").count(), "update")
    with pytest.raises(UnsupportedPlan, match=re.escape("Use outputMode('update').")):
        check_output_mode(stream.groupBy("k").count(), "append")
    with pytest.raises(UnsupportedPlan, match=r"Sorting is not supported .* Complete output mode\.$"):
        check_output_mode(stream.orderBy("k"), "append")


def test_of_other_output_modes_only_one_that_helps_is_named(stream: DataFrame) -> None:
    with pytest.raises(UnsupportedPlan, match=r"Sorting is not supported .* Use outputMode\('complete'\)\.$"):
        check_output_mode(stream.groupBy("k").count().orderBy("k"), "update")


def test_complete_mode_is_for_aggregations(stream: DataFrame) -> None:
    check_output_mode(stream.groupBy("k").count(), "complete")
    with pytest.raises(UnsupportedPlan, match="output mode: complete"):
        check_output_mode(stream, "complete")


def test_an_unknown_output_mode_is_refused(stream: DataFrame) -> None:
    with pytest.raises(OptionError, match="'upsert'"):
        check_output_mode(stream, "upsert")


class RememberedState:
    """One key's value state, in memory."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, new_value: tuple[Any, ...]) -> None:
        self.value = new_value

    def clear(self) -> None:
        self.value = None


class RememberingHandle:
    """A processor's states, by name, fields and time to live. Time mode None has no timers."""

    def __init__(self) -> None:
        self.opened: dict[tuple[str, tuple[str, ...], int | None], RememberedState] = {}

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> RememberedState:
        return self.opened.setdefault((name, fields, ttl_ms), RememberedState())

    def list_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> Any:
        raise AssertionError(f"a list {name}")

    def map_state(
        self, name: str, key_fields: tuple[str, ...], value_fields: tuple[str, ...], *, ttl_ms: int | None = None
    ) -> Any:
        raise AssertionError(f"a map {name}")

    def delete_if_exists(self, name: str) -> None:
        raise AssertionError(f"no more {name}")

    def register_timer(self, at_ms: int) -> None:
        raise AssertionError(f"a timer at {at_ms}")

    def delete_timer(self, at_ms: int) -> None:
        raise AssertionError(f"a timer at {at_ms}")

    def timers(self) -> list[int]:
        return []


def test_a_processor_gets_rows_and_its_outputs_are_matched_by_name(stream: DataFrame) -> None:
    plan = read_plan(
        stream.select("k", "v").groupBy("k").transformWithState(Counter(), "k long, n long", "Update", "None")
    )
    assert isinstance(plan, TransformWithState)
    handle = RememberingHandle()
    processor = PySparkUserCode().processor(plan.processor, value_names=["k", "v"], output_names=["k", "n"])
    processor.init(handle)
    assert list(handle.opened) == [("count", ("n",), None)]
    assert list(processor.handle_rows((7,), iter([(7, 1), (7, 2)]), NOW)) == [(7, 3)]
    assert list(processor.handle_rows((7,), iter([(7, 4)]), NOW)) == [(7, 7)]
    processor.close()


def test_the_time_that_a_state_lives_reaches_it(stream: DataFrame) -> None:
    class Forgetful(Counter):
        def init(self, handle: Any) -> None:
            handle.getValueState("seen", "n long", ttlDurationMs=5)

    plan = read_plan(stream.groupBy("k").transformWithState(Forgetful(), "k long, n long", "Update", "None"))
    assert isinstance(plan, TransformWithState)
    handle = RememberingHandle()
    PySparkUserCode().processor(plan.processor, value_names=["k", "v"], output_names=["k", "n"]).init(handle)
    assert list(handle.opened) == [("seen", ("n",), 5)]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Row(k=1, n=2), (1, 2)),
        (Row(n=2, k=1), (1, 2)),
        (Row(n=2), (None, 2)),
        (Row(k=1, n=2, more=3), (1, 2)),
        ((1, 2), (1, 2)),
    ],
)
def test_outputs_come_back_in_the_order_of_the_schema(output: Any, expected: tuple[Any, ...]) -> None:
    assert output_values(output, ("k", "n"), called="handleInputRows") == expected


@pytest.mark.parametrize("output", [(1,), (1, 2, 3), 5, None])
def test_an_output_that_is_no_row_is_an_error(output: Any) -> None:
    with pytest.raises(TypeError, match="fields k, n"):
        output_values(output, ("k", "n"), called="handleInputRows")


def test_sparks_schema_types_become_arrow_types() -> None:
    struct = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "a", "type": "decimal(5,1)", "nullable": True, "metadata": {}}]}
    )
    assert to_arrow_schema(struct.jsonValue()) == pa.schema([("a", pa.decimal128(5, 1))])
    nested = {"name": "b", "type": {"type": "array", "elementType": "interval day to second", "containsNull": False}}
    struct_of_array = {"type": "struct", "fields": [{**nested, "nullable": True, "metadata": {}}]}
    assert to_arrow_schema(struct_of_array) == pa.schema([("b", pa.list_(pa.duration("us")))])
    assert to_arrow_schema(struct_of_array).field("b").type.value_field.nullable
    with pytest.raises(UnsupportedPlan, match="type interval"):
        to_arrow_schema({"type": "struct", "fields": [{**nested, "type": "interval", "metadata": {}}]})
