"""Keys that are arrays, or long strings, count with what a step stores or emits, as long values do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.test_windows_of_groups import MS, WINDOW
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import parts
from tidegate.operators.build import build_operator
from tidegate.operators.contract import Operator, TaskContext
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction, EventTime, EventTimeKey, OutputMode
from tidegate.plan.physical import AggregateSpec, DeduplicateSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import HeapBackends

ALL = KeyGroupRange(0, 128)
ARRAY = pa.list_(pa.int64())
PART_BYTES = 50_000
ELEMENTS, ROWS, SESSIONS_EACH = 100, 300, 3


def spec_of(name: str, key: pa.DataType) -> AggregateSpec | DeduplicateSpec:
    """Of rows (key, window)."""
    rows = pa.schema([("k", key), ("w", WINDOW)])
    if name == "deduplication":
        return DeduplicateSpec(1, None, None, rows)
    event_time = EventTime(1, EventTimeKey.SESSION if name == "sessions" else EventTimeKey.WINDOW)
    schema = pa.schema([("k", key), ("w", WINDOW), ("n", pa.int64())])
    results = tuple(Column(at, field.name, field.type) for at, field in enumerate(schema))
    count = AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), True)
    return AggregateSpec(2, (count,), results, rows, schema, OutputMode.APPEND, event_time)


def opened(
    spec: AggregateSpec | DeduplicateSpec,
    open_rows: Callable[[], Any] | None = None,
    restored: Sequence[RestoredSection] = (),
) -> Operator:
    operator, none = build_operator(spec), None
    context = TaskContext(TaskId(VertexId(1), 0), 1, 128, ALL, ManualClock(), none, none)  # type: ignore[arg-type]
    operator.open(context if open_rows is None else replace(context, open_rows=open_rows), restored)
    return operator


def key_of(kind: pa.DataType, number: int) -> Any:
    return [number] * ELEMENTS if pa.types.is_list(kind) else f"{number:08d}" * ELEMENTS


def fill(operator: Operator, spec: AggregateSpec | DeduplicateSpec) -> None:
    """With many keys, or with several sessions of each."""
    rows = spec.schema if isinstance(spec, DeduplicateSpec) else spec.input_schema
    kind = rows.field("k").type
    has_sessions = isinstance(spec, AggregateSpec) and spec.event_time == EventTime(1, EventTimeKey.SESSION)
    numbers = [at // SESSIONS_EACH if has_sessions else at for at in range(ROWS)]
    starts = [20 * (at % SESSIONS_EACH) if has_sessions else 0 for at in range(ROWS)]
    for start in range(0, ROWS, 50):
        part = slice(start, start + 50)
        keys = pa.array([key_of(kind, number) for number in numbers[part]], kind)
        windows = pa.array([{"start": at * MS, "end": (at + 10) * MS} for at in starts[part]], WINDOW)
        operator.process(pa.RecordBatch.from_arrays([keys, windows], schema=rows), lambda rows: None)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch]:
    """What is encoded in one go, each time."""
    monkeypatch.setattr(parts, "PART_BYTES", PART_BYTES)
    batches: list[pa.RecordBatch] = []
    encode = RowFormat.encoded

    def noted(self: RowFormat, rows: pa.RecordBatch, *args: Any) -> Any:
        batches.append(rows)
        return encode(self, rows, *args)

    monkeypatch.setattr(RowFormat, "encoded", noted)
    return batches


def check_parts(batches: Sequence[pa.RecordBatch]) -> None:
    """All rows are in them; each has about as much as a step may take, and none is small."""
    assert sum(rows.num_rows for rows in batches) == ROWS
    assert 4 <= len(batches) <= 10
    # A row has some bytes beside its key.
    assert max(rows.nbytes for rows in batches) <= 1.2 * PART_BYTES


OPERATORS = ["groups", "sessions", "deduplication"]
KINDS = pytest.mark.parametrize("kind", [ARRAY, pa.string()], ids=str)


@KINDS
@pytest.mark.parametrize("name", OPERATORS)
def test_a_snapshot_is_encoded_by_the_bytes_of_keys_too(
    name: str, kind: pa.DataType, encoded: list[pa.RecordBatch]
) -> None:
    spec = spec_of(name, kind)
    operator = opened(spec)
    fill(operator, spec)
    assert len(restored_from(operator.snapshot())) == len(encoded)
    check_parts(encoded)


@KINDS
@pytest.mark.parametrize("name", OPERATORS)
def test_what_changed_is_encoded_by_the_bytes_of_keys_too(
    name: str, kind: pa.DataType, encoded: list[pa.RecordBatch], tmp_path: Path
) -> None:
    spec, backends = spec_of(name, kind), HeapBackends(tmp_path, rows_whole_up_to_bytes=0)
    operator = opened(spec, lambda: backends.open_rows(ALL))
    fill(operator, spec)
    sections = operator.snapshot()
    for section in sections:
        assert section.steps is not None, "it is in a log"
        for _ in section.steps():
            pass
    backends.close()
    check_parts(encoded)


@KINDS
@pytest.mark.parametrize("name", ["groups", "sessions"])
def test_groups_with_long_keys_end_a_few_at_a_time(
    name: str, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART_BYTES)
    spec, out = spec_of(name, kind), list[pa.RecordBatch]()
    operator = opened(spec)
    fill(operator, spec)
    operator.on_watermark(1_000)
    while operator.fire(1, out.append):
        pass
    check_parts(out)
