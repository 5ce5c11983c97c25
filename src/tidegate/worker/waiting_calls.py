"""Calls of user code that wait, beside the loop: in threads, or as coroutines in one thread.

They reach the loop by a list that only grows at one end and by a wake-up in its mailbox. All threads are daemons: a
call that never returns must not keep a slot from leaving.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from tidegate.operators.contract import Answered, CallStyle, Outcome, Raised, WaitingCalls
from tidegate.worker.mailbox import Mailbox

# How long leaving waits for calls that are under way: most return soon, and one that hangs never does.
_LEAVE_WITHIN_S = 0.5


def open_waiting_calls(mailbox: Mailbox, style: CallStyle, most_calls: int, name: str) -> WaitingCalls:
    match style:
        case CallStyle.BLOCKING:
            return ThreadCalls(mailbox, most_threads=most_calls, name=name)
        case CallStyle.AWAITED:
            return CoroutineCalls(mailbox, name=name)
        case _:
            assert_never(style)


class _Done:
    """Outcomes on their way to the loop. Closed before the mailbox is, so that nothing wakes a loop that has gone."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._outcomes: deque[tuple[int, Outcome]] = deque()
        self.is_closed = False

    def add(self, number: int, outcome: Outcome) -> None:
        if not self.is_closed:
            self._outcomes.append((number, outcome))
            self._mailbox.wake()

    def take(self) -> list[tuple[int, Outcome]]:
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]


class ThreadCalls:
    """At most so many calls may be under way as there may be threads: none waits for another."""

    def __init__(self, mailbox: Mailbox, *, most_threads: int, name: str) -> None:
        self._done = _Done(mailbox)
        self._most_threads = most_threads
        self._name = name
        self._given: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0

    def start(self, number: int, call: Callable[[], Any]) -> None:
        self._under_way += 1
        self._given.put((number, call))
        if self._under_way > len(self._threads) and len(self._threads) < self._most_threads:
            name = f"tidegate-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_done(self) -> list[tuple[int, Outcome]]:
        done = self._done.take()
        self._under_way -= len(done)
        return done

    def close(self) -> None:
        self._done.is_closed = True
        for _ in self._threads:
            self._given.put(None)
        _join(self._threads)

    def _serve(self) -> None:
        while (given := self._given.get()) is not None and not self._done.is_closed:
            number, call = given
            self._done.add(number, _outcome(call))


class CoroutineCalls:
    """One thread with an event loop of its own; `call` makes the coroutine that is awaited there."""

    def __init__(self, mailbox: Mailbox, *, name: str) -> None:
        self._done = _Done(mailbox)
        self._name = f"tidegate-{name}"
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(self, number: int, call: Callable[[], Any]) -> None:
        if self._opened is None:
            # Not sooner: an operator that is built and never run leaves nothing behind.
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            self._opened = loop, thread
            thread.start()
        loop = self._opened[0]
        loop.call_soon_threadsafe(self._begin, loop, number, call)

    def take_done(self) -> list[tuple[int, Outcome]]:
        return self._done.take()

    def close(self) -> None:
        if self._done.is_closed:
            return
        self._done.is_closed = True
        if self._opened is not None:
            loop, thread = self._opened
            loop.call_soon_threadsafe(self._stop, loop)
            _join([thread])

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            if self._tasks:
                # They were cancelled, and may still tidy up.
                loop.run_until_complete(asyncio.wait(set(self._tasks)))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def _begin(self, loop: asyncio.AbstractEventLoop, number: int, call: Callable[[], Any]) -> None:
        task = loop.create_task(self._await(number, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, number: int, call: Callable[[], Any]) -> None:
        try:
            outcome: Outcome = Answered(await call())
        except BaseException as error:
            if self._done.is_closed:
                raise  # cancelled, because the slot leaves
            outcome = Raised(error)
        self._done.add(number, outcome)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in self._tasks:
            task.cancel()
        loop.stop()


def _outcome(call: Callable[[], Any]) -> Outcome:
    """Whatever it raises, `sys.exit()` too: a call without an outcome would be waited for for ever."""
    try:
        return Answered(call())
    except BaseException as error:
        return Raised(error)


def _join(threads: list[threading.Thread]) -> None:
    deadline_s = time.monotonic() + _LEAVE_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
