"""Keeps the statistics of failed checkpoints in storage, for who asks why from outside or after the end.

Written seldom and behind everything else; if it cannot be written, the job goes on and says so once.
"""

import logging
from typing import Final

from tidegate.model.clock import Clock
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.protocol.checkpoints import FailureReason
from tidegate.storage.statistics import FAILED_KEPT, put_failed
from tidegate.storage.store import Store
from tidegate.worker.mailbox import Background

log = logging.getLogger("tidegate")

# Where every checkpoint fails, one write tells of several.
_EVERY_MS: Final = 5_000.0
_LEFT_OUT: Final = frozenset({FailureReason.JOB_STOPPED.value, FailureReason.SUBSUMED.value})


class FailureNotes:
    def __init__(self, store: Store, storing: Background, clock: Clock) -> None:
        self._store = store
        self._storing = storing
        self._clock = clock
        self._written: tuple[CheckpointFacts, ...] = ()
        self._next_ms = 0.0
        self._has_warned = False

    def look(self, newest: tuple[CheckpointFacts, ...]) -> None:
        """Writes what is new, unless it wrote just now."""
        if self._clock.monotonic_ms() < self._next_ms:
            return
        failed = _failed(newest)
        if failed and failed != self._written:
            self._written = failed
            self._next_ms = self._clock.monotonic_ms() + _EVERY_MS
            self._storing.submit(lambda: put_failed(self._store, failed), self._on_written)

    def finish(self, newest: tuple[CheckpointFacts, ...]) -> None:
        """The job has ended, and with it the background: what is left is written here and now."""
        failed = _failed(newest)
        if failed and failed != self._written:
            try:
                put_failed(self._store, failed)
            except Exception as error:
                self._on_written(error)

    def _on_written(self, error: BaseException | None) -> None:
        if error is not None and not self._has_warned:
            self._has_warned = True
            log.warning("The statistics of failed checkpoints could not be written: %s", error)


def _failed(newest: tuple[CheckpointFacts, ...]) -> tuple[CheckpointFacts, ...]:
    ended = (facts for facts in newest if facts.outcome is Outcome.FAILED and facts.failure not in _LEFT_OUT)
    return tuple(ended)[:FAILED_KEPT]
