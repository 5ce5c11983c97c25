"""JSON texts without Spark: what is kept of a broken one, and how doubles are printed by each Java."""

from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.json_text import json_lines
from tidegate.plan.parsing.java_doubles import Digits, double_text
from tidegate.plan.parsing.json_cursor import READER_GRAMMAR, JsonCursor, JsonError, Token
from tidegate.plan.parsing.json_rows import record_columns, struct_columns, value_column


def structs(texts: list[str], *fields: tuple[str, pa.DataType]) -> tuple[list[Any], list[bool] | None]:
    columns = struct_columns(pa.schema(fields), zone="UTC", grammar=READER_GRAMMAR, digits=Digits.EARLIER)
    parsed = columns.parse(pa.array(texts, pa.string()))
    return [column.to_pylist() for column in parsed.columns], parsed.bad.to_pylist() if parsed.bad else None


def test_a_value_of_another_type_costs_its_field_alone() -> None:
    columns, bad = structs(['{"a": "x", "b": 2}', '{"a": 1, "b": 2}'], ("a", pa.int32()), ("b", pa.int64()))
    assert columns == [[None, 1], [2, 2]]
    assert bad == [True, False]


def test_nothing_behind_a_value_that_is_no_json_is_read() -> None:
    nested = pa.struct([("x", pa.int32())])
    columns, bad = structs(['{"a": {"x": 1, "y": tru}, "b": 2}'], ("a", nested), ("b", pa.int64()))
    assert columns == [[None], [None]]
    assert bad == [True]


def test_a_broken_string_costs_its_field_if_the_record_goes_on() -> None:
    columns, bad = structs(['{"a": "\\x", "b": 2}', '{"a": "\\x"'], ("a", pa.string()), ("b", pa.int64()))
    assert columns == [[None, None], [None, None]]
    assert bad == [True, True]


def test_what_is_no_string_is_written_anew_where_a_string_is_wanted() -> None:
    texts = [
        '{"a": {"x" : [1.10, 1e2, -0, "é\\u0041😀"]}}',
        '{"a": 2.82879384806159008E17}',
        '{"a": NaN}',
        '{"a": true}',
    ]
    columns, bad = structs(texts, ("a", pa.string()))
    written = ['{"x":[1.1,100.0,0,"éA\\uD83D\\uDE00"]}', "2.82879384806159008E17", '"NaN"', "true"]
    assert columns == [written]
    assert bad is None


def test_times_are_read_at_any_depth_and_a_bad_one_costs_what_it_costs_in_spark() -> None:
    dates = pa.list_(pa.date32())
    texts = ['{"a": ["2024-01-02", null], "b": 1}', '{"a": ["2024-02-30", "x"], "b": 2}', '{"b": 3}']
    columns, bad = structs(texts, ("a", dates), ("b", pa.int32()))
    assert [None if found is None else len(found) for found in columns[0]] == [2, None, None]
    assert columns[1] == [1, 2, 3]
    assert bad == [False, True, False]


def test_an_object_stands_for_an_array_of_one() -> None:
    type_ = pa.list_(pa.struct([("a", pa.int32())]))
    columns = value_column(type_, zone="UTC", grammar=READER_GRAMMAR, digits=Digits.SHORTEST)
    parsed = columns.parse(pa.array(['[{"a":1},{"a":2}]', '{"a":3}', "7"]))
    assert parsed.columns[0].to_pylist() == [[{"a": 1}, {"a": 2}], [{"a": 3}], None]
    assert parsed.bad.to_pylist() == [False, False, True]


def test_a_line_of_a_file_may_be_an_array_of_records() -> None:
    columns = record_columns(pa.schema([("a", pa.map_(pa.string(), pa.int32()))]), zone="UTC")
    parsed = columns.parse(pa.array(['[{"a":{"x":1}},{"a":null}]', '[{"a":{}},null]']))
    assert parsed.columns[0].to_pylist() == [[("x", 1)], None, None]
    assert parsed.bad.to_pylist() == [False, False, True]


@pytest.mark.parametrize("text", ["01", "1.", "-", "tru", '"\\u12"', "{]", '{"a" 1}', "[1,]", '{"a":1', "[1 2]", "'x"])
def test_what_is_no_json_is_an_error(text: str) -> None:
    cursor = JsonCursor(text, READER_GRAMMAR)
    with pytest.raises(JsonError):
        while cursor.next() is not None:
            if cursor.token is Token.STRING:
                cursor.text()


@pytest.mark.parametrize(
    ("value", "earlier", "shortest"),
    [
        (2.0e-3, "0.002", "0.002"), (1e23, "9.999999999999999E22", "1.0E23"),
        (12345678.9, "1.23456789E7", "1.23456789E7"),
        (2.82879384806159e17, "2.82879384806159008E17", "2.82879384806159E17"), (5e-324, "4.9E-324", "4.9E-324"),
        (2.0**-44, "5.6843418860808015E-14", "5.684341886080802E-14"), (-0.0, "-0.0", "-0.0"),
        (100.0, "100.0", "100.0"),
        (3.0617315596860196e25, "3.0617315596860195E25", "3.0617315596860196E25"), (0.1, "0.1", "0.1"),
        (9007199254740993.0, "9.007199254740992E15", "9.007199254740992E15"), (float("-inf"), "-Infinity", "-Infinity"),
    ],
)  # fmt: skip
def test_doubles_are_printed_as_each_java_prints_them(value: float, earlier: str, shortest: str) -> None:
    assert double_text(value, Digits.EARLIER) == earlier
    assert double_text(value, Digits.SHORTEST) == shortest


def test_a_row_of_nulls_is_a_line_of_its_own() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([None, 1]), pa.array([None, "x"])], names=["a", "b"])
    assert json_lines(rows) == b'{}\n{"a":1,"b":"x"}\n'
