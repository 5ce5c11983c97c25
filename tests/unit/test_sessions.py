"""Which sessions rows join: as one by one in plain Python, and without a look at those that are long over."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators.sessions import Joined, Sessions

Window = tuple[int, int]
MOST_SLOTS = 1_000


class Held:
    """Sessions with what an aggregation keeps beside them: their ends, and which are there."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.ends_us: npt.NDArray[np.int64] = np.zeros(MOST_SLOTS, dtype=np.int64)
        self.live: npt.NDArray[np.bool_] = np.zeros(MOST_SLOTS, dtype=np.bool_)

    def join(self, rows: list[tuple[int, Window]]) -> Joined:
        keys = np.array([key for key, _ in rows])
        starts, ends = (np.array([window[at] for _, window in rows]) for at in (0, 1))
        joined = self.sessions.join(keys, starts, ends, ends_us=self.ends_us, live=self.live)
        self.ends_us[joined.slots] = joined.ends_us
        self.live[joined.slots] = True
        self.live[joined.absorbed] = False
        self.sessions.free(joined.absorbed)
        for (key, (start, end)), slot in zip(rows, joined.slot_of_row.tolist(), strict=True):
            assert self.live[slot] and self.sessions.keys.used[slot] == key
            assert self.sessions.starts_us.used[slot] <= start and end <= self.ends_us[slot]
        return joined

    def end(self, until_us: int) -> None:
        """Those that have ended by then are over."""
        self.live &= self.ends_us > until_us

    def compact(self) -> None:
        """As when those that are over are left behind."""
        slots = np.flatnonzero(self.live)
        old, self.sessions = self.sessions, Sessions()
        self.sessions.reserve(session_count=len(slots), key_count=4)
        self.sessions.add_closed_up(old.keys.used[slots], old.starts_us.used[slots])
        ends_us, self.ends_us = self.ends_us[slots], np.zeros(MOST_SLOTS, dtype=np.int64)
        self.ends_us[: len(slots)], self.live = ends_us, np.arange(MOST_SLOTS) < len(slots)

    def windows(self) -> dict[int, list[Window]]:
        found: dict[int, list[Window]] = {}
        for slot in np.flatnonzero(self.live).tolist():
            window = int(self.sessions.starts_us.used[slot]), int(self.ends_us[slot])
            found.setdefault(int(self.sessions.keys.used[slot]), []).append(window)
        slots = self.sessions.of_keys(np.array(sorted(found), dtype=np.int64), self.live)
        assert sorted(slots.tolist()) == np.flatnonzero(self.live).tolist(), "each is in the chain of its key"
        return {key: sorted(windows) for key, windows in found.items()}


def merged(windows: list[Window]) -> list[Window]:
    result: list[Window] = []
    for start, end in sorted(windows):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


WINDOWS = st.builds(lambda start, length: (start, start + length), st.integers(0, 60), st.integers(1, 6))
STEPS = st.one_of(
    st.tuples(st.just("join"), st.lists(st.tuples(st.integers(0, 3), WINDOWS), min_size=1, max_size=8)),
    st.tuples(st.just("end"), st.integers(0, 60)),
    st.tuples(st.just("compact"), st.none()),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=20))
def test_what_touches_becomes_one_whatever_order_it_comes_in(steps: list[tuple[str, Any]]) -> None:
    held, expected, over_us = Held(), dict[int, list[Window]](), 0
    for kind, what in steps:
        match kind:
            case "join":
                # Rows whose windows are over are late, and never come here.
                rows = [(key, window) for key, window in what if window[1] > over_us]
                if rows:
                    held.join(rows)
                for key, window in rows:
                    expected[key] = merged([*expected.get(key, []), window])
            case "end":
                over_us = max(over_us, what)
                held.end(over_us)
                expected = {key: [one for one in windows if one[1] > over_us] for key, windows in expected.items()}
            case "compact":
                held.compact()
        assert held.windows() == {key: windows for key, windows in expected.items() if windows}


def test_rows_do_not_look_at_sessions_that_end_before_they_start() -> None:
    held = Held()
    for start in range(0, 2_000, 10):
        assert len(held.join([(0, (start, start + 5)), (1, (start, start + 5))]).slots) == 2
    assert len(held.join([(0, (1_985, 1_988))]).slots) == 2, "the one that it joins, and the one behind that"


def test_after_others_were_left_behind_a_key_is_looked_at_once_as_a_whole() -> None:
    held = Held()
    for start in range(0, 200, 10):
        held.join([(0, (start, start + 5))])
    held.compact()
    assert len(held.join([(0, (300, 305))]).slots) == 21
    assert len(held.join([(0, (310, 315))]).slots) == 1
