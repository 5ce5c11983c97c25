"""Where event time begins: the watermark by the rows seen, and what a restore makes of it."""

import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import Damaged, UnsupportedPlan
from tidegate.operators.build import build_operator
from tidegate.operators.watermark import WatermarkOperator
from tidegate.plan.physical import WatermarkSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection
from tidegate.testing.state_suite import restored_from

NOT_NEEDED: Any = None


def schema_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("k", pa.int64()), ("ts", kind)])


MICROSECONDS = schema_of(pa.timestamp("us", "UTC"))


def opened(
    *, delay_ms: int = 0, schema: pa.Schema = MICROSECONDS, restored: Sequence[RestoredSection] = ()
) -> WatermarkOperator:
    operator = build_operator(WatermarkSpec(1, delay_ms, schema))
    assert isinstance(operator, WatermarkOperator)
    operator.open(NOT_NEEDED, restored)
    return operator


def rows(ticks: Sequence[int | None], schema: pa.Schema = MICROSECONDS) -> pa.RecordBatch:
    columns = [pa.array(range(len(ticks)), pa.int64()), pa.array(ticks, pa.int64()).cast(schema.field(1).type)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def seen(operator: WatermarkOperator, batch: pa.RecordBatch) -> int:
    """The watermark behind the operator once it has seen the rows, which must pass unchanged."""
    out: list[pa.RecordBatch] = []
    operator.process(batch, out.append)
    assert out == [batch]
    return operator.watermark_behind(MIN_WATERMARK_MS)


def test_there_is_no_event_time_before_the_first_row() -> None:
    operator = opened(delay_ms=10_000)
    assert operator.watermark_behind(MIN_WATERMARK_MS) == MIN_WATERMARK_MS
    assert seen(operator, rows([])) == MIN_WATERMARK_MS
    assert seen(operator, rows([None, None])) == MIN_WATERMARK_MS


def test_the_watermark_follows_the_largest_event_time_by_the_delay_and_never_goes_back() -> None:
    operator = opened(delay_ms=10)
    assert seen(operator, rows([50_000, 70_999, 60_000])) == 60
    assert seen(operator, rows([20_000])) == 60
    assert seen(operator, rows([71_000])) == 61


def test_nulls_are_passed_over_whatever_lies_under_them() -> None:
    validity = pa.py_buffer(bytes([0b101]))
    values = pa.py_buffer(b"".join(tick.to_bytes(8, "little") for tick in (5_000, 999_000_000, 7_000)))
    column = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 3, [validity, values])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), column], schema=MICROSECONDS)
    assert seen(opened(), batch) == 7


def test_only_the_rows_of_a_slice_count() -> None:
    assert seen(opened(), rows([9_000, 1_000, 2_000, 8_000]).slice(1, 2)) == 2


@pytest.mark.parametrize(
    ("unit", "tick", "expected_ms"), [("ms", 5, 5), ("us", 5_999, 5), ("us", -1, -1), ("ms", -7, -7)]
)
def test_event_time_is_counted_in_whole_milliseconds(unit: str, tick: int, expected_ms: int) -> None:
    schema = schema_of(pa.timestamp(unit))
    assert seen(opened(schema=schema), rows([tick], schema)) == expected_ms


def test_the_watermark_at_the_input_is_replaced_except_for_the_last_one() -> None:
    operator = opened()
    seen(operator, rows([5_000]))
    assert operator.watermark_behind(1_000_000) == 5
    assert operator.watermark_behind(MAX_WATERMARK_MS) == MAX_WATERMARK_MS


def test_no_row_looks_like_the_end_of_event_time() -> None:
    schema = schema_of(pa.timestamp("ms"))
    assert seen(opened(schema=schema), rows([MAX_WATERMARK_MS], schema)) == MAX_WATERMARK_MS - 1


def test_it_has_nothing_to_fire() -> None:
    operator = opened()
    operator.on_watermark(5)
    assert operator.fire(10, lambda batch: None) is False
    assert operator.next_timer_ms() is None


def test_a_restored_operator_goes_on_from_its_own_event_time() -> None:
    first = opened(delay_ms=10)
    seen(first, rows([50_000]))
    (section,) = first.snapshot()
    seen(first, rows([99_000]))
    assert section.redistribution is Redistribution.UNION
    restored = opened(delay_ms=10, restored=restored_from([section]))
    assert restored.watermark_behind(MIN_WATERMARK_MS) == 40
    assert seen(restored, rows([45_000])) == 40


def test_of_several_old_subtasks_the_one_furthest_behind_counts() -> None:
    sections = []
    for tick in ([50_000], [30_000], [40_000]):
        old = opened()
        seen(old, rows(tick))
        sections += old.snapshot()
    assert opened(restored=restored_from(sections)).watermark_behind(MIN_WATERMARK_MS) == 30
    sections += opened().snapshot()  # One that had no row yet.
    assert opened(restored=restored_from(sections)).watermark_behind(MIN_WATERMARK_MS) == MIN_WATERMARK_MS


def test_a_section_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(Damaged, match="watermark"):
        opened(restored=[RestoredSection("watermark", None, memoryview(b"\xa1x"))])


@pytest.mark.parametrize("kind", [pa.int64(), pa.date32(), pa.timestamp("s")])
def test_a_column_that_is_no_timestamp_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedPlan, match="'ts'.*timestamp"):
        build_operator(WatermarkSpec(1, 0, schema_of(kind)))


def test_rows_are_read_without_pandas() -> None:
    program = """
import sys
import pyarrow as pa
from tidegate.operators.watermark import WatermarkOperator
from tidegate.plan.physical import WatermarkSpec
kind = pa.timestamp("us")
column = pa.Array.from_buffers(kind, 2, [pa.py_buffer(bytes([1])), pa.py_buffer(bytes(16))])
schema = pa.schema([("ts", kind)])
operator = WatermarkOperator(WatermarkSpec(0, 0, schema))
operator.process(pa.RecordBatch.from_arrays([column], schema=schema), lambda batch: None)
assert operator.watermark_behind(0) == 0
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_event_times_of_python_are_the_same_instants() -> None:
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int64()), pa.array([at], pa.timestamp("us", "UTC"))], schema=MICROSECONDS
    )
    assert seen(opened(), batch) == int(at.timestamp() * 1000)


def test_a_run_that_goes_on_after_a_restore_ends_where_the_furthest_old_subtask_was() -> None:
    sections = []
    for tick in ([50_000], [30_000]):
        old = opened(delay_ms=10)
        seen(old, rows(tick))
        sections += old.snapshot()
    restored = opened(delay_ms=10, restored=restored_from(sections))
    assert seen(restored, rows([45_000])) == 35, "while it runs, its own rows count"
    (section,) = restored.snapshot()
    restored.end_of_input(lambda batch: None)
    assert restored.watermark_behind(MIN_WATERMARK_MS) == 40
    once_more = opened(delay_ms=10, restored=restored_from([section]))
    once_more.end_of_input(lambda batch: None)
    assert once_more.watermark_behind(MIN_WATERMARK_MS) == 40, "a second fall forgets nothing"
