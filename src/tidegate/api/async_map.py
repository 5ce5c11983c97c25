"""`tg.async_map`: rows through a function that waits for something outside, as a DataFrame that composes further."""

import inspect
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from tidegate.model.errors import OptionError
from tidegate.model.units import parse_duration_ms
from tidegate.operators.contract import CallStyle
from tidegate.plan.nodes import AnswerOrder
from tidegate.spark.async_mapped import AsyncCall, carrying, function_name, style_of

# Each waits in a thread of its own.
MOST_BLOCKING_CALLS = 1_000
MOST_AWAITED_CALLS = 100_000


def async_map(
    df: DataFrame,
    fn: Callable[[Row], Any],
    schema: StructType | str,
    capacity: int = 100,
    *,
    ordered: bool = True,
    blocking: bool | None = None,
    timeout: str | float | None = None,
) -> DataFrame:
    """Calls `fn` with each Row, for up to `capacity` rows at once in each slot; the result has the Rows that it gives.

    `schema` is theirs. `fn` gives a Row, an iterable of Rows, or None; it may wait, for a database or a service, and
    only its own row waits with it. A plain function is called in threads, so it must be safe to be called by several
    at once; an `async def` is awaited. `blocking` may say which of them it is, True for a plain function, and is
    refused where it is the other. With `ordered=False` rows leave as they are answered. `timeout` ("30s", or seconds)
    is of one call. After a failure calls may be made again; each result still reaches the sink exactly once.
    Only Tidegate runs the result: write it with `tg.writeStream`.
    """
    if not callable(fn):
        raise OptionError(f"tg.async_map needs a function from a Row to Rows, not {type(fn).__name__}.")
    if inspect.isasyncgenfunction(fn):
        raise OptionError(
            f"tg.async_map does not run the asynchronous generator {function_name(fn)!r}: return a list of Rows."
        )
    _check_style(fn, blocking)
    most = MOST_AWAITED_CALLS if style_of(fn) is CallStyle.AWAITED else MOST_BLOCKING_CALLS
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 1 <= capacity <= most:
        hint = "" if most == MOST_AWAITED_CALLS else f", or up to {MOST_AWAITED_CALLS} with an async def"
        raise OptionError(f"tg.async_map has the capacity {capacity!r}: it is a number of rows from 1 to {most}{hint}.")
    timeout_ms = None if timeout is None else parse_duration_ms(str(timeout), option="timeout")
    if timeout_ms == 0:
        raise OptionError("tg.async_map has the timeout 0: leave it out to wait for as long as a call takes.")
    order = AnswerOrder.AS_TAKEN if ordered else AnswerOrder.AS_ANSWERED
    return df.mapInArrow(carrying(AsyncCall(fn, capacity, order, timeout_ms)), schema)


def _check_style(fn: Callable[[Row], Any], blocking: bool | None) -> None:
    """The function itself says how it is called; who says it too means that."""
    if blocking is not None and not isinstance(blocking, bool):
        raise OptionError(f"tg.async_map has blocking={blocking!r}: write True or False, or leave it out.")
    match blocking, style_of(fn):
        case True, CallStyle.AWAITED:
            raise OptionError(
                f"tg.async_map has blocking=True, and {function_name(fn)!r} is an async def, which is awaited: "
                f"leave blocking out, or write a plain function."
            )
        case False, CallStyle.BLOCKING:
            raise OptionError(
                f"tg.async_map has blocking=False, and {function_name(fn)!r} is a plain function, which is called in "
                f"threads: leave blocking out, or write an async def."
            )
