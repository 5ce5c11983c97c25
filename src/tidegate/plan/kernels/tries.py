"""TRY mode: null where the function itself would raise in ANSI mode. What its arguments raise stays raised."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels import arithmetic, decimals
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.text import run_in_order
from tidegate.plan.kernels.values import Kernel, Value, any_true, as_array, unsupported


def build_try(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Legacy mode gives null for a zero divisor and for a decimal that overflows; integers need a look."""
    if call.function not in _FUNCTIONS:
        raise unsupported(f"{call.function} in TRY mode", *(argument.type for argument in arguments))
    legacy = replace(call, ansi=False)
    if any(pa.types.is_decimal(argument.type) for argument in arguments):
        return decimals.BUILDERS[call.function](legacy, arguments)
    if call.function in _WRAPPING and pa.types.is_integer(call.type):
        return _integers(call, arguments)
    quiet = arithmetic.BUILDERS[call.function](legacy, arguments)
    return _without_overflow(quiet, arguments) if call.function == "IntegralDivide" else quiet


def _integers(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """In decimals of 256 bits no sum or product of two longs overflows."""
    if any(argument.type != call.type for argument in arguments):
        raise unsupported(f"{call.function} in TRY mode", *(argument.type for argument in arguments))
    apply, checked = _WRAPPING[call.function]
    wide = pa.decimal256(19, 0)
    lowest, highest = (
        pc.cast(constant(limit, pa.decimal128(38, 0)), pa.decimal256(39, 0))
        for limit in (-(2 ** (call.type.bit_width - 1)), 2 ** (call.type.bit_width - 1) - 1)
    )

    def run(rows: pa.RecordBatch) -> Value:
        first, second = (as_array(value, rows.num_rows) for value in run_in_order(arguments, rows))
        try:
            return checked(first, second)
        except pa.ArrowInvalid:
            exact = apply(*(pc.cast(pc.cast(value, pa.int64()), wide) for value in (first, second)))
            fits = pc.and_(pc.greater_equal(exact, lowest), pc.less_equal(exact, highest))
            return pc.cast(pc.if_else(fits, exact, pa.nulls(1, exact.type)[0]), call.type)

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def _without_overflow(quotient: Kernel, arguments: tuple[Kernel, ...]) -> Kernel:
    """The lowest long divided by -1 has no quotient."""
    if any(argument.raises for argument in arguments):
        raise unsupported("IntegralDivide in TRY mode with arguments that may raise", quotient.type)
    dividend, divisor = arguments

    def run(rows: pa.RecordBatch) -> Value:
        lowest, minus_one = constant(-(2**63), pa.int64()), constant(-1, pa.int64())
        overflows = pc.and_(pc.equal(dividend.run(rows), lowest), pc.equal(divisor.run(rows), minus_one))
        result = quotient.run(rows)
        return pc.if_else(overflows, constant(None, pa.int64()), result) if any_true(overflows) else result

    return Kernel(run, quotient.type, raises=False)


_WRAPPING: Mapping[str, tuple[Callable[..., pa.Array], Callable[..., pa.Array]]] = {
    "Add": (pc.add, pc.add_checked),
    "Subtract": (pc.subtract, pc.subtract_checked),
    "Multiply": (pc.multiply, pc.multiply_checked),
}
_FUNCTIONS = frozenset({*_WRAPPING, "Divide", "IntegralDivide", "Remainder", "Pmod"})
