"""A cast in stages: each gives null for what it cannot convert, and names the error that ANSI mode makes of that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Cast
from tidegate.plan.kernels.constants import TRUE

Convert: TypeAlias = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Stage:
    """`error`: what a value that becomes null raises in ANSI mode; none, if Spark gives null there too."""

    convert: Convert
    error: str | None


def total(convert: Convert) -> Stage:
    """A stage that converts every value."""
    return Stage(convert, None)


def raising(stages: Sequence[Stage], cast: Cast, source: pa.DataType) -> Convert:
    """Raises the error of the first row that has one."""

    def convert(values: pa.Array) -> pa.Array:
        result, failures = values, []
        for stage in stages:
            before, result = result, stage.convert(result)
            if stage.error is not None and result.null_count > before.null_count:
                row = pc.index(pc.and_(result.is_null(), before.is_valid()), TRUE).as_py()
                failures.append((row, stage.error))
        if failures:
            row, error = min(failures)
            raise UserCodeFailure(f"{sentence(error, cast, source)} One of them is {values[row]}.")
        return result

    return convert


def quiet(stages: Sequence[Stage]) -> Convert:
    """Null for what cannot be converted."""

    def convert(values: pa.Array) -> pa.Array:
        for stage in stages:
            values = stage.convert(values)
        return values

    return convert


def may_fail(stages: Sequence[Stage]) -> bool:
    return any(stage.error is not None for stage in stages)


def sentence(error: str, cast: Cast, source: pa.DataType) -> str:
    return f"[{error}] A {source} does not fit {cast.type}: filter or guard such rows, or use try_cast."
