"""Three-valued logic and conditionals. A branch that may raise runs only on the rows that take it, as in Spark."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.comparison import equality
from tidegate.plan.kernels.constants import FALSE, TRUE, UNKNOWN, constant
from tidegate.plan.kernels.values import Kernel, Value, as_array, run_if_valid, run_where, unsupported


def build_and(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The right side is skipped where the left is false (not where it is null)."""
    left, right = _booleans(call, arguments)

    def run(rows: pa.RecordBatch) -> Value:
        first = left.run(rows)
        if right.raises:
            undecided = as_array(pc.fill_null(first, TRUE), rows.num_rows)
            return pc.and_kleene(first, run_where(right, rows, undecided))
        return pc.and_kleene(first, right.run(rows))

    return Kernel(run, pa.bool_(), raises=left.raises or right.raises)


def build_or(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The right side is skipped where the left is true."""
    left, right = _booleans(call, arguments)

    def run(rows: pa.RecordBatch) -> Value:
        first = left.run(rows)
        if right.raises:
            undecided = as_array(pc.invert(pc.fill_null(first, FALSE)), rows.num_rows)
            return pc.or_kleene(first, run_where(right, rows, undecided))
        return pc.or_kleene(first, right.run(rows))

    return Kernel(run, pa.bool_(), raises=left.raises or right.raises)


def build_not(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = _booleans(call, arguments)
    return Kernel(lambda rows: pc.invert(child.run(rows)), pa.bool_(), raises=child.raises)


def build_is_null(_call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    return Kernel(lambda rows: pc.is_null(child.run(rows)), pa.bool_(), raises=child.raises)


def build_is_not_null(_call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    return Kernel(lambda rows: pc.is_valid(child.run(rows)), pa.bool_(), raises=child.raises)


def build_is_nan(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Never null: null is not NaN."""
    (child,) = arguments
    if not pa.types.is_floating(child.type):
        raise unsupported(call.function, child.type)
    return Kernel(lambda rows: pc.fill_null(pc.is_nan(child.run(rows)), FALSE), pa.bool_(), raises=child.raises)


def build_if(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    predicate, then, otherwise = arguments
    if not pa.types.is_boolean(predicate.type):
        raise unsupported(call.function, predicate.type)
    return _choose(call, predicate, then, otherwise)


def build_case_when(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Arguments are condition, value, condition, value, ... and a last value for `else`, if there is one."""
    pairs, otherwise = len(arguments) // 2, _null(call.type)
    if len(arguments) % 2:
        otherwise = arguments[-1]
    for branch in reversed(range(pairs)):
        otherwise = _choose(call, arguments[2 * branch], arguments[2 * branch + 1], otherwise)
    return otherwise


def build_nanvl(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    left, right = arguments
    return _choose(call, build_is_nan(call, (left,)), right, left)


def build_coalesce(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Each argument is looked at only where all before it are null."""
    _require_same_type(call, arguments)

    def run(rows: pa.RecordBatch) -> Value:
        result = arguments[0].run(rows)
        for argument in arguments[1:]:
            if pc.is_valid(result).as_py() if isinstance(result, pa.Scalar) else result.null_count == 0:
                return result
            missing = as_array(pc.is_null(result), rows.num_rows)
            value = run_where(argument, rows, missing) if argument.raises else argument.run(rows)
            result = pc.coalesce(result, value)
        return result

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def build_in(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """True if any element equals, else null if the value or an element is null, else false."""
    value, *elements = arguments
    equal = equality(call, value.type, value.type)
    _require_same_type(call, arguments, of=value.type)
    if not elements:
        raise unsupported(f"{call.function} with no elements", value.type)
    constants = [element.constant for element in elements if element.constant is not None]
    is_plain = not (pa.types.is_floating(value.type) or pa.types.is_nested(value.type))
    if len(constants) == len(elements) and is_plain:
        return _in_constants(value, constants)
    comparisons = [_equals(equal, value, element) for element in elements]
    result = comparisons[0]
    for comparison in comparisons[1:]:
        result = build_or(call, (result, comparison))
    return result


def build_at_least_n_non_nulls(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The first argument is the number; NaN counts as null."""
    least, *children = arguments
    if any(child.raises for child in children):
        raise unsupported(f"{call.function} with arguments that may raise", *(child.type for child in children))

    def run(rows: pa.RecordBatch) -> Value:
        found: Value = constant(0, pa.int32())
        for child in children:
            values = child.run(rows)
            present = pc.is_valid(values)
            if pa.types.is_floating(child.type):
                present = pc.and_not(present, pc.fill_null(pc.is_nan(values), FALSE))
            found = pc.add(found, pc.cast(present, pa.int32()))
        return pc.greater_equal(found, least.constant)

    return Kernel(run, pa.bool_(), raises=False)


def conjunction(kernels: list[Kernel]) -> Kernel:
    """All of them, for kernels that cannot raise."""
    if len(kernels) == 1:
        return kernels[0]

    def run(rows: pa.RecordBatch) -> Value:
        result = kernels[0].run(rows)
        for kernel in kernels[1:]:
            result = pc.and_kleene(result, kernel.run(rows))
        return result

    return Kernel(run, pa.bool_(), raises=False)


def _choose(call: Call, predicate: Kernel, then: Kernel, otherwise: Kernel) -> Kernel:
    _require_same_type(call, (then, otherwise))

    def run(rows: pa.RecordBatch) -> Value:
        mask = as_array(pc.fill_null(predicate.run(rows), FALSE), rows.num_rows)
        chosen = run_where(then, rows, mask) if then.raises else then.run(rows)
        other = run_where(otherwise, rows, pc.invert(mask)) if otherwise.raises else otherwise.run(rows)
        return pc.if_else(mask, chosen, other)

    return Kernel(run, call.type, raises=predicate.raises or then.raises or otherwise.raises)


def _equals(equal: Callable[[Value, Value], Value], value: Kernel, element: Kernel) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        first = value.run(rows)
        return equal(first, run_if_valid(element, rows, first))

    return Kernel(run, pa.bool_(), raises=value.raises or element.raises)


def _in_constants(value: Kernel, elements: list[pa.Scalar]) -> Kernel:
    valid = [element for element in elements if element.is_valid]
    known = pa.concat_arrays([pa.repeat(element, 1) for element in valid]) if valid else pa.nulls(0, value.type)
    # A null among the elements makes "not found" unknown.
    absent = FALSE if len(valid) == len(elements) else UNKNOWN

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(value.run(rows), rows.num_rows)
        found = pc.is_in(values, value_set=known)
        if absent.is_valid and values.null_count == 0:
            return found
        answer = pc.if_else(found, found, absent)
        return pc.if_else(values.is_valid(), answer, UNKNOWN)

    return Kernel(run, pa.bool_(), raises=value.raises)


def _null(type_: pa.DataType) -> Kernel:
    null = constant(None, type_)
    return Kernel(lambda _rows: null, type_, raises=False, constant=null)


def _booleans(call: Call, arguments: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    _require_same_type(call, arguments, of=pa.bool_())
    return arguments


def _require_same_type(call: Call, arguments: tuple[Kernel, ...], of: pa.DataType | None = None) -> None:
    expected = call.type if of is None else of
    if any(argument.type != expected for argument in arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "And": build_and,
    "Or": build_or,
    "Not": build_not,
    "IsNull": build_is_null,
    "IsNotNull": build_is_not_null,
    "IsNaN": build_is_nan,
    "If": build_if,
    "CaseWhen": build_case_when,
    "NaNvl": build_nanvl,
    "Coalesce": build_coalesce,
    "In": build_in,
    "AtLeastNNonNulls": build_at_least_n_non_nulls,
}
