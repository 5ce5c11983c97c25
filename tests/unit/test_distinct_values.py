"""DISTINCT inside aggregate functions: each group counts a row of values once, whatever happens to the groups."""

import math
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.compaction import KeptArrays
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.nodes import AggregateCall, AggregateFunction

GROUPS = 4
Seen: TypeAlias = dict[int, set[tuple[Any, Any]]]

A, B = Column(0, "a", pa.int64()), Column(1, "b", pa.string())
VALUE_A = Column(0, "value_0", pa.int64())
CALLS = (
    AggregateCall(AggregateFunction.COUNT, (VALUE_A,), pa.int64(), ansi=True, distinct=(A,)),
    AggregateCall(AggregateFunction.SUM, (VALUE_A,), pa.int64(), ansi=True, distinct=(A,)),
    AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), ansi=True, distinct=(A, B)),
    AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), ansi=True),
    AggregateCall(
        AggregateFunction.COUNT_ROWS,
        (),
        pa.int64(),
        ansi=True,
        distinct=(B,),
        condition=Call("GreaterThan", (A, Literal(1, pa.int64())), pa.bool_(), ansi=True),
    ),
)

rows = st.tuples(
    st.integers(0, GROUPS - 1), st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.sampled_from("xy"))
)
add = st.lists(rows, min_size=1, max_size=12).map(lambda some: ("add", some))
clear = st.integers(0, GROUPS - 1).map(lambda group: ("clear", group))
merge = st.permutations(range(GROUPS)).map(lambda groups: ("merge", tuple(groups[:2])))
store = st.just(("store", None))


def opened() -> CallStates:
    states = CallStates(CALLS)
    states.grow_to(GROUPS)
    return states


def restored(states: CallStates) -> CallStates:
    """From two sections, as a large state is stored."""
    frozen, copy = states.freeze(), opened()
    for part in (slice(0, 1), slice(1, GROUPS)):
        batch = pa.RecordBatch.from_arrays(frozen(part), schema=pa.schema(states.stored_fields()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        (read,) = list(pa.ipc.open_stream(sink.getvalue()))
        copy.restore(np.arange(part.start, part.stop), read.columns)
    return copy


def add_rows(states: CallStates, some: list[tuple[int, Any, Any]]) -> None:
    groups, a, b = zip(*some, strict=True)
    batch = pa.RecordBatch.from_arrays([pa.array(a, pa.int64()), pa.array(b, pa.string())], names=["a", "b"])
    states.add(batch, np.array(groups, dtype=np.int64))


def expected(model: list[list[tuple[Any, Any]]]) -> list[tuple[Any, ...]]:
    results = []
    for group in model:
        values = {a for a, _ in group if a is not None}
        large = {b for a, b in group if a is not None and a > 1}
        total = sum(values) if values else None
        results.append((len(values), total, len(set(group)), len(group), len(large)))
    return results


def shown(states: CallStates) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in states.results(np.arange(GROUPS))), strict=True))


@settings(max_examples=150)
@given(st.lists(st.one_of(add, add, clear, merge, store), max_size=12))
def test_a_value_counts_once_whatever_is_cleared_merged_and_restored(steps: list[tuple[str, Any]]) -> None:
    states, model = opened(), [[] for _ in range(GROUPS)]  # type: tuple[CallStates, list[list[tuple[Any, Any]]]]
    for step, what in steps:
        match step:
            case "add":
                add_rows(states, what)
                for group, a, b in what:
                    model[group].append((a, b))
            case "clear":
                states.clear(np.array([what]))
                model[what] = []
            case "merge":
                source, target = what
                states.merge(sources=np.array([source]), targets=np.array([target]))
                states.clear(np.array([source]))
                model[target] += model[source]
                model[source] = []
            case _:
                states = restored(states)
    assert shown(states) == expected(model)


def test_groups_that_are_left_keep_what_they_saw() -> None:
    states = opened()
    add_rows(states, [(group, value, "x") for group in range(GROUPS) for value in range(group + 1)])
    kept = KeptArrays(states.arrays(), np.array([3, 1]))
    assert kept.copy_some(1 << 20)
    kept.put_in_place()
    states.keep(np.array([3, 1]))
    states.grow_to(GROUPS)
    add_rows(states, [(0, 2, "x"), (1, 5, "x"), (2, 0, "x")])
    assert [row[0] for row in shown(states)] == [4, 3, 1, 0]


def test_what_was_frozen_does_not_see_what_comes_afterwards() -> None:
    states = opened()
    add_rows(states, [(0, 1, "x")])
    frozen = states.freeze()
    add_rows(states, [(0, 2, "y"), (1, 1, "x")])
    states.clear(np.array([0]))
    names = [field.name for field in states.stored_fields()]
    stored = dict(zip(names, (column.to_pylist() for column in frozen(slice(0, 2))), strict=True))
    assert stored == {
        "call_3_0": [1, 0],
        "distinct_0": [[{"value_0": 1}], []],
        "distinct_1": [[{"value_0": 1, "value_1": "x"}], []],
        "distinct_2": [[], []],
    }


def test_rows_of_cleared_groups_are_let_go() -> None:
    states = opened()
    for start in range(0, 60_000, 10_000):
        add_rows(states, [(0, value, "x") for value in range(start, start + 10_000)])
        states.clear(np.array([0]))
    empty = opened()
    assert states.size_bytes() < empty.size_bytes() + 10_000 * 100


def test_floats_are_equal_as_spark_groups_them() -> None:
    number, value = Column(0, "x", pa.float64()), Column(0, "value_0", pa.float64())
    calls = [
        AggregateCall(AggregateFunction.COUNT, (value,), pa.int64(), ansi=True, distinct=(number,)),
        AggregateCall(AggregateFunction.MIN, (value,), pa.float64(), ansi=True, distinct=(number,)),
    ]
    states = CallStates(calls)
    states.grow_to(1)
    column = pa.array([-0.0, 0.0, math.nan, -math.nan, None, None], pa.float64())
    states.add(pa.RecordBatch.from_arrays([column], names=["x"]), np.zeros(6, dtype=np.int64))
    count, least = (result.to_pylist()[0] for result in states.results(np.array([0])))
    assert count == 2
    assert math.copysign(1, least) == 1, "a distinct zero is a positive one"
