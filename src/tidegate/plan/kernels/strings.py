"""Concatenation, lengths, and the search for a constant, as Arrow has them."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.values import Kernel, Value, unsupported

_PAST_THE_END = (1 << 31) - 1


def build_concat(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null if any part is null."""
    if (
        call.type not in (pa.string(), pa.binary())
        or not arguments
        or any(argument.type != call.type for argument in arguments)
    ):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    # Spark evaluates parts only up to the first null: parts that may raise are not surely equal.
    if any(argument.raises for argument in arguments[1:]):
        raise unsupported(f"{call.function} with parts that may raise", call.type)
    empty = constant("", call.type)
    if sum(argument.constant is None for argument in arguments) == 1 and all(_is_known(part) for part in arguments):
        return Kernel(_between_constants(arguments), call.type, raises=arguments[0].raises)

    def run(rows: pa.RecordBatch) -> Value:
        return pc.binary_join_element_wise(*(argument.run(rows) for argument in arguments), empty)

    return Kernel(run, call.type, raises=arguments[0].raises)


def _is_known(part: Kernel) -> bool:
    return part.constant is None or bool(part.constant.is_valid)


def _between_constants(parts: tuple[Kernel, ...]) -> Callable[[pa.RecordBatch], Value]:
    """One value with constants before and behind it, put in as slices of no length: a third of what joining costs."""
    at = next(index for index, part in enumerate(parts) if part.constant is None)
    before, behind = (_joined(constants) for constants in (parts[:at], parts[at + 1 :]))

    def run(rows: pa.RecordBatch) -> Value:
        value = parts[at].run(rows)
        if before:
            value = pc.binary_replace_slice(value, start=0, stop=0, replacement=before)
        if behind:
            value = pc.binary_replace_slice(value, start=_PAST_THE_END, stop=_PAST_THE_END, replacement=behind)
        return value

    return run


def _joined(constants: tuple[Kernel, ...]) -> Any:
    values = [part.constant.as_py() for part in constants if part.constant is not None]
    return values[0][:0].join(values) if values else None


def build_length(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Code points of a string, bytes of a binary."""
    (child,) = arguments
    if child.type not in (pa.string(), pa.binary()):
        raise unsupported(call.function, child.type)
    apply = pc.utf8_length if child.type == pa.string() else pc.binary_length
    return Kernel(lambda rows: apply(child.run(rows)), call.type, raises=child.raises)


def build_match(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """StartsWith, EndsWith, Contains with a constant to look for."""
    text, pattern = arguments
    if text.type != pa.string() or pattern.type != pa.string():
        raise unsupported(call.function, text.type, pattern.type)
    if pattern.constant is None or not pattern.constant.is_valid:
        raise unsupported(f"{call.function} with a pattern that is not a constant", text.type, pattern.type)
    apply, wanted = _MATCHES[call.function], pattern.constant.as_py()
    return Kernel(lambda rows: apply(text.run(rows), pattern=wanted), pa.bool_(), raises=text.raises)


_MATCHES: Mapping[str, Callable[..., Value]] = {
    "StartsWith": pc.starts_with,
    "EndsWith": pc.ends_with,
    "Contains": pc.match_substring,
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "Concat": build_concat,
    "Length": build_length,
    **dict.fromkeys(_MATCHES, build_match),
}
