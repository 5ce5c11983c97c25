"""Rows combined before the shuffle: whatever is combined with what, the groups are those of the rows themselves."""

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import partial_aggregate
from tidegate.operators.build import build_operator
from tidegate.operators.contract import Operator, TaskContext
from tidegate.operators.slice_groups import groups_of
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction, EventTime, EventTimeKey, OutputMode
from tidegate.plan.partials import combined
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

INT64_MAX = 2**63 - 1
DECIMAL = pa.decimal128(20, 2)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
F = AggregateFunction
# Sums of these are exact, so that it does not matter in which order they are added.
EXACT = st.sampled_from([0.0, -0.0, 0.5, -1.25, 1e6, math.nan, math.inf, -math.inf])


@pytest.fixture(autouse=True)
def _combines_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregate, "_FEW_ROWS", 1)


class Groups:
    """An aggregation of rows (k, w, c, i, f, d, s), fed with rows, or with what they were combined into."""

    def __init__(
        self,
        rows: pa.Schema,
        calls: Sequence[AggregateCall],
        *,
        key_count: int,
        combines: bool,
        mode: OutputMode = OutputMode.UPDATE,
        event_time: EventTime | None = None,
        restored: Sequence[RestoredSection] = (),
    ) -> None:
        keys = [pa.field(f"key{at}", rows.field(at).type) for at in range(key_count)]
        values = [pa.field(f"value{at}", call.type) for at, call in enumerate(calls)]
        schema = pa.schema([*keys, *values])
        results = tuple(Column(at, field.name, field.type) for at, field in enumerate(schema))
        spec = AggregateSpec(key_count, tuple(calls), results, rows, schema, mode, event_time)
        self.before: Operator | None = None
        if combines:
            is_finite = event_time is not None and mode is not OutputMode.COMPLETE
            parts = combined(calls, rows, key_count=key_count, counts_rows=is_finite)
            assert parts is not None
            self.before = build_operator(parts.spec)
            spec = replace(spec, input_schema=parts.spec.schema, partials=parts.layout)
        self.operator = build_operator(spec)
        none: Any = None
        self.context = TaskContext(TaskId(VertexId(1), 0), 1, 128, KeyGroupRange(0, 128), ManualClock(), none, none)
        self.operator.open(self.context, restored)
        self.travelled: list[pa.RecordBatch] = []
        self.out: list[pa.RecordBatch] = []

    def process(self, rows: pa.RecordBatch) -> None:
        if self.before is None:
            self.operator.process(rows, self.out.append)
            return
        came: list[pa.RecordBatch] = []
        self.before.process(rows, came.append)
        for batch in came:
            batch.validate(full=True)
            self.operator.process(batch, self.out.append)
        self.travelled += came

    def advance(self, watermark_ms: int) -> None:
        self.operator.on_watermark(watermark_ms)
        while self.operator.fire(1, self.out.append):
            pass

    def shown(self) -> list[str]:
        self.operator.before_barrier(self.out.append)
        rows = sorted(repr(tuple(row.values())) for batch in self.out for row in batch.to_pylist())
        self.out.clear()
        return rows

    def stored(self) -> list[RestoredSection]:
        return restored_from(self.operator.snapshot())


ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.float64()),
        ("c", pa.bool_()),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("d", DECIMAL),
        ("s", pa.string()),
        ("h", pa.int32()),
    ]
)


def column(name: str) -> Column:
    at = ROWS.get_field_index(name)
    return Column(at, name, ROWS.field(at).type)


def call(function: F, *names: str, kind: pa.DataType, condition: Column | None = None) -> AggregateCall:
    return AggregateCall(function, tuple(column(name) for name in names), kind, ansi=True, condition=condition)


def every_call(condition: Column | None) -> list[AggregateCall]:
    def made(function: F, *names: str, kind: pa.DataType) -> AggregateCall:
        return call(function, *names, kind=kind, condition=condition)

    calls = [
        made(F.COUNT_ROWS, kind=pa.int64()),
        made(F.COUNT, "i", "s", kind=pa.int64()),
        made(F.SUM, "i", kind=pa.int64()),
        made(F.SUM, "h", kind=pa.int64()),
        made(F.SUM, "f", kind=pa.float64()),
        made(F.SUM, "d", kind=pa.decimal128(30, 2)),
        made(F.AVG, "h", kind=pa.float64()),
        made(F.AVG, "f", kind=pa.float64()),
        made(F.AVG, "d", kind=pa.decimal128(24, 6)),
        made(F.MIN, "f", kind=pa.float64()),
        made(F.MAX, "f", kind=pa.float64()),
        made(F.MIN, "s", kind=pa.string()),
        made(F.MAX, "d", kind=DECIMAL),
        made(F.MIN_BY, "s", "i", kind=pa.string()),
        made(F.MAX_BY, "i", "f", kind=pa.int64()),
        made(F.BIT_AND, "h", kind=pa.int32()),
        made(F.BIT_OR, "i", kind=pa.int64()),
        made(F.BIT_XOR, "i", kind=pa.int64()),
        made(F.FIRST_NON_NULL, "s", kind=pa.string()),
        made(F.LAST_NON_NULL, "i", kind=pa.int64()),
    ]
    if condition is None:
        calls += [made(F.FIRST, "s", kind=pa.string()), made(F.LAST, "f", kind=pa.float64())]
    return calls


ROW = st.tuples(
    st.sampled_from(["", "a", "b", "a longer key", None]),
    st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
    st.sampled_from([True, False, None]),
    st.one_of(st.none(), st.integers(-1000, 1000)),
    st.one_of(st.none(), EXACT),
    st.one_of(st.none(), st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    st.sampled_from(["", "x", "é", "yy", None]),
    st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
)


def batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@given(
    slices=st.lists(st.lists(ROW, max_size=12), max_size=5),
    key_count=st.integers(0, 3),
    condition=st.sampled_from([None, column("c")]),
)
@settings(max_examples=150, deadline=None)
def test_groups_are_the_same_as_of_the_rows_themselves(
    slices: list[list[tuple[Any, ...]]], key_count: int, condition: Column | None
) -> None:
    with_partials, without = (
        Groups(ROWS, every_call(condition), key_count=key_count, combines=combines) for combines in (True, False)
    )
    for rows in slices:
        with_partials.process(batch(rows))
        without.process(batch(rows))
    assert with_partials.shown() == without.shown()


@given(slices=st.lists(st.lists(ROW, max_size=12), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_state_is_the_same_with_and_without_so_that_either_can_restore_it(slices: list[list[tuple[Any, ...]]]) -> None:
    calls = every_call(None)
    first = Groups(ROWS, calls, key_count=1, combines=False)
    for rows in slices[:-1]:
        first.process(batch(rows))
    stored = first.stored()
    first.shown()
    second = Groups(ROWS, calls, key_count=1, combines=True, restored=stored)
    for groups in (first, second):
        groups.process(batch(slices[-1]))
    assert first.shown() == second.shown()


def test_rows_of_a_key_travel_as_one() -> None:
    groups = Groups(ROWS, [call(F.SUM, "i", kind=pa.int64())], key_count=1, combines=True)
    groups.process(batch([(key, 1.0, None, 1, None, None, None, None) for key in "abcab" * 20]))
    (travelled,) = groups.travelled
    assert sorted(map(tuple, (row.values() for row in travelled.to_pylist()))) == [("a", 40), ("b", 40), ("c", 20)]


def test_a_slice_of_a_few_rows_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregate, "_FEW_ROWS", 3)
    groups = Groups(ROWS, [call(F.SUM, "i", kind=pa.int64())], key_count=1, combines=True)
    groups.process(batch([("a", 1.0, None, 1, None, None, None, None)] * 2))
    assert groups.travelled[0].num_rows == 2


INTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def summed(*, ansi: bool, combines: bool) -> Groups:
    calls = [AggregateCall(F.SUM, (Column(1, "v", pa.int64()),), pa.int64(), ansi)]
    return Groups(INTS, calls, key_count=1, combines=combines)


def test_keys_that_seldom_repeat_go_one_by_one_and_combining_is_tried_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = summed(ansi=True, combines=True)
    tried: list[int] = []
    number, looking = 0, partial_aggregate.groups_of

    def noted(*given: Any) -> Any:
        tried.append(number)
        return looking(*given)

    monkeypatch.setattr(partial_aggregate, "groups_of", noted)
    for number in range(300):
        groups.process(batch([(number * 2000 + at, 1) for at in range(2000)], INTS))
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    assert all(travelled.num_rows == 2000 for travelled in groups.travelled)


def test_combining_starts_again_once_keys_repeat() -> None:
    groups = summed(ansi=True, combines=True)
    groups.process(batch([(at, 1) for at in range(2000)], INTS))
    for _ in range(3):
        groups.process(batch([(at % 5, 1) for at in range(2000)], INTS))
    assert [travelled.num_rows for travelled in groups.travelled] == [2000, 2000, 5, 5]


@given(slices=st.lists(st.lists(st.sampled_from([INT64_MAX, -INT64_MAX, 1, -1, 2**62]), max_size=6), max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_sum_of_longs_wraps_or_fails_where_it_does_without(slices: list[list[int]]) -> None:
    def outcome(*, ansi: bool, combines: bool) -> list[str] | str:
        groups = summed(ansi=ansi, combines=combines)
        try:
            for values in slices:
                groups.process(batch([(7, value) for value in values], INTS))
        except UserCodeFailure as error:
            return str(error)
        return groups.shown()

    for ansi in (True, False):
        assert outcome(ansi=ansi, combines=True) == outcome(ansi=ansi, combines=False)


def test_a_slice_whose_own_sum_would_overflow_is_left_to_the_whole_sum() -> None:
    groups = summed(ansi=True, combines=True)
    groups.process(batch([(7, -INT64_MAX)], INTS))
    groups.process(batch([(7, INT64_MAX), (7, 5)], INTS))
    assert groups.shown() == ["(7, 5)"]


TIMED = pa.schema([("w", WINDOW), ("v", pa.int64())])


@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_each_late_row_is_dropped_and_counted_however_it_was_combined(mode: OutputMode) -> None:
    calls = [AggregateCall(F.SUM, (Column(1, "v", pa.int64()),), pa.int64(), True)]
    found = []
    for combines in (True, False):
        groups = Groups(
            TIMED, calls, key_count=1, combines=combines, mode=mode, event_time=EventTime(0, EventTimeKey.WINDOW)
        )
        groups.process(batch([(window(0), 1), (window(10), 2), (window(0), 3)], TIMED))
        groups.advance(10)
        shown = groups.shown()
        groups.process(batch([(window(0), 1)] * 5 + [(window(10), 2)] * 2 + [(None, 4)], TIMED))
        groups.advance(30)
        found.append((shown, groups.shown(), groups.context.late_rows.count))
    assert found[0] == found[1]
    assert found[0][2] == 5


def window(start_ms: int) -> dict[str, int]:
    return {"start": start_ms * 1000, "end": (start_ms + 10) * 1000}


# -- groups within a slice

KEYS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.sampled_from([0, 1, -1, INT64_MAX, -INT64_MAX - 1])),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.sampled_from([0.0, -0.0, math.nan, 1.0])),
    (pa.decimal128(38, 0), st.sampled_from([Decimal(0), Decimal(10) ** 30, -(Decimal(10) ** 30), Decimal(1)])),
    (pa.large_string(), st.sampled_from(["", "a", "b"])),
    (pa.binary(2), st.sampled_from([b"ab", b"cd"])),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a"])),
    (WINDOW, st.sampled_from([{"start": 0, "end": 1}, {"start": 0, "end": 2}, {"start": None, "end": 1}])),
    (pa.null(), st.none()),
]


@given(data=st.data(), row_count=st.integers(1, 30), offset=st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_rows_are_in_one_group_just_if_their_keys_are_equal(data: st.DataObject, row_count: int, offset: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KEYS), max_size=3))
    size = offset + row_count
    values = [data.draw(st.lists(st.one_of(st.none(), drawn), min_size=size, max_size=size)) for _, drawn in kinds]
    columns = [pa.array(column, kind).slice(offset) for column, (kind, _) in zip(values, kinds, strict=True)]
    groups = groups_of(columns, row_count)
    keys = [tuple(_plain(column[offset + at]) for column in values) for at in range(row_count)]
    assert groups.count == len(set(keys))
    row_at = dict(zip(groups.occupied.tolist(), groups.rows.tolist(), strict=True))
    assert [keys[row_at[place]] for place in groups.places.tolist()] == keys
    assert groups.places.max() < groups.place_count


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return str(value) if isinstance(value, dict) else value


def test_a_key_of_many_columns_is_told_apart_by_its_first_too() -> None:
    """Numbered by all columns at once, the first would count in steps of 2 to the 70."""
    low, high = 0, (1 << 14) - 1
    rows = [[low] * 6, [high] * 6, [high, *[low] * 5]]
    assert groups_of([pa.array(column, pa.int64()) for column in zip(*rows, strict=True)], len(rows)).count == 3
