"""Sums, differences, multiples and parts of day-time intervals, which are durations in microseconds.

Java's exact arithmetic: what does not fit a long raises.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.dates import sentence
from tidegate.plan.kernels.instants import toward_zero
from tidegate.plan.kernels.lifting import Lifted, Numbers, lift
from tidegate.plan.kernels.values import Kernel, unsupported

DURATION = pa.duration("us")
_LONG = np.iinfo(np.int64)


def build_exact(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Add, Subtract, UnaryMinus and Abs of intervals."""
    if any(argument.type != DURATION for argument in arguments) or call.function not in _EXACT:
        raise unsupported(call.function, *(argument.type for argument in arguments))
    # Without ANSI mode Spark lets only a changed sign wrap around.
    exact, wrapping = _EXACT[call.function]
    return lift(call, arguments, _checked(call, exact if call.ansi else wrapping), raises=True)


def build_multiple(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """MultiplyDTInterval by an integer."""
    _require_integer(call, arguments)
    return lift(call, arguments, _checked(call, pc.multiply_checked), raises=True)


def build_part(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DivideDTInterval by an integer: half of a microsecond is rounded away from zero."""
    _require_integer(call, arguments)

    def run(lengths: Numbers, divisors: Numbers) -> Lifted:
        longs = divisors.astype(np.int64)
        if (longs == 0).any():
            raise UserCodeFailure(sentence("INTERVAL_DIVIDED_BY_ZERO", "a divisor is zero", call))
        if ((lengths == _LONG.min) & (longs == -1)).any():
            raise _overflow(call)
        quotient = toward_zero(lengths, longs)
        # As unsigned numbers, because the lowest long has no positive counterpart.
        rest, size = np.abs(lengths - quotient * longs).view(np.uint64), np.abs(longs).view(np.uint64)
        is_half = (rest > 0) & (rest >= size - rest)
        return quotient + np.where(is_half, np.where((lengths < 0) == (longs < 0), 1, -1), 0)

    return lift(call, arguments, run, raises=True)


def _require_integer(call: Call, arguments: tuple[Kernel, ...]) -> None:
    length, number = arguments
    if length.type != DURATION or not pa.types.is_integer(number.type):
        raise unsupported(call.function, length.type, number.type)


def _checked(call: Call, apply: Callable[..., pa.Array]) -> Callable[..., Lifted]:
    def run(*operands: Numbers) -> Lifted:
        try:
            return apply(*map(_longs, operands)).view(DURATION)
        except pa.ArrowInvalid as overflow:
            raise _overflow(call) from overflow

    return run


def _longs(numbers: Numbers) -> pa.Array:
    packed = np.ascontiguousarray(numbers.astype(np.int64, copy=False))
    return pa.Array.from_buffers(pa.int64(), len(packed), [None, pa.py_buffer(packed)])


def _overflow(call: Call) -> UserCodeFailure:
    return UserCodeFailure(sentence("INTERVAL_ARITHMETIC_OVERFLOW", "an interval is too long", call))


_EXACT: Mapping[str, tuple[Callable[..., pa.Array], Callable[..., pa.Array]]] = {
    "Add": (pc.add_checked, pc.add_checked),
    "Subtract": (pc.subtract_checked, pc.subtract_checked),
    "UnaryMinus": (pc.negate_checked, pc.negate),
    "Abs": (pc.abs_checked, pc.abs),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "MultiplyDTInterval": build_multiple,
    "DivideDTInterval": build_part,
}
