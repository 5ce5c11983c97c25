"""Upper, Lower and InitCap as Spark computes them: with ICU's tables, in a locale without rules of its own.

Python has the same mappings, but those of its own Unicode version: what ICU 17 knows beyond Python 3.11 stands here.
"""

import unicodedata
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.text import (
    bytes_of,
    column_of,
    is_ascii,
    per_distinct,
    require_types,
    require_utf8,
    used_bytes,
)
from tidegate.plan.kernels.values import Kernel, Value, as_array

# Lower-case letters and their upper-case ones: single pairs, and runs of pairs with a fixed distance.
_PAIRS = (
    (0x19B, 0xA7DC), (0x264, 0xA7CB), (0x1C8A, 0x1C89), (0xA7CD, 0xA7CC), (0xA7CF, 0xA7CE), (0xA7D3, 0xA7D2),
    (0xA7D5, 0xA7D4), (0xA7DB, 0xA7DA),
    *((lower, lower - 0x20) for lower in range(0x10D70, 0x10D86)),
    *((lower, lower - 0x1B) for lower in range(0x16EBB, 0x16ED4)),
)  # fmt: skip
_TO_UPPER = {lower: chr(upper) for lower, upper in _PAIRS}
_TO_LOWER = {upper: chr(lower) for lower, upper in _PAIRS}


def build_case(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, pa.string())
    (child,) = arguments
    fast, exact = _CASES[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        if is_ascii(values):
            return fast(values)
        require_utf8(values, call.function)
        return per_distinct(values, exact)

    return Kernel(run, pa.string(), raises=child.raises)


def _upper(text: str) -> str:
    return text.translate(_TO_UPPER).upper()


def _lower(text: str) -> str:
    if "\u03a3" in text:
        _require_known_neighbours(text)
    return text.translate(_TO_LOWER).lower()


def _require_known_neighbours(text: str) -> None:
    """A capital sigma's lower case depends on whether its neighbours are letters, which newer Unicode versions say."""
    if any(unicodedata.category(character) == "Cn" or character == "\u0295" for character in text):
        raise UserCodeFailure(
            "Lower met a capital sigma beside a character that Python's Unicode tables do not know: "
            "drop such characters before the stream, or run a newer Python."
        )


def _initial_capitals(text: str) -> str:
    """Words end at spaces only; what is behind a word's first letter becomes lower case in its context."""
    return " ".join(map(_capitalised, text.split(" ")))


def _capitalised(word: str) -> str:
    first = word[:1]
    return first.translate(_TO_UPPER).title() + _lower(word)[len(_lower(first)) :]


def _ascii_initial_capitals(values: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(values)
    content = used_bytes(lower)
    if len(content) == 0:
        return lower
    follows_space = np.concatenate([[True], content[:-1] == ord(" ")])
    found = bytes_of(lower)
    lengths = found.ends - found.starts
    begins = np.cumsum(lengths) - lengths
    follows_space[begins[lengths > 0]] = True
    letters = (content >= ord("a")) & (content <= ord("z"))
    return column_of(
        values.type, lengths=lengths, data=np.where(follows_space & letters, content - 32, content), nulls_of=values
    )


_CASES: Mapping[str, tuple[Callable[[pa.Array], pa.Array], Callable[[str], str]]] = {
    "Upper": (pc.ascii_upper, _upper),
    "Lower": (pc.ascii_lower, _lower),
    "InitCap": (_ascii_initial_capitals, _initial_capitals),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = dict.fromkeys(_CASES, build_case)
