"""How other threads reach the loop: they leave a note, the loop wakes up and takes it."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Mailbox:
    """Notes are calls that the loop's thread makes; `fileno` becomes readable when there is one."""

    def __init__(self) -> None:
        self._notes: deque[Callable[[], None]] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._is_closed = False

    def fileno(self) -> int:
        return self._read_fd

    def post(self, note: Callable[[], None]) -> None:
        self._notes.append(note)
        if self._is_closed:
            return
        try:
            os.write(self._write_fd, b"!")
        except BlockingIOError:
            return  # the pipe is full of wake-ups already

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
        self._is_closed = True
        os.close(self._read_fd)
        os.close(self._write_fd)


class Background(Protocol):
    """Blocking work beside the loop. `then` runs on the loop with the error, or None."""

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None: ...
    def close(self) -> None: ...


class BackgroundThread:
    """One thread, so that what is submitted happens in that order."""

    def __init__(self, mailbox: Mailbox, *, name: str) -> None:
        self._mailbox = mailbox
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # handed to the loop, which decides
                error = raised
            self._mailbox.post(lambda: then(error))

        self._pool.submit(run)

    def finish(self) -> None:
        """Do all that was submitted, then end."""
        self._pool.shutdown(wait=True)

    def close(self) -> None:
        """End; what has not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
