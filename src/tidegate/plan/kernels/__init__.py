"""Turns expressions into functions over Arrow batches, with exactly Spark's results or a refusal.

Everything is resolved when compiling; running a kernel does no per-row Python. Never approximates: an expression
whose Arrow kernel may differ from Spark's is `UnsupportedPlan`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Cast, Column, Expression, Lambda, Literal, Try
from tidegate.plan.kernels import (
    arithmetic,
    array_making,
    arrays,
    case_mapping,
    comparison,
    dates,
    decimals,
    duck,
    encodings,
    hashes,
    interval_arithmetic,
    intervals,
    json_functions,
    json_writing,
    lambdas,
    logic,
    mathematics,
    nested,
    regex,
    string_functions,
    strings,
    text_pieces,
    time_formats,
    timestamps,
    unscaled,
)
from tidegate.plan.kernels.casts import build_cast, build_try_cast
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.generators import Explode, RowMaker, expand_rows, explode_rows
from tidegate.plan.kernels.tries import build_try
from tidegate.plan.kernels.values import Kernel, as_array
from tidegate.plan.nodes import EmptyCollections, ExplodedAs

__all__ = [
    "check_supported",
    "compile_expand",
    "compile_expression",
    "compile_filter",
    "compile_generate",
    "compile_projection",
    "supported_functions",
]

_BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **arithmetic.BUILDERS,
    **comparison.BUILDERS,
    **logic.BUILDERS,
    **strings.BUILDERS,
    **nested.BUILDERS,
    **arrays.BUILDERS,
    **array_making.BUILDERS,
    **unscaled.BUILDERS,
    **dates.BUILDERS,
    **timestamps.BUILDERS,
    **intervals.BUILDERS,
    **interval_arithmetic.BUILDERS,
    **time_formats.BUILDERS,
    **hashes.BUILDERS,
    **string_functions.BUILDERS,
    **case_mapping.BUILDERS,
    **encodings.BUILDERS,
    **regex.BUILDERS,
    **mathematics.BUILDERS,
    **json_functions.BUILDERS,
    **json_writing.BUILDERS,
    **text_pieces.BUILDERS,
}
# Null whenever an argument is null; Spark moves the null checks of such expressions behind other conditions.
_NULL_INTOLERANT = (
    (frozenset(arithmetic.BUILDERS) - {"Greatest", "Least", "NormalizeNaNAndZero"})
    | (frozenset(comparison.BUILDERS) - {"EqualNullSafe"})
    | nested.NULL_INTOLERANT
    | arrays.NULL_INTOLERANT
    | array_making.NULL_INTOLERANT
    | frozenset({**dates.BUILDERS, **timestamps.BUILDERS, **time_formats.BUILDERS})
    | frozenset({**intervals.BUILDERS, **interval_arithmetic.BUILDERS})
    | (frozenset(string_functions.BUILDERS) - {"ConcatWs", "StringLocate"})
    | frozenset(case_mapping.BUILDERS)
    | frozenset(regex.BUILDERS)
    | frozenset(mathematics.BUILDERS)
    | (frozenset(text_pieces.BUILDERS) - {"FormatString"})
)


def supported_functions() -> frozenset[str]:
    overloads = {*array_making.OVERLOADS, *decimals.BUILDERS, *duck.FUNCTIONS}
    return frozenset({*_BUILDERS, *lambdas.BUILDERS, *overloads})


def check_supported(expression: Expression) -> None:
    """Raises `UnsupportedPlan` if the expression cannot be compiled, or Arrow cannot run what it compiles to."""
    types = _column_types(expression)
    width = max(types, default=-1) + 1
    columns = [pa.nulls(0, types.get(index, pa.null())) for index in range(width)]
    rows = pa.RecordBatch.from_arrays(columns, names=[str(index) for index in range(width)])
    try:
        result = compile_expression(expression)(rows)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as missing:
        raise UnsupportedPlan(f"Arrow has no kernel for it ({missing})") from missing
    if result.type != expression.type:
        raise UnsupportedPlan(f"Its kernel gives {result.type} in place of {expression.type}")


def compile_expression(expression: Expression) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function to a column of exactly `expression.type`, as long as the batch."""
    run = _compile(expression).run
    return lambda rows: as_array(run(rows), rows.num_rows)


def compile_projection(
    expressions: Sequence[Expression], schema: pa.Schema
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    columns = [compile_expression(expression) for expression in expressions]
    return lambda rows: pa.RecordBatch.from_arrays([column(rows) for column in columns], schema=schema)


def compile_filter(condition: Expression) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Keeps the rows where the condition is true; gives the same batch back if those are all."""
    steps = _filter_steps(condition)

    def run(rows: pa.RecordBatch) -> pa.RecordBatch:
        for step in steps:
            if rows.num_rows == 0:
                return rows
            mask = as_array(step.run(rows), rows.num_rows)
            if mask.true_count < rows.num_rows:
                rows = rows.filter(mask)
        return rows

    return run


def compile_generate(
    collection: Expression,
    exploded_as: ExplodedAs,
    of_empty: EmptyCollections,
    *,
    kept: tuple[int, ...],
    schema: pa.Schema,
) -> Explode:
    return explode_rows(_compile(collection), exploded_as, of_empty, kept=kept, schema=schema)


def compile_expand(projections: Sequence[Sequence[Expression]], schema: pa.Schema) -> RowMaker:
    return expand_rows([[_compile(column) for column in projection] for projection in projections], schema)


def _compile(expression: Expression) -> Kernel:
    match expression:
        case Column(index=index, type=type_):
            return Kernel(lambda rows: rows.column(index), type_, raises=False)
        case Literal(value=value, type=type_):
            scalar = constant(value, type_)
            return Kernel(lambda _rows: scalar, type_, raises=False, constant=scalar)
        case Cast(child=child):
            return build_cast(expression, _compile(child))
        case Call():
            return _compile_call(expression)
        case Try(of=of):
            return _compile_try(of)
        case Lambda(body=body):
            raise UnsupportedPlan(f"Tidegate has no kernel for a lambda of {body.type} by itself")
        case _:
            assert_never(expression)


def _compile_call(call: Call) -> Kernel:
    values = tuple(_compile(argument) for argument in call.arguments if not isinstance(argument, Lambda))
    if call.function in lambdas.BUILDERS:
        functions = tuple(_compile_lambda(argument) for argument in call.arguments if isinstance(argument, Lambda))
        return lambdas.BUILDERS[call.function](call, values, functions)
    return _build(call, values)


def _compile_lambda(function: Lambda) -> lambdas.CompiledLambda:
    return lambdas.CompiledLambda(function, _compile(function.body), tuple(map(_compile, function.captured)))


def _compile_try(of: Call | Cast) -> Kernel:
    match of:
        case Cast(child=child):
            return build_try_cast(of, _compile(child))
        case Call(arguments=arguments):
            return build_try(of, tuple(_compile(argument) for argument in arguments))
        case _:
            assert_never(of)


def _build(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """By a kernel for arrays or decimals if it is about such, by DuckDB for what our own kernels refuse."""
    builders = _BUILDERS
    if pa.types.is_list(call.type) and call.function in array_making.OVERLOADS:
        builders = array_making.OVERLOADS
    elif any(pa.types.is_decimal(argument.type) for argument in arguments) and call.function in decimals.BUILDERS:
        builders = decimals.BUILDERS
    if call.function not in builders:
        if call.function in duck.FUNCTIONS:
            return duck.build(call, arguments)
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function}")
    try:
        return builders[call.function](call, arguments)
    except UnsupportedPlan:
        if not duck.can_run(call, arguments):
            raise
        return duck.build(call, arguments)


def _filter_steps(condition: Expression) -> list[Kernel]:
    """One kernel for each run of conditions that cannot raise, one for each that can.

    Spark drops a row at the first condition that is not true, so a later one must not raise for it.
    """
    steps: list[Kernel] = []
    quiet: list[Kernel] = []
    for conjunct in _in_sparks_order(_conjuncts(condition)):
        kernel = _compile(conjunct)
        if not kernel.raises:
            quiet.append(kernel)
            continue
        steps += [logic.conjunction(quiet)] if quiet else []
        steps.append(kernel)
        quiet = []
    return steps + ([logic.conjunction(quiet)] if quiet else [])


def _conjuncts(condition: Expression) -> list[Expression]:
    if isinstance(condition, Call) and condition.function == "And":
        return [part for argument in condition.arguments for part in _conjuncts(argument)]
    return [condition]


def _in_sparks_order(conjuncts: list[Expression]) -> list[Expression]:
    """As FilterExec: `IsNotNull` of a column stands before its first use, what is left of them at the end."""
    checks = [part for part in conjuncts if _is_null_check(part)]
    ordered: list[Expression] = []
    for conjunct in conjuncts:
        if _is_null_check(conjunct):
            continue
        guards = [check for check in checks if check not in ordered and _checked_column(check) & _columns(conjunct)]
        ordered += [*guards, conjunct]
    return ordered + [check for check in checks if check not in ordered]


def _is_null_check(expression: Expression) -> bool:
    return (
        isinstance(expression, Call)
        and expression.function == "IsNotNull"
        and _is_null_intolerant(expression.arguments[0])
    )


def _is_null_intolerant(expression: Expression) -> bool:
    match expression:
        case Column() | Literal():
            return True
        case Cast(child=child):
            return _is_null_intolerant(child)
        case Try(of=of):
            return _is_null_intolerant(of)
        case Call(function=function, arguments=arguments):
            return function in _NULL_INTOLERANT and all(map(_is_null_intolerant, arguments))
        case Lambda():
            return False
        case _:
            assert_never(expression)


def _checked_column(check: Expression) -> frozenset[int]:
    """The column itself, if the check is of a plain column."""
    plain = isinstance(check, Call) and isinstance(check.arguments[0], Column)
    return _columns(check) if plain else frozenset()


def _columns(expression: Expression) -> frozenset[int]:
    return frozenset(_column_types(expression))


def _column_types(expression: Expression) -> dict[int, pa.DataType]:
    match expression:
        case Column(index=index, type=type_):
            return {index: type_}
        case Literal():
            return {}
        case Cast(child=child):
            return _column_types(child)
        case Try(of=of):
            return _column_types(of)
        case Call(arguments=arguments):
            return {index: type_ for argument in arguments for index, type_ in _column_types(argument).items()}
        case Lambda(captured=captured):
            return {index: type_ for outer in captured for index, type_ in _column_types(outer).items()}
        case _:
            assert_never(expression)
