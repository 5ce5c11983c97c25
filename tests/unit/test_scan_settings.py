"""Which columns a source of files is told to read: those that Spark would read, also if that is none."""

import pyarrow as pa

from tidegate.plan.expressions import Call, Column, Expression, Literal
from tidegate.plan.nodes import Aggregate, AggregateCall, AggregateFunction, Filter, Node, Project, Scan
from tidegate.plan.scan_settings import NO_COLUMN, READ_COLUMNS, with_scan_settings

INT64, BOOL = pa.int64(), pa.bool_()
SCHEMA = pa.schema([("a", INT64), ("b", INT64), ("c", INT64)])
A, B, C = (Column(at, field.name, INT64) for at, field in enumerate(SCHEMA))
SCAN = Scan("csv", {"path": "in"}, SCHEMA)


def read_columns(root: Node) -> str | None:
    found: object = with_scan_settings(root, checkpoint_interval_ms=10.0, max_rows_per_s=None)
    while not isinstance(found, Scan):
        assert isinstance(found, Project | Filter | Aggregate)
        found = found.child
    return found.options.get(READ_COLUMNS)


def is_positive(column: Column) -> Expression:
    return Call("GreaterThan", (column, Literal(0, INT64)), BOOL, True)


def aggregate(child: Node, *calls: AggregateCall, keys: tuple[Expression, ...] = ()) -> Aggregate:
    # Positions in the row of keys and calls, not in the scan.
    fields = pa.schema([(f"r{at}", INT64) for at in range(len(keys) + len(calls))])
    results = tuple(Column(at, field.name, INT64) for at, field in enumerate(fields))
    return Aggregate(child, keys, calls, results, fields)


COUNT = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, True)


def test_rows_that_are_only_counted_need_no_column() -> None:
    assert read_columns(aggregate(SCAN, COUNT)) == NO_COLUMN


def test_a_filter_before_the_count_needs_its_own_column() -> None:
    assert read_columns(aggregate(Filter(SCAN, is_positive(B), SCHEMA), COUNT)) == "b"


def test_an_aggregation_needs_its_keys_and_what_its_calls_are_of() -> None:
    total = AggregateCall(AggregateFunction.SUM, (C,), INT64, True)
    assert read_columns(aggregate(SCAN, total, keys=(A,))) == "a\0c"
    some = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, True, condition=is_positive(B))
    assert read_columns(aggregate(SCAN, some)) == "b"


def test_distinct_values_are_those_of_the_rows_and_arguments_those_of_the_values() -> None:
    distinct = AggregateCall(AggregateFunction.SUM, (Column(0, "first", INT64),), INT64, True, distinct=(C,))
    assert read_columns(aggregate(SCAN, distinct)) == "c"


def test_a_source_whose_columns_are_all_used_is_told_nothing() -> None:
    assert read_columns(SCAN) is None
    assert read_columns(aggregate(SCAN, COUNT, keys=(A, B, C))) is None


def test_a_projection_says_what_is_read_whatever_stands_above_it() -> None:
    projected = Project(SCAN, (B, C), pa.schema([("b", INT64), ("c", INT64)]))
    assert read_columns(aggregate(projected, COUNT)) == "b\0c"
