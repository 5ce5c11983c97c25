"""Calls beside the loop, in real threads: they run at once, wake the loop, and end when they are told to."""

import asyncio
import select
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tidegate.operators.contract import Answered, CallStyle, Outcome, Raised, WaitingCalls
from tidegate.worker.mailbox import Mailbox
from tidegate.worker.waiting_calls import open_waiting_calls

LONG_S = 20.0


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    yield box
    box.close()


def collect(calls: WaitingCalls, mailbox: Mailbox, count: int) -> list[tuple[int, Outcome]]:
    """As the loop does: sleeps until it is woken, then asks."""
    done: list[tuple[int, Outcome]] = []
    while len(done) < count:
        assert select.select([mailbox.fileno()], [], [], LONG_S)[0], "nobody woke the loop"
        mailbox.take()
        done += calls.take_done()
    return done


def own_threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"tidegate-{name}")]


def in_style(style: CallStyle, call: Callable[[], Any]) -> Callable[[], Any]:
    if style is CallStyle.BLOCKING:
        return call

    async def awaited() -> Any:
        return call()

    return awaited


@pytest.mark.parametrize("style", CallStyle)
def test_outcomes_reach_the_loop_by_number(mailbox: Mailbox, style: CallStyle) -> None:
    calls = open_waiting_calls(mailbox, style, 4, "outcomes")

    def fails() -> None:
        raise ValueError("no")

    calls.start(1, in_style(style, lambda: "yes"))
    calls.start(2, in_style(style, fails))
    done = dict(collect(calls, mailbox, 2))
    assert done[1] == Answered("yes")
    raised = done[2]
    assert isinstance(raised, Raised) and str(raised.error) == "no"
    calls.close()
    assert own_threads("outcomes") == []


@pytest.mark.parametrize("style", CallStyle)
@pytest.mark.parametrize("error", [SystemExit("enough"), asyncio.CancelledError("enough"), KeyboardInterrupt("enough")])
def test_an_error_that_would_end_a_thread_is_an_outcome_too(
    mailbox: Mailbox, style: CallStyle, error: BaseException
) -> None:
    calls = open_waiting_calls(mailbox, style, 4, "ending")

    def fails() -> None:
        raise error

    calls.start(1, in_style(style, fails))
    (_, raised), *_ = collect(calls, mailbox, 1)
    assert raised == Raised(error)
    calls.start(2, in_style(style, lambda: "yes"))
    assert collect(calls, mailbox, 1) == [(2, Answered("yes"))]
    calls.close()


def test_blocking_calls_are_under_way_at_the_same_time(mailbox: Mailbox) -> None:
    calls = open_waiting_calls(mailbox, CallStyle.BLOCKING, 3, "together")
    # Passes only if all three are inside at once.
    together = threading.Barrier(3)
    for number in range(3):
        calls.start(number, lambda: together.wait(LONG_S))
    assert all(isinstance(outcome, Answered) for _, outcome in collect(calls, mailbox, 3))
    calls.close()


def test_coroutines_are_under_way_at_the_same_time_in_one_thread(mailbox: Mailbox) -> None:
    calls = open_waiting_calls(mailbox, CallStyle.AWAITED, 100, "coroutines")
    inside: list[int] = []

    async def all_inside(number: int) -> str:
        inside.append(number)
        while len(inside) < 50:
            await asyncio.sleep(0.001)
        return threading.current_thread().name

    for number in range(50):
        calls.start(number, partial(all_inside, number))
    names = {outcome.value for _, outcome in collect(calls, mailbox, 50) if isinstance(outcome, Answered)}
    assert len(names) == 1
    calls.close()


def test_threads_are_used_again(mailbox: Mailbox) -> None:
    calls = open_waiting_calls(mailbox, CallStyle.BLOCKING, 10, "again")
    for number in range(20):
        calls.start(number, lambda: None)
        collect(calls, mailbox, 1)
    assert len(own_threads("again")) == 1
    calls.close()


def test_a_call_that_hangs_does_not_keep_the_slot_from_leaving(mailbox: Mailbox) -> None:
    calls = open_waiting_calls(mailbox, CallStyle.BLOCKING, 2, "hanging")
    released = threading.Event()
    calls.start(0, released.wait)
    started_s = time.monotonic()
    calls.close()
    assert time.monotonic() - started_s < LONG_S / 2
    assert all(thread.daemon for thread in own_threads("hanging"))
    released.set()
    for thread in own_threads("hanging"):
        thread.join(LONG_S)
    assert calls.take_done() == []


def test_a_coroutine_that_waits_is_cancelled_and_may_tidy_up(mailbox: Mailbox) -> None:
    calls = open_waiting_calls(mailbox, CallStyle.AWAITED, 2, "cancelled")
    told: list[str] = []
    has_begun = threading.Event()

    async def waits() -> None:
        has_begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            told.append("tidied up")

    calls.start(0, waits)
    assert has_begun.wait(LONG_S)
    calls.close()
    assert told == ["tidied up"]
    assert own_threads("cancelled") == []
