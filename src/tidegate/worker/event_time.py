"""Event time in one task: it passes through the chain operator by operator, and each fires what is due before the next.

Timers fire in slices: a snapshot may fall between two of them, and those that are left fire after a restore, because
the watermark that made them due is in the snapshot.
"""

from collections.abc import Sequence

from tidegate.operators.contract import Emit, GivesLater, Operator
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS


class ChainTime:
    """`told_ms` is what was told downstream; it never goes back."""

    def __init__(
        self, operators: Sequence[Operator], emits: Sequence[Emit], *, input_ms: int, told_ms: int, interval_ms: float
    ) -> None:
        self._stages = list(zip(operators, emits, strict=True))
        self._holding = [operator if isinstance(operator, GivesLater) else None for operator in operators]
        # What each operator was told last: one in front of it may let go of rows that held event time back.
        self._heard_ms = [MIN_WATERMARK_MS for _ in operators]
        self._firing = 0
        self._input_ms = input_ms
        self.told_ms = told_ms
        self._interval_ms = interval_ms
        self._next_telling_ms = 0.0
        # After a restore too: timers that the stored watermark made due may not have fired yet.
        self._is_advancing = input_ms > MIN_WATERMARK_MS
        self.has_more = False
        # What is left to fire waits: for rows that its operator gives first, or for room in those behind it.
        self.is_held_up = False
        self._applied_ms: int | None = None  # so that a restored task fires what floors made due before any rows

    @property
    def input_ms(self) -> int:
        return self._input_ms

    def on_input(self, event_time_ms: int) -> None:
        if event_time_ms > self._input_ms:
            self._input_ms = event_time_ms
            self._is_advancing = True

    def on_rows(self) -> None:
        """Operators may have moved event time themselves, for downstream or for those behind them in the chain."""
        if self._is_advancing:
            return
        watermark_ms = self._input_ms
        for (operator, _), heard_ms in zip(self._stages, self._heard_ms, strict=True):
            if watermark_ms > heard_ms:
                self._is_advancing = True
                return
            watermark_ms = operator.watermark_behind(watermark_ms)
        self._is_advancing = watermark_ms > self.told_ms

    def is_due(self, *, wall_ms: int, now_ms: float) -> bool:
        """Whether something has to be fired or told before more input is taken."""
        if self.has_more or self._input_ms != self._applied_ms:
            return True
        if self._is_advancing and (now_ms >= self._next_telling_ms or self._behind_all() == MAX_WATERMARK_MS):
            return True
        return self._is_timer_due(wall_ms)

    def advance(self, max_timers: int, now_ms: float) -> int | None:
        """One slice of timers; once none is due, gives the watermark to be told downstream, if there is a new one."""
        watermark_ms = self._input_ms
        left_at = self._firing if self.has_more else None
        for position, (operator, emit) in enumerate(self._stages):
            operator.on_watermark(watermark_ms)
            self._heard_ms[position] = watermark_ms
            self.is_held_up = position == left_at and not self._has_room_behind(position)
            if self.is_held_up:
                self.has_more = True
                return None
            self.has_more = operator.fire(max_timers, emit)
            if self.has_more:
                self._is_advancing, self._firing = True, position
                holding = self._holding[position]
                self.is_held_up = holding is not None and holding.holds_rows()
                return None
            watermark_ms = operator.watermark_behind(watermark_ms)
        self._applied_ms = self._input_ms
        if watermark_ms <= self.told_ms:
            self._is_advancing = False
            return None
        if now_ms < self._next_telling_ms and watermark_ms != MAX_WATERMARK_MS:
            return None
        self._is_advancing = False
        self._next_telling_ms = now_ms + self._interval_ms
        self.told_ms = watermark_ms
        return watermark_ms

    def hurry(self) -> None:
        """The end of the input follows: from now on what is known is told without waiting for its turn."""
        self._interval_ms = self._next_telling_ms = 0.0

    def fire_again(self) -> None:
        """What operators have due is fired once more, slice by slice, without a new watermark."""
        self._applied_ms = None

    def next_timer_ms(self) -> int | None:
        """The next processing-time timer, in wall-clock time; none while those that are due are held up."""
        if self.is_held_up:
            return None
        times = [at for operator, _ in self._stages if (at := operator.next_timer_ms()) is not None]
        return min(times, default=None)

    def next_telling_ms(self) -> float | None:
        return self._next_telling_ms if self._is_advancing and not self.is_held_up else None

    def has_something_to_tell(self) -> bool:
        """Whether a watermark for downstream is known, whose turn may not have come yet."""
        return self._is_advancing or self._input_ms != self._applied_ms

    def _has_room_behind(self, position: int) -> bool:
        return all(holding is None or holding.room() for holding in self._holding[position + 1 :])

    def _is_timer_due(self, wall_ms: int) -> bool:
        at_ms = self.next_timer_ms()
        return at_ms is not None and at_ms <= wall_ms

    def _behind_all(self) -> int:
        watermark_ms = self._input_ms
        for operator, _ in self._stages:
            watermark_ms = operator.watermark_behind(watermark_ms)
        return watermark_ms
