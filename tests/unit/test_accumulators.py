"""Aggregate functions over columns: each equals a plain fold over the rows, through restores, merges and clearings."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.accumulators.build import accumulator_of
from tidegate.operators.accumulators.contract import Accumulator
from tidegate.operators.compaction import KeptArrays
from tidegate.plan.expressions import Call, Column
from tidegate.plan.kernels import compile_expression
from tidegate.plan.nodes import AggregateCall, AggregateFunction

F = AggregateFunction
SLOTS = 7
Fold = Callable[[list[tuple[Any, ...]]], Any]


def call_of(
    function: AggregateFunction, kinds: Sequence[pa.DataType], result: pa.DataType, *, ansi: bool = False
) -> Any:
    return AggregateCall(function, tuple(Column(at, "", kind) for at, kind in enumerate(kinds)), result, ansi)


def valid(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [row[0] for row in rows if row[0] is not None]


def by(best: Callable[..., Any]) -> Fold:
    def fold(rows: list[tuple[Any, ...]]) -> Any:
        ordered = [row for row in rows if row[1] is not None]
        if not ordered:
            return None
        wanted = best(row[1] for row in ordered)
        return [row[0] for row in ordered if row[1] == wanted][-1]

    return fold


def moment(function: Callable[[list[float]], float], least: int) -> Fold:
    return lambda rows: function(valid(rows)) if len(valid(rows)) >= least else None


def skewness(values: list[float]) -> float | None:
    mean = statistics.fmean(values)
    m2 = sum((v - mean) ** 2 for v in values)
    return math.sqrt(len(values)) * sum((v - mean) ** 3 for v in values) / m2**1.5 if m2 else None


def kurtosis(values: list[float]) -> float | None:
    mean = statistics.fmean(values)
    m2 = sum((v - mean) ** 2 for v in values)
    return len(values) * sum((v - mean) ** 4 for v in values) / m2**2 - 3.0 if m2 else None


def folded(operation: Callable[[int, int], int]) -> Fold:
    def fold(rows: list[tuple[Any, ...]]) -> Any:
        values = valid(rows)
        if not values:
            return None
        result = values[0]
        for value in values[1:]:
            result = operation(result, value)
        return result

    return fold


def integer(r: random.Random) -> Any:
    return r.choice([None, r.randrange(-50, 50), r.randrange(-(2**40), 2**40)])


def real(r: random.Random) -> Any:
    return None if r.random() < 0.2 else r.randrange(-800, 800) / 8


def text(r: random.Random) -> Any:
    return r.choice([None, "", "ä", "zebra", f"word {r.randrange(30)}"])


def decimal(r: random.Random) -> Any:
    return r.choice([None, Decimal(r.randrange(-(10**19), 10**19)).scaleb(-2), Decimal("0.01"), Decimal("-0.05")])


INT, D, S, DEC = pa.int64(), pa.float64(), pa.string(), pa.decimal128(20, 2)


def decimal_average(rows: list[tuple[Any, ...]]) -> Any:
    values = valid(rows)
    if not values:
        return None
    unscaled = sum(int(v.scaleb(2)) for v in values) * 10**4
    size, rest = divmod(abs(unscaled), len(values))
    size += 2 * rest >= len(values)
    return Decimal(size if unscaled >= 0 else -size).scaleb(-6)


CASES: dict[str, tuple[AggregateCall, list[Callable[[random.Random], Any]], Fold]] = {
    "count(*)": (call_of(F.COUNT_ROWS, [], INT), [], len),
    "count": (call_of(F.COUNT, [INT], INT), [integer], lambda rows: len(valid(rows))),
    "sum": (call_of(F.SUM, [INT], INT, ansi=True), [integer], lambda rows: sum(valid(rows)) if valid(rows) else None),
    "sum of doubles": (call_of(F.SUM, [D], D), [real], lambda rows: math.fsum(valid(rows)) if valid(rows) else None),
    "sum of decimals": (
        call_of(F.SUM, [DEC], pa.decimal128(30, 2)),
        [decimal],
        lambda rows: sum(valid(rows), Decimal("0.00")) if valid(rows) else None,
    ),
    "avg": (call_of(F.AVG, [D], D), [real], lambda rows: statistics.fmean(valid(rows)) if valid(rows) else None),
    "avg of decimals": (call_of(F.AVG, [DEC], pa.decimal128(24, 6)), [decimal], decimal_average),
    "min": (call_of(F.MIN, [INT], INT), [integer], lambda rows: min(valid(rows), default=None)),
    "max of doubles": (call_of(F.MAX, [D], D), [real], lambda rows: max(valid(rows), default=None)),
    "min of strings": (call_of(F.MIN, [S], S), [text], lambda rows: min(valid(rows), default=None)),
    "max of strings": (call_of(F.MAX, [S], S), [text], lambda rows: max(valid(rows), default=None)),
    "max of decimals": (call_of(F.MAX, [DEC], DEC), [decimal], lambda rows: max(valid(rows), default=None)),
    "min_by": (call_of(F.MIN_BY, [S, INT], S), [text, integer], by(min)),
    "max_by": (call_of(F.MAX_BY, [INT, S], INT), [integer, text], by(max)),
    "first": (call_of(F.FIRST, [S], S), [text], lambda rows: rows[0][0] if rows else None),
    "first non-null": (call_of(F.FIRST_NON_NULL, [S], S), [text], lambda rows: (valid(rows) or [None])[0]),
    "last": (call_of(F.LAST, [INT], INT), [integer], lambda rows: rows[-1][0] if rows else None),
    "last non-null": (call_of(F.LAST_NON_NULL, [INT], INT), [integer], lambda rows: (valid(rows) or [None])[-1]),
    "collect_list": (call_of(F.COLLECT_LIST, [S], pa.list_(S)), [text], valid),
    "collect_list with nulls": (
        call_of(F.COLLECT_LIST_WITH_NULLS, [INT], pa.list_(INT)),
        [integer],
        lambda rows: [row[0] for row in rows],
    ),
    "collect_set": (call_of(F.COLLECT_SET, [S], pa.list_(S)), [text], lambda rows: set(valid(rows))),
    "bit_and": (call_of(F.BIT_AND, [INT], INT), [integer], folded(lambda a, b: a & b)),
    "bit_or": (call_of(F.BIT_OR, [INT], INT), [integer], folded(lambda a, b: a | b)),
    "bit_xor": (call_of(F.BIT_XOR, [INT], INT), [integer], folded(lambda a, b: a ^ b)),
    "stddev": (call_of(F.STDDEV_SAMP, [D], D), [real], moment(statistics.stdev, 2)),
    "stddev_pop": (call_of(F.STDDEV_POP, [D], D), [real], moment(statistics.pstdev, 1)),
    "variance": (call_of(F.VAR_SAMP, [D], D), [real], moment(statistics.variance, 2)),
    "var_pop": (call_of(F.VAR_POP, [D], D), [real], moment(statistics.pvariance, 1)),
    "skewness": (call_of(F.SKEWNESS, [D], D), [real], lambda rows: skewness(valid(rows)) if valid(rows) else None),
    "kurtosis": (call_of(F.KURTOSIS, [D], D), [real], lambda rows: kurtosis(valid(rows)) if valid(rows) else None),
}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, set):
        return len(found) == len(expected) and set(found) == expected
    if isinstance(expected, float) and found is not None:
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


def add(accumulator: Accumulator, call: AggregateCall, rows: list[tuple[int, tuple[Any, ...]]], slots: int) -> None:
    accumulator.grow_to(slots)
    columns = [pa.array([row[at] for _, row in rows], argument.type) for at, argument in enumerate(call.arguments)]
    accumulator.add(columns, np.array([slot for slot, _ in rows], dtype=np.int64))


def results(accumulator: Accumulator, slots: Sequence[int]) -> list[Any]:
    shown: list[Any] = accumulator.results(np.array(slots, dtype=np.int64)).to_pylist()
    return shown


@pytest.mark.parametrize("name", CASES)
def test_a_function_equals_a_fold_over_its_rows_through_every_change_of_its_slots(name: str) -> None:
    call, makers, fold = CASES[name]
    r = random.Random(f"{name}")
    accumulator = accumulator_of(call)
    held: dict[int, list[tuple[Any, ...]]] = {slot: [] for slot in range(SLOTS)}
    accumulator.grow_to(SLOTS)
    for step in range(60):
        match r.choice(["add", "add", "add", "clear", "keep", "restore", "merge"]):
            case "add":
                rows = [(r.randrange(len(held)), tuple(make(r) for make in makers)) for _ in range(r.randrange(1, 40))]
                add(accumulator, call, rows, len(held))
                for slot, row in rows:
                    held[slot].append(row)
            case "clear":
                slot = r.randrange(len(held))
                accumulator.clear(np.array([slot]))
                held[slot] = []
            case "keep":
                order = r.sample(range(len(held)), r.randrange(3, len(held) + 1))
                slots = np.array(order)
                kept = KeptArrays(accumulator.arrays, slots)
                while not kept.copy_some(r.randrange(1, 100)):
                    pass
                kept.put_in_place()
                accumulator.keep(slots)
                held = {at: held[slot] for at, slot in enumerate(order)} | {at: [] for at in range(len(order), SLOTS)}
                accumulator.grow_to(SLOTS)
            case "restore":
                accumulator = restored(call, accumulator, len(held))
            case "merge":
                source, target = r.sample(range(len(held)), 2)
                if name.startswith(("first", "last", "min_by", "max_by", "collect_list")) and held[target]:
                    continue  # which of two groups came first is not known
                accumulator.merge(sources=np.array([source]), targets=np.array([target]))
                accumulator.clear(np.array([source]))
                held[target], held[source] = held[target] + held[source], []
        found = results(accumulator, list(held))
        expected = [fold(rows) for rows in held.values()]
        assert all(map(same, found, expected)), (step, found, expected)


def restored(call: AggregateCall, accumulator: Accumulator, slots: int) -> Accumulator:
    """From what a freeze gives after the values have gone on changing."""
    frozen = accumulator.freeze()
    accumulator.clear(np.arange(slots))
    copy = accumulator_of(call)
    copy.grow_to(slots)
    half = slots // 2
    for part in (slice(half, slots), slice(0, half)):
        columns = frozen(part)
        assert [column.type for column in columns] == list(copy.stored_types)
        copy.restore(np.arange(part.start, part.stop), columns)
    return copy


def test_a_nan_is_above_infinity_and_minus_zero_stays_what_it_is() -> None:
    greatest, least = (accumulator_of(call_of(function, [D], D)) for function in (F.MAX, F.MIN))
    for accumulator in (greatest, least):
        add(accumulator, call_of(F.MAX, [D], D), [(0, (math.inf,)), (0, (math.nan,)), (1, (-0.0,))], 2)
    assert math.isnan(results(greatest, [0])[0])
    assert results(least, [0]) == [math.inf]
    assert [math.copysign(1, results(each, [1])[0]) for each in (greatest, least)] == [-1, -1]


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.date32(), pa.timestamp("us", "UTC"), pa.float32()])
def test_extremes_of_small_types_keep_their_type(kind: pa.DataType) -> None:
    values = pa.array([0, 1], pa.int32()).cast(kind) if kind != pa.timestamp("us", "UTC") else pa.array([0, 1], kind)
    for function, expected in ((F.MIN, values[0]), (F.MAX, values[1])):
        accumulator = accumulator_of(call_of(function, [kind], kind))
        accumulator.grow_to(1)
        accumulator.add([values], np.array([0, 0]))
        assert accumulator.results(np.array([0]))[0] == expected


def test_a_sum_of_decimals_that_leaves_its_digits_is_null_for_good() -> None:
    call = call_of(F.SUM, [pa.decimal128(38, 0)], pa.decimal128(38, 0))
    accumulator = accumulator_of(call)
    large = Decimal(10**38 - 1)
    add(accumulator, call, [(0, (large,)), (1, (large,))], 2)
    add(accumulator, call, [(0, (Decimal(1),))], 2)
    add(accumulator, call, [(0, (Decimal(-(10**38) + 1),))], 2)
    assert results(accumulator, [0, 1]) == [None, large]


def test_with_ansi_a_sum_of_decimals_that_leaves_its_digits_is_an_error() -> None:
    call = call_of(F.SUM, [pa.decimal128(38, 0)], pa.decimal128(38, 0), ansi=True)
    with pytest.raises(UserCodeFailure, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        add(accumulator_of(call), call, [(0, (Decimal(10**38 - 1),)), (0, (Decimal(1),))], 1)


def test_equal_values_have_no_spread_at_all() -> None:
    for function in (F.STDDEV_POP, F.VAR_SAMP):
        call = call_of(function, [D], D)
        accumulator = accumulator_of(call)
        for _ in range(3):
            add(accumulator, call, [(0, (0.1,))] * 7, 1)
        assert results(accumulator, [0]) == [0.0]


def test_correlation_and_covariance_take_rows_in_which_both_are_there() -> None:
    pairs = [(1.0, 2.0), (2.0, 4.5), (None, 100.0), (4.0, 7.0), (5.0, None), (3.0, 5.0)]
    whole = [(x, y) for x, y in pairs if x is not None and y is not None]
    xs, ys = zip(*whole, strict=True)
    for function, expected in (
        (F.CORR, statistics.correlation(xs, ys)),
        (F.COVAR_SAMP, statistics.covariance(xs, ys)),
        (F.COVAR_POP, statistics.covariance(xs, ys) * 3 / 4),
    ):
        call = call_of(function, [D, D], D)
        accumulator = accumulator_of(call)
        for row in pairs:
            add(accumulator, call, [(0, row)], 1)
        assert results(accumulator, [0])[0] == pytest.approx(expected)
    assert results(accumulator_with(F.CORR, [(1.0, 2.0), (1.0, 3.0)]), [0]) == [None]


def accumulator_with(function: AggregateFunction, rows: list[tuple[Any, ...]]) -> Accumulator:
    call = call_of(function, [D, D], D)
    accumulator = accumulator_of(call)
    add(accumulator, call, [(0, row) for row in rows], 1)
    return accumulator


def test_the_digits_of_a_decimal_are_a_long() -> None:
    kind = pa.decimal128(7, 2)
    column = pa.array([Decimal("1.50"), None, Decimal("-99999.99"), Decimal("0.01")], kind)
    rows = pa.RecordBatch.from_arrays([column.slice(1)], names=["d"])
    run = compile_expression(Call("UnscaledValue", (Column(0, "d", kind),), pa.int64(), ansi=False))
    assert run(rows).to_pylist() == [None, -9999999, 1]
