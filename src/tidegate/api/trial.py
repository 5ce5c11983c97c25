"""While a restore is only tried: the first query that a program starts is looked at instead, and the program ends.

There is at most one trial in a process, and it holds for all its threads: a program may start its query in any.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.coordinator.compatibility import NotRestored
from tidegate.coordinator.inspection import StoredCheckpoint
from tidegate.coordinator.restore_trial import TrialReport, try_restore
from tidegate.plan.lower import fingerprint
from tidegate.plan.physical import JobPlan


class TrialEnded(BaseException):
    """Ends the program that is tried; no error, so that it is not caught as one."""


class Trial:
    def __init__(self, stored: StoredCheckpoint) -> None:
        self._stored = stored
        self.report: TrialReport | None = None

    def look_at(self, plan: JobPlan, not_restored: NotRestored, *, state_backend: str) -> None:
        """In place of a start; always raises `TrialEnded`."""
        self.report = try_restore(self._stored, plan, fingerprint(plan), not_restored, state_backend=state_backend)
        raise TrialEnded


_current: Trial | None = None


def current_trial() -> Trial | None:
    return _current


@contextmanager
def trying(stored: StoredCheckpoint) -> Iterator[Trial]:
    global _current
    assert _current is None, "one program is tried at a time"
    _current = Trial(stored)
    try:
        yield _current
    finally:
        _current = None
