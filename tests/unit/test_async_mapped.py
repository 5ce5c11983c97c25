"""How the function of tg.async_map travels and is called, without Spark's JVM."""

import asyncio
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row

from tidegate.model.errors import UserError
from tidegate.operators.contract import CallStyle, WaitingFunction
from tidegate.plan.nodes import AnswerOrder
from tidegate.spark.async_mapped import AsyncCall, carrying, open_waiting_function
from tidegate.spark.commands import Command


def opened(function: Any) -> WaitingFunction:
    carrier = carrying(AsyncCall(function, 5, AnswerOrder.AS_TAKEN, None))
    pickled = CPickleSerializer().dumps((carrier, None))  # type: ignore[no-untyped-call]  # PySpark's are untyped
    command = Command(eval_type=0, pickled=pickled, name=carrier.__name__, broadcasts={}, settings={})
    return open_waiting_function(command, input_names=("id", "user"), output_names=("id", "name"))


def answer(function: Any) -> list[tuple[Any, ...]]:
    waiting = opened(function)
    return waiting.take(waiting.call((1, "a")))


def test_the_function_gets_a_row_and_its_row_counts_by_name() -> None:
    assert answer(lambda row: Row(name=row.user, other=0, id=row.id)) == [(1, "a")]


def test_a_tuple_counts_by_position() -> None:
    assert answer(lambda row: (row["id"], row["user"])) == [(1, "a")]


def test_none_is_no_row_and_an_iterable_is_several() -> None:
    assert answer(lambda row: None) == []
    assert answer(lambda row: [Row(id=1, name="x"), Row(id=2, name="y")]) == [(1, "x"), (2, "y")]
    assert answer(lambda row: (Row(id=n, name="x") for n in range(3))) == [(0, "x"), (1, "x"), (2, "x")]


def test_what_is_no_row_is_named() -> None:
    with pytest.raises(TypeError, match="must give a Row, an iterable of Rows or None, but gave 'text'"):
        answer(lambda row: "text")
    with pytest.raises(TypeError, match="must give Rows with the fields id, name, but gave 5"):
        answer(lambda row: [5])


def test_a_plain_function_that_gives_a_coroutine_is_named() -> None:
    async def waits(row: Row) -> Row:
        return row

    with pytest.raises(TypeError, match="but gave <coroutine"):
        answer(lambda row: waits(row))


def test_an_async_def_is_awaited_also_as_an_object() -> None:
    class Client:
        async def __call__(self, row: Row) -> Row:
            return Row(id=row.id, name="looked up")

    waiting = opened(Client())
    assert waiting.style is CallStyle.AWAITED
    assert waiting.take(asyncio.run(waiting.call((1, "a")))) == [(1, "looked up")]


def test_the_carrier_does_not_run_in_sparks_engine() -> None:
    carrier = carrying(AsyncCall(lambda row: row, 5, AnswerOrder.AS_TAKEN, None))
    assert carrier.__name__ == "async_map(<lambda>)"
    with pytest.raises(UserError, match=r"write its DataFrame with tg.writeStream"):
        carrier(iter([]))
