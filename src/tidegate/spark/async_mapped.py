"""A user's function that waits, from `tg.async_map`: how it travels inside a DataFrame's plan, and how it is called.

Must never run in Spark's own engine: the function that carries it only says where it belongs.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row

from tidegate.model.errors import UserError
from tidegate.operators.contract import CallStyle, WaitingFunction
from tidegate.plan.nodes import AnswerOrder
from tidegate.spark.catalyst_trees import PlanTree
from tidegate.spark.commands import Command, open_function
from tidegate.spark.stateful import named_row, output_values

_ATTRIBUTE = "tidegate_async_map"
# No function of a user's own can be called so.
_NAME = "async_map({})"


@dataclass(frozen=True, slots=True)
class AsyncCall:
    """What `tg.async_map` was given."""

    function: Callable[[Row], Any]
    capacity: int
    order: AnswerOrder
    timeout_ms: float | None


def carrying(call: AsyncCall) -> Callable[[Any], Any]:
    """A function for mapInArrow, which holds its child and the output schema in the plan."""

    def async_map(batches: Any) -> Any:
        raise UserError("tg.async_map runs in a Tidegate query: write its DataFrame with tg.writeStream(df).")

    async_map.__name__ = _NAME.format(function_name(call.function))
    setattr(async_map, _ATTRIBUTE, call)
    return async_map


def function_name(function: Callable[[Row], Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def is_async_map(tree: PlanTree) -> bool:
    return tree.name == "MapInArrow" and tree.expression("functionExpr").fields["name"].startswith(_NAME[:-3])


def async_call_in(command: Command) -> AsyncCall:
    call = getattr(open_function(command), _ATTRIBUTE)
    assert isinstance(call, AsyncCall)
    return call


def style_of(function: Callable[[Row], Any]) -> CallStyle:
    called = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ counts, too
    is_awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    return CallStyle.AWAITED if is_awaited else CallStyle.BLOCKING


def open_waiting_function(
    command: Command, *, input_names: tuple[str, ...], output_names: tuple[str, ...]
) -> WaitingFunction:
    function = async_call_in(command).function
    style = style_of(function)

    def blocking(values: tuple[Any, ...]) -> list[Any]:
        return list(_given(function(named_row(input_names, values))))

    async def awaited(values: tuple[Any, ...]) -> list[Any]:
        return list(_given(await function(named_row(input_names, values))))

    def take(answer: list[Any]) -> list[tuple[Any, ...]]:
        return [output_values(row, output_names, called="The function") for row in answer]

    return WaitingFunction(style, blocking if style is CallStyle.BLOCKING else awaited, take)


def _given(answer: Any) -> Iterator[Any]:
    """A row, several of them, or none. A generator is the user's code, too: it runs where the call does."""
    if answer is None:
        return
    if isinstance(answer, tuple):
        yield answer
    elif isinstance(answer, Iterable) and not isinstance(answer, str | bytes | dict):
        yield from answer
    else:
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"it must give a Row, an iterable of Rows or None, but gave {answer!r}")
