"""Reads an iterator that may block on a thread of its own, a few items ahead.

The loop's thread takes what is there and never waits. Must not touch anything else of the loop.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tidegate.model.errors import UserCodeFailure

T = TypeVar("T")

# Ahead of the reader by so many items at the most: enough to hide a wait, few enough to hold in memory.
_ITEMS_AHEAD = 4
_LOOK_EVERY_S = 0.1
# A thread that sits in a user's call cannot be ended; it is left to end by itself when that call returns.
_JOIN_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class PumpEmpty:
    """Nothing is there just now."""


@dataclass(frozen=True, slots=True)
class PumpEnded:
    """The iterator has ended."""


@dataclass(frozen=True, slots=True)
class Pumped(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


Taken: TypeAlias = Pumped[T] | PumpEmpty | PumpEnded


class Pump(Generic[T]):
    """`read` is called on the new thread."""

    def __init__(self, read: Callable[[], Iterator[T]], *, name: str) -> None:
        self._read = read
        self._items: queue.Queue[Pumped[T] | PumpEnded | _Failed] = queue.Queue(_ITEMS_AHEAD)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def take(self) -> Taken[T]:
        """Raises what the iterator raised."""
        try:
            taken = self._items.get_nowait()
        except queue.Empty:
            return PumpEmpty()
        if isinstance(taken, _Failed):
            raise taken.error
        return taken

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(_JOIN_PATIENCE_S)

    def _serve(self) -> None:
        try:
            for item in self._read():
                if not self._give(Pumped(item)):
                    return
        except Exception as error:  # raised again where it is taken
            self._give(_Failed(error))
        except BaseException as error:  # sys.exit, a cancelled call, a panic: not to end in silence
            self._give(_Failed(UserCodeFailure(f"A source's reader raised {type(error).__name__}: {error}")))
        else:
            self._give(PumpEnded())

    def _give(self, item: Pumped[T] | PumpEnded | _Failed) -> bool:
        while not self._is_closed.is_set():
            try:
                self._items.put(item, timeout=_LOOK_EVERY_S)
            except queue.Full:
                continue
            return True
        return False
