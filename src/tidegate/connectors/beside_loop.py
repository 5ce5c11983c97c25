"""What takes a sink's writer longer than a slice: it happens in turn, on a thread of its own, and no barrier waits."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

_T = TypeVar("_T")

# Bytes of rows that wait for the thread: two row groups keep it at work, and a checkpoint waits for them to be written.
# With more the writer has no room; with twice as much it waits.
_MOST_WAITING_BYTES = 16 << 20
# How long leaving waits for the thread: a few row groups take a second at the most, and a disk that hangs for ever.
_LEAVE_WITHIN_S = 10.0


class BesideLoop:
    """All of it happens in the order it is given. Once something has failed nothing more happens: it is raised again.

    The thread is a daemon: a disk that hangs must not keep a slot from leaving.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._given: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[Future[Any], int]] = deque()
        self._waiting_bytes = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._on_done: Callable[[], None] = _nothing

    def give(self, work: Callable[[], _T], *, size_bytes: int = 0) -> "Future[_T]":
        """Waits only for what was given long ago, if all that waits is far too much."""
        self._forget_done()
        while self._waiting_bytes > 2 * _MOST_WAITING_BYTES:
            wait([self._waiting[0][0]])
            self._forget_done()
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        done: Future[_T] = Future()
        self._waiting.append((done, size_bytes))
        self._waiting_bytes += size_bytes
        self._given.put((done, work))
        return done

    def given_so_far(self) -> "Future[None]":
        """Done when all of it is; fails if any of it did."""
        if self._thread is None:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self.give(_nothing)

    def has_room(self) -> bool:
        self._forget_done()
        return self._waiting_bytes <= _MOST_WAITING_BYTES

    def call_when_done(self, call: Callable[[], None]) -> None:
        """From the thread, whenever something is done."""
        self._on_done = call

    def finish(self) -> bool:
        """Does all that was given, and ends; whether that was so in time, else the thread is left behind.

        Raises nothing: whoever needs what failed asks for it.
        """
        if self._thread is None:
            return True
        self._given.put(None)
        self._thread.join(_LEAVE_WITHIN_S)
        has_ended = not self._thread.is_alive()
        self._thread = None
        return has_ended

    def _forget_done(self) -> None:
        while self._waiting and self._waiting[0][0].done():
            self._waiting_bytes -= self._waiting.popleft()[1]

    def _serve(self) -> None:
        while (given := self._given.get()) is not None:
            done, work = given
            try:
                if self._failure is not None:
                    raise self._failure
                result = work()
            except BaseException as error:  # raised where somebody asks
                self._failure = error
                done.set_exception(error)
            else:
                done.set_result(result)
                del result
            self._on_done()
            # What is done must not be held while the thread waits.
            del given, done, work


def _nothing() -> None:
    pass
