"""A store that fails as real ones do: surely, or so that the caller cannot know whether its write happened.

Owns what an outcome does to a call. Which call gets which outcome is decided by `faults`, so that a test can replay it.
It never loses or changes what the store behind it holds.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeAlias, TypeVar, assert_never

from tidegate.model.errors import DidNotHappen, MayHaveHappened
from tidegate.storage.store import AlreadyThere, Created, Data, Store

T = TypeVar("T")


class StoreOperation(Enum):
    READ = "read"
    READ_RANGE = "read_range"
    CREATE = "create"
    PUT = "put"
    LIST = "list"
    DELETE = "delete"
    SIZE = "size"


class Result(Enum):
    """What becomes of one call. A call that changes nothing fails in every case but the first with `DidNotHappen`."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    """Nothing is written, and the caller knows it: `DidNotHappen`."""
    SUCCEEDS_BUT_TIMES_OUT = "succeeds but times out"
    """It is written, and the caller does not know it: `MayHaveHappened`."""
    FAILS_WITH_TIMEOUT = "fails with a timeout"
    """Nothing is written, and the caller does not know it: `MayHaveHappened`."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Takes `pause_ms` before it comes to `then`."""

    pause_ms: float
    then: Result = Result.SUCCEEDS


Outcome: TypeAlias = Result | Slow
Faults: TypeAlias = Callable[[StoreOperation, str], Outcome]

EVERY_FAULT: Sequence[Outcome] = (Result.FAILS, Result.SUCCEEDS_BUT_TIMES_OUT, Result.FAILS_WITH_TIMEOUT)


def no_faults(operation: StoreOperation, path: str) -> Outcome:
    return Result.SUCCEEDS


class ScriptedFaults:
    """The outcomes of the next calls, in this order; every later call succeeds.

    With `operations`, only those calls use up the script, and all others succeed.
    """

    def __init__(
        self, script: Iterable[Outcome], *, operations: Collection[StoreOperation] = tuple(StoreOperation)
    ) -> None:
        self._script = deque(script)
        self._operations = frozenset(operations)

    def __call__(self, operation: StoreOperation, path: str) -> Outcome:
        return self._script.popleft() if self._script and operation in self._operations else Result.SUCCEEDS

    @property
    def left(self) -> Sequence[Outcome]:
        """What no call has met yet."""
        return tuple(self._script)


class RandomFaults:
    """Each call meets one of `outcomes` with probability `rate`; the seed of `random` replays a run of one thread."""

    def __init__(self, random: Random, *, rate: float, outcomes: Sequence[Outcome] = EVERY_FAULT) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"The rate of faults is {rate}: it must be between 0 and 1.")
        self._random = random
        self._rate = rate
        self._outcomes = outcomes

    def __call__(self, operation: StoreOperation, path: str) -> Outcome:
        return self._random.choice(self._outcomes) if self._random.random() < self._rate else Result.SUCCEEDS


def sleep_ms(ms: float) -> None:
    time.sleep(ms / 1000.0)


class FaultyStore:
    """Wraps any `Store`. `pause` is how a slow call waits: `ManualClock.advance` makes it take no time."""

    def __init__(self, store: Store, faults: Faults, *, pause: Callable[[float], None] = sleep_ms) -> None:
        self._store = store
        self._faults = faults
        self._pause = pause

    def read(self, path: str) -> bytes:
        return self._look(StoreOperation.READ, path, lambda: self._store.read(path))

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        return self._look(
            StoreOperation.READ_RANGE, path, lambda: self._store.read_range(path, start=start, length=length)
        )

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        return self._change(StoreOperation.CREATE, path, lambda: self._store.create(path, data))

    def put(self, path: str, data: Data) -> None:
        self._change(StoreOperation.PUT, path, lambda: self._store.put(path, data))

    def list(self, prefix: str = "") -> list[str]:
        return self._look(StoreOperation.LIST, prefix, lambda: self._store.list(prefix))

    def delete(self, path: str) -> None:
        self._change(StoreOperation.DELETE, path, lambda: self._store.delete(path))

    def size(self, path: str) -> int:
        return self._look(StoreOperation.SIZE, path, lambda: self._store.size(path))

    def _look(self, operation: StoreOperation, path: str, call: Callable[[], T]) -> T:
        match self._result(operation, path):
            case Result.SUCCEEDS:
                return call()
            case Result.FAILS | Result.SUCCEEDS_BUT_TIMES_OUT | Result.FAILS_WITH_TIMEOUT:
                # Nothing was to be changed: an answer that is lost is no different from none.
                raise DidNotHappen(_said(operation, path, "failed"))
            case other:
                assert_never(other)

    def _change(self, operation: StoreOperation, path: str, call: Callable[[], T]) -> T:
        match self._result(operation, path):
            case Result.SUCCEEDS:
                return call()
            case Result.FAILS:
                raise DidNotHappen(_said(operation, path, "failed"))
            case Result.SUCCEEDS_BUT_TIMES_OUT:
                call()
                raise MayHaveHappened(_said(operation, path, "timed out"))
            case Result.FAILS_WITH_TIMEOUT:
                raise MayHaveHappened(_said(operation, path, "timed out"))
            case other:
                assert_never(other)

    def _result(self, operation: StoreOperation, path: str) -> Result:
        match self._faults(operation, path):
            case Slow(pause_ms, then):
                self._pause(pause_ms)
                return then
            case Result() as result:
                return result
            case other:
                assert_never(other)


def _said(operation: StoreOperation, path: str, what: str) -> str:
    return f"The {operation.value} of {path or 'everything'!r} {what}, as the test asked."
