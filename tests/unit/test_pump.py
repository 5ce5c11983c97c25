"""A thread that reads ahead: its end, however it comes about, is heard by whoever takes."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tidegate.connectors.pump import Pump, Pumped, PumpEmpty, PumpEnded
from tidegate.model.errors import UserCodeFailure


def taken(pump: Pump[int]) -> Pumped[int] | PumpEnded:
    deadline = time.monotonic() + 10
    while isinstance(found := pump.take(), PumpEmpty):
        assert time.monotonic() < deadline, "nothing comes, and nobody says why"
        time.sleep(0.001)
    return found


def cancelled() -> NoReturn:
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [lambda: sys.exit("enough"), cancelled], ids=["sys.exit", "a cancelled call"])
def test_a_reader_that_ends_the_thread_fails_the_query(end: Callable[[], NoReturn]) -> None:
    def read() -> Iterator[int]:
        yield 1
        end()

    pump = Pump(read, name="test")
    assert taken(pump) == Pumped(1)
    with pytest.raises(UserCodeFailure, match="A source's reader raised (SystemExit: enough|CancelledError)"):
        taken(pump)
    pump.close()


def test_what_a_reader_raises_is_raised_where_it_is_taken() -> None:
    def read() -> Iterator[int]:
        raise ValueError("no such table")
        yield 1

    pump = Pump(read, name="test")
    with pytest.raises(ValueError, match="no such table"):
        taken(pump)
    pump.close()


def test_the_end_is_told() -> None:
    pump = Pump(lambda: iter([1]), name="test")
    assert [taken(pump), taken(pump)] == [Pumped(1), PumpEnded()]
    pump.close()
