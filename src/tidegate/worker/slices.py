"""How many rows make a slice, from what rows have cost lately, and from whether somebody waits for its end."""

# Small at first: a function that takes a millisecond a row must not hold the first barrier for a second.
_FIRST_ROWS = 16
MOST_ROWS = 1 << 16
_GROWTH = 4
# A cheap past is trusted for this part of a slice, until the rows of today have shown what they cost.
_PROBED_PART = 8
# Below this, a slice is a probe by itself.
_LEAST_PROBED_ROWS = 2 * _PROBED_PART
# Of a slice that somebody waits for: what a slice costs whatever its rows are is then still the smaller part.
_HURRIED_PART = 8


class SliceSizer:
    def __init__(self, target_ms: float) -> None:
        self._target_ms = target_ms
        self._rows = _FIRST_ROWS
        self._cost_ms_per_row = 0.0

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def hurried_rows(self) -> int:
        """For a slice that somebody waits for."""
        return max(1, self.rows // _HURRIED_PART)

    @property
    def hurried_ms(self) -> float:
        """What such a slice takes."""
        return self._cost_ms_per_row * max(1, self._rows // _HURRIED_PART)

    def observe(self, *, rows: int, elapsed_ms: float) -> None:
        if rows == 0:
            return
        measured = elapsed_ms / rows
        # Dearer counts at once, cheaper by and by: too long a slice delays a barrier, too short only costs a little.
        self._cost_ms_per_row = max(measured, (self._cost_ms_per_row + measured) / 2)
        affordable = self._target_ms / self._cost_ms_per_row if self._cost_ms_per_row > 0 else MOST_ROWS
        self._rows = max(1, min(int(affordable), self._rows * _GROWTH, MOST_ROWS))


class ProbingSizer(SliceSizer):
    """For user code, whose rows may suddenly cost a thousand times as much: each slice has a probe in front of it."""

    def __init__(self, target_ms: float) -> None:
        super().__init__(target_ms)
        self._has_probed = False

    @property
    def rows(self) -> int:
        is_probe = self._rows >= _LEAST_PROBED_ROWS and not self._has_probed
        return self._rows // _PROBED_PART if is_probe else self._rows

    def observe(self, *, rows: int, elapsed_ms: float) -> None:
        if rows == 0:
            return
        if self._has_probed or self._rows < _LEAST_PROBED_ROWS:
            self._has_probed = False
            super().observe(rows=rows, elapsed_ms=elapsed_ms)
        elif elapsed_ms <= self._target_ms:
            # What a call costs whatever it is given weighs too much in a probe to be counted by row.
            self._has_probed = True
        else:
            super().observe(rows=rows, elapsed_ms=elapsed_ms)
