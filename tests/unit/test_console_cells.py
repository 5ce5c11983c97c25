"""Cells of the console as Spark's `show` spells them: times in the session's zone, doubles and decimals as Java."""

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from tidegate.connectors.console import ConsoleSink, Spelling, render_table
from tidegate.connectors.registry import open_sink
from tidegate.model.ids import Generation
from tidegate.plan import nodes
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.zones import ZoneRules
from tidegate.testing.sink_suite import FIRST, permit, prepare

EAST = Spelling(ZoneRules("+05:30", 19_800))
MOMENT_US = 1_700_000_000_120_000  # 2023-11-14 22:13:20.12 of UTC


def cells(column: pa.Array, spelling: Spelling = EAST) -> list[str]:
    text = render_table(pa.table({"v": column}), truncate=None, spelling=spelling)
    return [line[1:-1].strip() for line in text.splitlines()[3:-1]]


def test_timestamps_are_in_the_zone_of_the_session_also_inside_of_others() -> None:
    instant = pa.timestamp("us", "UTC")
    assert cells(pa.array([MOMENT_US, None, 0], instant)) == ["2023-11-15 03:43:20.12", "NULL", "1970-01-01 05:30:00"]
    assert cells(pa.array([[MOMENT_US, None], None, []], pa.list_(instant))) == [
        "[2023-11-15 03:43:20.12, NULL]",
        "NULL",
        "[]",
    ]
    assert cells(pa.array([{"t": 0, "n": 1}], pa.struct([("t", instant), ("n", pa.int64())]))) == [
        "{1970-01-01 05:30:00, 1}"
    ]
    assert cells(pa.array([[("k", 0)]], pa.map_(pa.string(), instant))) == ["{k -> 1970-01-01 05:30:00}"]


def test_times_without_a_zone_and_dates_stay_as_they_are() -> None:
    assert cells(pa.array([MOMENT_US], pa.timestamp("us"))) == ["2023-11-14 22:13:20.12"]
    assert cells(pa.array([date(2024, 1, 2), None])) == ["2024-01-02", "NULL"]


def test_times_beyond_pythons_years_are_shown() -> None:
    assert cells(pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC"))) == ["+11476-08-15 10:50:00"]


def test_doubles_are_spelled_as_java_spells_them() -> None:
    values = [1.0, 1e20, float("nan"), float("inf"), float("-inf"), 1e-5, 100.5, -0.0, None]
    spelled = ["1.0", "1.0E20", "NaN", "Infinity", "-Infinity", "1.0E-5", "100.5", "-0.0", "NULL"]
    assert cells(pa.array(values, pa.float64())) == spelled
    assert cells(pa.array(values, pa.float32())) == spelled
    assert cells(pa.array([[1e20]], pa.list_(pa.float64()))) == ["[1.0E20]"]


def test_an_older_java_gives_some_doubles_more_digits() -> None:
    assert cells(pa.array([2e23]), Spelling(digits=Digits.EARLIER)) == ["1.9999999999999998E23"]
    assert cells(pa.array([2e23]), Spelling(digits=Digits.SHORTEST)) == ["2.0E23"]


def test_decimals_have_no_exponent() -> None:
    assert cells(pa.array([Decimal("0E-8")], pa.decimal128(18, 8))) == ["0.00000000"]


def test_a_table_without_rows_is_drawn() -> None:
    assert render_table(pa.table({"v": pa.array([], pa.float64())}), truncate=20).count("\n") == 4


def test_the_sink_spells_by_the_options_that_the_start_of_a_query_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    sink = open_sink(nodes.Sink("console", {"truncate": "false", **EAST.options()}, schema))
    assert isinstance(sink, ConsoleSink) and sink.spelling == EAST
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(pa.record_batch([pa.array([MOMENT_US], schema.field(0).type)], schema=schema))
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert "|2023-11-15 03:43:20.12|" in capsys.readouterr().out
