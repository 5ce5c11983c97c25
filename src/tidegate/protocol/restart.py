"""Whether and when a failed job starts again."""

from dataclasses import dataclass
from typing import TypeAlias

# A job that ran this long before it failed starts counting afresh.
STABLE_AFTER_MS = 10 * 60_000.0
_LONGEST_DELAY_MS = 60_000.0
# Enough to reach it from any delay; without a bound a long outage makes a number that is none any more.
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class NoRestart:
    pass


@dataclass(frozen=True, slots=True)
class FixedDelay:
    attempts: int
    delay_ms: float


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The first restart comes at once, because most failures do not come again; the delays begin with the second."""

    attempts: int
    first_delay_ms: float


RestartStrategy: TypeAlias = NoRestart | FixedDelay | ExponentialDelay


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    attempts: int


class Restarts:
    """Counts the failures of one job."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._attempts = 0

    def on_failure(self, *, ran_for_ms: float) -> RestartAfter | GiveUp:
        if ran_for_ms >= STABLE_AFTER_MS:
            self._attempts = 0
        self._attempts += 1
        match self._strategy:
            case NoRestart():
                return GiveUp(0)
            case FixedDelay(attempts, delay_ms):
                return RestartAfter(delay_ms) if self._attempts <= attempts else GiveUp(attempts)
            case ExponentialDelay(attempts, first_delay_ms):
                if self._attempts > attempts:
                    return GiveUp(attempts)
                if self._attempts == 1:
                    return RestartAfter(0.0)
                doublings = min(self._attempts - 2, _MOST_DOUBLINGS)
                return RestartAfter(min(first_delay_ms * 2**doublings, _LONGEST_DELAY_MS))
