"""While a restore is only tried: the first query that a program starts is looked at instead, and the program ends.

There is at most one trial in a process, and it holds for all its threads: a program may start its query in any.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.coordinator.compatibility import NotRestored
from tidegate.coordinator.durable import DurableSettings
from tidegate.coordinator.inspection import Found
from tidegate.coordinator.restore_trial import TrialReport, try_restore
from tidegate.model.ids import CheckpointId
from tidegate.plan.lower import fingerprint
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.retention import KeepNumber, RestoreMode


class TrialEnded(BaseException):
    """Ends the program that is tried; no error, so that it is not caught as one."""


class Trial:
    def __init__(self, found: Found) -> None:
        self._found = found
        self.report: TrialReport | None = None

    def look_at(
        self,
        plan: JobPlan,
        not_restored: NotRestored,
        *,
        state_backend: str,
        rollback: SinkRollback,
        restore_mode: RestoreMode,
        without_captured_rows: CheckpointId | None,
    ) -> None:
        """In place of a start, with what its options say of a restore; always raises `TrialEnded`."""
        settings = DurableSettings(
            fingerprint=tuple(fingerprint(plan)),
            keep=KeepNumber(1),  # nothing is retired here
            rollback=rollback,
            not_restored=not_restored,
            restore_mode=restore_mode,
            without_captured_rows=without_captured_rows,
            state_backend=state_backend,
        )
        self.report = try_restore(self._found, plan, settings)
        raise TrialEnded


_current: Trial | None = None


def current_trial() -> Trial | None:
    return _current


@contextmanager
def trying(found: Found) -> Iterator[Trial]:
    global _current
    assert _current is None, "one program is tried at a time"
    _current = Trial(found)
    try:
        yield _current
    finally:
        _current = None
