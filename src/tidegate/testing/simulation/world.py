"""What the simulation puts in place of clock, disk and threads. Only the world outlives a crash."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidegate.model.errors import DidNotHappen, MayHaveHappened
from tidegate.storage.store import AlreadyThere, Created, Data, missing, pieces_of, whole_range
from tidegate.testing.manual_clock import ManualClock

# Enough to see what led to a failure; the seed gives the rest.
_TRACED = 60


class Crash(BaseException):
    """A process is gone at this very moment. Not an Exception: no production code may catch it."""


class SimulationFailed(AssertionError):
    """The run broke a promise."""


@dataclass(slots=True)
class World:
    """The disk, what the sink has published, and the faults that strike between two writes to either."""

    random: Random
    clock: ManualClock = field(default_factory=ManualClock)
    files: dict[str, bytes] = field(default_factory=dict)
    hidden: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    published: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=_TRACED))
    effects_until_crash: int | None = None
    store_flaky_rate: float = 0.0
    sink_flaky_rate: float = 0.0
    interlude: Callable[[], None] | None = None

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.monotonic_ms():9.1f} {text}")

    def happens(self, rate: float) -> bool:
        return rate > 0 and self.random.random() < rate

    def crash_point(self) -> None:
        """Between two effects on what outlives a crash: here others may act, and here it may all end."""
        if self.interlude is not None:
            # Not from inside itself: whoever acts in between is one process, too.
            interlude, self.interlude = self.interlude, None
            try:
                interlude()
            finally:
                self.interlude = interlude
        if self.effects_until_crash is not None:
            self.effects_until_crash -= 1
            if self.effects_until_crash <= 0:
                self.effects_until_crash = None
                raise Crash


class SimStore:
    """`Store` in memory below a location, with crashes around writes and writes whose outcome is not known."""

    def __init__(self, world: World, location: str) -> None:
        self._world = world
        self.location = location.rstrip("/")
        self._prefix = self.location + "/"

    def read(self, path: str) -> bytes:
        found = self._world.files.get(self._prefix + path)
        if found is None:
            raise missing(path)
        return found

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        return whole_range(self.read(path)[start : start + length], path, start=start, length=length)

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        self._before(path)
        if self._prefix + path in self._world.files:
            return AlreadyThere()
        self._world.files[self._prefix + path] = _joined(data)
        self._after(path)
        return Created()

    def put(self, path: str, data: Data) -> None:
        self._before(path)
        self._world.files[self._prefix + path] = _joined(data)
        self._after(path)

    def list(self, prefix: str = "") -> list[str]:
        self._world.crash_point()
        start = self._prefix + (prefix + "/" if prefix else "")
        return sorted(path[len(self._prefix) :] for path in self._world.files if path.startswith(start))

    def delete(self, path: str) -> None:
        self._world.crash_point()
        self._world.files.pop(self._prefix + path, None)

    def size(self, path: str) -> int:
        return len(self.read(path))

    def _before(self, path: str) -> None:
        self._world.crash_point()
        if self._world.happens(self._world.store_flaky_rate):
            raise DidNotHappen(path)

    def _after(self, path: str) -> None:
        self._world.crash_point()
        if self._world.happens(self._world.store_flaky_rate):
            raise MayHaveHappened(path)


def _joined(data: Data) -> bytes:
    return b"".join(bytes(piece) for piece in pieces_of(data))


class SimBackground:
    """`Background` whose work and notes happen when the scheduler says so; each in the order of submission."""

    def __init__(self) -> None:
        self._work: deque[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = deque()
        self._notes: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        self._work.append((work, then))

    def close(self) -> None:
        self._work.clear()

    def forget(self) -> None:
        """With what nobody has heard of."""
        self._work.clear()
        self._notes.clear()

    def has_work(self) -> bool:
        return bool(self._work)

    def work_once(self) -> bool:
        if not self._work:
            return False
        work, then = self._work.popleft()
        error: BaseException | None = None
        try:
            work()
        except Exception as raised:  # handed to the loop, which decides
            error = raised
        self._notes.append(lambda: then(error))
        return True

    def note_once(self) -> bool:
        if not self._notes:
            return False
        self._notes.popleft()()
        return True
