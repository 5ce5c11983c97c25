"""How other threads reach the loop: they leave a note, the loop wakes up and takes it."""

import functools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

_Work: TypeAlias = tuple[Callable[[], None], Callable[[BaseException | None], None]]


class Mailbox:
    """Notes are calls that the loop's thread makes; `fileno` becomes readable when there is one."""

    def __init__(self) -> None:
        self._notes: deque[Callable[[], None]] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._is_closed = False
        # Whoever posts must not meet the end between its look and its write: the number may be another file's by then.
        self._closing = threading.RLock()  # again by what a freed note frees

    def fileno(self) -> int:
        return self._read_fd

    def post(self, note: Callable[[], None]) -> None:
        with self._closing:
            if self._is_closed:
                return  # nobody takes it any more, and what it refers to could not go
            self._notes.append(note)
            try:
                os.write(self._write_fd, b"!")
            except BlockingIOError:
                return  # the pipe is full of wake-ups already

    def wake(self) -> None:
        """There is something to look at for the loop, which does so by itself once it is awake."""
        self.post(_nothing)

    def take(self) -> list[Callable[[], None]]:
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            pass
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            # What nobody takes any more may refer to files of state.
            self._notes.clear()
            os.close(self._read_fd)
            os.close(self._write_fd)


def _nothing() -> None:
    pass


class Background(Protocol):
    """Blocking work beside the loop. `then` runs on the loop with the error, or None."""

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None: ...
    def close(self) -> None: ...


class BackgroundThread:
    """One thread, so that what is submitted happens in that order.

    Not a ThreadPoolExecutor: that one refuses work as soon as the interpreter begins to end, and a query that is
    stopped by just that still has to commit and to tidy up.
    """

    def __init__(self, mailbox: Mailbox, *, name: str) -> None:
        self._mailbox = mailbox
        self._submitted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        self._submitted.put((work, then))

    def finish(self, patience_s: float | None = None) -> bool:
        """Do all that was submitted, then end; whether that was so in this time, else the thread is left behind."""
        self._submitted.put(None)
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        """Whether the caller is work that was submitted here."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End; what has not begun is dropped."""
        try:
            while True:
                self._submitted.get_nowait()
        except queue.Empty:
            self.finish()

    def _serve(self) -> None:
        while (submitted := self._submitted.get()) is not None:
            work, then = submitted
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # handed to the loop, which decides
                error = raised
            self._mailbox.post(functools.partial(then, error))
            # An error refers to this call, which must not refer to it and to the work in turn, nor while it waits.
            del submitted, work, then, error
