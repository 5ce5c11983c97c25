"""Higher-order functions: a lambda runs once over the elements of all rows of a batch, not once per element.

Where Spark stops at an element (`exists`, `forall`) or needs the one before (`aggregate`), it runs once per position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.plan.expressions import Call, Column, Expression, Lambda, Literal
from tidegate.plan.kernels.arrays import sorted_nulls_last
from tidegate.plan.kernels.lists import (
    Flags,
    Integers,
    Lists,
    bits_of,
    both,
    fixed_array,
    flags_of,
    list_array,
    lists_of,
    padded,
    struct_array,
    take,
)
from tidegate.plan.kernels.nested import (
    column,
    map_array,
    require_map_keys,
    valid_rows,
)
from tidegate.plan.kernels.values import Kernel, Value, as_array, run_if_valid, unsupported


@dataclass(frozen=True, slots=True)
class CompiledLambda:
    """The body runs on a batch of [parameters..., captured columns...]."""

    source: Lambda
    body: Kernel
    captured: tuple[Kernel, ...]

    @property
    def raises(self) -> bool:
        return self.body.raises or any(kernel.raises for kernel in self.captured)

    def bind(self, rows: pa.RecordBatch) -> "BoundLambda":
        return BoundLambda(self, [column(kernel, rows) for kernel in self.captured])


@dataclass(frozen=True, slots=True)
class BoundLambda:
    function: CompiledLambda
    captured: Sequence[pa.Array]

    def run(self, arguments: Sequence[pa.Array], owners: Integers) -> pa.Array:
        """The body's values for these arguments; `owners` are the rows whose captured columns it sees."""
        used = list(arguments)[: len(self.function.source.parameters)]
        columns = used + [take(values, owners) for values in self.captured]
        names = [str(at) for at in range(len(columns))]
        return column(self.function.body, pa.RecordBatch.from_arrays(columns, names=names))


def build_transform(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    (child,), (function,) = arguments, lambdas

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        results = function.bind(rows).run([lists.elements(), _positions(lists)], lists.rows())
        return list_array(call.type, lists.lengths, results, lists.valid)

    return Kernel(run, call.type, raises=child.raises or function.raises)


def build_filter(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """An element stays where the condition is true."""
    (child,), (function,) = arguments, lambdas

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        elements = lists.elements()
        kept = flags_of(function.bind(rows).run([elements, _positions(lists)], lists.rows()))
        return _kept(call.type, lists, elements, kept)

    return Kernel(run, call.type, raises=child.raises or function.raises)


def build_map_filter(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    (child,), (function,) = arguments, lambdas

    def run(rows: pa.RecordBatch) -> Value:
        maps = lists_of(column(child, rows))
        entries = maps.elements()
        kept = flags_of(function.bind(rows).run([entries.field(0), entries.field(1)], maps.rows()))
        return _kept(call.type, maps, entries, kept)

    return Kernel(run, call.type, raises=child.raises or function.raises)


def build_transform_values(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    (child,), (function,) = arguments, lambdas
    entry = pa.struct([pa.field("key", call.type.key_type, nullable=False), pa.field("value", call.type.item_type)])

    def run(rows: pa.RecordBatch) -> Value:
        maps = lists_of(column(child, rows))
        entries = maps.elements()
        values = function.bind(rows).run([entries.field(0), entries.field(1)], maps.rows())
        changed = struct_array(entry, [entries.field(0), values], len(entries), None)
        return list_array(call.type, maps.lengths, changed, maps.valid)

    return Kernel(run, call.type, raises=child.raises or function.raises)


def build_transform_keys(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    (child,), (function,) = arguments, lambdas
    require_map_keys(call, call.type.key_type)

    def run(rows: pa.RecordBatch) -> Value:
        maps = lists_of(column(child, rows))
        entries = maps.elements()
        keys = function.bind(rows).run([entries.field(0), entries.field(1)], maps.rows())
        return map_array(call, maps.lengths, keys, entries.field(1), maps.valid)

    return Kernel(run, call.type, raises=True)


def build_zip_with(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """The shorter array is filled up with nulls."""
    (left, right), (function,) = arguments, lambdas

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(left, rows)
        first, second = lists_of(stored), lists_of(as_array(run_if_valid(right, rows, stored), rows.num_rows))
        valid = both(first.valid, second.valid)
        lengths = np.maximum(first.lengths, second.lengths)
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        results = function.bind(rows).run([padded(first, lengths), padded(second, lengths)], owners)
        return list_array(call.type, lengths, results, valid)

    return Kernel(run, call.type, raises=left.raises or right.raises or function.raises)


def build_exists(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """True at the first element that fits; else unknown if the condition was null for one (unless set otherwise)."""
    if call.setting("followThreeValuedLogic") == "false":
        return _quantified(call, arguments, lambdas, decisive=True, nulls_matter=False)
    return _quantified(call, arguments, lambdas, decisive=True, nulls_matter=True)


def build_for_all(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """False at the first element that does not fit; else unknown if the condition was null for one."""
    return _quantified(call, arguments, lambdas, decisive=False, nulls_matter=True)


def build_aggregate(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """Folds the elements into the start value, the elements at one position of all rows at a time."""
    (child, zero), (merge, finish) = arguments, lambdas

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(child, rows)
        lists = lists_of(stored)
        present = np.flatnonzero(valid_rows(stored))
        start = as_array(run_if_valid(zero, rows, stored), rows.num_rows)
        folded, bound = take(start, present), merge.bind(rows)
        for position in range(int(lists.lengths.max(initial=0))):
            going_on = np.flatnonzero(lists.lengths[present] > position)
            owners = present[going_on]
            elements = take(lists.values, lists.starts[owners] + position)
            merged = bound.run([take(folded, going_on), elements], owners)
            at = np.arange(len(present))
            at[going_on] = len(present) + np.arange(len(going_on))
            folded = take(pa.concat_arrays([folded, merged]), at)
        finished = finish.bind(rows).run([folded], present)
        back = np.zeros(len(lists), np.int64)
        back[present] = np.arange(len(present))
        return take(finished, back, lists.valid) if len(present) else pa.nulls(len(lists), call.type)

    return Kernel(run, call.type, raises=child.raises or zero.raises or merge.raises or finish.raises)


def build_array_sort(call: Call, arguments: tuple[Kernel, ...], lambdas: tuple[CompiledLambda, ...]) -> Kernel:
    """Only with the order that Spark takes when none is given; another one would have to be asked pair by pair."""
    (child,), (comparator,) = arguments, lambdas
    left, right = (Column(at, name, child.type.value_type) for at, name in enumerate(("left", "right")))
    if _nameless(comparator.source.body) != _nameless(_default_order(left, right)):
        raise unsupported("ArraySort with a comparator", child.type)
    return sorted_nulls_last(call, child)


def _quantified(
    call: Call,
    arguments: tuple[Kernel, ...],
    lambdas: tuple[CompiledLambda, ...],
    *,
    decisive: bool,
    nulls_matter: bool,
) -> Kernel:
    """Which answer of the condition decides, and whether a null one leaves the result unknown."""
    (child,), (function,) = arguments, lambdas
    evaluate = _by_position if function.raises else _all_at_once

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        decided, unknown = evaluate(lists, function.bind(rows), decisive)
        valid = both(lists.valid, decided | ~unknown) if nulls_matter else lists.valid
        return fixed_array(pa.bool_(), decided if decisive else ~decided, valid)

    return Kernel(run, call.type, raises=child.raises or function.raises)


def _all_at_once(lists: Lists, function: BoundLambda, decisive: bool) -> tuple[Flags, Flags]:
    owners = lists.rows()
    answers = function.run([lists.elements()], owners)
    return _noted(len(lists), owners, answers, decisive)


def _by_position(lists: Lists, function: BoundLambda, decisive: bool) -> tuple[Flags, Flags]:
    """Elements behind the one that decides are not looked at: the condition might raise for them."""
    decided, unknown = np.zeros(len(lists), np.bool_), np.zeros(len(lists), np.bool_)
    for position in range(int(lists.lengths.max(initial=0))):
        owners = np.flatnonzero((lists.lengths > position) & ~decided)
        answers = function.run([take(lists.values, lists.starts[owners] + position)], owners)
        newly_decided, newly_unknown = _noted(len(lists), owners, answers, decisive)
        decided |= newly_decided
        unknown |= newly_unknown
    return decided, unknown


def _noted(length: int, owners: Integers, answers: pa.Array, decisive: bool) -> tuple[Flags, Flags]:
    """The rows with a decisive answer, and those with a null one."""
    known = valid_rows(answers)
    decided, unknown = np.zeros(length, np.bool_), np.zeros(length, np.bool_)
    decided[owners[known & (bits_of(answers) == decisive)]] = True
    unknown[owners[~known]] = True
    return decided, unknown


def _kept(type_: pa.DataType, lists: Lists, elements: pa.Array, kept: Flags) -> pa.Array:
    lengths = np.bincount(lists.rows()[kept], minlength=len(lists))
    return list_array(type_, lengths, take(elements, np.flatnonzero(kept)), lists.valid)


def _positions(lists: Lists) -> pa.Array:
    return fixed_array(pa.int32(), lists.positions().astype(np.int32))


def _default_order(left: Column, right: Column) -> Expression:
    """What Spark compares by in `array_sort(a)`: nulls last."""

    def call(name: str, *arguments: Expression) -> Call:
        return Call(name, arguments, pa.bool_(), ansi=False)

    def choose(condition: Expression, then: int, otherwise: Expression) -> Call:
        return Call("If", (condition, number(then), otherwise), pa.int32(), ansi=False)

    def number(value: int) -> Literal:
        return Literal(value, pa.int32())

    by_value = choose(call("LessThan", left, right), -1, choose(call("GreaterThan", left, right), 1, number(0)))
    one_null = choose(call("IsNull", left), 1, choose(call("IsNull", right), -1, by_value))
    return choose(call("And", call("IsNull", left), call("IsNull", right)), 0, one_null)


def _nameless(expression: Expression) -> object:
    """Equal for expressions that differ only in the names of columns or in settings."""
    match expression:
        case Column(index=index):
            return index
        case Call(function=function, arguments=arguments):
            return function, tuple(map(_nameless, arguments))
        case _:
            return expression


LambdaBuild = Callable[[Call, tuple[Kernel, ...], tuple[CompiledLambda, ...]], Kernel]

BUILDERS: Mapping[str, LambdaBuild] = {
    "ArrayTransform": build_transform,
    "ArrayFilter": build_filter,
    "ArrayExists": build_exists,
    "ArrayForAll": build_for_all,
    "ArrayAggregate": build_aggregate,
    "ArraySort": build_array_sort,
    "ZipWith": build_zip_with,
    "MapFilter": build_map_filter,
    "TransformValues": build_transform_values,
    "TransformKeys": build_transform_keys,
}
