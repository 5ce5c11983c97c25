import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import Damaged, IncompatibleCheckpoint, TidegateError, UnsupportedPlan
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import aggregate, columnar, stored_rows
from tidegate.operators.aggregate import AggregateOperator
from tidegate.operators.build import build_operator
from tidegate.operators.changed_groups import EMIT_INTERVAL_MS
from tidegate.operators.columnar import KeyIndex
from tidegate.operators.contract import TaskContext
from tidegate.plan.expressions import Call, Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction, GroupRows
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

INT64_MAX = 2**63 - 1
ALL = KeyGroupRange(0, 128)


def spec_of(keys: list[pa.DataType], value: pa.DataType = pa.int64(), *, ansi: bool = True) -> AggregateSpec:  # noqa: B008
    """Keys, then one value column; count(*), count(value), sum(value)."""
    argument = Column(len(keys), "v", value)
    total = pa.float64() if pa.types.is_floating(value) else pa.int64()
    calls = (
        AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), ansi),
        AggregateCall(AggregateFunction.COUNT, (argument,), pa.int64(), ansi),
        AggregateCall(AggregateFunction.SUM, (argument,), total, ansi),
    )
    names = [f"k{index}" for index in range(len(keys))]
    kinds = [*keys, pa.int64(), pa.int64(), total]
    schema = pa.schema(list(zip([*names, "rows", "values", "total"], kinds, strict=True)))
    results = tuple(Column(index, field.name, field.type) for index, field in enumerate(schema))
    return AggregateSpec(len(keys), calls, results, pa.schema([*zip(names, keys, strict=True), ("v", value)]), schema)


class Harness:
    def __init__(
        self, spec: AggregateSpec, restored: list[RestoredSection] | None = None, key_groups: KeyGroupRange = ALL
    ) -> None:
        self.clock = ManualClock()
        self.spec = spec
        operator = build_operator(spec)
        assert isinstance(operator, AggregateOperator)
        self.operator = operator
        self.out: list[pa.RecordBatch] = []
        none: Any = None
        self.operator.open(
            TaskContext(TaskId(VertexId(1), 0), 1, 128, key_groups, self.clock, none, none), restored or []
        )

    def process(self, *columns: list[Any]) -> None:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.spec.input_schema, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(arrays, schema=self.spec.input_schema), self.out.append)

    def flushed(self) -> list[tuple[Any, ...]]:
        """What the barrier brings out, by row."""
        self.out.clear()
        self.operator.before_barrier(self.out.append)
        return [tuple(row.values()) for batch in self.out for row in batch.to_pylist()]

    def give(self, max_rows: int = 1 << 16) -> int:
        """A step's part of what is due to be shown."""
        return self.operator.give(max_rows, self.out.append)

    def emitted_rows(self) -> int:
        return sum(batch.num_rows for batch in self.out)


def test_counts_and_sums_per_key() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a", "b", "a"], [1, 2, 3])
    harness.process(["b", "c"], [10, 20])
    assert sorted(harness.flushed()) == [("a", 2, 2, 4), ("b", 2, 2, 12), ("c", 1, 1, 20)]


def test_only_changed_groups_are_emitted_again() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a", "b"], [1, 2])
    harness.flushed()
    harness.process(["b"], [5])
    assert harness.flushed() == [("b", 2, 2, 7)]
    assert harness.flushed() == []


def test_nulls_are_counted_as_rows_but_not_as_values_and_a_sum_of_nulls_is_null() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a", "a", "b"], [None, 4, None])
    assert sorted(harness.flushed()) == [("a", 2, 1, 4), ("b", 1, 0, None)]
    harness.process(["b"], [0])
    assert harness.flushed() == [("b", 2, 1, 0)]


def test_null_is_a_group_of_its_own() -> None:
    harness = Harness(spec_of([pa.int64(), pa.string()]))
    harness.process([None, None, 0, None], ["", None, "", None], [1, 2, 3, 4])
    found = sorted(harness.flushed(), key=str)
    assert found == sorted([(None, "", 1, 1, 1), (None, None, 2, 2, 6), (0, "", 1, 1, 3)], key=str)
    harness.process([None], [None], [10])
    assert harness.flushed() == [(None, None, 3, 3, 16)]


def test_nan_is_one_group_and_minus_zero_is_zero() -> None:
    for kind in (pa.float64(), pa.float32()):
        harness = Harness(spec_of([kind]))
        harness.process([math.nan, 0.0, -math.nan, -0.0], [1, 2, 3, 4])
        (first, second) = sorted(harness.flushed(), key=lambda row: math.isnan(row[0]))
        assert first[1:] == (2, 2, 6)
        assert math.copysign(1, first[0]) == 1
        assert math.isnan(second[0])
        assert second[1:] == (2, 2, 4)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int32(), [1, -1, None]),
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "x", None, "a string longer than a word"]),
        (pa.binary(), [b"", b"\x00", None]),
        (pa.date32(), [dt.date(2024, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
        (pa.decimal128(38, 2), [Decimal("1.00"), Decimal(f"{10**30}.01"), Decimal("-1.00"), None]),
    ],
)
def test_keys_of_every_type_come_back_as_they_were_also_from_a_snapshot(kind: pa.DataType, keys: list[Any]) -> None:
    harness = Harness(spec_of([kind]))
    harness.process(keys * 2, [1] * len(keys) * 2)
    found = harness.flushed()
    assert {row[0] for row in found} == set(keys)
    assert {row[1] for row in found} == {2}
    restored = Harness(harness.spec, restored_from(harness.operator.snapshot()))
    restored.process(keys, [1] * len(keys))
    assert {(row[0], row[1], row[3]) for row in restored.flushed()} == {(key, 3, 3) for key in keys}


def test_a_dictionary_column_groups_as_its_values() -> None:
    spec = spec_of([pa.dictionary(pa.int32(), pa.string())])
    plain = AggregateSpec(1, spec.calls, (Column(0, "k0", pa.string()), *spec.results[1:]), spec.input_schema,
                          spec.schema.set(0, pa.field("k0", pa.string())))  # fmt: skip
    harness = Harness(plain)
    for values in (["a", "b"], ["b", "a", "a"]):
        column = pa.array(values).dictionary_encode()
        rows = pa.RecordBatch.from_arrays([column, pa.array([1] * len(values))], schema=spec.input_schema)
        harness.operator.process(rows, harness.out.append)
    assert sorted(harness.flushed()) == [("a", 3, 3, 3), ("b", 2, 2, 2)]


def test_without_keys_everything_is_one_group() -> None:
    harness = Harness(spec_of([]))
    harness.process([1, 2])
    harness.process([3])
    assert harness.flushed() == [(3, 3, 6)]


def test_sums_of_large_integers_are_exact() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process([1, 1, 1, 2], [2**53 + 1, 1, 1, -(2**63)])
    assert sorted(harness.flushed()) == [(1, 3, 3, 2**53 + 3), (2, 1, 1, -(2**63))]


def test_a_sum_may_pass_the_edge_within_a_slice_if_it_ends_inside() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process([1] * 4, [INT64_MAX, 1, -1, -5])
    harness.process([1, 2], [5, 7])
    assert sorted(harness.flushed()) == [(1, 5, 5, INT64_MAX), (2, 1, 1, 7)]


@pytest.mark.parametrize("values", [[INT64_MAX, 1], [-(2**63), -1], [2**62] * 3])
@pytest.mark.parametrize("slices", [1, 2])
def test_an_overflow_raises_with_ansi_and_wraps_without(values: list[int], slices: int) -> None:
    def run(spec: AggregateSpec) -> list[tuple[Any, ...]]:
        harness = Harness(spec)
        for part in [values] if slices == 1 else [[value] for value in values]:
            harness.process([1] * len(part), part)
        return harness.flushed()

    with pytest.raises(TidegateError, match="ARITHMETIC_OVERFLOW"):
        run(spec_of([pa.int64()], ansi=True))
    wrapped = (sum(values) + 2**63) % 2**64 - 2**63
    assert run(spec_of([pa.int64()], ansi=False)) == [(1, len(values), len(values), wrapped)]


def test_an_overflow_is_found_among_many_untouched_groups() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process(list(range(1000)), [INT64_MAX - 1] * 1000)
    harness.process([7], [1])
    with pytest.raises(TidegateError, match="ARITHMETIC_OVERFLOW"):
        harness.process([7], [1])


def test_narrow_integers_and_floats_are_summed_in_the_wide_type() -> None:
    narrow = Harness(spec_of([pa.int64()], pa.int8()))
    narrow.process([1] * 3, [127, 127, 127])
    assert narrow.flushed() == [(1, 3, 3, 381)]
    floats = Harness(spec_of([pa.int64()], pa.float32()))
    floats.process([1] * 2, [0.5, 2.0])
    assert floats.flushed() == [(1, 2, 2, 2.5)]


def test_an_extreme_of_a_type_that_has_no_order_here_is_refused() -> None:
    pairs = pa.struct([("a", pa.int64())])
    call = AggregateCall(AggregateFunction.MAX, (Column(0, "v", pairs),), pairs, True)
    schema = pa.schema([("v", pairs)])
    with pytest.raises(UnsupportedPlan, match="max over struct"):
        AggregateOperator(AggregateSpec(0, (call,), (), schema, schema))


def test_arguments_and_results_are_expressions() -> None:
    value = Column(1, "v", pa.int64())
    doubled = Call("Add", (value, value), pa.int64(), True)
    call = AggregateCall(AggregateFunction.SUM, (doubled,), pa.int64(), True)
    result = Call("Add", (Column(0, "k", pa.int64()), Column(1, "sum", pa.int64())), pa.int64(), True)
    spec = AggregateSpec(
        1, (call,), (result,), pa.schema([("k", pa.int64()), ("v", pa.int64())]), pa.schema([("r", pa.int64())])
    )
    harness = Harness(spec)
    harness.process([100, 100], [1, 2])
    assert harness.flushed() == [(106,)]


def test_output_is_gathered_for_a_while_but_not_held_longer() -> None:
    harness = Harness(spec_of([pa.int64()]))
    assert harness.operator.next_deadline_ms() is None
    harness.process([1], [1])
    harness.clock.advance_to(99)
    harness.process([1], [1])
    assert harness.give() == 0
    assert harness.operator.next_deadline_ms() == 100
    harness.clock.advance_to(100)
    assert harness.operator.holds_rows()
    assert harness.operator.next_deadline_ms() is None, "it is due"
    assert harness.give() == 1
    assert not harness.operator.holds_rows()
    harness.clock.advance_to(199)
    harness.process([1], [1])
    assert harness.give() == 0
    harness.clock.advance_to(200)
    harness.process([1], [1])
    assert harness.give() == 1
    assert [batch.column("rows").to_pylist() for batch in harness.out] == [[2], [4]]


def test_a_step_brings_out_a_part_of_what_changed() -> None:
    harness = Harness(spec_of([pa.int64()]))
    count = 20_000
    harness.process(list(range(count)), [1] * count)
    assert harness.emitted_rows() == 0
    harness.clock.advance(EMIT_INTERVAL_MS)
    sizes = []
    while harness.operator.holds_rows():
        sizes.append(harness.give(100))
    assert set(sizes) == {100}
    assert harness.emitted_rows() == count


def test_a_sink_without_order_gets_each_group_once_per_epoch() -> None:
    harness = Harness(replace(spec_of([pa.string()]), group_rows=GroupRows.ONCE_PER_EPOCH))
    for value in range(3):
        harness.clock.advance(10 * EMIT_INTERVAL_MS)
        harness.process(["a"], [value])
    assert harness.operator.next_deadline_ms() is None
    assert harness.give() == 0
    assert harness.flushed() == [("a", 3, 3, 3)]


def test_the_end_of_input_brings_everything_out() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process([1], [1])
    harness.operator.end_of_input(harness.out.append)
    assert harness.operator.holds_rows()
    assert harness.give() == 1
    assert not harness.operator.holds_rows()


def test_what_was_emitted_does_not_change_afterwards() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a"], [1])
    harness.flushed()
    (emitted,) = harness.out
    harness.process(["a", "b"], [5, 6])
    assert emitted.to_pylist() == [{"k0": "a", "rows": 1, "values": 1, "total": 1}]


def test_large_output_is_emitted_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "EMIT_BATCH_ROWS", 1024)
    harness = Harness(spec_of([pa.int64()]))
    harness.process(list(range(2500)), [1] * 2500)
    harness.flushed()
    assert max(batch.num_rows for batch in harness.out) == 1024
    assert harness.emitted_rows() == 2500


def test_a_snapshot_holds_the_moment_it_was_taken() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a", "b"], [1, None])
    harness.flushed()
    sections = harness.operator.snapshot()
    # First in the arrays that the snapshot saw, then past their end.
    harness.process(["a", "b"], [50, 50])
    harness.process(["a", "b", *(f"new-{number}" for number in range(5000))], [100] * 5002)
    restored = Harness(harness.spec, restored_from(sections))
    assert restored.flushed() == []
    restored.process(["a", "b", "c"], [1, None, 1])
    assert sorted(restored.flushed()) == [("a", 2, 2, 2), ("b", 2, 0, None), ("c", 1, 1, 1)]


def test_a_restored_sum_still_overflows() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process([1], [INT64_MAX])
    restored = Harness(harness.spec, restored_from(harness.operator.snapshot()))
    with pytest.raises(TidegateError, match="ARITHMETIC_OVERFLOW"):
        restored.process([1], [1])


def test_an_empty_state_restores_as_an_empty_state() -> None:
    harness = Harness(spec_of([pa.string()]))
    restored = Harness(harness.spec, restored_from(harness.operator.snapshot()))
    restored.process(["a"], [1])
    assert restored.flushed() == [("a", 1, 1, 1)]


def test_each_new_range_takes_its_keys_from_all_old_ranges() -> None:
    keys = list(range(500))
    spec = spec_of([pa.int64()])
    stored: list[RestoredSection] = []
    for old in (KeyGroupRange(0, 64), KeyGroupRange(64, 128)):
        whole = Harness(spec)
        whole.process(keys, keys)
        part = Harness(spec, restored_from(whole.operator.snapshot()), old)
        stored += restored_from(part.operator.snapshot())
    assert [section.name for section in stored] == ["aggregate", "aggregate"]
    found: list[int] = []
    for new in (KeyGroupRange(0, 43), KeyGroupRange(43, 86), KeyGroupRange(86, 128)):
        part = Harness(spec, stored, new)
        held = restored_from(part.operator.snapshot())
        table = pa.ipc.open_stream(held[0].data).read_all()
        assert set(table.column("key_group").to_pylist()) <= set(range(*new))
        found += table.column("key_0").to_pylist()
        assert table.column("call_2_0").to_pylist() == table.column("key_0").to_pylist()
    assert sorted(found) == keys


def test_a_large_state_is_cut_into_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 100)
    harness = Harness(spec_of([pa.string()]))
    keys = [f"key-{number}" for number in range(250)]
    harness.process([*keys, None], [1] * 251)
    sections = harness.operator.snapshot()
    assert [(section.name, section.key_groups) for section in sections] == [("aggregate", ALL)] * 3
    restored = Harness(harness.spec, restored_from(sections))
    restored.process([*keys, None], [1] * 251)
    assert {row[1] for row in restored.flushed()} == {2}


def test_a_checkpoint_of_another_aggregation_is_refused() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a"], [1])
    with pytest.raises(IncompatibleCheckpoint, match=r"key_0 string.*key_0 int64"):
        Harness(spec_of([pa.int64()]), restored_from(harness.operator.snapshot()))


def test_a_truncated_section_is_damage() -> None:
    harness = Harness(spec_of([pa.string()]))
    harness.process(["a"], [1])
    (section,) = restored_from(harness.operator.snapshot())
    for size in (3, len(section.data) // 2, len(section.data) - 40):
        with pytest.raises(Damaged):
            Harness(harness.spec, [RestoredSection("aggregate", ALL, section.data[:size])])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.tuples(st.none() | st.text("ab", max_size=3), st.integers(0, 3)), max_size=60), max_size=6))
def test_slots_are_one_per_distinct_key_whatever_the_slices(slices: list[list[tuple[str | None, int]]]) -> None:
    index = KeyIndex([pa.string(), pa.int32()])
    slot_of: dict[tuple[str | None, int], int] = {}
    for keys in slices:
        rows = pa.RecordBatch.from_arrays(
            [pa.array([key[0] for key in keys], pa.string()), pa.array([key[1] for key in keys], pa.int32())],
            ["a", "b"],
        )
        for key, slot in zip(keys, index.find_or_add(rows).tolist(), strict=True):
            assert slot_of.setdefault(key, slot) == slot
    assert sorted(slot_of.values()) == list(range(index.count))


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_keys_whose_hashes_collide_stay_apart(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    real = columnar.hash_rows
    monkeypatch.setattr(columnar, "hash_rows", lambda rows, count: real(rows, count) & np.uint64((1 << bits) - 1))
    harness = Harness(spec_of([pa.string(), pa.int64()]))
    names = [f"name-{number % 40}" for number in range(400)]
    for _ in range(2):
        harness.process(names, [number % 3 for number in range(400)], [1] * 400)
    found = {(row[0], row[1]): row[2] for row in harness.flushed()}
    expected: dict[tuple[str, int], int] = {}
    for number in range(400):
        key = (names[number], number % 3)
        expected[key] = expected.get(key, 0) + 2
    assert found == expected


def test_a_null_whose_hash_collides_with_a_value_stays_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "hash_rows", lambda rows, count: np.zeros(rows.num_rows, dtype=np.uint64))
    for kind, blank in ((pa.int64(), 0), (pa.string(), "")):
        harness = Harness(spec_of([kind]))
        harness.process([blank, None, blank], [1, 2, 3])
        harness.process([blank], [4])
        harness.process([None], [5])
        assert sorted(harness.flushed(), key=str) == sorted([(blank, 3, 3, 8), (None, 2, 2, 7)], key=str)


def test_the_index_grows_far_past_its_first_size() -> None:
    harness = Harness(spec_of([pa.int64()]))
    rng = np.random.default_rng(7)
    expected: dict[int, int] = {}
    for _ in range(5):
        keys = rng.integers(0, 30_000, 20_000).tolist()
        harness.process(keys, [1] * len(keys))
        for key in keys:
            expected[key] = expected.get(key, 0) + 1
    assert {row[0]: row[1] for row in harness.flushed()} == expected
