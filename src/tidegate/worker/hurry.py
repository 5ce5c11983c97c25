"""A slot that an unaligned checkpoint waits for, or is about to: it works in short steps, and lets long ones wait.

Such a checkpoint waits for a step's end at every hop, and again to be acknowledged; and before that its trigger does,
which is expected when the interval is over. Where one row takes longer than a short step, the slot waits for the
trigger and for the other slots instead of beginning one. Must never make a step wait for longer than it takes itself.
"""

from typing import Final

from tidegate.model.ids import CheckpointId

# A trigger that keeps to the interval comes within these of when it was last heard.
_BEFORE_TRIGGER_MS: Final = 15.0
_AFTER_TRIGGER_MS: Final = 5.0
# Of shorter intervals this would be too large a part.
_LEAST_INTERVAL_MS: Final = 500.0
# What a checkpoint with little state takes from its trigger to a slot's acknowledgement, twice. One that uploads for
# longer gains nothing by small slices.
_LONGEST_HURRY_MS: Final = 50.0
# A step is let wait before the trigger and behind it, each for this part of the interval at the most.
_WAITING_PART: Final = 1 / 200
# A shorter step is as good as none: the checkpoint waits for it no longer than for the network.
_SHORT_STEP_MS: Final = 2.0
# A trigger is never heard before it was sent, so an early one tells more than a late one, of whose lateness a step in
# which it came may be a part. One that is late by more than any step has another schedule.
_TRUST_IN_LATE: Final = 1 / 8
_OTHER_SCHEDULE_MS: Final = 50.0


class Hurry:
    def __init__(self, interval_ms: float) -> None:
        self._interval_ms = interval_ms
        self._checkpoint: CheckpointId | None = None
        self._begun_ms = 0.0
        self._next_trigger_ms: float | None = None

    def begin(self, checkpoint: CheckpointId, now_ms: float) -> None:
        self._checkpoint = checkpoint
        self._begun_ms = now_ms

    def on_periodic_trigger(self, now_ms: float) -> None:
        """One that keeps to the interval, as the next one will."""
        if self._interval_ms < _LEAST_INTERVAL_MS:
            return
        expected_ms = self._next_trigger_ms
        sent_ms = now_ms
        if expected_ms is not None and 0 < now_ms - expected_ms < _OTHER_SCHEDULE_MS:
            sent_ms = expected_ms + (now_ms - expected_ms) * _TRUST_IN_LATE
        self._next_trigger_ms = sent_ms + self._interval_ms

    def end(self, checkpoint: CheckpointId) -> None:
        if checkpoint == self._checkpoint:
            self._checkpoint = None

    def is_on(self, now_ms: float) -> bool:
        if self._checkpoint is not None and now_ms < self._begun_ms + _LONGEST_HURRY_MS:
            return True
        next_ms = self._next_trigger_ms
        return next_ms is not None and next_ms - _BEFORE_TRIGGER_MS <= now_ms < next_ms + _AFTER_TRIGGER_MS

    def waits_until_ms(self, now_ms: float, *, step_ms: float) -> float | None:
        """Until when a step of that length is not to begin, unless the checkpoint is acknowledged; None if it may."""
        longest_ms = min(step_ms, self._interval_ms * _WAITING_PART)
        if longest_ms < _SHORT_STEP_MS:
            return None
        if self._checkpoint is not None and now_ms < self._begun_ms + longest_ms:
            return self._begun_ms + longest_ms
        next_ms = self._next_trigger_ms
        if next_ms is None or not next_ms - longest_ms <= now_ms < next_ms + _AFTER_TRIGGER_MS:
            return None
        return next_ms + _AFTER_TRIGGER_MS if now_ms + step_ms > next_ms else None
