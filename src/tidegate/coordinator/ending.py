"""How a generation makes room for the next one, and how a job lets its slots go for good.

Both wait for the launch to exit, as state with a deadline; neither touches what is stored.
"""

import logging
from collections.abc import Callable

from tidegate.coordinator.launching import CurrentLaunch
from tidegate.coordinator.members import Members
from tidegate.model.clock import Clock
from tidegate.model.ids import SlotIndex
from tidegate.network.messages import Leave

log = logging.getLogger("tidegate")

# Told to leave, slots return within a step; then Spark may be asked to end them.
_LEAVE_TIMEOUT_MS = 10_000.0
# A lost executor is replaced within a few seconds, or not at all.
_ROOM_TIMEOUT_MS = 6_000.0
_LOOK_FOR_ROOM_MS = 200.0
_NEVER_MS = float("inf")


class Restarting:
    """From a failure to the next generation: the delay, then in place, or by a new launch once the old one is gone.

    A new launch waits a while for as many cores as are `wanted`, then takes what there is; for the first one it waits
    until somebody stops the job.
    """

    def __init__(
        self,
        launch: CurrentLaunch,
        members: Members,
        clock: Clock,
        *,
        wanted: int,
        start_again: Callable[[int], None],
    ) -> None:
        self._launch = launch
        self._members = members
        self._clock = clock
        self._wanted = wanted
        self._start_again = start_again
        self._patient_until_ms = 0.0
        self._has_warned = False
        self._start_at_ms = _NEVER_MS
        self._cancel_at_ms = _NEVER_MS
        self._awaits_exit = False
        self._in_place = True

    def begin(self, *, delay_ms: float, in_place: bool = True) -> None:
        """`in_place`: by the processes that are there, if they all are; not if one of them does not answer."""
        self._in_place = in_place
        self._start_at_ms = self._clock.monotonic_ms() + delay_ms
        self._patient_until_ms = self._start_at_ms + _ROOM_TIMEOUT_MS
        self._has_warned = False
        if not (in_place and self._launch.has_all_slots):
            self.send_away()

    def send_away(self) -> None:
        """Not in place any more: the sooner all are gone, the sooner they can be started again."""
        self._in_place = False
        self._members.tell_all(Leave("another slot is gone or does not answer", comes_back=True))

    def on_launch_exit(self) -> None:
        if self._awaits_exit:
            self._awaits_exit = False
            self._cancel_at_ms = _NEVER_MS
            self._go(self._clock.monotonic_ms())

    def on_time(self, now_ms: float) -> None:
        if now_ms >= self._start_at_ms:
            self._on_delay_over(now_ms)
        if now_ms >= self._cancel_at_ms:
            self._cancel_at_ms = _NEVER_MS
            self._launch.cancel()

    def next_deadline_ms(self) -> float:
        return min(self._start_at_ms, self._cancel_at_ms)

    def close(self) -> None:
        """The job ends instead, or has started again."""
        self._start_at_ms = self._cancel_at_ms = _NEVER_MS
        self._awaits_exit = False

    def _on_delay_over(self, now_ms: float) -> None:
        if not self._launch.is_there or (self._in_place and self._launch.has_all_slots):
            self._go(now_ms)
            return
        self._start_at_ms = _NEVER_MS
        self._cancel_at_ms = now_ms + _LEAVE_TIMEOUT_MS
        self._awaits_exit = True

    def _go(self, now_ms: float) -> None:
        slots = self._wanted
        if not self._launch.is_there and (room := self._launch.room()) is not None and room < slots:
            if now_ms < self._patient_until_ms or room < 1:
                self._warn_without_room(now_ms, room)
                self._start_at_ms = now_ms + _LOOK_FOR_ROOM_MS
                return
            slots = room
        self.close()
        self._start_again(slots)

    def _warn_without_room(self, now_ms: float, room: int) -> None:
        if room < 1 and now_ms >= self._patient_until_ms and not self._has_warned:
            self._has_warned = True
            log.warning("The query waits for an executor: Spark has no core left for it.")


class Leaving:
    """Until the launch has exited: nothing may be left running when the query says it is over."""

    def __init__(self, launch: CurrentLaunch, members: Members, clock: Clock, *, query: str) -> None:
        self._launch = launch
        self._members = members
        self._clock = clock
        self._query = query
        self._then: Callable[[], None] | None = None
        self._deadline_ms = _NEVER_MS
        self._was_cancelled = False
        self.has_begun = False

    def begin(self, reason: str, then: Callable[[], None]) -> None:
        """`then` is called once: when the launch has exited, at once if there is none, or when it will not exit."""
        self.has_begun = True
        self._then = then
        self._members.tell_all(Leave(reason))
        if self._launch.is_there:
            self._deadline_ms = self._clock.monotonic_ms() + _LEAVE_TIMEOUT_MS
        else:
            self._finish()

    def on_joined(self, slot: SlotIndex) -> None:
        """It was on its way when the others were told."""
        self._members.tell(slot, Leave("the query ends"))

    def on_launch_exit(self) -> None:
        self._finish()

    def on_time(self, now_ms: float) -> None:
        if now_ms < self._deadline_ms:
            return
        if self._was_cancelled:
            log.error("Query %r: Spark did not end the slots.", self._query)
            self._finish()
            return
        self._was_cancelled = True
        self._deadline_ms = now_ms + _LEAVE_TIMEOUT_MS
        self._launch.cancel()

    def next_deadline_ms(self) -> float:
        return self._deadline_ms

    def _finish(self) -> None:
        self._deadline_ms = _NEVER_MS
        then, self._then = self._then, None
        if then is not None:
            then()
