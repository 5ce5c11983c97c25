"""How many rows make a slice, from what rows have cost lately."""

# Small at first: a function that takes a millisecond a row must not hold the first barrier for a second.
_FIRST_ROWS = 16
MOST_ROWS = 1 << 16
_GROWTH = 4


class SliceSizer:
    def __init__(self, target_ms: float) -> None:
        self._target_ms = target_ms
        self._rows = _FIRST_ROWS
        self._cost_ms_per_row = 0.0

    @property
    def rows(self) -> int:
        return self._rows

    def observe(self, *, rows: int, elapsed_ms: float) -> None:
        if rows == 0:
            return
        measured = elapsed_ms / rows
        # Dearer counts at once, cheaper by and by: too long a slice delays a barrier, too short only costs a little.
        self._cost_ms_per_row = max(measured, (self._cost_ms_per_row + measured) / 2)
        affordable = self._target_ms / self._cost_ms_per_row if self._cost_ms_per_row > 0 else MOST_ROWS
        self._rows = max(1, min(int(affordable), self._rows * _GROWTH, MOST_ROWS))
